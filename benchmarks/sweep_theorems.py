"""Look for a run with all conditions of a listed theorem true and its conclusion false.

    python benchmarks/sweep_theorems.py [--instances 10000] [--seed 0]

Random small instances of all kinds: sizes, losses, masks, integer data (ties and degenerate positions on purpose),
parameterizations, geometries, starts and step sizes. Every run is judged by `verdict`; where a theorem applies its
conclusion is looked at in a far longer run of the same descent, or by solving what it says is feasible. A line for each
theorem: to how many runs it applies, how many of these contradict it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attsvm import AttsvmError, Gaussian, LinearHead, TokenData, Trajectory, att_svm, solve, train, verdict
from attsvm.diagnostics import is_globally_optimal, is_locally_optimal, lipschitz_constant, misalignment
from attsvm.search import cone_start

STEPS, LONGER = 25, 20
"""Steps of the judged run, and how many times as many the long one has."""
CHOICES = 64
"""Token choices up to which the feasibility of all of them is looked at."""
LOSSES = ("logistic", "correlation", "exponential")
KINDS = (("W", "l2"), ("W", "l2"), ("W", "l2"), ("W", "l1.5"), ("W", "l3"), ("KQ", "nuclear"), ("joint", "l2"))


def draw(rng: np.random.Generator, batch: int) -> TokenData:
    """A batch of problems of one size; half of the time small integers, a third of the time several queries."""
    n, T, d = int(rng.choice([1, 1, 2, 3])), int(rng.integers(2, 4)), int(rng.integers(1, 5))
    e, K = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))

    def tensor(*shape: int) -> torch.Tensor:
        values = rng.integers(-3, 4, size=shape) if integers else rng.standard_normal(shape)
        return torch.from_numpy(values.astype(float))

    integers = rng.random() < 0.5
    X, v = tensor(batch, n, T, d), tensor(batch, 1, d)
    if rng.random() < 0.3:  # equal scores of all but one token, for Theorem 4
        X[..., 0] = torch.where(torch.arange(T) == 0, X[..., 0], X[..., 1:2, 0])
        v = torch.zeros_like(v)
        v[..., 0] = 1.0
    Z = torch.ones(batch, n, K, e).double() if rng.random() < 0.3 else tensor(batch, n, K, e)
    Y = torch.from_numpy(rng.choice([-1.0, 1.0], size=(batch, n, K)))
    mask = torch.ones(batch, n, K, T, dtype=torch.bool)
    if rng.random() < 0.2:
        mask = torch.from_numpy(rng.random((batch, n, K, T)) < 0.7)
        mask[..., 0] = True
    return TokenData(X, Z, Y, mask, LinearHead(v))


def judged_run(data: TokenData, rng: np.random.Generator) -> tuple[Trajectory, dict[str, Any]]:
    parameterization, geometry = KINDS[rng.integers(len(KINDS))]
    options: dict[str, Any] = {"loss": str(rng.choice(LOSSES)) if parameterization != "joint" else "logistic"}
    options["normalize"] = bool(rng.random() < 0.15)
    L_W = lipschitz_constant(data, options["loss"])
    finite = L_W[(L_W > 0) & L_W.isfinite()]
    # Plain steps: as long as the theorems allow for every trial, or somewhat longer.
    longest = float(1 / finite.max()) if len(finite) else 0.1
    options["lr"] = 0.1 if options["normalize"] else longest * float(rng.choice([0.999, 0.999, 0.5, 3.0]))
    if parameterization == "W":
        options["init"] = Gaussian(float(rng.choice([0.1, 1.0, 5.0])), seed=1) if rng.random() < 0.5 else "zero"
    if parameterization == "W" and rng.random() < 0.2:  # inside the cone of the optimal tokens, where there is one
        opt = data.optimal_tokens()
        fine = is_locally_optimal(data, opt, solve(att_svm(data, opt), geometry, tol=1e-12))
        with contextlib.suppress(AttsvmError):  # nothing to separate
            options["init"] = cone_start(data[fine], geometry=geometry, lr=options["lr"], loss=options["loss"])
            data = data[fine]
    record = ("W", "loss", "norm")
    run = train(data, geometry, parameterization, steps=STEPS, record=record, compile=False, **options)
    return run, options


def every_choice_feasible(data: TokenData) -> torch.Tensor:
    """(B,), for the choices that the masks allow."""
    choices = list(itertools.islice(itertools.product(range(data.T), repeat=data.n * data.K), CHOICES))
    tokens = torch.tensor(choices).reshape(-1, data.n, data.K).repeat(data.B, 1, 1)
    many = data[torch.arange(data.B).repeat_interleave(len(choices))]
    seen = many.mask.gather(-1, tokens[..., None])[..., 0]
    solved = solve(att_svm(many, torch.where(seen, tokens, many.optimal_tokens()))).solved
    return (solved | ~seen.flatten(1).all(1)).reshape(data.B, -1).all(1)


def contradictions(run: Trajectory, options: dict[str, Any], samples: int) -> dict[str, tuple[int, int]]:
    """By theorem: to how many trials it applies, and in how many its conclusion is false."""
    judged = verdict(run, samples=samples)
    found: dict[str, tuple[int, int]] = {}
    later: Trajectory | None = None
    for name, holds in judged.theorems.items():
        which = holds.nonzero()[:, 0]
        if not len(which):
            found[name] = (0, 0)
            continue
        if "every SVM feasible" in name:
            wrong = ~every_choice_feasible(run.data)[which]
        elif "path" in name:  # about a path, not about this run: the SVM that it goes to must exist
            data = run.data if run.v is None else replace(run.data, head=LinearHead(run.v[:, None]))
            tokens = run.tokens if run.v is not None else data.optimal_tokens()
            wrong = ~solve(att_svm(data, tokens), run.geometry).solved[which]
        else:
            if later is None:
                given = {key: value for key, value in options.items() if key != "init"}
                later = train(
                    run.data, run.geometry, steps=LONGER * STEPS, init={"W": run.W}, record=(), compile=False, **given
                )
            wrong = _against(name, run, later)[which]
        found[name] = (len(which), int(wrong.sum()))
    return found


def _against(name: str, run: Trajectory, later: Trajectory) -> torch.Tensor:
    """Does the long run contradict what the theorem says of the limit? (B,)"""
    data, tokens = run.data, later.tokens
    if "norm diverges" in name:
        # ‖W‖ need not grow at once, but ⟨W, W_mm⟩ does at every step: that is the proof.
        solution = solve(att_svm(data), run.geometry, tol=1e-10)
        return ((later.W - run.W) * solution.W).sum((1, 2)) < -1e-9 * run.geometry.norm(run.W) * solution.norm
    if "global direction" in name:
        # Wrong tokens that are locally optimal attract; others may still change.
        final = is_locally_optimal(data, tokens, solve(att_svm(data, tokens), run.geometry, tol=1e-10))
        return ~is_globally_optimal(data, tokens) & final
    solution = solve(att_svm(data, run.tokens), run.geometry, tol=1e-10)  # local direction: the tokens stay
    moved = (tokens != run.tokens).flatten(1).any(1)
    away = misalignment(solution.W, later.W) > misalignment(solution.W, run.W) + 1e-6
    return moved | away


def sweep(instances: int, seed: int, batch: int = 10, samples: int = 4) -> dict[str, tuple[int, int]]:
    """The totals by theorem."""
    rng = np.random.default_rng(seed)
    applies: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for _ in range(-(-instances // batch)):
        data = draw(rng, batch)
        run, options = judged_run(data, rng)
        # Assumption D enumerates all token choices: only where they are few.
        looked_into = samples if run.v is not None or data.T ** (data.n * data.K) <= CHOICES // 2 else 0
        for name, (count, bad) in contradictions(run, options, looked_into).items():
            applies[name] += count
            wrong[name] += bad
    return {name: (applies[name], wrong[name]) for name in sorted(applies)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.process_time()
    totals = sweep(arguments.instances, arguments.seed)
    print(f"{arguments.instances} instances, seed {arguments.seed}, {time.process_time() - started:.0f} CPU s\n")
    print("| theorem | applies to | contradicted by |\n|---|---|---|")
    for name, (count, bad) in totals.items():
        print(f"| {name} | {count} | {bad} |")


if __name__ == "__main__":
    main()
