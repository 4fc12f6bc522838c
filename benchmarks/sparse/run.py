"""Run the benchmark of sparse training: several processes share one GPU, one row a run.

    python benchmarks/sparse/run.py --plan benchmarks/sparse/plan.jsonl --rows new.jsonl --tokens TOKENS \\
        --known benchmarks/results/sparse/rows.parquet --workers 4 --seconds 550
    python benchmarks/sparse/tables.py new.jsonl

A line of the plan is a Family. "lr" may be a list: the grid of rates to try, which grows while its best rate lies at
its edge. "lr": "best@0.9" is the rate with the smallest validation loss among the rows of seed 0 with this method and
these options at 90% zeros. "lr": "zeros@0.9" is for penalties: strength and rate with the smallest validation loss
among the rows of seed 0 with the note "strength" and at least 90% zeros (less half a percent). Runs whose row is there
are skipped, so that the plan is resumed after a stop, and it may grow while it is worked on.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from attsvm.experiments.sparse.methods import Family, make_model, shape_of
from attsvm.experiments.sparse.samples import Corpus, Samples, Shape, open_samples
from attsvm.experiments.sparse.training import loss_of, train_family

TINY = Shape(width=64, layers=2, heads=2, length=32, batch=8, every=2, vocabulary=512, most_evaluated=2000)


def read_rows(path: Path, known: Path | None = None) -> list[dict[str, Any]]:
    """New rows, and those that are kept as parquet."""
    kept: list[dict[str, Any]] = []
    if known is not None:
        import pyarrow.parquet as pq

        for row in pq.read_table(known).to_pylist():
            there = {name: value for name, value in row.items() if value is not None}
            kept.append(there | {"options": json.loads(row["options"])})
    return kept + ([json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else [])


def read_plan(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip() and not line.startswith("#")]


SAME = ("method", "corpus", "options", "epochs", "init", "rest_lr", "tied", "width")
FACTOR, MOST_ADDED = 1.7, 3  # the grid of rates grows by this factor while its best rate lies at its edge


def families(entry: dict[str, Any], rows: list[dict[str, Any]]) -> list[Family]:
    """The runs of a line of the plan; none while its learning rate is not known."""
    lr = entry["lr"]
    if isinstance(lr, list):
        rates = grid(entry, rows)
    elif isinstance(lr, str) and lr.startswith("zeros@"):
        best = chosen_penalty(entry, float(lr.removeprefix("zeros@")), rows)
        entry, rates = ({**entry, "options": best["options"]}, [best["lr"]]) if best else (entry, [])
    elif isinstance(lr, str):
        found = chosen({**entry, **entry.get("tuned_as", {})}, float(lr.removeprefix("best@")), rows)
        rates = [] if found is None else [found]
    else:
        rates = [lr]
    known = {key: value for key, value in entry.items() if key not in ("tuned", "tuned_as")}
    return [Family(**{**known, "lr": lr, "sparsities": tuple(entry["sparsities"])}) for lr in rates]


def tuned(entry: dict[str, Any], share: float, rows: list[dict[str, Any]]) -> dict[float, float]:
    """Rates that were tried, with their validation losses."""
    usual = {key: getattr(Family("", 0.0, 0), key) for key in SAME}
    wanted = {**usual, **entry}
    return {
        row["lr"]: row["validation"] if math.isfinite(row["validation"]) else math.inf
        for row in rows
        if row["seed"] == 0 and row["note"] == "tune" and row["sparsity"] == share and row.get("clip", 1.0) == 1.0
        if all(row.get(key, usual[key]) == wanted[key] for key in SAME)
    }


def chosen(entry: dict[str, Any], share: float, rows: list[dict[str, Any]]) -> float | None:
    """The rate with the smallest loss, if enough were tried and it does not lie at the edge of them."""
    tried = tuned(entry, share, rows)
    if len(tried) < entry.get("tuned", 4):
        return None
    best = min(tried, key=lambda rate: tried[rate])
    inside = min(tried) < best < max(tried) or len(tried) >= entry.get("tuned", 4) + MOST_ADDED
    return best if inside else None


STRENGTHS = ("l1", "decay")


def chosen_penalty(entry: dict[str, Any], share: float, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the strengths and rates that were tried the one with the smallest loss among those with enough zeros."""

    def same(row: dict[str, Any]) -> dict[str, Any]:
        plain = {key: row.get(key, getattr(Family("", 0.0, 0), key)) for key in SAME if key != "options"}
        return plain | {"options": {k: v for k, v in row.get("options", {}).items() if k not in STRENGTHS}}

    tried = [row for row in rows if row["seed"] == 0 and row["note"] == "strength" and same(row) == same(entry)]
    enough = [row for row in tried if row["zeros"] >= share - 0.005 and math.isfinite(row["validation"])]
    if len(tried) < entry.get("tuned", 4) or not enough:
        return None
    return min(enough, key=lambda row: row["validation"])


