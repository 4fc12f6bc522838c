"""Solutions that form a face: its point nearest to a given W.

In ℓ1, ℓ∞, nuclear and spectral norms many W may have the least norm t. With multipliers λ and U = A'λ they are the
feasible V with λ'(AV − b) = 0 that lie in the part of the ball of radius t where ⟨U, ·⟩ is largest:

ℓ1        entries with the sign of U where |U| is largest, and zero elsewhere;
ℓ∞        t·sign U where U is not zero, and entries of at most t elsewhere;
nuclear   P M Q' with M ⪰ 0, for the singular vectors P, Q of the largest singular values of U;
spectral  t·P Q' for the singular vectors of U, plus a matrix of spectral norm at most t between the others.

Any λ will do. Which entries, singular values and rows these are is read off λ and W: of two that multiply to zero the
larger one counts, where W is inside the face; where both vanish, as at a vertex, that of λ is zero. The projection on
the intersection is the maximum of a concave dual function with a gradient, found by accelerated steps with restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Lp, Nuclear, Schatten, Spectral
from attsvm.svm._problem import double_rows
from attsvm.svm._result import MaxMargin
from attsvm.svm._rows import Rows
from attsvm.svm._solve import solve
from attsvm.tolerances import SHARP

_STEPS = 3000
_ACCURACY = 1e-9
_ZERO = 1e-8
"""What belongs to λ is zero below this, in units of its largest or of its sum."""

Projection = Callable[[Tensor], Tensor]


def face_point(solution: MaxMargin, near: Any | None = None, *, tol: float = 1e-5) -> Tensor:
    """The solution nearest to `near` (B, d, e) or (d, e) in the Frobenius norm, (B, d, e); by default the one of least
    Frobenius norm. NaN where there is none, or where none with a margin efficiency above 1 − tol is found.

    A face is known only as well as λ and W are, to the root of the gap. So instances with a larger gap are solved
    again, sharply."""
    C = torch.zeros_like(solution.W) if near is None else solution.for_each("near", near)
    if bool(solution.unique.all()):
        return solution.W.clone()
    if bool((solution.gap[solution.norm.isfinite()] > 10 * SHARP).any()):
        solution = solve(solution.problem, solution.geometry, tol=SHARP)
    geometry, problem = solution.geometry, solution.problem.formed()
    if problem.rows == 0:
        return torch.zeros_like(solution.W)
    lam = solution.multipliers.flatten(1).nan_to_num(0.0)
    rows = double_rows(problem)
    U = rows.adjoint(lam)
    U = U / geometry.dual_norm(U).clamp_min(1e-300)[:, None, None]
    t = torch.where(solution.upper > 0, solution.upper, 1.0)[:, None, None]  # where nothing is asked, W = 0
    W = (solution.W / t).nan_to_num(0.0)
    if geometry == Lp(1):
        part = _entries(U, W)
    elif geometry == Lp(math.inf):
        part = _box(U, W)
    elif isinstance(geometry, Nuclear) or geometry == Schatten(1):
        part = _semidefinite(U, W)
    elif geometry == Spectral():
        part = _between(U, W)
    else:
        raise AttsvmError(f"faces are known for l1, linf, nuclear and spectral norms, but not for {geometry.name}.")
    # In units of t, with rows of norm 1: the radius of the ball is 1.
    size = (torch.linalg.vector_norm(rows.A, dim=-1) * torch.linalg.vector_norm(rows.Z, dim=-1)[..., None]).flatten(1)
    there = problem.present.flatten(1) & (size > 0)
    scale = torch.where(there, 1 / size.clamp_min(1e-300), 0.0)
    b = problem.b.double().flatten(1) * scale / t[..., 0]
    share = lam * problem.b.double().flatten(1)
    share = share / share.sum(1, keepdim=True)
    binding = solution.support.flatten(1) & (share > _ZERO)
    tied = (problem.equality.flatten(1) | binding) & there
    V = _project(rows, scale, b, tied, there, C / t, part) * t
    V = torch.where((solution.upper > 0)[:, None, None], V, 0.0)
    off = ~(solution.efficiency(V) >= 1 - tol)  # NaN, too
    equality = (problem.equality & problem.present).flatten(1)
    left = ((rows.apply(V) - problem.b.double().flatten(1)).abs() * scale).where(equality, 0.0).amax(1)
    off |= left > tol * solution.upper
    return V.masked_fill((off | ~solution.norm.isfinite())[:, None, None], math.nan)


def face_distance(W: Any, solution: MaxMargin, *, tol: float = 1e-5) -> Tensor:
    """Distance of W (B, d, e) or (d, e), scaled to the least norm, from the nearest solution, relative to that
    solution's Frobenius norm, (B,)."""
    W = solution.geometry.unit(solution.for_each("W", W)) * solution.upper[:, None, None]
    V = face_point(solution, W, tol=tol)
    size = torch.linalg.vector_norm(V, dim=(1, 2))
    return torch.linalg.vector_norm(W - V, dim=(1, 2)) / torch.where(size == 0, 1.0, size)  # W, too, is then 0


