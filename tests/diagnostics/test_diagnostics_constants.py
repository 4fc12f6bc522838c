"""Gradient, curvature, and the constants of the lemmas, with the lemmas themselves as witnesses."""

import math

import mpmath
import pytest
import torch
from diagnostics_naive import logit, loss, masked_data, queries, random_tokens, random_W, score, visible, with_head

from attsvm import AttsvmError, Lp, TokenData, att_svm, example1, solve, sphere
from attsvm.diagnostics import (
    constants,
    is_locally_optimal,
    lipschitz_constant,
    loss_constants,
    margins,
    radius,
)
from attsvm.objective import Loss, curvature, gradient, scaled_gradient, step_convexity

LOSSES = ["logistic", "exponential", "correlation"]


@pytest.mark.parametrize("kind", ["linear", "quadratic", "mlp"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_and_curvature_agree_with_autograd(kind: str, name: str) -> None:
    data = with_head(masked_data(), kind)
    W, V = random_W(data, 1).requires_grad_(), random_W(data, 2)
    (G,) = torch.autograd.grad(loss(data, W, name).sum(), W, create_graph=True)
    (HV,) = torch.autograd.grad((G * V).sum(), W)
    torch.testing.assert_close(gradient(data, W.detach(), name), G.detach())
    torch.testing.assert_close(curvature(data, W.detach(), V, name), (HV * V).sum((1, 2)))
    shift = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64)
    scaled = (HV * V).sum((1, 2)) * torch.exp(-shift)
    torch.testing.assert_close(curvature(data, W.detach(), V, name, shift), scaled)


def test_gradient_and_curvature_keep_their_accuracy_when_saturated() -> None:
    """One sample, T = 3, e = d = 1, logits a·x with a = 2000: everything is of the order of e^(−2000)."""
    x, v, y, a = (1.0, 0.0, -0.5), 1.0, 1, 2000.0
    data = TokenData.cls([[[t] for t in x]], Y=[y], head=[v])
    W = torch.tensor([[[a]]], dtype=torch.float64)
    G, M = scaled_gradient(data, W)
    bent = curvature(data, W, torch.ones_like(W), shift=M)
    with mpmath.workdps(2000):
        s = [mpmath.exp(a * t) for t in x]
        total = sum(s)
        f = sum(w * t for w, t in zip(s, x)) / total
        second = sum(w * t * t for w, t in zip(s, x)) / total - f * f
        third = sum(w * (t - f) ** 3 for w, t in zip(s, x)) / total
        slope = 1 / (1 + mpmath.exp(f))
        exact = -slope * second
        exact_bent = -slope * third + slope * (1 - slope) * second**2
        assert float(exact / mpmath.exp(M.item())) == pytest.approx(G.item(), rel=1e-12)
        assert float(exact_bent / mpmath.exp(M.item())) == pytest.approx(bent.item(), rel=1e-12)


def test_a_single_token_has_no_gradient() -> None:
    data = sphere(2, 1, 3, trials=2)
    assert gradient(data, random_W(data)).abs().max() == 0
    assert step_convexity(data, Lp(2), random_W(data), 0.1, True).tolist() == [0, 0]


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", ["linear", "quadratic"])
def test_step_convexity_by_its_definition(p: float, normalize: bool, kind: str) -> None:
    data, geometry, eta = with_head(masked_data(), kind), Lp(p), 0.3
    W = random_W(data).requires_grad_()
    L = loss(data, W)
    (G,) = torch.autograd.grad(L.sum(), W)
    W, L = W.detach(), L.detach()
    step = eta / geometry.dual_norm(G) if normalize else torch.full((data.B,), eta, dtype=torch.float64)
    W_next = geometry.inverse(geometry.mirror(W) - step[:, None, None] * G)
    D_L = loss(data, W_next) - L - (G * (W_next - W)).sum((1, 2))
    naive = step * D_L / geometry.bregman(W_next, W)
    torch.testing.assert_close(step_convexity(data, geometry, W, eta, normalize), naive, rtol=1e-4, atol=1e-9)


def test_a_saturated_trial_has_the_step_convexity_that_it_has_alone() -> None:
    """Its D_L is integrated, that of the other a difference."""
    data = with_head(masked_data(), "linear")[[0, 1]]
    W = random_W(data) * torch.tensor([1.0, 2000.0], dtype=torch.float64)[:, None, None]
    for normalize in (True, False):
        together = step_convexity(data, Lp(2), W, 0.3, normalize)
        alone = [step_convexity(data[[b]], Lp(2), W[[b]], 0.3, normalize) for b in range(2)]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=0)
        assert (together[0] != 0).all()


