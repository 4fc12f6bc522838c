"""How far a matrix is from a direction, and how well it separates tokens. All act on (..., d, e)."""

from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Frobenius, Geometry, Nuclear
from attsvm.svm import MaxMargin
from attsvm.tolerances import RANK


def correlation(W: Tensor, V: Tensor) -> Tensor:
    """⟨W, V⟩/(‖W‖_F ‖V‖_F), shape (...); 0 where one of them is 0 and has no direction."""
    unit = Frobenius().unit
    return (unit(W) * unit(V)).sum((-2, -1))


def misalignment(W: Tensor, V: Tensor) -> Tensor:
    """1 − correlation = ½‖W/‖W‖_F − V/‖V‖_F‖_F², which does not cancel; 1 where one of them is 0."""
    W, V = Frobenius().unit(W), Frobenius().unit(V)
    half = (W - V).square().sum((-2, -1)) / 2
    no_direction = (W == 0).flatten(-2).all(-1) | (V == 0).flatten(-2).all(-1)
    return torch.where(no_direction, 1.0, half)


def directional_bregman(W_mm: Tensor, W: Tensor, geometry: Geometry) -> Tensor:
    """D_ψ(W_mm/‖W_mm‖, W/‖W‖), the divergence of mirror-descent's Theorem 4, in the norm of the geometry."""
    return geometry.directional_bregman(W_mm, W)


def has_divergence(geometry: Geometry) -> bool:
    """Is the potential that of the norm itself? The nuclear norm has none, only that of a smooth neighbour."""
    return geometry.has("mirror") and not isinstance(geometry, Nuclear)


def by_margin(geometry: Geometry) -> bool:
    """Is a run measured by its margin? Yes, where max-margin solutions may form a face and define no direction."""
    return not geometry.has("mirror") and not isinstance(geometry, Nuclear)


def direction_error(W_mm: Tensor, W: Tensor, geometry: Geometry) -> Tensor:
    """The directional Bregman divergence where the norm has a potential, as ℓp has; 1 − correlation elsewhere."""
    return directional_bregman(W_mm, W, geometry) if has_divergence(geometry) else misalignment(W_mm, W)


def margins(data: TokenData, tokens: Any, W: Tensor) -> Tensor:
    """(x_α − x_t)ᵀ W z (B, n, K, T), +∞ for α itself and for masked tokens."""
    tokens = data.check_tokens(tokens)[..., None]
    logits = data.logits(W)
    gap = logits.gather(-1, tokens) - logits
    return gap.masked_fill(~data.mask, torch.inf).scatter(-1, tokens, torch.inf)


def margin_ratio(data: TokenData, tokens: Any, W: Tensor, geometry: Geometry, solution: MaxMargin) -> Tensor:
    """Smallest margin of W/‖W‖ over the largest possible, 1/‖W_mm‖: (B,), at most 1, and 1 at the limit.

    NaN where the SVM was not solved or W = 0; 1 where no query has a second token.
    """
    if solution.geometry != geometry:
        raise AttsvmError(f"solution must be in the norm {geometry.name}, but it is in {solution.geometry.name}.")
    smallest = margins(data, tokens, W).amin((1, 2, 3))
    ratio = smallest / geometry.norm(W) * solution.norm
    return torch.where(smallest == torch.inf, 1.0, torch.where(solution.solved, ratio, torch.nan))


def numerical_rank(W: Tensor, rtol: float = RANK) -> Tensor:
    """Number of singular values above rtol·σ₁, long (...); 0 for W = 0."""
    if not 0 <= rtol < 1:
        raise AttsvmError(f"rtol must be in [0, 1), but got {rtol}.")
    sigma = torch.linalg.svdvals(W)
    return (sigma > rtol * sigma[..., :1]).sum(-1)
