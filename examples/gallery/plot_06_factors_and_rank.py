"""
Factors K and Q make W of low rank
==================================

Gradient descent on W goes to the solution of smallest Frobenius norm. Trained through W = K Qᵀ it goes to the one of
smallest nuclear norm: fewer singular values remain.
"""

import matplotlib.pyplot as plt
import torch

import attsvm

data = attsvm.sphere(4, 6, 10, trials=20, seed=3)
direct = attsvm.train(data, steps=3000)
factors = attsvm.train(data, parameterization="KQ", steps=6000, ridge=1e-100)

# %%
# Singular values over the largest one, median of the trials.
figure, ax = plt.subplots(layout="constrained", figsize=(5, 3.4))
for name, run in (("W", direct), ("K Qᵀ", factors)):
    values = torch.linalg.svdvals(run.W)
    ax.plot(range(1, 11), (values / values[:, :1]).median(0).values, "o-", label=f"trained as {name}")
ax.set_xlabel("singular value")
ax.set_ylabel("share of the largest")
_ = ax.legend()
