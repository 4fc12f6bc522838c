"""Selected tokens and sets, low and high scores, local and global optimality, and the cones."""

import pytest
import torch
from diagnostics_naive import logit, masked_data, queries, random_tokens, random_W, score, visible, with_head

from attsvm import AttsvmError, Lp, Status, TokenData, att_svm, example1, solve, sphere
from attsvm.diagnostics import (
    has_unique_optimum,
    in_C,
    in_C_mu,
    in_cone_epsilon,
    in_cone_mu,
    in_S,
    is_globally_optimal,
    is_locally_optimal,
    low_high,
    selected_sets,
    selected_tokens,
    separation,
)


def test_selected_tokens_have_the_largest_logit() -> None:
    data = masked_data()
    W = random_W(data)
    tokens = selected_tokens(data, W)
    for b, i, k in queries(data):
        best = max(visible(data, b, i, k), key=lambda t: logit(data, W, b, i, k, t))
        assert tokens[b, i, k] == best


def test_selected_sets_by_the_thresholds_of_the_paper() -> None:
    weights = torch.tensor([0.9, 0.0985, 1.5e-3, 5e-4, 1e-9]).double().reshape(1, 1, 1, 5)
    sets = selected_sets(weights)
    assert sets.selected.flatten().tolist() == [True, True, True, False, False]
    assert sets.undecided.flatten().tolist() == [False, False, False, True, False]
    assert sets.masked.flatten().tolist() == [False, False, False, False, True]
    assert sets.decided.tolist() == [False]
    assert selected_sets(weights, masked=1e-3).decided.tolist() == [True]
    hidden = torch.tensor([True, True, True, False, True]).reshape(1, 1, 1, 5)
    assert selected_sets(weights, allowed=hidden).decided.tolist() == [True]


def test_the_heaviest_token_is_selected_however_many_there_are() -> None:
    weights = torch.full((1, 1, 1, 2000), 1 / 2000, dtype=torch.float64)
    assert selected_sets(weights).selected.sum() == 1
    with pytest.raises(AttsvmError, match="masked ≤ selected"):
        selected_sets(weights, 1e-6, 1e-3)
    with pytest.raises(AttsvmError, match="shape"):
        selected_sets(weights[0])


@pytest.mark.parametrize("kind", ["linear", "quadratic", "mlp"])
def test_low_high_and_global_optimality_by_loops(kind: str) -> None:
    data = with_head(masked_data(), kind)
    tokens = random_tokens(data)
    tokens[0] = data.optimal_tokens()[0]
    low, high = low_high(data, tokens)
    best = [True] * data.B
    for b, i, k in queries(data):
        alpha = int(tokens[b, i, k])
        for t in range(data.T):
            seen = t in visible(data, b, i, k)
            below = seen and score(data, b, i, k, t) < score(data, b, i, k, alpha)
            assert low[b, i, k, t] == below
            assert high[b, i, k, t] == (seen and t != alpha and not below)
            best[b] &= not seen or below or t == alpha
    assert is_globally_optimal(data, tokens).tolist() == best
    assert best[0]


def test_of_equal_best_tokens_each_is_globally_optimal() -> None:
    data = TokenData.cls([[[1.0, 0], [1.0, 1], [0.0, 0]]], head=[1.0, 0.0])
    assert [is_globally_optimal(data, [t]).item() for t in range(3)] == [True, True, False]
    assert not has_unique_optimum(data).item()


