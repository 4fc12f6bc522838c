"""Tables with a column of texts: parquet, CSV and JSON lines, or a data set of Hugging Face."""

from __future__ import annotations

import codecs
import csv as text_csv
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.files import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa

_SHEETS = (".csv", ".tsv")
_LINES = (".jsonl", ".ndjson")
FORMATS = (".parquet", *_SHEETS, *_LINES)
_BLOCK = 1 << 26
"""Bytes read at a time; a row must fit into it."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?")
_MISSING = {"", "NA", "N/A", "nan", "NaN", "NULL", "null", "None"}
"""How a .csv writes a number, and that there is none."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class TextTable(NamedTuple):
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
) -> TextTable:
    """Texts and labels of a table.

    Args:
        source: a .parquet, .csv, .tsv or .jsonl file, or the name of a Hugging Face data set (package datasets).
        text: the column of texts.
        label: the column of labels; None if there is none.
        split: only the rows of a file whose column `split` has this value; of a data set this split.
        encoding: of a text file.
    """
    table = read_table(source, text=text, encoding=encoding, split=split)
    return TextTable(text_column(table, text, source), None if label is None else label_column(table, label, source))


def read_table(source: str | Path, *, text: str, encoding: str = "utf-8", split: str | None = None) -> pa.Table:
    """The whole table; the column of texts is read as strings, whatever it looks like."""
    path = Path(source)
    if path.suffix.lower() not in FORMATS:
        if path.exists():
            raise AttsvmError(f"{source} must be one of {', '.join(FORMATS)}, or the name of a Hugging Face data set.")
        return _hugging_face(str(source), split)
    table = _read_file(path, text, encoding)
    return table if split is None else rows_of(table, split, source)


def rows_of(table: pa.Table, split: str, source: object) -> pa.Table:
    """Those whose column `split` has this value."""
    import pyarrow.compute as pc

    chosen = table.filter(pc.equal(_strings(table, "split", source), split))  # pyright: ignore[reportAttributeAccessIssue]
    if not len(chosen):
        raise AttsvmError(f"{source} has no row whose split is {split!r}.")
    return chosen


def write_table(table: pa.Table, path: Path, rows: Sequence[dict[str, Any]] | None = None) -> None:
    """A table in the format that the ending names; `rows` are its rows for JSON lines, if they are there already."""
    import pyarrow as pa
    import pyarrow.parquet

    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise AttsvmError(f"{path} must end in one of {', '.join(FORMATS)}.")
    with atomic_path(path) as temporary:
        if ending in _SHEETS:
            write_csv(table, temporary, "\t" if ending == ".tsv" else ",")
        elif ending in _LINES:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(_json(row) + "\n" for row in (table.to_pylist() if rows is None else rows))
        else:
            try:
                pyarrow.parquet.write_table(table, temporary)
            except pa.ArrowException as error:
                raise AttsvmError(f"{path} cannot be written: {_one_line(error)}; write .jsonl.") from error


def write_csv(table: pa.Table, where: Path | IO[bytes], delimiter: str = ",") -> None:
    """Lists and records are written into a cell as JSON."""
    import pyarrow as pa
    from pyarrow import csv

    for place, (name, column) in enumerate(zip(table.column_names, table.columns)):
        if pa.types.is_nested(column.type):
            cells = [None if value is None else _json(value) for value in column.to_pylist()]
            table = table.set_column(place, name, pa.array(cells, pa.string()))
    try:
        csv.write_csv(table, where, csv.WriteOptions(delimiter=delimiter))
    except pa.ArrowException as error:
        raise AttsvmError(f"the table cannot be written as CSV: {_one_line(error)}; write .parquet.") from error


def is_json_lines(path: str | Path) -> bool:
    return Path(path).suffix.lower() in _LINES


def read_json_lines(path: str | Path, encoding: str = "utf-8", split: str | None = None) -> list[dict[str, Any]]:
    """The objects of the file, or of one split, just as they are."""
    rows = []
    with _open(Path(path), encoding) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except UnicodeError:
                raise
            except ValueError as error:
                raise AttsvmError(f"{path} cannot be read: line {number} is not JSON: {_one_line(error)}.") from error
            if not isinstance(row, dict):
                raise AttsvmError(f"{path} cannot be read: line {number} is not an object, {{…}}.")
            if _SURROGATE.search(line):
                try:
                    _json(row).encode()
                except UnicodeEncodeError as error:
                    half = error.object[error.start]
                    raise AttsvmError(
                        f"{path} cannot be read: line {number} has {half!a}, half of a character; mend or drop it."
                    ) from error
            if split is None or row.get("split") == split:
                rows.append(row)
    return rows


def text_column(table: pa.Table, name: str, source: object) -> list[str]:
    """The texts; a missing one is refused."""
    column = _strings(table, name, source)
    texts = column.to_pylist()
    if column.null_count:
        raise AttsvmError(
            f"{source}: row {texts.index(None) + 1} has no text in column {name!r}; drop these rows first."
        )
    return texts


