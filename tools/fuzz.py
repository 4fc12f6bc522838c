"""Everything that was done to break the package, in one table: damaged files, calls that make no sense, kills at random
moments, two processes on one folder, certificates of nasty margin problems in exact arithmetic.

python tools/fuzz.py [--cases 100] [--calls 2000] [--kills 25] [--instances 1980] [--seed 0]

`silent` counts what was accepted and should not have been: content that nobody wrote, results that differ from those of
an undisturbed run, certificates that do not hold. Each part is a tool of its own; they say more. `make fuzz` runs it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import fuzz_calls
import fuzz_certificates
import fuzz_files
import fuzz_kills


class Line(NamedTuple):
    part: str
    name: str
    cases: int
    traceback: int = 0
    silent: int = 0
    execution: int = 0
    left_over: int = 0
    note: str = ""


def lines(cases: int, calls: int, kills: int, instances: int, seed: int, workers: int = 1) -> Iterator[Line | str]:
    """The table line by line; failures as strings between them."""
    for kind in fuzz_files.kinds() if cases else ():
        ((name, count, failures),) = fuzz_files.fuzz(cases, seed, [kind])
        refused = f"{count['refused']} refused"
        yield Line("file", name, count.total(), count["traceback"], count["accepted"], count["execution"], 0, refused)
        yield from failures
    if calls:
        counts, failures = fuzz_calls.fuzz(calls, seed)
        for name, count in counts.items():
            words = f"{count['refused'] + count['usage']} refused"
            odd = count["traceback"] + count["odd sentence"]
            yield Line("call", name, count.total(), odd, 0, count["execution"], 0, words)
        yield from failures
    for command in fuzz_kills.commands() if kills else ():
        count, failures = fuzz_kills.fuzz(command, kills, seed, pairs=2)
        done = sum(count[name] for name in ("SIGKILL", "SIGTERM", "SIGINT"))
        note = f"{count['two at once']} times two at once, {count['refused']} refused"
        yield Line("kill", command.name, done, count["traceback"], count["different"], 0, count["left over"], note)
        yield from failures
    if instances:
        rows = list(fuzz_certificates.fuzz(instances, seed, workers=workers))
        for norm in dict.fromkeys(row["norm"] for row in rows):
            some = [row for row in rows if row["norm"] == norm]
            status = Counter(row["status"] for row in some)
            false = sum(not row["verified"] for row in some)
            note = f"{status['infeasible']} infeasible, {status['not converged']} open"
            yield Line("certificate", norm, len(some), 0, false, 0, 0, note)
        yield from (f"{row['norm']}, {row['kind']}: {row['errors']}" for row in rows if not row["verified"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100, help="damaged files of each format")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=25, help="of each command")
    parser.add_argument("--instances", type=int, default=1980, help="margin problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes for the margin problems")
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("part", "what", "cases", "tracebacks", "silent", "executions", "left over", "")
    form = "| {:11} | {:24} | {:>6} | {:>10} | {:>6} | {:>10} | {:>9} | {:36} |"
    print(form.format(*heads))
    print("|" + "|".join("-" * (len(part)) for part in form.format(*heads).split("|")[1:-1]) + "|")
    failures, total = [], [0] * 5
    for line in lines(**vars(options)):
        if isinstance(line, str):
            failures.append(line)
            continue
        total = [a + b for a, b in zip(total, line[2:7])]
        print(form.format(*line), flush=True)
    print(form.format("all", "", *total, ""))
    print("\n".join(line[:1000] for line in failures))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
