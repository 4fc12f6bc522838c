"""Attention separates tokens inside sequences, logistic regression separates labelled points: both by an SVM."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from attsvm.data import LinearHead, TokenData
from attsvm.diagnostics import misalignment
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import BLUE, GREEN, SERIES, VERMILION, Axes, Figure, band, finish, new_figure
from attsvm.svm import MarginProblem, solve
from attsvm.tolerances import SHARP

STEPS, LR = 3000, 0.1
AT = sorted({round(STEPS ** (k / 40)) for k in range(41)})
N, T, POINTS = 3, 4, 12
ATTENTION, REGRESSION = "attention", "logistic regression"
COLOURS = (VERMILION, BLUE, GREEN)
"""Of the sequences."""


def _tokens(trials: range) -> TokenData:
    """In the plane, z = 1: three sequences around different centres, whose optimal token lies ahead of the others, in
    one direction for all of them; v has the score of every optimal token highest."""
    X, v = [], []
    for trial in trials:
        stream = np.random.default_rng([3, trial])
        angle = stream.uniform(0, 2 * np.pi)
        ahead, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        along = np.concatenate([stream.uniform(0.4, 0.8, (N, 1)), stream.uniform(-0.8, 0.0, (N, T - 1))], 1)
        aside = stream.uniform(-0.5, 0.5, (N, T))
        centre = stream.uniform(-1.5, 1.5, (N, 1, 2))
        X.append(centre + along[..., None] * ahead + aside[..., None] * across)
        v.append(ahead)
    head = LinearHead(torch.from_numpy(np.stack(v))[:, None])
    return TokenData.cross(torch.from_numpy(np.stack(X)), torch.ones(len(trials), N, 1).double(), head=head)


def _points(trials: range) -> tuple[Tensor, Tensor]:
    """Labelled points (B, POINTS, 2) that a line through the origin separates, and labels."""
    x, y = [], []
    for trial in trials:
        stream = np.random.default_rng([4, trial])
        angle = stream.uniform(0, 2 * np.pi)
        ahead, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        label = np.where(np.arange(POINTS) % 2 == 0, 1.0, -1.0)
        along, aside = label * stream.uniform(0.2, 1.2, POINTS), stream.uniform(-1.5, 1.5, POINTS)
        x.append(along[:, None] * ahead + aside[:, None] * across)
        y.append(label)
    return torch.from_numpy(np.stack(x)), torch.from_numpy(np.stack(y))


def _regression(rows: Tensor) -> Tensor:
    """w of logistic regression on the rows y·x (B, N, 2) at the steps AT, from 0, by normalised gradient steps.

    The weights σ(−m) of the rows are taken relative to the largest, so that the direction is right at any norm.
    """
    w, found = rows.new_zeros(len(rows), 2), []
    for k in range(1, STEPS + 1):
        exponent = -softplus(torch.einsum("bnd,bd->bn", rows, w))
        step = torch.einsum("bn,bnd->bd", torch.exp(exponent - exponent.amax(1, keepdim=True)), rows)
        w = w + LR * step / step.norm(dim=1, keepdim=True)
        if k in AT:
            found.append(w)
    return torch.stack(found)


def run(params: Params, trials: range, device: str) -> Columns:
    if params["model"] == ATTENTION:
        data = _tokens(trials).to(device)
        result = train(data, "l2", steps=STEPS, lr=LR, record=("W",), at=AT)
        solution = limit(data, data.optimal_tokens(), "l2")
        path = result.records["W"]
        return {
            "steps": steps_of(torch.tensor(AT), trials),
            "w": curves(path[..., 0]),
            "svm": array(solution.W[..., 0]),
            "misalignment": curves(misalignment(solution.W, path)),
            "x": array(data.X),
            "group": array(data.optimal_tokens()[:, :, 0]),
            "separates": array((result.tokens == data.optimal_tokens()).flatten(1).all(1)),
        }
    x, y = (tensor.to(device) for tensor in _points(trials))
    rows = y[..., None] * x
    solution = solve(MarginProblem.from_rows(rows), "l2", tol=SHARP)
    path = _regression(rows)
    return {
        "steps": steps_of(torch.tensor(AT), trials),
        "w": curves(path),
        "svm": array(solution.W[..., 0]),
        "misalignment": curves(misalignment(solution.W, path[..., None])),
        "x": array(x[:, :, None]),
        "group": array(y),
        "separates": array((torch.einsum("bnd,bd->bn", rows, path[-1]) > 0).all(1)),
    }


def figure(rows: Rows) -> Figure:
    """The first trial of both models in the plane, and how fast all trials turn to their SVM."""
    figure, axes = new_figure(1, 3, (11, 3.6))
    left, middle, right = axes[0]
    attention, regression = rows.where(model=ATTENTION), rows.where(model=REGRESSION)
    for i, colour in enumerate(COLOURS):
        X, best = attention["x"][0, i], int(attention["group"][0, i])
        left.scatter(*np.delete(X, best, 0).T, s=26, color=colour, label=f"tokens of $X_{i + 1}$")
        left.scatter(*X[best], s=150, marker="*", color=colour, edgecolor="black", lw=0.7)
        _line(left, attention["svm"][0], X[best], colour)
    left.set(title="attention: the optimal token of each sequence")
    x, y = regression["x"][0, :, 0], regression["group"][0]
    for label, colour, marker in ((1, VERMILION, "o"), (-1, BLUE, "s")):
        middle.scatter(*x[y == label].T, s=30, color=colour, marker=marker, label=f"label {label:+d}")
    _line(middle, regression["svm"][0], np.zeros(2), "black")
    middle.set(title="logistic regression: the points of each label")
    for ax, cell in ((left, attention), (middle, regression)):
        w = cell["w"][0, -1]
        at = cell["x"][0].reshape(-1, 2).mean(0) if ax is left else np.zeros(2)
        end = at + w / np.linalg.norm(w)
        ax.annotate("", (end[0], end[1]), (at[0], at[1]), arrowprops={"arrowstyle": "->", "lw": 1.8})
        ax.set(xlabel="first coordinate", ylabel="second coordinate", aspect="equal")
        ax.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
    for look, (name, cell) in zip(SERIES, ((ATTENTION, attention), (REGRESSION, regression))):
        band(right, cell["steps"][0], cell["misalignment"], look, name, spread="quantiles")
    right.set(xscale="log", yscale="log", xlabel="iteration", ylabel="1 − correlation with the SVM solution")
    right.set(title=f"median of {len(attention)} trials, band from 10% to 90%")
    return finish(figure)


def _line(ax: Axes, w: np.ndarray, through: np.ndarray, colour: str) -> None:
    """The line across w that the SVM solution has at margin 1 behind this point, or 0 through the origin."""
    unit = w / np.linalg.norm(w)
    behind = through - unit / np.linalg.norm(w) * bool(np.any(through))
    across = np.array([-unit[1], unit[0]])
    ends = behind + np.outer([-5, 5], across)
    ax.plot(*ends.T, color=colour, lw=1.0, ls="--")


def checks(rows: Rows) -> list[Check]:
    found = []
    for name, paper in (
        (ATTENTION, "GD on attention goes to the SVM that separates the optimal tokens from the others"),
        (REGRESSION, "GD on separable data goes to the SVM that separates the two classes"),
    ):
        cell = rows.where(model=name)
        found.append(at_least(f"{name}: share of trials that separate", float(cell["separates"].mean()), 1.0, paper))
        error = float(np.median(cell["misalignment"][:, -1]))
        found.append(at_most(f"{name}: median 1 − correlation with its SVM solution", error, 1e-3, paper))
    return found


EXPERIMENT = Experiment(
    id="svm-fig3",
    title="Attention and logistic regression",
    paper="TF-as-SVM, Figure 3",
    statement="Both go to a max-margin solution: logistic regression to the one that separates labelled points, "
    "attention to the one that separates the optimal token of every sequence from its other tokens.",
    grid={"model": [ATTENTION, REGRESSION]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=20,
    cost=lambda params: 0.01,
    remark="The paper's figure is a drawing. Here both are trained, in the plane, with z = 1, by normalised steps of "
    "0.1. Stars are optimal tokens, dashed lines lie at margin 1 behind them; the arrow is the trained direction.",
)
