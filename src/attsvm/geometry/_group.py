"""Sums and maxima of the Euclidean norms of groups of entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attsvm.checks import as_index
from attsvm.errors import AttsvmError
from attsvm.geometry._base import Paired, rounding
from attsvm.geometry._blocks import Blocks


@dataclass(frozen=True)
class Group(Paired):
    """‖W‖ = Σ_g ‖W_g‖_F over groups of entries (ℓ2,1), or its dual, the largest ‖W_g‖_F (ℓ2,∞, `largest`).

    `groups` is "rows", "columns", or a d × e array of group numbers 0..G−1. The sum selects few groups: whole rows of W
    are zero. There is no mirror map; `dual_unit` is a subgradient.
    """

    groups: Any
    largest: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.groups, str):
            if self.groups not in ("rows", "columns"):
                raise AttsvmError(f"groups must be 'rows', 'columns' or an array of numbers, but got {self.groups!r}.")
            return
        labels = as_index("groups", self.groups)
        if (
            labels.ndim != 2
            or labels.numel() == 0
            or set(labels.unique().tolist()) != set(range(int(labels.max()) + 1))
        ):
            raise AttsvmError("groups must be a d × e array of group numbers 0..G−1, all of them in use.")
        object.__setattr__(self, "groups", tuple(map(tuple, labels.tolist())))

    @property
    def name(self) -> str:
        kind = self.groups if isinstance(self.groups, str) else "own"
        return f"group{'-max' if self.largest else ''}:{kind}"

    @property
    def dual(self) -> Group:
        return Group(self.groups, not self.largest)

    def blocks(self, d: int, e: int) -> Blocks:
        numbers = torch.arange(d * e).reshape(d, e)
        kind: Literal["max", "sum"] = "max" if self.largest else "sum"
        if isinstance(self.groups, str):
            return Blocks((numbers if self.groups == "rows" else numbers.T)[..., None], kind)
        labels = torch.tensor(self.groups)
        if labels.shape != (d, e):
            raise AttsvmError(f"groups were given for W {tuple(labels.shape)}, but W is {(d, e)}.")
        count = torch.bincount(labels.flatten())
        index = torch.full((len(count), int(count.max())), -1)
        for g in range(len(count)):
            index[g, : count[g]] = numbers[labels == g]
        return Blocks(index[..., None], kind)

    def norm(self, W: Tensor) -> Tensor:
        sizes = self._sizes(W)
        return sizes.amax(-1) if self.largest else sizes.sum(-1)

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        norm = self.norm(W)
        return (norm if error is None else norm + self.norm(error)) * (1 + 4 * rounding(W) * max(W.shape[-2:]))

    def dual_unit(self, G: Tensor) -> Tensor:
        sizes = self._sizes(G)
        unit = torch.where(sizes > 0, 1 / sizes, 0.0)
        if not self.largest:  # all on the first of the largest groups
            unit = torch.where(
                torch.arange(sizes.shape[-1], device=G.device) == sizes.argmax(-1, keepdim=True), unit, 0.0
            )
        index = self.blocks(*G.shape[-2:]).index.to(G.device)
        spread = unit[..., None, None].expand(*unit.shape, *index.shape[1:]).flatten(-3)
        keep = index.flatten() >= 0
        factor = torch.zeros_like(G.flatten(-2))
        factor[..., index.flatten()[keep]] = spread[..., keep]
        return factor.reshape(G.shape) * G

    def _sizes(self, W: Tensor) -> Tensor:
        """‖W_g‖_F, `(..., d, e) -> (..., G)`; the gradient at 0 is 0."""
        if isinstance(self.groups, str):
            parts = W if self.groups == "rows" else W.mT
        else:
            parts = self.blocks(*W.shape[-2:]).cut(W.flatten(-2))[..., 0]
        largest = parts.detach().abs().amax(-1, keepdim=True)
        largest = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
        total = (parts / largest).square().sum(-1)
        zero = (total == 0).to(total.dtype)
        return ((total + zero).sqrt() - zero) * largest[..., 0]
