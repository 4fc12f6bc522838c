"""The training loss L near W: its gradient, its curvature, and how convex ψ − ηL is along a step.

L is the mean over samples and the sum over queries of ℓ(Y h(Xᵀ softmax(X W z))). As in the gradient, the largest
exponent M is split off. So ratios keep their relative accuracy however far the softmax has saturated, even where
gradient and curvature themselves are far below 1e-308.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry
from attsvm.objective._contract import contract
from attsvm.objective._gradient import Attended, attend, gradients, logits, losses
from attsvm.objective._lanes import Lanes, trial_first, trial_last
from attsvm.objective._losses import Loss, as_loss

NODES = 8
"""Gauss–Legendre nodes on each half of the segment of a step."""
RESOLVED = 1e-8
"""D_L above this fraction of L is computed as the difference of its three terms; below it, D_L is integrated."""


def scaled_gradient(data: TokenData, W: Tensor, loss: Any = "logistic") -> tuple[Tensor, Tensor]:
    """G (B, d, e) and M (B,) with ∇L(W) = e^M G, G of the order of 1 (or 0)."""
    return _scaled_gradient(_lanes(data), W, as_loss(loss))


def gradient(data: TokenData, W: Tensor, loss: Any = "logistic") -> Tensor:
    """∇L(W) (B, d, e)."""
    G, M = scaled_gradient(data, W, loss)
    return G * M.exp()[:, None, None]


def value(data: TokenData, W: Tensor, loss: Any = "logistic") -> Tensor:
    """L(W) (B,)."""
    return _value(_lanes(data), W, as_loss(loss))


def curvature(data: TokenData, W: Tensor, V: Tensor, loss: Any = "logistic", shift: Tensor | None = None) -> Tensor:
    """⟨V, ∇²L(W) V⟩ (B,), the second derivative of L at W in the direction V; times e^(−shift) if that is given.

    Along V, with b = X V z less its mean under s, the weights change by s′ = s b and s″ = s(b² − Σ s b²). So
    f′ = Σ s b u and f″ = Σ s b² u + ⟨o′, ∇²(Yh) o′⟩ with o′ = Σ s b x, and L″ = −ℓ′ (bend f′² − f″).
    """
    lanes = _lanes(data)
    return _curvature(lanes, W, logits(lanes, {"W": trial_last(V)}), as_loss(loss), shift)


def _scaled_gradient(lanes: Lanes, W: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    G, M = gradients(lanes, loss, {"W": trial_last(W)})["W"]
    return trial_first(G) / len(lanes.X), M


def _value(lanes: Lanes, W: Tensor, loss: Loss) -> Tensor:
    return losses(attend(lanes, {"W": trial_last(W)}), loss).sum(1).mean(0)


def _curvature(lanes: Lanes, W: Tensor, change: Tensor, ell: Loss, shift: Tensor | None) -> Tensor:
    """`change` is that of the logits (n, K, T, B)."""
    at = attend(lanes, {"W": trial_last(W)})
    change = change - _of_top(at, change)
    mean = (at.weight * change).sum(2, keepdim=True)
    b, u = change - mean, at.delta_u - at.D
    # e^(−shift) s_t · −ℓ′ of all tokens but the top one. The top token's weight is not small, but its b is:
    # Σ_{t≠m} s_t (b_m − b_t) = b_m. So b_m carries the scale.
    exponent = at.delta - torch.log1p(at.E) + ell.log_slope(at.f)
    w = torch.exp(exponent if shift is None else exponent - shift)
    s_m, b_m, u_m = 1 / (1 + at.E), -mean, -at.D
    b_m_scaled = -(w * change).sum(2, keepdim=True)
    first = (at.weight * b * u).sum(2, keepdim=True) + s_m * b_m * u_m
    first_scaled = (w * b * u).sum(2, keepdim=True) + s_m * b_m_scaled * u_m
    second = (w * b.square() * u).sum(2, keepdim=True) + s_m * b_m_scaled * b_m * u_m
    if lanes.head is not None and at.o is not None:
        moved = contract("ntdB,nktB->nkdB", lanes.X, torch.where(at.is_top, s_m * b_m, at.weight * b), lanes.small)
        scaled = torch.where(at.is_top, s_m * b_m_scaled, w * b)
        moved_scaled = contract("ntdB,nktB->nkdB", lanes.X, scaled, lanes.small)
        turned = lanes.head.hessian(_points(at.o), _points(moved))[:, :, :, 0].movedim(0, -1)
        second = second + (lanes.Y[:, :, 0] * (turned * moved_scaled).sum(2))[:, :, None]
    return (ell.bend(at.f) * first * first_scaled - second).sum((0, 1, 2)) / len(lanes.X)


def step_convexity(
    data: TokenData, geometry: Geometry, W: Tensor, lr: float, normalize: bool, loss: Any = "logistic"
) -> Tensor:
    """η D_L(W⁺, W)/D_ψ(W⁺, W) (B,) for the step W⁺ that mirror descent takes from W: at most 1 where D_{ψ−ηL} ≥ 0.

    ψ − ηL convex on the segment from W to W⁺ (Remark 1 of mirror-descent) gives D_{ψ−ηL}(W⁺, W) ≥ 0, which is what
    Lemmas 13 and 14 use. A normalised step counts with its effective η, lr/‖∇L‖_*. The result is 0 where the step is 0,
    and ∞ where the step leaves the range of the dtype.
    """
    lanes, ell = _lanes(data), as_loss(loss)
    G, M = _scaled_gradient(lanes, W, ell)
    size = geometry.dual_norm(G)
    eta = lr / torch.where(size > 0, size, 1.0) if normalize else lr * M.exp()  # η in units of e^(−M)
    W_next = geometry.inverse(geometry.mirror(W) - eta[:, None, None] * G)
    finite = W_next.isfinite().flatten(1).all(1)
    W_next = torch.where(finite[:, None, None], W_next, W)
    V = W_next - W
    moves = (V != 0).flatten(1).any(1)
    # D_L(W⁺, W) = L(W⁺) − L(W) − ⟨∇L(W), V⟩ where that is more than rounding, else ∫₀¹ (1 − r) ⟨V, ∇²L(W + rV) V⟩ dr.
    before, after = _value(lanes, W, ell), _value(lanes, W_next, ell)
    plain = after - before - (G * V).sum((1, 2)) * M.exp()
    resolved = plain.abs() > RESOLVED * (before.abs() + after.abs())
    bent = torch.zeros_like(size)
    if not resolved.all():
        change = logits(lanes, {"W": trial_last(V)})
        for r, weight in _graded_nodes(data, V):
            bent += weight * (1 - r) * _curvature(lanes, W + r[:, None, None] * V, change, ell, M)
    D_L = torch.where(resolved, plain * torch.exp(-M), bent)  # in units of e^M
    ratio = eta * D_L / torch.where(moves, geometry.bregman(W_next, W), 1.0)
    return torch.where(finite, torch.where(moves, ratio, 0.0), torch.inf)


def _lanes(data: TokenData) -> Lanes:
    if data.head is None:
        raise AttsvmError("head must be given to have a loss, but these data have none.")
    return Lanes.of(data, fixed_head=True)


def _of_top(at: Attended, x: Tensor) -> Tensor:
    """The entry of the top token (n, K, 1, B)."""
    return torch.where(at.is_top, x, 0.0).sum(2, keepdim=True)


def _points(x: Tensor) -> Tensor:
    """(n, K, d, B) as the points (B, n, K, 1, d) that a head takes."""
    return trial_first(x)[:, :, :, None]


def _graded_nodes(data: TokenData, V: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Nodes r and weights (B,) of a quadrature on [0, 1], dense towards both ends.

    The curvature along V falls and rises like e^(±Λr), Λ the largest change of a logit difference: so on each half
    r = ½(e^(κx) − 1)/(e^κ − 1) with κ = log(1 + Λ) spreads that over Gauss–Legendre nodes x.
    """
    change = data.logits(V).masked_fill(~data.mask, 0.0).abs().amax((1, 2, 3))
    kappa = torch.log1p(2 * change).clamp(min=1e-3)
    for node, weight in zip(*np.polynomial.legendre.leggauss(NODES)):
        x = (node + 1) / 2
        r = torch.expm1(kappa * x) / torch.expm1(kappa) / 2
        jacobian = weight / 4 * kappa * torch.exp(kappa * x) / torch.expm1(kappa)
        yield r, jacobian
        yield 1 - r, jacobian
