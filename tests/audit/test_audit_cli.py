"""`attsvm audit` as a user types it, and the models that it finds in folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tokenizer import write_tokenizer

import attsvm
from attsvm.auditing import audit_steps, checkpoints
from attsvm.cli import main
from attsvm.models import GPT

transformers = pytest.importorskip("transformers")
parquet = pytest.importorskip("pyarrow.parquet")

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "film", "was", "good", "bad", ",", "."]
TEXTS = ["the film was good .", "bad , bad film", "the good , the bad , the film ."]


def save_bert(folder: Path, size: float) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=len(WORDS), max_position_embeddings=16))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(size * torch.randn_like(weight))
    model.save_pretrained(folder)
    write_tokenizer(folder, WORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli-audit")
    save_bert(folder / "model", 1.0)
    for step, size in ((2, 0.1), (10, 1.0)):
        save_bert(folder / "run" / f"checkpoint-{step}", size)
    (folder / "texts").mkdir()
    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_text((folder / "model" / "config.json").read_text())
    (folder / "images").mkdir()
    (folder / "images" / "config.json").write_text('{"model_type": "vit", "image_size": 32}')
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n\n")
    (folder / "texts.md").write_text("\n".join(TEXTS))
    (folder / "marked.txt").write_text("\n".join(TEXTS), encoding="utf-8-sig")
    (folder / "latin.txt").write_text("café", encoding="latin-1")
    save_bert(folder / "cut", 1.0)
    (folder / "cut" / "model.safetensors").write_bytes((folder / "cut" / "model.safetensors").read_bytes()[:3000])
    return folder


@pytest.fixture
def type_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., str]:
    def type_in(*arguments: str, fails: bool = False) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr("sys.argv", ["attsvm", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert bool(end.value.code) == fails, end.value.code
        return str(end.value.code) if fails else " ".join(capfdbinary.readouterr().out.decode().split())

    return type_in


def test_layers_that_share_weights_are_told_apart(folder: Path, type_in: Callable[..., str]) -> None:
    sizes = {"hidden_size": 8, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.AlbertConfig(**sizes, num_hidden_layers=3, vocab_size=len(WORDS), max_position_embeddings=16)
    config.save_pretrained(folder / "shared")
    write_tokenizer(folder / "shared", WORDS)
    said = type_in("audit", "shared", "--texts", "texts.txt", "--out", "seen", "--norms", "", "--quiet")
    assert all(f"tion:{use} │" in said for use in (2, 3))


def test_audit_of_a_folder(folder: Path, type_in: Callable[..., str]) -> None:
    asked = ("--prune", "0.3", "--flips", "0.1", "--rule", "previous", "--queries", "12", "--quiet")
    said = type_in("audit", "model", "--texts", "texts.txt", "--out", "out", *asked)
    assert "pruning 30%:" in said
    assert "largest uniform pruning that flips at most 10.0%:" in said
    assert "rule previous: separable in" in said
    facts = json.loads((folder / "out" / "audit.json").read_text())
    table = parquet.read_table(folder / "out" / "heads.parquet").to_pylist()
    assert len(table) == len(facts["heads"]) == 4
    tokens = sum(len(text.split()) + 2 for text in TEXTS)
    assert facts["tokens"] == tokens
    for row, head in zip(table, facts["heads"]):
        assert row["queries"] == head["queries"] == tokens
        assert 0 <= row["certified"] <= 1 - row["flipped"]
        assert set(head["problems"]) == {"head", "tokens"}
        assert set(head["problems"]["head"]) == {"l2", "nuclear", "spectral", "linf"}
    type_in("audit", "model", "--texts", "marked.txt", "--out", "marked", "--norms", "", "--quiet")
    assert json.loads((folder / "marked" / "audit.json").read_text())["tokens"] == tokens  # the mark is no token
    page = (folder / "out" / "audit.html").read_text()
    assert "provably does not flip" in page


@pytest.mark.parametrize(
    ("rule", "text", "nobody"), [("self", "the film was good", False), ("induction", "bad film bad", True)]
)
def test_who_follows_a_rule_is_said(
    rule: str, text: str, nobody: bool, folder: Path, type_in: Callable[..., str]
) -> None:
    (folder / "rule.txt").write_text(text)
    said = type_in("audit", "model", "--texts", "rule.txt", "--out", rule, "--norms", "", "--rule", rule, "--quiet")
    heads = json.loads((folder / rule / "audit.json").read_text())["heads"]
    most = max(heads, key=lambda head: head["measures"]["follows"])
    share = most["measures"]["follows"]
    assert (share == 0) == nobody
    who = f"{most['layer']}, head {most['head']} follows it most often, {share:.0%} of"
    assert ("no head follows it at any sampled query" if nobody else who) in said


def test_what_was_asked_for_too_much_does_not_lose_the_audit(folder: Path, type_in: Callable[..., str]) -> None:
    small = ("--layers", "1", "--heads", "2", "--width", "8", "--hidden", "8", "--epochs", "1", "--lr", "1e-3")
    type_in("transformer", "fit", "synthetic", "--out", "single", *small, "--optimizer", "adam", "--quiet")
    asked = ("--limit", "6", "--norms", "", "--flips", "1", "--rule", "previous", "--quiet")
    said = type_in("audit", "single", "--texts", "synthetic", "--out", "asked", *asked)
    assert "flips at most 100.0%" in said
    assert "rule previous: no attention of the model sees its tokens" in said  # one layer reads at [CLS] alone
    assert (folder / "asked" / "audit.json").is_file()


def test_a_config_alone_has_random_weights(type_in: Callable[..., str]) -> None:
    options = ("--norms", "l2", "--quiet", "--tokenizer", "model/tokenizer.json")
    said = type_in("audit", "config", "--texts", "texts.txt", "--out", "random", *options)
    assert "config has no weights: these are random" in said


def test_weights_that_a_folder_lacks_are_named_and_heads_are_not(folder: Path, type_in: Callable[..., str]) -> None:
    tokens, sizes = ("--tokenizer", "model"), {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=8, vocab_size=len(WORDS), max_position_embeddings=16)
    model = transformers.BertForMaskedLM(config)  # has a head that the audit leaves out, and no pooler
    model.save_pretrained(folder / "masked")
    said = type_in("audit", "masked", "--texts", "texts.txt", "--out", "o", "--norms", "", "--quiet", *tokens)
    assert "UNEXPECTED" not in said
    assert "random" not in said
    kept = {name: weight for name, weight in model.state_dict().items() if ".query." not in name}
    model.save_pretrained(folder / "holes", state_dict=kept)
    said = type_in("audit", "holes", "--texts", "texts.txt", "--out", "o", "--norms", "", "--quiet", *tokens)
    assert "holes has no weights for encoder.layer.0.attention.self.query.bias and 3 more: these are random" in said


def test_checkpoints_along_training(folder: Path, type_in: Callable[..., str]) -> None:
    assert [step for step, _ in checkpoints(folder / "run")] == [2, 10]
    said = type_in("audit", "run", "--texts", "texts.txt", "--out", "steps", "--norms", "l2", "--quiet")
    assert "2 checkpoints" in said
    rows = parquet.read_table(folder / "steps" / "steps.parquet").to_pylist()
    assert [row["step"] for row in rows] == [2] * 4 + [10] * 4
    norms = {step: sum(row["norm"] for row in rows if row["step"] == step) for step in (2, 10)}
    assert norms[10] == pytest.approx(100 * norms[2], rel=1e-3)  # W_QK is a product of two weights
    assert (folder / "steps" / "steps.html").is_file()
    assert json.loads((folder / "steps" / "audit.json").read_text())["model"] == "run"
    assert "not audited" not in said
    (folder / "run" / "config.json").write_text((folder / "model" / "config.json").read_text())
    said = type_in("audit", "run", "--texts", "texts.txt", "--out", "steps", "--norms", "", "--quiet")
    (folder / "run" / "config.json").unlink()
    assert "run also holds a model of its own, which is not audited" in said


def test_own_runs_are_audited_on_what_they_were_trained_on(folder: Path, type_in: Callable[..., str]) -> None:
    sizes = {"layers": 1, "heads": 2, "width": 8, "hidden": 8, "epochs": 1, "lr": 1e-3, "optimizer": "adam"}
    small = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    gpt = ("--model", "gpt", "--length", "4")
    words = ("--tokenizer", "model/tokenizer.json", "--test", "0.4")
    type_in("transformer", "tokens", "texts.txt", *gpt, *words, "--out", "unlabelled.npz")
    type_in("transformer", "tokens", "tiny-images", "--out", "large.npz")  # 48 by 48
    few = ("--limit", "6", "--batch", "4", "--norms", "", "--quiet")
    kinds = ("synthetic", ()), ("tiny-images", ()), ("unlabelled.npz", gpt), ("large.npz", ())
    for source, model in kinds:
        run, out = f"own-{source}", f"audit-{source}"
        type_in("transformer", "fit", source, *model, "--out", run, *small, "--quiet")
        type_in("audit", run, "--texts", source, *few, "--out", out)
        facts = json.loads((folder / out / "audit.json").read_text())
        assert len(facts["heads"]) == 2
        images = source in ("tiny-images", "large.npz")
        assert not images or {head["queries"] for head in facts["heads"]} == {6}  # of a class token each
    type_in("audit", "own-large.npz", "--texts", "tiny-images", *few, "--out", "scaled")
    for source, other, words in (
        ("synthetic", "tiny-images", "must be what own-synthetic was trained on, texts"),
        ("tiny-images", "synthetic", "must be what own-tiny-images was trained on, images"),
        ("tiny-images", "texts.txt", "own-tiny-images is a model of images"),
    ):
        assert words in type_in("audit", f"own-{source}", "--texts", other, "--out", "x", "--quiet", fails=True)
        assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "--texts", "texts.txt"), "nowhere must be a folder with a model, but there is none"),
        (("model", "--texts", "texts.txt", "--norms", "l2,l0"), "1 ≤ p"),
        (("model", "--texts", "nothing.txt"), "is not a file"),
        (("config", "--texts", "texts.txt"), "--tokenizer must name"),
        (("model", "--texts", "texts.txt", "--prune", "0.1", "--bits", "4"), "one of them"),
        (("run", "--texts", "texts.txt", "--prune", "0.1"), "name one of them, such as run/checkpoint-10"),
        (("texts", "--texts", "texts.txt"), "texts must be a folder with a model of Hugging Face"),
        (("texts.txt", "--texts", "texts.txt", "--tokenizer", "model"), "no config.json"),
        (("images", "--texts", "texts.txt"), "images is a model of images: give batches"),
        (("images", "--texts", "texts.txt", "--tokenizer", "model"), "images is a model of images: give batches"),
        (("model", "--texts", "synthetic"), "synthetic is for models of transformer fit, but model is not one"),
        (("model", "--texts", "texts.txt", "--column", "body"), "--column is for tables"),
        (("model", "--texts", "texts.md"), r"must be one of .txt, .parquet"),
        (("model", "--texts", "latin.txt"), "latin.txt is not written in UTF-8"),
        (("cut", "--texts", "texts.txt"), "cut is not a model that transformers can load"),
        (("config", "--texts", "texts.txt", "--out", "texts.txt/a"), "texts.txt is not a folder"),  # before it reads
    ],
)
def test_wrong_input(arguments: tuple[str, ...], words: str, type_in: Callable[..., str]) -> None:
    import re

    assert re.search(words, type_in("audit", "--out", "x", *arguments, "--quiet", fails=True))


def test_steps_of_models_in_memory() -> None:
    def made(size: float) -> GPT:
        torch.manual_seed(0)
        model: Any = GPT(vocabulary=9, length=8, width=8, layers=1, heads=2)
        with torch.no_grad():
            model.blocks[0].qkv.weight.mul_(size)
        return model

    assert attsvm.audit is attsvm.auditing.audit
    found = audit_steps([(5, made(20.0)), (1, made(10.0))], None, [[1, 2, 3, 4, 5, 6]], norms=["l2"])
    facts = found.facts()
    assert facts["steps"] == [1, 5]
    for before, after in facts["values"]["norm"]:
        assert after == pytest.approx(4 * before, rel=1e-4)


def test_the_step_whose_weights_are_not_finite_is_named() -> None:
    models = [(step, GPT(vocabulary=9, length=8, width=8, layers=1, heads=2)) for step in (1, 5)]
    torch.nn.init.constant_(models[1][1].blocks[0].qkv.weight, torch.nan)
    with pytest.raises(attsvm.AttsvmError, match=r"step 5: the weights .* but blocks.0.qkv.weight has nan or inf"):
        audit_steps(models, None, [[1, 2, 3, 4, 5, 6]], norms=["l2"])
