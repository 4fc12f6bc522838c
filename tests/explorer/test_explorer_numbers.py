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


def drawn(shape: tuple[int, int], count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, queries and answers of `count` problems of n sequences of T tokens, as coarse as the page writes them."""
    n, T = shape
    rng = np.random.default_rng(seed)
    X, z = rng.uniform(-2, 2, (count, n, T, 2)).round(2), rng.uniform(-2, 2, (count, n, 2)).round(2)
    return X, z, rng.integers(T, size=(count, n))


def asked(X: np.ndarray, z: np.ndarray, answer: np.ndarray, fixed: bool, **more: Any) -> dict[str, Any]:
    rows = zip(X.tolist(), z.tolist(), answer.tolist())
    return {"fixed": fixed, "sequences": [{"tokens": x, "query": q, "answer": a} for x, q, a in rows], **more}


def library_data(X: np.ndarray, z: np.ndarray, fixed: bool, head: Any = None) -> attsvm.TokenData:
    return attsvm.TokenData.cross(X, np.ones((*X.shape[:2], 1)) if fixed else z, head=head)


def test_the_solver_finds_the_librarys_optimum() -> None:
    batches = []
    shapes = [(1, 2), (2, 3), (2, 6), (3, 4)]
    for seed, (shape, fixed) in enumerate([(shape, fixed) for shape in shapes for fixed in (False, True)]):
        batches.append((*drawn(shape, 8, seed), fixed))
    problems = [
        asked(X[b], z[b], answer[b], fixed, norm=norm)
        for norm in NORMS
        for X, z, answer, fixed in batches
        for b in range(len(X))
    ]
    assert len(problems) > 400
    found = iter(answers({"problems": problems})["solved"])
    infeasible = 0
    for norm in NORMS:
        for X, z, answer, fixed in batches:
            solution = attsvm.solve(attsvm.att_svm(library_data(X, z, fixed), answer[:, :, None]), norm)
            for b, status in enumerate(solution.status):
                mine = next(found)
                assert mine["feasible"] == (str(status) == "solved"), (norm, b, status)
                if not mine["feasible"]:
                    infeasible += 1
                    assert mine["W"] is None
                    continue
                norm_of = solution.norm[b].item()
                assert mine["lower"] <= mine["upper"] * (1 + 1e-12)
                assert mine["lower"] == pytest.approx(norm_of, rel=1e-6)
                assert mine["upper"] == pytest.approx(norm_of, rel=1e-6)
                W = torch.tensor(mine["W"], dtype=torch.float64).reshape(solution.W[b].shape)
                assert float(solution.geometry.norm(W)) == pytest.approx(mine["upper"], rel=1e-9)
                assert solution.efficiency(W)[b].item() == pytest.approx(1, abs=1e-6)
                if norm in STRICT:
                    assert float((W - solution.W[b]).norm() / solution.W[b].norm()) < 1e-6, (norm, X[b], z[b])
    assert 50 < infeasible < len(problems) / 2


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
