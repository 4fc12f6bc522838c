"""Joint training of W and v: both go to their own ℓp solution."""

from __future__ import annotations

import numpy as np

from attsvm.data import example2
from attsvm.diagnostics import direction_error
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import BLUE, ORANGE, VERMILION, Figure, finish, new_figure
from attsvm.svm import head_svm, solve
from attsvm.tolerances import SHARP

STEPS = {1.75: 1500, 2: 2000, 3: 20000}


def run(params: Params, trials: range, device: str) -> Columns:
    data = example2().to(device)
    record = ("W", "v", "top_weight", "output")
    result = train(data, f"l{params['p']}", "joint", steps=STEPS[params["p"]], record=record)
    W_mm = limit(data, result.tokens, result.geometry)
    v_mm = solve(head_svm(data, result.tokens), result.geometry, tol=SHARP)
    W, v = result.records["W"], result.records["v"]
    Z = array(data.Z[:, :, 0])
    return {
        "steps": steps_of(result.steps, trials),
        "Wz": np.einsum("brde,bne->brnd", curves(W), Z),
        "svm_Wz": np.einsum("bde,bne->bnd", array(W_mm.W), Z),
        "v": curves(v),
        "svm_v": array(v_mm.W[..., 0]),
        "W_error": curves(direction_error(W_mm.W, W, result.geometry)),
        "v_error": curves(direction_error(v_mm.W, v[..., None], result.geometry)),
        "top_weight": curves(result.records["top_weight"]).mean((2, 3)),
        "logistic": curves(1 / (1 + (-result.records["output"]).exp())).mean((2, 3)),
        "tokens": array(result.tokens[:, :, 0]),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(2, 3, (10, 6.4))
    for column, p in zip(zip(*axes), rows.values("p")):
        cell = rows.where(p=p)
        top, bottom = column
        for i, (colour, marker) in enumerate(((BLUE, "o"), (VERMILION, "s"))):
            _path(top, cell["Wz"][0, :, i], cell["svm_Wz"][0, i], colour, marker, f"$Wz_{i + 1}$")
        _path(bottom, cell["v"][0], cell["svm_v"][0], ORANGE, "^", "$v$")
        top.set_title(f"$p = {p}$: $W$, tokens {' and '.join(str(k + 1) for k in cell['tokens'][0])} chosen")
        bottom.set_title(f"$p = {p}$: $v$")
        bottom.set_xlabel("first coordinate")
    for row in axes:
        row[0].set_ylabel("second coordinate")
    return finish(figure)


def _path(ax, path: np.ndarray, svm: np.ndarray, colour: str, marker: str, label: str) -> None:
    reach = 1.1 * np.linalg.norm(path[-1])
    ray = reach * svm / np.linalg.norm(svm)
    ax.plot([0, ray[0]], [0, ray[1]], color="black", ls="--", lw=1, zorder=3)
    ax.plot(*path.T, color=colour, marker=marker, ms=3, lw=1, label=f"{label} (dashed: its SVM direction)")


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cell = rows.where(p=p)
        paper = "W and v converge to the ℓp-AttSVM and ℓp-SVM directions (Figure 6)"
        for name in ("W", "v"):
            error = float(cell[f"{name}_error"][0, -1])
            found.append(at_most(f"p = {p}: divergence of {name} from its solution", error, 1e-3, paper))
    return found


EXPERIMENT = Experiment(
    id="md-fig6",
    title="Joint training, paths of W and v",
    paper="mirror-descent, Example 2 and Figure 6",
    statement="Under ℓp-JointGD the iterates of W and v converge to the ℓp-AttSVM and ℓp-SVM directions, for p = "
    "1.75, 2 and 3 (η = 0.1; 1,500, 2,000 and 20,000 steps).",
    grid={"p": [1.75, 2, 3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
    cost=lambda params: STEPS[params["p"]] * 5e-4,
    remark="The printed data are used; the public code uses half of them. Training starts at W = 0, v = 0, and the "
    "tokens that it then chooses depend on p.",
)
