"""Self-attention, causal masks and convex nonlinear heads: feasibility and regularization paths."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch

from attsvm.data import LinearHead, QuadraticHead, TokenData, sphere
from attsvm.diagnostics import assumption_e
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, limit
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._paths import draw_path, path_checks, path_columns

N, T, D = 2, 3, 8
FEASIBLE = "self-attention, z = first token: every choice"
PATHS = (
    "self-attention, linear head",
    "causal, linear head",
    "cross-attention, convex head",
    "causal, convex head",
)
CURVE = 0.2
"""−λ of the convex head vᵀx + 0.2‖x‖²."""


def _data(kind: str, trials: range) -> TokenData:
    causal = kind.startswith("causal")
    data = sphere(
        N, T, D, trials=trials, seed=0, causal=causal, self_attention=kind.startswith("self"), min_score_gap=0.05
    )
    if not kind.endswith("convex head"):
        return data
    assert isinstance(data.head, LinearHead)
    # Tokens of different lengths, so that the square matters; labels +1, so that Y h is convex.
    length = [np.random.default_rng([5, trial]).uniform(0.7, 1.3, size=(N, T, 1)) for trial in trials]
    X = data.X * torch.from_numpy(np.stack(length))
    head = QuadraticHead(data.head.v, torch.full_like(data.head.v[..., 0], -CURVE))
    return replace(data, X=X, Y=torch.ones_like(data.Y), head=head)


def run(params: Params, trials: range, device: str) -> Columns:
    kind = params["kind"]
    if kind == FEASIBLE:
        data = sphere(3, 3, 3, trials=trials, seed=0, self_attention=True).to(device)
        choices = list(itertools.product(range(3), repeat=3))
        feasible = [limit(data, torch.tensor(choice), "l2").solved for choice in choices]
        return {"feasible": array(torch.stack(feasible).double().mean(0))}
    data = _data(kind, trials).to(device)
    columns = dict(path_columns(data, "l2"))
    holds = assumption_e(data, data.optimal_tokens()).holds & (data.score_gap() > 0)
    return columns | {"assumption e": array(holds)}


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 1, (6, 3.8))
    for k, kind in enumerate(PATHS):
        cell = rows.where(kind=kind)
        draw_path(axes[0][0], cell, k, f"{kind} ({len(cell)} trials)")
    axes[0][0].set(ylabel="1 − correlation with the SVM solution", title="median, and band from 10% to 90%")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    cell = rows.where(kind=FEASIBLE)
    paper = "d ≥ max(T − 1, n): every choice can be separated, self-attention included (Theorem 8)"
    share = float(cell["feasible"].min())
    found = [at_least("self-attention: smallest share of feasible choices", share, 1.0, paper, f"{len(cell)} trials")]
    for kind in PATHS:
        cell = rows.where(kind=kind)
        paper = "regularization paths converge to SAtt-SVM under Assumption E (Theorem 10, Corollary 2)"
        found += path_checks(cell, kind, 1e-4, paper)[:2]
        found.append(
            at_least(f"{kind}: share with Assumption E", float(cell["assumption e"].mean()), 1.0, "assumed", extra=True)
        )
    return found


EXPERIMENT = Experiment(
    id="svm-self",
    title="Self-attention, causal paths and convex heads",
    paper="TF-as-SVM, Theorems 8 and 10, Corollary 2",
    statement="For d ≥ max(T − 1, n) every choice is feasible with z = x₁ too, and regularization paths go to the SVM "
    "of all queries for causal masks and monotonicity-preserving heads.",
    grid={"kind": [FEASIBLE, *PATHS]},
    run=run,
    figure=figure,
    checks=checks,
    trials=60,
    quick=8,
    cost=lambda params: 0.2,
    remark="The paper has no experiment on these. n = 2, T = 3, d = 8 on paths; the convex head is vᵀx + 0.2‖x‖², with "
    "labels +1 and tokens of length 0.7 to 1.3.",
)
