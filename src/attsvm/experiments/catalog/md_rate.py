"""Unnormalised mirror descent: ‖W‖ grows like log k, the divergence falls within the poly-log rates."""

from __future__ import annotations

import numpy as np
import torch

from attsvm.data import sphere
from attsvm.diagnostics import PRINTED, directional_bregman, fit_rate, is_locally_optimal, theorem_rate
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure

LR = 1.0


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(3, 4, 6, trials=trials, seed=0, min_score_gap=0.1).to(device)
    record = ("W", "norm")
    result = train(data, f"l{params['p']}", steps=params["steps"], lr=LR, normalize=False, record=record)
    solution = limit(data, result.tokens, result.geometry)
    divergence = directional_bregman(solution.W, result.records["W"], result.geometry)
    rate = fit_rate(result.steps, divergence, float(params["p"]))
    return {
        "step": steps_of(result.steps, trials),
        "divergence": curves(divergence),
        "norm": curves(result.records["norm"]),
        "excess": np.stack([array(slope) for slope in rate.excess.values()], 1).max(1),
        "is_local": array(is_locally_optimal(data, result.tokens, solution)),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.7))
    for look, p in zip(SERIES, rows.values("p")):
        cell = rows.where(p=p)
        steps = cell["step"][0]
        late = steps >= 10
        band(axes[0][0], steps[late], cell["norm"][:, late], look, f"p = {p}")
        band(axes[0][1], steps[late], cell["divergence"][:, late], look, f"p = {p}", spread="quantiles")
        rate = theorem_rate(float(p), torch.from_numpy(steps[late]))[PRINTED].numpy()
        scale = np.nanmedian(cell["divergence"][:, late][:, len(rate) // 2]) / rate[len(rate) // 2]
        axes[0][1].plot(steps[late], 3 * scale * rate, color=look.colour, lw=0.8, alpha=0.7)
    axes[0][0].set(xscale="log", xlabel="iteration", ylabel="‖W‖", title="norm: a line is log k")
    axes[0][1].set(xscale="log", yscale="log", xlabel="iteration", ylabel="directional Bregman divergence")
    axes[0][1].set_title("thin lines: the rate of Theorem 4, scaled")
    return finish(figure)


def _straight(cell: Rows) -> float:
    """Correlation of the mean norm with log k in the last two decades."""
    steps, norm = cell["step"][0], cell["norm"].mean(0)
    late = steps >= steps[-1] / 100
    return float(np.corrcoef(np.log(steps[late]), norm[late])[0, 1])


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cell = rows.where(p=p)
        straight = _straight(cell)
        found.append(Check(f"p = {p}: ‖W‖ is linear in log k over the last two decades", "‖W‖ = Ω(log k)",
                           f"correlation {straight:.4f}", straight >= 0.98))  # fmt: skip
        median = float(np.nanmedian(cell["excess"][cell["is_local"]]))
        paper = "the divergence is O of the rate of Theorem 4"
        note = "slope of log(divergence/rate) against log log k, the last half of the run; at most 0 if it holds"
        found.append(
            at_most(f"p = {p}: the divergence falls no slower than the rate (median slope)", median, 0.0, paper, note)
        )
    return found


EXPERIMENT = Experiment(
    id="md-rate",
    title="Rates of unnormalised mirror descent",
    paper="mirror-descent, Theorems 2 to 4",
    statement="‖W‖ grows without bound, like log k, and the directional divergence is O(log log k/log k) for p > 2, "
    "O((log log k)²/log k) for p = 2 and O(log log k/(log k)^(p−1)) for p < 2.",
    grid={"p": [1.75, 2, 3], "steps": [100000]},
    quick_grid={"steps": [5000]},
    run=run,
    figure=figure,
    checks=checks,
    trials=32,
    quick=10,
    cost=lambda params: 2e-6 * params["steps"],
    remark="The paper has no experiment on these rates. n = 3, T = 4, d = 6, η = 1, start at 0, which is outside the "
    "cone that the theorems ask for; the trials that end at locally optimal tokens are judged.",
)
