"""Gradient flow on the ⟨cls⟩ vector p, eq. (7), followed as a curve.

The flow dp/dt = −∇L needs times like e^1000 before its direction settles. The same curve in arc length,
dp/ds = −∇L/‖∇L‖, does not: common factors of the gradient cancel, so only logits relative to the top token enter
(as in `attsvm.dynamics`), and nothing underflows at any ‖p‖. Along the curve some directions relax thousands of
times faster than p grows; backward Euler steps, solved by Newton's method with the exact Hessian, follow it all the
same. Two half steps against a whole one tell the error and set the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, describe
from attsvm.data import LinearHead, TokenData
from attsvm.errors import AttsvmError

NEWTON, CLOSE = 12, 1e-11
"""Newton iterations before a step counts as too long, and the relative residual that ends them."""
GROW, SHRINK = 2.0, 0.25
"""Bounds of the change from one step to the next."""


@dataclass(frozen=True, eq=False)
class Flow:
    """The curves of B trials: p (R, B, d) at the accepted steps, where a trial that has arrived (B,) stands still."""

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
    problem = _Problem.of(data.to(dtype=torch.float64))
    p = data.X.new_zeros(data.B, data.d, dtype=torch.float64) if start is None else as_float("start", start, problem.X)
    if p.shape not in ((data.d,), (data.B, data.d)):
        raise AttsvmError(f"start must have shape (d,) or (B, d) = {(data.B, data.d)}, but got {tuple(p.shape)}.")
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
        # The curve goes on as it came: far out N itself is no such guess, it turns by 1 where p moves by 1 aside.
        ahead = (length / 2)[:, None] * tangent[which]
        middle, first = _backward_euler(part, at, length / 2, at + ahead)
        end, second = _backward_euler(part, middle, length / 2, 2 * middle - at)
        whole, fine = _backward_euler(part, at, length, end)
        error = (end - whole).norm(dim=1) / (tol * (1 + at.norm(dim=1)))
        solved = fine & first & second & error.isfinite()
        good = solved & (error <= 1)
        # Backward Euler is of first order: the error of a step goes with the square of its length.
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
    """Tokens X (B, n, T, d) and their scores u = y·vᵀx (B, n, T); `hidden` marks tokens that do not count."""

    X: Tensor
    u: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, data: TokenData) -> _Problem:
        hidden = ~data.mask[:, :, 0]
        return cls(data.X, data.scores()[:, :, 0].masked_fill(hidden, 0.0), hidden)

    def take(self, which: Tensor) -> _Problem:
        return _Problem(self.X[which], self.u[which], self.hidden[which])

    def direction(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """N = ∇L/‖∇L‖ (B, d) and its derivative (B, d, d); N is NaN where the gradient is 0.

        With d_t = x_t − x_m from the top token m, weights s, Δ_t = u_t − u_m and D = Σ s Δ:
        ∇f = Σ s (Δ − D) d,   ∇²f = Σ s (Δ − D) d dᵀ − ∇f d̄ᵀ − d̄ ∇fᵀ,   d̄ = Σ s d,
        and n L has the gradient −Σ σ(−f) ∇f and the Hessian Σ σ(−f) (σ(f) ∇f ∇fᵀ − ∇²f). All of it is computed
        up to the common factor e^M.
        """
        a = torch.einsum("bntd,bd->bnt", self.X, p).masked_fill(self.hidden, -torch.inf)
        top = a.argmax(-1, keepdim=True)
        delta = (a - a.gather(-1, top)).scatter(-1, top, -torch.inf)
        weight = torch.exp(delta)
        total = 1 + weight.sum(-1, keepdim=True)
        weight = weight / total
        u_top = self.u.gather(-1, top)
        Delta = self.u - u_top
        D = (weight * Delta).sum(-1, keepdim=True)
        f = u_top + D
        d = self.X - self.X.gather(2, top[..., None].expand(-1, -1, -1, self.X.shape[-1]))
        exponent = delta - f.clamp_min(0)
        M = exponent.amax((1, 2), keepdim=True)
        # σ(−f) s (Δ − D) e^(−M), with σ(−f) = e^(−max(f, 0))/(1 + e^(−|f|))
        pull = torch.exp(exponent - M) * (Delta - D) / (total * (1 + torch.exp(-f.abs())))
        g = torch.einsum("bnt,bntd->bnd", pull, d)
        plain = torch.einsum("bnt,bntd->bnd", weight * (Delta - D), d)
        mean = torch.einsum("bnt,bntd->bnd", weight, d)
        G = -g.sum(1)
        cross = torch.einsum("bni,bnj->bij", g, mean)
        H = cross + cross.mT - torch.einsum("bnt,bnti,bntj->bij", pull, d, d)
        H = H + torch.einsum("bn,bni,bnj->bij", torch.sigmoid(f[..., 0]), g, plain)
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
