"""The largest of several norms, each on its own part of W."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_index, as_real
from attsvm.errors import AttsvmError, describe
from attsvm.geometry._base import Geometry
from attsvm.geometry._blocks import Blocks
from attsvm.geometry._lp import Lp
from attsvm.named import from_facts


@dataclass(frozen=True)
class Part:
    """Rows [start, stop) and columns [start, stop) of W, their norm and its weight."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    geometry: Geometry
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            ends = as_index(f"{name} of a Part", getattr(self, name)).tolist()
            if not (isinstance(ends, list) and len(ends) == 2 and 0 <= ends[0] < ends[1]):
                raise AttsvmError(f"{name} of a Part must be (start, stop) with 0 ≤ start < stop, but got {ends}.")
            object.__setattr__(self, name, tuple(ends))
        if not isinstance(self.geometry, Geometry):
            raise AttsvmError(f"geometry of a Part must be a Geometry, but got {describe(self.geometry)}.")
        object.__setattr__(self, "weight", as_real("weight", self.weight, least=0))
        if not self.weight > 0:
            raise AttsvmError("the weight of a Part must be positive.")

    def of(self, W: Tensor) -> Tensor:
        return W[..., slice(*self.rows), slice(*self.columns)]


@dataclass(frozen=True)
class Hybrid(Geometry):
    """‖W‖ = max_l c_l‖W_l‖ over parts W_l that cover W without overlap; the dual norm is Σ_l ‖G_l‖_*/c_l.

    It is the norm of an optimizer that treats parts of W differently: sign descent on some (ℓ∞), spectral descent on
    others. `solve` takes parts with ℓ2, ℓ∞, spectral and largest-group norms. There is no mirror map.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        parts = tuple(_from_file(part) if isinstance(part, dict) else part for part in self.parts)
        if not parts or not all(isinstance(part, Part) for part in parts):
            raise AttsvmError("parts must be a sequence of Part(rows, columns, geometry, weight).")
        object.__setattr__(self, "parts", parts)

    @property
    def name(self) -> str:
        return "hybrid:" + "+".join(part.geometry.name for part in self.parts)

    def norm(self, W: Tensor) -> Tensor:
        return torch.stack([p.weight * p.geometry.norm(V) for p, V in self._cut(W)]).amax(0)

    def dual_norm(self, G: Tensor) -> Tensor:
        return torch.stack([p.geometry.dual_norm(V) / p.weight for p, V in self._cut(G)]).sum(0)

    def dual_unit(self, G: Tensor) -> Tensor:
        W = torch.zeros_like(G)
        for part, V in self._cut(G):
            part.of(W).copy_(part.geometry.dual_unit(V) / part.weight)
        return W

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        errors = [None if error is None else p.of(error) for p in self.parts]
        bounds = [p.weight * p.geometry.norm_bound(V, E) for (p, V), E in zip(self._cut(W), errors)]
        return torch.stack(bounds).amax(0) * (1 + 2.0**-50)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        errors = [None if error is None else p.of(error) for p in self.parts]
        bounds = [p.geometry.dual_norm_bound(V, E) / p.weight for (p, V), E in zip(self._cut(G), errors)]
        return torch.stack(bounds).sum(0) * (1 + (len(bounds) + 2) * 2.0**-52)

    def blocks(self, d: int, e: int) -> Blocks:
        numbers = torch.arange(d * e).reshape(d, e)
        found: list[tuple[Tensor, float]] = []
        for part, inside in self._cut(numbers):
            weights = None
            if part.geometry == Lp(2):
                index = inside.reshape(1, -1, 1)
            else:
                blocks = part.geometry.blocks(*inside.shape)
                if blocks is None or blocks.kind != "max":
                    raise AttsvmError(
                        f"a Hybrid with {part.geometry.name} cannot be solved: use parts with l2, linf, spectral or "
                        "group-max norms."
                    )
                index, weights = torch.where(blocks.index >= 0, inside.flatten()[blocks.index], -1), blocks.weight
            inner = [1.0] * len(index) if weights is None else weights.tolist()  # of a Hybrid in a Hybrid
            found += [(block, part.weight * weight) for block, weight in zip(index, inner)]
        k, h = (max(block.shape[axis] for block, _ in found) for axis in (0, 1))
        pad = torch.nn.functional.pad
        index = torch.stack([pad(x, (0, h - x.shape[1], 0, k - x.shape[0]), value=-1) for x, _ in found])
        return Blocks(index, "max", torch.tensor([weight for _, weight in found], dtype=torch.float64))

    def _cut(self, W: Tensor) -> Iterator[tuple[Part, Any]]:
        d, e = W.shape[-2:]
        count = torch.zeros(d, e, dtype=torch.int)
        for part in self.parts:
            part.of(count).add_(1)
        area = sum((p.rows[1] - p.rows[0]) * (p.columns[1] - p.columns[0]) for p in self.parts)
        if area != d * e or not bool((count == 1).all()):
            raise AttsvmError(f"the parts of a Hybrid must cover W {(d, e)} exactly once.")
        return ((part, part.of(W)) for part in self.parts)


def _from_file(facts: dict[str, Any]) -> Part:
    """The part that a file describes."""
    given = {name: value for name, value in facts.items() if name != "kind"}
    given["geometry"] = from_facts(Geometry, "geometry", given.get("geometry"))
    try:
        return Part(**given)
    except TypeError as error:
        raise AttsvmError(f"a Part must have other parameters: {error}.") from error
