"""A run in progress: chunks of trials that advance from one recorded step to the next."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.dynamics._compile import Stepper
from attsvm.dynamics._lanes import Lanes, chunks, trial_first, trial_last
from attsvm.dynamics._record import View, measure
from attsvm.dynamics._schedules import Constant, Schedule
from attsvm.dynamics._step import Blocks, Rule, attend, parameters
from attsvm.dynamics._trajectory import TrainState
from attsvm.errors import AttsvmError
from attsvm.geometry import Frobenius, Geometry

SEGMENT = 2000
"""Steps that a chunk of trials takes in a row, while it is in the cache, before the next one has its turn."""

Row = tuple[int, dict[str, Tensor]]


@dataclass
class _Chunk:
    lanes: Lanes
    theta: Blocks


class Run:
    """Trials in chunks, all at the same step."""

    def __init__(
        self,
        data: TokenData,
        rule: Rule,
        schedules: dict[str, Schedule],
        limit: Geometry,
        stepper: Stepper,
        state: TrainState,
    ) -> None:
        self.data, self.rule, self.schedules = data, rule, schedules
        self.limit, self.stepper = limit, stepper
        self.step = state.step
        self.chunks = [self._chunk(trials, state) for trials in chunks(data)]

    def _chunk(self, trials: Tensor, state: TrainState) -> _Chunk:
        theta = {name: trial_last(block[trials]) for name, block in state.theta.items()}
        return _Chunk(Lanes.of(self.data[trials], fixed_head="v" not in theta), theta)

    def until(
        self,
        planned: Sequence[int],
        record: Sequence[str],
        stop: float | None,
        report: Callable[[float], None],
    ) -> list[Row]:
        """Advance to every planned step in turn and record there, up to the last or until all directions rest."""
        rows: list[Row] = []
        direction = None
        for target in planned:
            self._advance(target, report)
            rows.append((target, self.measure(record)))
            if stop is not None:
                before, direction = direction, self._direction()
                if before is not None and bool(((direction - before).square().sum((1, 2)) <= stop**2).all()):
                    break
        return rows

    def measure(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named quantities of all trials, (B, …) each."""
        parts = [measure(self._view(chunk), names) for chunk in self.chunks]
        return {name: torch.cat([part[name] for part in parts])[: self.data.B] for name in names}

    def end(self) -> dict[str, Any]:
        """Where the run is now: the fields W, tokens, v, factors and state of a Trajectory."""
        names = self.chunks[0].theta.keys()
        final = self.measure(["W", "tokens", *(name for name in names if name != "W")])
        theta = {
            name: torch.cat([trial_first(chunk.theta[name]) for chunk in self.chunks])[: self.data.B] for name in names
        }
        return {
            "W": final["W"],
            "tokens": final["tokens"],
            "v": final.get("v"),
            "factors": (final["K"], final["Q"]) if "K" in final else None,
            "state": TrainState(self.step, theta, self.stepper.compiled),
        }

    def _view(self, chunk: _Chunk) -> View:
        blocks = parameters(self.rule, chunk.theta)
        return View(attend(chunk.lanes, blocks), blocks, self.rule.loss, self.limit)

    def _direction(self) -> Tensor:
        return Frobenius().unit(self.measure(["W"])["W"])

    def _advance(self, target: int, report: Callable[[float], None]) -> None:
        while self.step < target:
            last = min(target, self.step + SEGMENT)
            for number, chunk in enumerate(self.chunks, start=1):
                try:
                    for floor, ratio in self._rates(last):
                        chunk.theta = self.stepper(chunk.lanes, self.rule, chunk.theta, floor, ratio)
                except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
                    raise AttsvmError(
                        f"W must stay finite, but it left the range of {self.data.dtype} between the steps "
                        f"{self.step} and {last}: take a smaller lr."
                    ) from error
                report(self.step + (last - self.step) * number / len(self.chunks))
            self.step = last

    def _rates(self, last: int) -> Iterator[tuple[Blocks, Blocks]]:
        """The two numbers of the step sizes, for the steps after the present one."""
        constant = all(isinstance(schedule, Constant) for schedule in self.schedules.values())
        rates = None
        for k in range(self.step + 1, last + 1):
            if rates is None or not constant:
                pairs = {name: schedule.at(k) for name, schedule in self.schedules.items()}
                floor, ratio = ({name: self._scalar(pair[i]) for name, pair in pairs.items()} for i in (0, 1))
                rates = floor, ratio
            yield rates

    def _scalar(self, x: float) -> Tensor:
        return self.data.X.new_tensor(x)
