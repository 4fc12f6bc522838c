"""Independent answers: dense rows, an LP for feasibility, cvxpy with Clarabel for the optimal norm."""

from __future__ import annotations

import numpy as np
import scipy.optimize
import torch

from attsvm import Geometry, Lp, MarginProblem, MaxMargin


def dense(problem: MarginProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows as vectors (B, N, d·e), b, equality, present as (B, N)."""
    F = torch.einsum("bqrd,bqe->bqrde", problem.A.double(), problem.Z.double()).flatten(3).flatten(1, 2)
    flat = [x.flatten(1).cpu().numpy() for x in (problem.b.double(), problem.equality, problem.present)]
    return F.cpu().numpy(), flat[0], flat[1], flat[2]


def feasible(problem: MarginProblem) -> np.ndarray:
    """Whether each instance has a solution at all, by linear programming."""
    return np.array([_feasible(*instance) for instance in zip(*dense(problem))])


_ANSWERS: dict[tuple[bytes, ...], bool] = {}
"""Of instances that were asked about: no norm changes them."""


def _feasible(F: np.ndarray, b: np.ndarray, equality: np.ndarray, present: np.ndarray) -> bool:
    key = (F.tobytes(), b.tobytes(), equality.tobytes(), present.tobytes())
    if key not in _ANSWERS:
        upper, equal = present & ~equality, present & equality
        result = scipy.optimize.linprog(
            np.zeros(F.shape[1]),
            A_ub=-F[upper] if upper.any() else None,
            b_ub=-b[upper] if upper.any() else None,
            A_eq=F[equal] if equal.any() else None,
            b_eq=b[equal] if equal.any() else None,
            bounds=(None, None),
            method="highs",
        )
        assert result.status in (0, 2), result.message
        _ANSWERS[key] = result.status == 0
    return _ANSWERS[key]


def cvxpy_norm(problem: MarginProblem, geometry: Geometry, k: int) -> float:
    """Optimal norm of instance k."""
    import cvxpy as cp

    F, b, equality, present = (x[k] for x in dense(problem))
    d, e = problem.shape
    w = cp.Variable(d * e)
    upper, equal = present & ~equality, present & equality
    constraints = []
    if upper.any():
        constraints.append(F[upper] @ w >= b[upper])
    if equal.any():
        constraints.append(F[equal] @ w == b[equal])
    norm = cp.pnorm(w, geometry.p) if isinstance(geometry, Lp) else cp.normNuc(cp.reshape(w, (d, e), order="C"))
    value = cp.Problem(cp.Minimize(norm), constraints).solve(solver=cp.CLARABEL)
    assert isinstance(value, float)
    return value


def assert_optimal(problem: MarginProblem, solution: MaxMargin, tol: float) -> None:
    """The definition, from W and multipliers alone: primal and dual feasibility, and equal norms."""
    geometry = solution.geometry
    F, b, equality, present = dense(problem)
    ok = solution.solved.cpu().numpy()
    W = solution.W.cpu().flatten(1).numpy()
    lam = solution.multipliers.cpu().flatten(1).numpy()
    value = np.einsum("bnk,bk->bn", F, np.where(ok[:, None], W, 0.0))
    # Violation, relative to what rounding can do to a sum of this size.
    size = np.linalg.norm(F, axis=-1) * np.linalg.norm(np.where(ok[:, None], W, 0.0), axis=-1)[:, None]
    violation = np.where(equality, np.abs(value - b), np.maximum(b - value, 0))
    assert (violation[ok] * present[ok] <= 1e-12 * np.maximum(1, size[ok])).all()

    assert (lam[~equality & present & ok[:, None]] >= 0).all()
    assert (lam[~present] == 0).all()
    d, e = problem.shape
    combined = torch.from_numpy(np.einsum("bn,bnk->bk", lam, F)).reshape(-1, d, e)
    norm = geometry.norm(solution.W.cpu())
    dual = geometry.dual_norm(combined)
    bound = torch.from_numpy((b * lam).sum(1)) / dual
    ok = solution.solved.cpu() & (norm > 0)
    assert (norm[ok] <= solution.upper.cpu()[ok]).all()
    assert torch.allclose(norm[ok], solution.norm.cpu()[ok], rtol=1e-11, atol=0)  # rounded up
    assert (norm[ok] - bound[ok] <= (tol * 1.01 + 1e-14) * bound[ok]).all()
    # W has the norm of A'λ and is aligned with it, which is the stationarity of min ½‖W‖².
    assert torch.allclose(dual[ok], norm[ok], rtol=1e-9, atol=0)
    aligned = (combined * solution.W.cpu()).sum((1, 2))
    assert ((aligned / (norm * dual))[ok] >= 1 - 1.01 * tol - 1e-14).all()


def assert_farkas(problem: MarginProblem, solution: MaxMargin) -> None:
    """Infeasible instances carry λ with b'λ = 1, λ ≥ 0 on inequalities, and A'λ = 0."""
    F, b, equality, present = dense(problem)
    bad = solution.infeasible.cpu().numpy()
    lam = solution.multipliers.cpu().flatten(1).numpy()[bad]
    assert np.allclose((lam * b[bad]).sum(1), 1, rtol=1e-9)
    assert (lam[(~equality & present)[bad]] >= 0).all()
    combined = np.abs(np.einsum("bn,bnk->bk", lam, F[bad])).max(1, initial=0)
    terms = (np.abs(lam) * np.linalg.norm(F[bad], axis=-1)).sum(1)
    assert (combined <= 1e-7 * terms).all()
    assert solution.W[solution.infeasible].isnan().all()
    assert (solution.margin[solution.infeasible] == 0).all()
