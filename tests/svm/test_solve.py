"""Every geometry and size: certified, feasible, optimal, and in agreement with independent solvers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import assert_farkas, assert_optimal, cvxpy_norm, feasible

import attsvm
from attsvm import Lp, Nuclear, Status, att_svm, solve, sphere

SIZES = [(6, 8, 10), (5, 5, 4), (5, 5, 20), (3, 4, 6)]
GEOMETRIES = [Lp(p) for p in (1.1, 1.5, 1.75, 2, 3, 6, 10)] + [Nuclear()]


def random_tokens(data: attsvm.TokenData, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, data.T, (data.B, data.n, data.K), generator=generator)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
def test_random_instances_are_solved_to_the_gap(size: tuple[int, int, int], geometry: attsvm.Geometry) -> None:
    data = sphere(*size, trials=200, seed=3)
    problem = att_svm(data, random_tokens(data))
    solution = solve(problem, geometry)
    assert not solution.open.any()
    assert (solution.gap[solution.solved] <= 1e-9).all()
    assert_optimal(problem, solution, 1e-9)
    assert_farkas(problem, solution)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.name)
def test_norms_agree_with_cvxpy(size: tuple[int, int, int], geometry: attsvm.Geometry) -> None:
    data = sphere(*size, trials=2, seed=11)
    problem = att_svm(data)
    solution = solve(problem, geometry)
    for k in range(2):
        assert solution.norm[k].item() == pytest.approx(cvxpy_norm(problem, geometry, k), rel=2e-6)


@pytest.mark.parametrize("geometry", [Lp(1.1), Lp(1.5), Lp(2), Lp(3), Lp(10), Nuclear()], ids=lambda g: g.name)
@pytest.mark.parametrize("size", [(5, 5, 2), (4, 6, 2), (5, 5, 3)], ids=str)
def test_infeasible_instances_are_all_found_and_none_falsely(
    size: tuple[int, int, int], geometry: attsvm.Geometry
) -> None:
    data = sphere(*size, trials=150, seed=5)
    problem = att_svm(data, random_tokens(data, 1))
    solution = solve(problem, geometry)
    truth = feasible(problem)
    assert 0 < truth.sum() < 150
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~truth)
    assert_farkas(problem, solution)
    assert_optimal(problem, solution, 1e-9)


@pytest.mark.parametrize("geometry", [Lp(1.1), Lp(1.75), Lp(2), Lp(3)], ids=lambda g: g.name)
def test_tight_tolerance(geometry: attsvm.Geometry) -> None:
    problem = att_svm(sphere(6, 8, 10, trials=100, seed=1))
    solution = solve(problem, geometry, tol=1e-12)
    assert solution.solved.all()
    assert (solution.gap <= 1e-12).all()


@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 2.0, 3.0, 10.0, 20.0])
def test_one_row_has_a_closed_form(p: float) -> None:
    """For a single constraint ⟨F, W⟩ ≥ 1 the optimal norm is 1/‖F‖_q, and for the nuclear norm 1/‖F‖."""
    data = sphere(1, 2, 5, trials=20, seed=2)
    problem = att_svm(data)
    F = problem.A[:, 0].mT @ problem.Z[:, :1]
    for geometry in (Lp(p), Nuclear()):
        solution = solve(problem, geometry, tol=1e-12)
        assert torch.allclose(solution.norm, 1 / geometry.dual_norm(F), rtol=1e-11, atol=0)
        assert torch.allclose(solution.W, geometry.dual_unit(F) * solution.norm[:, None, None], rtol=1e-5, atol=1e-9)


def test_example_1_of_the_mirror_descent_paper() -> None:
    """25 w₁ − 5 w₂ ≥ 1 in the first column: closed form. The W printed for p = 3 is the one for p = 2."""
    problem = att_svm(attsvm.example1())
    W2 = solve(problem, "l2", tol=1e-12).W[0]
    assert torch.allclose(W2, torch.tensor([[25.0, 0], [-5, 0]], dtype=torch.float64) / 650, atol=1e-9)
    W3 = solve(problem, "l3", tol=1e-12).W[0]
    a = torch.tensor([25.0, 5.0], dtype=torch.float64)
    w = a.sqrt() / (a * a.sqrt()).sum()
    assert torch.allclose(W3[:, 0], torch.stack((w[0], -w[1])), atol=1e-7)
    assert torch.allclose(W3[:, 0], torch.tensor([0.03672, -0.01642], dtype=torch.float64), atol=5e-6)


def test_a_vector_has_the_same_nuclear_and_euclidean_norm() -> None:
    data = attsvm.TokenData.cls(sphere(5, 4, 7, trials=30, seed=4).X)
    problem = att_svm(data, random_tokens(data))
    nuclear, frobenius = solve(problem, "nuclear"), solve(problem, "frobenius")
    assert nuclear.status == frobenius.status
    ok = frobenius.solved
    assert torch.allclose(nuclear.norm[ok], frobenius.norm[ok], rtol=2e-9)


@pytest.mark.parametrize("geometry", ["l1.1", "l2", "l3", "nuclear"])
def test_scaling_the_tokens_scales_the_solution(geometry: str) -> None:
    data = sphere(4, 5, 6, trials=10, seed=8)
    base = solve(att_svm(data), geometry, tol=1e-11)
    for factor in (1e-12, 1e9):
        scaled = attsvm.TokenData.cross(factor * data.X, data.Z)
        other = solve(att_svm(scaled, data.optimal_tokens()), geometry, tol=1e-11)
        assert other.solved.all()
        assert torch.allclose(other.norm * factor, base.norm, rtol=1e-10)


def test_instances_do_not_disturb_each_other() -> None:
    data = sphere(5, 5, 3, trials=40, seed=5)
    tokens = random_tokens(data, 1)
    together = solve(att_svm(data, tokens), "l1.5")
    assert together.infeasible.any()
    assert together.solved.any()
    for k in range(40):
        alone = solve(att_svm(data[k], tokens[k : k + 1]), "l1.5")
        assert alone.status[0] == together.status[k]
        if alone.solved[0]:
            assert alone.norm[0].item() == pytest.approx(together.norm[k].item(), rel=2e-9)
            assert torch.equal(alone.support_tokens[0], together.support_tokens[k])


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
def test_masked_tokens_do_not_count(geometry: str) -> None:
    """Ragged instances in one batch equal the smaller instances solved alone."""
    data = sphere(4, 6, 8, trials=3, seed=9)
    mask = torch.ones(3, 4, 6, dtype=torch.bool)
    mask[1, :, 4:] = False
    mask[2, :, 2:] = False
    ragged = attsvm.TokenData.cross(data.X, data.Z, mask=mask)
    tokens = [1, 0, 1, 0]
    solution = solve(att_svm(ragged, tokens), geometry, tol=1e-10)
    for k, T in enumerate((6, 4, 2)):
        small = attsvm.TokenData.cross(data.X[k, :, :T], data.Z[k])
        alone = solve(att_svm(small, tokens), geometry, tol=1e-10)
        assert alone.norm[0].item() == pytest.approx(solution.norm[k].item(), rel=1e-9)
        assert torch.equal(alone.support_tokens[0], solution.support_tokens[k, ..., :T])
        assert not solution.support_tokens[k, ..., T:].any()


def test_support_tokens_are_those_at_margin_one() -> None:
    data = sphere(6, 8, 10, trials=50, seed=12)
    tokens = data.optimal_tokens()
    solution = solve(att_svm(data, tokens), "l2", tol=1e-12)
    logits = data.logits(solution.W)
    margin = logits.gather(-1, tokens[..., None]) - logits
    at_one = (margin - 1).abs() < 1e-6
    assert torch.equal(solution.support_tokens, at_one)


def test_float32_data_is_solved_in_float64() -> None:
    data = sphere(3, 4, 6, trials=4).to(dtype=torch.float32)
    solution = solve(att_svm(data), "l1.75")
    assert solution.W.dtype == torch.float64
    assert solution.solved.all()


def test_nothing_to_separate() -> None:
    """T = 1: no rows, W = 0 and an infinite margin."""
    for geometry in ("l1.5", "l3", "nuclear"):
        solution = solve(att_svm(sphere(3, 1, 4, trials=2)), geometry)
        assert solution.solved.all()
        assert (solution.W == 0).all()
        assert (solution.norm == 0).all()
        assert (solution.margin == math.inf).all()
        assert (solution.gap == 0).all()


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
def test_no_trials(geometry: str) -> None:
    solution = solve(att_svm(sphere(3, 4, 5, trials=0)), geometry)
    assert len(solution) == 0
    assert solution.support_tokens.shape == (0, 3, 1, 4)
    assert "0 instances" in repr(solution)


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3", "nuclear"])
def test_duplicate_tokens_and_zero_queries(geometry: str) -> None:
    X = sphere(3, 4, 5, trials=3, seed=1).X.clone()
    Z = sphere(3, 4, 5, trials=3, seed=1).Z.clone()
    X[1, 0, 3] = X[1, 0, 2]  # two equal competitors: fine
    X[2, 0, 3] = X[2, 0, 0]  # the selected token twice: impossible
    solution = solve(att_svm(attsvm.TokenData.cross(X, Z), [0, 0, 0]), geometry)
    assert solution.status == [Status.SOLVED, Status.SOLVED, Status.INFEASIBLE]
    assert solution.multipliers[2].count_nonzero() == 1
    Z[0, 1] = 0
    solution = solve(att_svm(attsvm.TokenData.cross(X, Z), [0, 0, 0]), geometry)
    assert solution.status == [Status.INFEASIBLE, Status.SOLVED, Status.INFEASIBLE]


def test_an_unfinished_instance_keeps_its_certified_bracket() -> None:
    problem = att_svm(sphere(6, 8, 10, trials=20, seed=3))
    best = solve(problem, "l3").norm
    cut = solve(problem, "l3", max_iterations=5)
    assert cut.open.any()
    assert (cut.lower <= best * (1 + 1e-12)).all()
    assert (cut.upper >= best * (1 - 1e-9)).all()


def test_wrong_arguments() -> None:
    problem = att_svm(sphere(2, 3, 4))
    with pytest.raises(attsvm.AttsvmError, match="tol must be between"):
        solve(problem, "l2", tol=0.0)
    with pytest.raises(attsvm.AttsvmError, match="max_iterations"):
        solve(problem, "l2", max_iterations=0)
    with pytest.raises(attsvm.AttsvmError, match="not a geometry"):
        solve(problem, "spectral3")
    for wrong in (sphere(2, 3, 4), None):
        with pytest.raises(attsvm.AttsvmError, match="problem must be a MarginProblem"):
            solve(wrong)  # type: ignore[arg-type]
    with pytest.raises(attsvm.AttsvmError, match="data must be TokenData"):
        att_svm(np.zeros((2, 3, 4)), [0, 1])  # type: ignore[arg-type]
    with pytest.raises(attsvm.AttsvmError, match="run must be a Trajectory"):
        attsvm.verdict(None)  # type: ignore[arg-type]


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("attsvm.svm._solve.solve_pivots", full)
    with pytest.raises(attsvm.AttsvmError, match=r"an instance of 4 rows needs about .* GB of memory"):
        solve(att_svm(sphere(2, 3, 4)))


@pytest.mark.parametrize("geometry", ["l1.1", "l1.5", "l2", "l3", "l10", "l30", "nuclear"])
def test_rows_of_very_different_length(geometry: str) -> None:
    """Lengths over three decades: all are answered, in agreement with an LP on which have a solution."""
    generator = torch.Generator().manual_seed(0)
    A, Z, size = (
        torch.randn(*n, generator=generator, dtype=torch.float64) for n in ((60, 3, 8, 5), (60, 3, 6), (60, 3, 8))
    )
    length = 10 ** (3 * torch.rand(60, 3, 8, generator=generator, dtype=torch.float64))
    none = torch.zeros_like(size, dtype=torch.bool)
    problem = attsvm.MarginProblem(A * length[..., None], Z, size.abs() + 0.1, equality=none, present=~none)
    solution, truth = solve(problem, geometry), feasible(problem)
    assert 0 < truth.sum() < 60
    np.testing.assert_array_equal(solution.solved.numpy(), truth)
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~truth)
    assert_optimal(problem, solution, 1e-9)
    assert_farkas(problem, solution)


def test_a_second_attempt_solves_what_the_first_does_not() -> None:
    data = sphere(5, 6, 4, trials=200, seed=0)
    solution = solve(att_svm(data), "l100")
    assert solution.open.sum() <= 4
    assert_optimal(att_svm(data), solution, 1e-9)


@pytest.mark.parametrize("norm", ["l1.01", "l1.02", "l1.1", "l2"])
@pytest.mark.parametrize("short", [1e-3, 1e-6])
def test_short_rows_beside_long_ones_are_not_taken_for_zero(norm: str, short: float) -> None:
    # ‖a‖_q with q = 101 underflows where a is 1e-4 of the longest, unless it is scaled first.
    X = np.array([[[2.0, 0], [0, 0]], [[0, short], [0, 0]]])
    problem = att_svm(attsvm.TokenData.cross(X, np.eye(2)), [0, 0])
    solution = solve(problem, norm)
    assert solution.status != [Status.INFEASIBLE]
    # Both rows see one entry of W each, so W = diag(1/2, 1/short).
    q = float(norm[1:])
    expected = (0.5**q + short**-q) ** (1 / q)
    assert solution.lower.item() <= expected * (1 + 1e-9)
    if solution.solved.item():
        assert solution.upper.item() == pytest.approx(expected, rel=1e-6)


def test_solutions_are_saved_indexed_and_shown(tmp_path) -> None:
    data = sphere(3, 4, 2, trials=12, seed=0)  # some of them infeasible
    solution = solve(att_svm(data), "l1.5")
    assert {str(status) for status in solution.status} == {"solved", "infeasible"}
    for suffix in (".npz", ".safetensors"):
        solution.save(tmp_path / f"solution{suffix}", data.optimal_tokens())
        loaded = attsvm.MaxMargin.load(tmp_path / f"solution{suffix}")
        assert loaded.status == solution.status
        assert loaded.geometry == solution.geometry
        assert torch.equal(loaded.W.nan_to_num(), solution.W.nan_to_num())
        assert torch.equal(loaded.support_tokens, solution.support_tokens)
        assert torch.equal(loaded.multipliers, solution.multipliers)
    with np.load(tmp_path / "solution.npz") as saved:
        broken = {name: saved[name] for name in saved} | {"status": np.zeros(12, dtype=np.int64)}
    np.savez(tmp_path / "broken.npz", **broken)
    with pytest.raises(attsvm.AttsvmError, match="W must be finite where the status is solved"):
        attsvm.MaxMargin.load(tmp_path / "broken.npz")
    assert torch.equal(solution[3].lower, solution.lower[3:4])
    assert torch.equal(solution[-1].support_tokens, solution.support_tokens[-1:])
    assert torch.equal(solution[solution.solved].norm, solution.norm[solution.solved])
    assert [len(part) for part in solution] == [1] * 12
    rows = solution.rows()
    assert [row["status"] for row in rows] == [str(status) for status in solution.status]
    assert solution._repr_html_().count("<tr>") == 13
    table = solution.to_dataframe()
    assert len(table) == 12
    solved = solution.solved.nonzero()[0].item()
    picture = pytest.importorskip("matplotlib.figure").Figure().subplots()
    assert solution.plot(solved, picture) is picture
    assert torch.equal(torch.from_numpy(picture.images[0].get_array().data), solution.W[solved])
    with pytest.raises(attsvm.AttsvmError, match="is infeasible"):
        solution.plot(solution.infeasible.nonzero()[0].item())


@pytest.mark.parametrize("geometry", ["l1.5", "linf"])
def test_efficiency_by_loops(geometry: str) -> None:
    """The least margin of W/‖W‖, each row over what it asks, times the least norm; equality rows do not count."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 4, 5)), rng.uniform(1, 2, size=(3, 4))
    b[:, 3] = 0
    equality, present = np.arange(4) == 3, np.array([[True] * 4, [True] * 4, [False, True, True, True]])
    problem = attsvm.MarginProblem.from_rows(A, b=b, equality=np.tile(equality, (3, 1)), present=present)
    solution = solve(problem, geometry, tol=1e-11)
    assert solution.solved.all()
    W = torch.from_numpy(rng.normal(size=(3, 5, 1)))
    for k in range(3):
        rows = [i for i in range(3) if present[k, i]]
        least = min(float(A[k, i] @ W[k, :, 0].numpy()) / b[k, i] for i in rows)
        expected = least / solution.geometry.norm(W[k]).item() * solution.norm[k].item()
        assert solution.efficiency(W)[k].item() == pytest.approx(expected, rel=1e-9)
    assert torch.allclose(solution.efficiency(solution.W), torch.ones(3, dtype=torch.float64), rtol=1e-9)
    assert torch.allclose(solution.efficiency(7 * W), solution.efficiency(W))
    assert (solution.efficiency(torch.zeros(5, 1)) == 0).all()


@pytest.mark.parametrize("tol", [0.0, 9e-14, 1.0, 2.0])
def test_tolerances_that_cannot_be_meant_are_refused(tol: float) -> None:
    problem = attsvm.MarginProblem.from_rows([[1.0, 2.0]])
    with pytest.raises(attsvm.AttsvmError, match="tol must be between 1e-13 and 1"):
        solve(problem, tol=tol)
    for fine in (1e-13, 0.999):
        assert solve(problem, tol=fine).solved.all()
