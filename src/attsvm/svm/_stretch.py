"""Problems of tiny margin, in coordinates in which the margin is not tiny.

If the best margin is γ times the length of the rows, with tiny γ, the rows at the margin are nearly orthogonal to the
solution, and float64 sums lose the margin in rounding. So W is written in another basis, W = Ty: the singular vectors
of the rows weighted by their multipliers, each stretched until its coordinates of the rows, R = AT, have size 1. R is
multiplied out in double-double arithmetic, and T need not be orthogonal to the last bit, so nothing is lost:

    minimise ½‖Ty‖²  subject to  Ry ≥ b

is the same problem in better scales. First ½|y|² is minimised, which finds a W that separates. From there a primal-dual
method follows the given norm: with ∇ and TᵀPT the derivatives of ½‖Ty‖², s = Ry − b and Θ = λ/s,

    (TᵀPT + RᵀΘR) dy = Rᵀ(σμ/s) − ∇,    dλ = σμ/s − λ − ΘR dy.

At such margins the rows at the margin mostly determine W. The norm then affects only λ, and a subgradient suffices
where the norm is not smooth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.geometry import Geometry
from attsvm.svm._exact import values
from attsvm.svm._lp import solve_lp
from attsvm.svm._rows import Iterates, Rows, System, grown

_SMALL = 1e-3
"""Directions in which the rows are this much shorter than in others are multiplied out in double-double arithmetic."""

_FLOOR = 1e-15
"""No direction is stretched by more than the inverse of this."""

_STEPS = 60
_HALVINGS = 8
_TINY = 1e-300


@dataclass
class _Basis:
    """V (B, D, D) orthogonal but for rounding, the length of the weighted rows along its columns (B, D), T = V/length
    and R = AT (B, N, D)."""

    V: Tensor
    length: Tensor
    T: Tensor
    R: Tensor


@dataclass
class _Point:
    """W = Ty; `off` is ∇ − Rᵀλ, `apart` its size in the dual norm as a part of that of A'λ, which is `dual`."""

    y: Tensor
    lam: Tensor
    W: Tensor
    off: Tensor
    apart: Tensor
    dual: Tensor


def solve_stretched(
    system: System, geometry: Geometry, lam: Tensor, tol: float, max_iterations: int, smooth: bool
) -> Iterates:
    """Iterates for instances without equalities, from multipliers of an attempt that failed."""
    one = system.b.new_ones(system.rows.B, 1, 1)

    def shortest(basis: _Basis) -> Iterates:
        stretched = System(Rows(basis.R[:, None], one), system.b, system.inequality, system.equality)
        return solve_lp(stretched, 2.0, 1e-3, max_iterations, 0.0, careful=True)

    rough = shortest(_basis(system, lam))
    basis = _basis(system, rough.lam)  # better multipliers, better basis
    first = shortest(basis)
    first.iterations += rough.iterations
    return _follow(system, geometry, basis, first, tol, min(_STEPS, max_iterations), smooth)


def _basis(system: System, lam: Tensor) -> _Basis:
    rows = system.rows
    F = rows.dense()
    weight = torch.where(system.inequality, lam.clamp_min(0), 0.0)
    weight = (weight / weight.amax(1, keepdim=True).clamp_min(_TINY)).nan_to_num(1.0)
    _, length, Vh = torch.linalg.svd(F * weight.sqrt()[..., None], full_matrices=F.shape[2] > rows.N)
    length = torch.nn.functional.pad(length, (0, Vh.shape[1] - length.shape[1]))
    length = (length / length[:, :1].clamp_min(_TINY)).clamp_min(_FLOOR)
    R = F @ Vh.mT
    for i in reversed(range(Vh.shape[1])):
        if bool((length[:, i] >= _SMALL).all()):
            break
        R[:, :, i] = values(rows, Vh[:, i].unflatten(1, (rows.d, rows.e)), double=True)[0]
    return _Basis(Vh.mT, length, Vh.mT / length[:, None], R / length[:, None])


