"""Norms with corners, spectral norms, norms with weights, own norms: solved, certified, and as others solve them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import assert_farkas, dense, feasible
from test_certificates import assert_true, fuzzer, planted, planted_tokens
from torch import Tensor

from attsvm import (
    AttsvmError,
    Geometry,
    Lp,
    MarginProblem,
    TokenData,
    att_svm,
    finite_part,
    gen_svm,
    margin_efficiency,
    solve,
    sphere,
)
from attsvm.geometry import Group, Hybrid, Mahalanobis, Part, Schatten, Spectral

SIZES = [(6, 8, 10), (5, 5, 4), (5, 5, 20)]
CORNERED = ["l1", "linf", "spectral", "group:rows", "group-max:columns"]
SMOOTH = ["schatten1.5", "schatten3"]


def norm_by_others(problem: MarginProblem, geometry: Geometry, k: int) -> float:
    """The optimal norm by HiGHS for ℓ1 and ℓ∞, by Clarabel for the others."""
    F, b, equality, present = (x[k] for x in dense(problem))
    assert not equality.any()
    F, b = F[present], b[present]
    N, D = F.shape
    d, e = problem.shape
    if geometry == Lp(1):
        result = scipy.optimize.linprog(np.ones(2 * D), A_ub=np.hstack((-F, F)), b_ub=-b, bounds=(0, None))
        return result.fun
    if geometry == Lp(math.inf):
        one, eye = np.ones((D, 1)), np.eye(D)
        rows = np.vstack((np.hstack((-F, np.zeros((N, 1)))), np.hstack((eye, -one)), np.hstack((-eye, -one))))
        right = np.concatenate((-b, np.zeros(2 * D)))
        result = scipy.optimize.linprog(np.append(np.zeros(D), 1.0), A_ub=rows, b_ub=right, bounds=(None, None))
        return result.fun
    import cvxpy as cp

    W = cp.Variable((d, e))
    problem_cp = cp.Problem(cp.Minimize(_objective(cp, W, geometry)), [F @ cp.vec(W, order="C") >= b])
    return float(problem_cp.solve(solver=cp.CLARABEL))  # type: ignore[arg-type]


def _objective(cp: Any, W: Any, geometry: Geometry) -> Any:
    d, e = W.shape
    if geometry == Spectral():
        return cp.sigma_max(W)
    if isinstance(geometry, Group):
        parts = [W[i] for i in range(d)] if geometry.groups == "rows" else [W[:, j] for j in range(e)]
        norms = [cp.norm(part, 2) for part in parts]
        return cp.maximum(*norms) if geometry.largest else sum(norms)
    if isinstance(geometry, Mahalanobis):
        M = np.array(geometry.M)
        root = np.linalg.cholesky(M if len(M) == d * e else np.diag(M.flatten()))
        return cp.norm(root.T @ cp.vec(W, order="C"), 2)
    assert isinstance(geometry, Hybrid)
    parts = [W[slice(*p.rows), slice(*p.columns)] for p in geometry.parts]
    norms = [
        cp.max(cp.abs(V)) if p.geometry == Lp(math.inf) else cp.sigma_max(V) for p, V in zip(geometry.parts, parts)
    ]
    return cp.maximum(*(p.weight * norm for p, norm in zip(geometry.parts, norms)))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("geometry", CORNERED + SMOOTH)
def test_random_instances_are_solved(size: tuple[int, int, int], geometry: str) -> None:
    data = sphere(*size, trials=4 if size[2] == 20 else 20, seed=3)
    tokens = torch.randint(0, data.T, (data.B, data.n, 1), generator=torch.Generator().manual_seed(0))
    problem = att_svm(data, tokens)
    solution = solve(problem, geometry)
    assert not solution.open.any()
    assert (solution.gap[solution.solved] <= 1e-9).all()
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~feasible(problem))
    assert_farkas(problem, solution)
    for k in range(2):
        if bool(solution.solved[k]) and geometry not in SMOOTH and size[2] < 20:
            expected = norm_by_others(problem, solution.geometry, k)
            assert solution.norm[k].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("geometry", CORNERED + SMOOTH)
def test_infeasible_instances_are_all_found_and_none_falsely(geometry: str) -> None:
    data = sphere(5, 5, 2, trials=40, seed=5)
    tokens = torch.randint(0, 5, (40, 5, 1), generator=torch.Generator().manual_seed(1))
    problem = att_svm(data, tokens)
    solution, truth = solve(problem, geometry), feasible(problem)
    assert 0 < truth.sum() < 40
    np.testing.assert_array_equal(solution.infeasible.numpy(), ~truth)
    assert_farkas(problem, solution)
    assert not solution.open.any()


def test_weighted_and_hybrid_norms_agree_with_clarabel() -> None:
    problem = att_svm(sphere(4, 4, 5, trials=2, seed=1))
    rng = np.random.default_rng(0)
    root = rng.normal(size=(25, 25))
    M = root @ root.T + np.eye(25)
    hybrid = Hybrid((Part((0, 2), (0, 5), Lp(math.inf)), Part((2, 5), (0, 5), Spectral(), 2.0)))
    for geometry in (Mahalanobis((M + M.T) / 2), Mahalanobis(rng.uniform(0.5, 2, size=(5, 5))), hybrid):
        solution = solve(problem, geometry)
        assert solution.solved.all()
        for k in range(2):
            assert solution.norm[k].item() == pytest.approx(norm_by_others(problem, geometry, k), rel=1e-6)


def test_schatten_between_its_known_cases() -> None:
    problem = att_svm(sphere(5, 5, 4, trials=6, seed=2))
    for geometry, same in ((Schatten(1), "nuclear"), (Schatten(2), "l2")):
        assert torch.allclose(solve(problem, geometry).norm, solve(problem, same).norm, rtol=3e-9)
    norms = [solve(problem, f"schatten{p}").norm for p in (1, 1.2, 1.5, 2, 3, 6)] + [solve(problem, "spectral").norm]
    for larger, smaller in itertools.pairwise(norms):
        assert (larger >= smaller * (1 - 1e-9)).all()


def test_schatten_with_extreme_exponents_is_next_to_spectral_and_nuclear() -> None:
    """‖W‖_∞ ≤ ‖W‖_p ≤ 3^(1/p)‖W‖_∞ and ‖W‖_p ≤ ‖W‖_1 ≤ 3^(1/q)‖W‖_p; σ^1000 itself leaves the range of float64."""
    problem = att_svm(sphere(2, 3, 3, trials=2, seed=0))
    for p, limit in ((1000, "spectral"), (1.001, "nuclear")):
        near, at = solve(problem, Schatten(p)), solve(problem, limit)
        far = 3 ** (1 / 1000)
        assert (near.lower <= at.upper * far).all()
        assert (near.upper >= at.lower / far).all()
        assert (near.lower <= near.upper).all()


def test_a_single_row_has_a_closed_form() -> None:
    problem = att_svm(sphere(1, 2, 5, trials=5, seed=2))
    F = problem.A[:, 0].mT @ problem.Z[:, :1]
    for name in [*CORNERED, *SMOOTH]:
        solution = solve(problem, name)
        assert torch.allclose(solution.norm, 1 / solution.geometry.dual_norm(F), rtol=2e-9, atol=0)


@pytest.mark.parametrize("geometry", CORNERED + SMOOTH)
def test_equalities_and_interpolation(geometry: str) -> None:
    data = sphere(4, 5, 6, trials=6, seed=3)
    selected = torch.zeros_like(data.mask)
    selected[..., 0] = True
    selected[:, ::2, :, 1] = True
    s = data.attention(5 * sphere(1, 6, 6, trials=6, seed=3).X[:, 0])
    for problem in (gen_svm(data, selected), finite_part(data, s, selected)):
        solution = solve(problem, geometry)
        assert solution.solved.all()
        assert (solution.violation < 1e-9).all()
        if geometry not in SMOOTH:
            assert_true(problem, solution)


def test_cornered_norms_have_no_false_certificate() -> None:
    rows = list(fuzzer.fuzz(instances=330, seed=21, norms=("l1", "linf", "spectral")))
    assert all(row["verified"] for row in rows)
    assert sum(row["status"] == "not converged" for row in rows) <= 6


@pytest.mark.parametrize("geometry", CORNERED)
def test_small_margins_and_many_rows(geometry: str) -> None:
    problem = planted(30, 3, 3, 1e-5)
    solution = solve(problem, geometry)
    assert not solution.infeasible.any()
    assert (solution.gap < 1e-6).all()
    assert_true(problem, solution)
    data = planted_tokens(60)
    many = solve(att_svm(data, np.zeros(60, dtype=int)), geometry)
    assert many.solved.all()


@dataclass(frozen=True)
class Own(Geometry):
    """(Σ|W|³)^(1/3), known only by its norm and dual norm."""

    @property
    def name(self) -> str:
        return "own"

    def norm(self, W: Tensor) -> Tensor:
        return Lp(3).norm(W)

    def dual_norm(self, G: Tensor) -> Tensor:
        return Lp(1.5).norm(G)


@dataclass(frozen=True)
class HalfOwn(Geometry):
    @property
    def name(self) -> str:
        return "half"

    def norm(self, W: Tensor) -> Tensor:
        return Lp(3).norm(W)


def test_an_own_norm_is_solved_by_its_dual() -> None:
    problem = att_svm(sphere(3, 4, 4, trials=5, seed=1))
    own, known = solve(problem, Own()), solve(problem, "l3")
    assert own.solved.all()
    assert torch.allclose(own.norm, known.norm, rtol=3e-9)
    with pytest.raises(AttsvmError, match="geometry half must define dual_norm to solve margin problems"):
        solve(problem, HalfOwn())


def test_masked_and_duplicate_tokens() -> None:
    X = sphere(3, 4, 5, trials=3, seed=1).X.clone()
    Z = sphere(3, 4, 5, trials=3, seed=1).Z.clone()
    X[1, 0, 3] = X[1, 0, 2]
    X[2, 0, 3] = X[2, 0, 0]
    mask = torch.ones(3, 3, 4, dtype=torch.bool)
    mask[0, :, 3] = False
    for geometry in [*CORNERED, *SMOOTH]:
        solution = solve(att_svm(TokenData.cross(X, Z, mask=mask), [0, 0, 0]), geometry)
        assert [str(s) for s in solution.status] == ["solved", "solved", "infeasible"]
        small = solve(att_svm(TokenData.cross(X[:1, :, :3], Z[:1]), [0, 0, 0]), geometry)
        assert small.norm.item() == pytest.approx(solution.norm[0].item(), rel=2e-9)


def test_margin_efficiency_and_uniqueness() -> None:
    data = sphere(4, 5, 6, trials=5, seed=3)
    problem = att_svm(data)
    for name, unique in (("l2", True), ("l1.5", True), ("schatten3", True), ("l1", True), ("spectral", False)):
        solution = solve(problem, name)
        assert (solution.unique == unique).all()
        own = margin_efficiency(7.0 * solution.W, solution)
        assert ((own >= 1 - 1e-8) & (own <= 1 + 1e-12)).all()
        others = solution.efficiency(solve(problem, "l3").W)
        assert ((others > 0) & (others <= own + 1e-12)).all()
        assert (solution.efficiency(-solution.W) < 0).all()
        assert (solution.efficiency(torch.zeros(6, 6)) == 0).all()
        assert solution.efficiency(torch.full((6, 6), torch.nan)).isnan().all()
        assert torch.equal(solution.efficiency(solution.W.numpy()), solution.efficiency(solution.W))
        with pytest.raises(AttsvmError, match=r"W must have shape \(d, e\)"):
            solution.efficiency(torch.zeros(5, 6))
    assert solve(MarginProblem.from_rows(np.eye(3)), "nuclear").unique.all()
    infeasible = solve(MarginProblem.from_rows([[1.0, 0], [-1, 0]]), "l2")
    assert infeasible.efficiency(torch.ones(2, 1)).isnan().all()
    assert not infeasible.unique.any()
