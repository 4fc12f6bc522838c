"""The lemmas of TF-as-SVM on random data, as ratios of their two sides."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData, sphere
from attsvm.diagnostics import (
    excess_loss,
    is_locally_optimal,
    lipschitz_constant,
    margins,
)
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, limit, second_best
from attsvm.experiments._draw import Figure
from attsvm.experiments._lemmas import draw, inner, ratio_checks, ratio_figure
from attsvm.geometry import Frobenius
from attsvm.objective import gradient, scaled_gradient

N, T, D = 3, 4, 6
FAR, PI, TILT = 400.0, 0.1, 0.3
"""Norm in units of ‖W_mm‖ at which the gradient lemmas are looked at, their π, and how far W leans from W_mm; where
tokens lie close behind the support tokens, larger and nearer by that gap."""
PAPER = {
    "Lemma 4": "‖∇L(W) − ∇L(W′)‖ ≤ L_W‖W − W′‖",
    "Lemma 7": "|aᵀ(diag(s) − ssᵀ)γ − Σ(a₁ − a_t)s_t(γ₁ − γ_t)| ≤ 2ΓA(1 − s₁)²",
    "Lemma 8": "L(W(k+1)) − L(W(k)) ≤ −(η/2)‖∇L‖², here with η = 1/L_W",
    "Lemma 11": "⟨−∇L, W/‖W‖⟩ ≤ (1 + π)⟨−∇L, W_mm/‖W_mm‖⟩ where all margins are positive and ‖W‖ is large",
    "Lemma 14": "the same near a locally optimal solution",
}


def _lemma_7(data: TokenData, W: Tensor, V: Tensor) -> Tensor:
    """With the top token of every query as token 1, the worst over queries.

    The left side is (Σ s_t(a₁ − a_t))(Σ s_t(γ₁ − γ_t)) to the letter, and written so it has no cancellation.
    """
    a, s, scores = data.logits(V)[:, :, 0], data.attention(W)[:, :, 0], data.scores()[:, :, 0]
    top = s.argmax(-1, keepdim=True)
    left = (s * (a.gather(-1, top) - a)).sum(-1) * (s * (scores.gather(-1, top) - scores)).sum(-1)
    spread = scores.amax(-1) - scores.amin(-1)
    rest = s.scatter(-1, top, 0.0).sum(-1)
    return (left.abs() / (2 * spread * a.abs().amax(-1) * rest.square())).amax(1)


def _far(
    data: TokenData, tokens: Tensor, W_mm: Tensor, noise: Tensor, gap: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Ratio of Lemmas 11 and 14 at a large W that leans from W_mm by TILT·gap in margin, and ⟨−∇L, V⟩ for another such
    V, up to a positive factor, (B,) each.

    `gap` is by how much the other tokens' margins exceed the support tokens'. Both move by at most TILT·gap, so that
    (1 − 2·TILT)·gap is left, and ‖W‖ = FAR/gap·‖W_mm‖ makes the others count e^(−(1 − 2·TILT)·FAR) as much. That is
    what “in the cone” and “‖W‖ large” are for, so both depend on the gap.
    """
    unit = Frobenius().unit(noise)
    shift = margins(data, tokens, unit).abs()
    shift = shift.masked_fill(shift.isinf(), 0.0).amax((1, 2, 3))
    lean = (TILT * gap / shift)[:, None, None] * unit
    W = (FAR / torch.as_tensor(gap).expand_as(shift).to(W_mm))[:, None, None] * (W_mm + lean)
    down = -scaled_gradient(data, W)[0]
    ratio = inner(down, Frobenius().unit(W)) / ((1 + PI) * inner(down, Frobenius().unit(W_mm)))
    return ratio, inner(down, W_mm - lean)


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(N, T, D, trials=trials, seed=0, min_score_gap=0.1).to(device)
    U, V, noise = (draw(seed, data) for seed in (1, 2, 3))
    U = params["scale"] * U
    L_W, loss = lipschitz_constant(data), excess_loss(data, U)
    G = gradient(data, U)
    found: dict[str, Tensor] = {}
    steps = [U + size * V for size in (1e-3, 0.1, 1.0)]
    slopes = [Frobenius().norm(gradient(data, W) - G) / Frobenius().norm(W - U) for W in steps]
    found["Lemma 4"] = torch.stack(slopes).amax(0) / L_W
    found["Lemma 7"] = _lemma_7(data, U, V)
    fall = loss - excess_loss(data, U - G / L_W[:, None, None])
    found["Lemma 8"] = Frobenius().norm(G).square() / (2 * L_W) / fall

    optimal = data.optimal_tokens()
    solution = limit(data, optimal, "l2")
    W_mm = torch.where(solution.solved[:, None, None], solution.W, torch.nan).nan_to_num(nan=1.0)
    ratio, down = _far(data, optimal, W_mm, noise)
    known = solution.solved
    found["Lemma 11"] = torch.where(known, ratio, torch.nan)
    alpha = second_best(data)
    there = limit(data, alpha, "l2")
    is_local = is_locally_optimal(data, alpha, there)
    W_alpha = torch.where(there.solved[:, None, None], there.W, torch.nan).nan_to_num(nan=1.0)
    # The cone is as narrow as the tokens that are no support tokens lie close behind those.
    excess = (margins(data, alpha, W_alpha) - 1).masked_fill(there.support_tokens, torch.inf)
    gap = excess.scatter(-1, alpha[..., None], torch.inf).amin((1, 2, 3)).clamp(0, 1)
    ratio, local_down = _far(data, alpha, W_alpha, noise, gap.clamp(min=1e-12))
    found["Lemma 14"] = torch.where(is_local, ratio, torch.nan)
    columns = {f"ratio: {name}": array(value) for name, value in found.items()}
    return columns | {
        "excess": array(loss),
        "excess far": array(torch.where(solution.solved, excess_loss(data, 50 * W_mm), torch.nan)),
        "down": array(torch.where(known, (down > 0).double(), torch.nan)),
        "local down": array(torch.where(is_local, (local_down > 0).double(), torch.nan)),
    }


