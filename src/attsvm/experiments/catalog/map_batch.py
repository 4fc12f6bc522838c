"""Mini-batches: which rules keep their margin when a step sees a few samples, and what momentum repairs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import margin_ratio, margins
from attsvm.dynamics import Adam, Batches, Muon, Rule, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array
from attsvm.experiments._draw import SERIES, Figure, new_figure
from attsvm.geometry import Lp, Spectral
from attsvm.svm import att_svm, solve


class Setting(NamedTuple):
    rule: Rule
    eta: float
    norm: str


RULES = {
    "plain GD": Setting(Steepest(normalize=False), 5.0, "ℓ2"),
    "normalised GD": Setting(Steepest(), 0.05, "ℓ2"),
    "normalised GD, momentum 0.9": Setting(Steepest(momentum=0.9), 0.05, "ℓ2"),
    "sign": Setting(Steepest(Lp(math.inf)), 0.01, "ℓ∞"),
    "sign, momentum 0.9": Setting(Steepest(Lp(math.inf), momentum=0.9), 0.01, "ℓ∞"),
    "Adam (0.9, 0.95)": Setting(Adam(beta2=0.95), 0.01, "ℓ∞"),
    "Adam (0.9, 0.99)": Setting(Adam(beta2=0.99), 0.002, "ℓ∞"),
    "spectral": Setting(Steepest(Spectral()), 0.02, "spectral"),
    "Muon (0.95)": Setting(Muon(), 0.02, "spectral"),
}
"""Rule, step size and the norm of its margin. Momenta forget faster than gradients fall (see map-adam)."""
BATCHES: dict[str, Batches | None] = {
    "all 6": None,
    "3": Batches(3),
    "1": Batches(1),
    "1, drawn with replacement": Batches(1, replace=True),
}
STEPS = 20_000


def run(params: Params, trials: range, device: str) -> Columns:
    rule, eta, _ = RULES[params["rule"]]
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    steps = params["steps"]
    options: dict[str, Any] = {"steps": steps, "record": ("norm",), "at": [steps], "compile": steps >= STEPS}
    result = train(data, rule=rule, lr=eta, batch=BATCHES[params["batch"]], **options)
    solution = solve(att_svm(data, result.tokens), result.geometry)
    norm = result.geometry.norm

    def mean_margin(W: Any) -> Any:
        """Mean over samples of the smallest margin, of W/‖W‖."""
        return margins(data, result.tokens, W).amin(3).mean((1, 2)) / norm(W)

    return {
        "efficiency": array(margin_ratio(data, result.tokens, result.W, result.geometry, solution)),
        "mean_margin": array(mean_margin(result.W) / mean_margin(solution.W)),
        "norm": array(norm(result.W)),
    }


def _median(rows: Rows, rule: str, batch: str, column: str = "efficiency") -> float:
    return float(np.nanmedian(rows.where(rule=rule, batch=batch)[column]))


def figure(rows: Rows) -> Figure:
    rules, batches = rows.values("rule"), rows.values("batch")
    figure, axes = new_figure(1, 1, (8, 0.45 * len(rules) + 1.6))
    ax = axes[0][0]
    for k, batch in enumerate(batches):
        values = [rows.where(rule=rule, batch=batch)["efficiency"] for rule in rules]
        low, middle, high = np.array([np.nanquantile(x, (0.1, 0.5, 0.9)) for x in values]).T
        y = np.arange(len(rules)) + 0.18 * (k - (len(batches) - 1) / 2)
        look = SERIES[k]
        ax.errorbar(
            middle, y, xerr=[middle - low, high - middle], fmt=look.marker, color=look.colour, ms=4.5, lw=1,
            label=f"batch {batch}",
        )  # fmt: skip
    ax.set(yticks=range(len(rules)), yticklabels=[f"{rule} ({RULES[rule].norm})" for rule in rules])
    ax.invert_yaxis()
    ax.set(xlabel="share of the rule's own margin: median, 10% to 90%", title="what mini-batches do to the limit")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def checks(rows: Rows) -> list[Check]:
    def lost(rule: str, batch: str) -> float:
        return _median(rows, rule, "all 6") - _median(rows, rule, batch)

    found = []
    for batch in ("3", "1", "1, drawn with replacement"):
        words = f"plain GD, batch {batch}: lost share of the ℓ2 margin against all samples"
        found.append(at_most(words, abs(lost("plain GD", batch)), 0.03, "the same limit"))
    for rule in ("normalised GD", "sign", "Adam (0.9, 0.95)"):
        words = f"{rule}, batch 1: lost share of the {RULES[rule].norm} margin"
        found.append(at_least(words, lost(rule, "1"), 0.1, "another limit: every sample pulls alike, near or far"))
    words = "normalised GD, batch 1: mean margin of the samples, against that of the max-margin solution"
    mean = _median(rows, "normalised GD", "1", "mean_margin")
    found.append(at_least(words, mean, 1.0, "it maximises a mean of the margins rather than the least"))
    for rule in ("normalised GD, momentum 0.9", "sign, momentum 0.9"):
        words = f"{rule}, batch 1: lost share of the {RULES[rule].norm} margin"
        found.append(at_most(words, lost(rule, "1"), 0.05, "momentum over an epoch repairs it"))
    words = "Adam (0.9, 0.95), batch 1: share of the ℓ∞ margin"
    found.append(at_most(words, _median(rows, "Adam (0.9, 0.95)", "1"), 0.8, "per-sample Adam need not go to ℓ∞"))
    words = "Muon (0.95), batch 1: lost share of the spectral margin"
    found.append(at_most(words, lost("Muon (0.95)", "1"), 0.05, "its momentum repairs it"))
    return found


EXPERIMENT = Experiment(
    id="map-batch",
    title="Mini-batches change the limit of rules that normalise",
    statement="Plain gradient descent goes to the same margin with all samples and with one per step. Normalised, sign "
    "and Adam steps on one sample do not: each sample pulls with full strength, however well it is separated. Momentum "
    "over an epoch, applied before the normalisation, restores the limit; Adam's is not restored, since its second "
    "moment sees single samples. For linear models the first is proved, and per-sample Adam is known to leave ℓ∞.",
    grid={"rule": list(RULES), "batch": list(BATCHES), "steps": [STEPS]},
    run=run,
    figure=figure,
    checks=checks,
    trials=32,
    quick=8,
    quick_grid={"steps": [3000]},
    cost=lambda params: (1.2e-5 if RULES[params["rule"]].norm == "spectral" else 4e-6) * 5 * params["steps"] / 3,
    remark="Random problems with n = 6, T = 8, d = 10. Samples are drawn anew every epoch, each trial by its own seed.",
)
