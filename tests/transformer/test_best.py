"""The weights of the best epoch, and what is left of a run that diverged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._transformer import app
from attsvm.transformer import Reached, Settings, evaluate, fit, load_model, synthetic_sentiment
from attsvm.transformer._checkpoint import read_run
from attsvm.transformer._evaluate import best_epoch

SIZES = {"width": 16, "hidden": 24, "layers": 2, "length": 16}
TEXTS = synthetic_sentiment(48, 21, length=16)
RUN = Settings("adamw", lr=1e-2, sizes=SIZES, batch=16, epochs=8, stop=2.0)


class Watch:
    """Keeps the weights at the end of every epoch; makes them nan from an epoch on."""

    def __init__(self, nan_from: float = math.inf) -> None:
        self.nan_from, self.steps = nan_from, 0
        self.weights: list[dict[str, torch.Tensor]] = []

    def __call__(self, progress: Reached) -> None:
        self.steps += 1
        if progress.epoch >= self.nan_from:
            torch.nn.init.constant_(next(progress.model.parameters()), math.nan)
        if progress.batch == progress.batches:
            self.weights.append({name: w.clone() for name, w in progress.model.state_dict().items()})


def assert_equal(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_the_weights_of_the_best_epoch_are_kept(tmp_path: Path) -> None:
    watch = Watch()
    fitted = fit(TEXTS, RUN, out=tmp_path, report=watch)
    accuracies = [row["test_accuracy"] for row in fitted.history]
    best = accuracies.index(max(accuracies))
    assert best < len(accuracies) - 1  # else the last weights would do
    model = load_model(tmp_path, best=True)
    assert_equal(model, watch.weights[best])
    assert evaluate(model, TEXTS.test)["test_accuracy"] == max(accuracies)
    assert_equal(load_model(tmp_path), watch.weights[-1])
    assert read_run(tmp_path / "best.safetensors")[1]["place"]["epoch"] == best + 1


@pytest.mark.parametrize("step", [2, 7, 14, 22])
def test_a_resumed_run_keeps_the_same_best_weights(step: int, tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    fit(TEXTS, RUN, out=straight)
    stops = iter([False] * (step - 1) + [True])
    assert fit(TEXTS, RUN, out=tmp_path / "cut", stop=lambda: next(stops)).stopped == "interrupted"
    fit(TEXTS, RUN, out=tmp_path / "cut")
    assert_equal(load_model(tmp_path / "cut", best=True), load_model(straight, best=True).state_dict())


def test_best_weights_of_another_run_go(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"old")
    (tmp_path / ".best.0123456789ab.tmp.safetensors").write_bytes(b"half")
    fit(TEXTS, RUN, out=tmp_path, stop=lambda: True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    with pytest.raises(AttsvmError, match="has no epoch yet whose weights could be kept"):
        load_model(tmp_path, best=True)


def test_the_best_epoch_is_the_first_of_equals_and_has_a_finite_loss() -> None:
    rows = [(0.5, 0.6), (0.4, 0.8), (0.3, 0.8), (math.nan, 0.9), (math.inf, 1.0)]
    history = [{"test_loss": loss, "test_accuracy": accuracy} for loss, accuracy in rows]
    assert best_epoch(history) is history[1]
    assert best_epoch(history[3:]) is None


def test_a_diverged_run_has_its_best_weights(tmp_path: Path) -> None:
    watch = Watch(nan_from=3)
    lost = fit(TEXTS, RUN, out=tmp_path, report=watch)
    assert (lost.stopped, len(lost.history)) == ("diverged", 4)
    with pytest.raises(AttsvmError, match=r"not finite, since its run diverged: take its best weights \(best=True"):
        load_model(tmp_path)
    best = best_epoch(lost.history)
    assert best is not None
    assert_equal(load_model(tmp_path, best=True), watch.weights[int(best["epoch"]) - 1])
    again = Watch()
    assert fit(TEXTS, RUN, out=tmp_path, report=again).stopped == "diverged"
    assert again.steps == 0


def test_weights_that_the_last_step_lost_are_seen_at_once(tmp_path: Path) -> None:
    def lose(progress: Reached) -> None:
        if progress.batch == progress.batches:
            torch.nn.init.constant_(next(progress.model.parameters()), math.nan)

    lost = fit(TEXTS, RUN, out=tmp_path, report=lose)
    assert (lost.stopped, len(lost.history)) == ("diverged", 1)
    assert not (tmp_path / "best.safetensors").exists()
    with pytest.raises(AttsvmError, match="train with a smaller lr"):
        load_model(tmp_path)


def test_fewer_epochs_than_are_done_train_nothing(tmp_path: Path) -> None:
    from dataclasses import replace

    seen = Watch()
    cut = fit(TEXTS, RUN, out=tmp_path, report=seen, stop=lambda: seen.steps == 8)  # in the third epoch
    assert (cut.stopped, len(cut.history)) == ("interrupted", 2)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    watch = Watch()
    fewer = fit(TEXTS, replace(RUN, epochs=1), out=tmp_path, report=watch)
    assert (fewer.stopped, len(fewer.history), watch.steps) == ("epochs", 2, 0)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert_equal(fit(TEXTS, RUN, out=tmp_path).model, fit(TEXTS, RUN).model.state_dict())


def command(out: Path, *options: str) -> Any:
    small = "synthetic --layers 1 --width 8 --hidden 8 --batch 64 --quiet --lr"
    return CliRunner().invoke(app, ["fit", *small.split(), *options, "--out", str(out)])


def test_the_command_says_where_the_best_weights_are(tmp_path: Path) -> None:
    done = command(tmp_path / "run", "1e-3", "--epochs", "2")
    said = " ".join(done.output.split())
    epoch = read_run(tmp_path / "run" / "best.safetensors")[1]["place"]["epoch"]
    assert f"best.safetensors: the weights of epoch {epoch}, the best on the test split" in said
    assert "optimistic" in said
    fewer = command(tmp_path / "run", "1e-3", "--epochs", "1")
    assert fewer.exit_code == 0
    assert "2 epochs (the run in" in fewer.output
    assert "had them already; --epochs is 1)" in " ".join(fewer.output.split())
    lost = command(tmp_path / "lost", "1e30", "--optimizer", "sgd")
    assert lost.exit_code == 3
    assert "diverged in epoch 1" in lost.stderr
    assert "best" not in lost.output
