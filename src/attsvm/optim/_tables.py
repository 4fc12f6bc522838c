"""Tables of addresses on the device: what one launch needs to serve many tensors.

Under capture of a CUDA graph the graph itself copies the table, from pinned memory that was set aside by a step before
the capture, where pinned memory may not be allocated.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Pinned memory for the table of a step that may be captured, by its first weight and size; and what graphs read.
_set_aside: dict[tuple[int, int], Tensor] = {}
_in_graphs: list[Tensor] = []


class Table(NamedTuple):
    rows: Tensor  # addresses and size of every tensor (tensors, columns)
    blocks: Tensor  # of every block its tensor and its place in it (blocks, 2)
    first: Tensor  # of every tensor its first block, and the number of blocks (tensors + 1,)


def table_of(rows: Sequence[Sequence[Tensor]], weight: Tensor, block: int, capturable: bool) -> Table | None:
    """The table of `rows` on the device; None in a capture that no step with this first weight came before."""
    device = weight.device
    addresses = tuple([(*[t.data_ptr() for t in row], row[0].numel()) for row in rows])
    stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0
    if not capturable:
        return _table(addresses, block, device, stream)
    host, shapes = _host_table(addresses, block)
    key = weight.data_ptr(), len(host)
    if not torch.cuda.is_current_stream_capturing():
        if key not in _set_aside:
            _set_aside[key] = torch.empty(len(host), dtype=torch.int64, pin_memory=True)
        return _table(addresses, block, device, stream)
    pinned = _set_aside.pop(key, None)
    if pinned is None:
        return None
    _in_graphs.append(pinned.copy_(host))  # every replay copies it
    return _cut(torch.empty_like(host, device=device).copy_(pinned, non_blocking=True), shapes)


@lru_cache(maxsize=64)
def _table(addresses: tuple[tuple[int, ...], ...], block: int, device: torch.device, stream: int) -> Table:
    """The content depends on the arguments alone: a table made for earlier tensors at these addresses still holds."""
    host, shapes = _host_table(addresses, block)
    if device.type == "cuda":
        host = host.pin_memory().to(device, non_blocking=True)
    return _cut(host, shapes)


def _host_table(addresses: tuple[tuple[int, ...], ...], block: int) -> tuple[Tensor, list[torch.Size]]:
    # The fastest way from numbers to a tensor: this is done in every step in which a gradient has a new address.
    numbers = torch.from_numpy(np.fromiter(chain.from_iterable(addresses), dtype=np.int64))
    rows = numbers.view(len(addresses), -1)
    parts = rows, *_blocks(tuple([row[-1] for row in addresses]), block)
    return torch.cat([part.flatten() for part in parts]), [part.shape for part in parts]


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...], block: int) -> tuple[Tensor, Tensor]:
    """`Table.blocks` and `Table.first`: sizes stay where addresses change from step to step."""
    counts = (torch.tensor(sizes, device="cpu") + block - 1) // block
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tensor = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    place = torch.arange(len(tensor), device="cpu") - first[tensor]
    return torch.stack([tensor, place], dim=1), first


def _cut(table: Tensor, shapes: list[torch.Size]) -> Table:
    parts = table.split([shape.numel() for shape in shapes])
    return Table(*(part.view(shape) for part, shape in zip(parts, shapes)))
