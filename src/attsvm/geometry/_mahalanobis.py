"""Euclidean norms with weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_float
from attsvm.errors import AttsvmError
from attsvm.geometry._base import MATRIX_AXES, Geometry, rounding, scale


@dataclass(frozen=True, repr=False)
class Mahalanobis(Geometry):
    """‖W‖ = √(wᵀMw), w the entries of W row by row: M (d·e, d·e) symmetric and positive definite, or weights (d, e).

    ψ = ½wᵀMw, so the mirror map is W ↦ MW, and the dual norm is √(gᵀM⁻¹g). M is kept as nested tuples, so that
    geometries stay comparable. Square weights that are symmetric and positive definite count as M: of these give
    ``torch.diag(weights.flatten())``.
    """

    M: Any
    _matrix: Tensor = field(init=False, compare=False, default_factory=lambda: torch.empty(0))
    _inverse: Tensor = field(init=False, compare=False, default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        M = as_float("M", self.M).double().cpu()
        if M.ndim != 2 or M.numel() == 0 or not bool(M.isfinite().all()):
            raise AttsvmError(
                f"M must be a finite (d·e, d·e) matrix or (d, e) weights, but has shape {tuple(M.shape)}."
            )
        square = M.shape[0] == M.shape[1] and bool((M == M.T).all())
        if not (square and bool(torch.linalg.cholesky_ex(M)[1] == 0)):
            if not bool((M > 0).all()):
                raise AttsvmError("M must be symmetric and positive definite, or positive weights.")
            matrix = torch.diag(M.flatten())
        else:
            matrix = M
        object.__setattr__(self, "M", tuple(map(tuple, M.tolist())))
        object.__setattr__(self, "_matrix", matrix)
        object.__setattr__(self, "_inverse", torch.linalg.inv(matrix))

    def __repr__(self) -> str:
        return f"Mahalanobis(M {len(self._matrix)} × {len(self._matrix)})"

    @property
    def name(self) -> str:
        return "mahalanobis"

    def norm(self, W: Tensor) -> Tensor:
        size = scale(W)
        return _root((W / size * self.mirror(W / size)).sum(MATRIX_AXES)) * size[..., 0, 0]

    def dual_norm(self, G: Tensor) -> Tensor:
        size = scale(G)
        return _root((G / size * self.inverse(G / size)).sum(MATRIX_AXES)) * size[..., 0, 0]

    def dual_unit(self, G: Tensor) -> Tensor:
        G = G / scale(G)
        norm = self.dual_norm(G)[..., None, None]
        return self.inverse(G) / (norm + (norm == 0))

    def mirror(self, W: Tensor) -> Tensor:
        return self._times(self._matrix, W)

    def inverse(self, theta: Tensor) -> Tensor:
        return self._times(self._inverse, theta)

    def strictly_convex(self, d: int, e: int) -> bool:
        return True

    def gradient(self, W: Tensor) -> Tensor:
        return self.mirror(W)

    def hessian(self, W: Tensor) -> Tensor:
        return self._matrix.to(W).expand(len(W), -1, -1).clone()

    def dual_hessian(self, G: Tensor) -> Tensor:
        return self._inverse.to(G).expand(len(G), -1, -1)

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        return self._above(self._matrix, self.norm(W), W, error)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        # g = Mw + r has gᵀM⁻¹g = wᵀMw + 2wᵀr + rᵀM⁻¹r for any w; the last is at most |r|² over the least eigenvalue.
        w = self.inverse(G)
        size = self._times(self._matrix.abs(), w.abs())
        slack = 4 * len(self._matrix) * rounding(G)
        r = (G - self.mirror(w)).abs() + slack * size
        spectrum = torch.linalg.eigvalsh(self._matrix)
        least = float(spectrum[0] - slack * spectrum[-1])
        rest = ((r * w.abs()).sum(MATRIX_AXES) * 2 + r.square().sum(MATRIX_AXES) / least) if least > 0 else torch.inf
        bound = (self._above(self._matrix, self.norm(w), w, None).square() + rest).sqrt()
        if error is not None:
            bound = bound + error.square().sum(MATRIX_AXES).sqrt() / max(least, 1e-300) ** 0.5
        return bound * (1 + slack)

    def _above(self, A: Tensor, norm: Tensor, W: Tensor, error: Tensor | None) -> Tensor:
        A = A.to(W).abs()
        size = (W.abs() * self._times(A, W.abs())).sum(MATRIX_AXES)
        bound = (norm.square() + 4 * len(A) * rounding(W) * size).sqrt()
        if error is not None:
            bound = bound + (error * self._times(A, error)).sum(MATRIX_AXES).sqrt()
        return bound * (1 + 4 * rounding(W))

    def _potential(self, W: Tensor) -> Tensor:
        return (W * self.mirror(W)).sum(MATRIX_AXES) / 2

    def _conjugate(self, theta: Tensor) -> Tensor:
        return (theta * self.inverse(theta)).sum(MATRIX_AXES) / 2

    def _bregman(self, W: Tensor, V: Tensor) -> Tensor:
        return self._potential(W - V)

    def _hessian(self, V: Tensor, U: Tensor) -> Tensor:
        return self.mirror(U)

    def _times(self, A: Tensor, W: Tensor) -> Tensor:
        if W.shape[-2] * W.shape[-1] != len(A):
            raise AttsvmError(f"M is for W with {len(A)} entries, but W is {tuple(W.shape[-2:])}.")
        return (A.to(W) @ W.flatten(-2)[..., None])[..., 0].reshape(W.shape)


def _root(square: Tensor) -> Tensor:
    """√x with slope 0 at 0."""
    zero = (square <= 0).to(square.dtype)
    return torch.sqrt(square.clamp_min(0) + zero) - zero