def figure(rows: Rows) -> Figure:
    each = len(rows) // len(rows.values("scale"))
    return ratio_figure(rows, "scale", f"Lemmas of TF-as-SVM, {each} trials for each scale of W")


def checks(rows: Rows) -> list[Check]:
    return [
        at_least("Lemma 2: smallest L(W) − L_* over random W", float(rows["excess"].min()), 1e-300, "L(W) > L_*"),
        at_most("Lemma 2: largest L − L_* at 50 W_mm", float(np.nanmax(rows["excess far"])), 1e-15, "L(R·W_mm) → L_*"),
        *ratio_checks(rows, "scale", PAPER),
        at_least(
            "Lemma 12: share with ⟨−∇L(W), V⟩ > 0, W and V with all margins positive, ‖W‖ large",
            float(np.nanmean(rows["down"])),
            1.0,
            "no stationary point",
        ),
        at_least(
            "Lemma 13: the same near a locally optimal solution",
            float(np.nanmean(rows["local down"])),
            1.0,
            "no stationary point",
            f"{int(np.isfinite(rows['local down']).sum())} locally optimal cases",
        ),
    ]


EXPERIMENT = Experiment(
    id="svm-lemmas",
    title="Lemmas 2, 4, 7, 8 and 11 to 14",
    paper="TF-as-SVM, Lemmas 2, 4, 7, 8, 11 to 14",
    statement="Optimal tokens minimise the loss, its gradient is Lipschitz, GD descends, and far out the gradient "
    "points to the SVM solution more than along W itself.",
    version=3,
    grid={"scale": [0.1, 1.0, 10.0]},
    run=run,
    figure=figure,
    checks=checks,
    trials=200,
    quick=30,
    batch=100,
    cost=lambda params: 0.01,
    remark="n = 3, T = 4, d = 6. Lemmas 11 to 14 say “for large ‖W‖”: here 400 ‖W_mm‖, π = 0.1, and W leans from W_mm "
    "by 0.3 of its margin. Near a local solution the tokens behind the support tokens may have lower scores: there the "
    "norm is divided, and the lean multiplied, by their gap.",
)
