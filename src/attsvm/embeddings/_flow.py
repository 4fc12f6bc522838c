"""Gradient flow on the ⟨cls⟩ vector p, eq. (7), followed as a curve.

The flow dp/dt = −∇L needs times like e^1000 before its direction settles. The same curve in arc length,
dp/ds = −∇L/‖∇L‖, does not: common factors of the gradient cancel, so only logits relative to the top token enter
(see `attsvm.objective`), and nothing underflows at any ‖p‖. Along the curve some directions relax thousands of times
faster than p grows. Backward Euler steps, solved by Newton's method with the exact Hessian, follow it nevertheless. The
difference between one whole and two half steps estimates the error and sets the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, as_real, check_real
from attsvm.data import LinearHead, TokenData
from attsvm.errors import AttsvmError, describe
from attsvm.objective import Lanes, Logistic, attend, pulls

NEWTON, CLOSE = 12, 1e-11
"""Newton iterations before a step counts as too long, and the relative residual that ends them."""
GROW, SHRINK = 2.0, 0.25
"""Bounds of the change from one step to the next."""


@dataclass(frozen=True, eq=False)
class Flow:
    """The curves of B trials: p (R, B, d) at the accepted steps. A trial that has arrived (B,) stands still."""

    path: Tensor
    arrived: Tensor

    @property
    def p(self) -> Tensor:
        """The end (B, d)."""
        return self.path[-1]


@torch.no_grad()
def gradient_flow(
    data: TokenData, start: object = None, *, norm: float = 1e6, tol: float = 1e-3, max_steps: int = 5000
) -> Flow:
    """Follow the flow of the mean logistic loss from p = `start` (d,) or (B, d) until ‖p‖ reaches `norm`.

    `data` are ⟨cls⟩ data (`TokenData.cls`) with a linear head. `tol` bounds the error of a step relative to
    1 + ‖p‖. A trial whose gradient vanishes, or that needs more than `max_steps`, has not `arrived`.
    """
    if data.K != 1 or data.e != 1:
        raise AttsvmError("data must be of the ⟨cls⟩ model, TokenData.cls, with one query of size 1.")
    if not isinstance(data.head, LinearHead):
        raise AttsvmError(f"data must have a linear head, but this one is {describe(data.head)}: see TokenData.cls.")
    data = data.to(dtype=torch.float64)
    problem = _Problem.of(data)
    p = data.X.new_zeros(data.B, data.d) if start is None else as_float("start", start, data.X)
    if p.shape not in ((data.d,), (data.B, data.d)):
        raise AttsvmError(f"start must have shape (d,) or (B, d) = {(data.B, data.d)}, but got {tuple(p.shape)}.")
    check_real("start", p)
    norm = as_real("norm", norm, least=0)
    if not as_real("tol", tol, least=0) > 0:
        raise AttsvmError("tol must be above 0, but it is 0.")
    p = p.expand(data.B, data.d).clone()
    step = torch.full((data.B,), 1e-3, dtype=torch.float64, device=p.device)
    tangent = -problem.direction(p)[0]
    path, running = [p], torch.ones(data.B, dtype=torch.bool, device=p.device)
    stuck = torch.zeros_like(running)
    for _ in range(as_count("max_steps", max_steps)):
        running = (p.norm(dim=1) < norm) & ~stuck
        if not bool(running.any()):
            break
        which = running.nonzero()[:, 0]
        part, at, length = problem.take(which), p[which], step[which]
        # The guess continues the curve. Far out N itself is no good guess: it turns by 1 when p moves aside by 1.
        ahead = (length / 2)[:, None] * tangent[which]
        middle, first = _backward_euler(part, at, length / 2, at + ahead)
        end, second = _backward_euler(part, middle, length / 2, 2 * middle - at)
        whole, fine = _backward_euler(part, at, length, end)
        error = (end - whole).norm(dim=1) / (tol * (1 + at.norm(dim=1)))
        solved = fine & first & second & error.isfinite()
        good = solved & (error <= 1)
        # Backward Euler is of first order: the error of a step is proportional to the square of its length.
        factor = (0.9 / error.clamp_min(1e-12).sqrt()).clamp(SHRINK, GROW)
        step[which] = length * torch.where(solved, factor, SHRINK)
        stuck[which] = step[which] < 1e-14 * (1 + at.norm(dim=1))
        if bool(good.any()):
            p = p.clone()
            p[which[good]] = end[good]
            tangent[which[good]] = (end - at)[good] / length[good, None]
            path.append(p)
    return Flow(torch.stack(path), p.norm(dim=1) >= norm)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The trials with their data laid out for the exact gradient."""

    data: TokenData
    lanes: Lanes

    @classmethod
    def of(cls, data: TokenData) -> _Problem:
        return cls(data, Lanes.of(data, fixed_head=True))

    def take(self, which: Tensor) -> _Problem:
        return _Problem.of(self.data[which])

    def direction(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """N = ∇L/‖∇L‖ (B, d) and its derivative (B, d, d); N is NaN where the gradient is 0.

        With d_t = x_t − x_m from the top token m, weights s, Δ_t = u_t − u_m and D = Σ s Δ:
        ∇f = Σ s (Δ − D) d,   ∇²f = Σ s (Δ − D) d dᵀ − ∇f d̄ᵀ − d̄ ∇fᵀ,   d̄ = Σ s d,
        and n L has the gradient −Σ σ(−f) ∇f and the Hessian Σ σ(−f) (σ(f) ∇f ∇fᵀ − ∇²f). All of it is computed
        up to the common factor e^M.
        """
        at = attend(self.lanes, {"W": p.T[:, None]})
        is_top, pull, weight = (x[:, 0] for x in (at.is_top, pulls(at, Logistic()).G, at.weight))  # (n, T, B)
        X = self.lanes.X
        d = X - torch.where(is_top[:, :, None], X, 0.0).sum(1, keepdim=True)
        g = torch.einsum("ntB,ntdB->ndB", pull, d)
        plain = torch.einsum("ntB,ntdB->ndB", weight * (at.delta_u - at.D)[:, 0], d)
        mean = torch.einsum("ntB,ntdB->ndB", weight, d)
        G = -g.sum(0).T
        cross = torch.einsum("niB,njB->Bij", g, mean)
        H = cross + cross.mT - torch.einsum("ntB,ntiB,ntjB->Bij", pull, d, d)
        H = H + torch.einsum("nB,niB,njB->Bij", Logistic().bend(at.f[:, 0, 0]), g, plain)
        size = G.norm(dim=1)
        N = G / size[:, None]
        H = H - N[:, :, None] * (N[:, None] @ H)
        return N, H / size[:, None, None]


def _backward_euler(problem: _Problem, p: Tensor, step: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    """q with q = p − step·N(q), and where Newton's method found it from the guess."""
    eye = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
    q = guess
    scale = step + CLOSE * p.norm(dim=1)
    found = torch.zeros(len(p), dtype=torch.bool, device=p.device)
    for _ in range(NEWTON):
        N, slope = problem.direction(q)
        residual = q - p + step[:, None] * N
        found = residual.norm(dim=1) <= CLOSE**0.5 * scale
        if bool((found | ~residual.isfinite().all(1)).all()):
            break
        move, info = torch.linalg.solve_ex(eye + step[:, None, None] * slope, residual)
        q = torch.where(((info == 0) & ~found)[:, None], q - move, q)
    return q, found
