"""Joint ℓp regularization paths of W and v."""

from __future__ import annotations

import math

from attsvm.data import sphere
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._paths import draw_path, path_checks, path_columns


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(3, 3, 4, trials=trials, seed=0).to(device)
    radius = math.sqrt if params["head_radius"] == "√R" else 1.0
    return path_columns(data, f"l{params['p']}", "joint", head_radius=radius)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10.5, 3.5))
    panels = (("√R", "distance", "W, with r = √R"), ("√R", "head_distance", "v, with r = √R"))
    for ax, (radius, column, title) in zip(axes[0], (*panels, ("R", "distance", "W, with r = R"))):
        for k, p in enumerate(rows.where(head_radius=radius).values("p")):
            draw_path(ax, rows.where(p=p, head_radius=radius), k, f"p = {p}", column)
        ax.set(title=title, ylim=(1e-13, 3))
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    paper = "W and v go to the ℓp-AttSVM and ℓp-SVM directions (Theorem 5)"
    for p in rows.values("p"):
        cell = rows.where(p=p, head_radius="√R")
        found += path_checks(cell, f"p = {p}, W", 1e-2, paper)[:2]
        found += path_checks(cell, f"p = {p}, v", 1e-2, paper, "head_distance")[:2]
    return found


EXPERIMENT = Experiment(
    id="md-joint-rp",
    title="Joint regularization paths",
    paper="mirror-descent, Theorem 5",
    statement="Under Assumption B the joint minimisers (W(R), v(r)) converge in direction to the ℓp-AttSVM and ℓp-SVM "
    "solutions as R and r grow.",
    grid={"p": [1.75, 2, 3], "head_radius": ["√R", "R"]},
    only=lambda params: params["head_radius"] == "√R" or params["p"] == 2,
    run=run,
    figure=figure,
    checks=checks,
    trials=20,
    quick=4,
    cost=lambda params: 0.3,
    remark="With r = R (right panel) the distance of W need not vanish: Assumption B fails where a sample is no "
    "support vector of the label SVM (docs/papers.md). The checks are about r = √R. n = T = 3, d = 4.",
)
