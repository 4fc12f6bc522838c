"""φ₂(x) = (eˣ − 1 − x)/x², the one scalar function behind every Bregman divergence of this package.

Both |w|^p and the hyperbolic entropy are exponentials in the right coordinate, and the divergence of an
exponential is e^y − 1 − y. Written with φ₂, divergences are sums of positive terms: nothing cancels.
"""

import math

import torch
from torch import Tensor

# 1/2!, 1/3!, …, 1/19!: enough for double precision on |x| ≤ 1.
_SERIES = [1 / math.factorial(n) for n in range(2, 20)]


def _series(x: Tensor) -> Tensor:
    total = torch.full_like(x, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        total = total * x + coefficient
    return total


def phi2_minus(y: Tensor) -> Tensor:
    """φ₂(−y) = (e^(−y) − 1 + y)/y² for y ≥ 0."""
    return torch.where(y < 1, _series(-y), (torch.expm1(-y) + y) / y.square())


def phi2_plus(y: Tensor) -> Tensor:
    """e^(−y) φ₂(y) = (1 − (1 + y) e^(−y))/y² for y ≥ 0; the factor e^(−y) keeps it below 1/2."""
    decay = torch.exp(-y)
    return torch.where(y < 1, decay * _series(y), (-torch.expm1(-y) - y * decay) / y.square())
