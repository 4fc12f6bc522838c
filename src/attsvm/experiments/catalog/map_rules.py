"""The map from optimizers to margins: which norm's margin each rule maximises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import margin_ratio
from attsvm.dynamics import Adam, Growing, Lion, Muon, RMSprop, Rule, Steepest, train
from attsvm.experiments._arrays import array
from attsvm.experiments._checks import Check, at_least, at_most
from attsvm.experiments._draw import Figure, new_figure, styled
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows
from attsvm.geometry import Lp, Spectral
from attsvm.svm import att_svm, solve

NORMS = ("l2", "linf", "spectral", "l1.5")
RULES: dict[str, tuple[Rule | None, str, Any, int]] = {
    "GD": (Steepest(), "l2", Growing(), 3000),
    "ℓ1.5 mirror": (None, "l1.5", Growing(), 3000),
    "sign": (Steepest(Lp(math.inf)), "linf", 0.02, 20000),
    "RMSprop (0.9)": (RMSprop(), "linf", 0.02, 20000),
    "Adam (0.9, 0.95)": (Adam(beta2=0.95), "linf", 0.02, 20000),
    "Adam (0.9, 0.999)": (Adam(), "linf", 0.02, 20000),
    "Lion (0.9, 0.99)": (Lion(), "linf", 0.02, 20000),
    "spectral": (Steepest(Spectral()), "spectral", Growing(0.1, 1.0), 10000),
    "Muon (0.95)": (Muon(), "spectral", 0.02, 5000),
}
"""Rule (None is mirror descent in the norm), predicted norm, step size, steps."""
BARRED = ("GD", "ℓ1.5 mirror", "sign", "RMSprop (0.9)", "spectral")
"""Rules without a memory that outlives the gradient's fall: they must reach 0.99 of their margin."""


def run(params: Params, trials: range, device: str) -> Columns:
    rule, norm, lr, steps = RULES[params["rule"]]
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    options: dict[str, Any] = {"steps": steps, "lr": lr, "record": ("norm",), "at": [steps]}
    # A rule whose step is a decomposition gains nothing from a compiler.
    options["compile"] = False if norm == "spectral" else None
    result = train(data, norm, **options) if rule is None else train(data, rule=rule, **options)
    columns: dict[str, np.ndarray] = {"tokens": array(result.tokens[:, :, 0])}
    for other in NORMS:
        solution = solve(att_svm(data, result.tokens), other)
        columns[f"efficiency_{other}"] = array(margin_ratio(data, result.tokens, result.W, solution.geometry, solution))
    return columns


def _median(rows: Rows, rule: str, norm: str) -> float:
    values = rows.where(rule=rule)[f"efficiency_{norm}"]
    return float(np.median(values[np.isfinite(values)])) if np.isfinite(values).any() else math.nan


@styled
def figure(rows: Rows) -> Figure:
    rules = rows.values("rule")
    table = np.array([[_median(rows, rule, norm) for norm in NORMS] for rule in rules])
    spread = [[rows.where(rule=rule)[f"efficiency_{norm}"] for norm in NORMS] for rule in rules]
    figure, axes = new_figure(1, 1, (6.4, 0.42 * len(rules) + 1.5))
    ax = axes[0][0]
    picture = ax.imshow(table, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    for i, rule in enumerate(rules):
        for j, norm in enumerate(NORMS):
            low, high = np.nanquantile(spread[i][j], (0.1, 0.9))
            predicted = RULES[rule][1] == norm
            text = f"{table[i, j]:.3f}\n{low:.2f} to {high:.2f}"
            colour = "black" if table[i, j] > 0.6 else "white"
            ax.text(
                j, i, text, ha="center", va="center", fontsize=7, color=colour, weight="bold" if predicted else None
            )
    labels = [f"{rule}, {RULES[rule][3]:,} steps" for rule in rules]
    ax.set(xticks=range(len(NORMS)), xticklabels=["ℓ2", "ℓ∞", "spectral", "ℓ1.5"], xlabel="norm of the margin")
    ax.set(yticks=range(len(rules)), yticklabels=labels)
    count = len(rows.where(rule=rules[0]))
    ax.set_title(f"share of the largest margin in each norm: median, and 10% to 90% of {count} trials")
    figure.colorbar(picture, ax=ax, label="margin efficiency")
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in rows.values("rule"):
        norm = RULES[rule][1]
        own = _median(rows, rule, norm)
        best = max((other for other in NORMS if other != norm), key=lambda other: _median(rows, rule, other))
        if rule in BARRED:
            words = f"{rule}: median share of the {norm} margin"
            found.append(at_least(words, own, 0.99, f"goes to the {norm} margin"))
            words = f"{rule}: largest median share of another norm's margin ({best})"
            found.append(at_most(words, _median(rows, rule, best), own, "stays away from the other margins"))
    slow, fast = (_median(rows, f"Adam (0.9, {beta})", "linf") for beta in ("0.999", "0.95"))
    words = "Adam: how much of the ℓ∞ margin a long memory (β2 = 0.999) costs, against β2 = 0.95"
    found.append(at_least(words, fast - slow, 0.2, "the second moment remembers gradients far larger than today's"))
    return found


EXPERIMENT = Experiment(
    id="map-rules",
    title="Every optimizer has a margin",
    statement="Steepest descent in a norm, and mirror descent in its geometry, maximise the margin of attention in "
    "that norm: ℓ2 for gradient descent, ℓ∞ for sign descent and RMSprop, spectral for spectral descent (n = 6, T = 8, "
    "d = 10). This is proved for linear models; for attention it is measured here. What Adam and Muon reach in these "
    "steps is shown as it is.",
    grid={"rule": list(RULES)},
    run=run,
    figure=figure,
    checks=checks,
    trials=500,
    quick=8,
    batch=50,
    cost=lambda params: 0.1 if RULES[params["rule"]][1] != "spectral" else 0.3,
    remark="The norms of the SVMs are those of the tokens that each run selected. ℓ∞ and spectral optima need not be "
    "unique, so margins are compared, not directions. Sign descent takes a constant step: a growing one oscillates.",
)
