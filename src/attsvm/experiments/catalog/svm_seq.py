"""Several queries, causal attention, masks and several heads: the SVM over all queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from attsvm.data import LinearHead, TokenData, sphere
from attsvm.diagnostics import is_locally_optimal, misalignment
from attsvm.dynamics import Growing, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, limit, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure

STEPS, N, T, D = 2000, 2, 4, 10


def _data(kind: str, trials: range) -> TokenData:
    if kind == "causal":
        return sphere(N, T, D, trials=trials, seed=0, causal=True)
    data = sphere(N, T, D, trials=trials, seed=0, queries=3)
    if kind == "masked":  # query k does not see token k
        mask = ~torch.eye(3, T, dtype=torch.bool).expand(data.B, N, 3, T)
        return TokenData.cross(data.X, data.Z, data.Y, data.head, mask)
    if kind == "3 heads":  # every query has a head of its own, drawn as v is
        heads = [sphere(1, 1, D, trials=trials, seed=seed).head for seed in (1, 2, 3)]
        v = torch.cat([head.v for head in heads if isinstance(head, LinearHead)], 1)
        return replace(data, head=LinearHead(v))
    return data


def run(params: Params, trials: range, device: str) -> Columns:
    data = _data(params["kind"], trials).to(device)
    result = train(data, "l2", steps=STEPS, lr=Growing(), record=("W", "top_weight"))
    solution = limit(data, result.tokens, "l2")
    return {
        "steps": steps_of(result.steps, trials),
        "misalignment": curves(misalignment(solution.W, result.records["W"])),
        "top_weight": curves(result.records["top_weight"]).mean((2, 3)),
        "is_local": array(is_locally_optimal(data, result.tokens, solution)),
        "solved": array(solution.solved),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.6))
    for look, kind in zip(SERIES, rows.values("kind")):
        cell = rows.where(kind=kind)
        steps = cell["steps"][0, 1:]
        band(axes[0][0], steps, cell["top_weight"][:, 1:], look, kind)
        band(axes[0][1], steps, cell["misalignment"][cell["solved"]][:, 1:], look, kind, spread="quantiles")
    axes[0][0].set(xscale="log", xlabel="iteration", ylabel="largest softmax probability", ylim=(0, 1.03))
    axes[0][1].set(xscale="log", yscale="log", xlabel="iteration", ylabel="1 − corr(W, SAtt-SVM)")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    paper = "W converges in direction to the SAtt-SVM solution (Section 7, Appendix D)"
    for kind in rows.values("kind"):
        cell = rows.where(kind=kind)
        end = float(np.median(cell["misalignment"][cell["solved"], -1]))
        found.append(at_most(f"{kind}: median 1 − corr with the SAtt-SVM solution", end, 1e-4, paper))
        found.append(
            at_least(f"{kind}: share of trials at locally optimal tokens", float(cell["is_local"].mean()), 0.95, paper)
        )
    return found


EXPERIMENT = Experiment(
    id="svm-seq",
    title="Sequence outputs, causal and masked attention",
    paper="TF-as-SVM, Section 7 and Appendix D",
    statement="With K queries (self- or cross-attention, causal, masked, one head per query) W converges in direction "
    "to the solution of SAtt-SVM, which separates the selected token of every query.",
    grid={"kind": ["3 queries", "causal", "masked", "3 heads"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=20,
    cost=lambda params: 0.03,
    remark="The paper has no experiment on this. n = 2, T = 4, d = 10, growing steps.",
)
