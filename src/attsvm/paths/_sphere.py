"""Minimise a loss in ℓp balls, for many trials at once, also where its values have long ceased to differ.

On the sphere ‖x‖ = R let u = x/R and θ = ∇ψ(u), so that ‖θ‖_* = 1. A minimiser has its negative gradient along θ.
Newton's method solves for that: the derivative of u in θ is D⁻¹ = ∇²ψ*(θ), and with the multiplier μ = −⟨G, u⟩ a
step y of θ, which moves u by D⁻¹y, obeys (μ + R H D⁻¹) y = −G − μθ up to multiples of θ. Conjugate gradients in the
metric D⁻¹ solve it. Where the softmax has saturated, H has one direction per support token and everything else is μ, so
they need few steps however large R is. Where losses tie, gradients decide, which keep their relative accuracy.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from attsvm.geometry import Lp

TIED = 1e-11
"""Relative difference of losses above which it is more than rounding."""
LONGEST = 0.5
"""Longest step on the unit sphere."""
HALVINGS = 40
DOUBLINGS = 20
SHRUNK = 0.95
"""The search for a minimiser inside the ball starts from this fraction of the radius."""


class Value(NamedTuple):
    """The gradient e^shift · G (B, N, 1), the loss (B,), and the size (B,) that G has unless its terms cancel."""

    G: Tensor
    shift: Tensor
    loss: Tensor
    magnitude: Tensor


class Objective(Protocol):
    """A loss of x (B, N, 1), trial by trial."""

    def at(self, x: Tensor) -> Value: ...

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The map p ↦ e^(−shift) ∇²L(x) p."""
        ...

    def take(self, trials: Tensor) -> Self: ...


@dataclass
class Point:
    """A point x = radius·u of every trial: θ, u, G, residual (B, N, 1), the others (B,).

    G is the gradient divided by `size`, its dual norm without the shift; log_slope = log ‖∇L‖_*. The residual is the
    part of −G along the sphere, −G − μθ. `error` is its dual norm, or what cancellation has left of the gradient if
    that is less: both are 0 at a stationary point of the sphere, the second also inside.
    """

    theta: Tensor
    u: Tensor
    radius: Tensor
    G: Tensor
    size: Tensor
    loss: Tensor
    log_slope: Tensor
    multiplier: Tensor
    residual: Tensor
    vanished: Tensor
    error: Tensor

    @property
    def x(self) -> Tensor:
        return _wide(self.radius) * self.u

    def take(self, trials: Tensor) -> "Point":
        return Point(*(getattr(self, field.name)[trials] for field in fields(self)))

    def put(self, trials: Tensor, part: "Point") -> None:
        for field in fields(self):
            getattr(self, field.name)[trials] = getattr(part, field.name)


def in_ball(objective: Objective, geometry: Lp, theta: Tensor, radius: Tensor, tol: float, steps: int) -> Point:
    """A stationary point of every trial in its ball, from the direction θ (B, N, 1).

    Usually on the sphere; where the loss rises outwards there, inside.
    """
    now = on_sphere(objective, geometry, theta, radius, tol, steps)
    rising = ((now.multiplier < 0) & (now.vanished > tol)).nonzero()[:, 0]
    if len(rising):
        part = now.take(rising)
        now.put(rising, from_inside(objective.take(rising), geometry, SHRUNK * part.x, part.radius, tol, steps))
    return now


def from_inside(objective: Objective, geometry: Lp, x: Tensor, radius: Tensor, tol: float, steps: int) -> Point:
    """Down from a point of the ball to a stationary one, inside or on the sphere.

    The ball is the shadow of the sphere with one more dimension, of which the loss knows nothing.
    """
    u = x / _wide(radius)
    height = (1 - geometry.norm(u).pow(geometry.p)).clamp_min(0).pow(1 / geometry.p)
    raised = geometry.mirror(torch.cat([u, _wide(height)], 1))
    x = on_sphere(_Shadow(objective), geometry, raised, radius, tol, steps).x[:, :-1]
    now = point(objective, geometry, geometry.mirror(geometry.unit(x)), geometry.norm(x))
    out = ((now.multiplier > 0) & (now.vanished > tol)).nonzero()[:, 0]
    if len(out):
        now.put(out, on_sphere(objective.take(out), geometry, now.theta[out], radius[out], tol, steps))
    return now


@dataclass(frozen=True)
class _Shadow:
    """A loss on one dimension more, which it ignores."""

    objective: Objective

    def at(self, x: Tensor) -> Value:
        value = self.objective.at(x[:, :-1])
        return value._replace(G=_padded(value.G))

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        hessian = self.objective.hessian(x[:, :-1])
        return lambda p: _padded(hessian(p[:, :-1]))

    def take(self, trials: Tensor) -> "_Shadow":
        return _Shadow(self.objective.take(trials))


def _padded(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, 1))


def on_sphere(objective: Objective, geometry: Lp, theta: Tensor, radius: Tensor, tol: float, steps: int) -> Point:
    """A stationary point of every trial on its sphere, after at most so many Newton steps from the direction θ."""
    now = point(objective, geometry, theta, radius)
    going = now.error > tol
    held, some = torch.arange(len(radius), device=radius.device), objective
    for _ in range(steps):
        if not bool(going.any()):
            break
        if 2 * int(going.sum()) <= len(held):
            held, going = held[going], going[going]
            some = objective.take(held)
        old = now.take(held)
        new, moved = _step(some, geometry, old, going)
        now.put(held, new)
        going = going & moved & (new.error > tol)
    return now


