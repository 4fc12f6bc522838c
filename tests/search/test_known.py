"""The two counter-examples, proved: by induction for any step size, and by interval arithmetic."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
import torch

from attsvm import AttsvmError, att_svm, solve, sphere, train
from attsvm.diagnostics import assumption_c, is_locally_optimal, lipschitz_constant
from attsvm.search import PreciseDescent, counterexample, wrong_for_good


def test_theorem_4_fails_for_every_step_size() -> None:
    """|a₂| ≥ 1.875 a₁ > 0 at every step, as the induction says."""
    data = counterexample(4)
    for lr in (0.01, 1.0, 100.0, 1e4):
        run = train(data, steps=200, lr=lr, normalize=False, loss="correlation", record=("W",), at=1, compile=False)
        a = torch.stack([data.logits(W)[0, :, 0] for W in run.records["W"][1:]])
        a1, a2 = (a[..., 0] - a[..., 1]).unbind(1)
        assert (a1 > 0).all()
        assert (a2 <= -1.875 * a1 * (1 - 1e-12)).all()
        assert (a1.diff() >= 0).all()


def test_theorem_7_contradicts_theorem_4() -> None:
    """(opt₁, wrong₂) is locally optimal: (1, 0) separates it, and the second sequence has no support token."""
    data = counterexample(4)
    solution = solve(att_svm(data, [0, 1]), tol=1e-12)
    torch.testing.assert_close(solution.W[0, :, 0], torch.tensor([1.0, 0.0]).double(), atol=1e-6, rtol=0)
    assert not solution.support_tokens[0, 1].any()
    assert is_locally_optimal(data, [0, 1], solution).all()
    torch.testing.assert_close(solve(att_svm(data)).W[0, :, 0], torch.tensor([1.0, 3.0]).double(), atol=1e-6, rtol=0)


def test_theorem_6_fails_for_good() -> None:
    data = counterexample(6)
    assert (12 * assumption_c(data, "correlation").value).item() == pytest.approx(41)
    assert 0.00038 * lipschitz_constant(data, "correlation").item() < 1
    assert wrong_for_good(Fraction(38, 100_000), steps=600)
    assert not wrong_for_good(Fraction(38, 100_000), steps=100)  # too early to tell


def test_intervals_hold_what_many_digits_give() -> None:
    data = sphere(2, 3, 4, seed=5)
    W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    for loss in ("correlation", "logistic", "exponential"):
        wide, sharp = mpmath.MPIntervalContext(), mpmath.MPContext()
        wide.dps, sharp.dps = 20, 50
        runs = [PreciseDescent(data, loss, ctx, W) for ctx in (wide, sharp)]
        for run in runs:
            assert list(run.run("0.1", 20))[-1] == 20
        floats = train(data, steps=20, lr=0.1, normalize=False, loss=loss, init={"W": W[None]}, compile=False).W[0]
        for d in range(4):
            for e in range(4):
                assert runs[1].W[d][e] in runs[0].W[d][e]
                assert runs[0].W[d][e].delta < 1e-15
                assert float(runs[1].W[d][e]) == pytest.approx(floats[d, e].item(), abs=1e-13)
        assert runs[0].tokens() == data.logits(floats)[0, :, 0].argmax(-1).tolist()


def test_bad_input_is_refused() -> None:
    with pytest.raises(AttsvmError, match="theorem must be one of 4, 6"):
        counterexample(5)
    with pytest.raises(AttsvmError, match="one trial"):
        PreciseDescent(sphere(1, 2, 2, trials=2), "logistic", mpmath.mp)
    with pytest.raises(AttsvmError, match="loss must be"):
        PreciseDescent(sphere(1, 2, 2), "hinge", mpmath.mp)
