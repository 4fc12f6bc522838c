"""Keep, tabulate and draw the rows of the benchmark of sparse training.

    python benchmarks/sparse/tables.py [new-rows.jsonl]

adds new rows to benchmarks/results/sparse/rows.parquet, and writes benchmarks/results/sparse.md and
docs/images/sparse.png, the figure of `attsvm reproduce sparse-gpt`.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from training import ONE_SHOT, Family

from attsvm.experiments import Rows
from attsvm.experiments.catalog.sparse_gpt import EXPERIMENT, SETTINGS
from attsvm.experiments.sparse_rows import SOURCE, kept_rows, method_of
from attsvm.experiments.transformers import interval

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/results/sparse"
SMALL = """Characters of IMDB, 2 layers of width 64, own head, nn.Linear's start, 488 steps on a CPU
(`run.py --small --eager`), 90% zeros by gradual pruning, seed 0. A first look with one or two rates each: it ranks
nothing."""


def add(source: Path) -> None:
    """New rows behind those that are kept, each once."""
    usual = {name: value for name, value in asdict(Family("", 0.0, 0)).items() if name != "sparsities"}
    path = FOLDER / "rows.parquet"
    kept = pq.read_table(path).to_pylist() if path.is_file() else []
    rows = [usual | {name: value for name, value in row.items() if value is not None} for row in kept]
    for line in source.read_text().splitlines():
        row = usual | json.loads(line)
        rows.append(row | {"options": json.dumps(row["options"], sort_keys=True), "clip": row["clip"] or 0.0})
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole: list[Row] = [{name: row.get(name) for name in names} for row in rows]
    for row in whole:
        row |= {name: float(row[name]) for name in ("epochs", "sparsity", "lr", "clip") if row[name] is not None}
    once = {json.dumps({k: v for k, v in row.items() if k != "seconds"}, sort_keys=True): row for row in whole}
    pq.write_table(pa.Table.from_pylist(list(once.values())), path)


def best(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row["validation"] if math.isfinite(row["validation"]) else math.inf)


def shown(losses: list[float]) -> str:
    mean, half = interval(np.array(losses))
    seeds = "" if len(losses) == 3 else f" ({len(losses)} seed{'s' * (len(losses) > 1)})"
    return (f"{mean:.3f} ± {half:.3f}" if math.isfinite(half) else f"{mean:.3f}") + seeds


def cell(rows: list[Row]) -> str:
    """The mean of the fresh seeds; else the tuning seed at its best rate, with a star."""
    fresh = [row["test"] for row in rows if row["note"] == "main"]
    tuned = [row for row in rows if row["note"] == "tune"]
    return shown(fresh) if fresh else f"{best(tuned)['test']:.3f}*" if tuned else "–"


def lead(rows: list[Row], base: list[Row]) -> str:
    """How much lower than the base's, seed by seed."""
    losses, other = ({row["seed"]: row["test"] for row in part if row["note"] == "main"} for part in (rows, base))
    paired = [other[seed] - losses[seed] for seed in losses if seed in other]
    if not paired:
        return "–"
    mean, half = interval(np.array(paired))
    return f"{mean:+.3f} ± {half:.3f}" if math.isfinite(half) else f"{mean:+.3f}"