def _entries(U: Tensor, W: Tensor) -> Projection:
    free, sign = W.abs().clamp_min(_ZERO) > 1 - U.abs(), U.sign()
    return lambda V: torch.where(free, sign * (sign * V).clamp_min(0), 0.0)


def _box(U: Tensor, W: Tensor) -> Projection:
    fixed, sign = U.abs() > (1 - W.abs()).clamp_min(_ZERO), U.sign()
    return lambda V: torch.where(fixed, sign, V.clamp(-1, 1))


def _semidefinite(U: Tensor, W: Tensor) -> Projection:
    P, size, Qh = torch.linalg.svd(U, full_matrices=False)
    of_W = (P * (W @ Qh.mT)).sum(1)
    free = (of_W.clamp_min(_ZERO) > 1 - size).to(U.dtype)
    P, Q = P * free[:, None], Qh.mT * free[:, None]

    def project(V: Tensor) -> Tensor:
        M = P.mT @ V @ Q
        values, vectors = torch.linalg.eigh((M + M.mT) / 2)
        return P @ ((vectors * values.clamp_min(0)[:, None]) @ vectors.mT) @ Q.mT

    return project


def _between(U: Tensor, W: Tensor) -> Projection:
    P, size, Qh = torch.linalg.svd(U, full_matrices=False)
    of_W = (P * (W @ Qh.mT)).sum(1)
    fixed = (size > (1 - of_W).clamp_min(_ZERO)).to(U.dtype)
    P, Q = P * fixed[:, None], Qh.mT * fixed[:, None]
    fixed_part = P @ Q.mT
    beside_P = torch.eye(U.shape[1], dtype=U.dtype, device=U.device) - P @ P.mT
    beside_Q = torch.eye(U.shape[2], dtype=U.dtype, device=U.device) - Q @ Q.mT

    def project(V: Tensor) -> Tensor:
        left, values, right = torch.linalg.svd(beside_P @ V @ beside_Q, full_matrices=False)
        return fixed_part + (left * values.clamp_max(1)[:, None]) @ right

    return project


def _project(rows: Rows, scale: Tensor, b: Tensor, tied: Tensor, there: Tensor, C: Tensor, part: Projection) -> Tensor:
    """The point nearest to C of `part` with rows = b where tied and ≥ b elsewhere."""

    def values(V: Tensor) -> Tensor:
        return rows.apply(V) * scale

    # The largest eigenvalue of FF' bounds the curvature of the dual function. Power iteration finds it from a vector
    # without symmetries: equal numbers may be another eigenvector.
    v = torch.where(there, torch.sin(torch.arange(1, b.shape[1] + 1, device=b.device)).to(b), 0.0)
    top = torch.ones_like(b[:, 0])
    for _ in range(30):
        v = values(rows.adjoint(v * scale))
        top = torch.linalg.vector_norm(v, dim=1).clamp_min(1e-300)
        v = v / top[:, None]
    step = 1 / (1.1 * top)[:, None]
    mu = torch.zeros_like(b)
    ahead, momentum = mu, torch.ones_like(b[:, :1])
    V, before = part(C), torch.full_like(top, math.inf)
    for count in range(_STEPS):
        V = part(C + rows.adjoint(ahead * scale))
        short = torch.where(there, b - values(V), 0.0)
        new = ahead + step * short
        new = torch.where(tied, new, new.clamp_min(0))
        if count % 100 == 0:
            left = torch.where(tied | (ahead > 0), short.abs(), short.clamp_min(0)).amax(1) / b.abs().amax(1)
            if bool(((left <= _ACCURACY) | (left > 0.9 * before)).all()):
                break
            before = torch.minimum(left, before)
        # Restart where the step turns against the gradient.
        restart = (short * (new - mu)).sum(1, keepdim=True) < 0
        following = torch.where(restart, 1.0, (1 + (1 + 4 * momentum * momentum).sqrt()) / 2)
        factor = torch.where(restart, 0.0, (momentum - 1) / following)
        ahead = new + factor * (new - mu)
        ahead = torch.where(tied, ahead, ahead.clamp_min(0))
        mu, momentum = new, following
    return V
