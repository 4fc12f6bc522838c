"""What a certificate says holds for real numbers: checked in fractions, and to 80 digits where roots are taken."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import AttsvmError, Geometry, Lp, MarginProblem, MaxMargin, TokenData, att_svm, gen_svm, solve, sphere
from attsvm.svm import _certify, _exact, _lp, _memory, _nuclear
from attsvm.svm._rows import Rows, System

ALL = ["l1.1", "l1.5", "l2", "l3", "l4", "l10", "nuclear"]


def load_fuzzer() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "fuzz_certificates.py"
    spec = importlib.util.spec_from_file_location("fuzz_certificates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzzer = load_fuzzer()


def assert_true(problem: MarginProblem, solution: MaxMargin) -> None:
    for k in range(len(problem)):
        assert not fuzzer.Exact(problem, solution, k).errors()


def planted(N: int, d: int, e: int, margin: float, B: int = 4, seed: int = 0) -> MarginProblem:
    """Unit rows y a ⊗ z that some W separates by this margin, and no W by much more."""
    rng = np.random.default_rng(seed)
    W, A, Z = rng.normal(size=(B, d, e)), rng.normal(size=(B, N, d)), rng.normal(size=(B, N, e))
    W, A, Z = (
        W / np.linalg.norm(W, axis=(1, 2), keepdims=True),
        *(x / np.linalg.norm(x, axis=-1)[..., None] for x in (A, Z)),
    )
    Wz = np.einsum("bde,bne->bnd", W, Z)
    value = np.einsum("bnd,bnd->bn", A, Wz)
    wanted = margin * (1 + rng.exponential(size=(B, N)))
    A = A * np.where(value < 0, -1, 1)[..., None] + ((wanted - abs(value)) / (Wz**2).sum(-1))[..., None] * Wz
    return MarginProblem.from_rows(A, Z)


def test_nasty_instances_have_no_false_certificate() -> None:
    rows = list(fuzzer.fuzz(instances=330, seed=20, norms=("l1.1", "l4", "nuclear")))
    count = Counter(row["status"] for row in rows)
    assert [row for row in rows if not row["verified"]] == []
    assert count["not converged"] <= 0.02 * 330
    assert count["infeasible"] >= 30


@pytest.mark.parametrize("norm", fuzzer.NORMS)
def test_norms_written_down_twice_agree(norm: str) -> None:
    """What the checks call ‖W‖ and ‖W‖_* is what the library does."""
    rng = np.random.default_rng(3)
    for d, e in ((4, 3), (1, 3), (3, 1)):
        W = torch.from_numpy(rng.normal(size=(1, d, e)))
        geometry, exact = fuzzer.NORMS[norm](d, e), [[Fraction(x) for x in row] for row in W[0].tolist()]
        for value, dual in ((geometry.norm(W), False), (geometry.dual_norm(W), True)):
            assert fuzzer.exceeds(norm, exact, Fraction(value.item()) * Fraction(1 - 1e-12), dual)
            assert not fuzzer.exceeds(norm, exact, Fraction(value.item()) * Fraction(1 + 1e-12), dual)


@pytest.mark.parametrize("geometry", [*ALL, "l1", "linf", "spectral"])
def test_rows_of_float32_tokens_are_not_rounded_to_float32(geometry: str) -> None:
    """The difference of two tokens needs more digits than float32 has: A_low is then 2⁻²⁴ of A."""
    rng = np.random.default_rng(2)
    X = torch.tensor(rng.normal(size=(6, 4, 5, 6)) * 10.0 ** rng.uniform(-2, 2, size=(6, 4, 5, 1))).float()
    Z = torch.tensor(rng.normal(size=(6, 4, 3))).float()
    problem = att_svm(TokenData.cross(X, Z), np.zeros(4, dtype=int))
    assert problem.A.dtype == torch.float32
    assert problem.A_low is not None
    assert (problem.A_low != 0).any()
    solution = solve(problem, geometry)
    assert solution.solved.any()
    assert_true(problem, solution)
    doubled = solve(att_svm(TokenData.cross(X.double(), Z.double()), np.zeros(4, dtype=int)), geometry)
    torch.testing.assert_close(solution.upper, doubled.upper, rtol=1e-8, atol=0)
    assert problem.least_margin(solution.W).min() >= 1 - 1e-9


def test_a_large_low_part_is_a_part_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    plain = MarginProblem.from_rows(rng.normal(size=(3, 4, 6)))
    problem = MarginProblem(plain.A, plain.Z, plain.b, plain.equality, plain.present, A_low=-1e-3 * plain.A)
    solution = solve(problem)
    assert solution.solved.all()
    assert_true(problem, solution)
    torch.testing.assert_close(0.999 * solution.norm, solve(plain).norm, rtol=1e-8, atol=0)


@pytest.mark.parametrize("geometry", ALL)
def test_queries_over_sixteen_decades(geometry: str) -> None:
    """Values of rows cancel from 1e16 to 1: in plain arithmetic the margin looked like 1 where it was 0.9."""
    rng = np.random.default_rng(1)
    X, Z = rng.normal(size=(3, 6, 8, 10)), rng.normal(size=(3, 6, 10))
    Z *= 10.0 ** rng.uniform(-8, 8, size=(3, 6, 1))
    problem = att_svm(TokenData.cross(X, Z), np.zeros(6, dtype=int))
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_true(problem, solution)


@pytest.mark.parametrize("geometry", ALL)
def test_a_token_close_to_the_selected_one(geometry: str) -> None:
    rng = np.random.default_rng(2)
    X, Z = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(2, 4, 6))
    X[:, 0, 1] = X[:, 0, 0] + 1e-9 * rng.normal(size=(2, 6))
    problem = att_svm(TokenData.cross(X, Z), np.zeros(4, dtype=int))
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_true(problem, solution)


def test_rows_of_tokens_are_the_exact_differences() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 2, 3, 4)) * 10.0 ** rng.uniform(-8, 8, size=(1, 2, 3, 4))
    problem = att_svm(TokenData.cross(X, rng.normal(size=(1, 2, 4))), [0, 1])
    assert problem.A_low is not None
    assert bool(problem.A_low.any())
    for q, (selected, others) in enumerate((((0), (1, 2)), ((1), (0, 2)))):
        for r, t in enumerate(others):
            for i in range(4):
                exact = Fraction(X[0, q, selected, i]) - Fraction(X[0, q, t, i])
                assert exact == Fraction(problem.A[0, q, r, i].item()) + Fraction(problem.A_low[0, q, r, i].item())


numbers = st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-30 else 0.0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_are_within_their_bounds(draw: st.DataObject) -> None:
    Q, R, d, e = (draw.draw(st.integers(1, 4)) for _ in range(4))
    tensor = lambda *shape: torch.tensor(  # noqa: E731
        draw.draw(st.lists(numbers, min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), dtype=torch.float64
    ).reshape(shape)
    assert_sums(tensor(1, Q, R, d), tensor(1, Q, e), tensor(1, d, e), tensor(1, Q * R))


def test_sums_of_numbers_that_round_are_within_their_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(1, *shape, generator=generator, dtype=torch.float64)  # noqa: E731
    for Q, R, d, e in ((4, 4, 4, 4), (6, 5, 2, 3), (1, 9, 5, 1)):
        assert_sums(normal(Q, R, d), normal(Q, e), normal(d, e), normal(Q * R))


def assert_sums(A: torch.Tensor, Z: torch.Tensor, W: torch.Tensor, lam: torch.Tensor) -> None:
    _, Q, R, d = A.shape
    e = Z.shape[2]
    rows = Rows(A, Z, 1e-17 * A)
    a = [
        [Fraction(x) + Fraction(y) for x, y in zip(*pair)]
        for pair in zip(A[0].flatten(0, 1).tolist(), (1e-17 * A)[0].flatten(0, 1).tolist())
    ]
    z = [[Fraction(x) for x in z] for z in Z[0].tolist()]
    cells = list(itertools.product(range(d), range(e)))
    for double in (False, True):
        value, error = _exact.values(rows, W, double)
        U, U_error = _exact.combination(rows, lam, double)
        for c in range(Q * R):
            exact = sum(a[c][i] * z[c // R][j] * Fraction(W[0, i, j].item()) for i, j in cells)
            assert abs(exact - Fraction(value[0, c].item())) <= Fraction(error[0, c].item())
            if double:
                size = sum(abs(a[c][i] * z[c // R][j] * Fraction(W[0, i, j].item())) for i, j in cells)
                assert error[0, c].item() <= 2.0**-52 * abs(exact) + 1e-28 * size + 1e-299
        for i, j in cells:
            exact = sum(a[c][i] * z[c // R][j] * Fraction(lam[0, c].item()) for c in range(Q * R))
            assert abs(exact - Fraction(U[0, i, j].item())) <= Fraction(U_error[0, i, j].item())


@pytest.mark.parametrize("geometry", ALL)
def test_a_tiny_margin_is_not_taken_for_none(geometry: str) -> None:
    problem = MarginProblem.from_rows([[1.0, 1e-8], [-1.0, 1e-8]])
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert torch.allclose(solution.W[0, :, 0], torch.tensor([0.0, 1e8], dtype=torch.float64))
    assert_true(problem, solution)


@pytest.mark.parametrize("geometry", ["l1", "l1.2", "l2", "l10", "l50", "linf", "nuclear", "spectral"])
def test_nearly_infeasible_rows(geometry: str) -> None:
    # Rounding the entries of W and λ alone moves the margin by 1e-16/margin or so, where norms have corners at once.
    loose = 1e-6 if geometry in ("l1", "linf", "nuclear", "spectral") else 1e-9
    for margin in (1e-3, 1e-6, 1e-9, 1e-12):
        problem = planted(40, 4, 4, margin, B=2)
        solution = solve(problem, geometry, tol=5e-15 / margin if margin <= loose else 1e-9)
        assert solution.solved.all()
        assert_true(problem, solution)


def test_a_contradiction_in_a_subspace_is_proved_in_fractions() -> None:
    """Three rows in a plane of R⁴ with weights 1/3, 1/7 and 1; any number of other rows does not help."""
    rng = np.random.default_rng(0)
    u, v = rng.integers(-9, 9, size=(2, 4)).astype(float)
    rows = np.vstack((3 * u, 7 * v, -u - v, rng.normal(size=(2, 4))))
    for geometry in ("l1.5", "l2", "l3", "nuclear"):
        solution = solve(MarginProblem.from_rows(rows), geometry)
        assert solution.infeasible.all()
        weights = solution.multipliers[0, 0]
        assert torch.allclose(weights / weights[2], torch.tensor([1 / 3, 1 / 7, 1, 0, 0], dtype=torch.float64))
    # A change in the last place makes the rows independent, and the problem feasible.
    rows[2, 0] = np.nextafter(rows[2, 0], 0)
    rows[2, 1] = np.nextafter(rows[2, 1], 0)
    assert not solve(MarginProblem.from_rows(rows), "l2").infeasible.any()


@pytest.mark.parametrize("copies", [1, 5001])  # from 10,000 rows on over a working set
def test_entries_that_underflow_beside_others_prove_nothing(copies: int) -> None:
    """Rows (±1, ε) of length 1e140 with ε = 1e-330: W = (0, 1e190) satisfies them, but in float64 ε is 0."""
    rows = np.tile([[1e140, 1e-190], [-1e140, 1e-190]], (copies, 1))
    for problem in (MarginProblem.from_rows(rows), MarginProblem.from_rows(np.ones((len(rows), 1)), rows)):
        solution = solve(problem, max_iterations=3)
        assert solution.open.all()
        assert (solution.lower <= 1e190).all()
    assert solve(MarginProblem.from_rows(rows * [1, 0])).infeasible.all()


def test_a_query_that_contradicts_itself_is_proved_alone() -> None:
    """Six competitors around the selected token of one query; the other queries are fine."""
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(4, 3, 9, 3)), rng.normal(size=(4, 3, 5))
    X[:, 1, 0] = X[:, 1, 1:].mean(1)
    problem = att_svm(TokenData.cross(X, Z), [0, 0, 0])
    for geometry in ("l1.5", "l2", "nuclear"):
        solution = solve(problem, geometry)
        assert solution.infeasible.all()
        assert_true(problem, solution)
        assert (solution.multipliers[:, [0, 2]] == 0).all()


def test_equalities_hold_to_the_violation() -> None:
    data = sphere(4, 5, 6, trials=5, seed=3)
    selected = torch.zeros_like(data.mask)
    selected[..., :2] = True
    problem = gen_svm(data, selected)
    solution = solve(problem, "l3")
    assert solution.solved.all()
    assert (solution.violation > 0).all()
    assert (solution.violation < 1e-12).all()
    assert_true(problem, solution)
    assert (solve(att_svm(data), "l3").violation == 0).all()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_violation_bounds_that_of_real_numbers_at_any_scale_of_w(size: float, double: bool) -> None:
    """The first row is an equality, a·W = 0, and W is given at another scale than it is returned with."""
    torch.manual_seed(0)
    trials, d = 40, 6
    A, W = torch.randn(trials, 1, 3, d, dtype=torch.float64), torch.randn(trials, d, 1, dtype=torch.float64)
    A[:, 0, 1:] *= (A[:, 0, 1:] @ W).sign()  # the others are inequalities that W satisfies
    first = A[:, 0, 0]
    A[:, 0, 0] = first - (first[:, None] @ W)[..., 0] * W[..., 0] / W.square().sum(1)
    b = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64).expand(trials, 3)
    system = System(Rows(A, torch.ones(trials, 1, 1, dtype=torch.float64)), b, b > 0, b == 0)
    found, _, violation = _certify._feasible(system, Lp(2), size * W, double)
    assert found.isfinite().all()
    for a, w, bound in zip(A[:, 0, 0].tolist(), found[..., 0].tolist(), violation[:, 0].tolist()):
        assert abs(sum(Fraction(x) * Fraction(y) for x, y in zip(a, w))) <= Fraction(bound)


def test_why_names_equal_tokens_and_opposite_rows() -> None:
    data = sphere(3, 6, 5, seed=1)
    X, Z = data.X.clone(), data.Z.clone()
    X[0, 2, 5] = X[0, 2, 3]
    problem = att_svm(TokenData.cross(X, Z), [0, 0, 3])
    assert solve(problem).infeasible.all()
    assert problem.why() == [
        "tokens 3 and 5 of sequence 2 are equal: mask or merge them, e.g. by data.without_repeats()."
    ]
    X = data.X.clone()
    X[0, 1, :2] = 2 * X[0, 0, :2].flip(0)
    Z[0, 1] = 0.5 * Z[0, 0]
    problem = att_svm(TokenData.cross(X, Z), [0, 0, 0])
    assert solve(problem).infeasible.all()
    assert problem.why() == [
        "token 0 over token 1 in sequence 0 and token 0 over token 1 in sequence 1 ask for the opposite."
    ]
    Z[0, 0] = 0
    assert "the z of token 0 over token 1 in sequence 0 is zero" in att_svm(TokenData.cross(X, Z), [0, 0, 0]).why()[0]
    own = MarginProblem.from_rows([[1.0, 2], [-2, -4], [0, 0], [1, 0]])
    assert own.why() == [
        "row 2 is zero, and no W makes it reach b = 1.",
        "row 0 and row 1 ask for the opposite.",
    ]
    assert att_svm(data).why() == []
    with pytest.raises(AttsvmError, match="b must be a whole number"):
        own.why(1)


def planted_tokens(n: int, d: int = 3, seed: int = 0) -> TokenData:
    """Two tokens per sequence, the first selected by a common W."""
    rng = np.random.default_rng(seed)
    W, X, Z = rng.normal(size=(d, d)), rng.normal(size=(2, n, 2, d)), rng.normal(size=(2, n, d))
    value = np.einsum("bnd,de,bne->bn", X[:, :, 0] - X[:, :, 1], W, Z)
    return TokenData.cross(np.where((value < 0)[..., None, None], X[:, :, ::-1], X), Z)


@pytest.mark.parametrize("geometry", ["l1.2", "l2", "l3", "l10", "nuclear"])
def test_many_rows_are_factored_on_the_side_of_the_unknowns(geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = planted_tokens(80)
    problem = att_svm(data, np.zeros(80, dtype=int))
    wide = solve(problem, geometry)
    for module in (_lp, _nuclear):
        monkeypatch.setattr(module, "is_wide", lambda system: False)
    narrow = solve(problem, geometry)
    assert wide.solved.all()
    assert torch.equal(wide.iterations, narrow.iterations)
    assert torch.allclose(wide.norm, narrow.norm, rtol=1e-10, atol=0)
    assert_true(problem, wide)


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
def test_many_rows_beside_equalities(geometry: str) -> None:
    rng = np.random.default_rng(0)
    A, W = rng.normal(size=(60, 5)), rng.normal(size=5)
    A[0] -= (A[0] @ W) / (W @ W) * W
    A *= np.where(A @ W < 0, -1, 1)[:, None]
    problem = MarginProblem.from_rows(A, b=np.append(0.0, np.ones(59)), equality=np.arange(60) == 0)
    solution = solve(problem, geometry)
    assert solution.solved.all()
    assert_true(problem, solution)
    alone = MarginProblem.from_rows(A @ (np.eye(5) - np.outer(A[0], A[0]) / (A[0] @ A[0])), present=np.arange(60) > 0)
    if geometry == "l2":
        assert solution.norm.item() == pytest.approx(solve(alone).norm.item(), rel=1e-8)


def test_a_thousand_times_more_rows_than_unknowns() -> None:
    data = planted_tokens(8000)
    solution = solve(att_svm(data, np.zeros(8000, dtype=int)), "l2")
    assert solution.solved.all()
    assert (solution.iterations <= 30).all()


def test_memory_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("attsvm.svm._solve.solve_lp", never)
    monkeypatch.setattr(_memory, "free_bytes", lambda device: 1e8)
    with pytest.raises(AttsvmError, match=r"an instance of 1900 rows needs about .* GB of memory, which is not free"):
        solve(att_svm(sphere(19, 101, 60)), "l2")  # just too few rows for a working set


def test_free_memory_is_known() -> None:
    free = _memory.free_bytes(torch.device("cpu"))
    assert free is None or free > 1e6
    assert _memory.free_bytes(torch.device("meta")) is None


@pytest.mark.parametrize(("geometry", "most"), [("l1.1", 17), ("l1.5", 13), ("l2", 11), ("l3", 12), ("nuclear", 16)])
def test_few_iterations_are_needed(geometry: str, most: int) -> None:
    solution = solve(att_svm(sphere(6, 8, 10, trials=60, seed=4)), geometry)
    assert int(solution.iterations.max()) <= most
    assert solution.iterations.double().mean() <= most - 2


def test_finished_instances_retire(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, geometry in ((_lp, "l1.5"), (_lp, "l3"), (_nuclear, "nuclear")):
        sizes: list[int] = []
        step = module._newton_step

        def counting(system: Any, *rest: Any, step: Any = step, sizes: list[int] = sizes) -> Any:
            sizes.append(system.rows.B)
            return step(system, *rest)

        monkeypatch.setattr(module, "_newton_step", counting)
        solution = solve(att_svm(sphere(6, 8, 10, trials=40, seed=4)), geometry)
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) == int(solution.iterations.sum())
        assert sizes[-1] < sizes[0]


@pytest.mark.parametrize("geometry", ["l1", "linf", "spectral", "group:rows", "schatten3"])
def test_other_norms_need_few_iterations_and_retire_too(geometry: str) -> None:
    solution = solve(att_svm(sphere(4, 5, 6, trials=20, seed=4)), geometry)
    assert solution.solved.all()
    assert int(solution.iterations.max()) <= 16
    assert solution.iterations.double().mean() <= 11
    assert len(solution.iterations.unique()) > 1


@pytest.mark.parametrize("geometry", ["l1.1", "l1.9", "l2", "l3", "nuclear"])
def test_a_column_of_zeros_changes_nothing(geometry: str) -> None:
    data = sphere(4, 5, 6, trials=3, seed=2)
    wider = TokenData.cross(torch.nn.functional.pad(data.X, (1, 1)), data.Z)
    tokens = data.optimal_tokens()
    small, large = solve(att_svm(data, tokens), geometry), solve(att_svm(wider, tokens), geometry)
    assert large.solved.all()
    assert torch.allclose(small.norm, large.norm, rtol=2e-9, atol=0)
    assert large.W[:, [0, -1]].abs().max() <= 1e-9 * large.W.abs().max()


def test_equalities_count_in_the_gap() -> None:
    """W that violates an equality has a smaller norm: it must not pass for the solution."""
    problem = MarginProblem.from_rows([[1.0, 0, 0], [1, 1, 0], [0, 1, 1]], b=[1.0, 0, 0], equality=[False, True, True])
    for geometry in ("l1", "l1.5", "l2", "l3", "l6", "linf", "nuclear", "spectral", "group:rows", "schatten3"):
        solution = solve(problem, geometry, tol=1e-10)
        assert solution.solved.all()
        assert torch.allclose(solution.W[0, :, 0], torch.tensor([1.0, -1, 1], dtype=torch.float64), atol=1e-9)
        assert_true(problem, solution)


@pytest.mark.parametrize("geometry", ["l1.1", "l2", "l3", "nuclear"])
def test_alone_or_in_a_batch_agrees_to_the_tolerance(geometry: str) -> None:
    data = sphere(6, 8, 10, trials=33, seed=6)
    together = solve(att_svm(data), geometry)
    for start, size in ((17, 1), (16, 2), (0, 16), (1, 17)):
        some = slice(start, start + size)
        part = solve(att_svm(data[some]), geometry)
        assert torch.allclose(part.norm, together.norm[some], rtol=1e-9, atol=0)
        assert torch.equal(part.codes, together.codes[some])
        unit = [x.geometry.unit(x.W) for x in (part, together)]
        assert (unit[0] - unit[1][some]).abs().max() <= 1e-4


def test_a_worse_attempt_takes_nothing_away() -> None:
    """Bounds only ever narrow: the better half of each attempt is kept."""
    problem = planted(12, 3, 2, 0.1)
    one, other = (solve(problem, "l3", tol=1e-12, max_iterations=n) for n in (4, 8))
    part = lambda s: _certify.Answer(  # noqa: E731
        s.W, s.multipliers.flatten(1), s.lower, s.upper, torch.zeros(4, 12, dtype=torch.float64), s.codes, s.iterations
    )
    answer = part(one)
    answer.improve(part(other), 1e-12)
    assert torch.equal(answer.lower, torch.maximum(one.lower, other.lower))
    assert torch.equal(answer.upper, torch.minimum(one.upper, other.upper))
    assert one.open.any()


@pytest.mark.parametrize("p", [1.3, 2.0, 3.0, 7.5])
def test_the_curvature_of_lp_is_the_derivative_of_its_gradient(p: float) -> None:
    W = torch.from_numpy(np.random.default_rng(5).normal(size=(2, 3, 4)))
    for matrix, function in ((Lp(p).hessian(W), Lp(p).norm), (Lp(p).dual_hessian(W), Lp(p).dual_norm)):
        for k in range(2):
            exact = torch.autograd.functional.hessian(lambda V, f=function: f(V).square() / 2, W[k])
            assert torch.allclose(matrix[k], torch.as_tensor(exact).reshape(12, 12), rtol=1e-9, atol=1e-12)
    assert torch.allclose(Lp(p).gradient(W), Geometry.gradient(Lp(p), W), rtol=1e-12)


@pytest.mark.parametrize("b", [3.0, 1000.0])
def test_a_zero_row_that_asks_for_something_is_the_contradiction(b: float) -> None:
    problem = MarginProblem.from_rows([[0.0, 0.0], [1.0, 2.0]], b=[b, 5.0])
    solution = solve(problem)
    assert solution.infeasible.all()
    assert solution.multipliers.flatten().tolist() == pytest.approx([1 / b, 0])
