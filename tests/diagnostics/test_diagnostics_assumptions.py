"""The assumptions against loops over their definitions and instances worked by hand."""

import itertools

import pytest
import torch
from diagnostics_naive import loss, masked_data, queries, random_tokens, random_W, score, visible, with_head

from attsvm import AttsvmError, Lp, TokenData, att_svm, example1, head_svm, label_margin, solve, sphere
from attsvm.diagnostics import (
    assumption_a,
    assumption_b1,
    assumption_b2,
    assumption_b_joint,
    assumption_c,
    assumption_d,
    assumption_e,
    low_high,
    margins,
)
from attsvm.diagnostics._combinatorial import label_loss


def test_the_losses_of_the_papers_obey_a() -> None:
    assert all(assumption_a(loss) for loss in ("logistic", "exponential", "correlation"))
    with pytest.raises(AttsvmError, match="loss must be a Loss"):
        assumption_a("hinge")


def test_b1_by_loops_and_by_the_rule_of_the_paper() -> None:
    data = sphere(3, 3, 8, trials=60, seed=1)
    solution = solve(att_svm(data), tol=1e-12)
    check, paper = assumption_b1(data, solution), assumption_b1(data, solution, as_in_paper=True)
    all_margins = margins(data, data.optimal_tokens(), solution.W)
    for b in range(data.B):
        values = [m for m in all_margins[b].flatten().tolist() if m < float("inf")]
        assert len(values) == 6
        assert check.holds[b] == all(m < 1 + 1e-6 for m in values)
        assert check.value[b].item() == pytest.approx(sum(values) / 6)
        assert paper.holds[b] == (sum(values) / 6 < 1.1)
    assert 0 < check.holds.sum() < paper.holds.sum() < data.B
    assert "exact" in repr(check)


def test_b1_of_example1_holds_by_hand() -> None:
    data = example1()
    check = assumption_b1(data, solve(att_svm(data)))
    assert check.holds.item()
    assert check.value.item() == pytest.approx(1)


def test_b2_by_hand() -> None:
    # Scores are the first coordinates: (2, 1, 1) and (0, 5, 0) are equal but for the best, (2, 1, 0.5) are not.
    equal = [[[2.0, 0], [1.0, 5], [1.0, -1]], [[0.0, 1], [5.0, 1], [0.0, 0]]]
    data = TokenData.cls([equal, [[[2.0, 0], [1.0, 5], [0.5, -1]], equal[1]]], head=[1.0, 0.0])
    check = assumption_b2(data)
    assert check.holds.tolist() == [True, False]
    assert check.value.tolist() == [0, 0.5]
    tied = TokenData.cls([[[2.0, 0], [2.0, 5], [1.0, -1]]], head=[1.0, 0.0])
    assert not assumption_b2(tied).holds.item()
    # A number that all scores share does not make them equal.
    far = TokenData.cls([[[1.0, 0, 1], [0.0, 1, 1], [-1.0, -1, 1]]], head=[1.0, 0.5, 1e12])
    assert not assumption_b2(far).holds.item()
    assert assumption_b2(far).value.item() == 2
    # Two tokens a query always have equal non-optimal scores.
    assert assumption_b2(sphere(4, 2, 3, trials=5)).holds.all()


@pytest.mark.parametrize("name", ["logistic", "exponential", "correlation"])
def test_c_against_autograd(name: str) -> None:
    data = sphere(2, 3, 6, trials=80, seed=3)
    W = torch.zeros(80, 6, 6, dtype=torch.float64, requires_grad=True)
    (G,) = torch.autograd.grad(loss(data, W, name).sum(), W)
    check, opt = assumption_c(data, name), data.optimal_tokens()
    for b in range(data.B):
        values = [
            ((data.X[b, i, t] - data.X[b, i, opt[b, i, 0]]) @ G[b] @ data.Z[b, i, 0]).item()
            for i in range(data.n)
            for t in range(data.T)
            if t != opt[b, i, 0]
        ]
        assert check.value[b].item() == pytest.approx(min(values))
        assert check.holds[b] == (min(values) > 0)
    assert 0 < check.holds.sum() < data.B


