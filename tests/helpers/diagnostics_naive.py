"""Definitions written out with loops, and small data for them."""

import itertools

import torch
from torch import Tensor

from attsvm import LinearHead, MLPHead, QuadraticHead, TokenData, sphere


def masked_data(trials: int = 3, seed: int = 0) -> TokenData:
    """K = 2 queries, some tokens hidden, e ≠ d, one linear head a query."""
    plain = sphere(3, 4, 5, trials=trials, seed=seed, queries=2, e=6)
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(plain.mask.shape, generator=generator) < 0.8
    mask[..., 0] = True
    v = torch.randn(trials, 2, 5, generator=generator, dtype=torch.float64)
    return TokenData(plain.X, plain.Z, plain.Y, mask, LinearHead(v))


def with_head(data: TokenData, kind: str, seed: int = 0) -> TokenData:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(data.B, 1, *shape, generator=generator, dtype=torch.float64)

    d = data.d
    head = {
        "linear": lambda: LinearHead(normal(d)),
        "quadratic": lambda: QuadraticHead(normal(d), normal().square() + 0.5),
        "mlp": lambda: MLPHead(normal(7, d), normal(7), normal(7)),
        "relu": lambda: MLPHead.sum_relu(data.B, d),
    }[kind]()
    return TokenData(data.X, data.Z, data.Y, data.mask, head)


def queries(data: TokenData):
    return itertools.product(range(data.B), range(data.n), range(data.K))


def visible(data: TokenData, b: int, i: int, k: int) -> list[int]:
    return [t for t in range(data.T) if data.mask[b, i, k, t]]


def score(data: TokenData, b: int, i: int, k: int, t: int) -> float:
    head = data.head
    assert head is not None
    x = data.X[b, i, t].expand(1, 1, data.K, 1, data.d)
    return (data.Y[b, i, k] * head[b : b + 1].value(x)[0, 0, k, 0]).item()


def logit(data: TokenData, W: Tensor, b: int, i: int, k: int, t: int) -> float:
    return (data.X[b, i, t] @ W[b] @ data.Z[b, i, k]).item()


def loss(data: TokenData, W: Tensor, name: str = "logistic") -> Tensor:
    """L(W) (B,), differentiable."""
    s = (torch.einsum("bntd,bde,bnke->bnkt", data.X, W, data.Z)).masked_fill(~data.mask, -torch.inf).softmax(-1)
    o = torch.einsum("bnkt,bntd->bnkd", s, data.X)
    assert data.head is not None
    f = data.Y * data.head.value(o[:, :, :, None])[..., 0]
    ell = {"logistic": lambda f: torch.log1p((-f).exp()), "exponential": lambda f: (-f).exp(), "correlation": torch.neg}
    return ell[name](f).sum((1, 2)) / data.n


def random_W(data: TokenData, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(data.B, data.d, data.e, generator=generator, dtype=torch.float64)


def random_tokens(data: TokenData, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(data.mask.shape, generator=generator) * data.mask).argmax(-1)
