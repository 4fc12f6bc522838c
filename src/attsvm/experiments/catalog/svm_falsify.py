"""Counter-examples to Theorems 4 and 6, found from nothing and confirmed with 50 digits."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attsvm.data import LinearHead, TokenData
from attsvm.diagnostics import assumption_b2, assumption_c, has_unique_optimum, lipschitz_constant
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.search import Descent, falsify, optimal_tokens_lead
from attsvm.svm import att_svm, solve

LOSS = "correlation"
SIZES = {4: (2, 2), 6: (3, 3)}
"""Sequences and width of the tokens, by theorem; T = 2 and z = 1."""
MOST = (3, 2, 3)
ROUNDS = 200
"""Most searches need fewer than 40."""


def step_size(data: TokenData) -> Tensor:
    return 0.999 / lipschitz_constant(data, LOSS)


def _separable(data: TokenData, holds: Tensor) -> Tensor:
    holds = holds & has_unique_optimum(data)
    which = holds.nonzero()[:, 0]
    holds[which] = solve(att_svm(data[which])).solved
    return holds


def given_4(data: TokenData) -> Tensor:
    return _separable(data, assumption_b2(data).holds)


def given_6(data: TokenData) -> Tensor:
    return _separable(data, assumption_c(data, LOSS).holds)


def run(params: Params, trials: range, device: str) -> Columns:
    theorem = params["theorem"]
    n, d = SIZES[theorem]
    found: dict[str, list] = {
        name: [] for name in ("found", "looked_at", "first", "later", "n", "d", "differences", "head")
    }
    for trial in trials:
        given = given_4 if theorem == 4 else given_6
        descent = Descent(400, step_size, LOSS)
        hit = falsify(optimal_tokens_lead, given, descent, n=n, d=d, batch=512, rounds=ROUNDS, seed=trial)
        differences, head = np.zeros((MOST[0], MOST[2])), np.zeros(MOST[2])
        if hit is not None:
            X = hit.data.X[0].numpy()
            best = hit.data.optimal_tokens()[0, :, 0].numpy()
            rows = np.arange(hit.data.n)
            differences[: hit.data.n, : hit.data.d] = X[rows, best] - X[rows, 1 - best]
            assert isinstance(hit.data.head, LinearHead)
            head[: hit.data.d] = hit.data.head.v[0, 0].numpy()
        found["found"].append(hit is not None)
        found["looked_at"].append(hit.looked_at if hit else -1)
        found["first"].append(hit.confirmed[0] if hit else np.nan)
        found["later"].append(hit.confirmed[1] if hit else np.nan)
        found["n"].append(hit.data.n if hit else 0)
        found["d"].append(hit.data.d if hit else 0)
        found["differences"].append(differences)
        found["head"].append(head)
    return {name: np.array(values) for name, values in found.items()}


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 1, (6.5, 3.2))
    for look, theorem in zip(SERIES, rows.values("theorem")):
        cell = rows.where(theorem=theorem)
        for trial in range(len(cell)):
            label = f"Theorem {theorem}, {len(cell)} searches" if trial == 0 else None
            values = [cell["first"][trial], cell["later"][trial]]
            axes[0][0].plot([0, 1], values, look.line, marker=look.marker, color=look.colour, label=label)
    axes[0][0].axhline(0, color="black", lw=0.8)
    axes[0][0].set(xticks=[0, 1], xticklabels=["after 400 steps of 1/L_W", "logits ten times as large"])
    axes[0][0].set(xlabel="with 50 digits", ylabel="lead of the optimal token (logits)", xlim=(-0.3, 1.3))
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for theorem in rows.values("theorem"):
        cell = rows.where(theorem=theorem)
        hits = int(cell["found"].sum())
        paper = f"Theorem {theorem} says that there is none"
        seen = ", ".join(str(count) for count in cell["looked_at"][cell["found"]])
        found.append(
            Check(
                f"Theorem {theorem}: every search finds a counter-example from nothing",
                paper,
                f"{hits} of {len(cell)} searches",
                hits == len(cell),
                f"after {seen} instances",
                extra=True,
            )
        )
        k = int(np.argmin(np.where(cell["found"], np.abs(cell["differences"]).sum((1, 2)), np.inf)))
        rows_of = "; ".join(
            "(" + ", ".join(f"{x:g}" for x in row[: cell["d"][k]]) + ")"
            for row in cell["differences"][k][: cell["n"][k]]
        )
        v = ", ".join(f"{x:g}" for x in cell["head"][k][: cell["d"][k]])
        falls = bool(((cell["later"] <= cell["first"]) & (cell["first"] < 0))[cell["found"]].all())
        found.append(
            Check(
                f"Theorem {theorem}: 50 digits confirm it, after 400 steps and far later",
                paper,
                f"token differences {rows_of}, v = ({v}); lead {cell['first'][k]:.3g}, then {cell['later'][k]:.3g}",
                falls,
                extra=True,
            )
        )
    return found


EXPERIMENT = Experiment(
    id="svm-falsify",
    title="Counter-examples from nothing",
    paper="TF-as-SVM, Theorems 4 and 6",
    statement="If all non-optimal scores are equal (Theorem 4), or the first gradient separates (Theorem 6), plain GD "
    "from W = 0 goes to the optimal tokens.",
    grid={"theorem": [4, 6]},
    quick_grid={"theorem": [4]},
    run=run,
    figure=figure,
    checks=checks,
    version=4,
    trials=3,
    quick=1,
    batch=1,
    cost=lambda params: 30.0,
    remark="Search over integers up to 4, T = 2, z = 1, loss −x, η = 0.999/L_W; a violation is a wrong token that "
    "leads, is locally optimal, and leads by more far later on the curve of the run. The proofs are in docs/papers.md.",
)
