"""What pruning removes as one, entries, rows or heads, and which of them are the smallest."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.optim._heads import Heads, heads_of, layer_of
from attsvm.optim._shards import is_sharded, local

_MOST = 0x7F800000  # the bits of inf
_LEAST = 1e-30  # scores of what is not pruned yet: only what is has 0

Masks = Sequence[Tensor | None]


class Unit(NamedTuple):
    """What is pruned as one: the entries, rows or heads of one parameter, or of several with their heads in common."""

    params: tuple[Tensor, ...]
    scores: Callable[[Masks], Tensor]  # given masks, one for each unit: 0 if it is pruned, inf if it may not be yet
    size: int  # entries of a unit
    masks: Callable[[Tensor], Sequence[Tensor]]  # from which units stay to masks of the parameters


def units_of(named: list[tuple[str, Tensor]], structure: str | None, heads: int | None) -> list[Unit]:
    if heads is not None and structure == "head":
        return _heads(named, heads)
    made = []
    for name, param in named:
        shape = tuple(local(param).shape)
        if structure == "2:4" and shape[-1] % 4:
            raise AttsvmError(f'structure="2:4" needs rows of a multiple of 4 entries, but {name} is {shape}.')
        if structure == "row" and shape[1:] != param.shape[1:]:
            raise AttsvmError(
                f'structure="row" needs whole rows, but of {name} a rank has {shape}: leave it out of params.'
            )
        made.append({None: _entries, "2:4": _two_of_four, "row": _rows}[structure](param))
    return made


def fits(units: Sequence[Unit], share: float) -> bool:
    """Whether the share is that of at least one of the units."""
    entries = sum(param.numel() for unit in units for param in unit.params)
    return min(unit.size for unit in units) <= round(share * entries)


def _scored(scores: Tensor, stays: Tensor | None) -> Tensor:
    """What is pruned comes first, before what is 0 by chance: masks would grow by that otherwise."""
    scores = scores.float().clamp(min=_LEAST)
    return scores if stays is None else torch.where(stays, scores, 0)


def _entry_scores(param: Tensor, masks: Masks) -> Tensor:
    return _scored(local(param).abs(), None if masks[0] is None else local(masks[0]))


def _entries(param: Tensor) -> Unit:
    return Unit((param,), lambda masks: _entry_scores(param, masks), 1, lambda stays: (stays,))


def _two_of_four(param: Tensor) -> Unit:
    def scores(masks: Masks) -> Tensor:
        size = _entry_scores(param, masks)
        fours = size.unflatten(-1, (-1, 4))
        place = fours.argsort(dim=-1, stable=True).argsort(dim=-1)
        return torch.where(place < 2, fours, torch.inf).view(size.shape)

    return Unit((param,), scores, 1, lambda stays: (stays,))


def _rows(param: Tensor) -> Unit:
    def scores(masks: Masks) -> Tensor:
        stays = None if masks[0] is None else local(masks[0]).flatten(1).any(1)
        return _scored(local(param).abs().float().flatten(1).square().mean(1).sqrt(), stays)

    def masks(stays: Tensor) -> Sequence[Tensor]:
        return (stays.view(-1, *[1] * (param.ndim - 1)).expand(local(param).shape),)

    return Unit((param,), scores, math.prod(param.shape[1:]), masks)


def _heads(named: list[tuple[str, Tensor]], heads: int) -> list[Unit]:
    """Query, key and value matrices of one layer have their heads in common."""
    layers: dict[str, list[Heads]] = {}
    for name, param in named:
        if is_sharded(param):
            raise AttsvmError(f'structure="head" takes no sharded matrices, but {name} is one: leave it out of params.')
        found = heads_of(name, param, heads)
        if found is None:
            raise AttsvmError(
                f'structure="head" cannot tell {heads} heads of {name} ({"×".join(map(str, param.shape))}): '
                "correct heads, or leave the matrix out of params."
            )
        layer = layers.setdefault(layer_of(name)[0], [])
        if layer and layer[0].outputs != found.outputs:
            raise AttsvmError(
                f'structure="head" needs as many heads of keys and values as of queries, but {name} has '
                f"{found.outputs} outputs and another matrix of its layer {layer[0].outputs}: leave the layer out."
            )
        layer.append(found)
    return [_layer_of_heads(layer, heads) for layer in layers.values()]


def _layer_of_heads(layer: list[Heads], heads: int) -> Unit:
    params = tuple(found.weight for found in layer)
    size = sum(param.numel() for param in params) // heads

    def scores(masks: Masks) -> Tensor:
        sums = [found.blocks().abs().float().square().sum((0, 2)) for found in layer]
        score, stays = (torch.stack(sums).sum(0) / size).sqrt(), None
        if not any(mask is None for mask in masks):
            kept = [found._replace(weight=mask).blocks().any((0, 2)) for found, mask in zip(layer, masks)]
            stays = torch.stack(kept).any(0)
        return _scored(score, stays)

    return Unit(params, scores, size, lambda stays: [found.spread(stays) for found in layer])


def smallest(
    scores: Sequence[Tensor], sizes: Sequence[int], share: float, owners: Sequence[int] | None = None
) -> list[Tensor]:
    """Marks of the units with the smallest scores, which together have the share of all entries, rounded.

    Scores are at least 0; nan counts as the largest. By bisection over the bits of the threshold, so that nothing is
    sorted or gathered, and shards of one parameter need exchange no more than counts. Of shards `owners` are the ranks
    that count them.
    """
    bits = [score.float().abs().contiguous().view(torch.int32) for score in scores]  # a nan may have a sign
    device = bits[0].device
    rank = 0 if owners is None else dist.get_rank()
    owners = [0] * len(bits) if (alone := owners is None) else owners
    counted = [(b, size) for b, size, owner in zip(bits, sizes, owners) if owner == rank]

    def summed(value: int) -> int:
        if alone:
            return value
        count = torch.tensor(value, device=device)
        dist.all_reduce(count)
        return int(count)

    def entries(threshold: int) -> int:
        found = ((b <= threshold).sum().to(device) * size for b, size in counted)
        return summed(int(sum(found, torch.zeros((), dtype=torch.int64, device=device))))

    wanted = round(share * summed(sum(b.numel() * size for b, size in counted)))
    low, high = -1, _MOST - 1  # entries(low) ≤ wanted; what scores inf is never marked
    if entries(high) <= wanted:
        return [b <= high for b in bits]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if entries(middle) <= wanted else (low, middle)
    marks = [b <= low for b in bits]
    left = wanted - entries(low)
    # Of those that are as large as the first one kept, the first ones.
    ties = [(b == high).flatten().nonzero().flatten() for b in bits]
    counts = torch.tensor([len(tie) if owner == rank else 0 for tie, owner in zip(ties, owners)], device=device)
    by_rank = [counts]
    if not alone:
        by_rank = [torch.empty_like(counts) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, counts)
    for mark, tie, size, owner, of_ranks in zip(marks, ties, sizes, owners, torch.stack(by_rank, 1).tolist()):
        taken = min(left // size, sum(of_ranks))
        mark.view(-1)[tie[: max(taken - sum(of_ranks[:owner]), 0)]] = True
        left -= taken * size
    return marks


def relative(scores: Tensor, params: Sequence[Tensor], sharded: bool) -> Tensor:
    """Scores in units of the root mean square of all entries, zeros included; what is 0 stays the first, also where all
    is 0."""
    parts = [local(param).abs().float() for param in params]
    sums = torch.stack([torch.stack([part.square().sum(), part.new_tensor(part.numel())]) for part in parts]).sum(0)
    if sharded:
        dist.all_reduce(sums)
    size = (sums[0] / sums[1]).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(scores > _LEAST, scores / size, scores)
