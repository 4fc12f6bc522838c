"""The runs of md-table1 and md-vit as two small tables: runs.parquet has one row per run, epochs.parquet one per epoch.

    python benchmarks/transformer_tables.py                  # of the kept results
    python benchmarks/transformer_tables.py --runs runs      # and of the rows that attsvm reproduce wrote
    python -c "import pandas; print(pandas.read_parquet('benchmarks/results/transformers/runs.parquet'))"

Runs that were cut off have "interrupted" in the column stopped; seconds are those of a process that shared its device
with others. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from attsvm.experiments import CATALOG, read_stored
from attsvm.experiments.transformers import KINDS, PRUNED, UNFINISHED_FOLDER, chosen_accuracy, read_result
from attsvm.files import atomic_path

RESULTS = Path(__file__).parent / "results" / "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    folder = options.results
    for name, table in tables(folder, options.runs).items():
        with atomic_path(folder / f"{name}.parquet") as temporary:
            parquet.write_table(table, temporary)
        print(f"{folder / name}.parquet: {table.num_rows} rows")


def tables(folder: Path, runs: Path | None = None) -> dict[str, pa.Table]:
    """Both tables, in the order of names."""
    paths = sorted(path for f in (folder, folder / UNFINISHED_FOLDER) for path in f.glob("*-seed*.json"))
    found = [read_result(path) for path in paths]
    if runs is not None:
        kept = {result["name"] for result in found}
        found += [result for result in computed(runs) if result.get("name", "") not in kept | {""}]
    rows = [row_of(result) for result in found]
    epochs = [{"run": result["name"]} | row for result in found for row in epochs_of(result)]
    return {"runs": pa.Table.from_pylist(rows), "epochs": pa.Table.from_pylist(epochs)}


def computed(runs: Path) -> list[dict[str, Any]]:
    """The results in the rows of a folder."""
    stored = [read_stored(runs, CATALOG[name]) for name in ("md-table1", "md-vit")]
    rows = [run.rows() for run in stored if run is not None and run.complete]
    return [json.loads(text) for some in rows for text in some["result"]]


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
