"""What the start W(0) does to tokens and direction."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import directional_bregman, is_globally_optimal, is_locally_optimal
from attsvm.dynamics import Gaussian, Growing, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure

STEPS, NEAR = 2000, 0.01


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    scale = params["scale"]
    init = "zero" if scale == 0 else Gaussian(scale, seed=1)
    result = train(data, f"l{params['p']}", steps=STEPS, lr=Growing(), init=init, record=("W",))
    solution = limit(data, result.tokens, result.geometry)
    divergence = curves(directional_bregman(solution.W, result.records["W"], result.geometry))
    steps = steps_of(result.steps, trials)
    near = divergence <= NEAR
    return {
        "tokens": array(result.tokens[:, :, 0]),
        "divergence": divergence[:, -1],
        "steps_to_near": np.where(near.any(1), steps[np.arange(len(trials)), near.argmax(1)], STEPS),
        "is_global": array(is_globally_optimal(data, result.tokens)),
        "is_local": array(is_locally_optimal(data, result.tokens, solution)),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10.5, 3.5))
    scales = rows.values("scale")
    x = np.maximum(scales, min(s for s in scales if s > 0) / 10)
    for look, p in zip(SERIES, rows.values("p")):
        cells = [rows.where(p=p, scale=scale) for scale in scales]
        share = np.array([cell["is_global"].mean() for cell in cells])
        error = np.sqrt(share * (1 - share) / len(cells[0]))
        axes[0][0].errorbar(x, share, error, elinewidth=0.8, ms=4.5, label=f"p = {p}", **look.style)
        for ax, column in zip(axes[0][1:], ("steps_to_near", "divergence")):
            band(
                ax, x, np.stack([cell[column] for cell in cells], 1), look, f"p = {p}", spread="quantiles", markers=True
            )
    titles = (
        "optimal tokens chosen (share, s.e.)",
        f"steps to divergence {NEAR} (median)",
        "final divergence (median)",
    )
    for ax, title in zip(axes[0], titles):
        ax.set(xscale="log", xlabel="scale of W(0); leftmost: 0", title=title)
    axes[0][1].set(yscale="log")
    axes[0][2].set(yscale="log")
    axes[0][0].set(ylim=(0, 1.03))
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cells = rows.where(p=p)
        worst = max(float(np.nanmedian(cells.where(scale=s)["divergence"])) for s in cells.values("scale"))
        paper = "the limit is that of the tokens that the start leads to"
        found.append(at_most(f"p = {p}: largest median divergence over all scales", worst, 1e-3, paper))
        local = float(cells["is_local"].mean())
        found.append(at_least(f"p = {p}: share of runs that end at locally optimal tokens", local, 0.9, paper))
    for p in (2, 3):
        start, far = rows.where(p=p, scale=0.0), rows.where(p=p, scale=max(rows.values("scale")))
        a, b = float(start["is_global"].mean()), float(far["is_global"].mean())
        paper = "the theorems are local: far starts may lead to other tokens"
        ours = f"{a:.0%} from 0, {b:.0%} from scale {max(rows.values('scale')):g}"
        found.append(Check(f"p = {p}: a far start chooses the optimal tokens less often", paper, ours, b < a))
    return found


EXPERIMENT = Experiment(
    id="md-init",
    title="Robustness to the start",
    paper="mirror-descent, notes on the later version",
    statement="How the scale of W(0) changes convergence speed, the selected tokens and the final divergence; the "
    "theorems ask for a start inside a cone around the solution.",
    grid={"p": [1.1, 1.5, 2, 3], "scale": [0.0, 0.01, 0.1, 1.0, 10.0]},
    quick_grid={"p": [1.5, 2, 3], "scale": [0.0, 0.1, 10.0]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=10,
    cost=lambda params: 0.03,
    remark="Gaussian starts, steps that grow with ‖W‖.",
)
