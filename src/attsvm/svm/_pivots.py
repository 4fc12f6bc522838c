"""The ℓ2 problem by block principal pivoting: a handful of linear systems, and the rows at the margin are exact.

With G = AA' the optimality conditions are λ ≥ 0, y = Gλ − b ≥ 0, λ_c y_c = 0. A guess F of the rows with weight gives λ
(y = 0 on F) and y (λ = 0 elsewhere). Rows where one of them is negative change sides, all at once while their number
falls, else the last one alone, which cannot cycle. See Kim and Park, Fast nonnegative matrix factorization.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.svm._rows import Iterates, System

_ROUNDS = 20
_CHANCES = 3
"""Exchanges of all wrong rows that need not make them fewer."""


def suits_pivots(system: System) -> bool:
    """Rows can be independent, so that every guess has its λ."""
    rows = system.rows
    return rows.d * rows.e >= rows.N


def solve_pivots(system: System, tol: float) -> tuple[Iterates, Tensor]:
    """Iterates, and the instances (B,) that they solve; the others are left to an interior point."""
    rows, b, inequality = system.rows, system.b, system.inequality
    lam, done = torch.zeros_like(b), torch.zeros(rows.B, dtype=torch.bool, device=b.device)
    rounds = torch.zeros(rows.B, dtype=torch.long, device=b.device)
    index = torch.arange(rows.B, device=b.device)
    G, held = rows.gram(), inequality | system.equality
    fewest, chances = torch.full_like(index, rows.N + 1), torch.full_like(index, _CHANCES)
    numbers = torch.arange(1, rows.N + 1, device=b.device)
    for _ in range(_ROUNDS):
        x, solid = _held_solution(G, b, held)
        y = (G @ x[..., None])[..., 0] - b
        wrong = inequality & torch.where(held, x < 0, y < -min(0.1 * tol, 1e-12) * b)
        count = wrong.sum(1)
        rounds[index] += 1
        right = solid & (count == 0)
        lam[index[right]], done[index[right]] = x[right], True
        left = (solid & (count > 0)).nonzero()[:, 0]
        if len(left) == 0:
            break
        if len(left) < len(index):
            index, G, b, inequality, held = index[left], G[left], b[left], inequality[left], held[left]
            wrong, count, fewest, chances = wrong[left], count[left], fewest[left], chances[left]
        fewer = count < fewest
        all_of_them = fewer | (chances > 0)
        chances = torch.where(fewer, _CHANCES, chances - 1)
        fewest = torch.minimum(fewest, count)
        last = numbers == (wrong * numbers).amax(1, keepdim=True)
        held = held ^ torch.where(all_of_them[:, None], wrong, last)
    return Iterates(rows.adjoint(lam), lam, rounds), done


def _held_solution(G: Tensor, b: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """λ (B, N) with Gλ = b on the rows that are held and λ = 0 elsewhere; whether it exists (B,)."""
    N = b.shape[1]
    most = int(held.sum(1).amax())
    if bool(held.all()):
        L, info = torch.linalg.cholesky_ex(G)
        x = torch.cholesky_solve(b[..., None], L)[..., 0]
        return x, (info == 0) & x.isfinite().all(1)
    # Only the part of G that counts; instances that hold fewer rows are filled up with an identity.
    order = held.int().argsort(1, descending=True)[:, :most]
    keep = held.gather(1, order).to(b.dtype)
    M = G.flatten(1).gather(1, (N * order[:, :, None] + order[:, None]).flatten(1)).unflatten(1, (most, most))
    M.mul_(keep[:, :, None]).mul_(keep[:, None]).diagonal(dim1=1, dim2=2).add_(1 - keep)
    L, info = torch.linalg.cholesky_ex(M)
    x = torch.cholesky_solve((b.gather(1, order) * keep)[..., None], L)[..., 0]
    return torch.zeros_like(b).scatter(1, order, x), (info == 0) & x.isfinite().all(1)
