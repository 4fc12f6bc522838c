"""`attsvm text` on the tables that users have: nothing of them is lost, and nothing is written over in vain."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import run_script
from made_texts import make_texts
from pyarrow import parquet
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._text import app
from attsvm.text import AttentionTextClassifier

TEXTS, LABELS = make_texts(80)
QUICK = ("--penalty", "0.1", "--quiet")


def type_in(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    AttentionTextClassifier(penalty=0.1).fit(TEXTS, LABELS).save(folder)
    return folder


def table(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def cells(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_other_cells_of_a_csv_come_back(model: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "c1m1", "id": "12345678901234567890", "zip": "02139", "note": "NA", "n": "1", "x": "1.50", "at": ""},
        {"text": "7", "id": "3", "zip": "10001", "note": "null", "n": "-2", "x": "2", "at": "2020-01-01T10:00:00"},
    ]
    with (tmp_path / "ids.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    type_in("predict", model, tmp_path / "ids.csv", "--out", tmp_path / "out.csv")
    for said in (type_in("predict", model, tmp_path / "ids.csv"), (tmp_path / "out.csv").read_text("utf-8")):
        found = cells(said)
        assert [{name: row[name] for name in rows[0]} for row in found] == rows
        assert found[0]["predicted"] == "1"
    type_in("predict", model, tmp_path / "ids.csv", "--out", tmp_path / "out.jsonl")
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert (first["id"], first["zip"], first["n"]) == ("12345678901234567890", "02139", 1)


def test_the_objects_of_json_lines_come_back(model: Path, tmp_path: Path) -> None:
    rows = [
        {
            "text": "c1m1",
            "split": "a",
            "at": "2020-01-01T10:00:00",
            "id": 12345678901234567890,
            "mix": 1,
            "in": {"k": 1},
        },
        {"text": "c0m1", "split": "b", "mix": "one"},
        {"text": "c0m1 é", "split": "a", "mix": [1, "x"], "in": {"other": None}, "id": 1},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    type_in("predict", model, tmp_path / "in.jsonl", "--split", "a", "--out", tmp_path / "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [row.pop("predicted") for row in found] == [1, 0]
    assert all(0.5 <= row.pop("probability") <= 1 for row in found)
    assert found == [rows[0], rows[2]]
    printed = cells(type_in("predict", model, tmp_path / "in.jsonl"))
    assert printed[0]["at"] == "2020-01-01T10:00:00"
    assert [json.loads(row["mix"]) for row in printed] == [1, "one", [1, "x"]]
    assert printed[0]["id"] == "12345678901234567890"


def test_lists_and_records_stand_in_a_csv_as_json(model: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", text=["c1m1", "a"], tags=[["x", "y"], None], where=[{"a": 1}, {"a": 2}])
    type_in("predict", model, path, "--out", tmp_path / "out.tsv")
    for said in (type_in("predict", model, path), (tmp_path / "out.tsv").read_text().replace("\t", ",")):
        found = cells(said)
        assert [row["tags"] for row in found] == ['["x", "y"]', ""]
        assert json.loads(found[1]["where"]) == {"a": 2}
    type_in("predict", model, path, "--out", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet")["tags"].to_pylist() == [["x", "y"], None]


def test_what_a_format_cannot_hold_is_one_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a", "empty": {}}\n')
    with pytest.raises(AttsvmError, match=r"out\.parquet cannot be written: .*; write \.jsonl\.$"):
        type_in("predict", model, tmp_path / "in.jsonl", "--out", tmp_path / "out.parquet")


def test_a_column_of_the_same_name_is_not_replaced_in_silence(model: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", text=["c1m1"], predicted=["mine"])
    said = type_in("predict", model, path, "--out", tmp_path / "out.csv")
    assert f"Replaced in the output: predicted, which {path} has already." in said
    assert cells((tmp_path / "out.csv").read_text())[0]["predicted"] == "1"


SMALL_FILES = """
import resource
from attsvm.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (50 * 1024, 50 * 1024))
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no ulimit")
def test_a_fit_that_cannot_be_written_leaves_the_model(tmp_path: Path) -> None:
    words = [" ".join(f"word{k}n{j}" for j in range(40)) for k in range(100)]
    table(tmp_path / "many.parquet", text=words, label=[k % 2 for k in range(100)])
    small = table(tmp_path / "few.parquet", text=TEXTS, label=LABELS)
    type_in("fit", small, "--out", tmp_path / "m1", *QUICK)
    before = type_in("words", tmp_path / "m1")
    typed = "text fit many.parquet --penalty 1 --ngrams 2 --quiet --out m1"
    result = run_script(SMALL_FILES, *typed.split(), cwd=tmp_path)
    assert result.returncode == 1
    assert "cannot be written: File too large." in result.stderr
    assert type_in("words", tmp_path / "m1") == before
    assert sorted(path.name for path in (tmp_path / "m1").iterdir()) == ["model.json", "model.safetensors"]


