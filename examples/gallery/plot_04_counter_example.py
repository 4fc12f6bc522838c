"""
A theorem that is false as printed
==================================

Theorem 4 of TF-as-SVM says that plain gradient descent selects the optimal tokens. On these two sequences of two tokens
it does not, whatever the step: the logit of the second sequence goes the wrong way and never returns.
"""

import matplotlib.pyplot as plt

import attsvm
from attsvm.diagnostics import lipschitz_constant

data = attsvm.search.counterexample(4)
lr = 0.99 / lipschitz_constant(data).item()
run = attsvm.train(data, steps=20_000, lr=lr, normalize=False, record=["W", "norm", "loss", "tokens"])

# %%
# By how much the optimal token leads in each sequence. The theorem says that both leads become positive.
steps, W = run.steps[1:], run.records["W"][1:, 0]
best = data.optimal_tokens()[0, :, 0]
figure, ax = plt.subplots(layout="constrained", figsize=(5.5, 3.4))
for i in range(2):
    gap = data.X[0, i, best[i]] - data.X[0, i, 1 - best[i]]
    ax.plot(steps, (gap @ W @ data.Z[0, i, 0]), label=f"sequence {i + 1}")
ax.axhline(0, color="grey", lw=0.8)
ax.set(xscale="log", xlabel="step", ylabel="lead of the optimal token (logit)")
_ = ax.legend()

# %%
# The verdict does not list the theorem as one that applies, and says why.
print(attsvm.verdict(run))
