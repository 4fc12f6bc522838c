"""How far `solve` gets on problems of tiny margin: for every margin and norm the share of instances with a W that
separates, the share solved, and the median gap.

python benchmarks/bench_margins.py [--instances 8] [--rows rows.jsonl]

A W of float64 numbers cannot have the margin γ better than to about 1e-16/γ of itself, so the tolerance asked for is
the larger of 1e-9 and 2e-15/γ.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm import MarginProblem, solve

MARGINS = (1e-3, 1e-6, 1e-9, 1e-12)
NORMS = ("l1", "l1.2", "l2", "l4", "l10", "l20", "l50", "linf", "nuclear", "spectral", "group:rows")
SHAPES = {"rank one, 40 × (4, 4)": (40, 4, 4), "rank one, 20 × (3, 3)": (20, 3, 3), "vectors, 600 × 512": (600, 512, 1)}


def planted(N: int, d: int, e: int, margin: float, B: int, seed: int = 0) -> MarginProblem:
    """Unit rows a ⊗ z that some W separates by this margin; with more rows than entries no W does by much more."""
    rng = np.random.default_rng(seed)
    W, A, Z = rng.normal(size=(B, d, e)), rng.normal(size=(B, N, d)), rng.normal(size=(B, N, e))
    W /= np.linalg.norm(W, axis=(1, 2), keepdims=True)
    A, Z = (x / np.linalg.norm(x, axis=-1)[..., None] for x in (A, Z))
    Wz = np.einsum("bde,bne->bnd", W, Z)
    value = np.einsum("bnd,bnd->bn", A, Wz)
    wanted = margin * (1 + rng.exponential(size=(B, N)))
    A = A * np.where(value < 0, -1, 1)[..., None] + ((wanted - abs(value)) / (Wz**2).sum(-1))[..., None] * Wz
    return MarginProblem.from_rows(A, Z)


def measure(case: tuple[str, str, float], instances: int) -> dict[str, Any]:
    shape, norm, margin = case
    N, d, e = SHAPES[shape]
    instances = instances if d * e < 100 else max(1, instances // 8)
    start = time.perf_counter()
    solution = solve(planted(N, d, e, margin, instances), norm, tol=max(1e-9, 2e-15 / margin))
    return {
        "shape": shape,
        "norm": norm,
        "margin": margin,
        "found": solution.upper.isfinite().double().mean().item(),
        "solved": solution.solved.double().mean().item(),
        "infeasible": int(solution.infeasible.sum()),
        "gap": solution.gap.nan_to_num(torch.inf).quantile(0.5, interpolation="higher").item(),
        "seconds": (time.perf_counter() - start) / instances,
    }


def rows(cases: list[tuple[str, str, float]], instances: int, workers: int) -> Iterator[dict[str, Any]]:
    work = partial(measure, instances=instances)
    if workers == 1:
        yield from map(work, cases)
        return
    with get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(work, cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--norms", nargs="+", default=NORMS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="parts of the names of shapes")
    parser.add_argument("--rows", type=Path, help="write a line of JSON per margin and norm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [shape for shape in SHAPES if any(part in shape for part in options.shapes)]
    cases = [(shape, norm, margin) for shape in shapes for norm in options.norms for margin in MARGINS]
    print(f"{'shape':24} {'norm':>10} {'margin':>7} {'with W':>7} {'solved':>7} {'median gap':>10} {'s each':>7}")
    for row in rows(cases, options.instances, options.workers):
        if options.rows:
            with options.rows.open("a") as file:
                print(json.dumps(row), file=file)
        line = "{shape:24} {norm:>10} {margin:7.0e} {found:7.0%} {solved:7.0%} {gap:10.1e} {seconds:7.2f}"
        print(line.format(**row), flush=True)


if __name__ == "__main__":
    main()
