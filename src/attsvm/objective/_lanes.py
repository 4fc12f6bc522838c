"""The data with the trial as the last axis.

Every operation of a step then runs over many trials side by side, which suits the vector units of a CPU and the threads
of a GPU, however small n, T and d are. And a trial's arithmetic does not depend on its neighbours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.data import Head, LinearHead, TokenData

LANE_BYTES = 256
"""Trials are padded to a multiple of this many bytes: 32 numbers of float64, 64 of float32. Sums take four of the
longest vectors at a time and add the remainder in another order. With padding there is no remainder, so a trial's bits
do not depend on the number of trials."""
CACHED = {"cpu": 3.2e6, "cuda": 4e9}
"""Bytes per chunk of trials: what stays in a core's cache from step to step, or fits on a GPU."""
SMALL = 2**17
"""Up to this many products n·K·d·max(e, T) per trial, a contraction is a fused multiply and sum."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """Some trials, the trial last: X (n, T, d, B), Z (n, K, e, B), Y (n, K, 1, B), hidden (n, K, T, B).

    `scores` (n, K, T, B) are those of a linear head, which do not change while it is fixed; `head` is any other
    fixed head; joint training has neither. `hidden` is None where nothing is masked. `ties` says whether two tokens of
    a query may have equal scores.
    """

    X: Tensor
    Z: Tensor
    Y: Tensor
    hidden: Tensor | None
    scores: Tensor | None
    head: Head | None
    small: bool
    ties: bool = True

    @classmethod
    def of(cls, data: TokenData, fixed_head: bool) -> "Lanes":
        linear = fixed_head and isinstance(data.head, LinearHead)
        scores = None
        if linear and data.head is not None:
            scores = trial_last(data.Y[..., None] * data.head.of_tokens(data.X))
        return cls(
            X=trial_last(data.X),
            Z=trial_last(data.Z),
            Y=trial_last(data.Y[..., None]),
            hidden=None if bool(data.mask.all()) else trial_last(~data.mask),
            scores=scores,
            head=data.head if fixed_head and not linear else None,
            small=is_small(data),
            ties=not linear or bool((data.scores().sort(-1).values.diff(dim=-1) == 0).any()),
        )


def is_small(data: TokenData) -> bool:
    """Whether trials are so small that several share a vector of the processor."""
    return data.n * data.K * data.d * max(data.e, data.T) <= SMALL


def trial_last(x: Tensor) -> Tensor:
    """The trial as the last axis, where the inner loops want it."""
    return x.movedim(0, -1).contiguous()


def trial_first(x: Tensor) -> Tensor:
    """The trial as the first axis again."""
    return x.movedim(-1, 0)


def chunks(data: TokenData) -> list[Tensor]:
    """Trial numbers, cut into chunks of one size that fill whole vectors; the last trial pads the last chunk."""
    B, lanes = data.B, LANE_BYTES // data.X.element_size() if is_small(data) else 1
    if B == 0:
        return [torch.arange(0, device=data.device)]
    size = data.X.element_size() * (data.X[0].numel() + data.Z[0].numel() + 2 * data.d * data.e)
    most = max(1, int(CACHED.get(data.device.type, 4e9) / size / lanes)) * lanes
    count = -(-B // most)
    width = -(-B // (count * lanes)) * lanes
    return list(torch.arange(count * width, device=data.device).clamp(max=B - 1).split(width))
