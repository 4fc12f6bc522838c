"""Derivatives of the solution of a margin problem with respect to its data, by implicit differentiation.

At the solution, with the rows F_S at the margin and multipliers λ_S > 0,

    ∇½‖W‖² = F_S'λ_S,   F_S W = b_S.

For a gradient G with respect to W, v and w with  H v + F_S'w = G, F_S v = 0  (H the Hessian of ½‖W‖²) give
dL = ⟨v, Σ_c λ_c df_c⟩ + w'(db − dF W). The norm alone needs no system: d‖W‖ = Σ_c λ_c (db_c − ⟨df_c, W⟩)/‖W‖.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp, Schatten, parse_geometry
from attsvm.svm._problem import MarginProblem, check_problem, double_rows
from attsvm.svm._result import MaxMargin
from attsvm.svm._rows import Rows
from attsvm.svm._solve import solve
from attsvm.tolerances import SHARP


def differentiable(
    problem: MarginProblem, geometry: Geometry | str = "l2", *, tol: float = SHARP
) -> tuple[Tensor, Tensor]:
    """W (B, d, e) and ‖W‖ (B,) of the solutions, with gradients to the problem's A, Z and b, and to what they were made
    from.

    The solutions must exist and be unique: every instance feasible, and the norm strictly convex. Where a row is at the
    margin with multiplier 0, or rows at the margin depend on each other, the solution has only one-sided derivatives,
    and one of them is returned.
    """
    check_problem(problem)
    geometry = parse_geometry(geometry)
    problem = problem.formed()
    solution = solve(problem, geometry, tol=tol)
    convex = geometry.strictly_convex(*problem.shape)
    missing = (~(solution.norm.isfinite() & convex)).nonzero()[:, 0]
    if len(missing):
        k = int(missing[0])
        why = str(solution.status[k])
        why = why if why == "infeasible" else f"in {geometry.name} solutions may form a face"
        raise AttsvmError(f"solutions must be unique to be differentiated, but instance {k} is not: {why}.")
    return _Solution.apply(problem.A, problem.Z, problem.b, solution)  # type: ignore[no-any-return]


class _Solution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, Z: Tensor, b: Tensor, solution: MaxMargin) -> tuple[Tensor, Tensor]:
        ctx.solution = solution
        return solution.W.to(A.dtype), solution.geometry.norm(solution.W).to(A.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        solution: MaxMargin = ctx.solution
        problem, W = solution.problem, solution.W
        rows = double_rows(problem)
        lam = solution.multipliers.flatten(1)
        equality = (problem.equality & problem.present).flatten(1)
        active = (solution.support.flatten(1) & (lam > 0)) | equality
        v, w = _adjoint(solution.geometry, rows, W, lam, active, grads[0].double())
        norm = solution.geometry.norm(W)
        w = w + grads[1].double()[:, None] * torch.where(active, lam, 0.0) / norm.clamp_min(1e-300)[:, None]
        # dL = Σ_c ⟨λ_c v − w_c W, a_c ⊗ z_c⟩ + w'b, as a function of the rows
        shape = problem.b.shape
        lam, w = torch.where(active, lam, 0.0).reshape(shape), w.reshape(shape)
        vz, Wz = (rows.Z @ V.mT for V in (v, W))  # (B, Q, d)
        of_A = lam[..., None] * vz[:, :, None] - w[..., None] * Wz[:, :, None]
        of_Z = (lam[:, :, None] @ rows.A)[:, :, 0] @ v - (w[:, :, None] @ rows.A)[:, :, 0] @ W
        like = problem.A.dtype
        return of_A.to(like), of_Z.to(like), w.to(like), None


def _adjoint(
    geometry: Geometry, rows: Rows, W: Tensor, lam: Tensor, active: Tensor, G: Tensor
) -> tuple[Tensor, Tensor]:
    """v (B, d, e) and w (B, N), zero off the active rows."""
    F = rows.dense() * active[..., None]
    G = G.flatten(1)[..., None]
    idle = torch.diag_embed((~active).to(F.dtype))
    moved = (W != 0).flatten(1).any(1)[:, None, None]  # where nothing is asked, W stays 0
    if isinstance(geometry, Lp | Schatten) and geometry.p > 2:  # the norm bends finitely, its dual does not
        H = torch.where(moved, geometry.hessian(W), 0.0)
        zero = torch.zeros_like(F)
        K = torch.cat((torch.cat((H, F.mT), 2), torch.cat((F, idle), 2)), 1)
        right = torch.cat((G, zero[:, :, :1]), 1)
        size = H.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)[:, None, None]
        x = torch.linalg.pinv(K / size, rtol=1e-13, hermitian=True) @ (right / size)
        v, w = x[:, : G.shape[1]], x[:, G.shape[1] :]
    else:
        C = torch.where(moved, geometry.dual_hessian(rows.adjoint(torch.where(active, lam, 0.0))), 0.0)
        FC = F @ C
        gram = FC @ F.mT + idle
        w = torch.linalg.pinv(gram, rtol=1e-13, hermitian=True) @ (FC @ G)
        v = C @ (G - F.mT @ w)
    return v[..., 0].reshape(W.shape), torch.where(active, w[..., 0], 0.0)