@pytest.mark.parametrize("masked", [False, True])
def test_d_enumerates_all_choices(masked: bool) -> None:
    data = sphere(2, 3, 3, trials=6, seed=7)
    if masked:
        mask = torch.ones_like(data.mask)
        mask[:, 1, 0, 2] = False
        data = TokenData(data.X, data.Z, data.Y, mask, data.head)
    check, opt = assumption_d(data), data.optimal_tokens()
    assert check.samples is None
    for b in range(data.B):
        good, choices = 0, list(itertools.product(range(3), repeat=2))
        for choice in choices:
            alpha = [a if data.mask[b, i, 0, a] else int(opt[b, i, 0]) for i, a in enumerate(choice)]
            wrong = [i for i in range(2) if alpha[i] != opt[b, i, 0]]
            solution = solve(att_svm(data[b], torch.tensor(alpha)))
            support = solution.support_tokens[0, :, 0]
            good += not wrong or not solution.solved.item() or any(bool(support[i, opt[b, i, 0]]) for i in wrong)
        assert check.value[b].item() == pytest.approx(good / len(choices))
        assert check.holds[b] == (good == len(choices))
    assert 0 < check.holds.sum() < data.B


def test_d_samples_a_stated_number_when_there_are_too_many() -> None:
    data = sphere(6, 8, 10, trials=2, seed=0)
    check = assumption_d(data, "l2", samples=50, seed=1)
    assert check.samples == 50
    assert "50 samples" in repr(check)
    assert ((check.value * 50) % 1 == 0).all()
    assert check.value.equal(assumption_d(data, "l2", samples=50, seed=1).value)
    # A trial is looked at in the same way alone.
    assert check.value[1:].equal(assumption_d(data[1], "l2", samples=50, seed=1).value)


def naive_c(data: TokenData, tokens: torch.Tensor, b: int, i: int, k: int, mixtures: int = 4000) -> float:
    """Smallest (γ_α − Y h(x(s)))/(1 − s_α) over many mixtures, vertices and near-α ones among them."""
    alpha = int(tokens[b, i, k])
    low = [t for t in visible(data, b, i, k) if score(data, b, i, k, t) < score(data, b, i, k, alpha)]
    if not low:
        return float("inf")
    generator = torch.Generator().manual_seed(3)
    s = torch.empty(mixtures, len(low), dtype=torch.float64).exponential_(generator=generator) ** 3
    s = torch.cat([s / s.sum(1, keepdim=True), torch.eye(len(low), dtype=torch.float64)])
    smallest = float("inf")
    for rest in (1.0, 0.9, 0.5, 0.1, 1e-6):
        x = (1 - rest) * data.X[b, i, alpha] + rest * s @ data.X[b, i, low]
        values = data.head[b : b + 1].value(x.expand(1, 1, data.K, -1, -1))[0, 0, k]  # type: ignore[index]
        ratio = (score(data, b, i, k, alpha) - data.Y[b, i, k] * values) / rest
        smallest = min(smallest, ratio.min().item())
    return smallest


@pytest.mark.parametrize("kind", ["linear", "quadratic", "relu", "mlp"])
def test_e_is_the_worst_mixture(kind: str) -> None:
    data = with_head(masked_data(2), kind)
    tokens = random_tokens(data)
    check = assumption_e(data, tokens, samples=2000)
    assert check.samples == (2000 if kind == "mlp" else None)
    for b in range(data.B):
        worst = min(naive_c(data, tokens, b, i, k) for _, i, k in queries(data[b]))
        if kind == "mlp":  # both are samples
            assert check.value[b].item() == pytest.approx(worst, rel=0.2, abs=0.05)
        else:
            assert check.value[b].item() == pytest.approx(worst, rel=1e-4, abs=1e-5)
        assert check.holds[b] == (check.value[b] > 0)


