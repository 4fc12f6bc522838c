"""The conjecture of Section 5.2: B.1 and D imply that GD finds the optimal tokens from every start."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attsvm.data import TokenData, sphere
from attsvm.diagnostics import assumption_b1, assumption_d, is_locally_optimal, misalignment
from attsvm.dynamics import Gaussian, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, limit
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure

SIZES = {"n = 2, T = 3, d = 6": (2, 3, 6), "n = 3, T = 2, d = 4": (3, 2, 4), "n = 3, T = 3, d = 10": (3, 3, 10)}
STEPS, MORE, LR, STRIDE = 400, 8000, 0.1, 0.02


def _train(data: TokenData, start: Tensor, scale: float, steps: int) -> tuple[Tensor, Tensor]:
    """W and tokens at the end of normalised GD with a constant step in proportion to the start."""
    lr = max(LR, STRIDE * scale * data.d)
    result = train(data, "l2", steps=steps, lr=lr, init={"W": start}, record=(), compile=False)
    return result.W, result.tokens


def run(params: Params, trials: range, device: str) -> Columns:
    n, T, d = SIZES[params["size"]]
    data = sphere(n, T, d, trials=trials, seed=0).to(device)
    optimal = data.optimal_tokens()
    solution = limit(data, optimal, "l2")
    b1, d_holds = assumption_b1(data, solution).holds, assumption_d(data).holds
    start = Gaussian(params["scale"], seed=1).draw(data.trials, {"W": (d, d)})["W"].to(data.X)
    W, tokens = _train(data, start, params["scale"], STEPS)
    # A run that selects other tokens where the conjecture forbids it is given twenty times as long.
    late = ((tokens != optimal).flatten(1).any(1) & b1 & d_holds).nonzero()[:, 0]
    if len(late):
        W[late], tokens[late] = _train(data[late], start[late], params["scale"], MORE)
    right = (tokens == optimal).flatten(1).all(1)
    local = is_locally_optimal(data, tokens, limit(data, tokens, "l2"))
    return {
        "b1": array(b1),
        "d": array(d_holds),
        "right": array(right),
        "local": array(local),
        "misalignment": array(misalignment(solution.W, W)),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, len(rows.values("size")), (10.5, 3.5))
    scales = rows.values("scale")
    x = np.maximum(scales, min(s for s in scales if s > 0) / 10)
    for ax, size in zip(axes[0], rows.values("size")):
        cells = [rows.where(size=size, scale=scale) for scale in scales]
        kinds = {
            "B.1 and D": [cell["b1"] & cell["d"] for cell in cells],
            "B.1, not D": [cell["b1"] & ~cell["d"] for cell in cells],
            "not B.1": [~cell["b1"] for cell in cells],
        }
        for look, (label, chosen) in zip(SERIES, kinds.items()):
            share = [100 * cell["right"][some].mean() if some.any() else np.nan for cell, some in zip(cells, chosen)]
            name = f"{label} ({int(np.mean([some.sum() for some in chosen]))} trials)"
            ax.plot(x, share, ms=4.5, label=name, **look.style)
        ax.set(xscale="log", ylim=(0, 104), xlabel="scale of W(0); leftmost: 0", title=size)
    axes[0][0].set_ylabel("% of trials that end at the optimal tokens")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    meets = rows["b1"] & rows["d"]
    wrong = meets & ~rows["right"]
    paper = "B.1 and D: GD converges to W_mm in direction, for almost all data (conjecture of Section 5.2)"
    count = f"{int(meets.sum())} runs that meet B.1 and D, of {len(rows)}"
    small = rows.where(scale=min(rows.values("scale")))
    chosen = small["b1"] & small["d"]
    others = rows["b1"] & ~rows["d"]
    share = float(rows["right"][others].mean()) if others.any() else np.nan
    return [
        at_most("runs that meet B.1 and D and end at other tokens", float(wrong.sum()), 0.0, paper, count),
        at_most(
            "from the smallest start: median 1 − corr with W_mm",
            float(np.median(small["misalignment"][chosen])),
            1e-2,
            paper,
        ),
        at_least(
            "runs that meet B.1 and D", float(meets.sum()), 100.0, note="so that the check says something", extra=True
        ),
        Check("B.1 without D: not always", "", f"{share:.1%} of {int(others.sum())} runs", share < 1, extra=True),
    ]


EXPERIMENT = Experiment(
    id="svm-conjecture",
    title="The overparameterization conjecture",
    paper="TF-as-SVM, Section 5.2",
    statement="If all tokens are support tokens (B.1) and every wrong choice has an optimal token among its support "
    "tokens (D), GD converges in direction to W_mm from every start.",
    grid={"size": list(SIZES), "scale": [0.0, 0.1, 1.0, 10.0]},
    quick_grid={"size": list(SIZES)[:2], "scale": [0.0, 1.0, 10.0]},
    run=run,
    figure=figure,
    checks=checks,
    trials=2000,
    quick=100,
    batch=1000,
    cost=lambda params: 0.003,
    remark="Assumption D is checked for all T^n choices. Normalised steps of 0.1, or 2% of the start where that is "
    "more; a run at other tokens is given twenty times as many steps before it counts.",
)
