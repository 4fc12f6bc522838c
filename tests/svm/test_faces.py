"""Faces of solutions: the point of least Frobenius norm, and distances, against Clarabel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from oracles import dense

from attsvm import AttsvmError, MarginProblem, att_svm, solve, sphere
from attsvm.svm import face_distance, face_point

NORMS = ["l1", "linf", "nuclear", "spectral"]


def least_by_clarabel(problem: MarginProblem, norm: str, bound: float, k: int, near: np.ndarray) -> float:
    """The distance of `near` from the W of norm at most `bound`."""
    import cvxpy as cp

    F, b, _, _ = (x[k] for x in dense(problem))
    W = cp.Variable(problem.shape)
    norms: dict[str, Any] = {
        "l1": lambda V: cp.norm1(cp.vec(V, order="C")),
        "linf": lambda V: cp.max(cp.abs(V)),
        "nuclear": cp.normNuc,
        "spectral": cp.sigma_max,
    }
    constraints = [F @ cp.vec(W, order="C") >= b, norms[norm](W) <= bound]
    value = cp.Problem(cp.Minimize(cp.sum_squares(W - near)), constraints).solve(solver=cp.CLARABEL)
    return math.sqrt(float(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", NORMS)
def test_the_least_point_of_the_face(norm: str) -> None:
    problem = att_svm(sphere(4, 5, 6, trials=3, seed=3))
    V = face_point(solve(problem, norm))
    solution = solve(problem, norm, tol=1e-12)
    assert (solution.efficiency(V) >= 1 - 1e-5).all()
    frobenius = torch.linalg.vector_norm(V, dim=(1, 2))
    assert (frobenius <= torch.linalg.vector_norm(solution.W, dim=(1, 2)) * (1 + 1e-4)).all()
    # With a little more norm allowed, less is possible: as little as the root of it.
    least = least_by_clarabel(problem, norm, solution.upper[0].item() * (1 + 1e-6), 0, np.zeros(problem.shape))
    assert least * (1 - 1e-5) <= frobenius[0].item() <= least * (1 + 2e-3)
    assert (face_distance(solution.W, solution) < 1e-4).all()
    assert (face_distance(3.0 * V, solution) < 1e-4).all()


def test_distances_from_a_face() -> None:
    """max(|w₁|, |w₂|, |w₃|) with w₁ ≥ 1: the face is the square of the other two."""
    problem = MarginProblem.from_rows([[1.0, 0, 0]])
    solution = solve(problem, "linf")
    assert torch.allclose(face_point(solution)[0, :, 0], torch.tensor([1.0, 0, 0], dtype=torch.float64), atol=1e-7)
    near = torch.tensor([[[1.0], [0.4], [-0.2]]], dtype=torch.float64)
    assert face_distance(near, solution).item() == pytest.approx(0, abs=1e-7)
    outside = torch.tensor([[[0.5], [1.0], [0.0]]], dtype=torch.float64)
    assert face_distance(outside, solution).item() == pytest.approx(0.5 / math.sqrt(2), abs=1e-6)
    # In ℓ1 two equal columns share their weight in any proportion.
    twice = solve(MarginProblem.from_rows([[1.0, 1.0]]), "l1")
    assert torch.allclose(face_point(twice)[0, :, 0], torch.full((2,), 0.5, dtype=torch.float64), atol=1e-7)
    assert face_distance(torch.tensor([[[0.9], [0.1]]]), twice).item() == pytest.approx(0, abs=1e-6)


def test_the_face_of_a_solution_at_its_corner() -> None:
    """|w₁| + |w₂| with −w₁ − w₂ ≥ 2 and 2w₁ − w₂ ≥ 1: the face is (−t, t − 2), 0 ≤ t ≤ 1/3, and `solve` may return the
    corner t = 0."""
    solution = solve(MarginProblem.from_rows([[-1.0, -1.0], [2.0, -1.0]], b=[2.0, 1.0]), "l1")
    assert face_point(solution)[0, :, 0].tolist() == pytest.approx([-1 / 3, -5 / 3], abs=1e-7)
    corner = torch.tensor([[0.0], [-2.0]])
    assert face_distance(corner, solution).item() == pytest.approx(0, abs=1e-7)
    assert face_point(solution, corner)[0, :, 0].tolist() == pytest.approx([0, -2], abs=1e-7)


def test_rows_at_an_obtuse_angle_are_projected_on() -> None:
    """Equal multipliers are an eigenvector of their products, and not that of the largest eigenvalue."""
    solution = solve(MarginProblem.from_rows([[0.0, -1.0], [1.0, -1.0]], [[-2.0, 0.0], [1.0, -1.0]]), "l1")
    assert face_point(solution)[0].flatten().tolist() == pytest.approx([0.5, -0.5, 0.5, 0.5], abs=1e-7)


def test_unique_solutions_infeasible_ones_and_other_norms() -> None:
    solution = solve(att_svm(sphere(3, 4, 5, trials=2)), "l2")
    assert torch.equal(face_point(solution), solution.W)
    infeasible = solve(MarginProblem.from_rows([[1.0, 0], [-1, 0]]), "l1")
    assert face_point(infeasible).isnan().all()
    with pytest.raises(AttsvmError, match="not for group:rows"):
        face_point(solve(att_svm(sphere(3, 4, 5)), "group:rows"))


def test_arrays_and_single_matrices_are_taken_and_other_shapes_refused() -> None:
    solution = solve(att_svm(sphere(2, 3, 3, trials=2, seed=1)), "linf")
    near = np.arange(9.0).reshape(3, 3)
    assert torch.equal(face_point(solution, near), face_point(solution, torch.from_numpy(near).expand(2, 3, 3)))
    assert torch.equal(face_distance(near, solution), face_distance(torch.from_numpy(near), solution))
    for call in (lambda: face_point(solution, near[:2]), lambda: face_distance(near[:2], solution)):
        with pytest.raises(AttsvmError, match=r"must have shape \(d, e\) = \(3, 3\)"):
            call()