def point(objective: Objective, geometry: Lp, theta: Tensor, radius: Tensor) -> Point:
    theta = geometry.dual.unit(theta)
    u = geometry.dual_unit(theta)
    G, shift, loss, magnitude = objective.at(_wide(radius) * u)
    size = geometry.dual_norm(G)
    vanished = torch.where(size > 0, size / magnitude, 0.0)
    size = torch.where(size > 0, size, 1.0)
    G = G / _wide(size)
    multiplier = -_dot(G, u)
    residual = -G - _wide(multiplier) * theta
    error = torch.minimum(geometry.dual_norm(residual), vanished)
    return Point(theta, u, radius, G, size, loss, shift + size.log(), multiplier, residual, vanished, error)


def _step(objective: Objective, geometry: Lp, now: Point, going: Tensor) -> tuple[Point, Tensor]:
    """One Newton step of the trials that are not done, halved until it is an improvement; and which ones moved.

    Where one token dominates, the loss is an exponential: Newton's step takes it down by e and no more. A step that
    leaves the slope as it was is doubled.
    """
    step = _newton(objective, geometry, now, going)
    # A zero entry of u moves where θ does, but the power that leads from θ to u is infinitely steep there if p > 2.
    by_theta = geometry.p < 2
    start, length = (now.theta, geometry.dual_norm(step)) if by_theta else (now.u, geometry.norm(step))
    longest = LONGEST / torch.where(length > 0, length, 1.0)
    t = longest.clamp(max=1.0)

    def after(left: Tensor) -> Point:
        end = start[left] + _wide(t[left]) * step[left]
        return point(objective.take(left), geometry, end if by_theta else geometry.mirror(end), now.radius[left])

    best = now.take(torch.arange(len(going), device=going.device))
    left = going.nonzero()[:, 0]
    whole = left
    for k in range(HALVINGS):
        if not len(left):
            break
        new = after(left)
        good = _improves(now.take(left), new)
        best.put(left[good], new.take(good))
        if k == 0:
            whole = left[good]
        left = left[~good]
        t[left] /= 2
    moved = going.clone()
    moved[left] = False

    move = best.u - now.u
    left = whole[(_dot(best.residual, move) > 0.5 * _dot(now.residual, move))[whole]]
    for _ in range(DOUBLINGS):
        t[left] *= 2
        left = left[(t <= longest)[left]]
        if not len(left):
            break
        old, new = best.take(left), after(left)
        good = (_dot(old.residual, new.u - old.u) > 0) & _improves(old, new)
        left = left[good]
        best.put(left, new.take(good))
    return best, moved


def _improves(old: Point, new: Point) -> Tensor:
    """Is the new point lower? By the losses, or where they tie by the slopes along the step.

    They tie where the softmax has saturated: there the logarithm of the excess loss is convex, and a step that does
    not end far up the other side, or ends nearer to stationary, has lowered it.
    """
    margin = TIED * old.loss.abs()
    move = new.u - old.u
    before, after = _dot(old.residual, move), _dot(new.residual, move)
    nearer = (after >= -0.5 * before) | (new.error <= 0.5 * old.error)
    return (new.loss < old.loss - margin) | ((new.loss <= old.loss + margin) & nearer)


def _newton(objective: Objective, geometry: Lp, now: Point, going: Tensor) -> Tensor:
    """The Newton step of θ (p < 2) or of u, by conjugate gradients that stop early where it is far or not convex."""
    hessian = objective.hessian(now.x)
    scale, mu = _wide(now.radius / now.size), _wide(now.multiplier)
    # D⁻¹ is infinite at θ = 0 if p > 2: there the slope over the whole way that θ has to go counts.
    at = now.theta.abs() if geometry.p <= 2 else (now.theta.abs() + now.residual.abs()).clamp_min(1e-100)

    def metric(y: Tensor) -> Tensor:
        return geometry.dual._hessian(at, y)

    normal = metric(now.theta)
    normal = normal / _wide(_dot(normal, now.theta))

    def tangent(r: Tensor) -> Tensor:
        return r - _wide(_dot(r, normal)) * now.theta

    y = x = torch.zeros_like(now.theta)  # steps of θ and u, x = D⁻¹y throughout
    rest = tangent(now.residual)
    p, q = rest, metric(rest)
    square = _dot(p, q)
    goal = square * now.error.square().clamp(max=0.01)
    live = going & (square > 0)
    for k in range(2 * now.theta.shape[1] + 10):
        if not bool(live.any()):
            break
        Aq = mu * p + scale * hessian(q)
        curvature = _dot(q, Aq)
        convex = curvature > 1e-12 * _dot(p, q)
        alpha = torch.where(convex, square / torch.where(convex, curvature, 1.0), 0.0)
        if k == 0:  # steepest descent, as far as may be
            alpha = torch.where(convex, alpha, LONGEST / geometry.dual_norm(p))
        alpha = _wide(torch.where(live, alpha, 0.0))
        y, x = y + alpha * p, x + alpha * q
        rest = tangent(rest - alpha * Aq)
        z = metric(rest)
        before, square = square, _dot(rest, z)
        live = live & convex & (square > goal)
        beta = _wide(torch.where(live, square / before, 0.0))
        p, q = rest + beta * p, z + beta * q
    return y if geometry.p < 2 else x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _wide(x: Tensor) -> Tensor:
    return x[:, None, None]
