"""`attsvm text` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import run, run_script
from made_texts import make_texts
from pyarrow import csv, parquet

from attsvm.cli import main
from attsvm.text import AttentionTextClassifier

NAMES = np.array(["bad", "good"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli-text")
    texts, labels = make_texts(300)
    parquet.write_table(pa.table({"review": texts, "verdict": NAMES[labels].tolist()}), folder / "reviews.parquet")
    csv.write_csv(
        pa.table({"text": texts[:9], "id": range(9), "label": NAMES[labels[:9]].tolist()}), folder / "new.csv"
    )
    fit = run("text", "fit", "reviews.parquet", "--text", "review", "--label", "verdict", "--out", "model", cwd=folder)
    (folder / "fit.txt").write_text(fit.stdout)
    return folder


@pytest.fixture
def type_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., str]:
    """Like `run`, but in this process, which has paid for its imports already."""

    def type_in(*arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["attsvm", "text", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, end.value.code
        return capfdbinary.readouterr().out.decode()

    return type_in


def test_fit_says_how_well_it_does(folder: Path) -> None:
    said = (folder / "fit.txt").read_text()
    assert "270 texts, 2 classes" in said
    assert "of 30 held-out texts" in said
    assert float(said.split("accuracy ")[1].split()[0]) > 0.8
    assert "recall" in said


def test_predict_to_a_file_and_to_standard_output(folder: Path, type_in: Callable[..., str]) -> None:
    model = AttentionTextClassifier.load(folder / "model")
    table = csv.read_csv(folder / "new.csv")
    expected = model.predict(table["text"]).tolist()
    printed = type_in("predict", "model", "new.csv")
    assert csv.read_csv(pa.BufferReader(printed.encode()))["predicted"].to_pylist() == expected
    said = type_in("predict", "model", "new.csv", "--label", "label", "--out", "out.jsonl")
    assert "of 9 texts" in said
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["predicted"] for row in rows] == expected
    assert [row["id"] for row in rows] == list(range(9))
    assert np.allclose([row["probability"] for row in rows], model.predict_proba(table["text"]).max(1))
    of_fit = type_in("predict", "model", "reviews.parquet")  # with the column of fit, which need not be said again
    assert len(csv.read_csv(pa.BufferReader(of_fit.encode()))) == 300
    type_in("predict", "model", "out.jsonl", "--out", "again.parquet")
    assert parquet.read_table(folder / "again.parquet").column_names.count("predicted") == 1


def test_explain(folder: Path, type_in: Callable[..., str]) -> None:
    assert "attention" in type_in("explain", "model", "c1m1 and w1, c0m1", "--html", "out.html")
    assert "c1m1" in (folder / "out.html").read_text()
    assert type_in("explain", "model", "c1m1", "--label", "bad").startswith("bad  probability 0.")


def test_words(folder: Path, type_in: Callable[..., str]) -> None:
    said = type_in("words", "model", "--top", "3", "--out", "words.csv")
    assert said.count("c0m") == 3
    assert said.count("c1m") == 3
    words = csv.read_csv(folder / "words.csv")
    assert words.column_names == ["word", "importance", "texts", "direction bad", "direction good"]


def test_options_of_fit(folder: Path, type_in: Callable[..., str]) -> None:
    (folder / "stars.tsv").write_text(
        "text\tlabel\n"
        + "".join(f"{'good' if k % 2 else 'not good'} thing{k % 5}\t{k % 2 - (k % 7 == 0) * 9}\n" for k in range(70))
    )
    options = ["--test", "0", "--ngrams", "2", "--penalty", "0.1", "--p", "1.5", "--balanced", "--seed", "3", "--quiet"]
    drop = ["--drop=-9", "--drop=-8", "--stem", "english", "--min-texts", "2", "--rarity", "0"]
    said = type_in("fit", "stars.tsv", "--out", "stars", *options, *drop)
    model = AttentionTextClassifier.load(folder / "stars")
    words = model.words_.word
    pairs = sum(" " in word for word in words)
    assert f"60 texts, 2 classes, {len(words) - pairs} words, {pairs} n-grams;" in said
    assert "importance 0.5, rarity 0.0; model in" in " ".join(said.split())
    assert "accuracy" not in said
    assert model.get_params()["p"] == 1.5
    assert model.predict(["not good", "good"]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "reviews.parquet", "--out", "x"], "has no column 'text'; it has 'review', 'verdict'"),
        (["fit", "none.csv", "--out", "x"], "none.csv is not a file"),
        (["fit", "latin.csv", "--out", "x"], "name its encoding"),
        (
            ["fit", "one.csv", "--out", "x", "--test", "0"],
            "column 'label' must have at least two classes, but all rows have 1.",
        ),
        (["fit", "header.csv", "--out", "x"], "must have at least two classes, but there are no rows."),
        (["fit", "new.csv", "--out", "new.csv/x"], "is not a folder"),
        (["fit", "new.csv", "--out", "x", "--test", "0.01"], "is none"),
        (["fit", "new.csv", "--out", "x", "--stem", "klingon"], "stem must be one of"),
        (["predict", "nothing", "new.csv"], "has no model.json"),
        (["predict", "model", "new.csv", "--text", "body"], "has no column 'body'"),
        (["predict", "model", "new.csv", "--out", "x.txt"], "must end in one of"),
        (["predict", "model", "new.csv", "--label", "id", "--out", "x.csv"], "does not know the labels 0, 1"),
        (["explain", "model", "a", "--label", "fine"], "must be one of bad, good"),
        (["explain", "model", "new.csv"], "new.csv is a file: to explain each of its lines, write - < new.csv."),
    ],
)
def test_errors_are_one_sentence(
    folder: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "latin.csv").write_bytes("text,label\ncafé,1\nthé,0\n".encode("latin-1"))
    (folder / "header.csv").write_text("text,label\n")
    (folder / "one.csv").write_text("text,label\na,1\nb,1\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["attsvm", "text", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, str)  # printed on standard error, with exit status 1
    assert end.value.code.startswith("Error: ")
    assert sentence in end.value.code
    assert "\n" not in end.value.code
    assert not (folder / "x").exists()
    assert not (folder / "x.csv").exists()


def test_of_no_text_there_is_no_accuracy(folder: Path, type_in: Callable[..., str]) -> None:
    (folder / "none.csv").write_text("text,label\n")
    assert "accuracy – (0 of 0 texts)" in type_in(
        "predict", "model", "none.csv", "--text", "text", "--label", "label", "--out", "none2.csv"
    )


def test_an_error_as_it_is_seen(folder: Path) -> None:
    (folder / "single.csv").write_text("text,label\na,1\nb,1\n")
    result = run("text", "fit", "single.csv", "--out", "x", "--test", "0", cwd=folder, check=False)
    assert result.returncode == 1
    assert result.stderr == "Error: single.csv: column 'label' must have at least two classes, but all rows have 1.\n"


def test_labels_cannot_turn_or_hide_what_the_terminal_shows(folder: Path, type_in: Callable[..., str]) -> None:
    names = ["good\u202e", "bad\x1b[31m\u2066"]
    rows = [{"text": f"word{i % 7} {('fine', 'poor')[i % 2]}", "label": names[i % 2]} for i in range(40)]
    (folder / "turned.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    said = type_in("fit", "turned.jsonl", "--out", "turned", "--min-texts", "1", "--penalty", "1", "--quiet")
    said += type_in("words", "turned")
    said += type_in("explain", "turned", "a fine word1")
    assert "good⟨U+202E⟩" in said
    assert not set("\x1b\u202e\u2066") & set(said)


def test_rows_of_all_splits_are_not_used_in_silence(folder: Path) -> None:
    rows = [{"text": f"{('fine', 'poor')[i % 2]} {i}", "label": i % 2} for i in range(40)]
    rows = [row | {"split": ("train", "test")[i % 4 > 2]} for i, row in enumerate(rows)]
    (folder / "parts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fit = ["text", "fit", "parts.jsonl", "--out", "parts", "--quiet", "--penalty", "1"]
    assert "all splits are used (test, train); --split takes" in run(*fit, cwd=folder).stderr
    one = run(*fit, "--split", "train", cwd=folder)
    assert not one.stderr
    assert "27 texts" in one.stdout
    assert (
        run("text", "predict", "parts", "parts.jsonl", "--out", "parts.csv", cwd=folder).stdout
        == "parts.csv: 40 texts\n"
    )


def test_a_warning_is_a_sentence(folder: Path) -> None:
    """Without a place in the code."""
    rows = [{"text": ("这部电影非常好看", "这部电影太差了")[i % 2], "label": i % 2} for i in range(40)]
    (folder / "unspaced.jsonl").write_text("\n".join(map(json.dumps, rows)))
    script = "import warnings; from attsvm.cli import main; warnings.resetwarnings(); main()"
    fit = ("text", "fit", "unspaced.jsonl", "--out", "unspaced", "--quiet", "--test", "0")
    warned = run_script(script, *fit, cwd=folder)
    assert warned.returncode == 0
    assert warned.stderr.startswith("Warning: these texts put no spaces between words")
    assert warned.stderr.count("\n") == 1
