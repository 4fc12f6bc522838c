"""Run the benchmark of sparse training: several processes share one GPU, one row a run.

    python benchmarks/sparse/run.py --plan benchmarks/sparse/plan.jsonl --rows new.jsonl --tokens TOKENS \\
        --known benchmarks/results/sparse/rows.parquet --workers 4 --seconds 550
    python benchmarks/sparse/tables.py new.jsonl

A line of the plan is a Family; "lr": "best@0.9" is the learning rate with the smallest validation loss among the rows
of seed 0 with this method and these options at 90% zeros. Runs whose row is there are skipped, so that the plan is
resumed after a stop, and it may grow while it is worked on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parent))
from training import Corpus, Family, Shape, loss_of, make_model, train_family

from attsvm.models import GPT

SMALL = Shape(width=64, layers=2, heads=2, length=64, batch=32, every=25, vocabulary=128)  # of characters
TINY = Shape(width=64, layers=2, heads=2, length=32, batch=8, every=2, vocabulary=512, most_evaluated=2000)


def read_rows(path: Path, known: Path | None = None) -> list[dict[str, Any]]:
    """New rows, and those that are kept as parquet."""
    kept: list[dict[str, Any]] = []
    if known is not None:
        import pyarrow.parquet as pq

        kept = [row | {"options": json.loads(row["options"])} for row in pq.read_table(known).to_pylist()]
    return kept + ([json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else [])


def read_plan(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip() and not line.startswith("#")]


def resolve(entry: dict[str, Any], rows: list[dict[str, Any]]) -> Family | None:
    """The family of a line of the plan; None while its learning rate is not known."""
    lr = entry["lr"]
    if isinstance(lr, str):
        share = float(lr.removeprefix("best@"))
        keys = ("method", "corpus", "options", "epochs", "init", "rest_lr", "tied")
        usual = {key: getattr(Family("", 0.0, 0), key) for key in keys}
        wanted = {**usual, **entry, **entry.get("tuned_as", {})}
        tuned = [
            row
            for row in rows
            if row["seed"] == 0 and row["note"] == "tune" and row["sparsity"] == share
            if all(row.get(key, usual[key]) == wanted[key] for key in keys)
        ]
        if len(tuned) < entry.get("tuned", 4):
            return None
        lr = min(tuned, key=lambda row: row["validation"] if math.isfinite(row["validation"]) else math.inf)["lr"]
    known = {key: value for key, value in entry.items() if key not in ("tuned", "tuned_as")}
    return Family(**{**known, "lr": lr, "sparsities": tuple(entry["sparsities"])})


def work(tasks: Any, answers: Any, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    shape = TINY if arguments.tiny else SMALL if arguments.small else Shape()
    corpora: dict[str, Corpus] = {}
    models: dict[bool, GPT] = {}  # of each kind one, which its compiled code is for
    losses = loss_of if arguments.eager else torch.compile(loss_of)
    while (task := tasks.get()) is not None:
        family, done = task
        try:
            if family.corpus not in corpora:
                corpora[family.corpus] = Corpus(Path(arguments.tokens) / f"{family.corpus}.npz", device)
                if arguments.tiny:
                    streams = corpora[family.corpus].streams
                    corpora[family.corpus].streams = {k: v[:12000] % 512 for k, v in streams.items()}
            corpus = corpora[family.corpus]
            if family.tied not in models:
                models[family.tied] = make_model(shape, family.tied).to(device)
            model = models[family.tied]
            settings = {k: v for k, v in asdict(family).items() if k != "sparsities"}
            rows = train_family(family, corpus, shape, losses, model, fused=not arguments.unfused, done=done)
            for row in rows:
                answers.put(("row", {**settings, **row}, None))
            answers.put(("end", None, None))
        except Exception:
            answers.put(("failed", asdict(family), traceback.format_exc()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--known", type=Path, help="rows of earlier runs, .parquet")
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=550)
    parser.add_argument("--unfused", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--small", action="store_true", help="two layers of width 64, for characters on a CPU")
    parser.add_argument("--wait", action="store_true", help="wait for more lines of the plan until the time is over")
    arguments = parser.parse_args()
    mp.set_start_method("spawn")
    answers: Any = mp.Queue()
    tasks: Any = mp.Queue()
    began = time.monotonic()
    processes = [
        mp.Process(target=work, args=(tasks, answers, arguments), daemon=True) for _ in range(arguments.workers)
    ]
    for process in processes:
        process.start()
    taken: set[str] = set()
    running = 0

    def dispatch() -> bool:
        rows = read_rows(arguments.rows, arguments.known)
        done = {replace_keys(row) for row in rows}
        for entry in read_plan(arguments.plan):
            family = resolve(entry, rows)
            if family is None:
                continue
            left = tuple(s for s in family.sparsities if family.key(s) not in done | taken)
            if left:
                taken.update(family.key(s) for s in left)
                tasks.put((replace(family, sparsities=left), done))
                return True
        return False

    while time.monotonic() - began < arguments.seconds:
        while running < arguments.workers and dispatch():
            running += 1
        if running == 0 and not arguments.wait:
            break
        try:
            kind, row, text = answers.get(timeout=2)
        except Exception:
            continue
        if kind == "row":
            with arguments.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            names = ("method", "options", "lr", "seed", "sparsity", "validation", "test", "seconds", "corpus")
            print(f"{time.monotonic() - began:6.0f}", *(row[name] for name in names), flush=True)
        else:
            running -= 1
            if kind == "failed":
                print("FAILED", row, text, flush=True)
    for process in processes:
        process.kill()


def replace_keys(row: dict[str, Any]) -> str:
    fields = {k: v for k, v in row.items() if k in Family.__dataclass_fields__}
    return Family(**fields, sparsities=(row["sparsity"],)).key(row["sparsity"])


if __name__ == "__main__":
    main()
