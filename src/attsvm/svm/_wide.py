"""The Newton system of a problem with more rows than unknowns, factored on the side of the unknowns.

Every method here solves (A C A' + diag(r)) x = y with r > 0 on inequalities and r = 0 on equalities. Split the rows
into those with the smallest r (K, twice as many as unknowns) and the others (J). With w = C A'x the others give
x_J = (y_J − A_J w)/r_J, which leaves

    M w = A_J'(y_J/r_J) + A_K' x_K,  M = C⁻¹ + A_J' diag(1/r_J) A_J,     A_K w + r_K x_K = y_K :

two matrices of the size of W instead of one of the number of rows. K ends up as the rows at the margin: dividing by
their r would lose all digits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attsvm.svm._rows import System, factored, grown

Solver = Callable[[Tensor], Tensor]


def is_wide(system: System) -> bool:
    """Whether there are so many more rows than unknowns that it pays to factor the side of the unknowns."""
    rows = system.rows
    D = rows.d * rows.e
    return rows.N > 3 * D and (rows.B == 0 or int(system.equality.sum(1).amax()) <= 2 * D)


def wide_solver(system: System, ratio: Tensor, inverse: Tensor) -> Solver:
    """Solve for columns y (B, N, k), given r on the inequalities (B, N) and C⁻¹ (B, D, D)."""
    rows, ineq, equality = system.rows, system.inequality, system.equality
    theta = torch.where(ineq, 1 / ratio, 0.0)
    order = torch.where(equality, torch.inf, theta).topk(2 * rows.d * rows.e, dim=1).indices
    there = (ineq | equality).gather(1, order)
    K = rows.dense(order) * there[..., None]
    theta = theta.scatter(1, order, 0.0)

    L = grown(inverse + rows.normal(theta), (1e-15, 1e-12))
    MK = torch.cholesky_solve(K.mT, L)
    L_T = factored(K @ MK, (ratio * ineq).gather(1, order) + ~there, 1e-14, (1e4,))

    def solve(y: Tensor) -> Tensor:
        index = order[..., None].expand(-1, -1, y.shape[-1])
        x = theta[..., None] * y
        g = torch.stack([rows.adjoint(column).flatten(1) for column in x.unbind(-1)], -1)
        w = torch.cholesky_solve(g, L)
        x_K = torch.cholesky_solve(y.gather(1, index) - K @ w, L_T) * there[..., None]
        w = w + MK @ x_K
        Aw = torch.stack([rows.apply(column.unflatten(1, (rows.d, rows.e))) for column in w.unbind(-1)], -1)
        return (x - theta[..., None] * Aw).scatter(1, index, x_K)

    return solve


def inverse_of(curvature: Tensor, unit: Tensor, c: float) -> Tensor:
    """The inverse of diag(curvature) + c·unit unitᵀ, (B, D, D)."""
    root = curvature.flatten(1).clamp_min(1e-150).rsqrt()
    v = root * unit.flatten(1)
    size = v.square().sum(1).clamp_min(1e-300)
    share = (-c / (1 + c * size).clamp_min(1e-300))[:, None, None] * v[:, :, None] * v[:, None, :]
    share.diagonal(dim1=1, dim2=2).add_(1.0)
    return root[:, :, None] * share * root[:, None]
