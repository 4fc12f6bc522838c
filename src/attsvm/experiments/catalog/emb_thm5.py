"""Gradient flow on p selects the important tokens, in the direction of the largest margin."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics import misalignment
from attsvm.embeddings import (
    Embeddings,
    Sequences,
    assumption_4,
    descend,
    gradient_flow,
    initial_embeddings,
    single_important,
)
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.svm import embedding_svm, gen_svm, solve
from attsvm.tolerances import SHARP

STATED, MODERATE = "(10) holds", "d = 256, η₀ = 50"
ONE, ONE_SMALL = "one irrelevant token, (10) holds", "one irrelevant token, d = 256, η₀ = 3"
SETTINGS: dict[str, dict[str, int]] = {
    STATED: {"n": 8, "T": 4, "important": 2, "irrelevant": 5},
    MODERATE: {"n": 8, "T": 4, "important": 2, "irrelevant": 5},
    ONE: {"n": 4, "T": 2, "important": 2, "irrelevant": 1},
    ONE_SMALL: {"n": 4, "T": 2, "important": 2, "irrelevant": 1},
}
FAILURE, NORM, TIE = 0.05, 1e6, 1e-3
"""δ; where the flow ends; and how close to the top logit, relative to it, a token counts as selected."""
NORMS = 10.0 ** np.arange(0, 6.1, 0.5)
SUFFICIENT = 1 + 1e-6
"""Lemma 19 wants ‖p̂‖ < (1 − μ)‖p̂′‖ for some μ > 0."""


def sizes(case: str, data: Sequences) -> tuple[float, float]:
    """η₀ and d."""
    if case in (STATED, ONE):
        T = int(data.lengths[0])
        eta = 4.0 * data.n**2 * T**2
        return eta, max((88 * eta**2 + 111 * eta + 2) ** 8, (2 * math.log(data.size**2 / FAILURE)) ** 2)
    return (50.0, 256.0) if case == MODERATE else (3.0, 256.0)


def prepared(case: str, trial: int) -> tuple[Sequences, Embeddings]:
    """Data of Assumption 4 (important tokens equally frequent in every other trial), and E¹, p¹ after one step."""
    data = single_important(**SETTINGS[case], trial=trial, even=trial % 2 == 0)
    eta, d = sizes(case, data)
    start = initial_embeddings(data.size, d, seed=1, trial=trial, reduced=True)
    return data, descend(data, start, lr=eta)[0]


def cls_data(made: list[tuple[Sequences, Embeddings]]) -> tuple[TokenData, Tensor]:
    """What was `prepared` as ⟨cls⟩ data, a trial each, and p¹ (B, d)."""
    X = torch.stack([at.E[data.ids.reshape(data.n, -1)] for data, at in made])
    Y = torch.stack([data.Y for data, _ in made])
    v, p = (torch.stack([getattr(at, name) for _, at in made]) for name in ("v", "p"))
    return TokenData.cls(X, Y, head=v[:, None]), p


def _other_selections(rows: Tensor) -> Tensor:
    """All selections (C, n, 1, T) that contain the first token of every sequence; all but the ties of everything."""
    choices = []
    for row in rows:
        others = sorted(set(row[1:].tolist()))
        subsets = itertools.chain.from_iterable(itertools.combinations(others, k) for k in range(len(others) + 1))
        choices.append([torch.isin(row, torch.tensor([row[0].item(), *subset])) for subset in subsets])
    sets = torch.stack([torch.stack(combination) for combination in itertools.product(*choices)])
    return sets[~sets.flatten(1).all(1)][:, :, None]


def _smallest_ratio(E: Tensor, rows: Tensor) -> float:
    """min ‖p̂′‖/‖p̂‖ over the other selections; above 1 where the condition of Lemma 19 holds."""
    sets = _other_selections(rows)
    data = TokenData.cls(E[rows].expand(len(sets), -1, -1, -1))
    norm = solve(gen_svm(data, sets)).norm
    return float(norm[1:].min() / norm[0])


def run(params: Params, trials: range, device: str) -> Columns:
    case = params["case"]
    made = [prepared(case, trial) for trial in trials]
    rows = [data.ids.reshape(data.n, -1) for data, _ in made]
    cls, start = cls_data(made)
    cls = cls.to(device)
    flow = gradient_flow(cls, start.to(device), norm=NORM)
    selected = cls.selected_sets(flow.p[..., None], TIE)[:, :, 0].cpu()
    limits = [solve(embedding_svm(at.E, row, p, TIE), tol=SHARP) for (_, at), row, p in zip(made, rows, flow.p.cpu())]
    p_hat = torch.stack([limit.W[0] for limit in limits])
    reached = flow.path.cpu().norm(dim=2)
    # The direction where the curve first reaches every norm.
    first = (reached[:, :, None] >= torch.from_numpy(NORMS)).int().argmax(0)
    on_path = flow.path.cpu().gather(0, first.T[..., None].expand(-1, -1, flow.path.shape[2]))
    ratio = [_smallest_ratio(at.E, row) if case in (ONE, ONE_SMALL) else np.nan for (_, at), row in zip(made, rows)]
    columns: dict[str, Any] = {
        "assumption_4": np.array([assumption_4(data).holds for data, _ in made]),
        "arrived": array(flow.arrived),
        "selects_important": array(selected[:, :, 0].all(1)),
        "selects_only_important": array(selected[:, :, 0].all(1) & (selected.sum(2) == 1).all(1)),
        "selects_all": array(selected.flatten(1).all(1)),
        "solved": np.array([bool(limit.solved.all()) for limit in limits]),
        "gap": np.array([float(limit.gap) for limit in limits]),
        "misalignment": np.stack([array(misalignment(p_hat, p[..., None])) for p in on_path], 1),
        "final_misalignment": array(misalignment(p_hat, flow.p.cpu()[..., None])),
        "ratio": np.array(ratio),
    }
    return columns


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.4))
    left, right = axes[0]
    for look, case in zip(SERIES, SETTINGS):
        cell = rows.where(case=case)
        band(left, NORMS, cell["misalignment"].clip(1e-16), look, case, spread="quantiles")
    left.set(xscale="log", yscale="log", xlabel="‖p‖ along the flow", ylabel="1 − cos(p, max-margin direction)")
    for look, case in zip(SERIES[2:], (ONE, ONE_SMALL)):
        ratio = np.sort(rows.where(case=case)["ratio"])
        right.plot(ratio, np.arange(1, len(ratio) + 1) / len(ratio), color=look.colour, ls=look.line, label=case)
    right.axvline(1, color="black", lw=0.8)
    right.set(xlabel="smallest ‖p̂′‖/‖p̂‖ over other selections", ylabel="share of trials below", ylim=(0, 1.02))
    right.set_title("the condition of Lemma 19 holds to the right of 1")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    paper = "Theorem 5, under (10)"
    for case in SETTINGS:
        cell = rows.where(case=case)
        says = paper if case in (STATED, ONE) else "outside (10)"
        count = f"{len(cell)} trials"
        if case == ONE_SMALL:  # scores are not always right here; what Lemma 19 says of it is checked below
            continue
        found += [
            at_least(f"{case}: Assumption 4", float(cell["assumption_4"].mean()), 1.0, "assumed", count, extra=True),
            at_least(f"{case}: ‖p‖ reaches {NORM:g}", float(cell["arrived"].mean()), 1.0, f"‖p‖ → ∞, {says}", count),
            at_least(
                f"{case}: share of runs that select all completely ± tokens",
                float(cell["selects_important"].mean()),
                1.0,
                f"all of them, {says}",
                count,
            ),
            at_least(f"{case}: (9) is solved and certified", float(cell["solved"].mean()), 1.0, "Lemma 3", count),
            at_most(
                f"{case}: largest 1 − cos to the max-margin vector",
                float(cell["final_misalignment"].max()),
                1e-4,
                f"0 in the limit, {says}",
                f"certified gap of (9) ≤ {cell['gap'].max():.0e}",
            ),
        ]
    found.append(
        at_most("share of runs that select all tokens", float(rows["selects_all"].mean()), 0.0, "Lemma 6: never")
    )
    small = rows.where(case=ONE_SMALL)
    holds = small["ratio"] > SUFFICIENT
    only = small["selects_only_important"] & (small["final_misalignment"] <= 1e-4)
    stated = rows.where(case=ONE)
    note = f"holds in {holds.sum()} of {len(small)} trials with d = 256, η₀ = 3"
    found.append(
        at_least(
            "only important tokens are selected where Lemma 19's condition holds",
            float(only[holds].mean()) if holds.any() else np.nan,
            1.0,
            "p∞ = p̂/‖p̂‖",
            note,
        )
    )
    note = (
        f"its condition holds in {(stated['ratio'] > SUFFICIENT).sum()} of {len(stated)} trials under (10), where the "
        f"largest ratio is {stated['ratio'].max():.3f}: tying all tokens but one important one takes less norm"
    )
    found.append(
        at_least(
            "one irrelevant token, (10) holds: only important tokens are selected",
            float(stated["selects_only_important"].mean()),
            1.0,
            "Theorem 5 with Lemma 6",
            note,
        )
    )
    return found


EXPERIMENT = Experiment(
    id="emb-thm5",
    title="Gradient flow on ⟨cls⟩ and the max-margin vector",
    paper="trained-embeddings, Theorem 5, Lemmas 3, 6 and 19",
    statement="After one step on all embeddings, gradient flow on p diverges in norm, selects all completely positive "
    "and negative tokens, never all tokens, and its direction is the max-margin vector (9) of its selection.",
    grid={"case": list(SETTINGS)},
    run=run,
    figure=figure,
    checks=checks,
    trials=20,
    quick=2,
    times=lambda params: {STATED: 1, ONE_SMALL: 10}.get(params["case"], 5),
    cost=lambda params: 0.5 if params["case"] == STATED else 0.06,
    remark="(10) asks for η₀ ≥ 4n²T² and d ≥ (88η₀² + …)⁸, that is d ~ 10⁷³ for n = 8, T = 4: vectors are drawn in "
    "|S| + 2 coordinates with the inner products they have in that dimension (rounding is larger than these, and far "
    "below the bound (6)). The flow is followed as a curve, in arc "
    "length, to ‖p‖ = 10⁶. The condition of Lemma 19 does not hold where embeddings are near-orthogonal, as (10) makes "
    "them: the selection that ties everything but one important token has ‖p̂′‖² ≤ 1 − 1/|S|, and ‖p̂‖² is not below "
    "that. Its conclusion holds all the same. With d = 256 and η₀ = 3, found by looking through 16 "
    "settings, the condition holds by chance in some trials. In settings with d = |S| + 3, which violate (10), the "
    "conclusion failed in most trials in which the condition held (22 of 28).",
)