def test_scores_that_rounding_does_not_tell_apart_are_ties() -> None:
    """The numbers of the first two tokens have one sum, though not in float64."""
    data = TokenData.cls([[[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [-1.0, 0, 0]]], head=[1.0, 1.0, 1.0])
    assert data.score_gap().item() > 0
    assert not has_unique_optimum(data).item()
    low, high = low_high(data, [0])
    assert low.flatten().tolist() == [False, False, True]
    assert high.flatten().tolist() == [False, True, False]
    solution = solve(att_svm(data, [0]))
    assert solution.support_tokens[0, 0, 0, 1]
    assert not is_locally_optimal(data, [0], solution).item()


@pytest.mark.parametrize("geometry", ["l1.75", "l2", "l3", "nuclear"])
def test_local_optimality_by_its_definition(geometry: str) -> None:
    data = sphere(3, 4, 5, trials=40, seed=1)
    tokens = random_tokens(data)
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    got = is_locally_optimal(data, tokens, solution)
    W = torch.nan_to_num(solution.W)
    for b in range(data.B):
        expected = solution.status[b] == Status.SOLVED
        for i in range(data.n):
            alpha = int(tokens[b, i, 0])
            for t in set(range(data.T)) - {alpha}:
                tight = abs(logit(data, W, b, i, 0, alpha) - logit(data, W, b, i, 0, t) - 1) < 1e-6
                expected &= not tight or score(data, b, i, 0, alpha) > score(data, b, i, 0, t)
        assert got[b] == expected, b
    assert 0 < got.sum() < data.B
    everywhere = solve(att_svm(data), geometry)
    assert is_locally_optimal(data, data.optimal_tokens(), everywhere).equal(everywhere.solved)


def test_infeasible_tokens_are_not_locally_optimal() -> None:
    data = TokenData.cls([[[0.0, 0], [1.0, 0], [-1.0, 0]]], head=[[0.0, 1.0]])
    solution = solve(att_svm(data, [0]))
    assert solution.infeasible.item()
    assert not is_locally_optimal(data, [0], solution).item()


def test_example1_first_tokens_are_globally_and_locally_optimal() -> None:
    data = example1()
    solution = solve(att_svm(data, [0, 0]), "l2")
    # One non-optimal token each, and both are at the margin.
    assert solution.support_tokens[0, :, 0].tolist() == [[False, True], [False, True]]
    assert is_globally_optimal(data, [0, 0]).item()
    assert is_locally_optimal(data, [0, 0], solution).item()
    # The second tokens separate as well, but they lose in score.
    other = solve(att_svm(data, [1, 1]), "l2")
    assert not is_locally_optimal(data, [1, 1], other).item()


def test_correlation_cones_by_hand() -> None:
    center = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    W = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)  # correlation 0.6, norm 5
    assert in_cone_mu(W, center, 0.41).item()
    assert not in_cone_mu(W, center, 0.39).item()
    assert in_C_mu(W, center, 0.41, 5.0).item()
    assert not in_C_mu(W, center, 0.41, 5.1).item()


def test_bregman_cones_by_hand_with_the_norm_of_w() -> None:
    # p = 3, center e₁, W = (1, 1): D = 1 − ⟨∇ψ(W/2^⅓), e₁⟩ = 1 − 2^(−2/3), and ‖W‖ = 2^⅓.
    center = torch.tensor([[[9.0, 0.0]]], dtype=torch.float64)
    W = torch.tensor([[[1.0, 1.0]]], dtype=torch.float64)
    D, norm = 1 - 2 ** (-2 / 3), 2 ** (1 / 3)
    assert in_S(W, center, D + 1e-12, Lp(3)).item()
    assert not in_S(W, center, D - 1e-12, Lp(3)).item()
    assert in_C(W, center, D + 1e-12, norm - 1e-12, Lp(3)).item()
    # The norm of the center, 9, plays no part.
    assert not in_C(W, center, D + 1e-12, norm + 1e-12, Lp(3)).item()


def test_cone_epsilon_by_loops() -> None:
    data = masked_data(12)
    tokens, W = random_tokens(data), random_W(data)
    got = separation(data, tokens, W)
    low, high = low_high(data, tokens)
    for b in range(data.B):
        worst = float("inf")
        for i in range(data.n):
            for k in range(data.K):
                lows = [t for t in range(data.T) if low[b, i, k, t]]
                highs = [t for t in range(data.T) if high[b, i, k, t]]
                if not highs:
                    continue
                a = [logit(data, W, b, i, k, t) for t in range(data.T)]
                worst = min(worst, max((min(a[t] - a[h] for h in highs) for t in lows), default=-float("inf")))
        expected = worst / W[b].norm().item()
        assert got[b].item() == pytest.approx(expected)
        if expected not in (float("inf"), -float("inf")):
            assert in_cone_epsilon(data, tokens, W, expected - 1e-9)[b]
            assert not in_cone_epsilon(data, tokens, W, expected + 1e-9)[b]
    finite = got.isfinite()
    torch.testing.assert_close(separation(data, tokens, 5 * W)[finite], got[finite])


def test_lemma_16_svm_solutions_are_in_the_cone_if_locally_optimal() -> None:
    data = sphere(3, 4, 3, trials=1000, seed=4)
    tokens = random_tokens(data)
    solution = solve(att_svm(data, tokens), "l2", tol=1e-12)
    assert solution.solved.all()
    local = is_locally_optimal(data, tokens, solution)
    epsilon = separation(data, tokens, solution.W)
    supported = solution.support_tokens.any(-1).flatten(1).all(1)
    assert (local & supported).sum() > 20
    assert (epsilon[local & supported] > 0).all()
    assert (epsilon[~local] < 1e-9).all()
    # The lemma needs a support token in every query, which Definition 4 does not ask for: without one nothing keeps
    # high-score tokens behind low-score ones.
    assert (epsilon[local & ~supported] <= 0).any()
    # For the unique optimal tokens the cone is the whole space.
    assert (separation(data, data.optimal_tokens(), random_W(data)) == torch.inf).all()
