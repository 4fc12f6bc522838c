"""Vertices of the linear programs of ℓ1 and ℓ∞: from a guess of what is tight to W and λ, by one factorisation.

A vertex is named by the rows at the margin (`tight`) and by the signs of entries of W (`signs`, B × d × e): for ℓ∞ of
those at the bound, the others being free; for ℓ1 of those that are not zero. With W of norm 1 and margin ν, λ'b = 1:

ℓ∞   F w − ν b = −A signs on the tight rows, F their columns of free entries;      F'λ = 0;
ℓ1   F w − ν b = 0 on the tight rows, F their columns of entries with a sign;      F'λ = t·signs, Σ|w| = 1.

Both pairs have one square matrix and its transpose, if the numbers of rows and columns fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.svm._rows import System

_CHANGES = 2
"""Decisions that may be changed for a vertex to be a likely one."""


def named(
    system: System, of_rows: Tensor, of_entries: Tensor, signs: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows at the margin and the signs of a vertex, and where it is a likely one (B,).

    The ratios are above 1 for inequalities that seem to be at the margin (B, N), and for entries (B, d, e) that seem to
    have a sign. Those next to 1 are decided the other way until there are as many conditions as unknowns: for ℓ∞ rows
    at the margin and entries at the bound are D + 1, for ℓ1 rows at the margin and zero entries are D.
    """
    of_rows = torch.where(system.inequality, of_rows, torch.where(system.equality, torch.inf, 0.0))
    ratios = torch.cat((of_rows, (of_entries if largest else 1 / of_entries).flatten(1)), 1)
    wanted = signs[0].numel() + largest
    if ratios.shape[1] < wanted:
        return system.equality, torch.zeros_like(signs), torch.zeros(len(signs), dtype=torch.bool, device=signs.device)
    chosen = torch.zeros_like(ratios, dtype=torch.bool).scatter(1, ratios.topk(wanted, dim=1).indices, True)
    tight, others = chosen[:, : of_rows.shape[1]], chosen[:, of_rows.shape[1] :].reshape(signs.shape)
    likely = (((ratios > 1).sum(1) - wanted).abs() <= _CHANGES) & tight.any(1)
    return tight, signs * (others if largest else ~others), likely


def at_vertex(system: System, tight: Tensor, signs: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """W (B, d, e) of norm 1 and λ (B, N), for guesses that fit."""
    rows, b = system.rows, system.b
    M, right, order, columns = basis_matrix(system, tight, signs, largest)
    LU, pivots, _ = torch.linalg.lu_factor_ex(M)
    first = torch.zeros_like(right)
    first[:, 0] = -1.0
    w = torch.linalg.lu_solve(LU, pivots, right[..., None])[:, 1:, 0]
    x = torch.linalg.lu_solve(LU, pivots, first[..., None], adjoint=True)[..., 0]
    x = x if largest else x[:, 1:]
    lam = torch.zeros_like(b).scatter(1, order, x) * tight
    free = (signs == 0) if largest else (signs != 0)
    W = torch.zeros_like(b[:, :1]).expand(-1, rows.d * rows.e).scatter(1, columns, w).reshape(signs.shape) * free
    return W + signs if largest else W, lam


def basis_matrix(system: System, tight: Tensor, signs: Tensor, largest: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The matrix of (ν, w), its right-hand side, and which rows and entries of W it holds.

    Instances with fewer are filled up by an identity."""
    rows, b = system.rows, system.b
    free = ((signs == 0) if largest else (signs != 0)).flatten(1)
    k = int(tight.sum(1).amax())
    m = k - 1 if largest else k
    order = tight.int().argsort(dim=1, descending=True, stable=True)[:, :k]
    columns = free.int().argsort(dim=1, descending=True, stable=True)[:, :m]
    a = rows.A.flatten(1, 2).gather(1, order[..., None].expand(-1, -1, rows.d))
    z = rows.Z.gather(1, (order // rows.R)[..., None].expand(-1, -1, rows.e))
    F = a.gather(2, (columns // rows.e)[:, None].expand(-1, k, -1))
    F *= z.gather(2, (columns % rows.e)[:, None].expand(-1, k, -1))
    keep, kept = tight.gather(1, order).to(b.dtype), free.gather(1, columns).to(b.dtype)
    F = F * keep[..., None] * kept[:, None]
    b = b.gather(1, order) * keep
    M = torch.cat((-b[..., None], F), 2)
    if largest:
        M.diagonal(dim1=1, dim2=2).add_(1 - keep)
        return M, -rows.apply(signs).gather(1, order) * keep, order, columns
    top = torch.nn.functional.pad(signs.flatten(1).gather(1, columns) * kept, (1, 0))
    M = torch.cat((top[:, None], M), 1)
    M.diagonal(dim1=1, dim2=2)[:, 1:].add_(1 - keep)
    right = torch.zeros_like(top)
    right[:, 0] = 1.0
    return M, right, order, columns
