"""Better multipliers for a W that is good: norms that are the largest of spectral norms of blocks.

At a solution A'λ is P M Qᵀ in every block, P and Q those singular vectors at which W attains the norm. What A'λ has
beside them, in its smaller singular vectors, is an error of first order in the bound b'λ/‖A'λ‖_*, and an interior point
leaves some of it where rows differ by many decades. But for the turning of P and Q it is linear in λ, so least squares
over the rows at the margin, weighted by λ, take it away.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attsvm.geometry import Blocks
from attsvm.svm._rows import Iterates, System


def matched(system: System, blocks: Blocks, W: Tensor, lam: Tensor) -> Iterates:
    """The same W with multipliers that match it, from others."""
    rows, b, equality = system.rows, system.b, system.equality
    weight = blocks.weights(b)
    V = blocks.cut(W.nan_to_num().flatten(1)) * weight
    V = V / torch.linalg.matrix_norm(V, 2).amax(1)[:, None, None, None].clamp_min(1e-300)
    # Rows that are clearly above their margin have no weight at all.
    lam = lam / (b * lam).sum(1, keepdim=True)
    lam = torch.where(equality | (rows.apply(W) - b <= lam), lam, 0.0).nan_to_num(0.0, 0.0, 0.0)
    F = blocks.cut(rows.dense()) / weight
    scale = torch.where(equality, lam.abs().amax(1, keepdim=True), lam.clamp_min(0))
    goal = torch.zeros_like(torch.cat((F[:, 0].flatten(1), b[:, :1]), 1))
    goal[:, -1] = 1.0
    for _ in range(3):
        U = (lam[:, None] @ F.flatten(2))[:, 0].reshape(V.shape)
        P, sizes, Qh = torch.linalg.svd(U, full_matrices=False)
        reached = (P * (V @ Qh.mT)).sum(-2)  # 1 where the norm is attained
        there = sizes / sizes.sum((1, 2), keepdim=True).clamp_min(1e-300) > 1 - reached
        P, Qh = P * there[..., None, :], Qh * there[..., None]
        outside = (F - (P @ P.mT)[:, None] @ F @ (Qh.mT @ Qh)[:, None]).flatten(2)
        M = torch.cat((outside, b[..., None]), 2)
        step = scale * _least_squares((M * scale[..., None]).mT, goal - (lam[:, None] @ M)[:, 0])
        lam = torch.where(equality, lam + step, (lam + step).clamp_min(0))
    return replace(Iterates.first(rows, lam), W=W)


def _least_squares(M: Tensor, right: Tensor) -> Tensor:
    U, sizes, Vh = torch.linalg.svd(M, full_matrices=False)
    inverse = torch.where(sizes > 1e-14 * sizes[:, :1], 1 / sizes, 0.0)
    return (Vh.mT @ (inverse[..., None] * (U.mT @ right[..., None])))[..., 0]