def setting_tables(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for name, wanted in SETTINGS.items():
        here = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        used = [row for row in here if row["note"] in ("main", "tune")]
        methods = sorted({method_of(row) for row in used})
        shares = sorted({row["sparsity"] for row in used})
        if not methods:
            continue
        heads = ["dense" if share == 0 else f"{share:.0%}" for share in shares]
        lines += [f"## {name[0].upper() + name[1:]}", ""]
        lines += ["| | " + " | ".join([*heads, "below AdamW at 95%", "at 98%"]) + " |"]
        lines += ["|---" * (len(shares) + 3) + "|"]

        def of(method: str, share: float, used: list[Row] = used) -> list[Row]:
            return [row for row in used if method_of(row) == method and row["sparsity"] == share]

        for method in methods:
            values = [cell(of(method, share)) for share in shares]
            leads = [lead(of(method, s), of("AdamW", s)) if method != "AdamW" else "" for s in (0.95, 0.98)]
            lines.append(f"| {method} | " + " | ".join([*values, *leads]) + " |")
        lines += ["", *_tuning(used), ""]
    return lines


def _tuning(rows: list[Row]) -> list[str]:
    lines = ["Seed 0, validation loss of every rate:", "", "| | lr | dense | 90% |", "|---|---|---|---|"]
    tried: dict[tuple[str, float], dict[float, float]] = {}
    for row in rows:
        if row["note"] == "tune":
            tried.setdefault((method_of(row), row["lr"]), {})[row["sparsity"]] = row["validation"]
    for (name, lr), losses in sorted(tried.items()):
        values = (f"{losses[share]:.3f}" if share in losses else "–" for share in (0, 0.9))
        lines.append(f"| {name} | {lr:g} | " + " | ".join(values) + " |")
    return lines


def other_tables(rows: list[Row]) -> list[str]:
    cuts = [round(100 * share) for share in ONE_SHOT]
    lines = ["## One shot, no retraining", "", "Dense runs of seed 0 at their best rate, cut by size; test loss:", ""]
    lines += ["| | lr | dense | " + " | ".join(f"{c}%" for c in cuts) + " |", "|---" * (len(cuts) + 3) + "|"]
    for name, wanted in SETTINGS.items():
        here = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        dense = [row for row in here if row["sparsity"] == 0 and row["note"] == "tune"]
        for method in sorted({method_of(row) for row in dense}):
            row = best([row for row in dense if method_of(row) == method])
            values = " | ".join(f"{row[f'one_shot_{c}']:.3f}" for c in cuts)
            lines.append(f"| {method}, {name} | {row['lr']:g} | {row['test']:.3f} | {values} |")
    explored = [row for row in rows if row["note"] == "explore"]
    if explored:
        lines += [
            "",
            "## What else was tried",
            "",
            "Test loss of single runs; a rate of the rest of 2e-3 is the usual.",
            "",
        ]
        lines += ["| | seed | zeros | head | start | lr | of the rest | loss |", "|---" * 8 + "|"]
    for row in explored:
        head = "tied" if row["tied"] else "own"
        start = {"torch": "nn.Linear", "gpt2": "GPT-2"}[row["init"]]
        values = [method_of(row), row["seed"], f"{row['sparsity']:.0%}", head, start, row["lr"], row["rest_lr"]]
        lines.append("| " + " | ".join(map(str, [*values, f"{row['test']:.3f}"])) + " |")
    return lines


def small_table(rows: list[Row]) -> list[str]:
    """Every method at 90% zeros on the small model, at the best of its rates."""
    if not rows:
        return []
    lines = ["", "## More methods, on a small model", "", SMALL, ""]
    lines += ["| | rates | best | validation | test | zeros |", "|---" * 6 + "|"]
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(method_of(row), []).append(row)
    for method, tried in sorted(by_method.items(), key=lambda item: best(item[1])["validation"]):
        row = best(tried)
        values = [len(tried), f"{row['lr']:g}", f"{row['validation']:.4f}", f"{row['test']:.4f}", f"{row['zeros']:.1%}"]
        lines.append("| " + " | ".join(map(str, [method, *values])) + " |")
    return lines


def main(source: Path | None) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if source is not None:
        add(source)
    rows = [row for row in kept_rows(str(FOLDER)) if row["corpus"] == "imdb" and row["clip"] == 1.0]
    text = (Path(__file__).parent / "protocol.md").read_text()
    small = [row for row in kept_rows(str(FOLDER)) if row["corpus"] == "imdb-characters"]
    lines = [*setting_tables(rows), *other_tables(rows), *small_table(small)]
    (ROOT / "benchmarks/results/sparse.md").write_text(text + "\n" + "\n".join(lines) + "\n")
    cells = EXPERIMENT.cells(quick=False)
    data = {SOURCE: str(FOLDER)}
    drawn = Rows([(params, EXPERIMENT.run(params, range(EXPERIMENT.trials), "cpu", data)) for params in cells])
    EXPERIMENT.figure(drawn).savefig(ROOT / "docs/images/sparse.png", dpi=150)
    for check in EXPERIMENT.checks(drawn):
        print("ok  " if check.passed else "FAIL", check.name, "|", check.ours)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
