"""Factors narrower than d: rank-constrained Att-SVM⋆ and the map between paths of (K, Q) and of W."""

from __future__ import annotations

import numpy as np
import torch

from attsvm.data import sphere
from attsvm.diagnostics import numerical_rank
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.paths import regularization_path

N, T, D = 2, 3, 5
RADII = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(N, T, D, trials=trials, seed=0, min_score_gap=0.1).to(device)
    path = regularization_path(data, "nuclear", "KQ", radii=RADII, m=params["m"])
    assert path.factors is not None
    K, Q = path.factors
    half = (K.square().sum((-2, -1)) + Q.square().sum((-2, -1))) / 2
    nuclear = torch.linalg.svdvals(path.W).sum(-1)
    return {
        "radius": np.tile(array(path.radii), (len(trials), 1)),
        "distance": curves(path.distance),
        "loss": curves(path.loss),
        "balance": curves(half / nuclear),
        "rank of the solution": array(numerical_rank(path.limit.W)),
        "solved": array(path.limit.solved),
        "share of R": curves(nuclear / path.radii[:, None].to(nuclear)),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.7))
    for look, m in zip(SERIES, rows.values("m")):
        cell = rows.where(m=m)
        keep = cell["solved"]
        name = f"m = {m}" + (" = d" if m == D else "")
        radius = cell["radius"][0]
        band(
            axes[0][0], radius, np.maximum(cell["distance"][keep], 1e-16), look, name, spread="quantiles", markers=True
        )
        band(
            axes[0][1], radius, np.abs(cell["balance"][keep] - 1) + 1e-16, look, name, spread="quantiles", markers=True
        )
    axes[0][0].set(xscale="log", yscale="log", xlabel="radius R", ylabel="1 − correlation with the nuclear solution")
    axes[0][0].set_title(f"n = {N}: every solution has rank ≤ {N}")
    axes[0][1].set(xscale="log", yscale="log", xlabel="radius R", ylabel="|(‖K‖² + ‖Q‖²)/2‖KQᵀ‖⋆ − 1|")
    each = len(rows) // len(rows.values("m"))
    axes[0][1].set_title(f"Lemma 15; median of {each} trials, band from 10% to 90%")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    full = rows.where(m=D)
    rank = float(full["rank of the solution"][full["solved"]].max())
    found = [at_most("largest rank of a nuclear solution", rank, float(N), "at most n (Lemma 1)")]
    paper = "if the unconstrained solution has rank ≤ m, it is the constrained one (Lemma 3)"
    for m in [m for m in rows.values("m") if m >= N]:
        cell = rows.where(m=m)
        last = float(np.median(cell["distance"][cell["solved"], -1]))
        found.append(
            at_most(f"m = {m}: median 1 − corr with the nuclear solution, R = {RADII[-1]:g}", last, 1e-3, paper)
        )
    narrow = rows.where(m=1)
    late = narrow["solved"] & (narrow["rank of the solution"] > 1)
    share = float(np.median(narrow["distance"][late, -1])) if late.any() else np.nan
    ours = f"median 1 − corr {share:.2g}, {int(late.sum())} trials whose solution has rank {N}"
    found.append(
        Check("m = 1 below the rank: the path stays away from it", "outside Lemma 3", ours, share > 1e-2, extra=True)
    )
    balance = max(float(np.nanmedian(np.abs(rows.where(m=m)["balance"] - 1))) for m in rows.values("m"))
    says = "(‖K‖² + ‖Q‖²)/2 = ‖KQᵀ‖⋆ for minimisers (Lemma 15)"
    found.append(
        at_most("median |(‖K‖² + ‖Q‖²)/2‖KQᵀ‖⋆ − 1| over all radii, the largest of all m", balance, 1e-6, says)
    )
    inside = float(np.nanmin(rows.where(m=D)["share of R"][full["solved"], -1]))
    found.append(
        at_least("m = d: smallest ‖KQᵀ‖⋆/R at the largest R", inside, 0.99, note="paths use the whole ball", extra=True)
    )
    return found


EXPERIMENT = Experiment(
    id="svm-rank",
    title="Factors narrower than d",
    paper="TF-as-SVM, Att-SVM⋆ with m < d, Lemmas 1, 3 and 15",
    statement="The rank constraint of Att-SVM⋆ does not matter if m ≥ n, and regularization paths of (K, Q) are those "
    "of W in the nuclear ball, rank at most m.",
    grid={"m": [1, 2, 3, D]},
    quick_grid={"m": [1, 2, D]},
    run=run,
    figure=figure,
    checks=checks,
    trials=60,
    quick=8,
    cost=lambda params: 0.3,
    remark="The paper has no experiment on these. n = 2, T = 3, d = 5.",
)
