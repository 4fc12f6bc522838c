"""One max-margin problem with N = 10³ … 10⁷ rows: attsvm against general solvers, until each gives up.

Sequences of 50 random tokens in R^d, queries in R^d; the selected tokens are those that a random W* selects, so that a
solution exists. Every run is a process of its own with one thread, a limit of CPU time and one of memory. `MB` is the
peak of memory beyond the tokens: the others need all rows written out, in their own format. attsvm's gap is certified;
of the others it is norm/margin of their W over attsvm's lower bound.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

TOKENS = 50


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

    from attsvm import TokenData, att_svm, parse_geometry, solve

    if solver != "attsvm":
        import_module({"linearsvc": "sklearn.svm", "pdlp": "highspy", "highs": "highspy"}.get(solver, solver))
        import_module("scipy.sparse")
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
        w = OTHERS[norm][solver](F, tol)
        margin = (F @ w).min()
        length = parse_geometry(norm).norm(torch.from_numpy(w).reshape(1, dim, dim)).item()
        facts["norm"] = float(length / margin) if margin > 0 else None
    facts |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    if device == "cuda":
        facts["MB"] = (torch.cuda.max_memory_allocated() - held) / 2**20
    else:
        facts["MB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    queue.put(facts)


def by_clarabel(F: Any, tol: float) -> Any:
    import numpy as np
    from scipy import sparse

    clarabel = import_module("clarabel")
    N, D = F.shape
    settings = clarabel.DefaultSettings.default()
    settings.verbose, settings.max_threads = False, 1
    rows, cone = -sparse.csc_matrix(F), clarabel.NonnegativeConeT(N)
    solver = clarabel.DefaultSolver(sparse.eye(D, format="csc"), np.zeros(D), rows, -np.ones(N), [cone], settings)
    return np.array(solver.solve().x)


def by_piqp(F: Any, tol: float) -> Any:
    import numpy as np

    piqp = import_module("piqp")
    N, D = F.shape
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = tol
    solver.setup(np.eye(D, order="F"), np.zeros(D), G=np.asfortranarray(F), h_l=np.ones(N))
    solver.solve()
    return np.array(solver.result.x)


def by_osqp(F: Any, tol: float) -> Any:
    import numpy as np
    import osqp
    from scipy import sparse

    N, D = F.shape
    solver = osqp.OSQP()
    options = {"eps_abs": tol, "eps_rel": tol, "max_iter": 1_000_000, "verbose": False}
    identity = sparse.eye(D, format="csc")
    solver.setup(identity, np.zeros(D), sparse.csc_matrix(F), np.ones(N), np.full(N, np.inf), **options)
    return np.array(solver.solve().x)


def by_scs(F: Any, tol: float) -> Any:
    import numpy as np
    import scs
    from scipy import sparse

    N, D = F.shape
    data = {"P": sparse.eye(D, format="csc"), "A": -sparse.csc_matrix(F), "b": -np.ones(N), "c": np.zeros(D)}
    options = {"eps_abs": tol, "eps_rel": tol, "max_iters": 1_000_000, "verbose": False}
    return scs.SCS(data, {"l": N}, **options).solve()["x"]


def by_linear_svc(F: Any, tol: float) -> Any:
    """scikit-learn's linear SVM with the hinge loss and a large C; half of the rows with the other sign."""
    import numpy as np
    from sklearn.svm import LinearSVC

    sign = np.where(np.arange(len(F)) % 2, -1.0, 1.0)
    machine = LinearSVC(C=1e6, loss="hinge", fit_intercept=False, tol=tol, max_iter=100_000)
    return machine.fit(F * sign[:, None], sign).coef_[0]


def by_highs(method: str) -> Any:
    """min t, −t ≤ w ≤ t, Fw ≥ 1: the largest margin in ℓ∞ as a linear program."""

    def one(F: Any, tol: float) -> Any:
        import highspy
        import numpy as np
        from scipy import sparse

        N, D = F.shape
        eye, ones = sparse.eye(D), np.ones((D, 1))
        corner = sparse.csr_matrix((N, 1))
        rows: Any = sparse.bmat([[F, corner], [eye, ones], [-eye, ones]], format="csc")
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = D + 1, N + 2 * D
        lp.col_cost_ = np.eye(D + 1)[D]
        lp.col_lower_, lp.col_upper_ = np.full(D + 1, -np.inf), np.full(D + 1, np.inf)
        lp.row_lower_, lp.row_upper_ = np.r_[np.ones(N), np.zeros(2 * D)], np.full(N + 2 * D, np.inf)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.indptr, rows.indices, rows.data
        solver = highspy.Highs()
        for name, value in (("output_flag", False), ("solver", method), ("threads", 1)):
            solver.setOptionValue(name, value)
        for name in ("pdlp_optimality_tolerance", "kkt_tolerance"):
            solver.setOptionValue(name, tol)
        solver.passModel(lp)
        solver.run()
        return np.array(solver.getSolution().col_value)[:D]

    return one


OTHERS: dict[str, dict[str, Any]] = {
    "l2": {
        "clarabel": by_clarabel,
        "piqp": by_piqp,
        "osqp": by_osqp,
        "scs": by_scs,
        "linearsvc": by_linear_svc,
    },
    "linf": {"highs": by_highs("choose"), "pdlp": by_highs("pdlp")},
}


def resident(pid: int | None) -> float:
    """Megabytes of memory that a process holds."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except (OSError, IndexError):
        return 0.0


def timed(limit: float, memory: float, *arguments: Any) -> dict[str, Any]:
    """The facts of a run in a new process, or why there are none."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=run, args=(int(limit), *arguments, queue))
    process.start()
    end = time.monotonic() + 6 * limit  # of the clock, on a machine that others use too
    large = False
    while process.is_alive() and time.monotonic() < end and queue.empty() and not large:
        time.sleep(0.05)
        large = resident(process.pid) > memory
    if not queue.empty():
        facts = queue.get()
        process.join()
        return facts
    late = process.is_alive()
    process.kill()
    process.join()
    if large:
        return {"failed": f"over {memory:g} MB"}
    late |= process.exitcode == -signal.SIGXCPU
    return {"failed": f"over {limit:g} s" if late else f"ended with code {process.exitcode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=float, default=[1e3, 1e4, 1e5, 1e6])
    parser.add_argument("--dims", nargs="+", type=int, default=[16])
    parser.add_argument("--norms", nargs="+", default=["l2"])
    parser.add_argument("--solvers", nargs="+", help="attsvm and those that can solve in this norm")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--memory", type=float, default=3000.0, help="megabytes for the process of a run")
    parser.add_argument("--json", type=Path, help="append a line for every run here")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for dim in options.dims:
        for norm in options.norms:
            given_up: set[str] = set()
            for rows in options.rows:
                lower = None
                for solver in options.solvers or ["attsvm", *OTHERS.get(norm, ())]:
                    if solver in given_up:
                        continue
                    facts = timed(
                        options.limit, options.memory, solver, norm, int(rows), dim, options.tol, options.device
                    )
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
