"""The training loss near a W: losses with their derivatives, the gradient, and the curvature along a step.

Sums run over differences from the top token m, and their largest exponent M is split off, so that ratios keep their
relative accuracy however far the softmax has saturated (where gradient and curvature themselves are far below 1e-308).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attsvm.data import QuadraticHead, TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Lp

NODES = 8
"""Gauss–Legendre nodes on each half of the segment of a step."""
RESOLVED = 1e-8
"""A D_L above this fraction of L is the difference of its three terms; a smaller one is integrated."""


class LossFunction(NamedTuple):
    """A decreasing loss: ℓ(f), log(−ℓ′(f)) and the ratio ℓ″(f)/(−ℓ′(f))."""

    value: Callable[[Tensor], Tensor]
    log_slope: Callable[[Tensor], Tensor]
    bend: Callable[[Tensor], Tensor]

    def slope(self, f: Tensor) -> Tensor:
        """−ℓ′(f) > 0."""
        return self.log_slope(f).exp()


LOSS_FUNCTIONS = {
    "logistic": LossFunction(lambda f: -logsigmoid(f), lambda f: logsigmoid(-f), torch.sigmoid),
    "exponential": LossFunction(lambda f: torch.exp(-f), torch.neg, torch.ones_like),
    "correlation": LossFunction(torch.neg, torch.zeros_like, torch.zeros_like),
}
"""The losses of the papers, log(1 + e^(−f)), e^(−f) and −f."""


def loss_function(name: str) -> LossFunction:
    if name not in LOSS_FUNCTIONS:
        raise AttsvmError(f"loss must be one of {', '.join(LOSS_FUNCTIONS)}, but got {name!r}.")
    return LOSS_FUNCTIONS[name]


class _Attended(NamedTuple):
    """What the model sees; (B, n, K, T), or (B, n, K, 1) for what belongs to a query."""

    top: Tensor
    """Index of the token m of largest logit."""
    s: Tensor
    """Softmax weights."""
    exponent: Tensor
    """log(s_t · −ℓ′(f)), −∞ for the top token and for masked ones."""
    u: Tensor
    """Scores x_tᵀ∇(Yh)(o) at the attended token o, less their mean under s."""
    bend: Tensor
    """ℓ″/(−ℓ′) at f = Y h(o)."""
    loss: Tensor
    """ℓ(f)."""

    def weights(self, shift: Tensor) -> Tensor:
        """e^(−shift) s_t · −ℓ′(f) of all tokens but the top one, whose entry is 0."""
        return torch.exp(self.exponent - shift[:, None, None, None])

    def centered(self, x: Tensor) -> Tensor:
        """x_t − Σ s x, by way of the differences from the top token."""
        x = x - x.gather(-1, self.top)
        return x - (self.s * x).sum(-1, keepdim=True)


def _attend(data: TokenData, W: Tensor, loss: str) -> _Attended:
    if data.head is None:
        raise AttsvmError("head must be given to have a loss, but these data have head None.")
    logits = data.logits(W)
    log_s = logits.log_softmax(-1)
    s = log_s.exp()
    point = torch.einsum("bntd,bnkt->bnkd", data.X, s)[:, :, :, None]
    u = data.Y[..., None] * torch.einsum("bntd,bnkd->bnkt", data.X, data.head.grad(point)[:, :, :, 0])
    f = data.Y[..., None] * data.head.value(point)
    top = logits.argmax(-1, keepdim=True)
    ell = loss_function(loss)
    exponent = (log_s + ell.log_slope(f)).scatter(-1, top, -torch.inf)
    at = _Attended(top, s, exponent, u, ell.bend(f), ell.value(f))
    return at._replace(u=at.centered(u))


def scaled_gradient(data: TokenData, W: Tensor, loss: str = "logistic") -> tuple[Tensor, Tensor]:
    """G (B, d, e) and M (B,) with ∇L(W) = e^M G, G of the order of 1 (or 0)."""
    at = _attend(data, W, loss)
    M = at.exponent.amax((1, 2, 3))
    M = torch.where(M.isinf(), 0.0, M)  # no query has a second token
    c = at.weights(M) * at.u
    # Σ_{t≠m} c_t (x_t − x_m): the top token takes the others' coefficients with a minus.
    c = c.scatter(-1, at.top, -c.sum(-1, keepdim=True))
    return -torch.einsum("bntd,bnkt,bnke->bde", data.X, c, data.Z) / data.n, M


def gradient(data: TokenData, W: Tensor, loss: str = "logistic") -> Tensor:
    """∇L(W) (B, d, e) for L = mean over samples, sum over queries of ℓ(Y h(Xᵀ softmax(X W z)))."""
    G, M = scaled_gradient(data, W, loss)
    return G * M.exp()[:, None, None]


def curvature(data: TokenData, W: Tensor, V: Tensor, loss: str = "logistic", shift: Tensor | None = None) -> Tensor:
    """⟨V, ∇²L(W) V⟩ (B,), the second derivative of L at W in the direction V; times e^(−shift) if that is given.

    Along V, with b = X V z less its mean under s, the weights change by s′ = s b and s″ = s(b² − Σ s b²). So
    f′ = Σ s b u and f″ = Σ s b² u, and L″ = −ℓ′ (bend f′² − f″).
    """
    at = _attend(data, W, loss)
    logits = torch.einsum("bntd,bde,bnke->bnkt", data.X, V, data.Z)
    b = at.centered(logits)
    s, w = at.s, at.weights(torch.zeros_like(W[:, 0, 0]) if shift is None else shift)
    # The top token's weight is not small, but its b is: Σ_{t≠m} s_t (b_m − b_t) = b_m. So b_m carries the scale.
    b_m, u_m, s_m = (x.gather(-1, at.top) for x in (b, at.u, s))
    b_m_scaled = (w * (logits.gather(-1, at.top) - logits)).sum(-1, keepdim=True)
    first = (s * b * at.u).sum(-1, keepdim=True)
    first_scaled = (w * b * at.u).sum(-1, keepdim=True) + s_m * b_m_scaled * u_m
    second = (w * b.square() * at.u).sum(-1, keepdim=True) + s_m * b_m_scaled * b_m * u_m
    if isinstance(data.head, QuadraticHead):  # h bends too: f″ has ⟨o′, ∇²(Yh) o′⟩ = −2λY‖o′‖²
        o = torch.einsum("bntd,bnkt->bnkd", data.X, s * b)
        o_scaled = torch.einsum("bntd,bnkt->bnkd", data.X, (w * b).scatter(-1, at.top, s_m * b_m_scaled))
        second = second - 2 * (data.Y * data.head.lam[:, None] * (o * o_scaled).sum(-1))[..., None]
    return (at.bend * first * first_scaled - second).sum((1, 2, 3)) / data.n


def step_convexity(
    data: TokenData, geometry: Lp, W: Tensor, lr: float, normalize: bool, loss: str = "logistic"
) -> Tensor:
    """η D_L(W⁺, W)/D_ψ(W⁺, W) (B,) for the step W⁺ that mirror descent takes from W: at most 1 where D_{ψ−ηL} ≥ 0.

    ψ − ηL convex on the segment from W to W⁺ (Remark 1 of mirror-descent) gives D_{ψ−ηL}(W⁺, W) ≥ 0, which is what
    Lemmas 13 and 14 use. A normalised step counts with its effective η, lr/‖∇L‖_*. 0 where the step is 0, ∞ where it
    leaves the range of the numbers.
    """
    G, M = scaled_gradient(data, W, loss)
    size = geometry.dual_norm(G)
    eta = lr / torch.where(size > 0, size, 1.0) if normalize else lr * M.exp()  # η in units of e^(−M)
    W_next = geometry.inverse(geometry.mirror(W) - eta[:, None, None] * G)
    finite = W_next.isfinite().flatten(1).all(1)
    W_next = torch.where(finite[:, None, None], W_next, W)
    V = W_next - W
    moves = (V != 0).flatten(1).any(1)
    # D_L(W⁺, W) = L(W⁺) − L(W) − ⟨∇L(W), V⟩ where that is no rounding, else ∫₀¹ (1 − r) ⟨V, ∇²L(W + rV) V⟩ dr.
    before, after = (_attend(data, x, loss).loss.sum((1, 2, 3)) / data.n for x in (W, W_next))
    plain = after - before - (G * V).sum((1, 2)) * M.exp()
    bent = torch.zeros_like(size)
    for r, weight in _graded_nodes(data, V):
        bent += weight * (1 - r) * curvature(data, W + r[:, None, None] * V, V, loss, M)
    resolved = plain.abs() > RESOLVED * (before.abs() + after.abs())
    D_L = torch.where(resolved, plain * torch.exp(-M), bent)  # in units of e^M
    ratio = eta * D_L / torch.where(moves, geometry.bregman(W_next, W), 1.0)
    return torch.where(finite, torch.where(moves, ratio, 0.0), torch.inf)


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
