"""
Every geometry has its own limit
================================

Mirror descent in three geometries on the same data. Each run comes close to the max-margin solution of its own norm,
and stays away from the other two.
"""

import matplotlib.pyplot as plt
import torch

import attsvm
from attsvm.diagnostics import correlation

data = attsvm.sphere(6, 8, 10, trials=50, seed=1)
names = ["l1.5", "l2", "l3"]
runs = {name: attsvm.train(data, name, steps=3000, lr=attsvm.Growing()) for name in names}

# %%
# The solutions belong to the tokens that the run selected.
table = torch.empty(3, 3)
for i, run in enumerate(runs.values()):
    for j, norm in enumerate(names):
        solution = attsvm.solve(attsvm.att_svm(data, run.tokens), norm)
        table[i, j] = 1 - correlation(run.W, solution.W)[solution.solved].median()

# %%
# One minus the correlation between what was trained (rows) and each max-margin solution (columns), in powers of ten.
figure, ax = plt.subplots(layout="constrained", figsize=(4.5, 3.6))
image = ax.imshow(table.log10(), cmap="viridis_r")
ax.set_xticks(range(3), [f"{name} solution" for name in names])
ax.set_yticks(range(3), [f"trained in {name}" for name in names])
for i in range(3):
    for j in range(3):
        ax.text(j, i, f"{table[i, j]:.0e}", ha="center", va="center", color="white" if table[i, j] > 1e-4 else "black")
_ = figure.colorbar(image, label="log₁₀(1 − correlation)")
