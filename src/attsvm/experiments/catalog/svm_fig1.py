"""W z and K Qᵀz turn onto the SVM directions, in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data import figure1
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Gaussian, train
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._checks import Check, at_most
from attsvm.experiments._draw import BLUE, GREEN, ORANGE, VERMILION, Figure, new_figure, styled
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows

STEPS = 2000
TRIAL = 1
"""The paper prints no coordinates; in this draw of `figure1` both trainings choose the optimal tokens."""
COLOURS = (VERMILION, BLUE)


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


@styled
def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10, 3.9))
    for ax, name, line in zip(axes[0], ("W", "KQ"), ("-", "--")):
        cell = rows.where(trained=name)
        path, svm = _shrunk(cell["Wz"][0]), cell["svm_Wz"][0]
        reach = 1.1 * np.linalg.norm(path[-1], axis=-1).max()
        for i, colour in enumerate(COLOURS):
            ray = reach * svm[i] / np.linalg.norm(svm[i])
            ax.plot(
                [0, ray[0]], [0, ray[1]], color=colour, ls=line, lw=3, alpha=0.35, label=f"SVM direction for z{i + 1}"
            )
            for k in range(1, len(path), 4):
                before, after = path[max(k - 4, 0), i], path[k, i]
                style = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
                ax.annotate("", after, before, arrowprops=style)
        title = "W z" if name == "W" else "K Qᵀ z"
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", title=f"path of {title}, radius log(1 + r)")
        ax.legend(frameon=False, fontsize=8)
        ax.grid(alpha=0.25)
    ax = axes[0][2]
    cell = rows.where(trained="W")
    for i, (colour, marker) in enumerate(((GREEN, "o"), (ORANGE, "s"))):
        X, chosen = cell["X"][0, i], cell["chosen"][0, i]
        ax.scatter(*np.delete(X, chosen, 0).T, s=40, marker=marker, color=colour, label=f"tokens of X{i + 1}")
        ax.scatter(*X[chosen], s=170, marker="*", color=colour, edgecolor="black", lw=0.7, label="its optimal token")
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", title="tokens")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.25)
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for name, title in (("W", "W z"), ("KQ", "K Qᵀz")):
        cell = rows.where(trained=name)
        paper = "gradient paths align with the SVM directions as k increases"
        found.append(at_most(f"largest angle of {title} to its SVM direction", float(_angles(cell).max()), 3.0, paper))
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
    batch=1,
    cost=lambda params: 1.0,
    remark="The paper prints no coordinates; these are random ones in the same setting.",
)
