"""Random attention SVMs in the norms with corners and spectral norms, against HiGHS (ℓ1, ℓ∞) and Clarabel (the others).

For every norm and size (n, T, d): how many instances are solved and infeasible, the largest certified gap, the largest
relative difference from the other solver's norm, and how often an answer contradicts HiGHS about feasibility. `open`
are instances whose gap stays above the tolerance of 1e-9; their gaps count. `--write` only runs the other solvers and
keeps their norms in a file, `--read` compares with them.

Clarabel gets cones: ‖W‖₃³ is the least tr T with [[I, W], [Wᵀ, X]], [[X, R], [R, I]] and [[T, X], [X, R]] positive
semidefinite, since then X ⪰ WᵀW, R ⪯ X^½ and T ⪰ X R⁻¹X. The least ‖W‖_{3/2} is 1 over the least ‖A'λ‖₃ with λ ≥ 0,
b'λ = 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
import torch

from attsvm import MarginProblem, att_svm, parse_geometry, solve, sphere

SIZES = ((6, 8, 10), (5, 5, 4), (5, 5, 20))
NORMS = ("l1", "linf", "spectral", "group:rows", "schatten1.5", "schatten3")
PIECE = 25


class Cones:
    """Minimise q'x subject to rows of x in cones, for Clarabel; a matrix of unknowns holds their numbers, −1 is 0 and
    −2 is 1."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[np.ndarray] = []
        self.numbers: list[np.ndarray] = []
        self.right: list[np.ndarray] = []
        self.cones: list[tuple[str, int]] = []

    def unknowns(self, *shape: int) -> np.ndarray:
        start = self.count
        self.count += math.prod(shape)
        return np.arange(start, self.count).reshape(shape)

    def symmetric(self, n: int) -> np.ndarray:
        upper = np.zeros((n, n), dtype=int)
        upper[np.triu_indices(n)] = self.unknowns(n * (n + 1) // 2)
        return np.triu(upper) + np.triu(upper, 1).T

    def within(self, cone: str, F: np.ndarray, x: np.ndarray, right: np.ndarray | float = 0.0) -> None:
        """Fx − right lies in the cone."""
        self.cones.append((cone, len(F)))
        self.rows.append(F)
        self.numbers.append(x)
        self.right.append(np.broadcast_to(right, len(F)))

    def semidefinite(self, M: np.ndarray) -> None:
        n = len(M)
        i, j = np.nonzero(np.tri(n))
        entries, root = M[j, i], np.where(i == j, 1.0, math.sqrt(2))  # upper triangle, column by column
        known = entries < 0
        self.within(
            "semidefinite", np.diag(np.where(known, 0.0, root)), np.where(known, 0, entries), -root * (entries == -2)
        )
        self.cones[-1] = ("semidefinite", n)

    def least(self, q: dict[int, float]) -> float:
        clarabel: Any = importlib.import_module("clarabel")
        kinds = {
            "zero": clarabel.ZeroConeT,
            "positive": clarabel.NonnegativeConeT,
            "second": clarabel.SecondOrderConeT,
            "semidefinite": clarabel.PSDTriangleConeT,
        }
        parts = []
        for F, x in zip(self.rows, self.numbers):
            i, j = np.nonzero(F)
            parts.append(scipy.sparse.coo_matrix((-F[i, j], (i, x[j])), shape=(len(F), self.count)))
        cost = np.zeros(self.count)
        cost[list(q)] = list(q.values())
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        A, P = scipy.sparse.vstack(parts).tocsc(), scipy.sparse.csc_matrix((self.count, self.count))
        cones = [kinds[kind](n) for kind, n in self.cones]
        return clarabel.DefaultSolver(P, cost, A, -np.concatenate(self.right), cones, settings).solve().obj_val


def _corner(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.block([[a, b], [b.T, c]])


def _one(n: int) -> np.ndarray:
    return np.where(np.eye(n) > 0, -2, -1)


def _third_power(cones: Cones, W: np.ndarray) -> dict[int, float]:
    """The cost ‖W‖₃³ of the Schatten-3 norm."""
    d, e = W.shape
    X, R, T = (cones.symmetric(e) for _ in range(3))
    cones.semidefinite(_corner(_one(d), W, X))
    cones.semidefinite(_corner(X, R, _one(e)))
    cones.semidefinite(_corner(T, X, R))
    return dict.fromkeys(T.diagonal().tolist(), 1.0)


def by_clarabel(A: np.ndarray, Z: np.ndarray, norm: str) -> float:
    """The least norm of W with ⟨a ⊗ z, W⟩ ≥ 1, in bases of the z (and of the a, where the norm allows it)."""
    Z = np.linalg.qr(Z.T)[1].T
    if norm != "group:rows" and len(A) < A.shape[1]:
        A = np.linalg.qr(A.T)[1].T
    F = (A[:, :, None] * Z[:, None, :]).reshape(len(A), -1)
    cones = Cones()
    if norm == "schatten1.5":
        lam, W = cones.unknowns(len(F)), cones.unknowns(A.shape[1], Z.shape[1])
        cones.within("positive", np.eye(len(F)), lam)
        size = 10.0  # about the norm that is looked for: Clarabel's tolerance is absolute, too
        cones.within("zero", np.ones((1, len(F))), lam, size)
        cones.within("zero", np.hstack((F.T, -np.eye(W.size))), np.concatenate((lam, W.ravel())))
        return size * cones.least(_third_power(cones, W if W.shape[0] >= W.shape[1] else W.T)) ** (-1 / 3)
    W = cones.unknowns(A.shape[1], Z.shape[1])
    cones.within("positive", F, W.ravel(), 1.0)
    if norm == "schatten3":
        return cones.least(_third_power(cones, W if W.shape[0] >= W.shape[1] else W.T)) ** (1 / 3)
    if norm == "group:rows":
        t = cones.unknowns(len(W))
        for size, row in zip(t, W):
            cones.within("second", np.eye(len(row) + 1), np.append(size, row))
        return cones.least(dict.fromkeys(t.tolist(), 1.0))
    t = int(cones.unknowns(1)[0])
    ball = [np.where(np.eye(n) > 0, t, -1) for n in W.shape]
    cones.semidefinite(_corner(ball[0], W, ball[1]))
    return cones.least({t: 1.0})


def by_highs(F: np.ndarray, norm: str) -> float:
    """The least norm of W with FW ≥ 1."""
    N, D = F.shape
    if norm == "l1":
        return scipy.optimize.linprog(np.ones(2 * D), np.hstack((-F, F)), -np.ones(N), bounds=(0, None)).fun
    one, eye = np.ones((D, 1)), np.eye(D)
    rows = np.vstack((np.hstack((-F, np.zeros((N, 1)))), np.hstack((eye, -one)), np.hstack((-eye, -one))))
    right = np.concatenate((-np.ones(N), np.zeros(2 * D)))
    return scipy.optimize.linprog(np.append(np.zeros(D), 1.0), rows, right, bounds=(None, None)).fun


def instances(size: tuple[int, int, int], count: int, seed: int) -> MarginProblem:
    data = sphere(*size, trials=count, seed=seed)
    tokens = torch.randint(0, data.T, (data.B, data.n, 1), generator=torch.Generator().manual_seed(seed))
    return att_svm(data, tokens)


def others(size: tuple[int, int, int], norm: str, count: int, seed: int) -> list[float]:
    """The least norms by the other solver, infinite where HiGHS says that there is none."""
    torch.set_num_threads(1)
    problem = instances(size, count, seed)
    found = []
    for A, Z in zip(problem.A.numpy(), problem.Z.numpy()):
        a, z = A.reshape(-1, A.shape[-1]), Z.repeat(A.shape[1], 0)
        F = (a[:, :, None] * z[:, None, :]).reshape(len(a), -1)
        status = scipy.optimize.linprog(np.zeros(F.shape[1]), -F, -np.ones(len(F)), bounds=(None, None)).status
        if status == 2:
            found.append(math.inf)
        else:
            found.append(by_highs(F, norm) if norm in ("l1", "linf") else by_clarabel(a, z, norm))
    return found


def compare(size: tuple[int, int, int], norm: str, count: int, seed: int, theirs: list[float]) -> dict[str, Any]:
    solution = solve(instances(size, count, seed), parse_geometry(norm))
    answer: dict[str, Any] = {"solved": 0, "infeasible": 0, "open": 0, "wrong": 0, "gap": 0.0, "difference": 0.0}
    for k, value in enumerate(theirs):
        word = str(solution.status[k]).replace("not converged", "open")
        answer[word] += 1
        answer["wrong"] += (math.isinf(value) and word == "solved") or (math.isfinite(value) and word == "infeasible")
        if word != "infeasible":
            answer["gap"] = max(answer["gap"], solution.gap[k].item())
            answer["difference"] = max(answer["difference"], abs(value / solution.norm[k].item() - 1))
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--norms", nargs="+", default=NORMS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[0, 1, 2], help="numbers in the list of sizes")
    parser.add_argument("--json", type=Path, help="append a line for every norm and size here")
    parser.add_argument("--write", type=Path, help="append what the other solvers find here, and compare nothing")
    parser.add_argument("--read", type=Path, help="compare with what --write wrote")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {}
    for line in options.read.read_text().splitlines() if options.read else ():
        *key, norms = json.loads(line)
        known[json.dumps(key)] = norms
    keys = [
        (SIZES[k], norm, min(PIECE, options.instances - start), start // PIECE)
        for norm in options.norms
        for k in options.sizes
        for start in range(0, options.instances, PIECE)
    ]
    if options.write:
        with ProcessPoolExecutor(options.workers) as pool, options.write.open("a") as file:
            for key, norms in zip(keys, pool.map(others, *zip(*keys))):
                file.write(json.dumps([*key, norms]) + "\n")
                file.flush()
        return
    get: Callable[..., list[float]] = lambda *key: known[json.dumps(key)] if options.read else others(*key)  # noqa: E731
    for norm in options.norms:
        for k in options.sizes:
            total: dict[str, Any] = {}
            for key in keys:
                if key[0] == SIZES[k] and key[1] == norm:
                    for name, value in compare(*key, get(*key)).items():
                        joined = max if name in ("gap", "difference") else sum
                        total[name] = joined((total.get(name, 0), value))
            line = json.dumps({"norm": norm, "size": SIZES[k], **total})
            print(line, flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
