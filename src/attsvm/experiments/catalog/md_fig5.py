"""Two entries of W go along the ray of the ℓp solution."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import directional_bregman
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import ORANGE, SERIES, Figure, finish, new_figure

STEPS = {1.75: 1500, 2: 2000, 3: 20000}


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    result = train(data, f"l{params['p']}", steps=STEPS[params["p"]], record=("W",))
    solution = limit(data, result.tokens, result.geometry)
    return {
        "steps": steps_of(result.steps, trials),
        "path": curves(result.records["W"]).reshape(len(trials), len(result.steps), -1),
        "limit": array(solution.W).reshape(len(trials), -1),
        "divergence": curves(directional_bregman(solution.W, result.records["W"], result.geometry)),
    }


def _entries(solution: np.ndarray) -> np.ndarray:
    """The two entries of W that are largest in the limit."""
    return np.sort(np.argsort(-np.abs(solution))[:2])


def _angle(cell: Rows) -> float:
    """Degrees between the two entries of the last W and of the limit."""
    pair = _entries(cell["limit"][0])
    W, V = cell["path"][0, -1, pair], cell["limit"][0, pair]
    return float(np.degrees(np.arccos(np.clip(W @ V / np.linalg.norm(W) / np.linalg.norm(V), -1, 1))))


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10, 3.5))
    for ax, p in zip(axes[0], rows.values("p")):
        cell = rows.where(p=p)
        pair = _entries(cell["limit"][0])
        path, ray = cell["path"][0][:, pair], cell["limit"][0, pair]
        reach = 1.1 * np.linalg.norm(path[-1]) / np.linalg.norm(ray)
        ax.plot(*path.T, color=SERIES[0].colour, marker=".", ms=4, lw=1, label=f"ℓ{p} path")
        ax.plot([0, reach * ray[0]], [0, reach * ray[1]], color=ORANGE, ls="--", lw=2, label=f"ℓ{p} solution")
        names = [f"W[{k // 10 + 1}, {k % 10 + 1}]" for k in pair]
        ax.set(xlabel=names[0], ylabel=names[1], title=f"p = {p}: {_angle(cell):.1f}° apart at the end")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cell = rows.where(p=p)
        paper = "each path follows the direction of the corresponding solution (Figure 5)"
        found.append(at_most(f"p = {p}: angle between the two entries and the ray", _angle(cell), 5.0, paper, unit="°"))
        end = float(cell["divergence"][0, -1])
        found.append(at_most(f"p = {p}: divergence of all of W from the solution", end, 0.01, paper))
    return found


EXPERIMENT = Experiment(
    id="md-fig5",
    title="Two entries of W on the ray of the solution",
    paper="mirror-descent, Figure 5",
    statement="For one trial, two entries of W follow the direction of the ℓp-AttSVM solution, for p = 1.75, 2 and 3.",
    grid={"p": [1.75, 2, 3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
    cost=lambda params: STEPS[params["p"]] * 4e-4,
    remark="Trial 0 of md-fig4; the two entries are those that are largest in the solution.",
)