def _follow(
    system: System, geometry: Geometry, basis: _Basis, first: Iterates, tol: float, steps: int, smooth: bool
) -> Iterates:
    """From y and λ of the plain norm to those of the given one."""
    b, ineq, shape = system.b, system.inequality, (system.rows.d, system.rows.e)
    y = first.W.flatten(1)
    least = system.least_margin(_times(basis.R, y))
    y = 1.1 * y / torch.where(least > 0, least, 1.0)[:, None]
    lam = first.lam / (b * first.lam).sum(1, keepdim=True)
    lam = torch.where(ineq, (0.9 * lam + 0.1 * system.equal_multipliers()).clamp_min(1e-12), 0.0)
    scale = geometry.norm(_times(basis.T, y).unflatten(1, shape)).square()[:, None, None]

    def point(y: Tensor, lam: Tensor) -> _Point:
        W = _times(basis.T, y).unflatten(1, shape)
        G = geometry.gradient(W) / scale
        off = _times(basis.T.mT, G.flatten(1)) - _times(basis.R.mT, lam)
        missing = _times(basis.V, basis.length * off).unflatten(1, shape)
        dual = geometry.dual_norm(G - missing)
        return _Point(y, lam, W, off, geometry.dual_norm(missing) / geometry.dual_norm(G), dual)

    x = point(y, lam)
    out = Iterates(x.W.clone(), x.lam.clone(), first.iterations)
    best = torch.full_like(least, torch.inf)
    for _ in range(steps):
        value = _times(basis.R, x.y)
        gap = (geometry.norm(x.W) / system.least_margin(value) * x.dual / (b * x.lam).sum(1) - 1).abs()
        gap = torch.where(gap.isfinite(), gap, torch.inf)
        better = gap < best
        out.W[better], out.lam[better], best = x.W[better], x.lam[better], torch.minimum(best, gap)
        active = (gap > tol / 4) & ((value > b) | ~ineq).all(1)
        if not bool(active.any()):
            break
        out.iterations += active
        if smooth:
            P = geometry.hessian(x.W) / scale
        else:  # of the Euclidean norm: a subgradient does not bend
            flat = x.W.flatten(1)
            P = torch.diag_embed((1 / flat.square().sum(1, keepdim=True)).expand_as(flat))
        dy, dlam, step, mu = _newton_step(system, basis, x, P)
        step = torch.where(active, step, 0.0)
        for _ in range(_HALVINGS):
            new = point(x.y + step[:, None] * dy, x.lam + step[:, None] * dlam)
            too_long = active & ~(new.apart <= torch.maximum(x.apart, 10 * mu))
            if not bool(too_long.any()):
                break
            step = torch.where(too_long, step / 2, step)
        x = point(x.y + step[:, None] * dy, x.lam + step[:, None] * dlam)
    return out


def _newton_step(system: System, basis: _Basis, x: _Point, P: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The directions of y and λ, how far they go, and the complementarity μ."""
    R, ineq = basis.R, system.inequality
    s = torch.where(ineq, _times(R, x.y) - system.b, 1.0)
    lam = torch.where(ineq, x.lam, 1.0)
    theta, count = ineq * lam / s, ineq.sum(1)
    mu = (x.lam * s).sum(1) / count
    K = basis.T.mT @ P @ basis.T + R.mT @ (theta[..., None] * R)
    root = K.diagonal(dim1=1, dim2=2).clamp_min(_TINY).rsqrt()
    K = K * root[:, :, None] * root[:, None]
    diagonal = K.diagonal(dim1=1, dim2=2)
    diagonal += 1e-15
    L = grown(K, (1e-12,))

    def direction(target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Steps of y, s and λ towards λs = target."""
        pull = ineq * (target / s - lam)
        right = root * (_times(R.mT, pull) - x.off)
        dy = root * torch.cholesky_solve(right[..., None], L)[..., 0]
        ds = _times(R, dy)
        return dy, ds, pull - theta * ds

    def longest(ds: Tensor, dlam: Tensor) -> Tensor:
        return 1 / (torch.maximum(-ds / s, -dlam / lam) * ineq).amax(1).clamp_min(1.0)

    _, ds, dlam = direction(torch.zeros_like(s))
    a = longest(ds, dlam)[:, None]
    left = ((lam + a * dlam) * (s + a * ds) * ineq).sum(1) / count
    sigma = (left / mu).clamp(1e-6, 1.0) ** 3
    dy, ds, dlam = direction((sigma * mu)[:, None] - dlam * ds)
    return dy, dlam, 0.99 * longest(ds, dlam), mu


def _times(M: Tensor, x: Tensor) -> Tensor:
    return (M @ x[..., None])[..., 0]
