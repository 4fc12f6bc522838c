"""Classes by cross-entropy: which rule maximises which margin of Crammer and Singer's SVM."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attsvm.data import class_data, trial_streams
from attsvm.diagnostics import margin_ratio
from attsvm.dynamics import Adam, Growing, Muon, Rule, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._arrays import array, median
from attsvm.experiments._checks import margin_checks
from attsvm.experiments._draw import Figure, margin_map, new_figure
from attsvm.geometry import Lp, Spectral
from attsvm.svm import multiclass_svm, solve

NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "spectral": "spectral"}
RULES: dict[str, tuple[Rule, str, Any, int]] = {
    "GD": (Steepest(), "l2", Growing(), 3000),
    "sign": (Steepest(Lp(math.inf)), "linf", 0.02, 10_000),
    "Adam (0.9, 0.95)": (Adam(beta2=0.95), "linf", 0.02, 10_000),
    "spectral": (Steepest(Spectral()), "spectral", Growing(0.1, 1.0), 5000),
    "Muon (0.95)": (Muon(), "spectral", 0.02, 10_000),
}
"""Rule, predicted norm, step size, steps."""
N, D, CLASSES = 12, 10, 4


def run(params: Params, trials: range, device: str) -> Columns:
    rule, _, lr, steps = RULES[params["rule"]]
    streams = trial_streams(0, list(trials))
    H = torch.from_numpy(np.array([stream.standard_normal((N, D)) for stream in streams]))
    H = (H / torch.linalg.vector_norm(H, dim=-1, keepdim=True)).to(device)
    labels = torch.from_numpy(np.array([stream.integers(0, CLASSES, N) for stream in streams])).to(device)
    data = class_data(H, labels, CLASSES)
    result = train(data, rule=rule, lr=lr, steps=steps, loss="log", record=("norm",), at=[steps])
    columns: dict[str, np.ndarray] = {"separated": array((result.tokens[..., 0] == labels).all(1))}
    for norm in NORMS:
        solution = solve(multiclass_svm(H, labels, CLASSES), norm)
        columns[f"efficiency_{norm}"] = array(margin_ratio(data, labels, result.W, solution.geometry, solution))
    return columns


def _median(rows: Rows, rule: str, norm: str) -> float:
    return median(rows.where(rule=rule)[f"efficiency_{norm}"])


def figure(rows: Rows) -> Figure:
    rules = rows.values("rule")
    table = np.array([[_median(rows, rule, norm) for norm in NORMS] for rule in rules])
    figure, axes = new_figure(1, 1, (5.5, 0.45 * len(rules) + 1.4))
    suited = [RULES[rule][1] for rule in rules]
    labels = [f"{rule}, {RULES[rule][3]:,} steps" for rule in rules]
    title = "cross-entropy: share of Crammer and Singer's margin"
    margin_map(axes[0][0], table, NORMS, suited, labels, title)
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in rows.values("rule"):
        shares = {words: _median(rows, rule, norm) for norm, words in NORMS.items()}
        found += margin_checks(rule, shares, NORMS[RULES[rule][1]], 0.97)
    return found


EXPERIMENT = Experiment(
    id="ntp-classes",
    title="Cross-entropy: the same map for classes",
    statement="A linear classifier of several classes, trained by cross-entropy, goes to the SVM of Crammer and Singer "
    "in the norm of the rule: ℓ2 for gradient descent, ℓ∞ for sign descent and Adam with a short memory, "
    "spectral for spectral descent and Muon. This is proved for linear models; it is the case of attention to fixed "
    "one-hot tokens, and shows that the code and the map agree where theory is complete.",
    grid={"rule": list(RULES)},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    cost=lambda params: 0.25,
    remark=f"{N} random samples in {D} dimensions with {CLASSES} random classes. Data are separable in every trial.",
)
