"""Mini-batches: which samples of each trial a step sees.

The draws are a hash of (seed, trial, step or epoch, sample). So a trial sees the same batches alone and beside any
others, and a resumed run sees the same batches as an uninterrupted one, on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.checks import as_count
from attsvm.errors import AttsvmError

GOLDEN = -0x61C8864680B583EB
"""2⁶⁴/φ as a signed number: multiples of it fill the range evenly."""
MIXERS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))
"""Shifts and odd factors of splitmix64's finisher, signed."""


@dataclass(frozen=True)
class Batches:
    """Each step averages the gradient over `size` samples of its trial.

    Without `replace` every epoch passes through all samples in a random order; if `size` does not divide n, its last
    batch is smaller. With `replace` the samples of a step are independent draws.
    """

    size: int
    replace: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_count("size", self.size))
        object.__setattr__(self, "seed", as_count("seed", self.seed, least=0, most=2**63 - 1))

    def check_fits(self, n: int) -> None:
        if self.size > n and not self.replace:
            raise AttsvmError(f"batch must be at most the number of samples, {n}, but got {self.size}.")

    def log_weights(self, trials: Tensor, n: int, first: int, last: int) -> Tensor:
        """log(n × share of the batch) (steps, n, B) of every sample in the steps first..last; −∞ outside the batch."""
        k = torch.arange(first, last + 1, device=trials.device) - 1
        if self.replace:
            keys = self._hash(trials, k, self.size)
            # The upper 31 bits, so that the product with n stays in range.
            drawn = ((keys >> 33) & (2**31 - 1)) * n >> 31
            number = torch.arange(n, device=trials.device)
            counts = (drawn[:, :, None] == number[:, None]).sum(1)
        else:
            per_epoch = -(-n // self.size)
            keys = self._hash(trials, k // per_epoch, n)
            turn = keys.argsort(dim=1, stable=True).argsort(dim=1) // self.size
            counts = (turn == (k % per_epoch)[:, None, None]).long()
        return torch.log(counts.double() * n / counts.sum(1, keepdim=True))

    def _hash(self, trials: Tensor, counter: Tensor, width: int) -> Tensor:
        """Random whole numbers (len(counter), width, B)."""
        keys = _mixed(_mixed(trials.new_tensor(self.seed)) + GOLDEN * trials)
        keys = _mixed(keys + GOLDEN * counter[:, None])
        return _mixed(keys[:, None] + GOLDEN * torch.arange(1, width + 1, device=trials.device)[:, None])


def _mixed(x: Tensor) -> Tensor:
    """splitmix64: a bijection of the 64-bit numbers whose output bits depend on all input bits."""
    x = x + GOLDEN
    for shift, factor in MIXERS:
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * factor
    return x


def as_batches(batch: Batches | int | None, n: int) -> Batches | None:
    """Batches from a number of samples; None is all of them."""
    batches = batch if batch is None or isinstance(batch, Batches) else Batches(as_count("batch", batch))
    if batches is not None:
        batches.check_fits(n)
    return batches
