"""Compiled steps: the shortcut to the compiler's code changes nothing."""

import pytest
import torch

from attsvm import MLPHead, TokenData, sphere
from attsvm.dynamics import Growing, Trajectory, _compile, train
from attsvm.native import compiler
from attsvm.objective import _lanes

pytestmark = pytest.mark.skipif(compiler() is None, reason="no compiler")


def of_two_chunks(monkeypatch: pytest.MonkeyPatch) -> TokenData:
    monkeypatch.setitem(_lanes.CACHED, "cpu", 1.0)  # a chunk is one vector of trials
    return sphere(3, 4, 5, trials=64, seed=1)


def bits(run: Trajectory) -> list[torch.Tensor]:
    return [run.W] + [x for state in run.state.blocks.values() for x in state.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"rule": "adam", "batch": 2},
        {"rule": "muon"},
        {"parameterization": "KQ", "ridge": 1e-9},
        {"parameterization": "joint", "lr": Growing()},
        {"loss": "correlation"},
    ],
    ids=["adam", "muon", "KQ", "joint", "MLP"],
)
def test_the_shortcut_is_taken_and_changes_no_bit(options: dict, monkeypatch: pytest.MonkeyPatch):
    data = of_two_chunks(monkeypatch)
    if "loss" in options:
        data = TokenData(data.X, data.Z, data.Y, data.mask, MLPHead.sum_relu(data.B, data.d))
    taken = []

    def noted(*args):
        taken.append(direct(*args))
        return taken[-1]

    direct = _compile._direct
    monkeypatch.setattr(_compile, "_direct", noted)
    ours = train(data, steps=20, compile=True, **options)
    assert taken
    assert None not in taken
    monkeypatch.setattr(_compile.Stepper, "repeated", lambda self: self)
    compilers = train(data, steps=20, compile=True, **options)
    assert all(torch.equal(x, y) for x, y in zip(bits(ours), bits(compilers)))


def test_chunks_may_differ_in_whether_tokens_are_masked(monkeypatch: pytest.MonkeyPatch):
    data = of_two_chunks(monkeypatch)
    mask = data.mask.clone()
    mask[40:, :, :, -1] = False
    data = TokenData(data.X, data.Z, data.Y, mask, data.head)
    eager, compiled = (train(data, steps=30, compile=choice).W for choice in (False, True))
    torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-12)
