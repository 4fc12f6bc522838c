"""Small integers make rows that contradict each other in a subspace, exactly: every norm must say the same."""

import numpy as np
import pytest
import torch
from oracles import feasible
from scipy.optimize import nnls

from attsvm import MarginProblem, Status, TokenData, att_svm, solve
from attsvm.svm._active import _nonnegative, solve_active
from attsvm.svm._solve import prepare


@pytest.fixture(scope="module")
def data() -> TokenData:
    """Those of many random half-integer problems that no interior point decides, and some others."""
    draw = torch.Generator().manual_seed(1)
    X = (torch.randint(-2, 3, (1500, 3, 6, 2), generator=draw) / 2).double()
    z = torch.randint(-1, 2, (1500, 3, 2), generator=draw).double()
    hard = [88, 130, 136, 263, 410, 664, 690, 1201, 1446]
    return TokenData.cross(X, z)[torch.tensor([*hard, *range(40)])]


@pytest.mark.parametrize("norm", ["l1.5", "l2", "l3", "l10", "nuclear", "spectral", "linf"])
def test_infeasible_where_the_linear_program_is(data: TokenData, norm: str) -> None:
    problem = att_svm(data, torch.zeros(data.B, 3, dtype=torch.long))
    solution = solve(problem, norm)
    for k, found in enumerate(feasible(problem)):
        assert solution.codes[k] == (Status.SOLVED if found else Status.INFEASIBLE), k


def test_nonnegative_least_squares(data: TokenData) -> None:
    stream = np.random.default_rng(0)
    for _ in range(20):
        E = stream.integers(-2, 3, size=(6, 12)).astype(float)
        lam, r = _nonnegative(E)
        f = np.eye(6)[-1]
        assert (lam >= 0).all()
        np.testing.assert_allclose(r, f - E @ lam, atol=1e-12)
        assert np.linalg.norm(r) == pytest.approx(nnls(E, f)[1], abs=1e-10)


def test_it_solves_l2_with_equalities() -> None:
    stream = np.random.default_rng(1)
    A = stream.normal(size=(20, 5, 4))
    equality = np.zeros((20, 5), dtype=bool)
    equality[:, 0] = True
    problem = MarginProblem.from_rows(A, b=np.where(equality, 0.0, 1.0), equality=equality)
    solution = solve(problem, "l2")
    system, _, scale, _ = prepare(problem, solution.geometry)
    W = solve_active(system).W * scale[:, None, None]
    solved = solution.solved
    assert solved.any()
    torch.testing.assert_close(W[solved], solution.W[solved], rtol=1e-6, atol=1e-8)