def label_column(table: pa.Table, name: str, source: object, part: str = "") -> np.ndarray:
    """The labels, whole numbers or strings; a missing one is refused. `part` says of which rows the table is."""
    import pyarrow as pa

    sheet, mixed = Path(str(source)).suffix.lower() in _SHEETS, is_json_lines(str(source))  # see _json_column
    source = f"{source}{part}"
    column = _column(table, name, source)
    if pa.types.is_nested(column.type):
        raise AttsvmError(f"{source}: column {name!r} must hold one label per row, but it holds {column.type}.")
    if pa.types.is_temporal(column.type) or pa.types.is_binary(column.type):
        kind = "a mixture of kinds" if mixed else str(column.type)
        raise AttsvmError(f"{source}: column {name!r} must hold whole numbers or texts, but it holds {kind}.")
    labels = column.to_pylist()
    if sheet and pa.types.is_string(column.type):
        labels = _numbers(labels)
    # An empty cell is a null, of a CSV with texts "", of numbers perhaps nan.
    missing = next((row for row, label in enumerate(labels) if label is None or label == "" or label != label), None)
    if missing is not None:
        raise AttsvmError(f"{source}: row {missing + 1} has no label in column {name!r}; drop these rows first.")
    if any(isinstance(label, float | Decimal) for label in labels):
        if any(label % 1 for label in labels):
            raise AttsvmError(f"{source}: column {name!r} must hold whole numbers or texts, but it holds fractions.")
        labels = [int(label) for label in labels]  # the floats are there because a value was missing once
    return np.array(labels)


def _numbers(labels: list[str]) -> list[Any]:
    """A CSV has no types: if all its labels are numbers or missing, they count as such."""
    if not all(label in _MISSING or _NUMBER.fullmatch(label) for label in labels):
        return labels
    return [None if label in _MISSING else float(label) for label in labels]


def _strings(table: pa.Table, name: str, source: object) -> Any:
    import pyarrow as pa

    column = _column(table, name, source)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        mixed = is_json_lines(str(source)) and pa.types.is_binary(column.type)  # see _json_column
        kind = "a mixture of kinds" if mixed else column.type
        raise AttsvmError(f"{source}: column {name!r} must hold texts, but it holds {kind}.")
    return column


def _column(table: pa.Table, name: str, source: object) -> Any:
    if name not in table.column_names:
        raise AttsvmError(f"{source} has no column {name!r}; it has {', '.join(map(repr, table.column_names))}.")
    if table.column_names.count(name) > 1:
        raise AttsvmError(f"{source} has more than one column {name!r}: rename or drop the others.")
    return table[name]


def _open(path: Path, encoding: str) -> IO[str]:
    """A text file; a byte order mark is no part of its text."""
    return path.open(encoding="utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding, newline="")


def _header(path: Path, encoding: str) -> tuple[str, list[str]]:
    """What stands between columns (spreadsheets in many languages write semicolons into a .csv), and their names."""
    with _open(path, encoding) as file:
        first = next((line for line in file if line.strip()), "")
        sign = "\t" if path.suffix.lower() == ".tsv" else next((sign for sign in ",;\t" if sign in first), ",")
        return sign, next(text_csv.reader(chain([first], file), delimiter=sign), [])


def _read_file(path: Path, text: str, encoding: str) -> pa.Table:
    if not path.is_file():
        raise AttsvmError(f"{path} is not a file.")
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise AttsvmError("tables need pyarrow: pip install 'attsvm[text]'.") from error
    try:
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(path) as file:  # parquet.read_table fails on two columns of one name
                return file.read()
        return _read_lines(path, encoding) if is_json_lines(path) else _read_csv(path, text, encoding)
    except (pa.ArrowException, UnicodeError, LookupError, OSError, text_csv.Error) as error:
        reason = _one_line(error)
        if "utf" in reason.lower() or isinstance(error, UnicodeError):
            reason = (
                f"it is not written in {encoding}; save it as UTF-8, or name its encoding (attsvm text has --encoding)"
            )
        raise AttsvmError(f"{path} cannot be read: {reason}.") from error


def _read_csv(path: Path, text: str, encoding: str) -> pa.Table:
    """Every cell as it is written. A column is taken for numbers only if they are written back the same."""
    import pyarrow as pa
    from pyarrow import csv

    delimiter, names = _header(path, encoding)
    table = csv.read_csv(
        path,
        csv.ReadOptions(encoding=encoding, block_size=_BLOCK),
        csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    columns = [column if name == text else _typed(column) for name, column in zip(table.column_names, table.columns)]
    return pa.table(columns, names=table.column_names)


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    for kind in (pa.int64(), pa.bool_()) if len(column) else ():
        try:
            values = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        if values.cast(pa.string()).equals(column):
            return values
    return column


def _read_lines(path: Path, encoding: str) -> pa.Table:
    import pyarrow as pa

    rows = read_json_lines(path, encoding)
    if not rows:
        raise AttsvmError(f"{path} cannot be read: it is empty.")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _json_column([row.get(name) for row in rows]) for name in names})


def _json_column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        # Values of several kinds are neither texts nor labels; as bytes they can at least be written.
        return pa.array([None if value is None else _json(value).encode() for value in values], pa.binary())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


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
