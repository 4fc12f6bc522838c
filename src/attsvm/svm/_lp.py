"""A batched primal-dual interior-point method for every entrywise ℓp norm, 1 < p < ∞.

The problem min ‖W‖_p subject to AW ≥ b (inequalities) and AW = b (equalities) is solved in the form

    minimise ½‖A'λ‖_q²  over  b'λ = 1,  λ_c ≥ 0 on inequality rows,            1/p + 1/q = 1,

which always has a solution: its value is ½/‖W*‖_p², and 0 when no W is feasible. The optimality conditions are

    W = ∇½‖A'λ‖_q²  (the link),   AW − t·b = s ≥ 0,   b'λ = 1,   λ_c s_c = 0,

and W/t solves the original problem. Being 2-homogeneous, ½‖·‖² keeps infeasible problems and p near 1 in scale.
Each iteration factors the Newton matrix  H = A ∇²(½‖·‖_q²) A' + diag(s/λ)  once and takes a Mehrotra
predictor-corrector step. Any iterate is certified: b'λ/‖A'λ‖_q bounds the optimal norm from below, ‖W‖_p over the
smallest AW/b from above.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from attsvm.svm._corrector import mean_complementarity, predictor_corrector
from attsvm.svm._rows import Batch, Iterates, Rows, System, cholesky_solve, factored
from attsvm.svm._wide import inverse_of, is_wide, wide_solver

PATIENCE = 40
"""Iterations without progress after which an instance is taken to be at the limits of its arithmetic."""

HALVINGS = 6

_TINY = torch.finfo(torch.float64).tiny


@dataclass
class _State(Batch):
    """The iterate: U = A'λ, W_unit = W/‖W‖_p, and the power that the Hessian needs, |U/‖U‖_q|^(q−2) where W is
    linked to U and |W/‖W‖_p|^(p−2) where it is free."""

    lam: Tensor
    s: Tensor
    t: Tensor
    U: Tensor
    U_norm: Tensor
    W: Tensor
    W_norm: Tensor
    AW: Tensor
    W_unit: Tensor
    power: Tensor


def _unit_power(U: Tensor, q: float) -> tuple[Tensor, Tensor, Tensor]:
    """‖U‖_q, U/‖U‖_q and |U/‖U‖_q|^(q−2) with a single power; a zero U gives zeros."""
    largest = U.abs().amax((1, 2), keepdim=True).clamp_min(_TINY)
    scaled = U / largest
    power = scaled.abs()
    if q < 2:
        power = power.clamp_min(1e-150)  # 0^(q−2) is infinite; its product with 0² must stay 0
    power = power ** (q - 2)
    ratio = (power * scaled * scaled).sum((1, 2), keepdim=True).clamp_min(_TINY) ** (1 / q)
    return (largest * ratio)[:, 0, 0], scaled / ratio, power * ratio ** (2 - q)


def _link(rows: Rows, lam: Tensor, s: Tensor, t: Tensor, p: float) -> _State:
    """The state whose W is the exact image of λ."""
    U = rows.adjoint(lam)
    if p == 2:
        norm = torch.linalg.vector_norm(U, dim=(1, 2))
        return _State(lam, s, t, U, norm, U, norm, rows.apply(U), U, U)
    q = p / (p - 1)
    norm, unit, power = _unit_power(U, q)
    W_unit = power * unit
    W = norm[:, None, None] * W_unit
    return _State(lam, s, t, U, norm, W, norm, rows.apply(W), W_unit, power)


def _free(rows: Rows, lam: Tensor, s: Tensor, t: Tensor, U: Tensor, W: Tensor, p: float) -> _State:
    """The state of an independent W (p > 2, or a careful run), where the link only holds in the limit."""
    norm, unit, power = _unit_power(W, p)
    U_norm = _unit_power(U, p / (p - 1))[0]
    return _State(lam, s, t, U, U_norm, W, norm, rows.apply(W), unit, power)


def solve_lp(
    system: System,
    p: float,
    tol: float,
    max_iterations: int,
    cancelled: float,
    start: tuple[Tensor, Tensor] | None = None,
    careful: bool = False,
) -> Iterates:
    """The best iterates of the method, and after how many iterations it stopped.

    An instance also stops where A'λ has cancelled to that level; `start` are multipliers, b'λ = 1, and a W. The careful
    way never forms the Newton matrix, nor W from λ: their rounding hides small margins."""
    B, b = system.rows.B, system.b
    out = Iterates.first(system.rows, torch.zeros_like(b))
    index = torch.arange(B, device=b.device)
    best = b.new_full((B,), torch.inf)
    idle, reference, highest = torch.zeros_like(index), best.clone(), torch.zeros_like(best)
    wide = is_wide(system)
    gram = system.rows.gram() if p == 2 and not (careful or wide) else None
    lam, W = (system.equal_multipliers(), None) if start is None else start
    state = _start(system, lam, p, careful, W)

    for iteration in range(max_iterations + 1):
        # Certify the iterates, keep the best of each instance, retire the finished ones.
        margin = torch.where(system.inequality.any(1), system.least_margin(state.AW), state.t)
        gap, lower = system.gap(state.W_norm, state.U_norm, state.AW, margin, state.lam, cancelled)
        improved = (gap <= best[index]) & ~lower.isnan()
        at = index[improved]
        out.W[at], out.lam[at], best[at] = state.W[improved], state.lam[improved], gap[improved]
        out.iterations[index] = iteration
        progress = (gap < 0.9 * reference) | (lower > 1.01 * highest)
        idle = torch.where(progress, 0, idle + 1)
        reference, highest = torch.minimum(reference, gap), torch.maximum(highest, lower)
        active = (gap > tol) & ~lower.isnan() & (idle < PATIENCE)
        if iteration == max_iterations or not active.any():
            break
        if not active.all():
            keep = active.nonzero()[:, 0]
            index, system, state = index[keep], system.take(keep), state.take(keep)
            idle, reference, highest = idle[keep], reference[keep], highest[keep]
            gram = None if gram is None else gram[keep]
        # An instance that makes no progress is recentred.
        stalled = (idle > 0) & (idle % 4 == 0)
        state = _newton_step(system, state, gram, p, stalled, careful, wide)
    return out


def _start(system: System, lam: Tensor, p: float, careful: bool, W: Tensor | None) -> _State:
    """W linked to the multipliers, and slacks no smaller than the spread of the rows; a W that separates stays."""
    rows, b, ineq = system.rows, system.b, system.inequality
    state = _link(rows, lam, torch.zeros_like(b), torch.zeros_like(b[:, 0]), p)
    if p > 2 or careful:
        state = _free(rows, lam, state.s, state.t, state.U, state.W, p)
    state.t = (lam * state.AW).sum(1)
    residual = (state.AW - state.t[:, None] * b) * ineq
    spread, mean = torch.stack((residual.abs(), state.t[:, None] * b)).sum(2) / ineq.sum(1).clamp_min(1)
    state.s = ineq * (residual.clamp_min(0) + torch.maximum(spread, 0.1 * mean)[:, None])
    if W is None or not (p > 2 or careful):
        return state
    W = W * (state.U_norm / _unit_power(W, p)[0])[:, None, None]
    own = _free(rows, lam, state.s, state.t, state.U, W, p)
    least = system.least_margin(own.AW)
    own.t = 0.9 * least
    own.s = ineq * (own.AW - own.t[:, None] * b)
    separates = (least > 0) & least.isfinite() & own.W_norm.isfinite()
    for f in fields(state):
        new, old = getattr(own, f.name), getattr(state, f.name)
        setattr(state, f.name, torch.where(separates.reshape(-1, *[1] * (old.ndim - 1)), new, old))
    return state


def _newton_step(
    system: System, x: _State, gram: Tensor | None, p: float, stalled: Tensor, careful: bool, wide: bool
) -> _State:
    rows, b, ineq, q = system.rows, system.b, system.inequality, p / (p - 1)
    count, mu = ineq.sum(1), mean_complementarity(system, x.lam, x.s)
    ratio = x.s / torch.where(ineq, x.lam, 1.0)

    # For p ≥ 2 the curvature 1/|W|^(p−2) is unbounded where W vanishes: it is capped at a level that the
    # complementarity lifts as it goes to zero.
    if p > 2 or careful:
        link = _off_link(x)
        off = _norm(link, q) / x.U_norm.clamp_min(_TINY)
        floor = torch.where(count > 0, 0.3 * mu / x.W_norm.square().clamp_min(_TINY), 0.03 * off)
        floor = floor.clamp(1e-14, 1e-2)[:, None, None]
        curvature = (q - 1) / torch.maximum(x.power, floor)
    else:
        link = None
        curvature = torch.ones_like(x.U) if p == 2 else (q - 1) * x.power

    def hessian(V: Tensor) -> Tensor:
        """∇²(½‖·‖_q²) V at the current point."""
        return curvature * V + (2 - q) * x.W_unit * (x.W_unit * V).sum((1, 2), keepdim=True)

    ridge = ratio + ~(ineq | system.equality)
    if wide:
        base = wide_solver(system, ratio, inverse_of(curvature, x.W_unit, 2 - q))
    elif careful:
        L = _triangle(rows, curvature, x.W_unit, 2 - q, ridge)
        base = partial(cholesky_solve, L)
    else:
        if gram is None:
            H = rows.gram(curvature)
            v = rows.apply(x.W_unit)
            H.baddbmm_(v[:, :, None], v[:, None, :], alpha=2 - q)
        else:
            H = gram.clone()
        base = partial(cholesky_solve, factored(H, ridge, 1e-14, (1e4,)))

    def solve(rhs: Tensor) -> Tensor:
        """H⁻¹ of the columns of rhs."""
        y = base(rhs)
        for _ in range(2 if careful or wide else 0):
            columns = [rows.apply(hessian(rows.adjoint(column))) + ridge * column for column in y.unbind(-1)]
            y = y + base(rhs - torch.stack(columns, -1))
        return y

    primal = x.AW - x.t[:, None] * b - x.s * ineq
    shift = primal if link is None else primal + rows.apply(hessian(link))
    dlam, ds, dt, step = predictor_corrector(system, x.lam, x.s, shift, solve, stalled)

    if link is None:
        dU = dW = None
        before = primal.abs().amax(1)
    else:
        dU = rows.adjoint(dlam)
        dW = hessian(dU + link)
        # Without inequalities there is no complementarity to steer by, and a fall at every step is too much to ask.
        before = torch.where(count > 0, 1.0, 3.0) * _norm(link, q)
    # Off the link by more than this multiple of the mean slack, Newton's model is not to be trusted.
    slack = 10 if p < 2 else 30
    for halving in range(HALVINGS + 1):
        a = step[:, None]
        lam, s, t = x.lam + a * dlam, x.s + a * ds * ineq, x.t + step * dt
        if dU is None or dW is None:
            new = _link(rows, lam, s, t, p)
        else:
            a = step[:, None, None]
            new = _free(rows, lam, s, t, x.U + a * dU, x.W + a * dW, p)
        if (p == 2 and not careful) or halving == HALVINGS:
            return new
        after = (new.AW - t[:, None] * b - s).abs().amax(1) if dU is None else _norm(_off_link(new), q)
        mean = (lam * s).sum(1) / lam.abs().sum(1)
        too_long = ~(after <= torch.maximum(before, slack * mean))
        if not too_long.any():
            return new
        step = torch.where(too_long, step / 2, step)
    raise AssertionError("unreachable")


def _triangle(rows: Rows, curvature: Tensor, unit: Tensor, c: float, ridge: Tensor) -> Tensor:
    """L with LLᵀ = A(diag(curvature) + c·unit unitᵀ)Aᵀ + diag(ridge), by QR of a root of it.

    With v = curvature^(−½)·unit, I + c vvᵀ is the square of I + β vvᵀ.
    """
    root = curvature.expand(rows.B, rows.d, rows.e).flatten(1).sqrt()
    K = rows.dense() * root[:, None]
    if c:
        v = torch.where(root > 0, unit.flatten(1) / root, 0.0)
        size = v.square().sum(1).clamp_min(_TINY)
        beta = ((1 + c * size).clamp_min(0).sqrt() - 1) / size
        K = K + (beta[:, None] * (K @ v[..., None])[..., 0])[..., None] * v[:, None]
    least = 1e-15 * torch.linalg.vector_norm(K, dim=2).amax(1, keepdim=True)  # duplicate equalities
    K = torch.cat((K, torch.diag_embed(torch.maximum(ridge.sqrt(), least))), 2)
    return torch.linalg.qr(K.mT, mode="r")[1].mT


def _off_link(x: _State) -> Tensor:
    """A'λ − ∇½‖W‖_p², zero where W is the image of λ."""
    return x.U - x.W_norm[:, None, None] * x.power * x.W_unit


def _norm(V: Tensor, q: float) -> Tensor:
    return torch.linalg.vector_norm(V, ord=q, dim=(1, 2))
