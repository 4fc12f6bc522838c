"""Starts inside the cone of the local theorems, for every p."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import constants, directional_bregman, radius
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.experiments._lemmas import at_unit_size
from attsvm.geometry import Lp
from attsvm.search import cone_start

STEPS, GROWTH = 5000, 3
STRIDES = {1.5: 2e-3, 1.75: 2e-3, 2: 3e-3, 3: 5e-4}
"""Steps that shrink beside ‖θ‖: at first this share of it, short enough for so thin a cone, in the end GROWTH/k."""


def run(params: Params, trials: range, device: str) -> Columns:
    geometry = Lp(params["p"])
    data = sphere(2, 2, 6, trials=trials, seed=0, min_score_gap=0.1).to(device)
    tokens = data.optimal_tokens()
    solution = limit(data, tokens, geometry)
    c = constants(data, tokens, solution)
    start = cone_start(data, tokens, geometry, lean=0.9)["W"]
    scaled, small = at_unit_size(data, start, geometry)
    first = STRIDES[params["p"]]

    def lr(k: int) -> float:  # so that ‖θ‖ grows like (1 + first·k/GROWTH)^GROWTH
        return first * (1 + first * k / GROWTH) ** (GROWTH - 1)

    result = train(scaled, geometry, steps=STEPS, lr=lr, init={"W": small}, record=("W", "norm"), compile=False)
    norm = result.records["norm"] * (geometry.norm(start) / geometry.norm(small))
    divergence = directional_bregman(solution.W, result.records["W"], geometry)
    return {
        "step": steps_of(result.steps, trials),
        "share of μ₀": curves(divergence / c.mu0),
        "divergence": curves(divergence),
        "norm": curves(norm),
        "over R": array(norm.amin(0) / radius(data, c, solution)),
    }


def _rate(p: float, norm: np.ndarray) -> np.ndarray:
    """(28): what the divergence is at most of the order of, at this norm."""
    if p > 2:
        return np.log(norm) / norm
    return np.log(norm) ** 2 / norm if p == 2 else norm ** (1 - p)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.7))
    for look, p in zip(SERIES, rows.values("p")):
        cell = rows.where(p=p)
        steps = cell["step"][0][1:]
        band(axes[0][0], steps, cell["share of μ₀"][:, 1:], look, f"p = {p}", spread="quantiles")
        band(axes[0][1], steps, cell["divergence"][:, 1:], look, f"p = {p}", spread="quantiles")
    axes[0][0].axhline(1, color="black", lw=0.8)
    axes[0][0].axhline(1 / 3, color="black", lw=0.8, ls=":")
    axes[0][0].set(xscale="log", yscale="log", xlabel="iteration", ylabel="divergence over μ₀")
    axes[0][0].set_title("1: the wide cone; dotted: the thin one, where all start")
    axes[0][1].set(xscale="log", yscale="log", xlabel="iteration", ylabel="directional Bregman divergence")
    each = len(rows) // len(rows.values("p"))
    axes[0][1].set_title(f"median of {each} trials, band from 10% to 90%")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cell = rows.where(p=p)
        most = float(cell["share of μ₀"].max())
        paper = "from the thin cone C_{p,μ₀/3,R} every W(k) is in the wide one (Lemma 17)"
        found.append(at_most(f"p = {p}: largest divergence over μ₀ of all steps", most, 1.0, paper))
        found.append(at_least(f"p = {p}: smallest ‖W(k)‖/R", float(cell["over R"].min()), 1.0, paper))
        shrunk = (cell["norm"][:, 0] / cell["norm"][:, -1]) ** (float(p) - 1)
        left = float((cell["divergence"][:, -1] / cell["divergence"][:, 0] / shrunk).max())
        found.append(
            at_most(
                f"p = {p}: largest divergence at the end over its first value times (‖W(0)‖/‖W(k)‖)^(p−1)",
                left,
                1.0,
                "Theorem 3: the divergence vanishes; by (27) it is at most this, and a term that goes with π",
                "steps along fixed rows leave a deviation that falls like 1/‖θ‖, and the divergence is quadratic in it",
            )
        )
        rates = cell["divergence"] / _rate(float(p), cell["norm"])
        value = float((rates[:, -1] / rates[:, 0]).max())
        paper = "Lemma 18: the divergence is O(rate)"
        found.append(at_most(f"p = {p}: largest divergence over its rate (28), end over start", value, 1.0, paper))
    return found


EXPERIMENT = Experiment(
    id="md-cone",
    title="Starts inside the cone",
    paper="mirror-descent, Theorems 2 to 4 and Lemmas 17 and 18",
    statement="From W(0) in the thin cone every W(k) stays in the wide one, ‖W‖ grows, the direction goes to W_mm, and "
    "the divergence is O(log ‖W‖/‖W‖) for p > 2, O((log ‖W‖)²/‖W‖) for p = 2, O(‖W‖^(1−p)) for p < 2.",
    grid={"p": [1.5, 1.75, 2, 3]},
    quick_grid={"p": [1.5, 2, 3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=50,
    quick=10,
    cost=lambda params: 0.05,
    remark="The cone of the proofs starts at 10⁵ to 10⁷ times ‖W_mm‖, where plain steps are below 10^(−10⁵) and move "
    "nothing in float64: steps are normalised, and grow with ‖θ‖ but less than it. n = T = 2, d = 6, where every token "
    "is a support token and the cone is as wide as it gets.",
)
