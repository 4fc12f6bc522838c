"""The multi-tensor form: many small tensors are stepped as one, large ones in pieces that stay in a CPU's cache."""

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attsvm.optim._edits import Watch
from attsvm.optim._mirror_map import NO_SCRATCH, Scratch, follow

# Entries of a chunk: on a CPU for each thread up to MOST, elsewhere of small tensors together (a large one is alone).
CACHED = 1 << 18
MOST = 1 << 21
GATHERED = 1 << 22
SMALL = 1 << 14  # so few entries are sooner copied than stepped and watched alone
MOST_VIEWS = 256  # of buffers: to make some anew in every step takes as long as a few passes

Row = Sequence[Tensor]


class Chunk(NamedTuple):
    key: Any
    row: Row  # weight, mirror variable, its rest, gradient and states, of all parts together
    parts: Sequence[Row]  # the tensors, or pieces of one, that the chunk is made of
    scratch: Scratch


def chunks(
    params: list[Tensor],
    mirrors: list[Tensor],
    rests: list[Tensor],
    grads: list[Tensor],
    *states: list[Tensor],
    small: int,
    keys: Sequence[Any] | None = None,
    gathered: int | None = None,
    alone: bool = False,
    watch: Watch | None = None,
    p: float = 2.0,
) -> Iterator[Chunk]:
    """Chunks that together hold every entry once, of one key each; on a CPU tensors of up to `small` entries together.
    With `alone` every tensor is a chunk.

    What the caller writes to a row's tensors, other than the gradient, is in the parameters and states when the
    iterator has come to its end. In a row of several parts the weight, unless it is its own mirror variable, must be
    written and has no value before. With `gathered`, on a CPU only so many columns are put together: a row of several
    parts has no others. `watch` sees the weights before and after they are stepped, at p.
    """
    kinds: dict[tuple[torch.device, torch.dtype, torch.dtype, Any, Watch | None, Watch | None], list[Row]] = {}
    for i, row in enumerate(zip(params, mirrors, rests, grads, *states)):
        key = None if keys is None else keys[i]
        watched = None if row[0] is row[1] else watch
        looks, signs = (watched, watched) if watched is None else watched.duties(row[1])
        if alone:
            if looks is not None:
                looks.before([row], row[0], p)
            elif torch.compiler.is_compiling():  # every entry is compared
                follow([row[0]], [row[1]], [row[2]], p)
            yield Chunk(key, row, [row], NO_SCRATCH)
            if signs is not None:
                signs.after([row], row[0])
            continue
        kinds.setdefault((row[0].device, row[0].dtype, row[3].dtype, key, looks, signs), []).append(row)
    for (device, _, _, key, looks, signs), rows in kinds.items():
        on_cpu = device.type == "cpu"
        limit = min(CACHED * torch.get_num_threads(), MOST) if on_cpu else GATHERED
        small = min(small, limit) if on_cpu else SMALL
        scratch, shape = NO_SCRATCH, None
        for parts in _parts(rows, limit, small, on_cpu):
            row = parts[0]
            weights = _flat(each[0] for each in parts) if len(parts) > 1 else []
            if looks is not None:
                looks.before(parts, _together(weights) if weights else row[0], p)
            for row in _as_one(parts, weights, gathered if on_cpu else None):
                theta = row[1]
                if on_cpu and theta.shape != shape:
                    fits = theta.numel() <= limit and theta.is_contiguous()
                    scratch = tuple(kept.view(k, theta.dtype, theta.shape) for k in range(2)) if fits else NO_SCRATCH
                    shape = theta.shape
                yield Chunk(key, row, parts, scratch)
            if signs is not None:
                signs.after(parts, row[0])


class _Kept(threading.local):
    """Memory that a thread keeps from step to step: to touch a new page costs as much as much arithmetic."""

    def __init__(self) -> None:
        self.buffers: dict[int, Tensor] = {}
        self.views: dict[Any, Any] = {}

    def view(self, k: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The k-th buffer, as a tensor."""
        view = self.views.get((k, dtype, shape))
        if view is None:
            size = math.prod(shape) * dtype.itemsize
            if k not in self.buffers or self.buffers[k].numel() < size:
                self.buffers[k] = torch.empty(size, dtype=torch.uint8, device="cpu")
                self.views.clear()
            view = self._keep((k, dtype, shape), self.buffers[k][:size].view(dtype).view(shape))
        return view

    def split(self, x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
        """`x.split(sizes)` of an x in a buffer."""
        key = (x.data_ptr(), x.dtype, sizes)
        return self.views.get(key) or self._keep(key, [*x.split(sizes)])

    def _keep(self, key: Any, value: Any) -> Any:
        if len(self.views) >= MOST_VIEWS:
            self.views.clear()
        self.views[key] = value
        return value


kept = _Kept()


def _parts(rows: list[Row], limit: int, small: int, cut: bool) -> Iterator[Sequence[Row]]:
    """Small rows together, large ones alone, in pieces if they are to be cut."""
    parts: list[Row] = []
    size = 0
    for row in rows:
        numel = row[0].numel()
        if numel > small or not are_contiguous(row):
            yield from _pieces(row, limit) if cut else [[row]]
        elif numel > 0:
            if size + numel > limit:
                yield parts
                parts, size = [], 0
            parts.append(row)
            size += numel
    if parts:
        yield parts


def are_contiguous(row: Row) -> bool:
    return all(map(Tensor.is_contiguous, row))


def _pieces(row: Row, limit: int) -> Iterator[Sequence[Row]]:
    numel = row[0].numel()
    if numel <= limit or not are_contiguous(row):
        yield [row]
        return
    size = math.ceil(numel / math.ceil(numel / limit))
    flat = {id(t): t.view(-1).split(size) for t in row}  # a weight that is its own mirror variable stays so
    yield from ([piece] for piece in zip(*(flat[id(t)] for t in row)))


def _together(weights: list[Tensor]) -> Tensor:
    """Flat weights as one; on a CPU in the buffer to which the step will write them: no page is new."""
    if not weights[0].is_cpu:
        return torch.cat(weights)
    return torch.cat(weights, out=kept.view(2, weights[0].dtype, (sum(map(Tensor.numel, weights)),)))


def _flat(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t if t.ndim == 1 else t.view(-1) for t in tensors]


def _as_one(parts: Sequence[Row], weights: list[Tensor], gathered: int | None) -> Iterator[Row]:
    if len(parts) == 1:
        yield parts[0]
        return
    first = parts[0][:gathered]
    on_cpu = first[0].is_cpu
    columns = {id(t): _flat(row[k] for row in parts) if k else weights for k, t in enumerate(first)}
    sizes = tuple(t.numel() for t in columns[id(first[0])])
    shape = (sum(sizes),)
    joined = {}
    for k, (key, column) in enumerate(columns.items()):
        joined[key] = kept.view(2 + k, column[0].dtype, shape) if on_cpu else column[0].new_empty(shape)
        if k > 0 or first[0] is first[1]:  # a weight apart from its mirror variable is not read
            torch.cat(column, out=joined[key])
    yield [joined[id(t)] for t in first]
    for key, column in columns.items():
        if key != id(parts[0][3]):
            if on_cpu:
                parts_of = kept.split(joined[key], sizes)
                torch._foreach_copy_(column, parts_of)  # pyright: ignore[reportPrivateImportUsage]
            else:
                torch.split_with_sizes_copy(joined[key], sizes, out=column)
