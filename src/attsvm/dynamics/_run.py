"""A run in progress: chunks of trials that advance from one recorded step to the next."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import check_returned
from attsvm.data import TokenData
from attsvm.dynamics._batches import Batches
from attsvm.dynamics._compile import Stepper
from attsvm.dynamics._record import View, measure
from attsvm.dynamics._rules import Rule, State
from attsvm.dynamics._schedules import Constant, Schedule
from attsvm.dynamics._step import Method, States, parameters
from attsvm.dynamics._trajectory import TrainState
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Frobenius, Geometry
from attsvm.named import is_users
from attsvm.objective import Blocks, Gradient, Lanes, attend, chunks, trial_first, trial_last

SEGMENT = 2000
"""A chunk of trials takes at most this many steps in a row, while it is in the cache, before the next has its turn."""
SECONDS = 5.0
"""After about this time all chunks are at the same step, and the run can be saved."""

DRAWN = 256
"""Mini-batches are drawn for this many steps at once."""

Row = tuple[int, dict[str, Tensor]]


@dataclass
class _Chunk:
    lanes: Lanes
    states: States
    trials: Tensor
    """Their numbers."""


def first_states(data: TokenData, rule: Rule, blocks: Blocks) -> dict[str, dict[str, Tensor]]:
    """The states at the weights `blocks` (B, …), (B, …) each. They are made in chunks, as in a run, so that a trial's
    bits do not depend on the others."""
    parts = [{name: rule.start(trial_last(block[trials])) for name, block in blocks.items()} for trials in chunks(data)]
    for state in parts[0].values():
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise AttsvmError(
                f"rule {rule.name}: start must return a dict of tensors by name, but got {describe(state)}."
            )
    if is_users(rule):
        for name, block in blocks.items():
            _check_rule(rule, parts[0][name], trial_last(block[next(iter(chunks(data)))]))
    return {
        name: {key: torch.cat([trial_first(part[name][key]) for part in parts])[: data.B] for key in state}
        for name, state in parts[0].items()
    }


def _check_rule(rule: Rule, state: State, W: Tensor) -> None:
    """Refuse a user's rule whose `weights` or `step` return something else than weights like W, or a state."""
    check_returned(f"rule {rule.name}: weights", rule.weights(state), W.shape)
    G = torch.randn(W.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(W)
    given = {key: old.clone() for key, old in state.items()}
    new: Any = rule.step(given, Gradient(G, torch.zeros_like(W[0, 0])), W.new_tensor(0.1))
    same = (torch.equal(given[key].nan_to_num(), old.nan_to_num()) for key, old in state.items())
    if given.keys() != state.keys() or not all(same):
        raise AttsvmError(f"rule {rule.name}: step must leave the state it gets as it is, but it changed it in place.")
    if not isinstance(new, dict) or new.keys() != state.keys():
        raise AttsvmError(
            f"rule {rule.name}: step must return a state like that of start, a dict of {', '.join(state)}, but got "
            f"{describe(new) if not isinstance(new, dict) else 'a dict of ' + ', '.join(map(str, new))}."
        )
    for key, old in state.items():
        check_returned(f"rule {rule.name}: step, for {key},", new[key], old.shape)


class Run:
    """Trials in chunks, all at the same step."""

    def __init__(
        self,
        data: TokenData,
        method: Method,
        schedules: dict[str, Schedule],
        limit: Geometry,
        stepper: Stepper,
        state: TrainState,
        batches: Batches | None = None,
    ) -> None:
        self.data, self.method, self.schedules = data, method, schedules
        self.limit, self.stepper, self.batches = limit, stepper, batches
        self.step, self.segment = state.step, 1
        self.direction = state.direction
        self.rows: list[Row] = []
        self.chunks = [self._chunk(trials, state) for trials in chunks(data)]
        self._keep()

    def _chunk(self, trials: Tensor, state: TrainState) -> _Chunk:
        states = {
            name: {key: trial_last(x[trials]) for key, x in block.items()} for name, block in state.blocks.items()
        }
        data = self.data[trials]
        return _Chunk(Lanes.of(data, fixed_head="v" not in states), states, data.trials.to(data.device))

    def until(
        self,
        planned: Sequence[int],
        record: Sequence[str],
        stop: float | None,
        report: Callable[[float], None],
        pause: Callable[[], None],
    ) -> None:
        """Advance to each planned step and record there, up to the last one or until no direction moves.

        `pause` is called every few seconds, when all trials are at the same step.
        """
        if stop is None:
            self.direction = None
        for target in planned:
            self._advance(target, report, pause)
            self.rows.append((target, self.measure(record)))
            if stop is not None:
                before, now = self.direction, self._direction()
                rests = before is not None and bool(((now - before).square().sum((1, 2)) <= stop**2).all())
                if rests or target == planned[-1]:  # a resumed run compares this step with the same one
                    break
                self.direction = now

    def measure(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named quantities of all trials, (B, …) each."""
        parts = [measure(self._view(chunk), names) for chunk in self.chunks]
        return {name: torch.cat([part[name] for part in parts])[: self.data.B] for name in names}

    def end(self) -> dict[str, Any]:
        """Where the run is now: the fields W, tokens, v, factors and state of a Trajectory."""
        names = self.chunks[0].states.keys()
        final = self.measure(["W", "tokens", *(name for name in names if name != "W")])
        blocks = {name: {key: self._whole(name, key) for key in self.chunks[0].states[name]} for name in names}
        return {
            "W": final["W"],
            "tokens": final["tokens"],
            "v": final.get("v"),
            "factors": (final["K"], final["Q"]) if "K" in final else None,
            "state": TrainState(self.step, blocks, self.stepper.compiled, self.direction),
        }

    def _whole(self, name: str, key: str) -> Tensor:
        return torch.cat([trial_first(chunk.states[name][key]) for chunk in self.chunks])[: self.data.B]

    def _view(self, chunk: _Chunk) -> View:
        blocks = parameters(self.method.rule, chunk.states)
        return View(attend(chunk.lanes, blocks), blocks, self.method.loss, self.limit)

    def _direction(self) -> Tensor:
        return Frobenius().unit(self.measure(["W"])["W"])

    def _keep(self) -> None:
        self._kept = self.step, self.direction, len(self.rows), [chunk.states for chunk in self.chunks]

    def back(self) -> None:
        """To where all trials were at the same step for the last time, from wherever an interrupt ended `until`."""
        self.step, self.direction, rows, states = self._kept
        del self.rows[rows:]
        for chunk, state in zip(self.chunks, states):
            chunk.states = state

    def _advance(self, target: int, report: Callable[[float], None], pause: Callable[[], None]) -> None:
        while self.step < target:
            start, last = time.monotonic(), min(target, self.step + self.segment)
            for number, chunk in enumerate(self.chunks, start=1):
                try:
                    step = self.stepper.repeated()
                    for rates, batch in zip(self._rates(last), self._batches(chunk, last)):
                        chunk.states = step(chunk.lanes, self.method, chunk.states, *rates, *batch)
                except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
                    raise AttsvmError(
                        f"W must stay finite, but it left the range of {self.data.dtype} between the steps "
                        f"{self.step} and {last}: take a smaller lr."
                    ) from error
                report(self.step + (last - self.step) * number / len(self.chunks))
            each = (time.monotonic() - start) / (last - self.step)
            self.segment = max(1, min(SEGMENT, 2 * self.segment, int(SECONDS / max(each, 1e-9))))
            self.step = last
            self._keep()
            pause()

    def _rates(self, last: int) -> Iterator[tuple[Blocks, Blocks]]:
        """The two numbers of the step sizes, for the steps after the current one."""
        constant = all(isinstance(schedule, Constant) for schedule in self.schedules.values())
        rates = None
        for k in range(self.step + 1, last + 1):
            if rates is None or not constant:
                pairs = {name: schedule.at(k) for name, schedule in self.schedules.items()}
                floor, ratio = ({name: self._scalar(pair[i]) for name, pair in pairs.items()} for i in (0, 1))
                rates = floor, ratio
            yield rates

    def _batches(self, chunk: _Chunk, last: int) -> Iterator[tuple[Tensor, ...]]:
        """The weights of the samples, for the steps after the current one; nothing where all count alike."""
        if self.batches is None:
            yield from repeat((), last - self.step)
            return
        for first in range(self.step + 1, last + 1, DRAWN):
            upto = min(last, first + DRAWN - 1)
            weights = self.batches.log_weights(chunk.trials, self.data.n, first, upto).to(self.data.dtype)
            yield from ((weight[:, None, None],) for weight in weights)

    def _scalar(self, x: float) -> Tensor:
        return self.data.X.new_tensor(x)
