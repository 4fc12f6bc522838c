"""Two layers of attention with residual connections, and their exact gradients.

Layer 1 lets every token attend to its sequence: x¹_t = x_t + ρ Σ_s softmax(X W₁ x_t)_s x_s. If there is an MLP between
the layers, x¹_t + A relu(C x¹_t) with fixed weights takes the place of x¹_t. In layer 2 the query z
attends to the x¹_t, and f = Y vᵀ Σ_t softmax(X¹ W₂ z)_t x¹_t. As in one layer only differences from the top tokens are
summed, and the largest exponent of a trial is split off, for each W. So the directions of both gradients keep their
relative accuracy however far both layers have saturated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.dynamics import Gaussian
from attsvm.objective import Logistic


@dataclass(frozen=True)
class TwoLayers:
    """X (B, n, T, d), Z (B, n, d), Y (B, n), v (B, d), of the MLP A (B, d, h) and C (B, h, d); ρ below 1, since two
    tokens that attend to each other would turn equal at ρ = 1."""

    X: Tensor
    Z: Tensor
    Y: Tensor
    v: Tensor
    rho: float = 0.5
    mlp: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, data: TokenData, mlp: bool) -> TwoLayers:
        """The model of single queries and their head, with or without a fixed MLP between the layers."""
        assert data.head is not None
        v = data.head.tensors()["v"][:, 0]
        return cls(data.X, data.Z[:, :, 0], data.Y[..., 0], v, mlp=fixed_mlp(data) if mlp else None)

    def attentions(self, W1: Tensor, W2: Tensor) -> tuple[tuple[TokenData, Tensor], tuple[TokenData, Tensor]]:
        """Both layers as one-layer data with the tokens their queries select. Of layer 1 only the queries whose
        outputs layer 2 reads."""
        above = TokenData.cross(self.hidden(W1)[0], self.Z[:, :, None])
        chosen = above.logits(W2).argmax(-1)
        read = TokenData.cross(self.X, _pick(self.X, chosen))
        return (read, read.logits(W1).argmax(-1)), (above, chosen)

    def hidden(self, W1: Tensor) -> tuple[Tensor, Tensor]:
        """What layer 2 sees (B, n, T, d), and the tokens (B, n, T) that the queries of layer 1 select."""
        first = _Softmax.of(torch.einsum("bnsd,bde,bnte->bnts", self.X, W1, self.X))
        return self._seen(first)[0], first.top

    def _seen(self, first: _Softmax) -> tuple[Tensor, Tensor]:
        """What layer 2 sees, and which units of the MLP are on (B, n, T, h)."""
        X1 = self.X + self.rho * first.mean(self.X[:, :, None])
        if self.mlp is None:
            return X1, X1[..., :0] > 0
        A, C = self.mlp
        units = torch.einsum("bhd,bntd->bnth", C, X1)
        return X1 + torch.einsum("bdh,bnth->bntd", A, units.clamp(min=0)), units > 0

    def _below(self, g: Tensor, on: Tensor) -> Tensor:
        """A gradient (B, n, T, d) above the MLP, taken below it."""
        if self.mlp is None:
            return g
        A, C = self.mlp
        return g + torch.einsum("bhd,bnth->bntd", C, on * torch.einsum("bdh,bntd->bnth", A, g))

    def gradients(self, W1: Tensor, W2: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(G, shift) with e^shift G the gradient of the mean logistic loss, in W₁ and in W₂."""
        X, v = self.X, self.Y[..., None] * self.v[:, None]
        first = _Softmax.of(torch.einsum("bnsd,bde,bnte->bnts", X, W1, X))
        X1, on = self._seen(first)
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
        g = self._below(torch.where(is_top[..., None], at_top[:, :, None], others), on)
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


def fixed_mlp(data: TokenData) -> tuple[Tensor, Tensor]:
    """Random weights A (B, d, 2d) and C (B, 2d, d), of every trial its own."""
    d = data.d
    drawn = Gaussian(d**-0.5, seed=5).draw(data.trials, {"A": (d, 2 * d), "C": (2 * d, d)})
    return drawn["A"].to(data.X), drawn["C"].to(data.X)


def saturated(data: TokenData, W: Tensor) -> Tensor:
    """Do all queries of a trial (B,) give one token nearly all of their weight?"""
    return torch.softmax(data.logits(W), -1).amax(-1).amin((1, 2)) > 0.999


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
