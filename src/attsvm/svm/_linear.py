"""A batched interior-point method for ℓ1 and ℓ∞: linear programs, solved on the side of the rows.

In both the pairs of slacks and multipliers are kept strictly positive, and b'λ = 1:

ℓ∞   maximise ν with AW = νb + s,  u = 1 − W ≥ 0, v = 1 + W ≥ 0;   multipliers P, M with A'λ = P − M;
ℓ1   minimise t with u = t − A'λ ≥ 0, v = t + A'λ ≥ 0;   multipliers P, M with W = P − M, Σ(P + M) = 1, AW = νb + s.

The central path is Pu = Mv = μ and λs = μ (s = 0 on equalities). Eliminating all but λ, ν and (for ℓ1) t leaves the
matrix A Θ A' + diag(s/λ), Θ = u v/(Pv + Mu) for ℓ∞ and P/u + M/v for ℓ1, and a border of one or two columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attsvm.svm._rows import Batch, Iterates, System, cholesky_solve, factored
from attsvm.svm._vertex import at_vertex, named
from attsvm.svm._wide import inverse_of, is_wide, wide_solver

PATIENCE = 15

_NEAR = 1e-7
"""Gap from which the solutions of the Newton system are refined."""

_GUESS = 1e-2
"""Gap from which the vertex next to the iterate is tried."""


@dataclass
class _State(Batch):
    lam: Tensor
    s: Tensor
    nu: Tensor
    t: Tensor
    V: Tensor  # W for ℓ∞, A'λ for ℓ1
    u: Tensor
    v: Tensor
    P: Tensor
    M: Tensor


def solve_linear(system: System, largest: bool, tol: float, max_iterations: int, cancelled: float) -> Iterates:
    """As `solve_lp`, for ℓ∞ (`largest`) or ℓ1."""
    rows, b = system.rows, system.b
    out = Iterates.first(rows, system.equal_multipliers())
    index = torch.arange(rows.B, device=b.device)
    best = b.new_full((rows.B,), torch.inf)
    idle, lowest = torch.zeros_like(index), best.clone()
    wide = is_wide(system)
    x = _start(system, largest)
    for iteration in range(max_iterations + 1):
        W, U = (x.V, None) if largest else (x.P - x.M, x.V)
        gap = _gap(system, largest, W, x.lam, cancelled, U)
        improved = gap <= best[index]
        at = index[improved]
        out.W[at], out.lam[at], best[at] = W[improved], x.lam[improved], gap[improved]
        out.iterations[index] = iteration
        mu = (x.lam * x.s).sum(1) + (x.P * x.u + x.M * x.v).sum((1, 2))
        idle = torch.where(mu < 0.9 * lowest, 0, idle + 1)
        lowest = torch.minimum(lowest, mu)
        active = (gap > tol) & (idle < PATIENCE) & mu.isfinite()
        if bool((gap < _GUESS).any()):  # the vertex next to the iterate may be the solution
            tight, signs, likely = _guess(system, x, largest)
            some = (active & (gap < _GUESS) & likely).nonzero()[:, 0]
            if len(some):
                part = system.take(some)
                W, lam = at_vertex(part, tight[some], signs[some], largest)
                lam = torch.where(part.inequality, lam.clamp_min(0), lam)
                of_vertex = _gap(part, largest, W, lam, cancelled)
                solved = of_vertex <= tol
                at = index[some[solved]]
                out.W[at], out.lam[at], best[at] = W[solved], lam[solved], of_vertex[solved]
                active[some[solved]] = False
        if iteration == max_iterations or not bool(active.any()):
            break
        if not bool(active.all()):
            keep = active.nonzero()[:, 0]
            index, system, x = index[keep], system.take(keep), x.take(keep)
            idle, lowest = idle[keep], lowest[keep]
        # Far from the solution the matrix is well conditioned.
        near = bool((best[index] < _NEAR).any())
        x = _newton_step(system, x, largest, wide, 1 if near else 0)
    return out


def _gap(system: System, largest: bool, W: Tensor, lam: Tensor, cancelled: float, U: Tensor | None = None) -> Tensor:
    """The relative gap between ‖W‖ over the margin of W and b'λ/‖U‖, U = A'λ; 0 where that has cancelled."""
    if U is None:
        U = system.rows.adjoint(lam)
    W_size, U_size = W.abs().flatten(1), U.abs().flatten(1)
    W_norm, U_norm = (W_size.amax(1), U_size.sum(1)) if largest else (W_size.sum(1), U_size.amax(1))
    AW = system.rows.apply(W)
    gap, _ = system.gap(W_norm, U_norm, AW, system.margin(AW), lam, cancelled)
    return torch.where(lam.isfinite().all(1) & W_norm.isfinite(), gap, torch.nan)


def _guess(system: System, x: _State, largest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The vertex next to x, see `named`: of a slack and its multiplier one is larger."""
    level = x.s.mean(1, keepdim=True) / x.lam.abs().mean(1, keepdim=True)
    unit = 1.0 if largest else (x.t * x.P[0].numel())[:, None, None]
    up, down = unit * x.P / x.u, unit * x.M / x.v
    return named(system, level * x.lam / x.s, torch.maximum(up, down), (up - down).sign(), largest)


