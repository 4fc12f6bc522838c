"""Step sizes η_k of the steps k = 1, 2, …"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attsvm.checks import as_real
from attsvm.errors import AttsvmError, describe


class Schedule(ABC):
    """A step size η_k = max(floor_k, ratio_k · size), where the rule gives the `size` of a block, usually ‖θ‖_*."""

    name: ClassVar[str]
    grows: ClassVar[bool] = True
    """Does the step size depend on the norm?"""

    @abstractmethod
    def at(self, k: int) -> tuple[float, float]:
        """(floor_k, ratio_k) of step k = 1, 2, …"""


@dataclass(frozen=True)
class Steps(Schedule):
    """η_k = function(k)."""

    function: Callable[[int], float]
    name: ClassVar[str] = "function"
    grows: ClassVar[bool] = False

    def at(self, k: int) -> tuple[float, float]:
        return as_real(f"lr at step {k}", self.function(k), least=0), 0.0


@dataclass(frozen=True)
class Constant(Schedule):
    """η_k = eta."""

    eta: float
    name: ClassVar[str] = "constant"
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", as_real("lr", self.eta, least=0))

    def at(self, k: int) -> tuple[float, float]:
        return self.eta, 0.0


@dataclass(frozen=True)
class Decaying(Schedule):
    """η_k = base/k^power."""

    base: float = 0.1
    power: float = 0.5

    name: ClassVar[str] = "decaying"
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_real("base", self.base, least=0))
        object.__setattr__(self, "power", as_real("power", self.power, least=0))

    def at(self, k: int) -> tuple[float, float]:
        return self.base / k**self.power, 0.0


@dataclass(frozen=True)
class Growing(Schedule):
    """η_k = max(base, factor·‖θ‖_*/k), in proportion to the norm of each trial.

    The direction moves by at most factor/k per step, so its error settles like 1/k². With constant steps the error
    falls no faster (p ≤ 2) or more slowly (p > 2), and starts far higher. The trajectory is a different one: a larger
    step may select other tokens.
    """

    base: float = 0.1
    factor: float = 4.0

    name: ClassVar[str] = "growing"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_real("base", self.base, least=0))
        object.__setattr__(self, "factor", as_real("factor", self.factor, least=0))

    def at(self, k: int) -> tuple[float, float]:
        return self.base, self.factor / k


Rate = float | Callable[[int], float] | Schedule


def as_schedules(lr: Rate | Mapping[str, Rate], blocks: tuple[str, ...]) -> dict[str, Schedule]:
    """A schedule for every block, from one for all or from a mapping that names them all."""
    if not isinstance(lr, Mapping):
        return dict.fromkeys(blocks, _as_schedule(lr))
    if set(lr) != set(blocks):
        raise AttsvmError(
            f"lr must name the blocks {', '.join(blocks)}, but it names {', '.join(map(str, lr)) or 'nothing'}."
        )
    return {name: _as_schedule(lr[name]) for name in blocks}


def _as_schedule(lr: Any) -> Schedule:
    if isinstance(lr, Schedule):
        return lr
    if callable(lr):
        rate: Callable[[int], Any] = lr
        return Steps(rate)
    try:
        return Constant(lr)
    except AttsvmError as error:
        raise AttsvmError(
            f"lr must be a number at least 0, a function of the step or a Schedule, but got {describe(lr)}."
        ) from error
