"""Exact vertices of ℓ1 and ℓ∞ problems, and solutions that are certainly the only ones, checked in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import dense

from attsvm import AttsvmError, MarginProblem, TokenData, att_svm, gen_svm, solve, sphere
from attsvm.svm import Vertex, vertices


def exact_rows(problem: MarginProblem, k: int) -> list[list[Fraction]]:
    """Rows as vectors of length d·e, without any rounding."""
    a = [[Fraction(x) for x in row] for row in problem.A[k].flatten(0, 1).tolist()]
    if problem.A_low is not None:
        low = problem.A_low[k].flatten(0, 1).tolist()
        a = [[x + Fraction(y) for x, y in zip(row, more)] for row, more in zip(a, low)]
    z = [[Fraction(x) for x in row] for row in problem.Z[k].tolist()]
    R = problem.A.shape[2]
    return [[x * y for x in row for y in z[c // R]] for c, row in enumerate(a)]


def assert_optimal(problem: MarginProblem, k: int, norm: str, vertex: Vertex) -> None:
    rows = exact_rows(problem, k)
    b = [Fraction(x) for x in problem.b[k].flatten().tolist()]
    equal, there = problem.equality[k].flatten().tolist(), problem.present[k].flatten().tolist()
    W = [w for row in vertex.W for w in row]
    for c, row in enumerate(rows):
        value = sum(x * w for x, w in zip(row, W))
        assert not there[c] or (value == b[c] if equal[c] else value >= b[c])
        assert equal[c] or vertex.multipliers[c] >= 0
    U = [abs(sum(m * row[j] for m, row in zip(vertex.multipliers, rows))) for j in range(len(W))]
    assert (max if norm == "linf" else sum)(abs(w) for w in W) == vertex.norm
    assert (sum if norm == "linf" else max)(U) == 1
    assert sum(m * x for m, x in zip(vertex.multipliers, b)) == vertex.norm


def problems() -> dict[str, MarginProblem]:
    rng = np.random.default_rng(3)
    X, Z = rng.integers(-2, 3, size=(8, 3, 4, 3)), rng.integers(-2, 3, size=(8, 3, 3))
    data = TokenData.cross(rng.normal(size=(3, 2, 4, 3)), rng.normal(size=(3, 2, 3)))
    selected = torch.zeros_like(data.mask)
    selected[..., 0] = True
    selected[:, 0, :, 1] = True
    A, V = rng.integers(-1, 2, size=(40, 10, 3)), rng.integers(-1, 2, size=(40, 10, 3))
    value = np.einsum("bnd,bde,bne->bn", A, rng.integers(-2, 3, size=(40, 3, 3)), V)
    A = A * np.where(value < 0, -1, 1)[..., None]
    tied = rng.random(value.shape) < 0.2 * (np.arange(40) < 20)[:, None]
    return {
        "degenerate": MarginProblem.from_rows(
            A.astype(float), V.astype(float), b=np.where(tied, 0.0, 1.0), equality=tied, present=tied | (value != 0)
        ),
        "random": att_svm(sphere(4, 5, 4, trials=6, seed=1)),
        "integers": att_svm(TokenData.cross(X.astype(float), Z.astype(float)), np.zeros(3, dtype=int)),
        "equalities": gen_svm(data, selected),
    }


@pytest.mark.parametrize("norm", ["l1", "linf"])
@pytest.mark.parametrize("kind", ["random", "integers", "degenerate", "equalities"])
def test_vertices_are_optimal_in_fractions(kind: str, norm: str) -> None:
    problem = problems()[kind]
    solution = solve(problem, norm)
    unique = solution.unique
    for k, vertex in enumerate(vertices(solution)):
        if vertex is None:
            assert bool(solution.infeasible[k]) or solution.norm[k].item() == 0
            continue
        assert_optimal(problem, k, norm, vertex)
        assert float(vertex.norm) == pytest.approx(solution.norm[k].item(), rel=2e-9)
        assert vertex.unique or not bool(unique[k])
        if bool(unique[k]):  # then this is the W that was found
            W = torch.tensor([[float(w) for w in row] for row in vertex.W], dtype=torch.float64)
            torch.testing.assert_close(solution.W[k], W, rtol=1e-6, atol=1e-6 * solution.norm[k].item())
    if kind == "random":
        assert solution.unique.all()


def spread(problem: MarginProblem, k: int, norm: str, bound: float) -> float:
    """The largest extent of {W feasible, ‖W‖ ≤ bound} along a few directions, by HiGHS."""
    F, b, _, _ = (x[k] for x in dense(problem))
    D = F.shape[1]
    rng = np.random.default_rng(0)
    # W = P − M
    rows, right = [np.hstack((-F, F))], [-b]
    if norm == "l1":
        rows.append(np.ones((1, 2 * D)))
        right.append(np.array([bound]))
    limits = (0, None) if norm == "l1" else (0, 2 * bound)
    if norm == "linf":
        eye = np.eye(D)
        rows += [np.hstack((eye, -eye)), np.hstack((-eye, eye))]
        right += [np.full(2 * D, bound)]
    found = []
    for _ in range(4):
        c = rng.normal(size=D)
        ends = [
            scipy.optimize.linprog(
                np.concatenate((s * c, -s * c)), np.vstack(rows), np.concatenate(right), bounds=limits
            ).fun
            for s in (1, -1)
        ]
        found.append(-(ends[0] + ends[1]) / np.linalg.norm(c))
    return max(found)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_uniqueness_agrees_with_the_extent_of_the_face(norm: str) -> None:
    """With a norm larger by 1e-7 a unique solution leaves little room, a face a lot."""
    problem = att_svm(sphere(3, 3, 3, trials=4, seed=2))
    flat = MarginProblem.from_rows([[1.0, 1.0, 0.0]])  # w₁ + w₂ ≥ 1: a face in both norms
    solution, of_flat = solve(problem, norm), solve(flat, norm)
    for k in range(4):
        room = spread(problem, k, norm, solution.norm[k].item() * (1 + 1e-7)) / solution.norm[k].item()
        assert bool(solution.unique[k]) == (room < 1e-3)
    assert not of_flat.unique.any()
    assert spread(flat, 0, norm, of_flat.norm[0].item() * (1 + 1e-7)) > 0.1
    (vertex,) = vertices(of_flat)
    assert vertex is not None
    assert not vertex.unique
    assert_optimal(flat, 0, norm, vertex)


def test_other_norms_have_no_vertices() -> None:
    problem = MarginProblem.from_rows([[1.0, 2.0]])
    with pytest.raises(AttsvmError, match="vertices are known for l1 and linf problems, but this one is in l2"):
        vertices(solve(problem, "l2"))
    assert vertices(solve(MarginProblem.from_rows([[1.0], [-1.0]]), "l1")) == [None]


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "group:rows"])
def test_what_is_not_known_to_be_unique(norm: str) -> None:
    assert not solve(MarginProblem.from_rows([[1.0, 0.0]], [[1.0, 0.0]]), norm).unique.any()
