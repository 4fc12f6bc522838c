"""Max-margin problems an instance: attsvm in a batch against a Python loop over cvxpy.

Single-thread CPU time on the same random instances, n = 6, T = 8, d = 10. cvxpy is written well (one vectorised
constraint) and keeps its default solver; its compilation counts, as it does for everybody who loops over it. The
loop is timed on a sample. For nuclear and spectral norms both default (SCS) and equal accuracy (Clarabel) are shown.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attsvm import Lp, att_svm, parse_geometry, solve, sphere

SIZE = (6, 8, 10)
NORMS = ("l1", "l1.1", "l1.5", "l1.75", "l2", "l3", "l6", "l10", "linf", "nuclear", "spectral", "group:rows")


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of several runs: the noise of a shared machine only ever adds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def cvxpy_seconds(norm: str, sample: int, solver: str | None) -> tuple[float, list[float]]:
    """CPU seconds an instance of a loop over cvxpy, and the norms it finds."""
    import cvxpy as cp

    problem = att_svm(sphere(*SIZE, trials=sample))
    F = torch.einsum("bqrd,bqe->bqrde", problem.A, problem.Z).flatten(3).flatten(1, 2).numpy()
    d, e = problem.shape
    geometry = parse_geometry(norm)

    def one(rows: Any) -> float:
        if not isinstance(geometry, Lp):
            W = cp.Variable((d, e))
            objectives = {
                "nuclear": cp.normNuc,
                "spectral": cp.sigma_max,
                "group:rows": lambda W: cp.mixed_norm(W, 2, 1),
            }
            objective, w = objectives[norm](W), cp.vec(W, order="C")
        else:
            w = cp.Variable(d * e)
            objective = cp.pnorm(w, geometry.p)  # type: ignore[arg-type]
        problem = cp.Problem(cp.Minimize(objective), [rows @ w >= 1])
        problem.solve(solver=solver)
        return float(problem.value)  # type: ignore[arg-type]

    one(F[0])
    start = time.process_time()
    norms = [one(rows) for rows in F]
    return (time.process_time() - start) / sample, norms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--sample", type=int, default=20, help="instances in the cvxpy loop")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--norms", nargs="+", default=NORMS)
    parser.add_argument("--json", type=Path, help="write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problem = att_svm(sphere(*SIZE, trials=options.batch))
    print(f"n, T, d = {SIZE}, batch {options.batch}, tol 1e-9, torch {torch.__version__}")
    header = ("norm", "attsvm ms", "largest gap", "solver", "cvxpy ms", "its error", "ratio")
    print("{:>8} {:>10} {:>12} {:>9} {:>9} {:>10} {:>6}".format(*header))
    table = []
    for norm in options.norms:
        solution = solve(problem, norm)
        ours = cpu_seconds(lambda norm=norm: solve(problem, norm), options.repeats) / options.batch
        for solver in ("SCS", "CLARABEL") if norm in ("nuclear", "spectral") else (None,):
            theirs, norms = cvxpy_seconds(norm, options.sample, solver)
            error = max(abs(v / w - 1) for v, w in zip(norms, solution.norm.tolist()))
            row = {
                "norm": norm,
                "attsvm_ms": 1e3 * ours,
                "gap": solution.gap.max().item(),
                "solver": solver or "default",
                "cvxpy_ms": 1e3 * theirs,
                "cvxpy_error": error,
                "ratio": theirs / ours,
            }
            table.append(row)
            print(
                f"{norm:>8} {row['attsvm_ms']:10.3f} {row['gap']:12.1e} {row['solver']:>9} {row['cvxpy_ms']:9.1f} "
                f"{error:10.1e} {row['ratio']:6.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
