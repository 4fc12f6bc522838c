"""Are the rows of two folders the same, byte for byte but for timing?"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from attsvm.experiments._store import SECONDS


def bits(root: Path) -> dict[str, bytes]:
    """By file: the columns but `seconds`, as bytes of an Arrow stream."""
    import pyarrow as pa

    found = {}
    for path in sorted(root.rglob("*.parquet")):
        table = pq.read_table(path).drop_columns([SECONDS]).replace_schema_metadata(None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        found[str(path.relative_to(root))] = sink.getvalue().to_pybytes()
    return found
