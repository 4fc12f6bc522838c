"""What is written out for blocks of one entry against what the libraries do for any size."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from attsvm import Lp, att_svm, solve, sphere
from attsvm.geometry import Group, Hybrid, Part, Spectral
from attsvm.svm import _conic_step, solve_rank


@pytest.mark.parametrize("p", [2, 3])
def test_small_matrices(p: int) -> None:
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(4, 5, p, p, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(_conic_step._mm(A, B), A @ B)
    S = A @ A.mT
    L, failed = _conic_step.cholesky(S)
    torch.testing.assert_close(L, torch.linalg.cholesky(S))
    assert not failed.any()
    torch.testing.assert_close(_conic_step._inverse_of_factor(L), torch.linalg.inv(L))
    S[1, 2] = -S[1, 2]
    S[3, 0] = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)[:p])
    assert _conic_step.cholesky(S)[1].tolist() == [False, True, False, True]
    P = (A + A.mT) / 2
    lowest, exact = _conic_step._lowest(P, 10), torch.linalg.eigvalsh(P)[..., 0]
    assert (lowest <= exact + 1e-12).all()
    assert (lowest >= exact - (1e-12 if p == 2 else 0.5)).all()


def test_parts_with_the_largest_entry_are_the_largest_entry() -> None:
    problem = att_svm(sphere(3, 4, 4, trials=5, seed=1))
    largest = solve(problem, Lp(math.inf))
    parts = Hybrid((Part((0, 2), (0, 4), Lp(math.inf)), Part((2, 4), (0, 4), Lp(math.inf))))
    split = solve(problem, parts)
    assert torch.equal(split.solved, largest.solved)
    assert largest.solved.any()
    torch.testing.assert_close(split.norm, largest.norm, rtol=1e-8, atol=0)
    whole = solve(problem, Hybrid((Part((0, 4), (0, 4), Spectral()),)))
    torch.testing.assert_close(whole.norm, solve(problem, "spectral").norm, rtol=1e-8, atol=0)
    rows = Hybrid(tuple(Part((i, i + 1), (0, 4), Lp(2), 2.0) for i in range(4)))
    torch.testing.assert_close(
        solve(problem, rows).norm, 2 * solve(problem, Group("rows", largest=True)).norm, rtol=1e-8, atol=0
    )


@pytest.mark.parametrize("norm", ["l2", "nuclear"])
def test_factors_of_bounded_rank_keep_every_row_in_real_numbers(norm: str) -> None:
    problem = att_svm(sphere(2, 3, 4, trials=4, seed=1))
    low = solve_rank(problem, 1, norm, rounds=3)
    found = low.upper.isfinite().nonzero()[:, 0].tolist()
    assert found
    fractions = np.vectorize(Fraction, otypes=[object])
    for k in found:
        W = fractions(low.K[k].numpy()) @ fractions(low.Q[k].numpy()).T
        assert problem.A_low is not None
        for q, z in enumerate(fractions(problem.Z[k].numpy())):
            for r in problem.present[k, q].nonzero()[:, 0].tolist():
                a = fractions(problem.A[k, q, r].numpy()) + fractions(problem.A_low[k, q, r].numpy())
                assert a @ W @ z >= Fraction(problem.b[k, q, r].item())
        assert sum(float(x) ** 2 for x in W.flatten()) ** 0.5 <= low.upper[k].item() * (1 + 1e-15)
    assert repr(low).startswith(f"LowRank({norm}, rank 1, 4 instances")