def grid(entry: dict[str, Any], rows: list[dict[str, Any]]) -> list[float]:
    """The rates of a line, and once they are through those beyond the edge at which the best one lies."""
    rates = list(entry["lr"])
    for share in entry["sparsities"]:
        tried = tuned(entry, share, rows)
        if all(rate in tried for rate in rates) and len(tried) < len(entry["lr"]) + MOST_ADDED:
            best = min(tried, key=lambda rate: tried[rate])
            if best == min(tried):
                rates.append(float(f"{best / FACTOR:.2g}"))
            elif best == max(tried):
                rates.append(float(f"{best * FACTOR:.2g}"))
    return list(dict.fromkeys(rates))


def read_samples(arguments: argparse.Namespace, name: str, device: str) -> Samples:
    samples = open_samples(arguments.tokens, name, device)
    if arguments.tiny and isinstance(samples, Corpus):
        samples.streams = {split: stream[:12000] % 512 for split, stream in samples.streams.items()}
    return samples


def work(tasks: Any, answers: Any, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    # Every kind of model is compiled for its own sizes.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.automatic_dynamic_shapes = False
    corpora: dict[str, Samples] = {}
    models: dict[tuple[Shape, bool], torch.nn.Module] = {}  # of each kind one, which its compiled code is for
    compiled = torch.compile(loss_of)
    while (task := tasks.get()) is not None:
        family, done, deadline = task
        try:
            if family.corpus not in corpora:
                corpora[family.corpus] = read_samples(arguments, family.corpus, device)
            corpus = corpora[family.corpus]
            shape = TINY if arguments.tiny else shape_of(family)
            if (shape, family.tied) not in models:
                models[shape, family.tied] = make_model(shape, family.tied).to(device)
            model = models[shape, family.tied]
            losses = loss_of if arguments.eager or family.short else compiled
            settings = {k: v for k, v in asdict(family).items() if k != "sparsities"}
            rows = train_family(family, corpus, shape, losses, model, fused=not arguments.unfused, done=done)
            for row in rows:
                answers.put(("row", {**settings, **row}, None))
                if time.monotonic() + row["seconds"] > deadline:
                    break
            answers.put(("end", None, None))
        except Exception:
            answers.put(("failed", asdict(family), traceback.format_exc()))
            return  # what the GPU holds may be damaged: a new process goes on


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
    running, deadline = 0, began + arguments.seconds
    takes: dict[str, float] = {}  # seconds of the last run on a corpus

    def dispatch() -> bool:
        """Give out the first runs of the plan for which there is time."""
        rows = read_rows(arguments.rows, arguments.known)
        done = {replace_keys(row) for row in rows}
        for family in (family for entry in read_plan(arguments.plan) for family in families(entry, rows)):
            left = tuple(s for s in family.sparsities if family.key(s) not in done | taken)
            if left and time.monotonic() + takes.get(family.corpus, 0.0) < deadline:
                taken.update(family.key(s) for s in left)
                tasks.put((replace(family, sparsities=left), done, deadline))
                return True
        return False

    while time.monotonic() < deadline:
        while running < arguments.workers and dispatch():
            running += 1
        if running == 0 and not arguments.wait:
            break
        try:
            kind, row, text = answers.get(timeout=2)
        except Exception:
            continue
        if kind == "row":
            takes[row["corpus"]] = row["seconds"]
            with arguments.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            names = ("method", "options", "lr", "seed", "sparsity", "validation", "test", "seconds", "corpus")
            print(f"{time.monotonic() - began:6.0f}", *(row[name] for name in names), flush=True)
        else:
            running -= 1
            if kind == "failed":
                print("FAILED", row, text, flush=True)
                processes.append(mp.Process(target=work, args=(tasks, answers, arguments), daemon=True))
                processes[-1].start()
    for process in processes:
        process.kill()


def replace_keys(row: dict[str, Any]) -> str:
    fields = {k: v for k, v in row.items() if k in Family.__dataclass_fields__}
    return Family(**fields, sparsities=(row["sparsity"],)).key(row["sparsity"])


if __name__ == "__main__":
    main()
