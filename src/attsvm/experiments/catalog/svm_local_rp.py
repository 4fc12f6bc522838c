"""Local regularization paths, inside the cone of locally optimal tokens."""

from __future__ import annotations

import numpy as np
import torch

from attsvm.data import sphere
from attsvm.diagnostics import in_cone_epsilon, is_locally_optimal, separation
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, second_best
from attsvm.experiments._draw import Figure
from attsvm.experiments._paths import path_checks, path_columns, path_figure
from attsvm.experiments.catalog.svm_rp import NAMES
from attsvm.svm import att_svm, solve


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(4, 5, 6, trials=trials, seed=0, min_score_gap=0.1).to(device)
    tokens = second_best(data)
    solution = solve(att_svm(data, tokens), "l2" if params["trained"] == "W" else "nuclear")
    W = torch.where(solution.solved[:, None, None], solution.W, 1.0)
    columns = dict(path_columns(data, "l2", params["trained"], tokens=tokens))
    # The theorem needs locally optimal tokens whose solution lies inside the cone.
    inside = in_cone_epsilon(data, tokens, W, 1e-6) & (separation(data, tokens, W) > 0)
    columns["applies"] = array(is_locally_optimal(data, tokens, solution) & inside)
    return columns


def _applied(rows: Rows, trained: str) -> Rows:
    """The trials that meet the conditions of the theorem."""
    cells = [
        (params, {name: np.asarray(column)[cell["applies"]] for name, column in cell.items()})
        for params, cell in rows.where(trained=trained)
    ]
    return Rows(cells)


def figure(rows: Rows) -> Figure:
    cells = {name: _applied(rows, trained) for trained, name in NAMES.items()}
    return path_figure(cells, "1 − correlation with the SVM solution of α")


def checks(rows: Rows) -> list[Check]:
    found = []
    for trained, name in (("W", "W"), ("KQ", "(K, Q)")):
        cell = _applied(rows, trained)
        paper = "local paths in cone_ε(α) converge in direction to W_mm(α) (Theorem 9)"
        found += path_checks(cell, name, 1e-4, paper)[:2]
        share = float(cell["inside_cone"][:, -1].mean())
        found.append(at_least(f"{name}: share of paths inside the cone at the largest R", share, 0.99, paper))
    return found


EXPERIMENT = Experiment(
    id="svm-local-rp",
    title="Local regularization paths",
    paper="TF-as-SVM, Theorem 9",
    statement="Restricted to cone_ε(α) of locally optimal tokens α, the regularization path converges in direction "
    "to the SVM solution of α.",
    grid={"trained": ["W", "KQ"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=12,
    cost=lambda params: 0.1,
    remark="α is the second best token of the first sequence and the best of the others; trials count where it is "
    "locally optimal and its solution lies inside a cone (Lemma 16 says always; where a query has "
    "no support token it does not).",
)
