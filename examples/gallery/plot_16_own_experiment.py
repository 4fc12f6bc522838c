"""
An experiment of your own
=========================

An experiment is a grid, a function that computes rows, a figure and checks. The runner keeps the rows, resumes and
reports. `attsvm new-experiment mine` writes a file to start from.
"""

import tempfile

import attsvm
from attsvm.experiments import Experiment, at_most, run


def rows_of(params, trials, device):
    data = attsvm.sphere(4, 5, 8, trials=trials, seed=0).to(device)
    verdict = attsvm.verdict(attsvm.train(data, params["norm"], steps=1000))
    return {"error": verdict.error.numpy()}


def draw(rows):
    figure, axes = attsvm.plots.new_figure(1, 1, (5, 3.2))
    axes[0][0].boxplot([rows.where(norm=norm)["error"] for norm in rows.values("norm")], whis=(5, 95))
    axes[0][0].set_xticks([1, 2], list(rows.values("norm")))
    axes[0][0].set(yscale="log", ylabel="direction error after 1,000 steps")
    return figure


def judge(rows):
    return [at_most("median direction error", float(sorted(rows["error"])[len(rows["error"]) // 2]), 0.01)]


EXPERIMENT = Experiment(
    id="two-norms", title="Two norms", statement="Both come close to their limit in a thousand steps.",
    grid={"norm": ["l1.5", "l2"]}, run=rows_of, figure=draw, checks=judge, trials=20, quick=10, batch=10,
)  # fmt: skip

# %%
# Run it, and see whether the claim holds.
with tempfile.TemporaryDirectory() as out:
    outcome = run(EXPERIMENT, out)
print(outcome)
figure = draw(outcome.rows)