def test_e_of_a_mixed_head_is_bounded_by_tokens_and_by_slopes() -> None:
    """Output weights of both signs: h is neither convex nor concave, and either end of a mixture can be the worst."""
    data = with_head(masked_data(8), "mlp")
    tokens, head = random_tokens(data), data.head
    assert head is not None
    value = assumption_e(data, tokens, samples=1).value
    ends, slopes = torch.full_like(value, torch.inf), torch.full_like(value, torch.inf)
    for b, i, k in queries(data):
        alpha, highest = int(tokens[b, i, k]), score(data, b, i, k, int(tokens[b, i, k]))
        for t in visible(data, b, i, k):
            if score(data, b, i, k, t) < highest:
                x = torch.stack([data.X[b, i, alpha], torch.lerp(data.X[b, i, alpha], data.X[b, i, t], 1e-7)])
                near = data.Y[b, i, k] * head[b : b + 1].value(x.expand(1, 1, data.K, -1, -1))[0, 0, k]
                ends[b] = min(ends[b], highest - score(data, b, i, k, t))
                slopes[b] = min(slopes[b], (near[0] - near[1]) / 1e-7)
    assert (value <= ends + 1e-12).all()
    assert (value <= slopes + 1e-5).all()
    assert (ends < slopes - 1e-3).any()
    assert (slopes < ends - 1e-3).any()


def test_e_of_a_linear_head_is_87_and_of_lowest_tokens_is_void() -> None:
    data = sphere(3, 4, 5, trials=5, seed=1)
    tokens = data.optimal_tokens()
    scores = data.scores().sort(-1, descending=True).values
    torch.testing.assert_close(assumption_e(data, tokens).value, (scores[..., 0] - scores[..., 1]).amin((1, 2)))
    lowest = data.scores().argmin(-1)
    assert not low_high(data, lowest)[0].any()
    assert (assumption_e(data, lowest).value == torch.inf).all()


def joint_data(second: list[float]) -> TokenData:
    """Two samples with labels ±1; α = token 0 at ±(1, 0), and another token at ±second."""
    X = torch.tensor([[1.0, 0.0], second], dtype=torch.float64)
    return TokenData.cross(torch.stack([X, -X]), torch.eye(2), Y=[1, -1])


def test_b_of_the_joint_theorem_by_hand() -> None:
    # Attended tokens are ±(s + (1 − s)a, (1 − s)b) with their own s, so for b = 0 the label margin is the smaller
    # s_i + (1 − s_i)a. With a = ½: Γ − Γ′ = ½ max(1 − s_i), and the smallest ratio is ½. With a = 2 it is negative.
    check = assumption_b_joint(joint_data([0.5, 0.0]), [0, 0], samples=40)
    assert check.samples == 40
    assert check.holds.item()
    assert check.value.item() == pytest.approx(0.5, abs=1e-5)
    assert not assumption_b_joint(joint_data([2.0, 0.0]), [0, 0], samples=40).holds.item()


def test_b_of_the_joint_theorem_with_a_token_at_the_origin() -> None:
    """Attention that saturates there leaves a row of 1e-200: Γ′ = 0, no error. Γ = 1, and the ratio is 1."""
    data = joint_data([0.0, 0.0])
    W = torch.tensor([[[-460.0, 460.0], [0.0, 0.0]]], dtype=torch.float64)  # logits −460 and 0, both samples
    assert label_loss(data, torch.zeros(1, 2, 1, dtype=torch.long), W, Lp(2), torch.ones(1).double()).item() == 1.0


def test_b_of_the_joint_theorem_at_given_w() -> None:
    data = sphere(2, 3, 4, trials=6, seed=5)
    tokens, W = random_tokens(data), random_W(data)
    Gamma = label_margin(data, tokens, "l3")
    got = label_loss(data, tokens, W, Lp(3), Gamma)
    s = data.attention(W)
    # The attended tokens as sequences of length one: their label margin is Γ′.
    attended = TokenData.cross(torch.einsum("bnkt,bntd->bnkd", s, data.X), data.Z, data.Y)
    Gamma_prime = label_margin(attended, torch.zeros_like(tokens), "l3")
    for b in range(data.B):
        values = [(Gamma[b] - Gamma_prime[b]) / (1 - s[b, i, 0, tokens[b, i, 0]]) for i in range(2)]
        assert got[b].item() == pytest.approx(min(values).item(), rel=1e-6)
    check = assumption_b_joint(data, tokens, "l3", samples=12, seed=2)
    assert not check.holds[~solve(head_svm(data, tokens), "l3").solved].any()
    assert check.value.equal(assumption_b_joint(data, tokens, "l3", samples=12, seed=2).value)
    # Trial for trial the same alone.
    alone = assumption_b_joint(data[4], tokens[4], "l3", samples=12, seed=2).value
    torch.testing.assert_close(check.value[4:5], alone, rtol=1e-5, atol=1e-5)
