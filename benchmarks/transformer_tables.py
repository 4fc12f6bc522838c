"""The results of run_transformers.py as two small tables: runs.parquet has a row a run, epochs.parquet a row an epoch.

    python benchmarks/transformer_tables.py
    python -c "import pandas; print(pandas.read_parquet('benchmarks/results/transformers/runs.parquet'))"

Runs that were cut off have "interrupted" in the column stopped; seconds are those of a process that shared its device
with others. Needs pyarrow.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from attsvm.experiments._transformers import KINDS, PRUNED, chosen_accuracy
from attsvm.files import atomic_path
from attsvm.transformer._pieces import UNFINISHED, read_result

RESULTS = Path(__file__).parent / "results" / "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args().results
    for name, table in tables(folder).items():
        with atomic_path(folder / f"{name}.parquet") as temporary:
            parquet.write_table(table, temporary)
        print(f"{folder / name}.parquet: {table.num_rows} rows")


def tables(folder: Path) -> dict[str, pa.Table]:
    """Both tables, in the order of names."""
    paths = sorted(path for f in (folder, folder / UNFINISHED) for path in f.glob("*-seed*.json"))
    found = [result for path in paths if (result := read_result(path)) is not None]
    runs = [row_of(result) for result in found]
    epochs = [{"run": result["name"]} | row for result in found for row in epochs_of(result)]
    return {"runs": pa.Table.from_pylist(runs), "epochs": pa.Table.from_pylist(epochs)}


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """A run: its settings, accuracies, weights by kind, and accuracy with shares of the attention weights at 0."""
    settings, history = result["settings"], result["history"]
    test = history["test_accuracy"]
    row: dict[str, Any] = {"run": result["name"], "data": result["data"], "layers": settings["sizes"].get("layers", 6)}
    row |= {name: settings[name] for name in ("optimizer", "lr", "seed", "bf16", "batch", "loss")}
    row |= {"p": settings["p"] if settings["optimizer"].startswith("mirror") else None}
    row |= {"epochs": len(test), "stopped": result["stopped"], "train_accuracy": history["train_accuracy"][-1]}
    row |= {"best": max(test), "validated": chosen_accuracy(history), "last": test[-1]}
    for kind in KINDS:
        weights = result.get("weights", {}).get(kind, {})
        row |= {f"{kind}_{name}": weights.get(name) for name in ("number", "large", "largest", "gini")}
    row |= {f"pruned_{share}": result.get("pruning", {}).get(share) for share in map("{:g}".format, PRUNED)}
    return row | {name: result.get(name) for name in ("parameters", "seconds", "processor", "torch", "finished")}


def epochs_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    history = result["history"]
    return [dict(zip(history, values)) for values in zip(*history.values())]


if __name__ == "__main__":
    main()
