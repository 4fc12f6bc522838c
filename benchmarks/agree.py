"""Random attention SVMs in the norms with corners and spectral norms, against HiGHS (ℓ1, ℓ∞) and Clarabel (the others).

For every norm and size (n, T, d): how many instances are solved and infeasible, the largest certified gap, the largest
relative difference from the other solver's norm, and how often an answer contradicts HiGHS about feasibility. `open`
are instances whose gap stays above the tolerance of 1e-9; their gaps count.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import torch

from attsvm import Geometry, Group, Lp, att_svm, parse_geometry, solve, sphere

SIZES = ((6, 8, 10), (5, 5, 4), (5, 5, 20))
NORMS = ("l1", "linf", "spectral", "group:rows", "schatten1.5", "schatten3")
PIECE = 25


def by_others(F: np.ndarray, shape: tuple[int, int], geometry: Geometry) -> float:
    """The least norm of W with FW ≥ 1, by another solver."""
    N, D = F.shape
    if geometry == Lp(1):
        return scipy.optimize.linprog(np.ones(2 * D), np.hstack((-F, F)), -np.ones(N), bounds=(0, None)).fun
    if geometry == Lp(math.inf):
        one, eye = np.ones((D, 1)), np.eye(D)
        rows = np.vstack((np.hstack((-F, np.zeros((N, 1)))), np.hstack((eye, -one)), np.hstack((-eye, -one))))
        right = np.concatenate((-np.ones(N), np.zeros(2 * D)))
        return scipy.optimize.linprog(np.append(np.zeros(D), 1.0), rows, right, bounds=(None, None)).fun
    import cvxpy as cp

    W = cp.Variable(shape)
    if isinstance(geometry, Group):
        objective = cp.mixed_norm(W, 2, 1)
    elif geometry.name == "spectral":
        objective = cp.sigma_max(W)
    else:
        raise ValueError(f"cvxpy has no {geometry.name} norm")
    return float(cp.Problem(cp.Minimize(objective), [F @ cp.vec(W, order="C") >= 1]).solve(solver=cp.CLARABEL))  # type: ignore[arg-type]


def compare(size: tuple[int, int, int], norm: str, instances: int, seed: int) -> dict[str, Any]:
    data = sphere(*size, trials=instances, seed=seed)
    tokens = torch.randint(0, data.T, (data.B, data.n, 1), generator=torch.Generator().manual_seed(seed))
    problem, geometry = att_svm(data, tokens), parse_geometry(norm)
    solution = solve(problem, geometry)
    rows = torch.einsum("bqrd,bqe->bqrde", problem.A, problem.Z).flatten(3).flatten(1, 2).numpy()
    answer: dict[str, Any] = {"solved": 0, "infeasible": 0, "open": 0, "wrong": 0, "gap": 0.0, "difference": 0.0}
    for k, F in enumerate(rows):
        found = scipy.optimize.linprog(np.zeros(F.shape[1]), -F, -np.ones(len(F)), bounds=(None, None)).status
        word = str(solution.status[k]).replace("not converged", "open")
        answer[word] += 1
        answer["wrong"] += (found == 2 and word == "solved") or (found == 0 and word == "infeasible")
        if word != "infeasible":
            answer["gap"] = max(answer["gap"], solution.gap[k].item())
            if not norm.startswith("schatten"):
                difference = abs(by_others(F, problem.shape, geometry) / solution.norm[k].item() - 1)
                answer["difference"] = max(answer["difference"], difference)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--norms", nargs="+", default=NORMS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[0, 1, 2], help="numbers in the list of sizes")
    parser.add_argument("--json", type=Path, help="append a line for every norm and size here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for norm in options.norms:
        for size in (SIZES[k] for k in options.sizes):
            total: dict[str, Any] = {}
            for seed in range(math.ceil(options.instances / PIECE)):
                count = min(PIECE, options.instances - seed * PIECE)
                for name, value in compare(size, norm, count, seed).items():
                    joined = max if name in ("gap", "difference") else sum
                    total[name] = joined((total.get(name, 0), value))
            line = json.dumps({"norm": norm, "size": size, **total})
            print(line, flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
