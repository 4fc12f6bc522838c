"""A batched interior-point method for any norm whose square is smooth on one side.

The same problem and conditions as for ℓp, see `_lp`: minimise ½‖A'λ‖_*² over b'λ = 1, λ ≥ 0 on inequalities, with

    W = ∇½‖A'λ‖_*²,   AW − t·b = s ≥ 0,   b'λ = 1,   λ_c s_c = 0.

The Hessian C of ½‖·‖_*² is taken from the geometry, as a matrix. Where the dual norm bends without bound (Schatten-p, p
> 2) the norm itself is smooth: then W is a separate variable, tied to λ by A'λ = ∇½‖W‖², and C is the inverse of the
Hessian of ½‖W‖², which is kept as far from zero as the complementarity is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attsvm.geometry import Geometry
from attsvm.svm._corrector import mean_complementarity, predictor_corrector
from attsvm.svm._rows import Batch, Iterates, System, cholesky_solve, factored

PATIENCE = 40
HALVINGS = 8
_TINY = 1e-300


@dataclass
class _State(Batch):
    lam: Tensor
    s: Tensor
    t: Tensor
    U: Tensor
    W: Tensor
    AW: Tensor


def solve_smooth(
    system: System, geometry: Geometry, tol: float, max_iterations: int, cancelled: float, free: bool
) -> Iterates:
    """As `solve_lp`; `free` takes W as a variable and the Hessian of the norm, not of its dual."""
    rows, b = system.rows, system.b
    out = Iterates.first(rows, torch.zeros_like(b))
    index = torch.arange(rows.B, device=b.device)
    best = b.new_full((rows.B,), torch.inf)
    idle, reference, highest = torch.zeros_like(index), best.clone(), torch.zeros_like(best)
    x = _start(system, geometry)
    for iteration in range(max_iterations + 1):
        margin = torch.where(system.inequality.any(1), system.least_margin(x.AW), x.t)
        gap, lower = system.gap(geometry.norm(x.W), geometry.dual_norm(x.U), x.AW, margin, x.lam, cancelled)
        improved = (gap <= best[index]) & ~lower.isnan()
        at = index[improved]
        out.W[at], out.lam[at], best[at] = x.W[improved], x.lam[improved], gap[improved]
        out.iterations[index] = iteration
        idle = torch.where((gap < 0.9 * reference) | (lower > 1.01 * highest), 0, idle + 1)
        reference, highest = torch.minimum(reference, gap), torch.maximum(highest, lower)
        active = (gap > tol) & ~lower.isnan() & (idle < PATIENCE)
        if iteration == max_iterations or not bool(active.any()):
            break
        if not bool(active.all()):
            keep = active.nonzero()[:, 0]
            index, system, x = index[keep], system.take(keep), x.take(keep)
            idle, reference, highest = idle[keep], reference[keep], highest[keep]
        x = _newton_step(system, x, geometry, free, (idle > 0) & (idle % 4 == 0))
    return out


def _image(geometry: Geometry, U: Tensor) -> Tensor:
    """∇½‖U‖_*²."""
    return geometry.dual_norm(U)[:, None, None] * geometry.dual_unit(U)


def _start(system: System, geometry: Geometry) -> _State:
    rows, b, ineq = system.rows, system.b, system.inequality
    lam = system.equal_multipliers()
    U = rows.adjoint(lam)
    W = _image(geometry, U)
    AW = rows.apply(W)
    t = (lam * AW).sum(1)
    residual = (AW - t[:, None] * b) * ineq
    spread, mean = torch.stack((residual.abs(), t[:, None] * b)).sum(2) / ineq.sum(1).clamp_min(1)
    s = ineq * (residual.clamp_min(0) + torch.maximum(spread, 0.1 * mean)[:, None])
    return _State(lam, s, t, U, W, AW)


def _newton_step(system: System, x: _State, geometry: Geometry, free: bool, stalled: Tensor) -> _State:
    rows, b, ineq = system.rows, system.b, system.inequality
    B, D = rows.B, rows.d * rows.e
    count, mu = ineq.sum(1), mean_complementarity(system, x.lam, x.s)
    ratio = x.s / torch.where(ineq, x.lam, 1.0)
    if free:
        link = x.U - geometry.gradient(x.W)
        P = geometry.hessian(x.W)
        size = geometry.norm(x.W).square().clamp_min(_TINY)
        # Without inequalities there is no complementarity: what is off the link goes to zero instead.
        off = geometry.dual_norm(link) / geometry.dual_norm(x.U).clamp_min(_TINY)
        floor = torch.where(count > 0, 0.3 * mu / size, 0.03 * off).clamp(1e-14, 1e-2)
        L = factored(P, floor[:, None], 1e-18, (1e4, 1e2))
        C = cholesky_solve(L, torch.eye(D, dtype=P.dtype, device=P.device).expand_as(P))
    else:
        link = torch.zeros_like(x.U)
        C = geometry.dual_hessian(x.U)

    F = rows.dense()
    H = F @ C @ F.mT
    L = factored(H, ratio + ~(ineq | system.equality), 1e-14, (1e4,))

    def curved(V: Tensor) -> Tensor:
        return (C @ V.reshape(B, D, 1)).reshape(V.shape)

    shift = x.AW - x.t[:, None] * b - x.s * ineq + rows.apply(curved(link))
    solve = partial(cholesky_solve, L)
    dlam, ds, dt, step = predictor_corrector(system, x.lam, x.s, shift, solve, stalled)
    dU = rows.adjoint(dlam)
    dW = curved(dU + link)

    def residual(new: _State) -> Tensor:
        """How far off Newton's model is: of the link where W is free, of the rows where it is not."""
        if free:
            return geometry.dual_norm(new.U - geometry.gradient(new.W))
        return (new.AW - new.t[:, None] * b - new.s).abs().amax(1)

    before = residual(x)
    if free:  # without inequalities the rows have to be met, and W leaves the link on the way as far as they are not
        missing = (x.AW - x.t[:, None] * b).abs().amax(1) / (x.t[:, None] * b).abs().amax(1).clamp_min(_TINY)
        missing = torch.where(count > 0, 0.0, missing.clamp_max(1.0))
        before = torch.maximum(before, 0.5 * missing * geometry.dual_norm(x.U))
    new = x
    for halving in range(HALVINGS + 1):
        a = step[:, None]
        lam, s, t = x.lam + a * dlam, x.s + a * ds * ineq, x.t + step * dt
        U = x.U + a[..., None] * dU if free else rows.adjoint(lam)
        W = x.W + a[..., None] * dW if free else _image(geometry, U)
        new = _State(lam, s, t, U, W, rows.apply(W))
        mean = (lam * s).sum(1) / lam.abs().sum(1)
        too_long = ~(residual(new) <= torch.maximum(before, (30 if free else 10) * mean))
        if halving == HALVINGS or not bool(too_long.any()):
            break
        step = torch.where(too_long, step / 2, step)
    return new
