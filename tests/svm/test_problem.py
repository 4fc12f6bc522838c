"""Each SVM of the papers, against its definition written out."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_farkas, assert_optimal, cvxpy_norm, feasible

import attsvm
from attsvm import AttsvmError, MarginProblem, TokenData, gen_svm, parse_geometry, solve, sphere

ALL = ["l1.1", "l1.5", "l2", "l3", "l10", "nuclear"]


def some_sets(data: TokenData) -> torch.Tensor:
    """One to three selected tokens for every query."""
    selected = torch.zeros_like(data.mask)
    selected[..., 0] = True
    selected[:, ::2, :, 1] = True
    selected[:, 0, :, 2] = True
    return selected & data.mask


@pytest.mark.parametrize("geometry", ALL)
def test_gen_svm_ties_the_selected_and_separates_the_rest(geometry: str) -> None:
    data = sphere(5, 6, 8, trials=60, seed=1)
    selected = some_sets(data)
    problem = gen_svm(data, selected)
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_optimal(problem, solution, 1e-9)
    logits = data.logits(solution.W)
    for b, i in itertools.product(range(5), range(5)):
        inside, outside = logits[b, i, 0][selected[b, i, 0]], logits[b, i, 0][~selected[b, i, 0]]
        assert (inside - inside[0]).abs().max() <= 1e-10
        assert (inside[:, None] - outside[None, :]).min() >= 1 - 1e-10
    assert solution.norm[0].item() == pytest.approx(cvxpy_norm(problem, parse_geometry(geometry), 0), rel=2e-6)


@pytest.mark.parametrize("geometry", ALL)
def test_contradictory_equalities_are_infeasible(geometry: str) -> None:
    data = sphere(5, 6, 4, trials=60, seed=1)
    problem = gen_svm(data, some_sets(data))
    solution = solve(problem, geometry)
    truth = feasible(problem)
    assert 0 < truth.sum() < 60
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~truth)
    assert_farkas(problem, solution)


def test_gen_svm_of_single_tokens_is_att_svm() -> None:
    data = sphere(4, 5, 6, trials=10)
    tokens = data.optimal_tokens()
    sets = torch.zeros_like(data.mask).scatter_(-1, tokens[..., None], True)
    a, b = solve(attsvm.att_svm(data, tokens)), solve(gen_svm(data, sets))
    assert torch.equal(a.W, b.W)


@pytest.mark.parametrize("geometry", ALL)
def test_finite_part_interpolates_the_log_ratios(geometry: str) -> None:
    data = sphere(5, 6, 8, trials=40, seed=2)
    s = data.attention(5 * sphere(1, 8, 8, trials=40, seed=3).X[:, 0])
    selected = some_sets(data)
    problem = attsvm.finite_part(data, s, selected)
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_optimal(problem, solution, 1e-9)
    logits = data.logits(solution.W)
    gap = (logits - logits[..., :1]) - (s.log() - s.log()[..., :1])
    assert gap[selected].abs().max() <= 1e-9
    assert solution.norm[0].item() == pytest.approx(cvxpy_norm(problem, parse_geometry(geometry), 0), rel=2e-6)


def test_finite_part_in_the_frobenius_norm_is_the_pseudo_inverse() -> None:
    data = sphere(3, 4, 6, trials=5, seed=4)
    s = data.attention(sphere(1, 6, 6, trials=5, seed=3).X[:, 0])
    problem = attsvm.finite_part(data, s, torch.ones_like(data.mask))
    W = solve(problem, "l2").W
    F = torch.einsum("bqrd,bqe->bqrde", problem.A, problem.Z).flatten(3).flatten(1, 2)
    expected = torch.linalg.pinv(F) @ problem.b.flatten(1)[..., None]
    assert torch.allclose(W.flatten(1), expected[..., 0], atol=1e-9)


def test_finite_part_selects_by_weight() -> None:
    data = sphere(2, 3, 4)
    weights = torch.tensor([[[[0.5, 0.4995, 0.0005]], [[0.9985, 0.0005, 0.001]]]], dtype=torch.float64)
    problem = attsvm.finite_part(data, weights)
    assert problem.present.sum() == 1
    assert problem.b[problem.present].item() == pytest.approx(math.log(0.5 / 0.4995))


def test_contradictory_interpolation() -> None:
    """The same row with two right-hand sides."""
    problem = MarginProblem.from_rows([[1.0, 0], [1, 0], [0, 1]], b=[1.0, 2, 0], equality=True)
    for geometry in ("l1.5", "l2", "l3", "nuclear"):
        solution = solve(problem, geometry)
        assert solution.infeasible.all()
        assert_farkas(problem, solution)


def test_a_zero_row_that_asks_for_something() -> None:
    for equality in (True, False):
        problem = MarginProblem.from_rows([[0.0, 0], [1, 0]], b=[2.0, 1], equality=equality)
        solution = solve(problem, "l1.5")
        assert solution.infeasible.all()
        assert_farkas(problem, solution)


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
def test_repeated_equalities_are_fine(geometry: str) -> None:
    problem = MarginProblem.from_rows([[1.0, 0, 0], [1, 0, 0], [0, 1, 1]], b=[1.0, 1, 2], equality=True)
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert torch.allclose(solution.W[0, :, 0], torch.ones(3, dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
@pytest.mark.parametrize("kind", ["causal", "queries", "self"])
def test_several_queries_and_causal_masks(kind: str, geometry: str) -> None:
    data = {
        "causal": lambda: sphere(2, 4, 8, trials=8, seed=2, causal=True),
        "queries": lambda: sphere(2, 4, 8, trials=8, seed=2, queries=3),
        "self": lambda: TokenData.self_attention(sphere(3, 4, 8, trials=8, seed=2).X),
    }[kind]()
    tokens = torch.zeros(data.B, data.n, data.K, dtype=torch.long)
    problem = attsvm.att_svm(data, tokens)
    allowed = data.mask.sum() - data.n * data.K * data.B
    assert problem.present.sum() == allowed
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_optimal(problem, solution, 1e-9)
    logits = data.logits(solution.W)
    margin = (logits[..., :1] - logits)[data.mask].reshape(-1)
    assert (margin[margin != 0] >= 1 - 1e-10).all()
    assert margin[margin != 0].min().item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_head_svm_and_label_margin(p: float) -> None:
    """Example 1: v = (1/5, 0) for every p, label margin 5; other tokens have a smaller one."""
    data = attsvm.example1()
    solution = solve(attsvm.head_svm(data), attsvm.Lp(p), tol=1e-12)
    assert torch.allclose(solution.W[0, :, 0], torch.tensor([0.2, 0.0], dtype=torch.float64), atol=1e-9)
    best = attsvm.label_margin(data, geometry=attsvm.Lp(p))
    assert best.item() == pytest.approx(5, rel=1e-8)
    for tokens in itertools.product(range(2), repeat=2):
        assert attsvm.label_margin(data, list(tokens), attsvm.Lp(p)).item() <= best.item() * (1 + 1e-9)
    norm = solve(attsvm.att_svm(data), attsvm.Lp(p)).norm
    assert attsvm.token_margin(data, geometry=attsvm.Lp(p)).item() == pytest.approx(1 / norm.item())


def test_embedding_svm_is_equation_9() -> None:
    """Selected by p: token 0 in the first sequence, tokens 1 and 2 (a tie) in the second; padding is ignored."""
    E = np.array([[2.0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 1]])
    sequences = np.array([[0, 1, 3], [1, 2, -1]])
    p = np.array([1.0, 0.5, 0])
    problem = attsvm.embedding_svm(E, sequences, p)
    solution = solve(problem, "l2", tol=1e-12)
    w = solution.W[0, :, 0].numpy()
    # p·(E_0 − E_1) ≥ 1, p·(E_0 − E_3) ≥ 1, p·(E_1 − E_2) = 0, that is p₃ = 0.
    assert w @ (E[1] - E[2]) == pytest.approx(0, abs=1e-12)
    assert min(w @ (E[0] - E[1]), w @ (E[0] - E[3])) == pytest.approx(1, abs=1e-12)
    assert problem.present.sum() == 3
    assert np.allclose(w, [0.5, -0.5, 0], atol=1e-9)


def test_own_rows_in_five_lines() -> None:
    X = [[2.0, 0], [0, 1], [1, 1]]
    solution = solve(MarginProblem.from_rows(X), "l2")
    assert solution.solved.all()
    assert min(np.array(X) @ solution.W[0, :, 0].numpy()) == pytest.approx(1)
    Z = [[1.0, 0], [1, 0], [0, 1]]
    matrix = solve(MarginProblem.from_rows(X, Z, b=[1.0, 2, 1]), "l1.5")
    values = np.einsum("nd,de,ne->n", X, matrix.W[0].numpy(), Z)
    assert (values >= np.array([1, 2, 1]) - 1e-9).all()
    with pytest.raises(AttsvmError, match="over tokens"):
        _ = matrix.support_tokens


small = st.integers(-2, 2)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_small_integer_problem_is_answered_rightly(draw: st.DataObject) -> None:
    """Duplicates, zeros, ties, masks: the answer is optimal, or infeasible exactly when the LP says so."""
    B, n, T, d, e = (draw.draw(st.integers(1, k)) for k in (2, 3, 4, 3, 3))
    integers = lambda *shape: np.array(  # noqa: E731
        draw.draw(st.lists(small, min_size=math.prod(shape), max_size=math.prod(shape)))
    ).reshape(shape)
    X, Z = integers(B, n, T, d), integers(B, n, e)
    mask = integers(B, n, T) >= -1
    mask[..., 0] = True
    data = TokenData.cross(X, Z, mask=mask)
    selected = torch.from_numpy(integers(B, n, 1, T) == 2) & data.mask
    selected[..., 0] = True
    problem = gen_svm(data, selected)
    solution = solve(problem, draw.draw(st.sampled_from(["l1.1", "l1.5", "l2", "l3", "l6", "nuclear"])), tol=1e-8)
    assert not solution.open.any()
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~feasible(problem))
    assert_optimal(problem, solution, 1e-8)
    assert_farkas(problem, solution)


def test_multipliers_have_the_scale_of_a_weight_that_another_attempt_found() -> None:
    X, Z = np.array([-2, 0, 0, 0, -1, 2, 1, 1, -1, 1, -1, 0]), np.array([1, 2, 2, 1, 0, 0])
    mask = np.array([[[True, False, True], [True, True, True]]])
    data = TokenData.cross(X.reshape(1, 2, 3, 2), Z.reshape(1, 2, 3), mask=mask)
    problem = gen_svm(data, torch.tensor([[True, False, True], [True, False, False]]).reshape(1, 2, 1, 3))
    assert_optimal(problem, solve(problem, "l6", tol=1e-8), 1e-8)


def test_multipliers_have_the_scale_of_a_weight_whose_rows_were_lifted() -> None:
    """Rows that nearly cancel: their margin is a millionth of their length. Sums are exact."""
    rng = np.random.default_rng(11)
    u, x = rng.normal(size=4), rng.normal(size=(4, 4))
    A = np.array([[1.0], [-1.0], [0.5], [-2.0]]) * u + 1e-6 * x
    solution = solve(MarginProblem.from_rows(A), "l1.1", tol=1e-8)
    lam = [Fraction(value) for value in solution.multipliers.flatten().tolist()]
    combined = [float(sum(m * Fraction(a) for m, a in zip(lam, column))) for column in A.T.tolist()]
    dual = solution.geometry.dual_norm(torch.tensor(combined, dtype=torch.float64).reshape(1, 4, 1))
    assert dual.item() == pytest.approx(solution.norm.item(), rel=1e-8)


@pytest.mark.parametrize("geometry", ["l1", "l1.1", "l2", "l3", "linf", "nuclear"])
def test_equalities_that_repeat_each_other_hide_no_contradiction(geometry: str) -> None:
    """One entry of W is at least 1, says row after row, and 0, say two."""
    A = torch.zeros(1, 3, 3, 3, dtype=torch.float64)
    A[..., 2] = 1.0
    b = torch.ones(1, 3, 3, dtype=torch.float64)
    equality = torch.zeros(1, 3, 3, dtype=torch.bool)
    b[0, 1, 1:], equality[0, 1, 1:] = 0.0, True
    problem = MarginProblem(A, A[:, :, 0], b, equality, torch.ones_like(equality))
    solution = solve(problem, geometry)
    assert bool(solution.infeasible.all())
    assert_farkas(problem, solution)


@pytest.mark.parametrize("geometry", ["l1", "l1.5", "l2", "l3", "l6", "l10", "linf", "nuclear", "spectral"])
def test_a_bracket_that_has_crossed_is_no_solution(geometry: str) -> None:
    """No W keeps the equality. One of large norm that fails it by little, beside its norm, passed for a solution."""
    X = [[[2, 0, 2], [0, 1, 2], [2, 1, -2]], [[0, 1, -2], [-2, -2, 0], [0, 0, 1]]]
    selected = torch.tensor([[True, False, False], [True, False, True]]).reshape(1, 2, 1, 3)
    problem = gen_svm(TokenData.cross(X, [[2, 1, 1], [-2, -1, -1]]), selected)
    assert not feasible(problem).any()
    solution = solve(problem, geometry, tol=1e-8)
    assert solution.infeasible.all()
    assert_farkas(problem, solution)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_numbers_of_any_size_are_solved_or_refused(draw: st.DataObject) -> None:
    N, d, e = (draw.draw(st.integers(1, k)) for k in (4, 3, 2))
    floats = lambda *shape: np.array(  # noqa: E731
        draw.draw(st.lists(numbers, min_size=math.prod(shape), max_size=math.prod(shape)))
    ).reshape(shape)
    try:
        problem = MarginProblem.from_rows(floats(N, d), floats(N, e), b=np.abs(floats(N)))
        solution = solve(problem, draw.draw(st.sampled_from(["l1.1", "l2", "l3", "nuclear"])))
    except AttsvmError:
        return
    assert not solution.lower.isnan().any()
    assert (solution.lower <= solution.upper * (1 + 1e-9)).all()
    assert solution.W[solution.solved].isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": [1.0, 2]}, r"A must have shape \(N, d\)"),
        ({"A": [[1.0, math.nan]]}, "A must be finite"),
        ({"A": [[1.0, 2]], "Z": [[1.0], [2]]}, "Z must have shape"),
        ({"A": [[1.0, 2]], "b": [1.0, 2]}, "b must have shape"),
        ({"A": [[1.0, 2]], "b": 0.0}, "b must be positive"),
        ({"A": [[1.0, 2]], "b": [[-1.0]]}, "b must"),
        ({"A": [[1.0, 2]], "equality": [1]}, "equality must be boolean"),
        ({"A": [["x", "y"]]}, "A must be an array of real numbers"),
    ],
)
def test_wrong_rows(arguments: dict, message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        MarginProblem.from_rows(**arguments)


def test_wrong_problems() -> None:
    data = sphere(2, 3, 4)
    with pytest.raises(AttsvmError, match="selected must have shape"):
        gen_svm(data, [[True]])
    with pytest.raises(AttsvmError, match="at least one token"):
        gen_svm(data, torch.zeros_like(data.mask))
    with pytest.raises(AttsvmError, match="weights must have shape"):
        attsvm.finite_part(data, [0.5, 0.5])
    with pytest.raises(AttsvmError, match="must be positive on the selected"):
        attsvm.finite_part(data, torch.zeros(1, 2, 1, 3), torch.ones_like(data.mask))
    with pytest.raises(AttsvmError, match="sequences must be"):
        attsvm.embedding_svm(np.eye(3), [[0, 5]], np.ones(3))
    with pytest.raises(AttsvmError, match="E must have shape"):
        attsvm.embedding_svm(np.eye(3), [[0, 1]], np.ones(4))
    for offsets in ([], [0, 2], [0, 4], [1, 3], [0, 3, 2, 3], [0, -1, 3], [[0, 3]]):
        flat = SimpleNamespace(ids=np.array([0, 1, 2]), offsets=np.array(offsets, np.int64))
        with pytest.raises(AttsvmError, match=r"offsets must be .* rise from 0 to 3, the number of ids"):
            attsvm.embedding_svm(np.eye(3), flat, np.ones(3))
    flat.offsets = np.array([0, 3])
    with pytest.raises(AttsvmError, match="p must be finite"):
        attsvm.embedding_svm(np.eye(3), flat, [1, math.nan, 1])
    mixed = MarginProblem.from_rows([[1.0, 0], [0, 1]], b=[1.0, 2], equality=[False, True])
    with pytest.raises(AttsvmError, match="must have b = 0"):
        solve(mixed)
