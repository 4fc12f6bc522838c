"""Margin problems over W = K Qᵀ of rank at most m: exact where the convex problem says so, bracketed elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp, Nuclear, parse_geometry
from attsvm.svm._exact import UNIT
from attsvm.svm._problem import MarginProblem, check_problem
from attsvm.svm._problem import least as smallest
from attsvm.svm._result import MaxMargin
from attsvm.svm._rows import Rows
from attsvm.svm._solve import solve


@dataclass(frozen=True, eq=False)
class LowRank:
    """The best W = K Qᵀ of rank m that was found, K (B, d, m) and Q (B, e, m); NaN where none was.

    In real arithmetic K Qᵀ satisfies every row and ‖K Qᵀ‖ ≤ `upper` (B,). No feasible W of any rank has a norm below
    `lower`, the bound of the convex problem (`convex` is its solution). Where the two agree to `tol` the rank costs
    nothing, and K Qᵀ solves the problem of rank m (Lemma 3 of TF-as-SVM).
    """

    problem: MarginProblem
    geometry: Geometry
    K: Tensor
    Q: Tensor
    lower: Tensor
    upper: Tensor
    convex: MaxMargin
    tol: float

    @property
    def W(self) -> Tensor:
        """K Qᵀ (B, d, e), rounded."""
        return self.K @ self.Q.mT

    @property
    def gap(self) -> Tensor:
        """(upper − lower)/lower (B,)."""
        return torch.where(self.upper == 0, 0.0, (self.upper - self.lower).clamp_min(0) / self.lower)

    @property
    def solved(self) -> Tensor:
        """Where K Qᵀ is certainly a solution (B,)."""
        return self.gap <= self.tol

    def __repr__(self) -> str:
        count, m = len(self.K), self.K.shape[2]
        return f"LowRank({self.geometry.name}, rank {m}, {count} instances: {int(self.solved.sum())} solved)"


def solve_rank(
    problem: MarginProblem, m: int, geometry: Geometry | str = "nuclear", *, tol: float = 1e-6, rounds: int = 30
) -> LowRank:
    """The least norm of W = K Qᵀ with K (d, m), Q (e, m), in the Frobenius or the nuclear norm; inequalities only.

    The problem is not convex. The solution of the convex problem is cut to rank m; then K and Q are improved in turn,
    each by a convex problem (the nuclear norm is the minimum of ½‖K‖² + ½‖Q‖²). The norm never grows. The convex
    problem bounds the result from below.
    """
    check_problem(problem)
    problem = problem.formed()
    geometry = parse_geometry(geometry)
    d, e = problem.shape
    m = as_count("m", m, 1, min(d, e))
    tol = as_real("tol", tol, 1e-9)
    rounds = as_count("rounds", rounds)
    if geometry != Lp(2) and not isinstance(geometry, Nuclear):
        raise AttsvmError(f"geometry must be l2 or nuclear for problems of bounded rank, but got {geometry.name}.")
    if bool((problem.present & problem.equality).any()):
        raise AttsvmError("problems of bounded rank must have no equalities: K Qᵀ cannot be projected on them.")
    convex = solve(problem, geometry)
    U, S, Vh = torch.linalg.svd(convex.W.nan_to_num(0.0))
    starts = [
        (U[..., :m] * S[:, None, :m].sqrt(), Vh[:, :m].mT * S[:, None, :m].sqrt()),
        (U[..., :m], torch.zeros_like(Vh[:, :m].mT)),  # Q for the best K
        (torch.zeros_like(U[..., :m]), Vh[:, :m].mT),  # K for the best Q
    ]
    best = LowRank(
        problem=problem,
        geometry=geometry,
        K=torch.full_like(U[..., :m], math.nan),
        Q=torch.full_like(Vh[:, :m].mT, math.nan),
        lower=convex.lower,
        upper=torch.full_like(convex.upper, math.inf),
        convex=convex,
        tol=tol,
    )
    trivial = convex.upper == 0
    for K, Q in starts:
        best = _better(best, K, Q)
        from_K = bool((Q == 0).all())
        for round in range(rounds):
            open_ = (best.convex.upper.isfinite() & ~best.solved & ~trivial).nonzero()[:, 0]
            if not len(open_):
                break
            before = best.upper.clone()
            for of_K in (not from_K, from_K):
                side = _improved(problem, K, Q, of_K)
                K, Q = (side, Q) if of_K else (K, side)
                best = _better(best, K, Q)
                K, Q = _balanced(K, Q, geometry)
            if round > 2 and not bool((best.upper[open_] < before[open_] * (1 - 1e-9)).any()):
                break
    zero = trivial[:, None, None]
    upper = torch.where(trivial, 0.0, best.upper)
    return replace(best, K=best.K.masked_fill(zero, 0.0), Q=best.Q.masked_fill(zero, 0.0), upper=upper)


def _improved(problem: MarginProblem, K: Tensor, Q: Tensor, of_K: bool) -> Tensor:
    """The shortest K for this Q, or the shortest Q for this K: least Frobenius norms, since the other one is
    orthonormal (l2) or balanced (nuclear)."""
    A, Z = problem.A.double(), problem.Z.double()
    if of_K:
        part = replace(problem, A=A, Z=Z @ Q, b=problem.b.double(), A_low=None, token=None, layout=None)
        return solve(part, "l2").W.nan_to_num(0.0)
    # ⟨a, K Qᵀz⟩ = ⟨Kᵀa ⊗ z, Qᵀ⟩
    part = replace(problem, A=A @ K[:, None], Z=Z, b=problem.b.double(), A_low=None, token=None, layout=None)
    return solve(part, "l2").W.nan_to_num(0.0).mT


def _balanced(K: Tensor, Q: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The same product with K'K = Q'Q; both orthonormal for l2, where the next problem finds the other anew."""
    Qk, Rk = torch.linalg.qr(K)
    Qq, Rq = torch.linalg.qr(Q)
    if geometry == Lp(2):
        return Qk, Qq
    u, s, vh = torch.linalg.svd(Rk @ Rq.mT)
    root = s.sqrt()[:, None]
    return Qk @ u * root, Qq @ vh.mT * root


