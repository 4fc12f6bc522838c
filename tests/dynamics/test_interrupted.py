"""A run with a checkpoint that is interrupted, wherever that is, goes on with the same bits."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from attsvm import TokenData, Trajectory, sphere, train
from attsvm.dynamics import Rule
from attsvm.objective import Gradient

STEPS = 60
OPTIONS: dict[str, Any] = {"steps": STEPS, "at": 20, "stop": 1e-9, "record": ["loss", "norm"]}


def ctrl_c() -> None:
    raise KeyboardInterrupt


def ctrl_c_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def own_handler() -> None:
    """What a program may do on SIGTERM."""
    raise SystemExit(143)


@dataclass(frozen=True)
class Descent(Rule):
    """Normalised gradient descent that may do something else before a call of `step` or `weights`."""

    name: ClassVar[str] = "interrupted descent"
    calls: ClassVar[dict[str, int]] = {}
    end: ClassVar[tuple[str, int, Callable[[], None]] | None] = None

    def _called(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.end is not None and self.end[:2] == (method, self.calls[method]):
            self.end[2]()

    def start(self, W: Tensor) -> dict[str, Tensor]:
        return {"W": W}

    def weights(self, state: dict[str, Tensor]) -> Tensor:
        self._called("weights")
        return state["W"]

    def step(self, state: dict[str, Tensor], gradient: Gradient, eta: Tensor) -> dict[str, Tensor]:
        self._called("step")
        return {"W": state["W"] - eta * gradient.G / gradient.G.norm(dim=(0, 1))}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> TokenData:
    """Trials in several chunks, which take turns."""
    monkeypatch.setattr("attsvm.objective._lanes.CACHED", {"cpu": 1.0})
    return sphere(2, 3, 4, trials=100, seed=1)


def interrupted(data: TokenData, path: Path, method: str, call: int, end: Callable[[], None]) -> Trajectory:
    """What is kept of a run that is interrupted there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Descent, "calls", {})
        patch.setattr(Descent, "end", (method, call, end))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(data, rule=Descent(), checkpoint=path, **OPTIONS)
    return Trajectory.load(path, rule=Descent())


@pytest.mark.parametrize("end", [ctrl_c, ctrl_c_twice, own_handler])
@pytest.mark.parametrize("method", ["step", "weights"])
@pytest.mark.parametrize("call", [2, 3, 38, 131])
def test_it_goes_on_with_the_same_bits(
    data: TokenData, tmp_path: Path, method: str, call: int, end: Callable[[], None]
) -> None:
    """The calls lie before the first step, between two chunks, and in the middle of one."""
    path = tmp_path / "run.safetensors"
    kept = interrupted(data, path, method, call, end)
    assert kept.state.step < STEPS
    resumed, whole = (train(data, rule=Descent(), checkpoint=x, **OPTIONS) for x in (path, tmp_path / "whole.npz"))
    assert torch.equal(resumed.W, whole.W)
    assert torch.equal(resumed.steps, whole.steps)
    assert all(torch.equal(resumed.records[name], x) for name, x in whole.records.items())


def test_what_every_trial_has_done_is_kept(data: TokenData, tmp_path: Path) -> None:
    """A segment has as many steps as all before it: at least half of the steps are kept."""
    chunks, checks = 4, 1
    for done in (1, 5, 20, 50):
        kept = interrupted(data, tmp_path / f"{done}.npz", "step", checks + chunks * done + 1, ctrl_c)
        assert done / 2 <= kept.state.step <= done


def test_a_first_ctrl_c_waits_for_the_other_trials(data: TokenData, tmp_path: Path) -> None:
    def once() -> None:
        signal.raise_signal(signal.SIGINT)

    assert interrupted(data, tmp_path / "run.npz", "step", 3, once).state.step == 1
