"""What a geometry is: a norm, its dual, and a potential with its mirror map."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.derivatives import derivative
from attsvm.errors import AttsvmError
from attsvm.geometry._blocks import Blocks

MATRIX_AXES = (-2, -1)
NODES = 32
"""Gauss–Legendre nodes by which the potential of a user's mirror map is integrated."""


class Geometry(ABC):
    """A norm ‖·‖ on matrices and, where there is one, a strictly convex potential ψ that goes with it.

    Every method acts on the last two axes of `W (..., d, e)`; a vector is e = 1. Scalars come back as
    `(...)`.
    Subclasses are frozen dataclasses: hashable, comparable, safe as dictionary keys.

    Your own geometry has `name` and `norm`, and what its uses need:

    solve                    dual_norm, twice differentiable off 0
    train, mirror descent    mirror, inverse; for normalised steps dual_norm
    verdict                  dual_norm; with mirror also its direction error is the directional Bregman divergence
                             (1 − margin ratio without)

    `potential`, `conjugate` and `bregman` follow from `mirror` by integration unless `_potential`, `_conjugate` and
    `_bregman` are given. Where a method is missing, the first call that needs it says so.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name for tables and the command line, e.g. "l1.75"."""

    @abstractmethod
    def norm(self, W: Tensor) -> Tensor:
        """‖W‖, `(..., d, e) -> (...)`; its gradient at W = 0 is 0."""

    def dual_norm(self, G: Tensor) -> Tensor:
        """‖G‖_* = max ⟨G, W⟩ over ‖W‖ ≤ 1, `(..., d, e) -> (...)`."""
        raise self._missing("dual_norm")

    def dual_unit(self, G: Tensor) -> Tensor:
        """A W with ‖W‖ = 1 and ⟨G, W⟩ = ‖G‖_*: the direction of steepest ascent; 0 for G = 0."""
        return derivative(self.dual_norm, G)

    def mirror(self, W: Tensor) -> Tensor:
        """θ = ∇ψ(W), same shape."""
        raise self._missing("mirror")

    def inverse(self, theta: Tensor) -> Tensor:
        """W = ∇ψ*(θ), the inverse of `mirror`, same shape."""
        raise self._missing("inverse")

    def has(self, *methods: str) -> bool:
        """Does this geometry define these methods?"""
        return all(getattr(type(self), method) is not getattr(Geometry, method) for method in methods)

    def require(self, *methods: str, to: str) -> None:
        """Refuse a geometry without one of these methods."""
        for method in methods:
            if not self.has(method):
                raise AttsvmError(f"geometry {self.name} must define {method} to {to}, but it does not.")

    def _missing(self, method: str) -> AttsvmError:
        return AttsvmError(f"geometry {self.name} must define {method} to be used here, but it does not.")

    def blocks(self, d: int, e: int) -> Blocks | None:
        """The blocks of a d × e matrix that make this norm, if it is one of those; then `solve` needs no smoothness."""
        return None

    def strictly_convex(self, d: int, e: int) -> bool:
        """Whether the unit ball of d × e matrices is known to have no flat part, so that solutions are unique."""
        return False

    def gradient(self, W: Tensor) -> Tensor:
        """∇½‖W‖², same shape."""
        return derivative(lambda V: self.norm(V).square() / 2, W)

    def hessian(self, W: Tensor) -> Tensor:
        """∇²½‖W‖² of matrices (B, d, e), as a matrix (B, d·e, d·e); by differentiating twice unless given."""
        return _second(lambda V: self.norm(V).square() / 2, W)

    def dual_hessian(self, G: Tensor) -> Tensor:
        """∇²½‖G‖_*², likewise."""
        return _second(lambda V: self.dual_norm(V).square() / 2, G)

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        """What ‖V‖ does not exceed, in real arithmetic, for any V with |V − W| ≤ error entrywise (none: 0); float64.

        For a norm that says nothing better, it is taken for granted that `norm` is right to 16(d + e) roundings.
        """
        return _bound(self.norm, W, error)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        """The same for the dual norm."""
        return _bound(self.dual_norm, G, error)

    def potential(self, W: Tensor) -> Tensor:
        """ψ(W), `(..., d, e) -> (...)`."""
        return _WithGradient.apply(W, self._potential, self.mirror)

    def conjugate(self, theta: Tensor) -> Tensor:
        """ψ*(θ) = max_W ⟨θ, W⟩ − ψ(W), `(..., d, e) -> (...)`."""
        return _WithGradient.apply(theta, self._conjugate, self.inverse)

    def bregman(self, W: Tensor, V: Tensor) -> Tensor:
        """D(W, V) = ψ(W) − ψ(V) − ⟨∇ψ(V), W − V⟩ ≥ 0, without cancellation; leading axes broadcast."""
        if W.shape[-2:] != V.shape[-2:]:
            raise AttsvmError(
                f"bregman compares matrices of one shape, but their last axes are {tuple(W.shape[-2:])} and "
                f"{tuple(V.shape[-2:])}: give both the same (d, e)."
            )
        return _Bregman.apply(self, *torch.broadcast_tensors(W, V))

    def directional_bregman(self, W: Tensor, V: Tensor) -> Tensor:
        """D(W/‖W‖, V/‖V‖), first argument the SVM solution, second the iterate; a zero matrix stays zero."""
        return self.bregman(self.unit(W), self.unit(V))

    def unit(self, W: Tensor) -> Tensor:
        """W/‖W‖, same shape; 0 for W = 0."""
        W = W / scale(W)
        norm = self.norm(W)[..., None, None]
        return W / (norm + (norm == 0))

    def _potential(self, W: Tensor) -> Tensor:
        """The value of ψ(W), here ∫₀¹ ⟨∇ψ(rW), W⟩ dr."""
        parts = [w * (self.mirror(r * W) * W).sum(MATRIX_AXES) for r, w in _nodes()]
        return torch.stack(parts).sum(0)

    def _conjugate(self, theta: Tensor) -> Tensor:
        """The value of ψ*(θ), here ⟨θ, W⟩ − ψ(W) at W = ∇ψ*(θ)."""
        W = self.inverse(theta)
        return (theta * W).sum(MATRIX_AXES) - self._potential(W)

    def _bregman(self, W: Tensor, V: Tensor) -> Tensor:
        """The value of D(W, V) for two matrices of the same shape, here ∫₀¹ ⟨∇ψ(V + r(W − V)) − ∇ψ(V), W − V⟩ dr."""
        E, at_V = W - V, self.mirror(V)
        parts = [w * ((self.mirror(V + r * E) - at_V) * E).sum(MATRIX_AXES) for r, w in _nodes()]
        return torch.stack(parts).sum(0).clamp_min(0)

    def _hessian(self, V: Tensor, U: Tensor) -> Tensor:
        """∇²ψ(V)[U], same shape."""
        return derivative(lambda at: self.mirror(at) * U, V)


