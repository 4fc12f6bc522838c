"""Classes of the attended token by cross-entropy: the SVM where attention saturates, a mixture where it does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attsvm.data import attended_classes, sphere, trial_streams
from attsvm.dynamics import Growing, Rule, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, margin_share, median
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.experiments._two_layers import saturated
from attsvm.geometry import Lp, Spectral

RULES: dict[str, tuple[Rule, str, Any, int]] = {
    "GD": (Steepest(), "ℓ2", Growing(), 2000),
    "sign": (Steepest(Lp(math.inf)), "ℓ∞", 0.02, 5000),
    "spectral": (Steepest(Spectral()), "spectral", Growing(0.1, 1.0), 2000),
}
"""Rule, the norm of its margin, step size, steps."""
N, T, D = 6, 8, 10


def run(params: Params, trials: range, device: str) -> Columns:
    rule, _, lr, steps = RULES[params["rule"]]
    C = params["classes"]
    streams = trial_streams(3, list(trials))
    V = np.array([stream.standard_normal((C, D)) for stream in streams])
    labels = np.array([stream.integers(0, C, N) for stream in streams])
    plain = sphere(N, T, D, trials=trials, seed=0)
    data = attended_classes(plain, V / np.linalg.norm(V, axis=-1, keepdims=True), labels).to(device)
    result = train(data, rule=rule, lr=lr, steps=steps, record=("norm",), at=[steps], compile=False)
    return {
        "saturated": array(saturated(data, result.W)),
        "mixing": array((torch.softmax(data.logits(result.W), -1).amax(-1) < 0.999).double().mean((1, 2))),
        "efficiency": array(margin_share(data, result.tokens, result.W, result.geometry)),
        "norm": array(result.geometry.norm(result.W)),
    }


def _kept(rows: Rows, rule: str, classes: int) -> np.ndarray:
    """The efficiency of trials in which every query saturates."""
    cell = rows.where(rule=rule, classes=classes)
    return cell["efficiency"][cell["saturated"].astype(bool)]


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.4))
    classes = rows.values("classes")
    for k, rule in enumerate(rows.values("rule")):
        style = SERIES[k].style | {"label": rule}
        axes[0][0].plot(range(len(classes)), [median(_kept(rows, rule, C)) for C in classes], **style)
        mixing = [100 * rows.where(rule=rule, classes=C)["mixing"].mean() for C in classes]
        axes[0][1].plot(range(len(classes)), mixing, **style)
    axes[0][0].set(ylim=(0, 1.02), ylabel="share of the margin (median)", title="trials in which all queries saturate")
    axes[0][1].set(ylabel="% of queries", title="queries that keep mixing tokens")
    for ax in axes[0]:
        ax.set(xlabel="classes", xticks=range(len(classes)), xticklabels=classes)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in rows.values("rule"):
        norm = RULES[rule][1]
        for C in rows.values("classes"):
            words = f"{rule}, {C} classes, all queries saturated: median share of the {norm} margin"
            found.append(at_least(words, median(_kept(rows, rule, C)), 0.95, f"goes to the {norm} margin"))
            cell = rows.where(rule=rule, classes=C)
            words = f"{rule}, {C} classes: share of trials in which a query keeps mixing tokens"
            mixing = 1 - float(cell["saturated"].mean())
            if C == 2:
                found.append(at_most(words, mixing, 0.02, "a linear head: one token is best"))
            else:
                found.append(at_least(words, mixing, 0.2, "a concave head: a mean of tokens may be best"))
    return found


EXPERIMENT = Experiment(
    id="heads-classes",
    title="Classes of the attended token",
    statement="Attention below a fixed classifier, softmax(V o) of the attended token o, trained by cross-entropy. "
    "With two classes the head is linear, and W goes to the margin of the rule's norm. With more it is concave in o, "
    "as log-sum-exp is convex: for some queries a mean of tokens has less loss than any token. They keep mixing, and "
    "their trials have no limit direction. Where all queries saturate, W goes to the margin as before. The papers "
    "ask for linear heads, or for heads that Assumption E allows; measured here.",
    grid={"rule": list(RULES), "classes": [2, 3, 6]},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=16,
    cost=lambda params: 0.2,
    remark=f"n, T, d = {N}, {T}, {D}; random labels and unit vectors V.",
)