def test_no_class_is_held_out_whole(tmp_path: Path) -> None:
    names = [*("bad" if label else "good" for label in LABELS[:60]), "rare", "two", "two"]
    path = table(tmp_path / "rare.parquet", text=TEXTS[:63], label=names)
    for seed in range(10):
        for test in (0.1, 0.9):
            said = type_in("fit", path, "--seed", seed, "--test", test, "--out", tmp_path / "m", *QUICK)
            assert "4 classes" in said
            assert f"of {7 if test == 0.1 else 57} held-out texts" in said
    one_each = table(tmp_path / "one.parquet", text=TEXTS[:20], label=list(map(str, range(20))))
    with pytest.raises(AttsvmError, match="is none, one of each class aside: take more texts, or --test 0"):
        type_in("fit", one_each, "--out", tmp_path / "x", *QUICK)


def held_out(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    from attsvm.cli._text import _held_out

    return _held_out([f"text {i}" for i in range(len(labels))], labels, 0.1, seed)


def test_the_held_out_part_has_its_share_of_each_class() -> None:
    labels = np.repeat(["a", "b", "c"], [500, 300, 200])
    held = held_out(labels)
    assert held.sum() == 100
    assert all(abs((held & (labels == name)).sum() - share) <= 1 for name, share in (("a", 50), ("b", 30), ("c", 20)))
    assert not np.array_equal(held, held_out(labels, seed=1))
    assert held_out(np.repeat(np.arange(50), 4)).sum() == 20  # of small classes too


def test_equal_texts_are_held_out_together(tmp_path: Path) -> None:
    """What a model has learned by heart would count as right."""
    texts = [f"word{i}" for i in range(60)] * 2  # which tell nothing of each other
    labels = np.random.default_rng(0).integers(2, size=60).tolist() * 2
    path = table(tmp_path / "twice.parquet", text=texts, label=labels)
    said = type_in("fit", path, "--test", 0.5, "--penalty", 1e-4, "--out", tmp_path / "m", "--quiet")
    found = re.search(r"\((\d+) of (\d+) held-out", said)
    assert found is not None
    assert int(found[2]) == 60
    assert int(found[1]) <= 40


def test_labels_to_drop(tmp_path: Path) -> None:
    labels = LABELS.astype(float)
    labels[:8] = -1
    path = table(tmp_path / "floats.parquet", text=TEXTS, label=labels)
    for typed in ("--drop=-1", "--drop=-1.0"):
        assert "72 texts, 2 classes" in type_in("fit", path, typed, "--test", 0, "--out", tmp_path / "m", *QUICK)
    whole = table(tmp_path / "whole.parquet", text=TEXTS, label=LABELS)
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("text,label\n" + "".join(f"{text},{label}.0\n" for text, label in zip(TEXTS, LABELS)))
    for other in (whole, sheet):
        assert "of 80 texts" in type_in(
            "predict", tmp_path / "m", other, "--label", "label", "--out", tmp_path / "o.csv"
        )
    with pytest.raises(AttsvmError, match=r"^--drop must be one of -1, 0, 1, but got 7\.$"):
        type_in("fit", path, "--drop", "7", "--out", tmp_path / "x", *QUICK)


def test_a_model_of_floats_and_a_table_of_whole_numbers(tmp_path: Path) -> None:
    AttentionTextClassifier(penalty=0.1).fit(TEXTS, LABELS.astype(float)).save(tmp_path / "m")
    path = table(tmp_path / "t.parquet", text=TEXTS, label=LABELS)
    assert "of 80 texts" in type_in("predict", tmp_path / "m", path, "--label", "label", "--out", tmp_path / "o.csv")
    for typed in ("1", "1.0"):
        assert "probability" in type_in("explain", tmp_path / "m", "c1m1", "--label", typed)


def test_labels_of_a_csv_match_those_of_other_tables(tmp_path: Path) -> None:
    sheet, names = tmp_path / "sheet.csv", np.array(["01", "10"])[LABELS].tolist()
    sheet.write_text("text,label\n" + "".join(f"{text},{name}\n" for text, name in zip(TEXTS, names)))
    type_in("fit", sheet, "--test", 0, "--out", tmp_path / "m", *QUICK)
    assert {row["predicted"] for row in cells(type_in("predict", tmp_path / "m", sheet))} == {"01", "10"}
    path = table(tmp_path / "t.parquet", text=TEXTS, label=names)
    assert "of 80 texts" in type_in("predict", tmp_path / "m", path, "--label", "label", "--out", tmp_path / "o.csv")
    type_in(
        "fit", table(tmp_path / "n.parquet", text=TEXTS, label=LABELS), "--test", 0, "--out", tmp_path / "m", *QUICK
    )
    texts = table(tmp_path / "s.parquet", text=TEXTS, label=list(map(str, LABELS)))
    sheet.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS)))
    for other in (texts, sheet):
        assert "of 80 texts" in type_in(
            "predict", tmp_path / "m", other, "--label", "label", "--out", tmp_path / "o.csv"
        )
