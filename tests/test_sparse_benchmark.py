"""The benchmark of sparse training: its baselines are those of their papers, and every method runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm.experiments.sparse import baselines, methods, samples, training

FOLDER = Path(__file__).parents[1] / "benchmarks" / "sparse"
sys.path.insert(0, str(FOLDER))
import run  # noqa: E402

STEPS, LR = 20, 0.03


def problem() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)


def gradient(w: Tensor, target: Tensor) -> Tensor:
    return (w - target).sin() + 0.1 * w


def trained(make: Any) -> Tensor:
    start, target = problem()
    w = start.clone().requires_grad_()
    optimizer = make([w])
    for _ in range(STEPS):
        w.grad = gradient(w.detach(), target)
        optimizer.step()
    return w.detach()


def test_padam_divides_by_the_decay_at_the_weight_before_the_step() -> None:
    start, target = problem()
    w, q, decay = start.clone().requires_grad_(), 0.8, 0.1
    adam = torch.optim.Adam([w], lr=LR)
    for _ in range(STEPS):
        before, w.grad = w.detach().clone(), gradient(w.detach(), target)
        adam.step()
        with torch.no_grad():
            w /= 1 + LR * decay * q * before.abs() ** (q - 2)
    torch.testing.assert_close(trained(lambda ws: baselines.PAdam(ws, LR, q=q, decay=decay)), w.detach())


def test_adabreg_is_adam_on_the_subgradient_and_starts_sparse() -> None:
    start, target = problem()
    l1, dense = 0.2, 0.5
    torch.manual_seed(1)
    w = start * (torch.rand_like(start) < dense) / dense**0.5
    assert 0.2 < (w == 0).double().mean() < 0.8
    v = (w + l1 * w.sign()).requires_grad_()
    adam = torch.optim.Adam([v], lr=LR)
    for _ in range(STEPS):
        v.grad = gradient(w, target)
        adam.step()
        w = (v.detach().abs() - l1).clamp(min=0) * v.detach().sign()

    def make(ws: list[Tensor]) -> torch.optim.Optimizer:
        torch.manual_seed(1)
        return baselines.AdaBreg(ws, LR, l1=l1, dense=dense)

    torch.testing.assert_close(trained(make), w)


def test_muon_is_that_of_torch() -> None:
    def theirs(ws: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Muon(ws, lr=LR, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")

    expected, found = trained(theirs), trained(lambda ws: baselines.Muon(ws, LR, weight_decay=0.1))
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)  # bf16, summed in another order
    start, _ = problem()
    assert (found - start).norm() > 20 * (found - expected).norm()


MUON_FIRST = {"muon_until": 0.2, "muon_lr": 0.004}
SHORTER = {"teacher_epochs": 1}
METHODS = (
    {"method": "adamw"},
    {"method": "muon"},
    {"method": "muon", "options": {"p": 1.5}},
    {"method": "muon", "options": {"gradients": "dense"}},
    {"method": "mirror-muon", "options": {"p": 1.5, "head_lr": 0.01}},
    {"method": "mirror", "options": {"p": 1.1}},
    {"method": "mirror", "options": {"p": 1.5, "l1": 0.05}},
    {"method": "mirror", "options": {"p": 1.1, "p_from": 2.0}},
    {"method": "mirror", "options": {"p": 1.1, **MUON_FIRST}},
    {
        "method": "mirror",
        "options": {"p": 1.1, "distil": 0.5, "teacher_lr": 0.004, **MUON_FIRST},
    },
    {"method": "mirror-muon", "options": {"p": 1.5, "head_lr": 0.01, "distil": 0.8, "teacher_lr": 0.01, **SHORTER}},
    {"method": "powerprop", "options": {"alpha": 2.0}},
    {"method": "padam", "options": {"q": 0.8, "decay": 0.01}},
    {"method": "adamw", "options": {"by": "first order"}},
    {"method": "mirror", "options": {"p": 1.1, "by": "margin"}},
    {"method": "rigl"},
)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(list(method.values())))
def test_every_method_trains_to_the_share_of_zeros(method: dict[str, Any], tmp_path: Path) -> None:
    shape = samples.Shape(width=16, layers=1, heads=2, length=8, batch=8, every=3, vocabulary=32, dropout=0.1)
    stream = np.tile(np.arange(8), 160).astype(np.uint16)  # each token is followed by the next
    np.savez(tmp_path / "tokens.npz", train=stream, validation=stream[:600], test=stream[:600])
    corpus = samples.Corpus(tmp_path / "tokens.npz", "cpu")
    family = methods.Family(lr=0.01, seed=0, sparsities=(0.8,), tied=False, init="torch", epochs=2, **method)
    (row,) = training.train_family(family, corpus, shape, fused=False)
    assert row["zeros"] == pytest.approx(0.8, abs=2e-3)
    assert row["test"] < np.log(32)


def test_margins_are_gaps_of_logits_and_spare_what_selects_barely(tmp_path: Path) -> None:
    shape = samples.Shape(width=16, layers=2, heads=2, length=8, batch=8, vocabulary=32)
    stream = np.tile(np.arange(8), 40).astype(np.uint16)
    np.savez(tmp_path / "tokens.npz", train=stream, validation=stream, test=stream)
    corpus = samples.Corpus(tmp_path / "tokens.npz", "cpu")
    family = methods.Family("adamw", 0.01, 0, (0.5,), tied=False, init="torch", epochs=1)
    model = methods.start_model(shape, family)
    with torch.no_grad():
        model.blocks[1].qkv.weight[:32] *= 3  # queries and keys: logits are nine times as large
    tokens = torch.arange(8)[None]
    block, x = model.blocks[0], model._embed(tokens)
    q, k, _ = (part.reshape(8, 2, 8) for part in block.qkv(block.attention_norm(x))[0].chunk(3, -1))
    logits = torch.einsum("ihd,jhd->hij", q, k) / 8**0.5
    gaps = [logits[h, i, : i + 1].sort(descending=True).values for h in range(2) for i in range(1, 8)]
    found = training.margins(model, tokens)
    assert found[0].item() == pytest.approx(np.mean([(gap[0] - gap[1]).item() for gap in gaps]), rel=1e-4)
    run_ = training.Run(family, corpus, shape, training.loss_of, model, 10, False)
    scores = [training._by_margin(run_, block.qkv.weight) / block.qkv.weight.abs() for block in model.blocks]
    assert scores[0][:32].min() > 1 > scores[1][:32].max()
    assert all((score[32:] == 1).all() for score in scores)  # values are as they are
    assert torch.equal(training._by_margin(run_, block.out.weight), block.out.weight.abs())


def test_distilled_labels_are_a_mixture() -> None:
    torch.manual_seed(0)
    teacher, student = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    x, y = torch.randn(5, 3), torch.randint(4, (5,))
    labels = 0.7 * torch.nn.functional.one_hot(y, 4) + 0.3 * teacher(x).softmax(-1)
    expected = -(labels * student(x).log_softmax(-1)).sum(-1).mean()
    found = training.distilled(student, teacher, (x, y), 0.3)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert teacher.weight.grad is None


def test_the_grid_of_rates_grows_while_the_best_lies_at_its_edge() -> None:
    entry = {"method": "adamw", "seed": 0, "sparsities": [0.9], "note": "tune", "lr": [1e-3, 2e-3, 4e-3, 8e-3]}

    def row(lr: float, loss: float) -> dict[str, Any]:
        family = {"method": "adamw", "seed": 0, "note": "tune", "sparsity": 0.9, "clip": 1.0, "options": {}}
        return family | {"lr": lr, "validation": loss, "corpus": "imdb"}

    rows = [row(1e-3, 4.4), row(2e-3, 4.3), row(4e-3, 4.2), row(8e-3, 4.1)]
    best = {**entry, "lr": "best@0.9", "note": "main", "seed": 1}
    assert [family.lr for family in run.families(entry, rows)] == [1e-3, 2e-3, 4e-3, 8e-3, 0.014]
    assert run.families(best, rows) == []
    rows.append(row(0.014, float("nan")))
    assert [family.lr for family in run.families(best, rows)] == [8e-3]
    assert run.replace_keys({**rows[0], "epochs": 4.0, "sparsity": 0.9}) == run.families(entry, rows)[0].key(0.9)
    assert run.families({**best, "width": 768}, rows) == []  # rates of another width say nothing


def test_only_short_runs_of_another_width_are_not_compiled() -> None:
    usual = methods.Family("adamw", 1e-3, 0)
    assert [replace(usual, width=w, epochs=e).short for w, e in ((0, 1), (128, 1), (768, 2))] == [False, True, False]


def test_images_are_classified_at_the_share_of_zeros(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    labels = stream.integers(2, size=160)
    pixels = (40 * stream.random((160, 8, 8, 3)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    splits = dict.fromkeys(("train", "validation", "test"), pixels)
    named = splits | {f"{split}_labels": labels for split in splits}
    np.savez(tmp_path / "images.npz", **named)  # pyright: ignore[reportArgumentType]
    images = samples.Images(tmp_path / "images.npz", "cpu")
    shape = samples.Shape(16, 1, 2, length=8, batch=32, every=4, classes=2, patch=4)
    x, _ = next(images.batches(shape, 0))
    assert x.shape == (32, 3, 8, 8)
    family = methods.Family("adamw", 0.01, 0, (0.5,), tied=False, init="torch", epochs=10)
    (row,) = training.train_family(family, images, shape)
    assert row["zeros"] == pytest.approx(0.5, abs=2e-3)
    assert row["accuracy"] > 0.95


def test_texts_are_classified_at_the_share_of_zeros(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    labels = stream.integers(2, size=160)
    tokens = stream.integers(2, 32, size=(160, 8))
    tokens[:, 3] = labels  # one word says it
    splits = dict.fromkeys(("train", "validation", "test"), tokens.astype(np.uint16))
    named = splits | {f"{split}_labels": labels for split in splits}
    np.savez(tmp_path / "texts.npz", **named)  # pyright: ignore[reportArgumentType]
    texts = samples.Texts(tmp_path / "texts.npz", "cpu")
    shape = samples.Shape(16, 1, 2, length=8, batch=32, every=4, vocabulary=32, classes=2)
    x, y = next(texts.batches(shape, 0))
    assert x.shape == (32, 8)
    assert (x[:, 3] == y).all()
    family = methods.Family("adamw", 0.01, 0, (0.5,), tied=False, init="torch", epochs=20)
    (row,) = training.train_family(family, texts, shape)
    assert row["zeros"] == pytest.approx(0.5, abs=2e-3)
    assert row["accuracy"] > 0.95


def test_the_first_order_score_is_the_change_of_a_linear_loss() -> None:
    w, g = problem()
    w = w.requires_grad_()
    (w * g).sum().backward()
    without = torch.stack([(w * g).sum() - (w * g).flatten()[i] for i in range(w.numel())])
    changes = (without - (w * g).sum()).abs().view_as(w)
    torch.testing.assert_close(training._first_order(w), changes.detach())


def test_two_of_four_neighbours_are_zero(tmp_path: Path) -> None:
    shape = samples.Shape(width=16, layers=1, heads=2, length=8, batch=8, every=3, vocabulary=32)
    stream = np.tile(np.arange(8), 160).astype(np.uint16)
    np.savez(tmp_path / "tokens.npz", train=stream, validation=stream[:600], test=stream[:600])
    corpus = samples.Corpus(tmp_path / "tokens.npz", "cpu")
    options = {"p": 1.1, "structure": "2:4"}
    family = methods.Family("mirror", 0.01, 0, (0.5,), tied=False, init="torch", epochs=2, options=options)
    model = methods.make_model(shape, tied=False)
    (row,) = training.train_family(family, corpus, shape, model=model, fused=False)
    assert row["zeros"] == pytest.approx(0.5, abs=1e-6)
    assert isinstance(model, methods.GPT)
    fours = model.blocks[0].qkv.weight.detach().unflatten(-1, (-1, 4))  # type: ignore[union-attr]
    assert ((fours == 0).sum(-1) == 2).all()


def test_of_penalties_the_best_with_enough_zeros_is_chosen() -> None:
    entry = {"method": "mirror", "options": {"p": 1.5}, "lr": "zeros@0.9", "seed": 1, "sparsities": [0], "tuned": 3}

    def tried(l1: float, lr: float, zeros: float, validation: float, **other: Any) -> dict[str, Any]:
        options = {"p": 1.5, "l1": l1} | other.pop("more", {})
        measured = {"zeros": zeros, "validation": validation, "sparsity": 0.0}
        return {"method": "mirror", "options": options, "lr": lr, "seed": 0, "note": "strength"} | measured | other

    rows = [tried(0.1, 1e-3, 0.5, 4.0), tried(0.4, 1e-3, 0.897, 4.5)]
    assert run.families(entry, rows) == []  # not all were tried
    rows += [tried(0.4, 2e-3, 0.93, 4.6)]
    rows += [tried(0.4, 3e-3, 0.95, 4.1, seed=1), tried(0.4, 3e-3, 0.95, 4.1, note="main")]
    rows += [tried(0.4, 3e-3, 0.95, 4.1, more={"l1_of": "weight"}), tried(0.4, 3e-3, 0.95, 4.1, corpus="wikitext-2")]
    rows += [tried(0.5, 4e-3, 0.99, float("nan"))]
    [family] = run.families(entry, rows)
    assert (family.options, family.lr, family.seed) == ({"p": 1.5, "l1": 0.4}, 1e-3, 1)
    assert run.families({**entry, "lr": "zeros@0.95"}, rows) == []  # none makes so many
