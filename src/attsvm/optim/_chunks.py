"""The multi-tensor form: many small tensors are stepped as one, large ones in pieces that stay in a CPU's cache."""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attsvm.optim._mirror_map import NO_SCRATCH, Scratch

# Entries of a chunk: on a CPU for each thread up to MOST, elsewhere of small tensors together (a large one is alone).
CACHED = 1 << 18
MOST = 1 << 21
GATHERED = 1 << 22
SMALL = 1 << 13  # so few entries are sooner copied than stepped alone

Row = list[Tensor]


def chunks(
    params: list[Tensor], grads: list[Tensor], *states: list[Tensor], keys: Sequence[Any] | None = None
) -> Iterator[tuple[Any, Row, Scratch]]:
    """Rows (weight, gradient, a tensor of each state) that together hold every entry once, of one key each.

    What the caller writes to a row's tensors, other than the gradient, is in the parameters and states when the
    iterator has come to its end.
    """
    kinds: dict[tuple[torch.device, torch.dtype, torch.dtype, Any], list[Row]] = {}
    for i, row in enumerate(zip(params, grads, *states)):
        key = None if keys is None else keys[i]
        kinds.setdefault((row[0].device, row[0].dtype, row[1].dtype, key), []).append(list(row))
    for (device, _, _, key), rows in kinds.items():
        on_cpu = device.type == "cpu"
        limit = min(CACHED * torch.get_num_threads(), MOST) if on_cpu else GATHERED
        scratch, shape = NO_SCRATCH, None
        for chunk in _gathered(rows, limit, on_cpu):
            theta = chunk[2]
            if on_cpu and theta.shape != shape:
                fits = theta.numel() <= limit and theta.is_contiguous()
                scratch = tuple(_buffer(k, theta, theta.shape) for k in range(3)) if fits else NO_SCRATCH
                shape = theta.shape
            yield key, chunk, scratch


_own = threading.local()  # its `buffers`: the memory by number


def _buffer(k: int, like: Tensor, shape: Sequence[int]) -> Tensor:
    """Memory that this thread keeps from step to step: to touch a new page costs as much as much arithmetic."""
    size = math.prod(shape)
    buffers: dict[int, Tensor] = _own.__dict__.setdefault("buffers", {})
    kept = buffers.get(k)
    if kept is None or kept.numel() < size * like.itemsize:
        kept = buffers[k] = torch.empty(size * like.itemsize, dtype=torch.uint8)
    return kept[: size * like.itemsize].view(like.dtype).view(shape)


def _gathered(rows: list[Row], limit: int, cut: bool) -> Iterator[Row]:
    """Small rows together, large ones alone, in pieces if they are to be cut."""
    small: list[Row] = []
    size = 0
    for row in rows:
        numel = row[0].numel()
        if numel > SMALL or not all(t.is_contiguous() for t in row):
            yield from _pieces(row, limit) if cut else [row]
        elif numel > 0:
            small.append(row)
            size += numel
            if size > limit - SMALL:
                yield from _as_one(small)
                small, size = [], 0
    if small:
        yield from _as_one(small)


def _pieces(row: Row, limit: int) -> Iterator[Row]:
    if row[0].numel() <= limit or not all(t.is_contiguous() for t in row):
        yield row
        return
    flat = {id(t): t.view(-1).split(limit) for t in row}  # a weight that is its own mirror variable stays so
    yield from ([*piece] for piece in zip(*(flat[id(t)] for t in row)))


def _as_one(rows: list[Row]) -> Iterator[Row]:
    if len(rows) == 1:
        yield rows[0]
        return
    columns = {id(column[0]): [t if t.ndim == 1 else t.view(-1) for t in column] for column in zip(*rows)}
    sizes = [row[0].numel() for row in rows]
    joined = {}
    for k, (key, column) in enumerate(columns.items()):
        out = _buffer(3 + k, column[0], [sum(sizes)]) if column[0].device.type == "cpu" else None
        joined[key] = torch.cat(column, out=out)
    yield [joined[id(t)] for t in rows[0]]
    for key, column in columns.items():
        if key != id(rows[0][1]):
            torch.split_with_sizes_copy(joined[key], sizes, out=column)
