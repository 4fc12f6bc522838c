"""ℓp regularization paths go to the ℓp solution."""

from __future__ import annotations

from attsvm.data import sphere
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import Figure
from attsvm.experiments._paths import path_checks, path_columns, path_figure


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(4, 5, 6, trials=trials, seed=0, min_score_gap=0.1).to(device)
    return path_columns(data, f"l{params['p']}")


def figure(rows: Rows) -> Figure:
    return path_figure({f"p = {p}": rows.where(p=p) for p in rows.values("p")}, "directional Bregman divergence")


def checks(rows: Rows) -> list[Check]:
    paper = "W(R)/R goes to the ℓp-AttSVM direction of the optimal tokens (Theorem 1)"
    return [check for p in rows.values("p") for check in path_checks(rows.where(p=p), f"p = {p}", 1e-4, paper)]


EXPERIMENT = Experiment(
    id="md-rp",
    title="ℓp regularization paths",
    paper="mirror-descent, Theorem 1",
    statement="As R grows, the minimiser of the loss in the ℓp ball of radius R converges in direction to the "
    "ℓp-AttSVM solution of the optimal tokens.",
    grid={"p": [1.75, 2, 3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=10,
    cost=lambda params: 0.1,
    remark="The paper has no experiment on these paths. n = 4, T = 5, d = 6, score gap ≥ 0.1.",
)
