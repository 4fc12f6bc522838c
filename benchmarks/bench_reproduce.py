"""How long the synthetic experiments take here, and would take with a loop over trials in PyTorch and cvxpy.

    python benchmarks/bench_reproduce.py RUNS [--table]

With --table: CPU seconds and checks of every experiment, and nothing else. RUNS is a folder that `attsvm reproduce all`
filled: its rows say how much CPU time every batch took. The work in it
(trial-steps of training, problems solved) is counted by running two trials of every cell. The loops are the plain ones
of bench_train.py and bench_solve.py: their time for a trial-step and for a problem is measured on a sample of the size
(6, 8, 10) and multiplied. So the second column is an extrapolation, not a measurement; regularization paths are in the
first column but not in the second.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from bench_solve import cvxpy_seconds
from bench_train import plain, rate

from attsvm import sphere
from attsvm.dynamics import _run
from attsvm.experiments import CATALOG, Experiment, read_provenance, read_stored
from attsvm.geometry import Lp
from attsvm.svm import _solve

SAMPLE = 2
"""Trials of a cell in which its work is counted."""
Work = Counter[str]


@contextmanager
def counted(work: Work) -> Iterator[None]:
    """Count trial-steps and problems, by kind, in this process."""
    advance, prepare = _run.Run._advance, _solve.prepare

    def counting_advance(self: _run.Run, target: int, *rest: Any) -> None:
        work["KQ" if "K" in self.chunks[0].states else "W"] += self.data.B * max(0, target - self.step)
        advance(self, target, *rest)

    def counting_prepare(problem: Any, geometry: Any) -> Any:
        kind = "nuclear" if not isinstance(geometry, Lp) else "l2" if geometry.p == 2 else "l1.75"
        work[kind] += problem.A.shape[0]
        return prepare(problem, geometry)

    with (
        patch.object(_run.Run, "_advance", counting_advance),
        patch.object(_solve, "prepare", counting_prepare),
    ):
        yield


def work_of(experiment: Experiment) -> Work:
    """Trial-steps and problems of all trials of an experiment."""
    total: Work = Counter()
    for cell in experiment.cells(quick=False):
        trials = experiment.trials * (experiment.times(cell) if experiment.times else 1)
        sample, found = min(SAMPLE, trials), Counter()
        with counted(found), torch.no_grad():
            experiment.run(cell, range(sample), "cpu")
        total.update({kind: round(count * trials / sample) for kind, count in found.items()})
    return total


def table(runs: Path) -> None:
    """A Markdown row for every experiment that is complete: trials, CPU seconds, checks."""
    print("| experiment | trials per cell | CPU s | checks passed | extra checks passed | not passed |")
    print("|---|---|---|---|---|---|")
    total = 0.0
    for experiment in CATALOG.values():
        stored = read_stored(runs, experiment)
        if stored is None or not stored.complete or experiment.needs:
            continue
        seconds = sum(read_provenance(path)[1]["cpu_seconds"] for path in stored.paths)
        total += 0.0 if experiment.rows_of else seconds
        checks = experiment.checks(stored.rows())
        stated, extra = ([check for check in checks if check.extra == kind] for kind in (False, True))
        counts = [f"{sum(check.passed for check in some)} of {len(some)}" if some else "" for some in (stated, extra)]
        trials = sorted({batch.trials for batch in stored.batches})
        each = str(trials[0]) if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
        cost = f"as {experiment.rows_of}" if experiment.rows_of else f"{seconds:.0f}"
        left = "; ".join(f"{'' if c.why else 'FAILED: '}{c.name}: {c.ours}" for c in checks if not c.passed)
        print(f"| {experiment.id} | {each} | {cost} | {' | '.join(counts)} | {left} |")
    print(f"\n{total:.0f} CPU seconds in all, {total / 120:.1f} minutes on two cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true", help="only what the rows say of times and checks")
    given = parser.parse_args()
    runs = given.runs
    if given.table:
        table(runs)
        return
    torch.set_num_threads(1)
    each = {kind: cvxpy_seconds(kind, 10, None)[0] for kind in ("l1.75", "l2", "nuclear")}
    data = sphere(6, 8, 10, trials=3)
    for kind in ("W", "KQ"):
        each[kind] = 1 / rate(plain, data, kind, 2.0, 150, trial_steps=450, clock=time.process_time)
    print("sampled: " + ", ".join(f"{kind} {1e3 * seconds:.3g} ms" for kind, seconds in each.items()))
    print(f"{'':14}{'trial-steps':>14}{'problems':>10}{'ours':>9}{'loops':>10}{'times':>7}")
    ours_all = loops_all = 0.0
    for experiment in CATALOG.values():
        stored = read_stored(runs, experiment)
        if stored is None or not stored.complete or experiment.rows_of or experiment.needs:
            continue
        ours = sum(read_provenance(path)[1]["cpu_seconds"] for path in stored.paths)
        work = work_of(experiment)
        loops = sum(each[kind] * count for kind, count in work.items())
        steps = work["W"] + work["KQ"]
        print(
            f"{experiment.id:14}{steps:14,}{work.total() - steps:10,}{ours:8,.0f}s{loops:9,.0f}s{loops / ours:7.0f}",
            flush=True,
        )
        ours_all, loops_all = ours_all + ours, loops_all + loops
    print(f"{'all':14}{'':24}{ours_all:8,.0f}s{loops_all:9,.0f}s{loops_all / ours_all:7.0f}")
    print(f"on one core: {ours_all / 60:.1f} minutes against {loops_all / 3600:.1f} hours (extrapolated)")


if __name__ == "__main__":
    main()
