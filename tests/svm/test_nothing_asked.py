"""Problems that ask nothing, or of the wrong things: W = 0, or one sentence."""

import math

import numpy as np
import pytest
import torch

import attsvm
from attsvm import AttsvmError, MarginProblem, TokenData, att_svm, solve, sphere
from attsvm.svm import (
    differentiable,
    face_distance,
    face_point,
    gen_svm,
    head_svm,
    margin_efficiency,
    per_head_svm,
    solve_rank,
)

NORMS = ["l1", "l2", "linf", "nuclear", "spectral"]


@pytest.fixture
def mixed() -> TokenData:
    """In the first trial every query sees one token."""
    mask = torch.ones(2, 2, 1, 3, dtype=torch.bool)
    mask[0, :, :, 1:] = False
    torch.manual_seed(0)
    return TokenData.cross(torch.randn(2, 2, 3, 3).double(), torch.randn(2, 2, 1, 3).double(), mask=mask)


@pytest.mark.parametrize("norm", NORMS)
def test_an_instance_that_asks_nothing_leaves_the_others_alone(mixed: TokenData, norm: str) -> None:
    solution, alone = solve(att_svm(mixed, [0, 0]), norm), solve(att_svm(mixed[1:], [0, 0]), norm)
    torch.testing.assert_close(solution.efficiency(solution.W), torch.ones(2).double(), rtol=1e-6, atol=0)
    assert solution.efficiency(torch.ones(3, 3).double())[0] == 1  # any W is a solution of nothing, at any scale
    point = face_point(solution)
    assert (point[0] == 0).all()
    torch.testing.assert_close(point[1:], face_point(alone))
    distance = face_distance(solution.W, solution)
    assert distance[0] == 0
    assert distance[1] < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_without_rows_everything_is_zero(norm: str) -> None:
    single = att_svm(TokenData.cross(np.ones((2, 1, 3)), np.ones((2, 3))), [0, 0])
    for problem in (single, MarginProblem.from_rows(np.zeros((0, 2)))):
        solution = solve(problem, norm)
        assert (solution.W == 0).all()
        assert problem.least_margin(solution.W) == math.inf
        assert margin_efficiency(solution.W, solution) == 1
        assert (face_point(solution) == 0).all()
    assert (solve_rank(single, 1).W == 0).all()


@pytest.mark.parametrize("norm", ["schatten1", "nuclear", "spectral", "schatten3", "l2"])
def test_of_vectors_all_matrix_norms_have_the_derivatives_of_l2(norm: str) -> None:
    A = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]]], dtype=torch.float64, requires_grad=True)
    (W, size) = differentiable(MarginProblem.from_rows(A), norm)
    (W.sum() + size.sum()).backward()
    squares = A.detach().square().sum(-1, keepdim=True)
    expected = 1 / squares - 2 * A.detach() * A.detach().sum(-1, keepdim=True) / squares**2  # of W = A/|A|²
    expected -= A.detach() / squares**1.5
    torch.testing.assert_close(A.grad, expected, rtol=1e-6, atol=1e-9)


def test_derivatives_of_a_batch_with_an_instance_that_asks_nothing() -> None:
    A = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]]], dtype=torch.float64, requires_grad=True)
    shown = torch.tensor([[False], [True]])
    for norm in ("nuclear", "l1.5", "l3", "schatten3"):
        A.grad = None
        problem = MarginProblem.from_rows(A, present=shown)
        differentiable(problem, norm)[0].sum().backward()
        assert A.grad is not None
        assert A.grad.isfinite().all()
        assert (A.grad[0] == 0).all()
        assert (A.grad[1] != 0).any()


def test_things_that_are_no_problem_are_refused() -> None:
    data = sphere(2, 3, 4)
    for call in (lambda: solve_rank(data, 1), lambda: differentiable(data)):  # type: ignore[arg-type]
        with pytest.raises(AttsvmError, match=r"must be a MarginProblem.*state one, such as att_svm\(data\)"):
            call()
    for call in (lambda: gen_svm(3, None), lambda: head_svm(3), lambda: per_head_svm(3, None)):  # type: ignore[arg-type]
        with pytest.raises(AttsvmError, match="data must be TokenData"):
            call()
    good = MarginProblem.from_rows(np.ones((1, 2)))
    with pytest.raises(AttsvmError, match="equality must be boolean"):
        MarginProblem(good.A, good.Z, good.b, good.b, good.present)


def test_float32_data_have_basins_and_polar_factors_without_noise() -> None:
    data = sphere(2, 3, 3, trials=1).to(dtype=torch.float32)
    assert attsvm.basins(data, starts=2, steps=5).margin.dtype == torch.float64
    assert repr(attsvm.basins(data[[]], starts=2, steps=5)) == "Basins(0 problems)"
    for rule in ("muon", "spectral"):
        exact = attsvm.train(sphere(3, 4, 5, trials=3, seed=1), steps=30, rule=rule, compile=False)
        for compile_ in (False, True):
            narrow = sphere(3, 4, 5, trials=3, seed=1).to(dtype=torch.float32)
            run = attsvm.train(narrow, steps=30, rule=rule, compile=compile_)
            values = [torch.linalg.svdvals(W.double()) for W in (run.W, exact.W)]
            torch.testing.assert_close(*values, rtol=1e-3, atol=1e-3)
