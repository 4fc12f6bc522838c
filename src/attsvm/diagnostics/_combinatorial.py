"""Assumptions about all token choices or all W: enumerated where that is possible, else sampled."""

from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count
from attsvm.data import TokenData
from attsvm.diagnostics._assumptions import Condition
from attsvm.geometry import Geometry, parse_geometry
from attsvm.svm import MarginProblem, att_svm, head_svm, solve
from attsvm.tolerances import CHOICES, SHARP

BLOCK = 4096
"""SVMs stated at once."""
SCALES = (-1.0, 2.0)
"""Powers of ten between which the norms of random W lie, in units of ‖W_mm‖: from blurred to saturated softmax."""


SATURATED = 1e-6
"""1 − s_α below which differences of label margins are not used."""
VANISHED = 1e-100
"""Entries of attended tokens below this are 0."""


def assumption_d(data: TokenData, geometry: Geometry | str = "l2", *, samples: int = 1024, seed: int = 0) -> Condition:
    """D: for every α ≠ opt some query with α ≠ opt has its optimal token among the support tokens of α's SVM.

    All T^(nK) choices are checked if they are at most 4096, else `samples` random ones per trial, the same numbers for
    every trial. A choice with an infeasible SVM gives no direction and does not count against D.
    """
    geometry, data = parse_geometry(geometry), data.to(dtype=torch.float64)
    opt = data.optimal_tokens()
    queries = data.n * data.K
    count = data.T**queries
    if count <= CHOICES:
        digits = torch.arange(count)[:, None] // data.T ** torch.arange(queries) % data.T
        choices, looked_at = digits.reshape(-1, data.n, data.K), None
    else:
        looked_at = as_count("samples", samples)
        generator = torch.Generator().manual_seed(seed)
        choices = torch.randint(data.T, (looked_at, data.n, data.K), generator=generator)
    choices = choices.to(data.device)

    trials = torch.arange(data.B, device=data.device).repeat_interleave(len(choices))
    fine = torch.ones(len(trials), dtype=torch.bool, device=data.device)
    for block in torch.arange(len(trials), device=data.device).split(BLOCK) if len(trials) else ():
        b, alpha = trials[block], choices[block % len(choices)]
        seen = data.mask[b].gather(-1, alpha[..., None])[..., 0]
        some = data[b]
        # Masked tokens cannot be chosen: put opt in their place, which says nothing new.
        alpha = torch.where(seen, alpha, opt[b])
        wrong = alpha != opt[b]
        solution = solve(att_svm(some, alpha), geometry)
        guarded = solution.support_tokens.gather(-1, opt[b][..., None])[..., 0]
        fine[block] = (wrong & guarded).flatten(1).any(1) | ~wrong.flatten(1).any(1) | ~solution.solved
    share = fine.reshape(data.B, len(choices)).double().mean(1)
    return Condition("D", share == 1, share, "share of token choices with an optimal support token", looked_at)


def assumption_b_joint(
    data: TokenData, tokens: Any, geometry: Geometry | str = "l2", *, samples: int = 64, seed: int = 0
) -> Condition:
    """B of mirror-descent's joint theorem: Γ − Γ′ ≥ ν(1 − s_iα) for all samples i and all W, with some ν > 0.

    Γ is the label margin of the tokens α, Γ′ that of the attended tokens Xᵀ softmax(X W z). The value is the smallest
    (Γ − Γ′)/(1 − s_iα) over `samples` random W per trial, half of them around the attention SVM of α: an upper bound
    of ν. Near α a sample that is not a support vector of the label SVM brings it to 0: B asks that all are.
    """
    geometry, data = parse_geometry(geometry), data.to(dtype=torch.float64)
    tokens = data.check_tokens(tokens)
    samples = as_count("samples", samples)
    attention = solve(att_svm(data, tokens), geometry)
    center = torch.where(attention.solved[:, None, None], geometry.unit(attention.W), 0.0)
    size = torch.where(attention.solved, attention.norm, 1.0)[:, None, None]
    label = solve(head_svm(data, tokens), geometry, tol=SHARP).margin
    value = torch.where(label > 0, torch.inf, -torch.inf)
    generator = torch.Generator().manual_seed(seed)
    for number in range(samples):
        noise = torch.randn(data.d, data.e, generator=generator, dtype=torch.float64).to(data.X)
        power = torch.empty(()).uniform_(*SCALES, generator=generator).item()
        W = size * 10**power * (geometry.unit(noise) + (number % 2) * center)
        value = torch.minimum(value, label_loss(data, tokens, W, geometry, label))
    return Condition("B (joint)", value > 0, value, "smallest (Γ − Γ′)/(1 − s_iα), an upper bound of ν", samples)


def label_loss(data: TokenData, tokens: Tensor, W: Tensor, geometry: Geometry, label: Tensor) -> Tensor:
    """min over samples of (Γ − Γ′)/(1 − s_iα) for one W per trial, (B,), with `label` = Γ.

    +∞ where 1 − s_iα < 1e-6: there the difference of two margins, each certified to 1e-12, says nothing.
    """
    s = data.attention(W)
    attended = torch.einsum("bntd,bnkt->bnkd", data.X, s)
    rows = (data.Y[..., None] * attended).flatten(1, 2)
    # A token at the origin that takes all attention leaves a row too short to scale: nothing separates it.
    rows = torch.where(rows.abs().amax(-1, keepdim=True) < VANISHED, 0.0, rows)
    margin = solve(MarginProblem.from_rows(rows), geometry, tol=SHARP).margin
    rest = s.scatter(-1, tokens[..., None], 0.0).sum(-1)  # 1 − s_α
    ratio = (label - margin)[:, None, None] / rest
    return torch.where(rest > SATURATED, ratio, torch.inf).amin((1, 2))
