"""Instances per second of `solve` by batch size on one device (n = 6, T = 8, d = 10).

python benchmarks/bench_solve_device.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from attsvm import MarginProblem, MaxMargin, att_svm, solve, sphere

NORMS = ("l1.1", "l1.75", "l2", "l3", "l10", "nuclear")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[500, 5_000, 50_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, float64, tol 1e-9")
    print(f"{'norm':>8} {'batch':>7} {'seconds':>8} {'instances/s':>12} {'solved':>7} {'largest gap':>12}")
    data = sphere(6, 8, 10, trials=max(options.batches)).to(device=device)
    table = []
    for norm in NORMS:
        solve(att_svm(data[:500]), norm)  # loads the libraries
        for batch in options.batches:
            problem = att_svm(data[:batch])
            seconds, solution = min((timed(problem, norm) for _ in range(2)), key=lambda pair: pair[0])
            solved, gap = int(solution.solved.sum()), solution.gap.max().item()
            table.append({"norm": norm, "batch": batch, "seconds": seconds, "solved": solved, "gap": gap})
            print(f"{norm:>8} {batch:7} {seconds:8.3f} {batch / seconds:12.0f} {solved:7} {gap:12.1e}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "table": table}, indent=1))


def timed(problem: MarginProblem, norm: str) -> tuple[float, MaxMargin]:
    start = time.perf_counter()
    solution = solve(problem, norm)
    solution.codes.cpu()  # waits for the device
    return time.perf_counter() - start, solution


if __name__ == "__main__":
    main()
