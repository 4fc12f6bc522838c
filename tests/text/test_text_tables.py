"""Tables of texts: read what was written, refuse what cannot be read in one sentence."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attsvm import AttsvmError
from attsvm.tables import read_table, write_table
from attsvm.text import read_texts

TEXTS = ["plain", 'a "quoted", comma', "two\nlines", "", "emoji 🎬 and é"]


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"text": TEXTS, "label": [0, 1, 0, 1, 1], "split": ["train"] * 3 + ["test"] * 2})


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "jsonl"])
def test_round_trip(table: pa.Table, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{ending}"
    write_table(table, path)
    texts, labels = read_texts(path)
    assert texts == TEXTS
    assert np.array_equal(labels, [0, 1, 0, 1, 1])
    assert read_texts(path, split="test").texts == TEXTS[3:]
    assert read_texts(path, label=None).labels is None
    assert read_table(path, text="text").column_names == table.column_names


def test_a_text_column_of_numbers_in_csv_is_text(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("text,label\n1,a\n2,b\n")
    texts, labels = read_texts(tmp_path / "numbers.csv")
    assert texts == ["1", "2"]
    assert labels is not None
    assert list(labels) == ["a", "b"]


@pytest.mark.parametrize("sign", [";", "\t", ","])
def test_csv_as_spreadsheets_write_it(sign: str, tmp_path: Path) -> None:
    rows = ["text", "label"], ['"so, so; good"', "1"], ["dull", "0"]
    (tmp_path / "sheet.csv").write_text("\r\n".join(sign.join(row) for row in rows), "utf-8-sig")
    texts, labels = read_texts(tmp_path / "sheet.csv")
    assert texts == ["so, so; good", "dull"]
    assert list(labels) == [1, 0]


def test_a_long_row(tmp_path: Path) -> None:
    for ending in ("csv", "jsonl"):
        write_table(pa.table({"text": ["word " * 400_000], "label": [1]}), tmp_path / f"long.{ending}")
        assert len(read_texts(tmp_path / f"long.{ending}").texts[0]) == 2_000_000


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["good", ""], "row 2 has no label"),
        ([1.0, float("nan")], "row 2 has no label"),
        ([1.5, 2.0], "must hold whole numbers or texts, but it holds fractions"),
        ([[0], [1]], "must hold one label per row"),
        ([datetime.date(2026, 1, 1)] * 2, "must hold whole numbers or texts, but it holds date"),
        ([b"good", b"bad"], "must hold whole numbers or texts, but it holds binary"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: list, sentence: str) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": labels}), tmp_path / "table.parquet")
    with pytest.raises(AttsvmError, match=sentence):
        read_texts(tmp_path / "table.parquet")


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        ("1 0", [1, 0]),
        ("-1.0 1.0", [-1, 1]),
        ("1 2.0", [1, 2]),
        ("01 10", ["01", "10"]),
        ("12345678901234567890 1", ["12345678901234567890", "1"]),
        ("NA good", ["NA", "good"]),
        ("true false", [True, False]),
    ],
)
def test_labels_of_a_csv(tmp_path: Path, cells: str, labels: list) -> None:
    (tmp_path / "table.csv").write_text("text,label\n" + "".join(f"a,{cell}\n" for cell in cells.split()))
    found = read_texts(tmp_path / "table.csv").labels
    assert found is not None
    assert found.tolist() == labels


@pytest.mark.parametrize(("cells", "sentence"), [("1 NA", "row 2 has no label"), ("0.5 1", "holds fractions")])
def test_labels_of_a_csv_that_are_none(tmp_path: Path, cells: str, sentence: str) -> None:
    (tmp_path / "table.csv").write_text("text,label\n" + "".join(f"a,{cell}\n" for cell in cells.split()))
    with pytest.raises(AttsvmError, match=sentence):
        read_texts(tmp_path / "table.csv")


def test_whole_floats_are_whole_numbers(tmp_path: Path) -> None:
    for values in (pa.array([-1.0, 1.0]), pa.array(["-1", "1"]).cast(pa.decimal128(5, 2))):
        write_table(pa.table({"text": ["a", "b"], "label": values}), tmp_path / "table.parquet")
        labels = read_texts(tmp_path / "table.parquet").labels
        assert labels is not None
        assert labels.dtype == np.int64
        assert labels.tolist() == [-1, 1]


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("text,label,label\na,0,1\nb,1,0\n")
    columns = [["a", "b"], [0, 1], [1, 0]]
    pq.write_table(pa.table(columns, names=["text", "label", "label"]), tmp_path / "twice.parquet")
    for name in ("twice.csv", "twice.parquet"):
        with pytest.raises(AttsvmError, match="more than one column 'label'"):
            read_texts(tmp_path / name)


def test_encoding(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(AttsvmError, match="not written in utf-8; save it as UTF-8, or name its encoding"):
        read_texts(tmp_path / "latin.csv")
    assert read_texts(tmp_path / "latin.csv", encoding="latin-1").texts == ["café"]
    (tmp_path / "latin.jsonl").write_bytes('{"text": "café", "label": 1}\n'.encode("latin-1"))
    with pytest.raises(AttsvmError, match="not written in utf-8"):
        read_texts(tmp_path / "latin.jsonl")
    assert read_texts(tmp_path / "latin.jsonl", encoding="latin-1").texts == ["café"]
    with pytest.raises(AttsvmError, match="unknown encoding"):
        read_texts(tmp_path / "latin.jsonl", encoding="klingon")


def test_half_of_a_character_in_json_lines_is_named(tmp_path: Path) -> None:
    rows = [r'{"text": "whole \ud83d\ude00", "label": 1}', r'{"text": "cut \ud83d", "label": 0}']
    (tmp_path / "cut.jsonl").write_text("\n".join(rows))
    with pytest.raises(AttsvmError, match=r"line 2 has '\\ud83d', half of a character; mend or drop it"):
        read_texts(tmp_path / "cut.jsonl")
    (tmp_path / "cut.jsonl").write_text(rows[0])
    assert read_texts(tmp_path / "cut.jsonl").texts == ["whole 😀"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.csv", None, "is not a file"),
        ("names.csv", "review,label\na,1\n", "has no column 'text'; it has 'review', 'label'"),
        ("labels.csv", "text\na\n", "has no column 'label'"),
        ("null.jsonl", '{"text": "a", "label": 1}\n{"text": null, "label": 1}\n', "row 2 has no text"),
        ("null2.jsonl", '{"text": "a", "label": null}\n{"text": "b", "label": 1}\n', "row 1 has no label"),
        ("number.jsonl", '{"text": 1, "label": 1}\n', "must hold texts, but it holds int64"),
        ("broken.jsonl", '{"text": "a"\n', "cannot be read: line 1 is not JSON"),
        ("list.jsonl", '{"text": "a", "label": 1}\n\n[1]\n', "line 3 is not an object"),
        ("empty.jsonl", "", "it is empty"),
        (
            "mixed.jsonl",
            '{"text": "a", "label": 1}\n{"text": 1, "label": 1}\n',
            "texts, but it holds a mixture",
        ),
        ("mixed2.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n', "but it holds a mixture of kinds"),
        ("quote.csv", '"' + "a" * 200_000, "cannot be read"),
        ("broken.parquet", "nonsense", "cannot be read"),
        ("empty.csv", "", "cannot be read"),
        ("folder.txt", "a", "must be one of .parquet"),
        ("no-such/data-set", None, "needs the package datasets|cannot be loaded"),
    ],
)
def test_refusals(name: str, content: str | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    source = name if "/" in name else tmp_path / name
    with pytest.raises(AttsvmError, match=sentence):
        read_texts(source)


def test_no_row_of_that_split(table: pa.Table, tmp_path: Path) -> None:
    write_table(table, tmp_path / "table.parquet")
    with pytest.raises(AttsvmError, match="no row whose split is 'dev'"):
        read_texts(tmp_path / "table.parquet", split="dev")
