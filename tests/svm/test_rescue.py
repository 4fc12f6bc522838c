"""What happens where a factorisation fails, and problems of equalities alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import Lp, MarginProblem, Status, att_svm, solve, sphere
from attsvm.svm._certify import Answer
from attsvm.svm._matched import matched
from attsvm.svm._rows import Iterates, System
from attsvm.svm._solve import prepare

SMOOTH = ["l1.5", "l2", "l3", "schatten1.5", "schatten3"]
CORNERED = ["l1", "linf", "nuclear", "spectral", "group:rows", "group-max:rows"]


@pytest.mark.parametrize("norm", SMOOTH + CORNERED)
@pytest.mark.parametrize("fails", ["first", "every third"])
def test_a_failed_factorisation_costs_no_digits(norm: str, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors that are said not to exist are asked for again, of a matrix that is shifted a little."""
    problem = att_svm(sphere(3, 4, 4, trials=3, seed=1))
    expected = solve(problem, norm)
    plain, calls = torch.linalg.cholesky_ex, [0]

    def failing(*arguments: Any, **options: Any) -> Any:
        L, info = plain(*arguments, **options)
        calls[0] += 1
        if (calls[0] == 1) if fails == "first" else (calls[0] % 3 == 0):
            return L, torch.ones_like(info)
        return L, info

    monkeypatch.setattr(torch.linalg, "cholesky_ex", failing)
    for module in ("_conic", "_conic_step", "_nuclear"):
        monkeypatch.setattr(f"attsvm.svm.{module}.cholesky_ex", failing)
    solution = solve(problem, norm)
    assert calls[0] > 1
    assert solution.solved.all()
    np.testing.assert_allclose(solution.norm, expected.norm, rtol=2e-9)


@pytest.mark.parametrize("norm", SMOOTH + CORNERED)
def test_repeated_rows_change_nothing(norm: str) -> None:
    """Rows that occur three times make every Newton matrix singular."""
    problem = att_svm(sphere(2, 4, 4, trials=3, seed=2))
    A, Z = problem.A.flatten(1, 2), problem.Z.repeat_interleave(problem.A.shape[2], 1)
    repeated = MarginProblem.from_rows(A.repeat(1, 3, 1), Z.repeat(1, 3, 1))
    once, often = solve(MarginProblem.from_rows(A, Z), norm), solve(repeated, norm)
    assert often.solved.all()
    np.testing.assert_allclose(often.norm, once.norm, rtol=2e-9)


@pytest.mark.parametrize("norm", SMOOTH + CORNERED)
def test_equalities_alone_take_few_steps(norm: str) -> None:
    rng = np.random.default_rng(0)
    A, Z, b = rng.normal(size=(4, 5, 4)), rng.normal(size=(4, 5, 4)), rng.normal(size=(4, 5))
    problem = MarginProblem.from_rows(A, Z, b=b, equality=np.ones((4, 5), dtype=bool))
    solution = solve(problem, norm)
    assert solution.solved.all()
    assert (solution.iterations <= 20).all()
    value = torch.einsum("bnd,bde,bne->bn", torch.as_tensor(A), solution.W, torch.as_tensor(Z))
    np.testing.assert_allclose(value, b, atol=1e-9)


@pytest.mark.parametrize("tokens", [2, 6], ids=["narrow", "wide"])
@pytest.mark.parametrize("broken", ["_iterate", "solve_groups"])
def test_what_one_kind_of_cone_leaves_open_the_other_solves(
    tokens: int, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that are vectors have two methods, and which is the first depends on the number of rows."""
    problem = att_svm(sphere(5, tokens, 2, trials=8, seed=3))
    expected = solve(problem, "group:rows")
    assert expected.solved.any()

    def hopeless(system: System, *_: Any) -> Iterates:
        rows = system.rows
        return Iterates(torch.zeros(rows.B, rows.d, rows.e).double(), system.b * 0, torch.zeros(rows.B).long())

    monkeypatch.setattr(f"attsvm.svm._conic.{broken}", hopeless)
    for method in ("stretched", "matched", "active"):
        monkeypatch.setattr(f"attsvm.svm._solve.{method if method == 'matched' else 'solve_' + method}", hopeless)
    solution = solve(problem, "group:rows")
    np.testing.assert_array_equal(solution.solved, expected.solved)
    np.testing.assert_allclose(solution.norm[solution.solved], expected.norm[expected.solved], rtol=2e-9)


@pytest.mark.parametrize("norm", SMOOTH + CORNERED)
def test_equalities_that_agree_but_for_rounding_are_solved_in_every_norm(norm: str) -> None:
    """Eight values of a 2 × 2 matrix, such as softmax ratios give; in the second half one value is wrong."""
    rng, good = np.random.default_rng(1), 20
    A, Z, W = (rng.normal(size=(2 * good, *shape)) for shape in ((8, 2), (8, 2), (2, 2)))
    b = np.einsum("bnd,bde,bne->bn", A, W, Z)
    b[good:, 3] += 1e-3
    solution = solve(MarginProblem.from_rows(A, Z, b=b, equality=True), norm)
    assert [str(status) for status in solution.status] == ["solved"] * good + ["infeasible"] * good
    np.testing.assert_allclose(solution.W[:good], W[:good], atol=1e-9)


def test_a_w_that_violates_equalities_does_not_replace_one_that_meets_them() -> None:
    problem = MarginProblem.from_rows([[1.0, 0.0], [0.0, 1.0]], b=[1.0, 2.0], equality=True)
    good = solve(problem, "linf")
    zero = torch.zeros(1, dtype=torch.long)

    def answer(W: torch.Tensor, violation: float) -> Answer:
        return Answer(
            W, good.multipliers.flatten(1), good.lower, Lp(math.inf).norm(W), torch.full((1, 2), violation), zero, zero
        )

    for first, second in (
        (answer(good.W, 0.0), answer(0 * good.W, 2.0)),
        (answer(0 * good.W, 2.0), answer(good.W, 0.0)),
    ):
        first.improve(second, 1e-9)
        assert first.upper.item() == 2
        assert first.status.item() == Status.SOLVED


def test_multipliers_without_a_scale_are_matched_by_none() -> None:
    """b'λ = 0: there is nothing to divide by."""
    system, _, _, _ = prepare(MarginProblem.from_rows([[1.0, 0.0], [0.0, 1.0]], b=1.0, equality=True), Lp(math.inf))
    lam = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    run = Iterates(torch.zeros(1, 2, 1, dtype=torch.float64), lam, torch.zeros(1, dtype=torch.long))
    blocks = Lp(math.inf).blocks(2, 1)
    assert blocks is not None
    assert matched(system, blocks, run.W, run.lam).lam.tolist() == [[0, 0]]
