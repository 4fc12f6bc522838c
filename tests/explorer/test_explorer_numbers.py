"""The explorer's numbers against the library: its solver and its training, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attsvm
from attsvm.dynamics import Adam, Rule, Steepest

NODE = shutil.which("node")
NORMS = ("l1", "l1.5", "l2", "l3", "linf", "nuclear", "spectral")
STRICT = ("l1.5", "l2", "l3")
"""Norms whose optimum is unique for every shape of W."""
RULES: dict[str, tuple[Rule | str | None, Any, float]] = {
    "ngd": ("gd", None, 0.05),
    "gd": (Steepest(normalize=False), None, 1.0),
    "sign": ("sign", None, 0.02),
    "adam": (Adam(beta2=0.95), None, 0.02),
    "spectral": ("spectral", None, 0.05),
    "muon": ("muon", None, 0.02),
    "mirror1.5": (None, 1.5, 0.05),
    "mirror3": (None, 3.0, 0.2),
    "coordinate": (Steepest(attsvm.Lp(1)), None, 0.05),
    "rankone": (Steepest(attsvm.Nuclear()), None, 0.05),
}
"""The library's name of every rule of the page: rule, geometry, step size."""

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: the explorer's JavaScript cannot run")


def answers(asked: dict[str, Any]) -> dict[str, Any]:
    assert NODE is not None
    script = Path(__file__).with_name("answer.mjs")
    done = subprocess.run([NODE, str(script)], input=json.dumps(asked), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def drawn(
    shape: tuple[int, int], count: int, seed: int, grid: float = 0.01
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, queries and answers of `count` problems of n sequences of T tokens; the page's grid is 0.01."""
    n, T = shape
    rng = np.random.default_rng(seed)
    X, z = (np.round(rng.uniform(-2, 2, (count, n, *more)) / grid) * grid for more in ((T, 2), (2,)))
    return X, z, rng.integers(T, size=(count, n))


def asked(X: np.ndarray, z: np.ndarray, answer: np.ndarray, fixed: bool, **more: Any) -> dict[str, Any]:
    rows = zip(X.tolist(), z.tolist(), answer.tolist())
    return {"fixed": fixed, "sequences": [{"tokens": x, "query": q, "answer": a} for x, q, a in rows], **more}


def library_data(X: np.ndarray, z: np.ndarray, fixed: bool, head: Any = None) -> attsvm.TokenData:
    return attsvm.TokenData.cross(X, np.ones((*X.shape[:2], 1)) if fixed else z, head=head)


def padded(problems: list[dict[str, Any]], fixed: bool) -> attsvm.MarginProblem:
    """Problems of n sequences of different lengths as one batch: missing tokens are masked."""
    B, n, T = len(problems), len(problems[0]["sequences"]), 6
    X, z, mask = np.zeros((B, n, T, 2)), np.ones((B, n, 1 if fixed else 2)), np.zeros((B, n, T), dtype=bool)
    answer = np.zeros((B, n, 1), dtype=int)
    for b, problem in enumerate(problems):
        for i, one in enumerate(problem["sequences"]):
            count = len(one["tokens"])
            X[b, i, :count], mask[b, i, :count], answer[b, i] = one["tokens"], True, one["answer"]
            if not fixed:
                z[b, i] = one["query"]
    return attsvm.att_svm(attsvm.TokenData.cross(X, z, mask=mask), answer)


@pytest.mark.parametrize(
    ("n", "fixed", "grid"), [(1, False, 0.01), (2, False, 0.01), (3, False, 0.01), (3, True, 0.01), (2, False, 0.5)]
)
def test_the_solver_finds_the_librarys_optimum(n: int, fixed: bool, grid: float) -> None:
    """On the coarse grid tokens coincide, queries vanish, and more rows than unknowns are tight."""
    problems = []
    for T in (2, 3, 4, 6):
        problems += [asked(*one, fixed) for one in zip(*drawn((n, T), 6, 10 * T + n + fixed, grid))]
    count = len(problems)
    found = answers({"problems": [problem | {"norm": norm} for norm in NORMS for problem in problems]})["solved"]
    batch = padded(problems, fixed)
    infeasible = 0
    for k, norm in enumerate(NORMS):
        solution = attsvm.solve(batch, norm)
        mine = found[k * count : (k + 1) * count]
        feasible = np.array([one["feasible"] for one in mine])
        assert feasible.tolist() == [str(status) == "solved" for status in solution.status]
        assert [str(status) for status in solution.status].count("infeasible") == int((~feasible).sum())
        infeasible += int((~feasible).sum())
        W = np.array([one["W"] or np.zeros(2 if fixed else 4) for one in mine]).reshape(count, *batch.shape)
        lower, upper = (np.array([one[end] for one in mine], dtype=float)[feasible] for end in ("lower", "upper"))
        norms = solution.norm.numpy()[feasible]
        assert (lower <= upper * (1 + 1e-12)).all()
        np.testing.assert_allclose(lower, norms, rtol=1e-6)
        np.testing.assert_allclose(upper, norms, rtol=1e-6)
        np.testing.assert_allclose(solution.geometry.norm(torch.tensor(W)).numpy()[feasible], upper, rtol=1e-9)
        np.testing.assert_allclose(solution.efficiency(torch.tensor(W)).numpy()[feasible], 1, rtol=1e-6)
        if norm in STRICT and grid == 0.01:  # ℓ3 hardly determines an entry that is 0
            away = np.linalg.norm(W - solution.W.numpy(), axis=(1, 2))[feasible]
            assert (away < 1e-6 * np.linalg.norm(W, axis=(1, 2))[feasible]).all()
    assert count * len(NORMS) >= 160
    assert len(NORMS) <= infeasible < 0.7 * count * len(NORMS)


@pytest.mark.parametrize("fixed", [False, True])
def test_training_takes_the_librarys_steps(fixed: bool) -> None:
    """From 0, and one step from weights so large that every softmax weight underflows but the top one's."""
    X, z, answer = drawn((3, 4), 2, seed=7)
    v = np.array([[0.8, -0.5], [0.3, 1.1]])  # a linear head stands for the tokens' scores
    far = np.random.default_rng(1).normal(size=(2, 2, 1 if fixed else 2)) * 1e4
    starts = {"zero": np.zeros_like(far), "far": far}
    steps = {"zero": 60, "far": 1}
    runs = []
    for name, (_, _, lr) in RULES.items():
        for start, W in starts.items():
            for b in range(len(X)):
                run = asked(X[b], z[b], answer[b], fixed, rule=name, lr=lr, steps=steps[start], W=W[b].ravel().tolist())
                for sequence, scores in zip(run["sequences"], (X[b] @ v[b]).tolist()):
                    sequence["scores"] = scores
                runs.append(run)
    trained = iter(answers({"runs": runs})["trained"])
    data = library_data(X, z, fixed, head=v)
    for name, (rule, geometry, lr) in RULES.items():
        for start, first in starts.items():
            options: dict[str, Any] = {"steps": steps[start], "lr": lr, "at": [steps[start]], "compile": False}
            W = attsvm.train(data, geometry, rule=rule, init={"W": torch.tensor(first)}, **options).W
            for b in range(len(X)):
                mine = np.reshape(next(trained), first[b].shape)
                size = np.linalg.norm(W[b]) if start == "zero" else lr
                assert np.linalg.norm(mine - W[b].numpy()) < 1e-8 * size, (name, start, b)


def test_every_optimizer_reaches_the_margin_of_its_norm_on_the_first_page() -> None:
    """What the page promises of its first example. The library judges W; plain gradient descent is slow, as it says."""
    runs = [
        {"example": "two", "rule": name, "lr": lr, "steps": 20000, "W": [0, 0, 0, 0]}
        for name, (_, _, lr) in RULES.items()
    ]
    found = answers({"runs": runs})
    example = found["examples"]["two"]["sequences"]
    X, z = (np.array([[one[key] for one in example]]) for key in ("tokens", "query"))
    problem = attsvm.att_svm(library_data(X, z, fixed=False), np.array([[[one["answer"]] for one in example]]))
    solutions = {norm: attsvm.solve(problem, norm) for norm in NORMS}
    own = {"ngd": "l2", "gd": "l2", "sign": "linf", "adam": "linf", "spectral": "spectral", "muon": "spectral"}
    own |= {"mirror1.5": "l1.5", "mirror3": "l3", "coordinate": "l1", "rankone": "nuclear"}
    for name, W in zip(RULES, found["trained"]):
        shares = {
            norm: one.efficiency(torch.tensor(W).double().reshape(2, 2)).item() for norm, one in solutions.items()
        }
        assert max(shares, key=lambda norm: shares[norm]) == own[name], (name, shares)
        assert shares[own[name]] > (0.95 if name == "gd" else 0.99), (name, shares)
        assert max(shares.values()) <= 1
