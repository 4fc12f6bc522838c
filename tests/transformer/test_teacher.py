"""A teacher's predictions as a part of the labels, in `transformer fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_task import moved
from torch import nn
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._app import app
from attsvm.models import GPT
from attsvm.transformer import Data, Reached, Settings, fit, load_model, synthetic_sentiment, tiny_images
from attsvm.transformer._settings import make_model

TEXTS = synthetic_sentiment(48, 20, length=16)
IMAGES = tiny_images(48, 16)
SIZES = {"width": 16, "hidden": 24, "layers": 2, "heads": 2, "dropout": 0.0}
DATA = {"text": TEXTS, "gpt": TEXTS.next_tokens(), "vit": IMAGES}


def settings(**changes: Any) -> Settings:
    """One step with all rows, by plain gradient descent."""
    plain = {"optimizer": "sgd", "lr": 0.1, "sizes": SIZES, "batch": 48, "epochs": 1, "loss": "mean"}
    return Settings(**(plain | changes))


def started(data: Data, seed: int = 0) -> nn.Module:
    """As a run of that seed starts."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make_model(settings(), data)


@pytest.mark.parametrize("kind", DATA)
def test_who_knows_all_that_the_teacher_knows_learns_nothing(kind: str) -> None:
    """Also where images are shifted at random: teacher and student see the same."""
    data = DATA[kind]
    start = started(data)
    assert moved(fit(data, settings(distil=1.0), teacher=start).model, start).abs().max() < 1e-7
    assert moved(fit(data, settings()).model, start).abs().max() > 1e-4


@pytest.mark.parametrize("kind", DATA)
def test_the_step_is_that_of_mixed_labels(kind: str) -> None:
    data = DATA[kind]
    start, teacher = started(data), started(data, seed=1)
    right, told = fit(data, settings()).model, fit(data, settings(distil=1.0), teacher=teacher).model
    mixed = fit(data, settings(distil=0.3), teacher=teacher).model
    expected = 0.7 * moved(right, start) + 0.3 * moved(told, start)
    torch.testing.assert_close(moved(mixed, start), expected, rtol=1e-3, atol=1e-6)
    assert (moved(told, start) - moved(right, start)).abs().max() > 1e-4


def test_the_step_is_the_gradient_of_the_cross_entropy_with_the_teacher() -> None:
    start, teacher, train = started(TEXTS), started(TEXTS, seed=1), TEXTS.train
    whole = train.batches(48)[0]
    soft = teacher(*train.take(whole)).softmax(-1).detach()
    F.cross_entropy(start(*train.take(whole)), soft).backward()
    gradient = torch.cat([w.grad.flatten() for w in start.parameters() if w.grad is not None])
    step = moved(fit(TEXTS, settings(distil=1.0), teacher=teacher).model, start)
    torch.testing.assert_close(step, -0.1 * gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt", "vit"])
def test_a_taught_run_resumes_bit_for_bit_with_its_teacher_alone(kind: str, tmp_path: Path) -> None:
    data = DATA[kind]
    chosen = settings(optimizer="adamw", lr=2e-3, batch=16, epochs=2, distil=0.5, sparsity=0.5, schedule="cosine")
    teacher = started(data, seed=1)
    before = [w.clone() for w in teacher.parameters()]
    straight = fit(data, chosen, teacher=teacher)

    def killed(reached: Reached) -> None:
        if reached.epoch * 3 + reached.batch == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(data, chosen, out=tmp_path, checkpoint_seconds=0, report=killed, teacher=teacher)
    with pytest.raises(AttsvmError, match="holds another run, with other weights of the teacher"):
        fit(data, chosen, out=tmp_path, teacher=started(data, seed=2))
    resumed = fit(data, chosen, out=tmp_path, teacher=teacher)
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(before, teacher.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.requires_grad


class Fewer(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, 3)


@pytest.mark.parametrize(
    ("distil", "teacher", "message"),
    [
        (0.5, None, "needs a teacher as well"),
        (0.0, started(TEXTS.next_tokens()), "needs settings.distil"),
        (0.5, "run/", "teacher must be a model, but got str"),
        (0.5, started(TEXTS), "cannot answer what this data asks: it is a TextTransformer, and the model a GPT"),
        (0.5, Fewer(), "must choose among 54 answers, as the model, but it has 3"),
        (0.5, GPT(vocabulary=54, length=8, width=16, layers=1, heads=2), "cannot answer .* 8"),
    ],
)
def test_wrong_teachers_are_refused(distil: float, teacher: Any, message: str) -> None:
    data = TEXTS.next_tokens()
    with pytest.raises(AttsvmError, match=message):
        fit(data, settings(distil=distil), teacher=teacher)


def test_a_teacher_may_have_other_sizes() -> None:
    teacher = GPT(vocabulary=54, length=40, width=32, layers=1, heads=4)
    assert fit(TEXTS.next_tokens(), settings(distil=0.5), teacher=teacher).history


def test_the_share_is_a_share() -> None:
    with pytest.raises(AttsvmError, match="distil must be a share, from 0 to 1, but got 2"):
        settings(distil=2)
    assert "distil" not in settings().to_dict()  # as older runs have it


def test_the_command_learns_from_a_run(tmp_path: Path) -> None:
    small = ["--layers", "1", "--heads", "2", "--width", "16", "--hidden", "16", "--length", "16", "--epochs", "1"]
    how = ["--model", "gpt", "--optimizer", "mirror-muon", "--p", "2", "--lr", "5e-3", "--loss", "mean", "--quiet"]

    def run(out: str, *more: str) -> Any:
        arguments = ["transformer", "fit", "synthetic", "--out", str(tmp_path / out), *small, *how, *more]
        return CliRunner().invoke(app, arguments)

    assert run("dense").exit_code == 0
    taught = run("sparse", "--sparsity", "0.9", "--schedule", "cosine", "--teacher", str(tmp_path / "dense"))
    assert taught.exit_code == 0, taught.output
    assert "90.0% of the matrices' entries are 0" in " ".join(taught.output.split())
    load_model(tmp_path / "sparse")
    for more, message in (
        (["--distil", "0.3"], "name one with --teacher"),
        (["--teacher", str(tmp_path / "none")], "holds no run of attsvm transformer fit"),
        (["--teacher", str(tmp_path / "dense"), "--distil", "0"], "needs settings.distil"),
        (["--teacher", str(tmp_path / "dense"), "--model", "classifier"], "cannot answer what this data asks"),
    ):
        refused = run("wrong", *more)
        assert refused.exit_code != 0
        assert message in str(refused.exception) + refused.output
        assert not (tmp_path / "wrong").exists()