def _start(system: System, largest: bool) -> _State:
    """Equal multipliers, W = 0, and the rest in balance."""
    rows, ineq = system.rows, system.inequality
    lam, D = system.equal_multipliers(), rows.d * rows.e
    U = rows.adjoint(lam)
    zero, one = torch.zeros_like(U), torch.ones_like(U)
    if largest:
        size = (0.5 * U.abs().mean((1, 2)) + 1e-2 * lam.abs().sum(1) / D)[:, None, None]
        P, M = U.clamp_min(0) + size, (-U).clamp_min(0) + size
        nu = -size[:, 0, 0] * ineq.sum(1)
        return _State(lam, system.first_slacks(-nu), nu, torch.ones_like(nu), zero, one, one, P, M)
    t = 1.2 * U.abs().amax((1, 2)) + 1e-2 * lam.abs().sum(1)
    half = one / (2 * D)
    nu = -0.15 * t * ineq.sum(1) / D
    s = system.first_slacks(-nu)
    return _State(lam, s, nu, t, U, t[:, None, None] - U, t[:, None, None] + U, half, half)


def _newton_step(system: System, x: _State, largest: bool, wide: bool, refinements: int) -> _State:
    rows, b, ineq = system.rows, system.b, system.inequality
    count = ineq.sum(1) + 2 * rows.d * rows.e
    total = lambda V: V.sum((1, 2))  # noqa: E731
    mu = ((x.lam * x.s).sum(1) + total(x.P * x.u + x.M * x.v)) / count
    lam_pos, s_pos = torch.where(ineq, x.lam, 1.0), torch.where(ineq, x.s, 1.0)
    ratio = x.s / lam_pos
    Pu, Mv = x.P / x.u, x.M / x.v
    theta = 1 / (Pu + Mv) if largest else Pu + Mv
    lean = Mv - Pu
    ridge = ratio + ~(ineq | system.equality)

    if wide:
        base = wide_solver(system, ratio, inverse_of(theta, torch.zeros_like(theta), 0.0))
    else:
        base = partial(cholesky_solve, factored(rows.gram(theta), ridge, 1e-15, (1e2, 1e2, 1e2)))

    def solve(y: Tensor) -> Tensor:
        z = base(y)
        for _ in range(refinements):
            back = [rows.apply(theta * rows.adjoint(c)) + ridge * c for c in z.unbind(-1)]
            z = z + base(y - torch.stack(back, -1))
        return z

    W = x.V if largest else x.P - x.M
    residual = rows.apply(W) - x.nu[:, None] * b - x.s * ineq
    short = 1 - (b * x.lam).sum(1)
    U = x.V if not largest else rows.adjoint(x.lam)

    def right_side(r: Tensor, gP: Tensor, gM: Tensor) -> Tensor:
        """Of the system for dλ with the targets ds + (s/λ)dλ = r, dP + (P/u)du = gP, dM + (M/v)dv = gM."""
        if largest:  # A'(λ + dλ) = (P + dP) − (M + dM)
            return r - residual + rows.apply(theta * (gP - gM + x.P - x.M - U))
        return r - residual - rows.apply(gP - gM)

    # The border: b for ν, and A·lean for t of ℓ1.
    affine_targets = (-x.s, -x.P, -x.M)
    Ah = torch.zeros_like(b) if largest else rows.apply(lean)
    if largest:
        to_h = Ah
        to_b, affine_z = solve(torch.stack((b, right_side(*affine_targets)), -1)).unbind(-1)
    else:
        to_b, to_h = solve(torch.stack((b, Ah), -1)).unbind(-1)
        affine_z = x.nu[:, None] * to_b  # the right-hand side is νb
    hh = torch.ones_like(mu) if largest else total(theta) - (Ah * to_h).sum(1)
    hb, bb = (Ah * to_b).sum(1), (b * to_b).sum(1)

    def direction(z: Tensor, r: Tensor, gP: Tensor, gM: Tensor) -> tuple[Tensor, ...]:
        """Steps for these targets, from the solution z of the system."""
        of_t = torch.zeros_like(mu) if largest else total(gP + gM) - (1 - total(x.P + x.M))
        # b'dλ = short and (for ℓ1) lean·A'dλ + Σθ dt = of_t, with dλ = z − to_h dt + to_b dν.
        r1, r2 = of_t - (Ah * z).sum(1), short - (b * z).sum(1)
        det = hh * bb + hb * hb
        dt, dnu = (r1 * bb - r2 * hb) / det, (hh * r2 + hb * r1) / det
        if largest:
            dt = torch.zeros_like(dt)
        dlam = z - to_h * dt[:, None] + to_b * dnu[:, None]
        dU = rows.adjoint(dlam)
        if largest:
            dV = theta * (dU - (gP - gM + x.P - x.M - U))
            du, dv = -dV, dV
        else:
            dV = dU
            du, dv = dt[:, None, None] - dU, dt[:, None, None] + dU
        return dlam, (r - ratio * dlam) * ineq, dnu, dt, dV, du, dv, gP - Pu * du, gM - Mv * dv

    def steps(d: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The longest steps of (λ and what it makes) and of (W and what it makes)."""
        dlam, ds, _, _, _, du, dv, dP, dM = d
        of_lam, of_s = (-dlam / lam_pos * ineq).amax(1), (-ds / s_pos * ineq).amax(1)
        pair = torch.maximum(-du / x.u, -dv / x.v).amax((1, 2))
        other = torch.maximum(-dP / x.P, -dM / x.M).amax((1, 2))
        dual, primal = (other, pair) if largest else (pair, other)
        return 1 / torch.maximum(of_lam, dual).clamp_min(1.0), 1 / torch.maximum(of_s, primal).clamp_min(1.0)

    def moved(d: tuple[Tensor, ...], a: Tensor, c: Tensor) -> _State:
        """λ's side by a, W's side by c."""
        dlam, ds, dnu, dt, dV, du, dv, dP, dM = d
        pair, other = (c, a) if largest else (a, c)
        pair, other = pair[:, None, None], other[:, None, None]
        return _State(
            x.lam + a[:, None] * dlam,
            x.s + c[:, None] * ds,
            x.nu + c * dnu,
            x.t + a * dt,
            x.V + pair * dV,
            x.u + pair * du,
            x.v + pair * dv,
            x.P + other * dP,
            x.M + other * dM,
        )

    affine = direction(affine_z, *affine_targets)
    a, c = steps(affine)
    new = moved(affine, a, c)
    left = ((new.lam * new.s).sum(1) + total(new.P * new.u + new.M * new.v)) / count
    target = mu * (left / mu).clamp(1e-6, 1.0) ** 2.5
    dlam, ds, _, _, _, du, dv, dP, dM = affine
    r = ((target[:, None] - dlam * ds) / lam_pos) * ineq - x.s
    goal = target[:, None, None]
    targets = (r, (goal - dP * du) / x.u - x.P, (goal - dM * dv) / x.v - x.M)
    final = direction(solve(right_side(*targets)[..., None])[..., 0], *targets)
    a, c = steps(final)
    return moved(final, 0.999 * a, 0.999 * c)
