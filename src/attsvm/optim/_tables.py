"""Tables of addresses on the device: what one launch needs to serve many tensors.

Under capture of a CUDA graph the graph itself copies the addresses, from pinned memory that was set aside by a step
before the capture, where pinned memory may not be allocated. Blocks depend on sizes alone: graphs read those of that
step.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Addresses = tuple[tuple[int, ...], ...]

SPLIT = 1 << 22  # with so many entries in aligned tensors, they get a launch of their own where there are others


class Blocks(NamedTuple):
    blocks: Tensor  # of every block its tensor and its place in it (blocks, 2)
    first: Tensor  # of every tensor its first block, and the number of blocks (tensors + 1,)


class Table(NamedTuple):
    rows: Tensor  # addresses and size of every tensor (tensors, columns)
    blocks: Tensor
    first: Tensor
    aligned: int  # so many blocks, the first ones, are of tensors that may be read by 16 bytes


# Pinned memory for the addresses of a step that may be captured, and its blocks; and what graphs read.
_set_aside: dict[tuple[int, int, tuple[int, ...], int], tuple[Tensor, Blocks]] = {}
_in_graphs: list[Tensor] = []


def table_of(
    rows: Sequence[Sequence[Tensor]], weight: Tensor, block: int, capturable: bool, aligned_first: bool = False
) -> Table | None:
    """The table of `rows` on the device; None in a capture that no step with this first weight came before. With
    `aligned_first` its tensors may change their order. The last of a row is then a number, of any alignment."""
    device = weight.device
    addresses = tuple([(*[t.data_ptr() for t in row], row[0].numel()) for row in rows])
    stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0
    if not capturable:
        return _table(addresses, block, aligned_first, device, stream)
    host, sizes, aligned = _host_rows(addresses, block, aligned_first)
    key = weight.data_ptr(), host.shape[1], sizes, block
    if not torch.cuda.is_current_stream_capturing():
        table = _table(addresses, block, aligned_first, device, stream)
        if key not in _set_aside:
            pinned = torch.empty_like(host, pin_memory=True)
            _set_aside[key] = pinned, Blocks(table.blocks, table.first)
        return table
    pinned, blocks = _set_aside.pop(key, (None, None))
    if pinned is None or blocks is None:
        return None
    _in_graphs.extend([pinned.copy_(host), *blocks])  # every replay copies the addresses
    rows_there = torch.empty_like(host, device=device).copy_(pinned, non_blocking=True)
    return Table(rows_there, *blocks, aligned)


@lru_cache(maxsize=64)
def _table(addresses: Addresses, block: int, aligned_first: bool, device: torch.device, stream: int) -> Table:
    """The content depends on the arguments alone: a table made for earlier tensors at these addresses still holds."""
    host, sizes, aligned = _host_rows(addresses, block, aligned_first)
    blocks = _blocks(sizes, block, device, stream)
    return Table(_to(device, host), *blocks, aligned)


def _host_rows(addresses: Addresses, block: int, aligned_first: bool) -> tuple[Tensor, tuple[int, ...], int]:
    """Rows, sizes, and the number of blocks that are taken as aligned."""
    # The fastest way from numbers to a tensor: this is done in every step in which a gradient has a new address.
    numbers = np.fromiter(chain.from_iterable(addresses), dtype=np.int64).reshape(len(addresses), -1)
    sizes, aligned = numbers[:, -1], 0
    if aligned_first:
        loose = ((np.bitwise_or.reduce(numbers[:, :-2], axis=1) | sizes) & 15) != 0
        if not loose.any() or sizes[~loose].sum() >= SPLIT:
            aligned = int(((sizes[~loose] + block - 1) // block).sum())
            numbers = numbers[np.argsort(loose, kind="stable")]
    return torch.from_numpy(numbers), tuple(numbers[:, -1].tolist()), aligned


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...], block: int, device: torch.device, stream: int) -> Blocks:
    """Sizes stay where addresses change from step to step."""
    counts = (torch.tensor(sizes, device="cpu") + block - 1) // block
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tensor = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    place = torch.arange(len(tensor), device="cpu") - first[tensor]
    return Blocks(_to(device, torch.stack([tensor, place], dim=1)), _to(device, first))


def _to(device: torch.device, host: Tensor) -> Tensor:
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
