"""How close training comes to its SVM: 100 random instances, n = 6, T = 8, d = 10, certified solutions.

Direction error (directional Bregman divergence; for p = 2 that is 1 − correlation; for (K, Q) 1 − correlation to the
nuclear solution) to the SVM of the tokens selected at that step, after constant normalised steps of 0.1 and after
growing ones. Takes some minutes of CPU time.
"""

from __future__ import annotations

import argparse

import torch

from attsvm import Growing, TokenData, Trajectory, att_svm, solve, sphere, train
from attsvm.diagnostics import direction_error, is_locally_optimal


def report(label: str, data: TokenData, run: Trajectory) -> None:
    for r, step in enumerate(run.steps.tolist()):
        tokens = run.records["tokens"][r]
        solution = solve(att_svm(data, tokens), run.geometry, tol=1e-12 if run.geometry.name != "nuclear" else 1e-10)
        error = direction_error(solution.W, run.records["W"][r], run.geometry)[solution.solved]
        local = int(is_locally_optimal(data, tokens, solution).sum())
        print(
            f"| {label} | {step:,} | {error.median().item():.1e} | {error.max().item():.1e} | "
            f"{int((error < 1e-6).sum())} | {local} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--steps", type=int, nargs="+", default=[2_000, 20_000, 200_000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = sphere(6, 8, 10, trials=options.trials, seed=0)
    keep = ("W", "tokens")
    print("| training | steps | median error | largest error | below 1e-6 | locally optimal tokens |")
    print("|---|---|---|---|---|---|")
    for name in ("l2", "l1.75", "l3"):
        run = train(data, name, steps=max(options.steps), lr=0.1, at=options.steps, record=keep)
        report(f"{name}, η = 0.1", data, run)
        growing = [step for step in options.steps if step <= 20_000]
        run = train(data, name, steps=max(growing), lr=Growing(), at=growing, record=keep)
        report(f"{name}, growing", data, run)
    for ridge in (0.0, 2.2e-16, 1e-100):
        steps = [step for step in options.steps if step <= 20_000]
        run = train(data, "nuclear", "KQ", steps=max(steps), lr=0.1, at=steps, ridge=ridge, record=keep)
        report(f"(K, Q), η = 0.1, ridge {ridge:g}", data, run)


if __name__ == "__main__":
    main()
