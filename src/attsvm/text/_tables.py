"""Tables with a column of texts: parquet, CSV and JSON lines, or a data set of Hugging Face."""

from __future__ import annotations

import codecs
import json as json_lines
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attsvm._atomic import atomic_path
from attsvm.errors import AttsvmError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson")
_BLOCK = 1 << 26
"""Bytes read at a time; a row must fit into it."""


class Texts(NamedTuple):
    """Texts, and their labels if the table has such a column."""

    texts: list[str]
    labels: np.ndarray | None


def read_texts(
    source: str | Path,
    *,
    text: str = "text",
    label: str | None = "label",
    split: str | None = None,
    encoding: str = "utf-8",
) -> Texts:
    """Texts and labels of a table.

    Args:
        source: a .parquet, .csv, .tsv or .jsonl file, or the name of a Hugging Face data set (package datasets).
        text: the column of texts.
        label: the column of labels; None if there is none.
        split: only the rows of a file whose column `split` has this value; of a data set this split.
        encoding: of a text file.
    """
    table = read_table(source, text=text, encoding=encoding, split=split)
    return Texts(text_column(table, text, source), None if label is None else label_column(table, label, source))


def read_table(source: str | Path, *, text: str, encoding: str = "utf-8", split: str | None = None) -> pa.Table:
    """The whole table; the column of texts is read as strings, whatever it looks like."""
    path = Path(source)
    if path.suffix.lower() not in FORMATS:
        if path.exists():
            raise AttsvmError(f"{source} must be one of {', '.join(FORMATS)}, or the name of a Hugging Face data set.")
        return _hugging_face(str(source), split)
    table = _read_file(path, text, encoding)
    if split is None:
        return table
    import pyarrow.compute as pc

    chosen = table.filter(pc.equal(_strings(table, "split", source), split))  # pyright: ignore[reportAttributeAccessIssue]
    if not len(chosen):
        raise AttsvmError(f"{source} has no row whose split is {split!r}.")
    return chosen


def write_table(table: pa.Table, path: Path) -> None:
    """A table in the format that the ending names."""
    import pyarrow.csv
    import pyarrow.parquet

    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise AttsvmError(f"{path} must end in one of {', '.join(FORMATS)}.")
    with atomic_path(path) as temporary:
        if ending == ".parquet":
            pyarrow.parquet.write_table(table, temporary)
        elif ending in (".csv", ".tsv"):
            options = pyarrow.csv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",")
            pyarrow.csv.write_csv(table, temporary, options)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                for row in table.to_pylist():
                    file.write(json_lines.dumps(row, ensure_ascii=False, default=str) + "\n")


def text_column(table: pa.Table, name: str, source: object) -> list[str]:
    """The texts; a missing one is refused."""
    column = _strings(table, name, source)
    texts = column.to_pylist()
    if column.null_count:
        raise AttsvmError(f"{source}: row {texts.index(None)} has no text in column {name!r}; drop such rows first.")
    return texts


def label_column(table: pa.Table, name: str, source: object) -> np.ndarray:
    """The labels, whole numbers or strings; a missing one is refused."""
    import pyarrow as pa

    column = _column(table, name, source)
    if pa.types.is_nested(column.type):
        raise AttsvmError(f"{source}: column {name!r} must hold one label a row, but it holds {column.type}.")
    if pa.types.is_temporal(column.type) or pa.types.is_binary(column.type):
        raise AttsvmError(f"{source}: column {name!r} must hold whole numbers or texts, but it holds {column.type}.")
    labels = column.to_pylist()
    # An empty cell is a null, of a CSV with texts "", of numbers perhaps nan.
    missing = next((row for row, label in enumerate(labels) if label is None or label == "" or label != label), None)
    if missing is not None:
        raise AttsvmError(f"{source}: row {missing} has no label in column {name!r}; drop such rows first.")
    if pa.types.is_floating(column.type) and any(label % 1 for label in labels):
        raise AttsvmError(f"{source}: column {name!r} must hold whole numbers or texts, but it holds fractions.")
    return np.array(labels)


def _strings(table: pa.Table, name: str, source: object) -> Any:
    import pyarrow as pa

    column = _column(table, name, source)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise AttsvmError(f"{source}: column {name!r} must hold texts, but it holds {column.type}.")
    return column


def _column(table: pa.Table, name: str, source: object) -> Any:
    if name not in table.column_names:
        raise AttsvmError(f"{source} has no column {name!r}; it has {', '.join(map(repr, table.column_names))}.")
    if table.column_names.count(name) > 1:
        raise AttsvmError(f"{source} has more than one column {name!r}: rename or drop the others.")
    return table[name]


def _delimiter(path: Path, ending: str, encoding: str) -> str:
    """What stands between columns: spreadsheets in many languages write semicolons into a .csv."""
    if ending == ".tsv":
        return "\t"
    with path.open(encoding=encoding) as file:
        header = file.readline()
    return next((sign for sign in ",;\t" if sign in header), ",")


def _read_file(path: Path, text: str, encoding: str) -> pa.Table:
    if not path.is_file():
        raise AttsvmError(f"{path} is not a file.")
    try:
        import pyarrow as pa
        from pyarrow import csv, json, parquet
    except ImportError as error:
        raise AttsvmError("tables need pyarrow: pip install 'attsvm[text]'.") from error
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return parquet.read_table(path)
        if ending in (".csv", ".tsv"):
            return csv.read_csv(
                path,
                csv.ReadOptions(encoding=encoding, block_size=_BLOCK),
                csv.ParseOptions(delimiter=_delimiter(path, ending, encoding), newlines_in_values=True),
                csv.ConvertOptions(column_types={text: pa.string()}),
            )
        lines = path if codecs.lookup(encoding).name == "utf-8" else pa.BufferReader(path.read_text(encoding).encode())
        table = json.read_json(lines, json.ReadOptions(block_size=_BLOCK))
        table.validate(full=True)  # the reader of JSON takes any bytes for a string
        return table
    except (pa.ArrowException, UnicodeError, LookupError, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if "utf" in reason.lower() or isinstance(error, UnicodeError):
            reason = (
                f"it is not written in {encoding}; save it as UTF-8, or name its encoding (attsvm text has --encoding)"
            )
        raise AttsvmError(f"{path} cannot be read: {reason}.") from error


def _hugging_face(name: str, split: str | None) -> pa.Table:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise AttsvmError(
            f"{name} is not a {', '.join(FORMATS)} file; as the name of a Hugging Face data set it needs the package "
            "datasets: pip install datasets."
        ) from error
    try:
        data = load_dataset(name, split=split or "train")
    except Exception as error:  # no network, no such name, no such split: the package raises almost anything
        raise AttsvmError(f"{name} cannot be loaded as a data set: {' '.join(str(error).split())[:300]}") from error
    return data.data.table
