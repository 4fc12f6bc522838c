"""Look for a run with all conditions of a listed theorem true and its conclusion false.

    python benchmarks/sweep_theorems.py [--instances 10000] [--steps 20000] [--seed 0] [--workers 1] [--out FOLDER]

Random small instances of all kinds: sizes, losses, masks, integer data (ties and degenerate positions on purpose),
parameterizations, geometries, starts and step sizes. Every run is judged by `verdict`. Where a theorem on descent
applies, the same descent goes on for `--steps` more; where one on paths applies, the path is followed to ten thousand
times the norm of its limit; where one says that every SVM is feasible, all of them are solved. A line for each theorem:

    applies to        runs in which `verdict` finds all conditions true
    contradicted by   those whose later run, or whose path, is against the conclusion
    borne out by      those in which it is reached, or nearer than before
    open              the rest: nothing against it yet, nothing for it

A batch depends on the seed and on its own number alone. With `--out` its counts are written to `counts.jsonl` as it is
done, and every contradiction as an instance to `contradictions.jsonl`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm import AttsvmError, Gaussian, LinearHead, TokenData, Trajectory, att_svm, regularization_path, solve, train
from attsvm.diagnostics import (
    assumption_b_joint,
    is_globally_optimal,
    is_locally_optimal,
    lipschitz_constant,
    misalignment,
    sufficient_first_step,
    verdict,
)
from attsvm.objective import gradient
from attsvm.search import cone_start

BATCH = 20
STEPS = 25
"""Steps of the judged run."""
CHOICES = 64
"""Token choices up to which the feasibility of all of them is looked at."""
LOSSES = ("logistic", "correlation", "exponential")
KINDS = (("W", "l2"), ("W", "l2"), ("W", "l2"), ("W", "l1.5"), ("W", "l3"), ("KQ", "nuclear"), ("joint", "l2"))
SAMPLES, JOINT_SAMPLES, LOOKED_AGAIN = 4, 32, 300
"""Random W at which Assumption D, and Assumption B of the joint theorem, are looked at. The latter may pass at few W
where it is false: it is looked at again where a path is against its theorem."""
RADII = (10.0, 100.0, 1000.0, 10_000.0)
"""Of paths, relative to the norm of their limit."""
JOINT_ROUNDS = 10
"""Of Newton steps for v and W in turn, at each radius; a path that needs more is left open."""
NEAR = 1e-6
"""1 − correlation, or distance of directions, that counts as reached."""

REFUSED = "refused with a sentence"

Outcome = tuple[int, int, int, int]
"""Applies to, contradicted by, borne out by, open."""


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
    """The run that `verdict` judges, and the options of `train` with which it goes on."""
    parameterization, geometry = KINDS[rng.integers(len(KINDS))]
    options: dict[str, Any] = {"loss": str(rng.choice(LOSSES)) if parameterization != "joint" else "logistic"}
    options["normalize"] = bool(rng.random() < 0.15)
    options["lr"] = 0.1
    if not options["normalize"]:
        # Plain steps, as long as the theorems allow for every trial, or longer: queries are scaled so that L_W = 1.
        L_W = lipschitz_constant(data, options["loss"])
        scale = torch.where((L_W > 0) & L_W.isfinite(), L_W, 1.0).rsqrt()
        data = replace(data, Z=data.Z * scale[:, None, None, None])
        options["lr"] = float(rng.choice([0.999, 0.999, 0.5, 3.0]))
    kind = rng.random()
    init: Any = "zero" if parameterization == "W" else None
    if parameterization == "W" and kind < 0.25:
        init = Gaussian(float(rng.choice([0.1, 1.0, 5.0])), seed=1)
    elif parameterization == "W" and kind < 0.4:  # after a first step that is large enough for Theorem 6
        first = sufficient_first_step(data, options["loss"])
        fine = first.isfinite()
        if bool(fine.any()):
            data = data[fine]
            G = gradient(data, data.X.new_zeros(data.B, data.d, data.e), options["loss"])
            init = {"W": -first[fine][:, None, None] * G}
    elif parameterization == "W" and kind < 0.55:  # inside the cone of the optimal tokens, where there is one
        opt = data.optimal_tokens()
        fine = is_locally_optimal(data, opt, solve(att_svm(data, opt), geometry, tol=1e-12))
        with contextlib.suppress(AttsvmError):  # nothing to separate
            init = cone_start(data[fine], geometry=geometry, lr=options["lr"], loss=options["loss"])
            data = data[fine]
    record = ("W", "loss", "norm")
    run = train(data, geometry, parameterization, steps=STEPS, init=init, record=record, compile=False, **options)
    return run, options


def every_choice_feasible(data: TokenData) -> torch.Tensor:
    """(B,), for the choices that the masks allow."""
    choices = list(itertools.islice(itertools.product(range(data.T), repeat=data.n * data.K), CHOICES))
    tokens = torch.tensor(choices).reshape(-1, data.n, data.K).repeat(data.B, 1, 1)
    many = data[torch.arange(data.B).repeat_interleave(len(choices))]
    seen = many.mask.gather(-1, tokens[..., None])[..., 0]
    solved = solve(att_svm(many, torch.where(seen, tokens, many.optimal_tokens()))).solved
    return (solved | ~seen.flatten(1).all(1)).reshape(data.B, -1).all(1)


def later_runs(run: Trajectory, options: dict[str, Any], steps: int) -> tuple[Trajectory, Trajectory]:
    """The same descent after a tenth of the further steps, and after all."""
    early = train(run.data, run.geometry, steps=steps // 10, init={"W": run.W}, record=(), compile=False, **options)
    late = train(
        run.data, run.geometry, steps=steps - steps // 10, init={"W": early.W}, record=(), compile=False, **options
    )
    return early, late


def of_descent(name: str, run: Trajectory, early: Trajectory, late: Trajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """What the long run says of the theorem's limit: is it against it, and does it bear it out? (B,) each."""
    data, tokens, geometry = run.data, late.tokens, run.geometry
    if "norm diverges" in name:
        # ‖W‖ need not grow at once, but ⟨W, W_mm⟩ does at every step: that is the proof.
        solution = solve(att_svm(data), geometry, tol=1e-10)
        before, after = (((W - run.W) * solution.W).sum((1, 2)) for W in (early.W, late.W))
        against = torch.minimum(before, after - before) < -1e-9 * geometry.norm(late.W) * solution.norm
        return against, geometry.norm(late.W) > geometry.norm(early.W)
    chosen = data.optimal_tokens() if "global direction" in name else run.tokens
    solution = solve(att_svm(data, chosen), geometry, tol=1e-10)
    first, middle, last = (misalignment(solution.W, W) for W in (run.W, early.W, late.W))
    nearer = (last < middle) | (last < NEAR)
    if "global direction" in name:
        # Wrong tokens that are locally optimal attract; others may still change.
        final = is_locally_optimal(data, tokens, solve(att_svm(data, tokens), geometry, tol=1e-10))
        right = is_globally_optimal(data, tokens)
        return ~right & final, right & nearer
    moved = (tokens != chosen).flatten(1).any(1)  # local direction: the tokens stay
    return moved | (last > first + NEAR), ~moved & ((last < first) | (last < NEAR))


