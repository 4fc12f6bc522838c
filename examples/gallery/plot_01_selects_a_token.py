"""
Attention selects a token
=========================

Each sequence keeps one token. The weight of that token goes to 1, first fast and then by ever smaller steps: 1 − s
falls far below what a float next to 1 can show, and is still exact.
"""

# %%
# Six sequences of eight tokens, and a head that says which token is worth attending to.
import attsvm

data = attsvm.sphere(6, 8, 10, trials=20, seed=0)
run = attsvm.train(data, steps=3000, record=["W", "norm", "loss", "top_weight", "log_rest", "tokens"])

# %%
# The weight outside the selected token, in powers of ten, over the steps.
ax = run.plot("log_rest")

# %%
# Training ends at the SVM of the tokens that it selected.
print(attsvm.verdict(run))
