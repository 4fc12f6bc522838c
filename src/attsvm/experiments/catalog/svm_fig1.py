"""W z and K Qᵀz turn onto the SVM directions, in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data import figure1
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Gaussian, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import BLUE, VERMILION, Figure, finish, new_figure

STEPS = 2000
TRIAL = 1
"""The paper prints no coordinates; in this draw of `figure1` both trainings choose the optimal tokens."""
COLOURS = (VERMILION, BLUE)
"""Of the two sequences: their tokens, their paths, their SVM directions."""
TRAINED = {"W": ("-", "$W$", "o"), "KQ": ("--", "$KQ^\\top$", "^")}


def run(params: Params, trials: range, device: str) -> Columns:
    data = figure1(trials=[trial + TRIAL for trial in trials], seed=0).to(device)
    options: dict[str, Any] = {}
    if params["trained"] == "KQ":
        options = {"parameterization": "KQ", "init": Gaussian(0.1)}
    result = train(data, "l2", steps=STEPS, record=("W",), **options)
    solution = limit(data, result.tokens, result.geometry)
    W = result.records["W"]
    return {
        "steps": steps_of(result.steps, trials),
        "Wz": np.einsum("brde,bne->brnd", curves(W), array(data.Z[:, :, 0])),
        "svm_Wz": np.einsum("bde,bne->bnd", array(solution.W), array(data.Z[:, :, 0])),
        "misalignment": curves(misalignment(solution.W, W)),
        "optimal": array((result.tokens == data.optimal_tokens()).flatten(1).all(1)),
        "X": array(data.X),
        "chosen": array(result.tokens[:, :, 0]),
    }


def _angles(cell: Rows) -> np.ndarray:
    """Degrees between W z_i at the end and the SVM direction, for i = 1, 2."""
    ours, svm = cell["Wz"][0, -1], cell["svm_Wz"][0]
    cosine = (ours * svm).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(svm, axis=-1)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def _shrunk(path: np.ndarray) -> np.ndarray:
    """Points (…, 2) with their radius r at log(1 + r): the turn happens early, and W grows without bound."""
    r = np.linalg.norm(path, axis=-1, keepdims=True)
    return path / np.maximum(r, 1e-300) * np.log1p(r)


def figure(rows: Rows) -> Figure:
    """Both trainings in one plane, a colour for each sequence: W solid, (K, Q) dashed; beside it the tokens."""
    figure, axes = new_figure(1, 2, (10, 3.8))
    left, right = axes[0]
    paths = {name: _shrunk(rows.where(trained=name)["Wz"][0]) for name in TRAINED}
    reach = 1.1 * max(np.linalg.norm(path[-1], axis=-1).max() for path in paths.values())
    ends = reach * np.concatenate([rows.where(trained=name)["svm_Wz"][0] for name in TRAINED])
    wide, high = 1.05 * np.abs(ends / np.linalg.norm(ends / reach, axis=-1, keepdims=True)).max(0)
    for name, (line, title, marker) in TRAINED.items():
        svm = rows.where(trained=name)["svm_Wz"][0]
        for i, colour in enumerate(COLOURS):
            ray = reach * svm[i] / np.linalg.norm(svm[i])
            left.plot([0, ray[0]], [0, ray[1]], color=colour, ls=line, lw=4, alpha=0.25, solid_capstyle="butt")
            path = paths[name][:, i]
            left.plot(*path.T, color=colour, ls=line, lw=1.4, label=f"{title}$z_{i + 1}$")
            left.plot(*path[8::8].T, marker, color=colour, ms=4)
    left.set(xlim=(-wide, wide), ylim=(-high, high), title="paths; wide lines: the SVM directions")
    left.set(xlabel="first coordinate", ylabel="second coordinate")
    left.text(
        0.02, 0.97, r"radius $r$ drawn at $\log(1 + r)$; axes not to one scale", transform=left.transAxes, va="top"
    )
    left.legend(frameon=False, loc="lower right")
    cell = rows.where(trained="W")
    for i, (colour, marker) in enumerate(zip(COLOURS, "os")):
        X, chosen = cell["X"][0, i], cell["chosen"][0, i]
        right.scatter(*np.delete(X, chosen, 0).T, s=40, marker=marker, color=colour, label=f"tokens of $X_{i + 1}$")
        right.scatter(*X[chosen], s=170, marker="*", color=colour, edgecolor="black", lw=0.7, label="its optimal token")
    right.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", title="tokens")
    right.set(xlabel="first coordinate", ylabel="second coordinate")
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return finish(figure, legend=False)


def checks(rows: Rows) -> list[Check]:
    found = []
    for name, title in (("W", "W z"), ("KQ", "K Qᵀz")):
        cell = rows.where(trained=name)
        paper = "gradient paths align with the SVM directions as k increases"
        found.append(
            at_most(f"largest angle of {title} to its SVM direction", float(_angles(cell).max()), 3.0, paper, unit="°")
        )
        fine = bool(cell["optimal"].all())
        name = f"{title}: the optimal tokens are chosen"
        found.append(Check(name, "stars mark optimal tokens", "yes" if fine else "no", fine))
    return found


EXPERIMENT = Experiment(
    id="svm-fig1",
    title="Paths of W z in the plane",
    paper="TF-as-SVM, Figure 1",
    statement="With n = d = 2, T = 3, the paths of W z_i and K Qᵀ z_i turn onto the directions of the Frobenius and "
    "of the nuclear solution.",
    grid={"trained": ["W", "KQ"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
    cost=lambda params: 1.0,
    remark="The paper prints no coordinates; these are random ones in the same setting.",
)
