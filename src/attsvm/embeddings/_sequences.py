"""Labelled sequences of tokens, of any lengths."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_index
from attsvm.errors import AttsvmError


@dataclass(frozen=True, eq=False)
class Sequences:
    """n sequences with labels: `ids` (N,) one after the other, sequence i is ids[offsets[i]:offsets[i + 1]].

    ids are token numbers below `size` = |S|; Y (n,) are ±1. `count` (N,) says how often the token occurs in its
    sequence. All models here ignore order, so a token that repeats can be kept once (`merged`).
    """

    ids: Tensor
    offsets: Tensor
    Y: Tensor
    size: int
    count: Tensor

    @classmethod
    def of(cls, ids: Any, offsets: Any, Y: Any, size: int | None = None) -> Sequences:
        """From flat token numbers, offsets (n + 1,) and labels ±1."""
        ids, offsets = as_index("ids", ids), as_index("offsets", offsets)
        labels = as_index("Y", Y) if not isinstance(Y, Tensor) or not Y.is_floating_point() else Y
        if ids.ndim != 1 or offsets.ndim != 1 or len(offsets) < 2:
            raise AttsvmError("ids must be (N,) and offsets (n + 1,) with n ≥ 1.")
        if offsets[0] != 0 or offsets[-1] != len(ids) or not bool((offsets.diff() > 0).all()):
            raise AttsvmError(f"offsets must rise from 0 to N = {len(ids)}: every sequence needs a token.")
        if labels.shape != (len(offsets) - 1,):
            raise AttsvmError(f"Y must be {len(offsets) - 1} labels ±1, but got shape {tuple(labels.shape)}.")
        if not bool((labels.abs() == 1).all()):
            raise AttsvmError(f"Y must be labels ±1, but got {labels[labels.abs() != 1][0]:g}.")
        largest = int(ids.max())
        size = largest + 1 if size is None else as_count("size", size)
        if int(ids.min()) < 0 or largest >= size:
            raise AttsvmError(f"ids must be in 0..{size - 1}, but they range from {int(ids.min())} to {largest}.")
        return cls(ids, offsets, labels.to(torch.float64), size, torch.ones(len(ids), dtype=torch.float64))

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], Y: Any, size: int | None = None) -> Sequences:
        """From a list of token numbers for every sequence, or an array (n, T)."""
        lengths = torch.tensor([0, *(len(sequence) for sequence in sequences)])
        try:
            ids = [operator.index(token) for sequence in sequences for token in sequence]
        except TypeError as error:
            raise AttsvmError(f"sequences must hold token numbers, which are whole: {error}.") from error
        return cls.of(ids, lengths.cumsum(0), Y, size)

    @property
    def n(self) -> int:
        return len(self.Y)

    @property
    def row(self) -> Tensor:
        """(N,) the sequence of every entry."""
        number = torch.arange(self.n, device=self.ids.device)
        # Given its size, there is no need to wait for the device.
        return torch.repeat_interleave(number, self.offsets.diff(), output_size=len(self.ids))

    @property
    def lengths(self) -> Tensor:
        """(n,) tokens of every sequence, repeated ones counted."""
        return torch.zeros_like(self.Y).index_add_(0, self.row, self.count)

    def merged(self) -> Sequences:
        """Every token of a sequence once, with its count; in the order of their numbers."""
        pair, inverse = torch.unique(self.row * self.size + self.ids, return_inverse=True)
        count = torch.zeros(len(pair), dtype=self.count.dtype, device=self.ids.device)
        count.index_add_(0, inverse, self.count)
        entries = torch.bincount(pair // self.size, minlength=self.n)
        offsets = torch.cat([entries.new_zeros(1), entries.cumsum(0)])
        return replace(self, ids=pair % self.size, offsets=offsets, count=count)

    def take(self, index: Tensor) -> Sequences:
        """Some of the sequences, in this order."""
        entries = self.offsets.diff()[index]
        offsets = torch.cat([entries.new_zeros(1), entries.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[index] - offsets[:-1], entries)
        entry = torch.arange(len(shift), device=self.ids.device) + shift
        return replace(self, ids=self.ids[entry], offsets=offsets, Y=self.Y[index], count=self.count[entry])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Sequences:
        """The same sequences elsewhere, labels and counts in `dtype`."""
        moved = {name: getattr(self, name).to(device=device) for name in ("ids", "offsets")}
        moved |= {name: getattr(self, name).to(device=device, dtype=dtype) for name in ("Y", "count")}
        return replace(self, **moved)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Sequences({self.n} sequences, {int(self.count.sum())} tokens, vocabulary {self.size})"
