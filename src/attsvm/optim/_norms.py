"""Dual norms of gradients, by which normalised steps divide; of sharded gradients the norm of the whole."""

# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm.optim._mirror_map import inverse_exponent

Sums = tuple[Tensor, Tensor]


def dual_norms(
    grads: list[Tensor],
    pieces: list[Tensor],
    p: float,
    by: str,
    fused: Callable[[list[Tensor], float], Sums | None] | None = None,
) -> list[Tensor]:
    """‖g‖_q of every gradient, or of all together (by="group") once for each; 1 where it is 0. `pieces` are what counts
    of them here."""
    q = 1 + inverse_exponent(p)
    largest, sums = (fused(pieces, q) if fused else None) or _power_sums(pieces, q)
    # Of shards: the sum in units of the largest entry of all.
    most = _reduce(largest, grads, "MAX")
    sums = _reduce(sums * (largest / _scale(most)) ** q, grads, "SUM")
    norms = torch.where(most.isfinite(), _scale(most) * sums ** (1 / q), most)
    if by == "group":
        most = norms.max()
        norms = (_scale(most) * torch.linalg.vector_norm(norms / _scale(most), q)).expand(len(grads))
    return list(torch.where(norms == 0, 1.0, norms).unbind())


def _power_sums(grads: list[Tensor], q: float) -> Sums:
    """Of every gradient the largest |g| = m, and Σ (|g|/m)^q: |g|^11 (p = 1.1) leaves float32 at |g| = 1e-4."""
    grads = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in grads]
    zero = grads[0].new_zeros(())
    largest = torch.stack([torch.linalg.vector_norm(g, math.inf) if g.numel() else zero for g in grads])
    sums = [torch.linalg.vector_norm(g / s, q) ** q for g, s in zip(grads, _scale(largest))]
    return largest, torch.stack(sums)


def _scale(largest: Tensor) -> Tensor:
    return torch.where((largest > 0) & largest.isfinite(), largest, 1.0)


def _reduce(values: Tensor, grads: list[Tensor], op: str) -> Tensor:
    """One value a gradient, combined over the ranks that hold its shards."""
    groups: dict[tuple[Any, int], list[int]] = {}
    for i, grad in enumerate(grads):
        for axis, placement in enumerate(getattr(grad, "placements", ())):
            if placement.is_shard():
                groups.setdefault((getattr(grad, "device_mesh"), axis), []).append(i)  # noqa: B009
    values = values.clone() if groups else values
    for (mesh, axis), indices in groups.items():
        part = values[indices]
        torch.distributed.all_reduce(part, getattr(torch.distributed.ReduceOp, op), group=mesh.get_group(axis))
        values[indices] = part
    return values
