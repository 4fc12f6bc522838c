"""Regularization paths of W and (K, Q) go to the Frobenius and to the nuclear solution."""

from __future__ import annotations

from attsvm.data import sphere
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import Figure
from attsvm.experiments._paths import path_checks, path_columns, path_figure

NAMES = {"W": "W, Frobenius", "KQ": "(K, Q), nuclear"}


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(4, 5, 6, trials=trials, seed=0, min_score_gap=0.1).to(device)
    return path_columns(data, "l2", params["trained"])


def figure(rows: Rows) -> Figure:
    cells = {name: rows.where(trained=trained) for trained, name in NAMES.items()}
    return path_figure(cells, "1 − correlation with the SVM solution")


def checks(rows: Rows) -> list[Check]:
    paper = "W(R)/R goes to the SVM direction of the optimal tokens (Theorem 2)"
    cells = [(rows.where(trained=trained), name) for trained, name in NAMES.items()]
    return [check for cell, name in cells for check in path_checks(cell, name, 1e-4, paper)]


EXPERIMENT = Experiment(
    id="svm-rp",
    title="Regularization paths of W and (K, Q)",
    paper="TF-as-SVM, Theorem 2",
    statement="As the bound R grows, the constrained minimisers of W-RP and KQ-RP converge in direction to the "
    "Frobenius and to the nuclear solution of the optimal tokens.",
    grid={"trained": ["W", "KQ"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=10,
    cost=lambda params: 0.1,
    remark="The paper has no experiment on these paths. n = 4, T = 5, d = 6, score gap ≥ 0.1.",
)
