"""What a user's own functions do, as short digests: a file holds their names only, and a name may change its code."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from attsvm.data import FunctionHead, TokenData
from attsvm.derivatives import derivative
from attsvm.dynamics._schedules import Constant, Decaying, Growing, Schedule
from attsvm.objective import LOSSES, Added, Loss

DIGITS = {torch.float64: 9, torch.float32: 3}
"""Digits that are compared, so that the rounding of another machine does not make another function."""
LARGEST_F = 8.0
"""Losses are compared at outputs f between −8 and 8."""
LAST_POWER = 20
"""Step sizes are compared at the steps 1, 2, 4, …, 2^20."""


def fingerprints(data: TokenData, loss: Loss, schedules: Iterable[Schedule]) -> dict[str, str]:
    """A digest for the loss, the head and the step sizes each, where they are the user's own."""
    digits, found = DIGITS[data.dtype], {}
    if (loss.loss if isinstance(loss, Added) else loss) not in LOSSES.values():
        f = torch.linspace(-LARGEST_F, LARGEST_F, 65).to(data.X)[:, None, None].expand(-1, 2, 1).clone()
        found["loss function"] = _digest(digits, [(g, f) for g in (loss.value, loss.slope)])
    if isinstance(data.head, FunctionHead):
        head, d = data.head, data.d
        x = torch.sin(torch.arange(1, 16 * d + 1, dtype=torch.float64)).reshape(1, 4, 1, 4, d).to(data.X)
        x = x * torch.logspace(-4, 3, 16, base=2, dtype=torch.float64).reshape(1, 4, 1, 4, 1).to(x)
        found["head function"] = _digest(digits, [(head.h, x), (lambda at: derivative(head.h, at), x)])
    own = [schedule.at for schedule in schedules if type(schedule) not in (Constant, Decaying, Growing)]
    if own:
        found["lr function"] = _digest(9, [(at, 2**i) for at in own for i in range(LAST_POWER + 1)])
    return found


def _digest(digits: int, calls: list[tuple[Callable[[Any], Any], Any]]) -> str:
    total = hashlib.sha256()
    for function, argument in calls:
        try:
            result = function(argument)
        except Exception as error:  # a function may refuse a point that no run comes to
            total.update(type(error).__name__.encode())
            continue
        for part in result if isinstance(result, tuple) else (result,):
            numbers = part.reshape(-1).tolist() if isinstance(part, Tensor) else [part]
            total.update(" ".join(f"{x:.{digits}g}" for x in numbers).encode())
    return total.hexdigest()[:16]
