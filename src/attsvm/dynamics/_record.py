"""What a run can record, and at which steps."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attsvm.checks import as_count, as_index
from attsvm.data import TokenData
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry
from attsvm.objective import Attended, Blocks, Loss, combined, losses, trial_first

PER_DECADE = 20
"""Recorded steps per decade where they are spaced logarithmically."""
RECORDED_BYTES = 2e8
"""W is recorded by default, for the direction error along the run, if all copies together take no more than this."""


class View(NamedTuple):
    """A chunk of trials at a recorded step, trial last."""

    at: Attended
    blocks: Blocks
    loss: Loss
    geometry: Geometry


def _log_rest(view: View) -> Tensor:
    """log(1 − s) = log E − log(1 + E), with E as a sum of exponentials that need not be representable."""
    return torch.logsumexp(view.at.delta, 2) - torch.log1p(view.at.E[:, :, 0])


def _attention(view: View) -> Tensor:
    return view.at.weight + view.at.is_top / (1 + view.at.E)


QUANTITIES: dict[str, Callable[[View], Tensor]] = {
    "loss": lambda view: losses(view.at, view.loss).sum(1).mean(0),
    "norm": lambda view: view.geometry.norm(trial_first(combined(view.blocks))),
    "top_weight": lambda view: 1 / (1 + view.at.E[:, :, 0]),
    "log_rest": _log_rest,
    "tokens": lambda view: view.at.is_top.to(torch.uint8).argmax(2),
    "attention": _attention,
    "output": lambda view: view.at.f[:, :, 0],
    "W": lambda view: combined(view.blocks),
    "K": lambda view: view.blocks["K"],
    "Q": lambda view: view.blocks["Q"],
    "v": lambda view: view.blocks["v"][:, 0],
}
"""Each (…, B) for a chunk of trials."""


def as_record(
    record: Sequence[str] | None, blocks: Iterable[str], data: TokenData, planned: Sequence[int]
) -> tuple[str, ...]:
    """The names, once each, if these blocks have them; by default what a verdict with a rate needs."""
    if record is None:
        size = data.X.element_size() * data.B * data.d * data.e * len(planned)
        return ("loss", "norm", "top_weight", "log_rest", "tokens", *(("W",) if size <= RECORDED_BYTES else ()))
    known = [name for name in QUANTITIES if name not in ("K", "Q", "v") or name in blocks]
    names = (record,) if isinstance(record, str) else tuple(record)
    for name in names:
        if name not in known:
            raise AttsvmError(f"record must be among {', '.join(known)}, but got {describe(name)}.")
    return tuple(dict.fromkeys(names))


def measure(view: View, names: Iterable[str]) -> dict[str, Tensor]:
    """The named quantities, (B, …) each."""
    return {name: trial_first(QUANTITIES[name](view)) for name in names}


def plan(at: Sequence[int] | int | str, first: int, last: int) -> list[int]:
    """Steps in first..last to record, ascending and with `last`."""
    if isinstance(at, str):
        if at != "log":
            raise AttsvmError(f'at must be "log", a number of steps or a list of steps, but got {describe(at)}.')
        # The grid does not depend on the length of the run, so a longer run records the steps of a shorter one, too.
        steps, j = {0}, 0
        while (step := round(10 ** (j / PER_DECADE))) <= last:
            steps.add(step)
            j += 1
    elif isinstance(at, Sequence | torch.Tensor | np.ndarray):
        steps = set(as_index("at", at).flatten().tolist()) if len(at) else set()
        if steps and min(steps) < 0:
            raise AttsvmError(f"at must be steps at least 0, but got {min(steps)}.")
    else:
        steps = set(range(0, last + 1, as_count("at", at)))
    return sorted(step for step in steps | {last} if first <= step <= last)
