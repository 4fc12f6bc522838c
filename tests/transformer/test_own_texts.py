"""Texts as people have them: without splits, without labels, with more than two classes, or one long text."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_tokenizer import write_tokenizer
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._transformer import app
from attsvm.transformer import Data, Images, Settings, Texts, fit, load_data, make_model
from attsvm.transformer._data import Sequences

WORDS = [f"word{i}" for i in range(30)]
NUMBER = {word: 4 + i for i, word in enumerate(WORDS)}  # behind [PAD], [CLS], [SEP] and [UNK]
SIZES = {"layers": 1, "heads": 1, "width": 8, "hidden": 8}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])


def write_lines(path: Path, n: int, **columns: object) -> Path:
    """A table of n texts, of which text i is the word i."""
    rows = [{"text": WORDS[i], **columns} | ({"label": i % 3} if "label" in columns else {}) for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words_of(split: Texts | Images) -> list[int]:
    assert isinstance(split, Texts)
    return [number - NUMBER[WORDS[0]] for number in split.tokens[:, 1].tolist()]


@pytest.mark.parametrize(("test", "held"), [(0.1, [9, 19]), (0.25, [3, 7, 11, 15, 19]), (0.5, list(range(1, 20, 2)))])
def test_evenly_spaced_rows_are_held_out(tokenizer: Path, tmp_path: Path, test: float, held: list[int]) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", 20)
    data = load_data(rows, tokenizer=tokenizer, test=test, next_tokens=True)
    assert words_of(data.test) == held
    assert words_of(data.train) == [row for row in range(20) if row not in held]


@pytest.mark.parametrize("test", [1 / 6, 0.25, 1 / 3, 0.5])
def test_of_every_class_the_same_share_is_held_out(tokenizer: Path, tmp_path: Path, test: float) -> None:
    """Also where the classes take turns, as they do here, and the test split would be of one class."""
    data = load_data(write_lines(tmp_path / "rows.jsonl", 24, label=0), tokenizer=tokenizer, test=test)
    for split, share in ((data.train, 1 - test), (data.test, test)):
        assert words_of(split) == sorted(words_of(split))
        assert split.labels.tolist() == [row % 3 for row in words_of(split)]
        counts = split.labels.bincount(minlength=3)
        assert ((counts - 8 * share).abs() < 1).all()
    assert sorted(words_of(data.train) + words_of(data.test)) == list(range(24))


def test_a_table_may_have_more_than_two_classes(tokenizer: Path, tmp_path: Path) -> None:
    data = load_data(write_lines(tmp_path / "rows.jsonl", 20, label=0), tokenizer=tokenizer, test=0.1)
    assert data.classes == 3
    model = make_model(Settings(sizes=SIZES | {"length": 8}), data)
    assert model.head.weight.shape == (3, 8)


@pytest.mark.parametrize("length", [2, 5, 8, 100])
def test_windows_of_a_long_text_predict_every_token_once(tokenizer: Path, tmp_path: Path, length: int) -> None:
    words = np.random.default_rng(0).choice(WORDS, 60)
    lines = [" ".join(part) for part in np.split(words, [7, 7, 31])]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    long = {"tokenizer": tokenizer, "length": length, "next_tokens": True}
    if length == 100:
        with pytest.raises(AttsvmError, match="of 1 windows of 100 tokens is none"):
            load_data(tmp_path / "long.txt", **long, test=0.3)
        return
    data = load_data(tmp_path / "long.txt", **long, test=0.3)
    found = []
    for split in (data.train, data.test):
        assert isinstance(split, Sequences)
        found += [row[:n].tolist() for row, n in zip(split.tokens, split.lengths)]
    assert all(before[-1] == after[0] for before, after in pairwise(found))
    assert found[0][:1] + [token for window in found for token in window[1:]] == [NUMBER[word] for word in words]
    assert all(len(window) == length for window in found[:-1])
    assert len(data.test) == int(0.3 * len(found))


def test_tokens_of_texts_without_labels_are_kept(tokenizer: Path, tmp_path: Path) -> None:
    source, kept = write_lines(tmp_path / "rows.jsonl", 20), tmp_path / "rows.npz"
    options = ["--tokenizer", str(tokenizer), "--model", "gpt", "--test", "0.1", "--out", str(kept)]
    said = CliRunner().invoke(app, ["tokens", str(source), *options])
    assert said.output.split()[2:] == ["18", "train", "and", "2", "test", "rows"]
    direct = load_data(source, tokenizer=tokenizer, next_tokens=True, test=0.1)
    again = load_data(kept, next_tokens=True)
    assert isinstance(again.train, Sequences)
    assert (again.digest(), again.kind, again.tokenizer) == (direct.digest(), "gpt", direct.tokenizer)
    with pytest.raises(AttsvmError, match=r"these texts have no labels: train a language model \(--model gpt\)"):
        load_data(kept)


def test_a_language_model_trains_on_them(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text((" ".join(WORDS) + "\n") * 5)
    sizes = [part for name, value in SIZES.items() for part in (f"--{name}", str(value))]
    options = ["--tokenizer", str(tokenizer), "--test", "0.2", "--length", "8", "--epochs", "1", "--lr", "1e-3", *sizes]
    done = CliRunner().invoke(
        app, ["fit", str(tmp_path / "long.txt"), *options, "--model", "gpt", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "loss per token" in done.output


def test_what_cannot_be_split_is_said(tokenizer: Path, tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", 20, label=0)
    parted = write_lines(tmp_path / "parted.jsonl", 20, label=0, split="train")
    nameless = tmp_path / "nameless.jsonl"
    nameless.write_text(rows.read_text() + '{"text": null, "label": 0}\n')
    none = tmp_path / "none.csv"
    none.write_text("text,label\n")
    long, latin = tmp_path / "long.txt", tmp_path / "latin.txt"
    long.write_text("good bad")
    latin.write_bytes("schön".encode("latin-1"))
    unknowing = write_tokenizer(tmp_path, ["[PAD]", "[CLS]", "[SEP]"])
    gpt = {"next_tokens": True, "test": 0.1}
    cases: list[tuple[Path | str, dict[str, object], str]] = [
        (rows, {}, r"has no column 'split': say which share of the rows is the test split, such as test=0.1"),
        (rows, {"test": 1.0}, "test must be a share below 1, but got 1"),
        (rows, {"test": -0.1}, "test must be finite and at least 0"),
        (rows, {"test": 0.01}, "test = 0.01 of 20 rows is none: take a larger share, or more of them"),
        (none, {"test": 0.1}, "test = 0.1 of 0 rows is none"),
        (nameless, {"test": 0.5}, "row 21 has no text in column 'text'"),
        (parted, {"test": 0.1}, "test is for tables without a column split, but .* has one: leave it out"),
        ("synthetic", {"test": 0.1}, "but synthetic is neither: leave it out"),
        (tmp_path / "rows.csv.gz", {"test": 0.1}, "rows.csv.gz is neither: leave it out"),
        (long, gpt, "test = 0.1 of 1 windows of 512 tokens is none: .* or a smaller length"),
        (long, {"test": 0.1}, r"has no labels: a .txt is for a language model \(--model gpt\)"),
        (long, {"next_tokens": True}, "say which share of the text is the test split"),
        (long, gpt | {"length": 1}, "length must be a whole number at least 2"),
        (long, gpt | {"tokenizer": None}, "texts need a tokenizer"),
        (latin, gpt, "cannot be read as UTF-8"),
        (tmp_path / "none.txt", gpt, "none.txt is not a file"),
        (long, gpt | {"tokenizer": unknowing}, r"the tokenizer cannot read these texts: .*\[UNK\]"),
    ]
    for source, options, message in cases:
        with pytest.raises(AttsvmError, match=message):
            load_data(source, **({"tokenizer": tokenizer} | options))  # type: ignore[arg-type]


def test_a_model_that_does_not_fit_into_memory_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    data = load_data(write_lines(tmp_path / "rows.jsonl", 20, label=0), tokenizer=tokenizer, test=0.1)
    with pytest.raises(AttsvmError, match=r"weights, whose training takes .* GB .*: take fewer layers, or a smaller"):
        fit(data, Settings(sizes=SIZES | {"length": 10**12}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_texts_of_one_class_are_not_classified() -> None:
    texts = Texts(torch.ones(2, 1, dtype=torch.int32), torch.ones(2, dtype=torch.int64), torch.zeros(2).long())
    with pytest.raises(AttsvmError, match="these texts have no labels"):
        Data(texts, texts, classes=1, vocabulary=2)
