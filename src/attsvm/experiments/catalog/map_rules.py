"""The map from optimizers to margins: which norm's margin each rule maximises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.data import sphere
from attsvm.dynamics import Adam, Growing, Lion, Muon, RMSprop, Rule, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, margin_share
from attsvm.experiments._checks import margin_checks
from attsvm.experiments._draw import SERIES, Figure, margin_map, new_figure
from attsvm.geometry import Lp, Spectral

NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "spectral": "spectral", "l1.5": "ℓ1.5", "l1": "ℓ1"}
"""Norms of the margins, and how they are written."""
SIZES = {"6, 8, 10": (6, 8, 10), "4, 6, 6": (4, 6, 6), "8, 10, 16": (8, 10, 16)}
"""n, T, d; all trials are run at the first, a fifth of them at the others."""
MAIN = next(iter(SIZES))
RULES: dict[str, tuple[Rule | None, str, Any, int]] = {
    "GD": (Steepest(), "l2", Growing(), 3000),
    "momentum 0.9": (Steepest(momentum=0.9), "l2", 0.1, 20000),
    "ℓ1.5 mirror": (None, "l1.5", Growing(), 3000),
    "coordinate": (Steepest(Lp(1)), "l1", 0.02, 20000),
    "sign": (Steepest(Lp(math.inf)), "linf", 0.02, 20000),
    "RMSprop (0.9)": (RMSprop(), "linf", 0.02, 20000),
    "Adam (0.9, 0.95)": (Adam(beta2=0.95), "linf", 0.02, 20000),
    "Adam (0.9, 0.999)": (Adam(), "linf", 0.02, 20000),
    "Lion, η = 0.002": (Lion(), "linf", 0.002, 20000),
    "Lion, η = 0.02": (Lion(), "linf", 0.02, 20000),
    "spectral": (Steepest(Spectral()), "spectral", Growing(0.1, 1.0), 10000),
    "Muon (0.95)": (Muon(), "spectral", 0.02, 5000),
}
"""Rule (None is mirror descent in the norm), predicted norm, step size, steps."""
BARRED = ("GD", "momentum 0.9", "ℓ1.5 mirror", "sign", "RMSprop (0.9)", "spectral")
"""Rules without a memory that outlives the gradient's fall: they must reach 0.99 of their margin."""


def run(params: Params, trials: range, device: str) -> Columns:
    rule, norm, lr, steps = RULES[params["rule"]]
    data = sphere(*SIZES[params["size"]], trials=trials, seed=0).to(device)
    options: dict[str, Any] = {"steps": steps, "lr": lr, "record": ("norm",), "at": [steps]}
    options["compile"] = steps >= 5000  # in batches of this size a compiler pays early
    result = train(data, norm, **options) if rule is None else train(data, rule=rule, **options)
    columns: dict[str, np.ndarray] = {"tokens": array(result.tokens[:, :, 0])}
    for other in NORMS:
        columns[f"efficiency_{other}"] = array(margin_share(data, result.tokens, result.W, other))
    return columns


def _median(rows: Rows, rule: str, norm: str, size: str = MAIN) -> float:
    return float(np.nanmedian(rows.where(rule=rule, size=size)[f"efficiency_{norm}"]))


def _in_words(rows: Rows, rule: str, norm: str) -> str:
    low, high = np.nanquantile(rows.where(rule=rule, size=MAIN)[f"efficiency_{norm}"], (0.1, 0.9))
    return f"{_median(rows, rule, norm):.3f}\n{low:.2f} to {high:.2f}"


def figure(rows: Rows) -> Figure:
    rules, sizes = rows.values("rule"), rows.values("size")
    count = len(rows.where(rule=rules[0], size=MAIN))
    panels = 1 if len(sizes) == 1 else 2
    figure, axes = new_figure(1, panels, (1.5 + 5.75 * panels, 0.42 * len(rules) + 1.5))
    ax = axes[0][0]
    table = np.array([[_median(rows, rule, norm) for norm in NORMS] for rule in rules])
    words = [[_in_words(rows, rule, norm) for norm in NORMS] for rule in rules]
    suited = [RULES[rule][1] for rule in rules]
    labels = [f"{rule}, {RULES[rule][3]:,} steps" for rule in rules]
    title = f"share of the largest margin: median, and 10% to 90% of {count} problems"
    margin_map(ax, table, NORMS, suited, labels, title, words, 7)
    if panels == 1:
        return figure
    own = axes[0][1]
    for k, size in enumerate(sizes):
        shares = [rows.where(rule=rule, size=size)[f"efficiency_{RULES[rule][1]}"] for rule in rules]
        low, middle, high = np.array([np.nanquantile(share, (0.1, 0.5, 0.9)) for share in shares]).T
        y = np.arange(len(rules)) + 0.22 * (k - (len(sizes) - 1) / 2)
        own.errorbar(
            middle, y, xerr=[middle - low, high - middle], fmt=SERIES[k].marker, color=SERIES[k].colour, ms=4, lw=1,
            label=f"n, T, d = {size}",
        )  # fmt: skip
    own.set(
        ylim=ax.get_ylim(),
        yticks=[],
        xlim=(0, 1.02),
        xlabel="efficiency in the predicted norm",
        title="the predicted margin, by size",
    )
    own.grid(alpha=0.25)
    own.legend(frameon=False, fontsize=7, loc="upper left")
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in (rule for rule in rows.values("rule") if rule in BARRED):
        shares = {words: _median(rows, rule, norm) for norm, words in NORMS.items()}
        found += margin_checks(rule, shares, NORMS[RULES[rule][1]], 0.99)
    for size in rows.values("size"):
        if size != MAIN:
            worst = min(BARRED, key=lambda rule: _median(rows, rule, RULES[rule][1], size))
            words = f"n, T, d = {size}: least median share of the predicted margin ({worst})"
            least = _median(rows, worst, RULES[worst][1], size)
            found.append(at_least(words, least, 0.97, "the same at other sizes"))
    slow, fast = (_median(rows, f"Adam (0.9, {beta})", "linf") for beta in ("0.999", "0.95"))
    words = "Adam: how much of the ℓ∞ margin a long memory (β2 = 0.999) costs, against β2 = 0.95"
    found.append(at_least(words, fast - slow, 0.2, "the second moment remembers gradients far larger than today's"))
    return found


EXPERIMENT = Experiment(
    id="map-rules",
    title="Every optimizer has a margin",
    statement="Steepest descent in a norm, and mirror descent in its geometry, maximise the margin of attention in "
    "that norm: ℓ2 for gradient descent, with or without momentum, ℓ∞ for sign descent and RMSprop, spectral for "
    "spectral descent. This is proved for linear models; for attention it is measured here. What coordinate descent, "
    "Adam, Lion and Muon reach in these steps is shown as it is; map-adam and map-muon follow them further.",
    grid={"rule": list(RULES), "size": list(SIZES)},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    times=lambda params: 5 if params["size"] == MAIN else 1,
    quick=8,
    quick_grid={"size": [MAIN]},
    batch=250,
    cost=lambda params: 0.1 * (SIZES[params["size"]][2] / 10) ** 2,
    version=3,
    remark="The norms of the SVMs are those of the tokens that each run selected. ℓ∞ and spectral optima need not be "
    "unique, so margins are compared, not directions. Sign descent and momentum take constant steps: with growing ones "
    "the first oscillates, and the second remembers gradients that are far larger than today's.",
)
