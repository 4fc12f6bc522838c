"""Tables of results for pandas, or for pyarrow where pandas is not installed."""

from collections.abc import Mapping, Sequence
from typing import Any

from attsvm.errors import AttsvmError

WIDTH = 118
"""Characters in a line of a text table."""


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A pandas DataFrame, or a pyarrow Table, of columns of equal length."""
    lists = {name: list(column) for name, column in columns.items()}
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError:
        try:
            import pyarrow
        except ImportError as error:
            raise AttsvmError("to_dataframe needs pandas or pyarrow: pip install pandas.") from error
        return pyarrow.table(lists)
    return pandas.DataFrame(lists)


def text_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Two columns as plain text; long cells continue on the next line."""
    left = max((len(name) for name, _ in rows), default=0)
    room = WIDTH - left - 2
    lines = [title]
    for head, rest in rows:
        while True:
            cut = rest if len(rest) <= room else rest[:room].rpartition(" ")[0] or rest
            lines.append(f"{head:<{left}}  {cut}".rstrip())
            rest, head = rest[len(cut) :].lstrip(), ""
            if not rest:
                break
    return "\n".join(lines)
