"""Tables of results for pandas, or for pyarrow where pandas is not installed."""

from collections.abc import Mapping, Sequence
from typing import Any

from attsvm.errors import AttsvmError


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A pandas DataFrame, or a pyarrow Table, of columns of equal length."""
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError:
        try:
            import pyarrow
        except ImportError as error:
            raise AttsvmError("to_dataframe needs pandas or pyarrow: pip install pandas.") from error
        return pyarrow.table({name: list(column) for name, column in columns.items()})
    return pandas.DataFrame({name: list(column) for name, column in columns.items()})


def text_table(title: str, rows: Sequence[tuple[str, str]], width: int = 118) -> str:
    """Two columns as plain text; long cells continue on the next line."""
    left = max((len(name) for name, _ in rows), default=0)
    lines = [title]
    for name, value in rows:
        rest = value
        head = name
        while True:
            cut = rest if len(rest) <= width - left - 2 else rest[: width - left - 2].rpartition(" ")[0] or rest
            lines.append(f"{head:<{left}}  {cut}".rstrip())
            rest, head = rest[len(cut) :].lstrip(), ""
            if not rest:
                break
    return "\n".join(lines)
