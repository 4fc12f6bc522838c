"""Correlation, misalignment, margins and rank against their definitions."""

import mpmath
import pytest
import torch
from diagnostics_naive import logit, masked_data, queries, random_tokens, random_W, visible
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import AttsvmError, Frobenius, Lp, Nuclear, att_svm, example1, solve
from attsvm.diagnostics import (
    correlation,
    direction_error,
    directional_bregman,
    margin_ratio,
    margins,
    misalignment,
    numerical_rank,
)


def exact_correlation(W: torch.Tensor, V: torch.Tensor) -> mpmath.mpf:
    w = [mpmath.mpf(x) for x in W.flatten().tolist()]
    v = [mpmath.mpf(x) for x in V.flatten().tolist()]
    dot = mpmath.fsum(a * b for a, b in zip(w, v))
    return dot / mpmath.sqrt(mpmath.fsum(a * a for a in w) * mpmath.fsum(b * b for b in v))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), distance=st.floats(-8, 1), scale=st.floats(-150, 150))
def test_correlation_and_misalignment_agree_with_mpmath(seed: int, distance: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    V, E = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    W = (V + 10**distance * E) * 10**scale
    with mpmath.workdps(60):
        exact = exact_correlation(W, V)
        assert correlation(W, V).item() == pytest.approx(float(exact), abs=4e-16)
        # Rounding of W and V alone moves a misalignment m by about eps·√m.
        bound = 1e-15 * float(mpmath.sqrt(1 - exact)) + 1e-31
        assert misalignment(W, V).item() == pytest.approx(float(1 - exact), abs=bound)


def test_misalignment_at_1e_14_by_hand() -> None:
    # (1, t) against (1, 0): 1 − 1/√(1 + t²) = t²/2 up to t⁴.
    t = 2**0.5 * 1e-7
    W, V = torch.tensor([[1.0, t]], dtype=torch.float64), torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    assert misalignment(W, V).item() == pytest.approx(1e-14, rel=1e-8)
    assert misalignment(W, -V).item() == pytest.approx(2, rel=1e-12)


def test_zero_matrices_have_no_direction() -> None:
    W = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]], dtype=torch.float64)
    assert misalignment(W, W).tolist() == [0, 1]
    assert correlation(W, W)[1] == 0
    assert correlation(W, W)[0].item() == pytest.approx(1)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_directional_bregman_by_its_definition(p: float) -> None:
    W, V = random_W(masked_data(2), 1), random_W(masked_data(2), 2)
    w = W / W.abs().pow(p).sum((1, 2), keepdim=True) ** (1 / p)
    v = V / V.abs().pow(p).sum((1, 2), keepdim=True) ** (1 / p)
    psi = lambda x: x.abs().pow(p).sum((1, 2)) / p  # noqa: E731
    naive = psi(w) - psi(v) - (v.sign() * v.abs() ** (p - 1) * (w - v)).sum((1, 2))
    torch.testing.assert_close(directional_bregman(W, V, Lp(p)), naive)
    torch.testing.assert_close(direction_error(W, V, Lp(p)), naive)
    # For p = 2 it is the misalignment.
    torch.testing.assert_close(directional_bregman(W, V, Frobenius()), misalignment(W, V))
    torch.testing.assert_close(direction_error(W, V, Nuclear()), misalignment(W, V))


def test_margins_and_their_ratio_by_loops() -> None:
    data = masked_data(4)
    tokens, W = random_tokens(data), random_W(data)
    solution = solve(att_svm(data, tokens), "l3")
    got, ratio = margins(data, tokens, W), margin_ratio(data, tokens, W, Lp(3), solution)
    smallest = [float("inf")] * data.B
    for b, i, k in queries(data):
        alpha = int(tokens[b, i, k])
        for t in range(data.T):
            if t == alpha or t not in visible(data, b, i, k):
                assert got[b, i, k, t] == float("inf")
                continue
            margin = logit(data, W, b, i, k, alpha) - logit(data, W, b, i, k, t)
            assert got[b, i, k, t].item() == pytest.approx(margin, abs=1e-12)
            smallest[b] = min(smallest[b], margin)
    for b in range(data.B):
        norm = W[b].abs().pow(3).sum().item() ** (1 / 3)
        assert ratio[b].item() == pytest.approx(smallest[b] / norm * solution.norm[b].item())
    torch.testing.assert_close(margin_ratio(data, tokens, 7 * W, Lp(3), solution), ratio)
    assert (ratio <= 1).all()


def test_margin_ratio_of_the_solution_is_one_and_needs_its_norm() -> None:
    data = example1()
    solution = solve(att_svm(data), "l2", tol=1e-12)
    assert margin_ratio(data, [0, 0], solution.W, Frobenius(), solution).item() == pytest.approx(1)
    with pytest.raises(AttsvmError, match="norm l3"):
        margin_ratio(data, [0, 0], solution.W, Lp(3), solution)


def test_numerical_rank_counts_singular_values_above_its_rule() -> None:
    diagonal = torch.tensor([[1.0, 0.5, 2e-4, 0], [1.0, 0.5, 5e-5, 0], [0, 0, 0, 0]], dtype=torch.float64)
    W = torch.diag_embed(diagonal) * 1e6
    assert numerical_rank(W).tolist() == [3, 2, 0]
    assert numerical_rank(W, 1e-6).tolist() == [3, 3, 0]
    with pytest.raises(AttsvmError, match="rtol"):
        numerical_rank(W, 1.5)