def of_path(run: Trajectory, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Does the path of these trials stay away from the direction of its limit, or does it go there? (B,) each.

    No method certifies global minimisers. For a joint path the local one of the run's tokens is followed too, and the
    better of the two counts at every radius.
    """
    data, joint = run.data[which], run.v is not None
    tokens = run.tokens[which] if joint else data.optimal_tokens()
    size = solve(att_svm(data, tokens), run.geometry, tol=1e-10).norm
    some = size > 0  # nothing to separate: W_mm = 0 has no direction
    size = torch.where(size.isfinite() & some, size, 1.0)
    data = replace(data, Z=data.Z * size[:, None, None, None])  # limits of norm 1
    given: dict[str, Any] = {"radii": RADII, "loss": run.loss, "steps_per_radius": JOINT_ROUNDS if joint else 100}
    path = regularization_path(data, run.geometry, run.parameterization, **given)
    distances, converged, better = [path.distance], path.converged, torch.zeros_like(path.loss, dtype=torch.bool)
    if joint:
        local = regularization_path(data, run.geometry, run.parameterization, tokens=tokens, **given)
        assert local.head_distance is not None
        better = local.loss <= path.loss
        distances, converged = [local.distance, local.head_distance], torch.where(better, local.converged, converged)
        other = (path.tokens != tokens).flatten(1).any(1)
        better |= ~other
    against, out = torch.zeros_like(which), which.clone()
    for distance in distances:
        nearer = (distance[-1] < 0.5 * distance[0]) | (distance[-1] < 1e-5)
        if joint:
            nearer &= better[-1]
        against[which] |= converged.all(0) & ~nearer & some
        out[which] &= (converged[-1] & nearer) | ~some
    return against, out


def judge(run: Trajectory, options: dict[str, Any], samples: int, steps: int) -> dict[str, list[torch.Tensor]]:
    """By theorem, for every trial (B,): does it apply, is the run against it, does the run bear it out?"""
    later: tuple[Trajectory, Trajectory] | None = None
    paths: dict[tuple[bool, ...], tuple[torch.Tensor, torch.Tensor]] = {}
    found = {}
    for name, holds in verdict(run, samples=samples).theorems.items():
        if not bool(holds.any()):
            against = out = torch.zeros_like(holds)
        elif "every SVM feasible" in name:
            out = every_choice_feasible(run.data)
            against = ~out
        elif "path" in name:
            which = tuple(holds.tolist())  # Theorem 2 and Theorem 1 of the other paper share their paths
            if which not in paths:
                paths[which] = of_path(run, holds)
            against, out = paths[which]
            if run.v is not None and bool(against.any()):
                b = assumption_b_joint(run.data[against], run.tokens[against], run.geometry, samples=LOOKED_AGAIN)
                holds[against.clone()] &= b.holds
        else:
            later = later or later_runs(run, options, steps)
            against, out = of_descent(name, run, *later)
        found[name] = [holds, holds & against, holds & out & ~against]
    return found


def instance(run: Trajectory, options: dict[str, Any], trial: int) -> dict[str, Any]:
    """All that is needed to look into one trial again."""
    data = run.data
    assert isinstance(data.head, LinearHead)
    parts = {"X": data.X, "Z": data.Z, "Y": data.Y, "mask": data.mask, "v": data.head.v, "W": run.recorded_W[1][0]}
    return {name: part[trial].tolist() for name, part in parts.items()} | {
        "geometry": run.geometry.name,
        "parameterization": run.parameterization,
        **options,
    }


def _samples(data: TokenData, joint: bool) -> int:
    """Assumption D enumerates all token choices: it is looked at only where they are few."""
    few = data.T ** (data.n * data.K) <= CHOICES // 2
    return JOINT_SAMPLES if joint else SAMPLES if few else 0


def one_batch(task: tuple[int, int, int, int]) -> tuple[int, dict[str, Outcome], list[dict[str, Any]]]:
    """Counts by theorem, and every contradiction, of one batch: (seed, number, size, further steps)."""
    seed, number, size, steps = task
    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, number])
    try:
        run, options = judged_run(draw(rng, size), rng)
        judged = judge(run, options, _samples(run.data, run.v is not None), steps)
    except AttsvmError as error:  # a sentence about numbers out of range is an answer too
        return (
            number,
            {REFUSED: (size, 0, 0, size)},
            [{"theorem": REFUSED, "seed": seed, "batch": number, "why": str(error)}],
        )
    counts: dict[str, Outcome] = {}
    wrong = []
    for name, parts in judged.items():
        applies, against, out = (int(part.sum()) for part in parts)
        counts[name] = (applies, against, out, applies - against - out)
        for trial in parts[1].nonzero()[:, 0].tolist():
            where = {"theorem": name, "seed": seed, "batch": number, "trial": trial}
            wrong.append(where | instance(run, options, trial))
    return number, counts, wrong


def results(tasks: list[tuple[int, int, int, int]], workers: int) -> Iterator[Any]:
    if workers == 1:
        yield from map(one_batch, tasks)
        return
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(one_batch, tasks)


def sweep(
    instances: int, seed: int, *, steps: int = 500, workers: int = 1, out: Path | None = None
) -> dict[str, Outcome]:
    """The totals by theorem."""
    sizes = [min(BATCH, instances - start) for start in range(0, instances, BATCH)]
    tasks = [(seed, number, size, steps) for number, size in enumerate(sizes)]
    totals: dict[str, Outcome] = {}
    started = time.monotonic()
    for number, counts, wrong in results(tasks, workers):
        for name, count in counts.items():
            a, b, c, d = (x + y for x, y in zip(count, totals.get(name, (0, 0, 0, 0))))
            totals[name] = (a, b, c, d)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            line = {"batch": number, "instances": sizes[number], "after": time.monotonic() - started, "counts": counts}
            for path, lines in ((out / "counts.jsonl", [line]), (out / "contradictions.jsonl", wrong)):
                with path.open("a") as file:
                    file.writelines(json.dumps(content) + "\n" for content in lines)
    return dict(sorted(totals.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=20_000, help="further steps of a run to which a theorem applies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for counts and contradictions")
    given = parser.parse_args()
    started = time.monotonic()
    totals = sweep(given.instances, given.seed, steps=given.steps, workers=given.workers, out=given.out)
    seconds = time.monotonic() - started
    print(f"{given.instances} instances, seed {given.seed}, {given.steps:,} further steps, {seconds:.0f} s\n")
    print("| theorem | applies to | contradicted by | borne out by | open |\n|---|---|---|---|---|")
    for name, counts in totals.items():
        print(f"| {name} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