@pytest.mark.parametrize("lr", [0.1, 5.0, 500.0])
def test_step_convexity_of_a_saturated_softmax_against_mpmath(lr: float) -> None:
    """One sample, T = 3, d = e = 1 and W = 2000: L − L_* is about e^(−2000), and a normalised step is lr."""
    x = (1.0, 0.0, -0.5)
    data = TokenData.cls([[[t] for t in x]], Y=[1], head=[1.0])
    got = step_convexity(data, Lp(2), torch.tensor([[[2000.0]]], dtype=torch.float64), lr, normalize=True)
    with mpmath.workdps(3000):

        def output(w: float) -> mpmath.mpf:
            s = [mpmath.exp(w * t) for t in x]
            return sum(a * t for a, t in zip(s, x)) / sum(s)

        f = output(2000)
        s = [mpmath.exp(2000 * t) for t in x]
        variance = sum(a * (t - f) ** 2 for a, t in zip(s, x)) / sum(s)
        slope = -variance / (1 + mpmath.exp(f))
        D_L = mpmath.log1p(mpmath.exp(-output(2000 + lr))) - mpmath.log1p(mpmath.exp(-f)) - slope * lr
        exact = float(lr / -slope * D_L / (mpmath.mpf(lr) ** 2 / 2))
    assert got.item() == pytest.approx(exact, rel=1e-2 if lr > 100 else 1e-6)


def test_step_convexity_of_a_step_out_of_range_is_infinite() -> None:
    data = sphere(2, 3, 3, trials=2)
    assert (step_convexity(data, Lp(1.01), random_W(data), 1e6, True) == torch.inf).all()


@pytest.mark.parametrize("name", LOSSES)
def test_loss_constants_bound_the_derivatives_on_the_scores(name: str) -> None:
    data = masked_data()
    M0, M1 = loss_constants(data, name)
    for b in range(data.B):
        scores = [score(data, b, i, k, t) for _, i, k in queries(data[b]) for t in visible(data, b, i, k)]
        f = torch.linspace(min(scores), max(scores), 20001, dtype=torch.float64)
        first = {"logistic": 1 / (1 + f.exp()), "exponential": (-f).exp(), "correlation": f**0}[name]
        second = {"logistic": first * (1 - first), "exponential": first, "correlation": 0 * f}[name]
        assert M1[b].item() == pytest.approx(first.max().item())
        assert M0[b].item() == pytest.approx(second.max().item(), rel=1e-6)


