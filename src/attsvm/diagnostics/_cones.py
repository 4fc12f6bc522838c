"""The cones around an SVM direction in which the theorems let training start."""

from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics._measures import directional_bregman, misalignment
from attsvm.diagnostics._selection import low_high
from attsvm.geometry import Frobenius, Geometry


def in_S(W: Tensor, center: Tensor, mu: float | Tensor, geometry: Geometry) -> Tensor:
    """W ∈ S_{p,μ}(center): D_ψ(center/‖center‖, W/‖W‖) ≤ μ (mirror-descent (5a))."""
    return directional_bregman(center, W, geometry) <= mu


def in_C(W: Tensor, center: Tensor, mu: float | Tensor, R: float | Tensor, geometry: Geometry) -> Tensor:
    """W ∈ C_{p,μ,R}(center): in S_{p,μ} and ‖W‖ ≥ R.

    (5b) prints the norm of the center; Theorem 2 needs the norm of W, which grows.
    """
    return in_S(W, center, mu, geometry) & (geometry.norm(W) >= R)


def in_cone_mu(W: Tensor, center: Tensor, mu: float | Tensor) -> Tensor:
    """W ∈ cone_μ(center): their correlation is at least 1 − μ (TF-as-SVM, Lemma 13)."""
    return misalignment(W, center) <= mu


def in_C_mu(W: Tensor, center: Tensor, mu: float | Tensor, R: float | Tensor) -> Tensor:
    """W ∈ C_{μ,R}(center): in cone_μ and ‖W‖_F ≥ R (TF-as-SVM (4))."""
    return in_cone_mu(W, center, mu) & (Frobenius().norm(W) >= R)


def separation(data: TokenData, tokens: Any, W: Tensor) -> Tensor:
    """The largest ε with W ∈ cone_ε(α), (B,): +∞ where no query has a high-score token and the cone is all space,
    −∞ where one has high-score tokens only; NaN for W = 0 (in every cone) otherwise."""
    return _barrier(data, tokens, W) / Frobenius().norm(W)


def in_cone_epsilon(data: TokenData, tokens: Any, W: Tensor, epsilon: float) -> Tensor:
    """W ∈ cone_ε(α): in every query a low-score token leads all high-score ones by ε‖W‖_F, (B,).

    Definitions 3 and 5 of TF-as-SVM, (5) and (86).
    """
    return _barrier(data, tokens, W) >= epsilon * Frobenius().norm(W)


def _barrier(data: TokenData, tokens: Any, W: Tensor) -> Tensor:
    """min over queries of max_{t low} min_{τ high} (x_t − x_τ)ᵀ W z, (B,)."""
    low, high = low_high(data, tokens)
    logits = data.logits(W)
    guard = logits.masked_fill(~low, -torch.inf).amax(-1)
    threat = logits.masked_fill(~high, -torch.inf).amax(-1)
    return torch.where(high.any(-1), guard - threat, torch.inf).amin((1, 2))
