"""Is what a user calls a norm one? Three matrices tell."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attsvm.checks import check_returned
from attsvm.errors import AttsvmError
from attsvm.geometry._base import MATRIX_AXES, Geometry

SEED, COUNT = 0, 3
"""Of the matrices that are tried."""


def is_own(geometry: Geometry) -> bool:
    """Is its class a user's?"""
    return not type(geometry).__module__.startswith("attsvm.geometry")


def check_norm(geometry: Geometry, shape: tuple[int, int], like: Tensor, *, smooth: bool) -> None:
    """Refuse a user's geometry whose `norm` or `dual_norm` of matrices of this shape, with the dtype and device of
    `like`, is none; if `smooth`, also one whose `dual_unit` does not belong to its `dual_norm`."""
    if not is_own(geometry):
        return
    W, tol = _tried(shape, like), _tolerance(like)
    norm = _checked(geometry, "norm", geometry.norm, W)
    if not geometry.has("dual_norm"):
        return
    dual = _checked(geometry, "dual_norm", geometry.dual_norm, W)
    tried = [(W, norm), (W.roll(1, 0), norm.roll(1))]
    if smooth:
        unit = geometry.dual_unit(W)
        inner = (W * unit).sum(MATRIX_AXES)
        if bool(((inner - dual).abs() > tol * dual).any()):
            raise AttsvmError(
                f"geometry {geometry.name}: ⟨G, dual_unit(G)⟩ must be dual_norm(G), but it is "
                f"{float((inner / dual)[0]):.4g}·dual_norm(G): is dual_norm differentiable, and not detached?"
            )
        tried.append((unit, geometry.norm(unit)))
    for V, size in tried:
        if bool(((W * V).sum(MATRIX_AXES).abs() > (1 + tol) * dual * size).any()):
            raise AttsvmError(
                f"geometry {geometry.name}: dual_norm(G) must be max ⟨G, W⟩ over norm(W) ≤ 1, but it is smaller than "
                "⟨G, W⟩/norm(W) for some G and W: correct one of the two."
            )


def check_mirror(geometry: Geometry, shape: tuple[int, int], like: Tensor) -> None:
    """Refuse a user's geometry whose `inverse` does not undo its `mirror`, likewise."""
    if not is_own(geometry):
        return
    W = _tried(shape, like)
    theta = check_returned(f"geometry {geometry.name}: mirror of {COUNT} matrices", geometry.mirror(W), W.shape)
    back = check_returned(f"geometry {geometry.name}: inverse of {COUNT} matrices", geometry.inverse(theta), W.shape)
    error = float((back - W).abs().max() / W.abs().max())
    if not error <= 10 * _tolerance(like):
        raise AttsvmError(
            f"geometry {geometry.name}: inverse(mirror(W)) must be W, but is off by {error:.2g} of the largest entry."
        )


def _tried(shape: tuple[int, int], like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(COUNT, *shape, generator=generator, dtype=torch.float64).to(like)


def _tolerance(like: Tensor) -> float:
    return max(1e-6, 100 * torch.finfo(like.dtype).eps)


def _checked(geometry: Geometry, method: str, norm: Callable[[Tensor], Tensor], W: Tensor) -> Tensor:
    """norm(W), if it is one."""
    what, tol = f"geometry {geometry.name}: {method}", _tolerance(W)
    first, twice, minus = (check_returned(f"{what} of {len(W)} matrices", norm(c * W), (len(W),)) for c in (1, 2, -1))
    if (first.dtype, first.device) != (W.dtype, W.device):
        raise AttsvmError(
            f"{what} must keep the dtype and device of W, {W.dtype} on {W.device}, but it returns {first.dtype} on "
            f"{first.device}."
        )
    wrong = first[~(first.isfinite() & (first > 0))]
    if len(wrong):
        raise AttsvmError(f"{what}(W) must be positive and finite for W ≠ 0, but it is {float(wrong[0]):g} for one.")
    for c, size in ((2, twice), (-1, minus)):
        ratio = size / first
        off = ratio[~((ratio - abs(c)).abs() <= tol)]
        if len(off):
            wanted = f"2·{method}(W)" if c == 2 else f"{method}(W)"
            name = "2W" if c == 2 else "−W"
            raise AttsvmError(f"{what}({name}) must be {wanted}, but it is {float(off[0]):.4g}·{method}(W).")
    half = W * (torch.arange(W[0].numel(), device=W.device) % 2).reshape(W[0].shape)  # every other entry
    for A, B in ((W, W.roll(1, 0)), (half, W - half)):
        ratio = norm(A + B) / (norm(A) + norm(B))
        if not bool((ratio <= 1 + tol).all()):
            raise AttsvmError(
                f"{what}(W + V) must be at most {method}(W) + {method}(V), but it is {float(ratio.max()):.4g} times "
                "that."
            )
    return first
