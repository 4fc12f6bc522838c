"""An experiment of your own. Run it, and write it up:

    attsvm reproduce ./FILE.py --quick
    attsvm report runs ./FILE.py

or, in Python: `attsvm.experiments.run(EXPERIMENT, out="runs", quick=True)`.
"""

from __future__ import annotations

import numpy as np

import attsvm
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.plots import new_figure

STEPS = 300


def run(params: Params, trials: range, device: str) -> Columns:
    """One cell of the grid: rows for these trials. A trial may depend on its own number, never on the others'."""
    data = attsvm.sphere(4, 5, params["d"], trials=trials, seed=0).to(device)
    trajectory = attsvm.train(data, "l2", steps=STEPS, record=("norm", "top_weight"))
    return {  # arrays, the trial first
        "steps": np.tile(trajectory.steps.numpy(), (len(trials), 1)),
        "norm": trajectory.records["norm"].T.cpu().numpy(),
        "top_weight": trajectory.records["top_weight"].mean((2, 3)).T.cpu().numpy(),
    }


def figure(rows: Rows):
    """A matplotlib figure from the rows."""
    figure, axes = new_figure(1, 1, (5.5, 3.6))
    for d in rows.values("d"):
        cell = rows.where(d=d)
        axes[0][0].plot(cell["steps"][0], cell["top_weight"].mean(0), label=f"d = {d}")
    axes[0][0].set(xscale="log", xlabel="step", ylabel="largest softmax weight, mean")
    axes[0][0].legend()
    return figure


def checks(rows: Rows) -> list[Check]:
    """What must hold, computed from the rows: each line of the verdict."""
    grown = [float((cell["norm"][:, -1] / cell["norm"][:, 1]).min()) for _, cell in rows]
    saturated = float(rows["top_weight"][:, -1].mean())
    return [
        at_least("W grows: last norm over the first, smallest", min(grown), 2.0),
        at_least("attention selects: largest softmax weight at the end, mean", saturated, 0.9),
    ]


EXPERIMENT = Experiment(
    id="my-experiment",
    title="Attention selects one token",
    statement="Trained by normalized gradient descent, the weights grow and the softmax saturates.",
    grid={"d": [6, 8]},
    run=run,
    figure=figure,
    checks=checks,
    trials=20,
    quick=4,
    batch=10,
    version=1,  # raise it when `run` changes: old rows then no longer count
)
