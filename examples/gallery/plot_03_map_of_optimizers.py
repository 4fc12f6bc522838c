"""
Where Adam, Muon and sign descent lead
======================================

Each optimizer maximises a margin in a norm of its own. The table shows the share of the largest possible margin that
the final weights have, in three norms; the largest number of a row tells the norm of the optimizer.
"""

import matplotlib.pyplot as plt
import torch

import attsvm

data = attsvm.sphere(6, 8, 10, trials=10, seed=2)
rules = {
    "GD": "gd",
    "sign": "sign",
    "spectral": "spectral",
    "Adam (0.9, 0.95)": attsvm.Adam(beta2=0.95),
    "Muon": "muon",
}
norms = ["l2", "linf", "spectral"]

# %%
# Margin over norm, as a share of the best: 1 is the max-margin solution itself.
table = torch.empty(len(rules), len(norms))
for i, rule in enumerate(rules.values()):
    run = attsvm.train(data, rule=rule, steps=2000)
    problem = attsvm.att_svm(data, run.tokens)
    for j, norm in enumerate(norms):
        table[i, j] = attsvm.margin_efficiency(run.W, attsvm.solve(problem, norm)).median()

# %%
# Two thousand steps show the pattern; `attsvm reproduce map-rules` follows it to twenty thousand.
figure, ax = plt.subplots(layout="constrained", figsize=(5, 3.6))
image = ax.imshow(table, cmap="viridis", vmin=0.4, vmax=1)
ax.set_xticks(range(len(norms)), norms)
ax.set_yticks(range(len(rules)), list(rules))
for i in range(len(rules)):
    for j in range(len(norms)):
        ax.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", color="black" if table[i, j] > 0.7 else "white")
_ = figure.colorbar(image, label="share of the largest margin")
