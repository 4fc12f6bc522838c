"""Norms that are made of the spectral or nuclear norms of blocks of W."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


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
