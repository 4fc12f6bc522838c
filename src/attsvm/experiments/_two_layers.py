"""Two layers of attention with residual connections, and their exact gradients.

Layer 1 lets every token attend to its sequence: x¹_t = x_t + ρ Σ_s softmax(X W₁ x_t)_s x_s. In layer 2 the query z
attends to the x¹_t, and f = Y vᵀ Σ_t softmax(X¹ W₂ z)_t x¹_t. As in one layer only differences from the top tokens are
summed, and the largest exponent of a trial is split off, for each W. So the directions of both gradients keep their
relative accuracy however far both layers have saturated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.objective import Logistic


@dataclass(frozen=True)
class TwoLayers:
    """X (B, n, T, d), Z (B, n, d), Y (B, n), v (B, d); ρ below 1, since two tokens that attend to each other would turn
    equal at ρ = 1."""

    X: Tensor
    Z: Tensor
    Y: Tensor
    v: Tensor
    rho: float = 0.5

    def hidden(self, W1: Tensor) -> tuple[Tensor, Tensor]:
        """X¹ (B, n, T, d), and the tokens (B, n, T) that the queries of layer 1 select."""
        first = _Softmax.of(torch.einsum("bnsd,bde,bnte->bnts", self.X, W1, self.X))
        return self.X + self.rho * first.mean(self.X[:, :, None]), first.top

    def gradients(self, W1: Tensor, W2: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(G, shift) with e^shift G the gradient of the mean logistic loss, in W₁ and in W₂."""
        X, v = self.X, self.Y[..., None] * self.v[:, None]
        first = _Softmax.of(torch.einsum("bnsd,bde,bnte->bnts", X, W1, X))
        X1 = X + self.rho * first.mean(X[:, :, None])
        Wz = torch.einsum("bde,bne->bnd", W2, self.Z)
        second = _Softmax.of(torch.einsum("bntd,bnd->bnt", X1, Wz))
        u = torch.einsum("bntd,bnd->bnt", X1, v)
        du = u - second.of_top(u)
        D = (second.weight * du).sum(-1, keepdim=True)
        log_slope, slope = Logistic().slope((second.of_top(u) + D)[..., 0])
        n = X.shape[1]

        # Pulls on the logits of layer 2, times e^(−δ) for all tokens but the top one.
        pull = (du - D) / (1 + second.E)
        exponent = second.delta + log_slope[..., None]
        shift2 = exponent.amax((1, 2))
        terms = torch.exp(exponent - shift2[:, None, None]) * pull * slope[..., None]
        G2 = -torch.einsum("bnt,bntd,bne->bde", terms, X1 - _pick(X1, second.top), self.Z) / n

        # ∂f/∂x¹_t, without e^δ for all tokens but the top one.
        others = v[:, :, None] / (1 + second.E[..., None]) + pull[..., None] * Wz[:, :, None]
        taken = (torch.exp(second.delta) * pull).sum(-1, keepdim=True)
        at_top = v / (1 + second.E) - taken * Wz
        is_top = second.delta == -torch.inf
        g = torch.where(is_top[..., None], at_top[:, :, None], others)
        scale = torch.where(is_top, 0.0, second.delta) + log_slope[..., None]
        u1 = self.rho * torch.einsum("bnsd,bntd->bnts", X, g)
        du1 = u1 - first.of_top(u1)
        D1 = (first.weight * du1).sum(-1, keepdim=True)
        exponent = first.delta + scale[..., None]
        shift1 = exponent.amax((1, 2, 3))
        terms = torch.exp(exponent - shift1[:, None, None, None]) * (du1 - D1) / (1 + first.E) * slope[..., None, None]
        apart = X[:, :, None] - _pick(X, first.top)[:, :, :, None]
        G1 = -torch.einsum("bnts,bntsd,bnte->bde", terms, apart, X) / n
        return (G1, shift1), (G2, shift2)


@dataclass(frozen=True)
class _Softmax:
    """A softmax over the last axis: δ (−∞ for the top entry), Σ e^δ of the others, their weights, the top entry."""

    delta: Tensor
    E: Tensor
    weight: Tensor
    top: Tensor

    @classmethod
    def of(cls, a: Tensor) -> _Softmax:
        top = a.argmax(-1)
        delta = (a - a.amax(-1, keepdim=True)).scatter(-1, top[..., None], -torch.inf)
        E = torch.exp(delta).sum(-1, keepdim=True)
        return cls(delta, E, torch.exp(delta) / (1 + E), top)

    def of_top(self, x: Tensor) -> Tensor:
        return x.gather(-1, self.top[..., None])

    def mean(self, X: Tensor) -> Tensor:
        """The mean of the X (…, T, d) with these weights."""
        everything = self.weight.scatter(-1, self.top[..., None], 1 / (1 + self.E))
        return (everything[..., None] * X).sum(-2)


def _pick(X: Tensor, top: Tensor) -> Tensor:
    """The tokens (B, n, …, d) of X (B, n, T, d) that `top` (B, n, …) names; one token keeps the axis T."""
    flat = top.reshape(*top.shape[:2], -1)
    return X.gather(2, flat[..., None].expand(-1, -1, -1, X.shape[-1]))
