"""Every place that data may come from, and what is said when it is not as it should be."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_tokenizer import write_tokenizer
from PIL import Image
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._transformer import app
from attsvm.transformer import (
    Data,
    Images,
    Settings,
    Texts,
    encode_probes,
    fit,
    load_data,
    make_model,
    save_data,
    synthetic_sentiment,
    tiny_images,
)
from attsvm.transformer._data import MiniBatch
from attsvm.transformer._synthetic import PIVOTS, WORDS

REVIEWS = [("a good film", 1), ("a dull film and a dull plot", 0), ("great", 1), ("awful ending", 0)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), [*WORDS, "[UNK]"]).parent


def write_reviews(path: Path, rows: list[tuple[Any, Any, str]]) -> Path:
    texts, labels, splits = zip(*rows)
    pq.write_table(pa.table({"text": list(texts), "label": list(labels), "split": list(splits)}), path)
    return path


def both(rows: list[tuple[str, int]]) -> list[tuple[str, int, str]]:
    return [(text, label, split) for split in ("train", "test") for text, label in rows]


def check_reviews(data: Data) -> None:
    for split in (data.train, data.test):
        assert isinstance(split, Texts)
        words = sorted(" ".join(WORDS[t] for t in row[:n]) for row, n in zip(split.tokens, split.lengths))
        assert words == sorted(f"[CLS] {text} [SEP]" for text, _ in REVIEWS)
        for row, label in zip(split.tokens, split.labels):
            decisive = [int(t) for t in row if t >= PIVOTS]
            assert all((t < PIVOTS + 6) == bool(label) for t in decisive)
    assert data.vocabulary == len(WORDS) + 1


def test_reviews_from_a_table_a_folder_tokens_and_a_name(tokenizer: Path, tmp_path: Path, monkeypatch) -> None:
    table = write_reviews(tmp_path / "reviews.parquet", both(REVIEWS))
    check_reviews(load_data(table, tokenizer=tokenizer))

    for split in ("train", "test"):
        for number, (text, label) in enumerate(REVIEWS):
            file = tmp_path / "aclImdb" / split / ("pos" if label else "neg") / f"{number}_7.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    check_reviews(load_data(tmp_path / "aclImdb", tokenizer=tokenizer / "tokenizer.json"))

    save_data(load_data(table, tokenizer=tokenizer), tmp_path / "tokens.npz")
    check_reviews(load_data(tmp_path / "tokens.npz"))

    def load_dataset(name: str, split: str) -> Any:
        assert name == "someone/reviews"
        rows = pq.read_table(table)
        chosen = rows.filter(pa.array([s == split for s in rows["split"].to_pylist()])).drop(["split"])
        return types.SimpleNamespace(data=types.SimpleNamespace(table=chosen))

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    check_reviews(load_data("someone/reviews", tokenizer=tokenizer))


def test_long_texts_are_cut(tokenizer: Path, tmp_path: Path) -> None:
    table = write_reviews(tmp_path / "reviews.parquet", both(REVIEWS))
    assert load_data(table, tokenizer=tokenizer, length=5).train.tokens.shape == (4, 5)
    save_data(load_data(table, tokenizer=tokenizer), tmp_path / "tokens.npz")
    for place in (tmp_path / "tokens.npz", "synthetic"):
        data = load_data(place, length=5)
        assert data.train.tokens.shape[1] == 5 == data.train.lengths.max()
    assert load_data(table, tokenizer=tokenizer, length=1).train.tokens.tolist() == [[1]] * 4  # [CLS] alone
    with pytest.raises(AttsvmError, match="length must be at least 24, as in the data, not 10"):
        make_model(Settings(sizes={"length": 10}), load_data("synthetic"))


def test_a_tokenizer_that_pads_and_cuts_changes_nothing(tokenizer: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    pads = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    pads.enable_padding(length=40)
    pads.enable_truncation(6)
    pads.save(str(tmp_path / "tokenizer.json"))
    table = write_reviews(tmp_path / "reviews.parquet", both(REVIEWS))
    assert load_data(table, tokenizer=tmp_path).digest() == load_data(table, tokenizer=tokenizer).digest()
    for name in ("tokens", "lengths", "pivotal", "spans"):
        made, expected = (getattr(encode_probes(place), name) for place in (tmp_path, tokenizer))
        assert torch.equal(made, expected)


def test_a_text_without_tokens_is_refused() -> None:
    texts = Texts(torch.ones(2, 3, dtype=torch.int32), torch.tensor([3, 0]), torch.tensor([0, 1]))
    with pytest.raises(AttsvmError, match="row 2 of the train split has no token"):
        Data(texts, texts, classes=2)


def test_numbers_of_tokens_with_gaps(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 5, "dull": 900}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    table = write_reviews(tmp_path / "reviews.parquet", both(REVIEWS))
    data = load_data(table, tokenizer=tmp_path)
    assert data.vocabulary == 901
    assert int(data.train.tokens.max()) == 900
    sizes = {"width": 8, "hidden": 8, "layers": 1}
    assert len(fit(data, Settings(sizes=sizes, epochs=1)).history) == 1
    with pytest.raises(AttsvmError, match="from 0 to 899, below the vocabulary, but the train split has 900"):
        replace(data, vocabulary=900)
    save_data(data, tmp_path / "tokens.npz")
    arrays = dict(np.load(tmp_path / "tokens.npz"))
    np.savez(tmp_path / "few.npz", **(arrays | {"vocabulary": np.array([3])}))
    with pytest.raises(AttsvmError, match="tokens must be from 0 to 2, below the vocabulary"):
        load_data(tmp_path / "few.npz")


def test_one_class_alone_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    rows = [(text, 1, "train") for text, _ in REVIEWS] + [(text, label, "test") for text, label in REVIEWS]
    with pytest.raises(AttsvmError, match="two classes or more, but all 4 have label 1"):
        load_data(write_reviews(tmp_path / "one.parquet", rows), tokenizer=tokenizer)
    images = tiny_images(20, 5).train
    assert isinstance(images, Images)
    alone = replace(images, labels=torch.zeros(20, dtype=torch.int64))
    with pytest.raises(AttsvmError, match="but all 20 have label 0"):
        Data(alone, images, classes=3)
    below = replace(images, labels=torch.arange(20) % 2 - 1)
    with pytest.raises(AttsvmError, match="labels must be from 0 on, but the train split has -1"):
        Data(below, below, classes=1)


def test_rows_are_counted_in_their_split(tokenizer: Path, tmp_path: Path) -> None:
    for name, row in (("label", ("so so", None, "test")), ("text", (None, 1, "test"))):
        table = write_reviews(tmp_path / "missing.parquet", [*both(REVIEWS), row])
        with pytest.raises(AttsvmError, match=f"missing.parquet, split test: row 5 has no {name} in column"):
            load_data(table, tokenizer=tokenizer)


def test_built_in_images_have_the_size_that_is_asked_for() -> None:
    for asked, size in ((None, 8), (12, 12)):
        split = load_data("tiny-images", size=asked).train
        assert isinstance(split, Images)
        assert split.size == size


def some_images(n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(256, size=(n, 3, 32, 32), dtype=np.uint8), np.arange(n) % 10


def test_cifar_from_a_folder_and_a_table(tmp_path: Path) -> None:
    pixels, labels = some_images(20)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, part in (("data_batch_1", slice(6)), ("data_batch_2", slice(6, 14)), ("test_batch", slice(14, 20))):
        content = {b"data": pixels[part].reshape(-1, 3072), b"labels": labels[part].tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    rows = []
    for i in range(20):
        file = io.BytesIO()
        Image.fromarray(pixels[i].transpose(1, 2, 0)).save(file, "PNG")
        rows.append({"image": file.getvalue(), "label": int(labels[i]), "split": "train" if i < 14 else "test"})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "cifar.PARQUET")
    for place in (folder, tmp_path / "cifar.PARQUET"):
        data = load_data(place, size=48)
        assert isinstance(data.train, Images)
        assert np.array_equal(data.train.pixels.numpy(), pixels[:14])
        assert np.array_equal(data.test.labels.numpy(), labels[14:])
        assert data.classes == 10
        (x,) = data.train.take(MiniBatch(torch.arange(14), torch.ones(14)))
        assert x.shape == (14, 3, 48, 48)
        save_data(data, tmp_path / "pixels.npz")
        (again,) = load_data(tmp_path / "pixels.npz").train.take(MiniBatch(torch.arange(14), torch.ones(14)))
        assert torch.equal(again, x)
        (unscaled,) = load_data(place, size=32).train.take(MiniBatch(torch.arange(14), torch.ones(14)))
        assert unscaled.mean().abs() < 1e-5
        assert (unscaled.std() - 1).abs() < 1e-2


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("false",)

    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(AttsvmError, match="hold only arrays"):
        load_data(tmp_path)


def test_shifts_move_pixels_and_make_none() -> None:
    data = tiny_images(30, 5)
    torch.manual_seed(0)
    (moved,) = data.train.take(MiniBatch(torch.arange(30), torch.ones(30)), training=True)
    (still,) = data.train.take(MiniBatch(torch.arange(30), torch.ones(30)))
    assert moved.shape == still.shape
    assert not torch.equal(moved, still)
    for a, b in zip(moved, still):  # the middle survives, mirrored or not, wherever it went
        inside = a[:, 2:-2, 2:-2].flatten()
        assert torch.isin(inside, b.flatten()).all()


def test_synthetic_reviews_have_one_word_that_decides() -> None:
    data = synthetic_sentiment(50, 20)
    for split in (data.train, data.test):
        assert ((split.tokens >= PIVOTS).sum(1) == 1).all()
        assert (split.tokens[:, 0] == 1).all()
        word = split.tokens.max(1).values
        assert torch.equal(word < PIVOTS + 6, split.labels.bool())


def fit_command(*arguments: str, out: Path) -> Any:
    small = "layers=1 width=8 hidden=8 lr=1e-3 epochs=1"
    options = [part for pair in small.split() for part in f"--{pair}".split("=")]
    return CliRunner().invoke(app, ["fit", *options, "--quiet", *arguments, "--out", str(out)])


def test_broken_inputs_get_one_sentence(tokenizer: Path, tmp_path: Path) -> None:
    good = write_reviews(tmp_path / "good.parquet", both(REVIEWS))
    wrong = write_reviews(tmp_path / "wrong.parquet", [*both(REVIEWS), ("so so", -1, "train")])
    one = write_reviews(tmp_path / "one.parquet", [(text, label, "train") for text, label in REVIEWS])
    words = write_reviews(tmp_path / "words.parquet", [(t, "good", s) for t, _, s in both(REVIEWS)])
    numbers = write_reviews(tmp_path / "numbers.parquet", [(t, y, 0) for t, y, _ in both(REVIEWS)])  # type: ignore[misc]
    lists = write_reviews(tmp_path / "lists.parquet", [(t, [y], s) for t, y, s in both(REVIEWS)])
    short = tmp_path / "cifar"
    short.mkdir()
    for name in ("data_batch_1", "test_batch"):
        pixels, own = some_images(6)
        (short / name).write_bytes(pickle.dumps({b"data": pixels.reshape(-1, 3072), b"labels": own[:4].tolist()}))
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    for name, label in (("many", 10**12), ("named", "cat")):
        rows = [{"image": file.getvalue(), "label": label, "split": split} for split in ("train", "test")]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    rows = [{"image": seen, "label": 0, "split": "train"} for seen in (file.getvalue(), b"no image")]
    rows.append(rows[0] | {"split": "test"})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "unseen.parquet")
    (tmp_path / "empty.csv").write_text("text,label,split\n")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    (tmp_path / "text.parquet").write_text("not a table")
    (tmp_path / "empty").mkdir()
    torch_file = tmp_path / "other.npz"
    np.savez(torch_file, a=np.zeros(3))
    found = ["--tokenizer", str(tokenizer)]
    cases = [
        ([str(good)], "texts need a tokenizer"),
        ([str(good), "--tokenizer", str(tmp_path / "no.json")], "is not a file"),
        ([str(good), "--tokenizer", str(broken)], "not a readable tokenizer.json"),
        ([str(wrong), *found], "labels must be 0 or 1, but the train split has -1"),
        (
            [str(words), *found],
            "words.parquet: labels must be whole numbers .* but the column holds texts, such as 'good'",
        ),
        ([str(one), *found], "no row whose split is 'test'"),
        ([str(numbers), *found], "'split' must hold texts, but it holds int64"),
        ([str(lists), *found], "'label' must hold one label per row, but it holds list"),
        ([str(short)], "must have a label for every image, but it has 6 and 4"),
        ([str(tmp_path / "many.parquet")], "whole numbers from 0 to 99999, but got 1000000000000"),
        ([str(tmp_path / "named.parquet")], "whole numbers from 0 to 99999, but the column holds"),
        ([str(tmp_path / "unseen.parquet")], "split train: row 2 is not a readable image"),
        ([str(tmp_path / "empty.csv"), *found], "has no row whose split is 'train'"),
        (["synthetic", "--seed", str(2**63 - 1)], "seed must be a whole number in 0"),
        (["synthetic", "--device", "meta"], "not available here"),
        ([str(tmp_path / "text.parquet"), *found], "not a readable parquet file"),
        ([str(tmp_path / "empty")], "must be aclImdb .* or CIFAR-10"),
        ([str(tmp_path / "none.parquet"), *found], "is not a file"),
        ([str(torch_file)], "must hold token numbers or pixels"),
        (["synthetic", "--p", "1"], "p must be above 1"),
        (["synthetic", "--heads", "3"], "width must be a multiple of heads"),
        (
            ["synthetic", "--optimizer", "mirror-adam", "--momentum", "0.9"],
            "--momentum is for mirror-descent",
        ),
        (["synthetic", "--scope", "relative"], "set sparsity as well"),
        (["synthetic", "--optimizer", "sgd", "--rest-lr", "1e-3"], "--rest-lr is for .* --optimizer is sgd"),
        (["synthetic", "--own-head"], "--own-head is for --model gpt: leave it out"),
        (["synthetic", "--start", "linear"], "--start is for --model gpt"),
        (["synthetic", "--head-lr", "1e-3"], "--head-lr is for mirror-muon, but --optimizer is mirror-descent"),
        (["synthetic", "--moments-of", "mirror"], "--moments-of is for mirror-adam, but --optimizer is mirror-descent"),
        (
            ["synthetic", "--optimizer", "adamw", "--p", "1.1"],
            "--p is for mirror-descent, mirror-adam and mirror-muon, but",
        ),
        (["synthetic", "--optimizer", "sgd", "--groups", "all"], "--groups is for .* --optimizer is sgd"),
        (["synthetic", *found], "--tokenizer is for texts, but synthetic has token numbers already"),
        (["synthetic", "--patch", "2"], "--patch is for images, but synthetic has texts"),
        (["tiny-images", *found], "--tokenizer is for texts, but tiny-images has images: leave it out"),
        (["tiny-images", "--length", "32"], "--length is for texts"),
        (["tiny-images", "--mixed"], "--group or --mixed is for texts"),
    ]
    if not torch.cuda.is_available():
        cases.append((["synthetic", "--device", "cuda"], "not available here: use cpu"))
    for arguments, message in cases:
        with pytest.raises(AttsvmError, match=message):
            raise fit_command(*arguments, out=tmp_path / "run").exception
    empty = Texts(torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int64), torch.zeros(0).long())
    with pytest.raises(AttsvmError, match="the test split must have rows"):
        Data(load_data(good, tokenizer=tokenizer).train, empty, classes=2)


def test_command_line(tokenizer: Path, tmp_path: Path) -> None:
    table = write_reviews(tmp_path / "good.parquet", both(REVIEWS))
    tokens = ["tokens", str(table), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "tokens.npz")]
    said = CliRunner().invoke(app, tokens).output
    assert "4 train and 4 test rows" in " ".join(said.split())  # lines break where the path ends
    done = fit_command(str(tmp_path / "tokens.npz"), "--optimizer", "mirror-adam", out=tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "1 epoch (all epochs done)" in done.output
    metrics = pq.read_table(tmp_path / "run" / "metrics.parquet")
    assert metrics["epoch"].to_pylist() == [1]
    assert 0 <= metrics["test_accuracy"][0].as_py() <= 1
    other = fit_command(str(tmp_path / "tokens.npz"), "--optimizer", "adamw", out=tmp_path / "run")
    assert "holds another run" in str(other.exception)
    seen = fit_command("tiny-images", "--heads", "2", out=tmp_path / "images")
    assert seen.exit_code == 0, seen.output
    lost = fit_command("synthetic", "--optimizer", "sgd", "--lr", "1e30", "--batch", "8", out=tmp_path / "lost")
    assert lost.exit_code == 3  # something is written, but not all is well
    assert "diverged in epoch 1: take a smaller --lr than 1e+30, or --loss mean." in lost.stderr


@pytest.mark.parametrize(("model", "names"), [("gpt", "loss"), ("classifier", "train")])
def test_the_bar_fits_a_terminal_of_80_columns(model: str, names: str, tmp_path: Path, monkeypatch) -> None:
    """With what was reached by name, and with both times."""
    monkeypatch.setenv("COLUMNS", "80")
    small = {"layers": 1, "heads": 1, "width": 8, "hidden": 8, "lr": 1e-6, "epochs": 100, "batch": 4096, "stop": 2}
    sizes = [part for name, value in small.items() for part in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, ["fit", "synthetic", *sizes, "--model", model, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    (bar,) = [line for line in done.stderr.splitlines() if "tokens/s" in line]
    assert re.search(rf"epoch 100 of 100 .* {names} \d\.\d{{3}}  test \d\.\d{{3}} \d:\d\d:\d\d \d:\d\d:\d\d$", bar)


def test_a_language_model_needs_no_labels(tokenizer: Path, tmp_path: Path) -> None:
    """Neither a column of them nor two classes: the texts are the same data, whatever their labels."""
    named = write_reviews(tmp_path / "named.parquet", [(t, "good", s) for t, _, s in both(REVIEWS)])
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(named).drop_columns(["label"]), bare)
    found = [load_data(place, tokenizer=tokenizer, next_tokens=True) for place in (named, bare)]
    assert [data.kind for data in found] == ["gpt", "gpt"]
    assert found[0].digest() == found[1].digest()
    assert torch.equal(
        found[0].train.tokens, load_data(write_reviews(named, both(REVIEWS)), tokenizer=tokenizer).train.tokens
    )
    assert load_data("synthetic", next_tokens=True).digest() == load_data("synthetic").next_tokens().digest()
    options = ["--model", "gpt", "--heads", "1", "--length", "16", "--tokenizer", str(tokenizer)]
    done = fit_command(str(bare), *options, out=tmp_path / "gpt")
    assert done.exit_code == 0, done.output
    with pytest.raises(AttsvmError, match="has no column 'label'"):
        load_data(bare, tokenizer=tokenizer)


def test_image_parts_come_back_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import image_parts

    monkeypatch.setattr(image_parts, "CHUNK", 8)
    monkeypatch.setattr(image_parts, "ProcessPoolExecutor", _Here)
    save_data(tiny_images(20, 10), tmp_path / "images.npz")
    image_parts.split(tmp_path / "images.npz", tmp_path / "parts", 2000)
    assert len(list((tmp_path / "parts").iterdir())) > 1
    image_parts.join(tmp_path / "again.npz", tmp_path / "parts")
    before, after = (load_data(tmp_path / f"{name}.npz") for name in ("images", "again"))
    assert before.digest() == after.digest()


class _Here(ThreadPoolExecutor):
    """Threads instead of processes: patched names reach them."""


def test_whole_floats_of_a_csv_are_labels(tmp_path: Path, tokenizer: Path) -> None:
    rows = [(text, label, split) for split in ("train", "test") for text, label in (("good", "1.0"), ("bad", "0.0"))]
    (tmp_path / "rows.csv").write_text("text,label,split\n" + "".join(f"{','.join(row)}\n" for row in rows))
    assert load_data(tmp_path / "rows.csv", tokenizer=tokenizer).train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("length", [0, -1, 1.5])
def test_a_length_that_is_no_number_of_tokens_is_named(length: float) -> None:
    with pytest.raises(AttsvmError, match="length must be a whole number at least 1"):
        load_data("synthetic", length=length)  # type: ignore[arg-type]