def _better(best: LowRank, K: Tensor, Q: Tensor) -> LowRank:
    """K and Q scaled to margin 1 in real arithmetic, where that is shorter than what there was."""
    problem = best.problem
    A, Z, b = problem.A.double(), problem.Z.double(), problem.b.double().flatten(1)
    d, e = problem.shape
    m = K.shape[2]
    there = problem.present.flatten(1)
    low = torch.zeros_like(A) if problem.A_low is None else problem.A_low.double().abs()

    def least(K: Tensor) -> Tensor:
        value = Rows(A, Z @ Q).apply(K)
        size = Rows(A.abs() + low, Z.abs() @ Q.abs()).apply(K.abs())
        error = (d + e + m + 16) * UNIT * 1.01 * size + Rows(low, Z.abs() @ Q.abs()).apply(K.abs()) * 1.01
        return smallest(((value - error) / b).where(there, math.inf)) * (1 - 4 * UNIT)

    margin = least(K)
    K = K / torch.where(margin > 0, margin * (1 - 1e-14), 1.0)[:, None, None]
    W = K @ Q.mT
    upper = best.geometry.norm_bound(W, (m + 2) * UNIT * 1.01 * (K.abs() @ Q.abs().mT))
    fine = (margin > 0) & margin.isfinite() & (least(K) >= 1) & (upper < best.upper)
    at = fine[:, None, None]
    return replace(
        best,
        K=torch.where(at, K, best.K),
        Q=torch.where(at, Q, best.Q),
        upper=torch.where(fine, upper, best.upper),
    )
