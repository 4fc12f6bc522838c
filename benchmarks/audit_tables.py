"""Tables of audits along training: medians over the heads, from the rows of `audit_training.py`.

python benchmarks/audit_tables.py lm-adamw.jsonl … --keep benchmarks/results/audit/training.parquet
python benchmarks/audit_tables.py benchmarks/results/audit/training.parquet
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

NAMES = ("norm", "stable_rank", "saturated", "margin")
NORMS = ("l2", "nuclear", "spectral", "linf")


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    task = path.stem.partition("-")[0]
    return [{"task": task} | json.loads(line) for line in path.read_text().splitlines()]


def median(rows: list[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    return f"{statistics.median(values):.3g}" if values else "–"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| optimizer | step | loss | norm | stable rank | saturated | median margin | efficiency of W_QK: ℓ2, nuclear, "
        "spectral, ℓ∞ | alignment with the ℓ2 solution |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        for step in sorted({row["step"] for row in rows if row["optimizer"] == optimizer}):
            some = [row for row in rows if (row["optimizer"], row["step"]) == (optimizer, step)]
            efficiency = ", ".join(median(some, f"tokens_{norm}_efficiency") for norm in NORMS)
            cells = [optimizer, str(step), f"{some[0]['loss']:.3f}", *(median(some, name) for name in NAMES)]
            lines.append(f"| {' | '.join([*cells, efficiency, median(some, 'tokens_l2_alignment')])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, help="write all rows into this .parquet")
    asked = parser.parse_args()
    rows = [row for path in asked.files for row in read(path)]
    if asked.keep:
        import pyarrow
        from pyarrow import parquet

        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name) for row in rows] for name in names}
        asked.keep.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), asked.keep)
    for task in dict.fromkeys(row["task"] for row in rows):
        for selects in sorted({row["selects"] for row in rows}):
            some = [row for row in rows if (row["task"], row["selects"]) == (task, selects)]
            print(f"\n{task}, queries with at least {selects:g} of their attention on one token\n")
            print("\n".join(table(some)))


if __name__ == "__main__":
    main()
