"""A run as an object: its trials, its curves, its table."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm import (
    AttsvmError,
    TokenData,
    att_svm,
    basins,
    cone_start,
    margin_efficiency,
    solve,
    sphere,
    verdict,
)
from attsvm.dynamics import Gaussian, Trajectory, train

KINDS = {"W": "l3", "KQ": "nuclear", "joint": "l2"}
OPTIONS: dict[str, Any] = {"init": Gaussian(0.1), "record": ["W", "loss", "top_weight"]}


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(3, 4, 5, trials=4, seed=2, queries=2)


def trained(data: TokenData, kind: str) -> Trajectory:
    return train(data, KINDS[kind], kind, steps=6, **OPTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_some_trials_are_the_run_of_these_trials(data: TokenData, kind: str) -> None:
    run = trained(data, kind)
    alone = trained(data[[3, 1]], kind)
    assert alone.W.shape == (2, 5, 5)
    assert (alone.v is not None) == (kind == "joint")
    assert alone.v is None or alone.v.shape == (2, 5)
    assert alone.factors is None or [x.shape for x in alone.factors] == [(2, 5, 5)] * 2
    for chosen in ([3, 1], torch.tensor([3, 1])):
        some = run[chosen]
        assert len(some) == 2
        for a, b in zip(parts(some), parts(alone), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert torch.equal(run[torch.tensor([False, True, False, True])].W, run.W[[1, 3]])
    assert torch.equal(run[2:].records["loss"], run.records["loss"][:, 2:])
    assert torch.equal(torch.cat([one.W for one in run]), run.W)
    # A part of a run resumes as the whole does.
    whole = train(data, KINDS[kind], kind, steps=9, resume=run, **OPTIONS)
    part = train(data[[3, 1]], KINDS[kind], kind, steps=9, resume=run[[3, 1]], **OPTIONS)
    torch.testing.assert_close(part.W, whole.W[[3, 1]], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("which", [slice(None, None, -1), [], [True, False, False, True], -1, np.int64(2)])
def test_runs_and_solutions_are_picked_as_data_are(data: TokenData, which: Any) -> None:
    run, solution, some = train(data, steps=2), solve(att_svm(data)), data[which]
    assert torch.equal(run[which].data.X, some.X)
    assert torch.equal(run[which].W, run.W[some.trials])
    assert torch.equal(solution[which].W, solution.W[some.trials])


@pytest.mark.parametrize("which", [4, "a", [[0, 1]], 0.5, [9]])
def test_trials_that_are_not_there_are_refused(data: TokenData, which: Any) -> None:
    for batch in (data, train(data, steps=2), solve(att_svm(data))):
        with pytest.raises(AttsvmError, match=r"must be numbers below B = 4|must be one-dimensional"):
            batch[which]


def parts(run: Trajectory) -> list[Tensor]:
    tensors = [run.data.X, run.W, run.tokens, *run.records.values(), *(run.factors or ())]
    tensors += [x for block in run.state.blocks.values() for x in block.values()]
    return tensors + ([] if run.v is None else [run.v])


def made(data: TokenData, **records: Tensor) -> Trajectory:
    W = torch.ones(3, 4, 5, 5, dtype=torch.float64)
    return Trajectory.of(data, W, steps=[1, 10, 100], records=records)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_another_program_comes_back_from_its_file(data: TokenData, kind: str, tmp_path: Path) -> None:
    v = torch.ones(4, 5) if kind == "joint" else None
    run = Trajectory.of(data, torch.randn(2, 4, 5, 5), KINDS[kind], kind, v=v, steps=[3, 7], lr=0.1)
    run.save(tmp_path / "run.npz")
    again = Trajectory.load(tmp_path / "run.npz")
    assert torch.equal(again.W, run.W)
    assert str(verdict(again)) == str(verdict(run))
    with pytest.raises(AttsvmError, match="resume must"):
        train(data, KINDS[kind], kind, steps=9, resume=again, **OPTIONS)


def test_wrong_runs_of_other_programs_are_refused(data: TokenData) -> None:
    W = torch.ones(4, 5, 5)
    for make, words in (
        (lambda: Trajectory.of(5, W), "data must be TokenData"),  # type: ignore[arg-type]
        (lambda: Trajectory.of(data, W, lr="a"), "lr must be a number"),  # type: ignore[arg-type]
        (lambda: Trajectory.of(data, W, records={"loss": [1.0, 2.0]}), "loss must begin with the axes"),
        (lambda: margin_efficiency(W, data), "solution must be a MaxMargin"),  # type: ignore[arg-type]
        (lambda: basins(5), "data must be TokenData"),  # type: ignore[arg-type]
        (lambda: cone_start(5), "data must be TokenData"),  # type: ignore[arg-type]
    ):
        with pytest.raises(AttsvmError, match=words):
            make()


def lines(ax: Any) -> dict[str, list[float]]:
    return {line.get_label(): line.get_ydata().tolist() for line in ax.get_lines()}


def test_curves_are_medians_of_means_and_of_the_least_certain_query(data: TokenData) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    weight = torch.rand(3, 4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat = weight.flatten(2)
    ax = made(data, top_weight=weight, loss=flat[:, :, 0]).plot(ax=figure.subplots())
    drawn = lines(ax)
    assert drawn["mean over queries"] == pytest.approx(flat.mean(2).quantile(0.5, 1).tolist())
    assert drawn["least certain query"] == pytest.approx(flat.amin(2).quantile(0.5, 1).tolist())
    assert ax.get_yscale() == "linear"
    assert ax.get_title() == "W in l2, 4 trials"
    ax = made(data, log_rest=weight.log()).plot("log_rest", figure.subplots())
    drawn = lines(ax)
    assert drawn["mean over queries"] == pytest.approx((flat.log() / math.log(10)).mean(2).quantile(0.5, 1).tolist())
    assert drawn["least certain query"] == pytest.approx(flat.log10().amax(2).quantile(0.5, 1).tolist())
    ax = made(data, top_weight=weight, norm=flat[:, :, 1]).plot("norm", figure.subplots())
    assert lines(ax)["norm"] == pytest.approx(flat[:, :, 1].quantile(0.5, 1).tolist())
    assert ax.get_lines()[0].get_xdata().tolist() == [1, 10, 100]
    assert ax.get_yscale() == "log"
    with pytest.raises(AttsvmError, match="quantity must be recorded"):
        made(data, norm=flat[:, :, 1]).plot("loss")
    with pytest.raises(AttsvmError, match="but got None and records none"):
        train(data, steps=1, record=()).plot()


def test_the_table_has_a_row_per_step_and_trial(data: TokenData) -> None:
    pytest.importorskip("pyarrow")
    weight = torch.rand(3, 4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = made(data, top_weight=weight, loss=weight[:, :, 0, 0]).to_dataframe()
    columns = {name: list(table[name]) for name in ("step", "trial", "top_weight", "loss")}
    columns = {name: [getattr(x, "as_py", lambda x=x: x)() for x in column] for name, column in columns.items()}
    assert columns["step"] == [1] * 4 + [10] * 4 + [100] * 4
    assert columns["trial"] == [0, 1, 2, 3] * 3
    assert columns["top_weight"] == weight.flatten(2).amin(2).flatten().tolist()
    assert columns["loss"] == weight[:, :, 0, 0].flatten().tolist()


@pytest.mark.parametrize("steps", [[-1, 3, 5], [1, 1, 2], [3, 2, 4], [1, 2]])
def test_steps_of_a_run_ascend_from_0(data: TokenData, steps: list[int]) -> None:
    with pytest.raises(AttsvmError, match="steps must be 3 ascending numbers"):
        Trajectory.of(data, torch.ones(3, 4, 5, 5), steps=steps)
    assert Trajectory.of(data, torch.ones(3, 4, 5, 5)).steps.tolist() == [0, 1, 2]