class Sigmoid(Loss):
    """σ(−f): Assumption A holds, but its slope σ(f)σ(−f) rises where f < 0."""

    name = "sigmoid-test"
    bounded_slopes = True

    def value(self, f: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(-f)


def test_constants_of_a_loss_that_is_not_convex_bound_its_derivatives() -> None:
    """Scores from −3 to 0, and to −1: the slope is largest at the upper end, |ℓ″| inside, where σ(f) = (3 − √3)/6."""
    for top, steepest in ((0.0, 0.25), (-1.0, 1 / (2 + math.e + 1 / math.e))):
        data = TokenData.cross([[[-3.0], [top]]], [[1.0]], head=[1.0])
        M0, M1 = loss_constants(data, Sigmoid())
        assert M1.item() == pytest.approx(steepest)
        assert M0.item() == pytest.approx(math.sqrt(3) / 18, rel=1e-3)
        size = 9 + top**2  # of X, squared
        L_W = size**1.5 * (M0.item() * size**0.5 + 3 * M1.item())
        assert lipschitz_constant(data, Sigmoid()).item() == pytest.approx(L_W)


@pytest.mark.parametrize("name", LOSSES)
def test_lipschitz_constant_by_loops_and_as_a_bound(name: str) -> None:
    data = masked_data()
    M0, M1 = loss_constants(data, name)
    L_W = lipschitz_constant(data, name)
    for b in range(data.B):
        total = 0.0
        for _, i, k in queries(data[b]):
            v = data.head.v[b, k].norm().item()  # type: ignore[union-attr]
            z, X = data.Z[b, i, k].norm().item(), torch.linalg.svdvals(data.X[b, i])[0].item()
            total += v * z**2 * X**3 * (M0[b].item() * v * X + 3 * M1[b].item())
        assert L_W[b].item() == pytest.approx(total / data.n)
    for seed in range(20):
        W, V = random_W(data, seed, 0.5), random_W(data, seed + 100, 0.5)
        change = torch.linalg.matrix_norm(gradient(data, W, name) - gradient(data, V, name))
        assert (change <= L_W * torch.linalg.matrix_norm(W - V)).all()
    with pytest.raises(AttsvmError, match="linear"):
        lipschitz_constant(with_head(data, "mlp"))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_constants_by_loops(p: float) -> None:
    data = masked_data(4)
    tokens = random_tokens(data)
    solution = solve(att_svm(data, tokens), Lp(p), tol=1e-12)
    assert solution.solved.all()
    c, q, W = constants(data, tokens, solution), p / (p - 1), solution.W
    for b in range(data.B):
        excess, longest, longest2, Gamma = [], 0.0, 0.0, 0.0
        norm = W[b].abs().pow(p).sum().item() ** (1 / p)
        for _, i, k in queries(data[b]):
            alpha, support = int(tokens[b, i, k]), []
            for t in visible(data, b, i, k):
                outer = torch.outer(data.X[b, i, t], data.Z[b, i, k])
                longest = max(longest, outer.abs().pow(q).sum().item() ** (1 / q))
                longest2 = max(longest2, outer.norm().item())
                Gamma = max(Gamma, *(score(data, b, i, k, t) - score(data, b, i, k, s) for s in visible(data, b, i, k)))
                if t == alpha:
                    continue
                margin = logit(data, W, b, i, k, alpha) - logit(data, W, b, i, k, t)
                if margin < 1 + 1e-6:
                    support.append(t)
                else:
                    excess.append(margin - 1)
            gaps = [score(data, b, i, k, alpha) - score(data, b, i, k, t) for t in support]
            assert c.gamma_gap[b, i, k].item() == pytest.approx(min(gaps, default=math.inf))
            assert c.gamma_gap_bar[b, i, k].item() == pytest.approx(max(gaps, default=-math.inf))
        delta_prime = min(excess, default=math.inf) / 2
        delta, A = min(0.25, delta_prime), max(1, norm * longest)
        assert c.delta_prime[b].item() == pytest.approx(delta_prime)
        assert c.delta[b].item() == pytest.approx(delta)
        assert c.A_prime[b].item() == pytest.approx(norm * longest)
        assert c.A[b].item() == pytest.approx(A)
        assert c.Gamma[b].item() == pytest.approx(Gamma)
        size = (data.d * data.e) ** (1 / p - 1 / 2)
        mu0 = (delta / (8 * A)) ** p / p if p >= 2 else (delta * (p - 1) / (4 * A * size)) ** 2 / p
        assert c.mu0[b].item() == pytest.approx(mu0)
        assert c.mu[b].item() == pytest.approx((min(0.5, delta_prime) / (norm * longest2)) ** 2 / 8)


def test_constants_next_to_l1_do_not_underflow() -> None:
    """A′ = ‖W_mm‖ max ‖x‖_q ‖z‖_q with q = 1001: 0.1^q is 0 in float64, ‖(0.1, 0.1)‖_q is 0.1·2^(1/q)."""
    data = TokenData.cross([[[0.1, 0.1], [-0.1, -0.1]]], [[0.1, 0.1]], head=[1.0, 0])
    solution = solve(att_svm(data), 1.001)
    longest = 0.01 * 4 ** (1 / 1001)
    assert constants(data, [0], solution).A_prime.item() == pytest.approx(solution.norm.item() * longest)


def test_constants_of_example1_by_hand() -> None:
    """The row 25 W₁₁ − 5 W₂₁ ≥ 1, twice, makes W_mm = (25, −5)/650 in its first column, and 0 in the second."""
    data = example1()
    solution = solve(att_svm(data), "l2", tol=1e-12)
    torch.testing.assert_close(solution.W[0, :, 0], torch.tensor([25 / 650, -5 / 650], dtype=torch.float64))
    c = constants(data, [0, 0], solution)
    assert c.delta_prime.item() == math.inf  # both other tokens are support tokens
    assert c.delta.item() == 0.25
    assert c.A_prime.item() == pytest.approx(25 / math.sqrt(650))  # ‖W_mm‖ = 1/√650, ‖(5, 0)(5, 0)ᵀ‖ = 25
    assert c.A.item() == 1
    assert c.mu0.item() == pytest.approx((0.25 / 8) ** 2 / 2)
    assert c.mu.item() == pytest.approx(0.5**2 * 650 / 625 / 8)
    # γ = y vᵀx with v = (0.2, 0): 1 for (5, 0), 0 for (0, 1).
    assert c.gamma_gap[0, :, 0].tolist() == [1, 1]
    assert c.Gamma.item() == 1


def test_constants_of_an_unsolved_svm_are_nan_and_the_norm_must_be_lp() -> None:
    data = TokenData.cls([[[0.0, 0], [1.0, 0], [-1.0, 0]]], head=[[0.0, 1.0]])
    c = constants(data, [0], solve(att_svm(data, [0])))
    assert all(x.isnan().all() for x in (c.delta_prime, c.delta, c.A, c.mu0, c.mu))
    with pytest.raises(AttsvmError, match="ℓp"):
        constants(data, [1], solve(att_svm(data, [1]), "nuclear"))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_lemma_9_margins_stay_within_half_delta_in_the_cone(p: float) -> None:
    data = sphere(3, 4, 5, trials=30, seed=2)
    tokens = data.optimal_tokens()
    geometry = Lp(p)
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    c = constants(data, tokens, solution)
    exact = margins(data, tokens, solution.W)
    for seed in range(5):
        E, W = random_W(data, seed), solution.W
        for _ in range(60):  # halve the perturbation until W is in S_{p,μ₀}
            W = solution.W + E
            outside = geometry.directional_bregman(solution.W, W) > c.mu0
            if not outside.any():
                break
            E = torch.where(outside[:, None, None], E / 2, E)
        W = geometry.unit(W) * solution.norm[:, None, None]
        moved = torch.nan_to_num(margins(data, tokens, W) - exact).abs().amax((1, 2, 3))
        assert (moved <= c.delta / 2).all()
        assert (moved > 0).all()


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_radius_by_the_formulas_and_lemma_10_beyond_it(p: float) -> None:
    data, geometry, eta = sphere(3, 4, 5, trials=20, seed=2), Lp(p), 0.1
    tokens = data.optimal_tokens()
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    c = constants(data, tokens, solution)
    R = radius(data, c, solution, "logistic", eta)
    slope = lambda f: 1 / (1 + math.exp(f))  # noqa: E731
    T = data.T
    for b in range(data.B):
        scores = [[score(data, b, i, 0, t) for t in range(T)] for i in range(data.n)]
        L_bar = sum(slope(min(s)) for s in scores) / min(slope(max(s)) for s in scores)
        gap = c.gamma_gap[b].min().item()
        bar = max(0.0, c.gamma_gap_bar[b].max().item())
        delta, A, G, mu = (x[b].item() for x in (c.delta, c.A, c.Gamma, c.mu0))
        norm, pi = solution.norm[b].item(), mu / 3
        R_delta = norm / delta * math.log(2 * G * L_bar * A * T**2 * (T + 1) / (gap * (1 - delta / 2)))
        top = (delta / 2 * bar * T**2 + 6 * G * A * T**2 * (T + 1)) * L_bar
        R_pi = norm / min(pi, 1.5 * delta) * math.log(top / (pi * gap))
        fall = sum(slope(min(s)) * (max(s) - min(s)) for s in scores) / data.n
        R_mu = (3 * eta * fall / mu) ** (1 / p)
        assert R[b].item() == pytest.approx(max(R_delta, R_pi, R_mu, math.e**2))
        # Lemma 10: beyond R_δ the gradient points along the solution. Scaled, because it is about e^(−R_δ/‖W_mm‖).
        W = solution.W[b : b + 1] / norm * R_delta
        direction, _ = scaled_gradient(data[b], W)
        assert -(direction * solution.W[b]).sum() > 0
    assert is_locally_optimal(data, tokens, solution).all()


def test_radius_needs_locally_optimal_tokens() -> None:
    data = sphere(3, 4, 5, trials=20, seed=2)
    tokens = random_tokens(data)
    solution = solve(att_svm(data, tokens), tol=1e-12)
    R = radius(data, constants(data, tokens, solution), solution)
    assert R.isnan().equal(~is_locally_optimal(data, tokens, solution))
