"""One max-margin problem with N = 10³ … 10⁷ rows: attsvm against general solvers, until each gives up.

Sequences of 50 random tokens in R^d, queries in R^d; the selected tokens are those that a random W* selects, so that a
solution exists. Every run is a process of its own with one thread and a limit of CPU time. `MB` is the peak of memory
beyond the tokens. attsvm's gap is certified; of the others it is norm/margin of their W over attsvm's lower bound.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

TOKENS = 50
SOLVERS = ("attsvm", "clarabel", "osqp", "scs", "linearsvc")


def make(rows: int, dim: int, device: str) -> Any:
    """Tokens (n, T, d), queries (n, d) and the selected tokens (n,), for n = rows/(T − 1)."""
    import torch

    n = max(1, rows // (TOKENS - 1))
    generator = torch.Generator(device).manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": device}
    X, Z, W = (torch.randn(*shape, **options) for shape in ((n, TOKENS, dim), (n, dim), (dim, dim)))
    V = Z @ W.mT
    tokens = torch.cat([(x @ v[..., None])[..., 0].argmax(1) for x, v in zip(X.split(2000), V.split(2000))])
    return X, Z, tokens


def dense_rows(X: Any, Z: Any, tokens: Any) -> Any:
    """The rows as vectors (N, d²), which every other solver needs."""
    import numpy as np

    X, Z, tokens = X.numpy(), Z.numpy(), tokens.numpy()
    n, T, d = X.shape
    others = np.arange(T - 1)[None] + (np.arange(T - 1)[None] >= tokens[:, None])
    A = X[np.arange(n), tokens][:, None] - np.take_along_axis(X, others[..., None], 1)
    return (A[..., :, None] * Z[:, None, None, :]).reshape(n * (T - 1), d * d)


def run(limit: int, solver: str, norm: str, rows: int, dim: int, tol: float, device: str, queue: Any) -> None:
    import torch

    from attsvm import TokenData, att_svm, solve

    if solver == "linearsvc":
        import sklearn.svm  # noqa: F401
    elif solver != "attsvm":
        import cvxpy  # noqa: F401
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (limit + 30, limit + 40))
    X, Z, tokens = make(rows, dim, device)
    before, held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    if device == "cuda":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    wall, cpu = time.perf_counter(), time.process_time()
    facts: dict[str, Any] = {}
    if solver == "attsvm":
        solution = solve(att_svm(TokenData.cross(X, Z), tokens), norm, tol=tol)
        facts |= {"gap": solution.gap.item(), "lower": solution.lower.item(), "rounds": solution.iterations.item()}
        facts |= {"status": str(solution.status[0]), "support": int(solution.support.sum())}
    else:
        F = dense_rows(X, Z, tokens)
        w = OTHERS[solver](F, tol)
        margin = (F @ w).min()
        facts["norm"] = float((w @ w) ** 0.5 / margin) if margin > 0 else None
    facts |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    if device == "cuda":
        facts["MB"] = (torch.cuda.max_memory_allocated() - held) / 2**20
    else:
        facts["MB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    queue.put(facts)


def by_cvxpy(name: str, **options: Any) -> Any:
    def one(F: Any, tol: float) -> Any:
        import cvxpy as cp

        w = cp.Variable(F.shape[1])
        settings = {key: tol if value is None else value for key, value in options.items()}
        cp.Problem(cp.Minimize(cp.sum_squares(w)), [F @ w >= 1]).solve(solver=name, **settings)
        return w.value

    return one


def by_linear_svc(F: Any, tol: float) -> Any:
    """scikit-learn's linear SVM with the hinge loss and a large C; half of the rows with the other sign."""
    import numpy as np
    from sklearn.svm import LinearSVC

    sign = np.where(np.arange(len(F)) % 2, -1.0, 1.0)
    machine = LinearSVC(C=1e6, loss="hinge", fit_intercept=False, tol=tol, max_iter=100_000)
    return machine.fit(F * sign[:, None], sign).coef_[0]


OTHERS = {
    "clarabel": by_cvxpy("CLARABEL"),
    "osqp": by_cvxpy("OSQP", eps_abs=None, eps_rel=None, max_iter=1_000_000),
    "scs": by_cvxpy("SCS", eps_abs=None, eps_rel=None, max_iters=1_000_000),
    "linearsvc": by_linear_svc,
}


def timed(limit: float, *arguments: Any) -> dict[str, Any]:
    """The facts of a run in a new process, or why there are none."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=run, args=(int(limit), *arguments, queue))
    process.start()
    end = time.monotonic() + 6 * limit  # of the clock, on a machine that others use too
    while process.is_alive() and time.monotonic() < end and queue.empty():
        time.sleep(0.05)
    if not queue.empty():
        facts = queue.get()
        process.join()
        return facts
    late = process.is_alive()
    process.kill()
    process.join()
    late |= process.exitcode == -signal.SIGXCPU
    return {"failed": f"over {limit:g} s" if late else f"ended with code {process.exitcode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=float, default=[1e3, 1e4, 1e5, 1e6])
    parser.add_argument("--dims", nargs="+", type=int, default=[16])
    parser.add_argument("--norms", nargs="+", default=["l2"])
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS))
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--json", type=Path, help="append a line for every run here")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for dim in options.dims:
        for norm in options.norms:
            given_up: set[str] = set()
            for rows in options.rows:
                lower = None
                for solver in options.solvers if norm == "l2" else ["attsvm"]:
                    if solver in given_up:
                        continue
                    facts = timed(options.limit, solver, norm, int(rows), dim, options.tol, options.device)
                    lower = facts.get("lower", lower)
                    if facts.get("norm") and lower:
                        facts["gap"] = facts["norm"] / lower - 1
                    if "failed" in facts:
                        given_up.add(solver)
                    row = {"solver": solver, "norm of W": norm, "rows": int(rows), "d": dim, "device": options.device}
                    row |= {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in facts.items()}
                    print(json.dumps(row), flush=True)
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