class Paired(Geometry):
    """A norm whose dual norm is that of another geometry, `dual`."""

    @property
    @abstractmethod
    def dual(self) -> Geometry:
        """The geometry of the dual norm."""

    def dual_norm(self, G: Tensor) -> Tensor:
        return self.dual.norm(G)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        return self.dual.norm_bound(G, error)

    def dual_hessian(self, G: Tensor) -> Tensor:
        return self.dual.hessian(G)


def _nodes() -> list[tuple[float, float]]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return [(float(r), float(w)) for r, w in zip((nodes + 1) / 2, weights / 2)]


def scale(W: Tensor) -> Tensor:
    """Largest |entry| of each matrix, `(..., 1, 1)`, or 1 where it is 0 or infinite.

    Detached: it only ever rescales what is homogeneous, so its own gradient would drop out.
    """
    largest = W.detach().abs().amax(MATRIX_AXES, keepdim=True)
    return torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))


def rounding(W: Tensor) -> float:
    """More than the relative error of a root of sums of powers over the rows, then over the columns, in float64."""
    return (W.shape[-2] + W.shape[-1] + 64) * 2.0**-53


def _second(function: Callable[[Tensor], Tensor], W: Tensor) -> Tensor:
    """The Hessians (B, D, D) of a function of matrices (B, d, e), a column at a time for all of them."""
    with torch.enable_grad():
        at = W.detach().requires_grad_()
        slope = derivative(function, at).flatten(1)
        rows = [torch.autograd.grad(s.sum(), at, retain_graph=True, materialize_grads=True)[0] for s in slope.unbind(1)]
    H = torch.stack(rows, 1).flatten(2)
    return (H + H.mT) / 2


def _bound(norm: Callable[[Tensor], Tensor], W: Tensor, error: Tensor | None) -> Tensor:
    """The triangle inequality, with the norms of the d·e matrices that have a single 1."""
    if error is None:
        return norm(W) * (1 + 16 * rounding(W))
    d, e = W.shape[-2:]
    single = norm(torch.eye(d * e, dtype=W.dtype, device=W.device).reshape(-1, d, e)).reshape(d, e)
    return (norm(W) + (error * single).sum(MATRIX_AXES)) * (1 + 16 * rounding(W))


class _WithGradient(torch.autograd.Function):
    """A function of a matrix whose gradient is known in closed form."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, value: Callable[[Tensor], Tensor], gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(W)
        ctx.gradient = gradient
        return value(W)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (W,) = ctx.saved_tensors
        return grads[0][..., None, None] * ctx.gradient(W), None, None


class _Bregman(torch.autograd.Function):
    """D(W, V), with ∇_W D = ∇ψ(W) − ∇ψ(V) and ∇_V D = ∇²ψ(V)[V − W]."""

    @staticmethod
    def forward(ctx: Any, geometry: Geometry, W: Tensor, V: Tensor) -> Tensor:
        ctx.save_for_backward(W, V)
        ctx.geometry = geometry
        return geometry._bregman(W, V)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        W, V = ctx.saved_tensors
        geometry, g = ctx.geometry, grads[0][..., None, None]
        _, wants_W, wants_V = ctx.needs_input_grad
        grad_W = g * (geometry.mirror(W) - geometry.mirror(V)) if wants_W else None
        grad_V = g * geometry._hessian(V, V - W) if wants_V else None
        return None, grad_W, grad_V
