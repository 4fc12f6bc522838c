"""W_mm, W_fin, W_svmeq, W_1token, and the fitted rates."""

import math

import pytest
import torch
from diagnostics_naive import random_W, with_head

from attsvm import AttsvmError, att_svm, gen_svm, solve, sphere
from attsvm.diagnostics import best_combination, correlation, fit_rate, predictions, selected_tokens, theorem_rate


def test_best_combination_by_a_search_over_gamma() -> None:
    generator = torch.Generator().manual_seed(0)
    W, F, M = torch.randn(3, 40, 3, 3, generator=generator, dtype=torch.float64)
    W = W + F + M
    direction, gamma = best_combination(W, F, M)
    grid = torch.cat([torch.zeros(1), torch.logspace(-4, 4, 40001), torch.tensor([1e12])]).double()
    M_unit = M / torch.linalg.matrix_norm(M)[:, None, None]
    for b in range(40):
        best = correlation(W[b], F[b] + grid[:, None, None] * M_unit[b]).max().item()
        assert correlation(W[b], direction[b]).item() == pytest.approx(best, abs=1e-7)
        if 0 < gamma[b] < torch.inf:
            assert correlation(direction[b], F[b] + gamma[b] * M_unit[b]).item() == pytest.approx(1)
    assert {bool(x) for x in (gamma > 0) & (gamma < torch.inf)} == {True, False}


def test_best_combination_without_one_of_the_two() -> None:
    W, F, M = torch.randn(3, 1, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction, gamma = best_combination(W, torch.zeros_like(F), M)
    assert correlation(direction, M).item() == pytest.approx(1)
    assert gamma.item() == torch.inf
    direction, _ = best_combination(F + 0.1 * W, F, torch.full_like(M, torch.nan))
    assert correlation(direction, F).item() == pytest.approx(1)
    direction, gamma = best_combination(W, torch.zeros_like(F), torch.full_like(M, torch.nan))
    assert direction.isnan().all()
    assert gamma.isnan().all()


def test_predictions_recover_a_composed_w() -> None:
    """W = W_fin + 50 W_mm, built from chosen sets and weights, is found again."""
    data = with_head(sphere(2, 4, 8, trials=5, seed=2), "quadratic")
    sets = torch.zeros_like(data.mask)
    sets[..., :2] = True
    W_mm = solve(gen_svm(data, sets), tol=1e-12).W
    W_fin = 0.3 * random_W(data)
    W = W_fin + 50 * W_mm
    found = predictions(data, W)
    assert found.sets.selected.equal(sets)
    assert found.sets.decided.all()
    torch.testing.assert_close(found.W_mm, W_mm, atol=1e-4, rtol=1e-4)
    # (x_t − x_τ)ᵀ W_fin z = log(s_t/s_τ) on the selected pair, and W_fin is no longer than the one used.
    ratio = data.attention(W).log()
    got = data.logits(found.W_fin)
    torch.testing.assert_close(got[..., 0] - got[..., 1], ratio[..., 0] - ratio[..., 1])
    assert (torch.linalg.matrix_norm(found.W_fin) <= torch.linalg.matrix_norm(W_fin)).all()
    better = correlation(W, found.W_svmeq) - correlation(W, found.W_mm)
    assert (better > -1e-9).all()
    assert (correlation(W, found.W_mm) > correlation(W, found.W_1token)).all()
    torch.testing.assert_close(found.W_1token, solve(att_svm(data, selected_tokens(data, W))).W)


def test_predictions_of_single_tokens_are_all_the_same() -> None:
    data = sphere(3, 4, 6, trials=4)
    W = 100 * solve(att_svm(data)).W
    found = predictions(data, W)
    assert (found.W_fin == 0).all()
    torch.testing.assert_close(found.W_mm, found.W_1token)
    assert (found.gamma == torch.inf).all()
    torch.testing.assert_close(correlation(W, found.W_svmeq), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("power", [-2.0, -0.5])
def test_the_fit_finds_powers(power: float) -> None:
    k = torch.tensor([0, 1, 10, 30, 100, 300, 1000, 3000, 10000, 100000])
    D = torch.stack([3 * k.double().clamp(min=1) ** power, 5 * k.double().clamp(min=2).log() ** power], 1)
    rate = fit_rate(k, D, 2.0)
    assert rate.power[0].item() == pytest.approx(power)
    assert rate.log_power[1].item() == pytest.approx(power)
    # Steps ≥ √100000: 1000, 3000, 10000, 100000.
    assert rate.points.tolist() == [4, 4]


def test_the_excess_is_zero_at_the_theorems_rate() -> None:
    k = torch.logspace(1, 8, 40).long()
    for p in (1.5, 2.0, 3.0):
        for text, value in theorem_rate(p, k).items():
            rate = fit_rate(k, torch.stack([7 * value, value * value.sqrt(), value.sqrt()], 1), p)
            assert rate.excess[text][0].item() == pytest.approx(0, abs=1e-9)
            assert rate.excess[text][1] < 0 < rate.excess[text][2]


def test_theorem_rates_by_hand() -> None:
    k = torch.tensor([math.e**math.e])  # log k = e, log log k = 1
    e = math.e
    assert [float(x) for x in theorem_rate(3.0, k).values()] == pytest.approx([1 / e, 1 / e], rel=1e-6)
    k = torch.tensor([math.e**4], dtype=torch.float64)  # log k = 4
    ll = math.log(4)
    assert [float(x) for x in theorem_rate(2.0, k).values()] == pytest.approx([ll**2 / 4] * 2)
    assert [float(x) for x in theorem_rate(1.5, k).values()] == pytest.approx([ll / 2, 1 / 2])
    with pytest.raises(AttsvmError, match="p must be above 1"):
        theorem_rate(1.0, k)


def test_the_fit_leaves_out_zeros_and_nans_and_too_few_points() -> None:
    k = torch.tensor([100, 200, 400, 800, 1600, 3200])
    D = k.double()[:, None].expand(-1, 3) ** -1.0
    D = D.clone()
    D[2, 0], D[3:, 1] = 0, torch.nan
    rate = fit_rate(k, D)
    assert rate.power[0].item() == pytest.approx(-1)
    assert rate.power[1].isnan()
    assert rate.points.tolist() == [5, 3, 6]
    assert rate.excess == {}
    with pytest.raises(AttsvmError, match="shape"):
        fit_rate(k, D[:-1])


def test_no_rate_is_fitted_below_rounding() -> None:
    """k⁻³ sinks below what float64 shows of it: the part above tells the rate, the floor does not."""
    steps = torch.logspace(2, 8, 61).round().long()
    shown = steps.double()[:, None].pow(-3).clamp(min=3e-16)
    early = fit_rate(steps[:15], shown[:15])
    assert abs(early.power.item() + 3) < 1e-9
    assert fit_rate(steps, shown).power.isnan().all()  # in the last half nothing is left to fit
    assert (fit_rate(steps, shown).points == 0).all()
