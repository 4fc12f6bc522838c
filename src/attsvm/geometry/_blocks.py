"""Norms that are made of the spectral or nuclear norms of blocks of W."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, eq=False)
class Blocks:
    """‖W‖ is the largest spectral norm ("max") or the sum of the nuclear norms ("sum") of blocks of W.

    `index` (G, k, h) are the entries of the blocks as numbers i·e + j, −1 where a block is smaller than k × h. Norms of
    blocks are multiplied by their `weight` (G,) if there is one.
    """

    index: Tensor
    kind: Literal["max", "sum"]
    weight: Tensor | None = None

    @classmethod
    def entries(cls, d: int, e: int, kind: Literal["max", "sum"]) -> Blocks:
        """A block per entry: ℓ∞ or ℓ1."""
        return cls(torch.arange(d * e).reshape(-1, 1, 1), kind)

    @classmethod
    def whole(cls, d: int, e: int, kind: Literal["max", "sum"]) -> Blocks:
        """One block: the spectral or the nuclear norm."""
        return cls(torch.arange(d * e).reshape(1, d, e), kind)

    def weights(self, like: Tensor) -> Tensor:
        """(G, 1, 1), 1 where there are none."""
        weight = torch.ones(len(self.index)) if self.weight is None else self.weight
        return weight.to(like)[:, None, None]

    def cut(self, V: Tensor) -> Tensor:
        """The blocks (…, G, k, h) of entries (…, d·e), filled up with 0."""
        return pad(V, (0, 1))[..., self.index.to(V.device)]  # −1 is the 0 at the end

    def joined(self, V: Tensor, d: int, e: int) -> Tensor:
        """The matrices (B, d, e) with the blocks V (B, G, k, h)."""
        flat = V.new_zeros(len(V), d * e + 1)
        flat[:, self.index.to(V.device).flatten()] = V.flatten(1)
        return flat[:, :-1].unflatten(1, (d, e))
