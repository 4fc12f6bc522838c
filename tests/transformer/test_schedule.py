"""Schedules, gradual pruning and language models in `transformer fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._app import app
from attsvm.models import GPT
from attsvm.optim import param_groups
from attsvm.transformer import Reached, Settings, evaluate, fit, load_model, synthetic_sentiment, tiny_images
from attsvm.transformer._settings import make_model, make_optimizer

TEXTS = synthetic_sentiment(48, 20, length=16)
SIZES = {"width": 16, "hidden": 24, "layers": 2, "heads": 2, "length": 16}
COSINE = {"schedule": "cosine", "warmup": 0.2, "clip": 1.0, "loss": "mean"}


def settings(**changes: Any) -> Settings:
    return Settings(**({"optimizer": "adamw", "lr": 2e-3, "sizes": SIZES, "batch": 16, "epochs": 4} | changes))


def test_the_rate_rises_and_falls_as_scheduled() -> None:
    chosen = settings(**COSINE)
    rates = [chosen.rate(step, 100) for step in range(100)]
    assert rates[:20] == pytest.approx([2e-3 * (k + 1) / 21 for k in range(20)])
    assert rates[20] == 2e-3 == max(rates)
    assert rates[60] == pytest.approx(1e-3)  # half of the way down
    assert 0 < rates[-1] < 1e-5
    assert [settings(warmup=0.5).rate(k, 4) for k in range(4)] == pytest.approx([2e-3 / 3, 4e-3 / 3, 2e-3, 2e-3])


def test_the_optimizer_steps_at_the_scheduled_rate() -> None:
    # With sgd and a single step the change of a weight is lr times its gradient.
    weights = []
    for warmup in (0.0, 0.9):
        chosen = settings(optimizer="sgd", epochs=1, batch=48, sizes=SIZES | {"dropout": 0.0}, warmup=warmup)
        start = fit(TEXTS, settings(optimizer="sgd", lr=0.0, epochs=1, sizes=SIZES | {"dropout": 0.0})).model
        weights.append([a - b for a, b in zip(fit(TEXTS, chosen).model.parameters(), start.parameters())])
    for whole, part in zip(*weights):
        torch.testing.assert_close(part, whole / 1.9, rtol=1e-3, atol=1e-6)


CHAINED = {"optimizer": "mirror-adam", "moments_of": "mirror"}


MUON = {"optimizer": "mirror-muon", "p": 1.5, "scope": "relative", "rest_lr": 2e-3}


@pytest.mark.parametrize("how", [{"optimizer": "mirror-adam"}, {"optimizer": "adamw"}, CHAINED, MUON], ids=str)
@pytest.mark.parametrize("language", [False, True])
def test_a_pruned_run_resumes_bit_for_bit(how: dict[str, Any], language: bool, tmp_path: Path) -> None:
    data = TEXTS.next_tokens() if language else TEXTS
    chosen = settings(sparsity=0.8, stop=0.0, **how, **COSINE)
    straight = fit(data, chosen)
    # never done before all zeros are made, at 75% of 12 steps
    assert straight.stopped == "accuracy"
    assert len(straight.history) == 3
    assert straight.history[-1]["zeros"] == pytest.approx(0.8, abs=1e-3)
    for step in (5, 7):

        def killed(reached: Reached, step: int = step) -> None:
            if reached.epoch * 3 + reached.batch == step:
                raise InterruptedError

        out = tmp_path / str(step)
        with pytest.raises(InterruptedError):
            fit(data, chosen, out=out, checkpoint_seconds=0, report=killed)
        resumed = fit(data, chosen, out=out, checkpoint_seconds=0)
        for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
            assert torch.equal(a, b)
    loaded = load_model(out)
    for a, b in zip(straight.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_planned_run_is_not_continued_for_longer(tmp_path: Path) -> None:
    fit(TEXTS, settings(epochs=1, **COSINE), out=tmp_path)
    with pytest.raises(AttsvmError, match="epochs 1, not 2"):
        fit(TEXTS, settings(epochs=2, **COSINE), out=tmp_path)


def test_settings_of_older_runs_are_as_they_were() -> None:
    assert not {"schedule", "warmup", "clip", "sparsity", "scope", "rest_lr", "head_lr"} & set(settings().to_dict())
    assert settings(**COSINE).to_dict()["warmup"] == 0.2


@pytest.mark.parametrize("wrong", [{"schedule": "linear"}, {"warmup": 1.0}, {"sparsity": 1.0}, {"clip": -1.0}])
def test_wrong_schedules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AttsvmError, match=next(iter(wrong))):
        settings(**wrong)


def test_a_language_model_is_measured_by_the_token() -> None:
    data = TEXTS.next_tokens()
    fitted = fit(data, settings(epochs=1, **COSINE))
    model = fitted.model
    assert isinstance(model, GPT)
    losses, right = [], []
    for row in range(len(data.test)):
        tokens = data.test.tokens[row, : int(data.test.lengths[row])].long()
        with torch.no_grad():
            logits = model(tokens[None, :-1])[0]
        losses += torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()
        right += (logits.argmax(-1) == tokens[1:]).tolist()
    measured = evaluate(model, data.test)
    assert measured["test_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert measured["test_accuracy"] == pytest.approx(sum(right) / len(right), rel=1e-6)


def test_language_models_need_texts() -> None:
    with pytest.raises(AttsvmError, match="images"):
        tiny_images(8, 4).next_tokens()


def test_the_moments_are_of_what_is_asked() -> None:
    model = make_model(settings(), TEXTS)
    for of, how in (("weight", {"optimizer": "mirror-adam"}), ("mirror", CHAINED)):
        assert {group["moments_of"] for group in make_optimizer(settings(**how), model).param_groups} == {of}
    assert "moments_of" not in settings(optimizer="mirror-adam").to_dict()  # as older runs have it
    assert settings(**CHAINED).to_dict()["moments_of"] == "mirror"


@pytest.mark.parametrize("planned", [{}, COSINE], ids=["constant", "cosine"])
def test_embeddings_and_vectors_have_their_own_rate(planned: dict[str, Any]) -> None:
    chosen = settings(optimizer="mirror-adam", groups="matrices", epochs=1, rest_lr=0.0, **planned)
    start, end = fit(TEXTS, settings(optimizer="sgd", lr=0.0, epochs=1)).model, fit(TEXTS, chosen).model
    before, after = dict(start.named_parameters()), dict(end.named_parameters())
    kinds = {name: group["name"] for group in param_groups(end, 1.1) for name in group["param_names"]}
    assert {"embeddings", "vectors", "matrices"} <= set(kinds.values())
    for name, kind in kinds.items():
        assert torch.equal(before[name], after[name]) == (kind in ("embeddings", "vectors")), name
    assert chosen.rate(1, 10, "vectors") == 0 < chosen.rate(1, 10, "matrices") == chosen.rate(1, 10)


@pytest.mark.parametrize("planned", [{}, COSINE], ids=["constant", "cosine"])
def test_a_head_of_its_own_has_its_own_rate(planned: dict[str, Any], tmp_path: Path) -> None:
    own = SIZES | {"tied": False, "start": "linear", "vocabulary": 200}  # ten times as long as wide, and more
    chosen = settings(optimizer="mirror-muon", p=2.0, epochs=1, head_lr=0.0, sizes=own, **planned)
    start = fit(TEXTS.next_tokens(), settings(optimizer="sgd", lr=0.0, epochs=1, sizes=own)).model
    end = fit(TEXTS.next_tokens(), chosen, out=tmp_path).model
    for (name, before), after in zip(start.named_parameters(), end.parameters()):
        assert torch.equal(before, after) == (name == "head.weight"), name
    loaded = load_model(tmp_path)
    assert isinstance(loaded, GPT)
    assert loaded.head is not None
    assert torch.equal(loaded.head.weight, end.head.weight)  # type: ignore[union-attr]
    for wrong in (chosen.sizes | {"tied": True}, SIZES | {"tied": False, "vocabulary": 60}):  # no head, a short one
        with pytest.raises(AttsvmError, match="head_lr is for a head that is not the embedding"):
            fit(TEXTS.next_tokens(), settings(optimizer="mirror-muon", p=2.0, head_lr=1e-3, sizes=wrong))


def test_the_threshold_is_of_the_scope() -> None:
    shares = {}
    for scope in ("global", "layer"):
        model = fit(TEXTS, settings(optimizer="mirror-adam", sparsity=0.7, scope=scope, stop=0.0, **COSINE)).model
        matrices = [w for g in param_groups(model, 2.0) if g["name"] in ("attention", "matrices") for w in g["params"]]
        shares[scope] = torch.tensor([(w == 0).double().mean() for w in matrices])
    assert (shares["layer"] - 0.7).abs().max() < 0.02
    assert (shares["global"] - 0.7).abs().max() > 0.02


def test_matrices_of_which_nothing_is_left_are_named() -> None:
    with pytest.warns(UserWarning, match=r"left nothing of blocks\.0\.out\.weight \("):
        fit(TEXTS, settings(optimizer="sgd", sparsity=0.999, epochs=1, stop=0.0))


def test_the_command_prunes_a_gpt(tmp_path: Path) -> None:
    small = ["--layers", "1", "--heads", "2", "--width", "16", "--hidden", "16", "--length", "16", "--epochs", "1"]
    how = ["--model", "gpt", "--optimizer", "mirror-adam", "--p", "1.5", "--lr", "5e-3", "--loss", "mean"]
    how += ["--moments-of", "mirror", "--rest-lr", "2e-3", "--scope", "relative"]
    plan = ["--schedule", "cosine", "--warmup", "0.1", "--clip", "1", "--sparsity", "0.9"]
    arguments = ["transformer", "fit", "synthetic", "--out", str(tmp_path), *small, *how, *plan, "--quiet"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "loss per token" in result.output
    said = " ".join(result.output.split())
    assert said.startswith("1 epoch (all epochs done): ")
    assert "90.0% of the matrices' entries are 0" in said
    assert "epoch 1 (90.0% zeros), the best on the test split by accuracy of the next token" in said
    made = load_model(tmp_path)
    assert isinstance(made, GPT)
    assert made.head is None
    own = [*arguments, "--own-head", "--start", "linear"]
    own[own.index(str(tmp_path))] = str(tmp_path / "own")
    assert CliRunner().invoke(app, own).exit_code == 0
    made = load_model(tmp_path / "own")
    assert isinstance(made, GPT)
    assert made.head is not None
    assert (made.head.weight == 0).float().mean() > 0.5  # pruned with the others
    refused = CliRunner().invoke(app, ["transformer", "fit", "tiny-images", "--out", "x", *how[:6], "--lr", "1"])
    assert refused.exit_code != 0
