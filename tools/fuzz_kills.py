"""Kill commands at random moments, let them end, and compare with a run that nobody disturbed. Prints one table.

python tools/fuzz_kills.py [--kills 25] [--seed 0] [--commands train "text fit"]

Every command runs in a process of its own, forked when everything is loaded so that the signal (SIGKILL, SIGTERM or
SIGINT) finds it at work. After a few of these the same command runs to its end. Then its folder must hold the same
content under the same names, without temporary files or locks. Last, two processes start on one folder at once: one may
be refused in a sentence, and the result must be whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fuzz_files import plain

from attsvm.cli import main as attsvm_main

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ROUND = 5
"""Kills before the command is left to end."""
SMALL = (
    "transformer fit synthetic --layers 1 --width 16 --hidden 16 --length 32 --lr 1e-2 --batch 32 --epochs 3 --quiet "
    "--out out"
)
LONGEST = 300.0
"""Seconds after which a command hangs."""


@dataclass(frozen=True)
class Command:
    """`prepare` writes what the command reads into a folder; `arguments` write into the folder `out`; `read` gives the
    content of that folder, without times, as plain data."""

    name: str
    prepare: Callable[[Path], None]
    arguments: tuple[str, ...]
    read: Callable[[Path], Any]


def commands() -> list[Command]:
    return [
        Command(
            "train",
            lambda folder: call(folder, "data", "sphere", "--dim", "6", "--trials", "4", "--out", "data.npz"),
            ("train", "data.npz", "--geometry", "l1.75", "--steps", "1500", "--quiet", "--out", "out"),
            _trained,
        ),
        Command(
            "reproduce",
            _prepare_experiment,
            ("reproduce", "./toy.py", "--quick", "--workers", "0", "--quiet", "--out", "out"),
            _reproduced,
        ),
        Command(
            "text fit",
            _prepare_texts,
            ("text", "fit", "texts.csv", "--quiet", "--out", "out"),
            lambda out: {path.name: path.read_bytes().hex() for path in sorted(out.iterdir())},
        ),
        Command(
            "transformer fit",
            lambda folder: None,
            tuple(SMALL.split()),
            _fitted,
        ),
    ]


def _trained(out: Path) -> Any:
    import attsvm

    run = attsvm.Trajectory.load(out / "trajectory.safetensors")
    return [run.W, run.records, run.steps, run.tokens, json.loads((out / "verdict.json").read_text())]


def _prepare_experiment(folder: Path) -> None:
    call(folder, "new-experiment", "toy")
    path = folder / "toy.py"
    path.write_text(path.read_text().replace("batch=10", "batch=1"))


def _reproduced(out: Path) -> Any:
    import pyarrow.parquet as pq

    names = sorted(out.rglob("*.parquet"))
    tables = {str(path.relative_to(out)): pq.read_table(path).drop_columns(["seconds"]) for path in names}
    return {name: table.to_pydict() for name, table in tables.items()}


def _prepare_texts(folder: Path) -> None:
    chance = random.Random(0)
    words = [f"word{i}" for i in range(300)]
    lines = ["text,label"]
    for i in range(400):
        own = "good fine great" if i % 2 else "bad poor dull"
        lines.append(" ".join([*chance.sample(words, 12), chance.choice(own.split())]) + f",{i % 2}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n")


def _fitted(out: Path) -> Any:
    from attsvm.files import read_arrays

    arrays, facts = read_arrays(out / "checkpoint.safetensors")
    return [arrays, {name: _timeless(json.loads(text)) for name, text in facts.items() if text.startswith("{")}]


def _timeless(value: Any) -> Any:
    """Without what a clock says."""
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if name not in ("seconds", "rate")}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


class Process:
    """attsvm with these arguments in a folder, forked; what it says on standard error goes to a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.arguments, self.code = arguments, None
        self.said = folder / f"said-{time.monotonic_ns()}.txt"
        self.pid = os.fork()
        if self.pid == 0:
            self._become(folder)

    def _become(self, folder: Path) -> None:
        code = 70
        try:
            os.chdir(folder)
            for number, path in ((1, os.devnull), (2, self.said)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            torch.set_num_threads(1)
            sys.argv = ["attsvm", *self.arguments]
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            try:
                attsvm_main()
                code = 0
            except SystemExit as end:
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
                code = 1 if isinstance(end.code, str) else end.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> tuple[int, str]:
        """Its exit status and words, when it has ended."""
        end = time.monotonic() + LONGEST
        while not self.ended():
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                raise RuntimeError(f"attsvm {' '.join(self.arguments)} hangs")
            time.sleep(0.005)
        said = self.said.read_text(errors="replace") if self.said.exists() else ""
        self.said.unlink(missing_ok=True)
        return self.code or 0, said


def call(folder: Path, *arguments: str) -> None:
    """Run to the end."""
    code, said = Process(folder, *arguments).wait()
    if code not in (0, 3):
        raise RuntimeError(f"attsvm {' '.join(arguments)} ended with {code}: {said}")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def leftovers(folder: Path) -> list[str]:
    return [name for name in names(folder) if ".tmp" in name or name.endswith(".lock")]


def fuzz(command: Command, kills: int, seed: int, pairs: int = 1) -> tuple[Counter[str], list[str]]:
    """Counts of what came out, and the failures in words."""
    chance = random.Random(f"{seed} {command.name}")
    counts, failures = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)

        def fresh(name: str) -> Path:
            folder = root / name
            folder.mkdir()
            command.prepare(folder)
            return folder

        def compare(folder: Path, what: str) -> None:
            for name in leftovers(folder / "out"):
                counts["left over"] += 1
                failures.append(f"{command.name}, {what}: {name} is left over")
            if names(folder / "out") != files:
                failures.append(f"{command.name}, {what}: {names(folder / 'out')} instead of {files}")
            same = plain(command.read(folder / "out")) == good
            counts["same" if same else "different"] += 1
            if not same:
                failures.append(f"{command.name}, {what}: the results differ")

        undisturbed = fresh("undisturbed")
        call(undisturbed, *command.arguments)
        good, files = plain(command.read(undisturbed / "out")), names(undisturbed / "out")
        timed = fresh("timed")
        begun = time.monotonic()
        call(timed, *command.arguments)
        whole = time.monotonic() - begun
        compare(timed, "undisturbed")

        done = number = 0
        while done < kills:
            folder = fresh(f"killed-{number}")
            for _ in range(min(ROUND, kills - done)):
                process = Process(folder, *command.arguments)
                time.sleep(chance.uniform(0, whole))
                if process.ended():  # too late: this round is over
                    whole *= 0.9
                    process.wait()
                    break
                sent = chance.choice(SIGNALS)
                os.kill(process.pid, sent)
                _, said = process.wait()
                done += 1
                counts[sent.name] += 1
                if "Traceback" in said:
                    counts["traceback"] += 1
                    failures.append(f"{command.name}, {sent.name}: {said}")
            call(folder, *command.arguments)
            compare(folder, f"round {number}")
            number += 1

        for number in range(pairs):
            folder = fresh(f"pair-{number}")
            first = Process(folder, *command.arguments)
            time.sleep(chance.uniform(0, 0.5 * whole))
            second = Process(folder, *command.arguments)
            ends = [first.wait(), second.wait()]
            counts["two at once"] += 1
            refused = [said for code, said in ends if code == 1]
            counts["refused"] += len(refused)
            wrong = [said for said in refused if "is in use by" not in said or len(said.splitlines()) != 1]
            if len(refused) > 1 or wrong or any(code not in (0, 1, 3) for code, _ in ends):
                failures.append(f"{command.name}, two at once: {ends}")
            counts["traceback"] += sum("Traceback" in said for _, said in ends)
            compare(folder, "two at once")
    return counts, failures


COLUMNS = ("SIGKILL", "SIGTERM", "SIGINT", "same", "different", "left over", "traceback")
PAIRS = ("two at once", "refused")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25, help="per command")
    parser.add_argument("--pairs", type=int, default=2, help="per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", default=[command.name for command in commands()])
    options = parser.parse_args()
    print(f"{'command':16}" + "".join(f"{name:>13}" for name in (*COLUMNS, *PAIRS)))
    failures = []
    for command in commands():
        if command.name in options.commands:
            counts, failed = fuzz(command, options.kills, options.seed, options.pairs)
            print(f"{command.name:16}" + "".join(f"{counts[name]:13}" for name in (*COLUMNS, *PAIRS)), flush=True)
            failures += failed
    print("\n".join(line[:600] for line in failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
