"""GD on W goes to the Frobenius solution, GD on (K, Q) to the nuclear one."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Growing, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, as_in_paper, curves, limit, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure

STEPS = 2000


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    options = as_in_paper(params["trained"])
    if params["trained"] == "W, growing steps":
        options["lr"] = Growing()
    result = train(data, "l2", steps=STEPS, record=("W", "top_weight"), **options)
    frobenius, nuclear = (limit(data, result.tokens, norm) for norm in ("l2", "nuclear"))
    W = result.records["W"]
    return {
        "steps": steps_of(result.steps, trials),
        "top_weight": curves(result.records["top_weight"]).mean((2, 3)),
        "frobenius": curves(misalignment(frobenius.W, W)),
        "nuclear": curves(misalignment(nuclear.W, W)),
        "tokens": array(result.tokens[:, :, 0]),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10, 3.4))
    for look, name in zip(SERIES, ("W", "KQ")):
        cell = rows.where(trained=name)
        steps = cell["steps"][0]
        label = "W" if name == "W" else "(K, Q)"
        band(axes[0][0], steps, cell["top_weight"], look, label)
        for ax, norm in zip(axes[0][1:], ("frobenius", "nuclear")):
            band(ax, steps, 1 - cell[norm], look, label)
    axes[0][0].set(ylabel="largest softmax probability", title="(a) softmax", ylim=(0, 1.02))
    axes[0][1].set(ylabel="correlation", title="(b) with the Frobenius solution", ylim=(0.4, 1.02))
    axes[0][2].set(ylabel="correlation", title="(c) with the nuclear solution", ylim=(0.4, 1.02))
    for ax in axes[0]:
        ax.set(xlabel="iteration", xlim=(0, STEPS))
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    def end(trained: str, column: str) -> float:
        values = rows.where(trained=trained)[column][:, -1]
        return float(np.mean(values if column == "top_weight" else 1 - values))

    paper = "W(k) has a Frobenius bias and K(k)Q(k)ᵀ a nuclear one (Figure 7)"
    cross = "each is further from the other's solution"
    return [
        at_least("mean softmax probability of the chosen tokens, W", end("W", "top_weight"), 0.99, "goes to 1"),
        at_least("mean softmax probability of the chosen tokens, (K, Q)", end("KQ", "top_weight"), 0.99, "goes to 1"),
        at_least("mean corr(W, Frobenius), η = 0.1", end("W", "frobenius"), 0.995, paper),
        at_least("mean corr(W, Frobenius), growing steps", end("W, growing steps", "frobenius"), 0.99999, paper),
        at_least("mean corr(KQᵀ, nuclear), η = 0.1", end("KQ", "nuclear"), 0.99, paper),
        at_most("mean corr(W, nuclear)", end("W", "nuclear"), 0.98, cross),
        at_most("mean corr(KQᵀ, Frobenius)", end("KQ", "frobenius"), 0.98, cross),
    ]


EXPERIMENT = Experiment(
    id="svm-fig7",
    title="Frobenius bias of W, nuclear bias of (K, Q)",
    paper="TF-as-SVM, Figure 7",
    statement="The softmax saturates; the correlation of W with the Frobenius solution and that of KQᵀ with the "
    "nuclear solution of the chosen tokens go to 1, crosswise they do not (n = 6, T = 8, d = 10, 100 trials, η = 0.1).",
    grid={"trained": ["W", "W, growing steps", "KQ"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=20,
    cost=lambda params: 0.05,
    remark="The paper gives no number of steps; 2,000 are those of its Figure 8. (K, Q) is trained with the paper's "
    "own penalty 2.2e-16·(‖K‖² + ‖Q‖²): without it KQᵀ nears the nuclear solution only like 1/log k.",
)
