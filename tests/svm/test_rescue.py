"""What happens where a factorisation fails, and problems of equalities alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import Lp, MarginProblem, Status, att_svm, solve, sphere
from attsvm.geometry import Schatten
from attsvm.svm._certify import Answer
from attsvm.svm._matched import matched
from attsvm.svm._rows import Iterates, System
from attsvm.svm._solve import prepare

SMOOTH = ["l1.5", "l2", "l3", "schatten1.5", "schatten3"]
CORNERED = ["l1", "linf", "nuclear", "spectral", "group:rows", "group-max:rows"]


@pytest.mark.parametrize("norm", SMOOTH + CORNERED)
@pytest.mark.parametrize("fails", ["first", "every third"])
def test_a_failed_factorisation_costs_no_digits(norm: str, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors that do not exist are asked for again, of a matrix that is shifted a little."""
    problem = att_svm(sphere(3, 4, 4, trials=3, seed=1))
    expected = solve(problem, norm)
    plain, calls = torch.linalg.cholesky_ex, [0]

    def failing(*arguments: Any, **options: Any) -> Any:
        L, info = plain(*arguments, **options)
        calls[0] += 1
        if (calls[0] == 1) if fails == "first" else (calls[0] % 3 == 0):
            return torch.zeros_like(L), torch.ones_like(info)
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


@pytest.mark.parametrize("norm", CORNERED)
def test_rows_may_ask_for_amounts_many_decades_apart(norm: str) -> None:
    """With b of 10⁻⁶⁰ rows ask for no more than their sign: so does the same problem with b of 10⁻¹³."""
    rng = np.random.default_rng(0)
    A, Z = rng.normal(size=(4, 12, 4)), rng.normal(size=(4, 12, 3))
    b = 10.0 ** rng.uniform(-60, 0, size=(4, 12))
    b[:, 0] = 1
    solution, less = (solve(MarginProblem.from_rows(A, Z, b=x), norm) for x in (b, b.clip(1e-13)))
    assert solution.solved.all()
    np.testing.assert_allclose(solution.norm, less.norm, rtol=1e-8)
    value = torch.einsum("bnd,bde,bne->bn", torch.as_tensor(A), solution.W, torch.as_tensor(Z))
    assert (value.numpy() > 0).all()


@pytest.mark.parametrize("norm", [Lp(1 + 1e-10), Lp(1.0001), Lp(1e12), Schatten(1e10)])
def test_exponents_near_1_and_infinity_are_bracketed_by_the_corner(norm: Lp | Schatten) -> None:
    """‖W‖_p is between ‖W‖_1 and D^(1/p − 1)‖W‖_1, and between ‖W‖_∞ and D^(1/p)‖W‖_∞."""
    rng = np.random.default_rng(0)
    problem = MarginProblem.from_rows(rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5, 3)))
    solution = solve(problem, norm, max_iterations=30)
    least = 12 ** min(norm.p - 1, 1 / norm.p) - 1
    assert (solution.gap <= 1.1 * least + 1e-9).all()
    assert solution.solved.all() or least > 1e-9
    corner = solve(problem, type(norm)(1 if norm.p < 2 else math.inf)).norm
    assert (corner <= solution.upper * (1 + least) * (1 + 1e-9)).all()
    assert (solution.lower <= corner * (1 + least) * (1 + 1e-9)).all()


@pytest.mark.parametrize("geometry", [Schatten(1.5), Schatten(3)])
def test_the_hessian_of_one_bad_matrix_leaves_the_others(geometry: Schatten) -> None:
    W = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = geometry.hessian(W)
    W[1, 2, 0] = math.inf
    found = geometry.hessian(W)
    assert found[1].isnan().any()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_groups_of_single_entries_end_in_vertices() -> None:
    """They are ℓ1 and ℓ∞: a solution is known to rounding, however rough the tolerance."""
    rng = np.random.default_rng(0)
    problem = MarginProblem.from_rows(rng.normal(size=(4, 8, 6)))
    for group, norm in (("group:rows", "l1"), ("group-max:rows", "linf")):
        solution = solve(problem, group, tol=1e-6)
        assert (solution.gap <= 1e-12).all()
        np.testing.assert_allclose(solution.norm, solve(problem, norm).norm, rtol=1e-8)
