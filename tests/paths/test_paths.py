"""Regularization paths against closed forms, brute force, plain autograd and the certified limits."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from attsvm import AttsvmError, LinearHead, Lp, QuadraticHead, TokenData, att_svm, example2, figure1, solve, sphere
from attsvm.diagnostics import is_locally_optimal
from attsvm.paths import RegularizationPath, _path, regularization_path
from attsvm.paths._branches import Row, _thick

RADII = [0.3, 3.0, 30.0, 300.0, 3000.0]


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(3, 4, 5, trials=8, seed=1)


def plain_loss(data: TokenData, W: Tensor, v: Tensor | None = None) -> Tensor:
    o = data.attention(W) @ data.X
    f = data.Y * (data.head.value(o[:, :, :, None])[..., 0] if v is None else (o @ v[..., None])[..., 0])
    return torch.nn.functional.softplus(-f).sum(2).mean(1)


def on_the_sphere(path: RegularizationPath, k: int, p: float) -> Tensor:
    """‖θ − g‖_* by autograd, good while the softmax is not saturated."""
    geometry, W = Lp(p), path.W[k].clone().requires_grad_()
    v = None if path.v is None else path.v[k]
    (G,) = torch.autograd.grad(plain_loss(path.data, W, v).sum(), W)
    unit = geometry.dual.unit
    return geometry.dual_norm(unit(geometry.mirror(W.detach())) + unit(G))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_two_tokens_have_one_direction_at_all_radii(p: float):
    data = sphere(1, 2, 2, trials=5)
    path = regularization_path(data, Lp(p), radii=[0.1, 1.0, 100.0, 1e5])
    best = data.optimal_tokens()[:, 0, 0]
    b = torch.arange(5)
    row = (data.X[b, 0, best] - data.X[b, 0, 1 - best])[:, :, None] * data.Z[:, 0]
    for R, W in zip(path.radii, path.W):
        assert torch.allclose(W, R * Lp(p).dual_unit(row), rtol=1e-9, atol=0)
    assert path.converged.all()
    assert not path.interior.any()
    assert (path.distance < 1e-15).all()


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_no_local_search_finds_less(p: float):
    data = figure1(trials=3)
    radii = [0.5, 3.0, 15.0]
    path = regularization_path(data, Lp(p), radii=radii)
    rng = np.random.default_rng(0)
    for b, k in product(range(3), range(3)):
        one, R = data[b], radii[k]

        def loss(w: np.ndarray, one: TokenData = one) -> tuple[float, np.ndarray]:
            W = torch.from_numpy(w).reshape(1, 2, 2).requires_grad_()
            value = plain_loss(one, W)
            (G,) = torch.autograd.grad(value.sum(), W)
            return value.item(), G.numpy().ravel()

        ball = {"type": "ineq", "fun": lambda w, R=R: 1 - (np.abs(w / R) ** p).sum()}
        starts = 0.3 * R * rng.normal(size=(4, 4))
        found = [minimize(loss, w, jac=True, method="SLSQP", constraints=[ball], tol=1e-12) for w in starts]
        assert path.loss[k, b] <= min(result.fun for result in found) + 1e-8
        assert torch.isclose(plain_loss(one, path.W[k, [b]]), path.loss[k, b])
        assert Lp(p).norm(path.W[k, b]) <= R * (1 + 1e-12)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_the_path_of_W_goes_to_its_svm(data: TokenData, p: float):
    path = regularization_path(data, Lp(p), radii=RADII)
    assert path.converged.all()
    assert (path.stationarity <= 1e-9).all()
    assert (on_the_sphere(path, 0, p) < 1e-8).all()
    assert (on_the_sphere(path, 1, p) < 1e-8).all()
    assert torch.allclose(Lp(p).norm(path.W), path.radii[:, None].expand(-1, 8), rtol=1e-12)
    assert (path.loss.diff(dim=0) <= 1e-12).all()
    # The direction is off by 1/R, its divergence by 1/R².
    assert (path.distance[4] < 0.03 * path.distance[3]).all()
    assert 0.005 < (path.distance[4] / path.distance[3]).median() < 0.02
    assert torch.equal(path.tokens, data.optimal_tokens())


def test_far_radii_stay_exact(data: TokenData):
    path = regularization_path(data, "l2", radii=[1e4, 1e5], tol=1e-8)
    assert path.converged.all()
    assert (path.distance[1] < 0.0102 * path.distance[0]).all()
    assert (path.distance[1] < 1e-8).all()


def test_the_path_of_KQ_goes_to_the_nuclear_svm(data: TokenData):
    path = regularization_path(data, "l2", "KQ", radii=RADII)
    assert path.geometry.name == "nuclear"
    assert path.factors is not None
    K, Q = path.factors
    assert torch.allclose(K @ Q.mT, path.W)
    squares = K.square().sum((2, 3)) + Q.square().sum((2, 3))
    assert torch.allclose(squares, 2 * path.radii[:, None].expand(-1, 8))
    assert path.converged.all()
    assert (path.distance[4] < 0.03 * path.distance[3]).all()
    assert (path.distance[3] < 0.05 * path.distance[2]).all()
    # −G is in μ∂‖W‖_⋆: optimal for W in the nuclear ball, so no rank was missed.
    for k in (0, 1):
        W = path.W[k].clone().requires_grad_()
        (G,) = torch.autograd.grad(plain_loss(data, W).sum(), W)
        assert torch.allclose(-(G * path.W[k]).sum((1, 2)), path.radii[k] * torch.linalg.matrix_norm(G, 2))


def test_thin_factors_are_of_their_rank(data: TokenData):
    path = regularization_path(data, "l2", "KQ", m=1, radii=[3.0, 300.0])
    assert path.converged.all()
    assert (torch.linalg.svdvals(path.W)[..., 1] < 1e-9).all()


@pytest.mark.parametrize(("p", "tokens"), [(1.5, [1, 0]), (2.0, [0, 0]), (3.0, [0, 0])])
def test_the_joint_path_of_example_2(p: float, tokens: list[int]):
    path = regularization_path(example2(), Lp(p), "joint", radii=RADII, head_radius=0.5)
    assert path.tokens.flatten().tolist() == tokens
    assert path.converged.all()
    assert path.v is not None
    assert path.head_radii is not None
    assert path.head_distance is not None
    assert torch.allclose(Lp(p).norm(path.v[..., None])[:, 0], path.head_radii)
    assert (on_the_sphere(path, 0, p) < 1e-8).all()
    # Both samples support the label SVM, so that r may grow as fast as R.
    assert (path.distance.diff(dim=0) < 0).all()
    assert (path.head_distance.diff(dim=0) < 0).all()
    assert path.distance[4] < 0.02 * path.distance[3] < 1e-6
    assert path.head_distance[4] < 0.02 * path.head_distance[3]


def test_the_joint_path_takes_the_best_tokens_that_can_be_selected():
    """The choice of largest label margin, (1, 1, 0), is infeasible: no local path of another choice may be lower."""
    X = torch.tensor([[[0, -1], [-2, 1]], [[1, -3], [-3, 2]], [[3, 1], [2, 1]]], dtype=torch.float64)
    Z, Y = torch.tensor([[2.0], [-2.0], [2.0]], dtype=torch.float64), torch.tensor([1.0, 1.0, -1.0])
    data = TokenData.cross(X, Z, Y.double(), torch.ones(2, dtype=torch.float64))
    assert not solve(att_svm(data, [1, 1, 0])).solved.item()
    path = regularization_path(data, "l2", "joint", radii=[10.0, 100.0])
    for tokens in product(range(2), repeat=3):
        if solve(att_svm(data, list(tokens))).solved.item():
            other = regularization_path(data, "l2", "joint", radii=[10.0, 100.0], tokens=list(tokens))
            assert path.loss[-1].item() <= other.loss[-1].item() * (1 + 1e-6)


def test_a_path_of_no_trials_is_empty():
    for parameterization in ("W", "KQ", "joint"):
        path = regularization_path(sphere(2, 3, 4, trials=0), "l2", parameterization, radii=[1.0, 2.0])
        assert path.W.shape == (2, 0, 4, 4)


def test_the_joint_path_needs_a_slow_head_where_a_label_is_easy():
    # Only two of the three samples support the label SVM of trial 5, all of them that of trial 1.
    data = replace(sphere(3, 3, 5, trials=[1, 5], seed=3), head=None)
    radii = [100.0, 1000.0, 10000.0]
    slow = regularization_path(data, "l2", "joint", radii=radii)
    fast = regularization_path(data, "l2", "joint", radii=radii, head_radius=1.0)
    assert slow.converged.all()
    assert fast.converged.all()
    assert slow.head_limit is not None
    assert slow.head_limit.support.flatten(1).sum(1).tolist() == [3, 2]
    assert (slow.distance[2] < slow.distance[1]).all()
    assert (slow.distance[1] < slow.distance[0]).all()
    assert (slow.distance[2] < 1e-5).all()
    assert slow.head_distance is not None
    assert fast.head_distance is not None
    assert (slow.head_distance[2] < 1e-4).all()
    assert (fast.head_distance[2] < 1e-6).all()
    assert fast.distance[2, 0] < 1e-7
    assert fast.distance[2, 1] == pytest.approx(fast.distance[1, 1].item(), rel=0.01)
    assert fast.distance[2, 1] > 0.01


def locally_optimal_tokens(data: TokenData, geometry: Lp) -> tuple[TokenData, Tensor]:
    """Trials with a locally optimal choice that is not the optimal one, and the choice."""
    trials, choices = [], []
    for alpha in product(range(data.T), repeat=data.n):
        tokens = torch.tensor(alpha).reshape(1, -1, 1).expand(data.B, -1, -1)
        local = is_locally_optimal(data, tokens, solve(att_svm(data, tokens), geometry))
        local &= (tokens != data.optimal_tokens()).flatten(1).any(1)
        for b in local.nonzero()[:, 0].tolist():
            if b not in trials:
                trials.append(b)
                choices.append(tokens[b])
    return data[trials], torch.stack(choices)


def naive_cone(data: TokenData, b: int, alpha: Tensor, W: Tensor, epsilon: float) -> bool:
    scores, barriers = data.scores(), []
    for i, k in product(range(data.n), range(data.K)):
        mine = scores[b, i, k, alpha[i, k]]
        low = [t for t in range(data.T) if scores[b, i, k, t] < mine]
        high = [t for t in range(data.T) if t != alpha[i, k] and scores[b, i, k, t] >= mine]
        z = data.Z[b, i, k]
        lead = [min(((data.X[b, i, t] - data.X[b, i, s]) @ W @ z for s in high), default=math.inf) for t in low]
        if high:
            barriers.append(max(lead, default=-math.inf))
    return min(barriers, default=math.inf) >= epsilon * W.norm()


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_the_local_path_goes_to_its_own_svm(p: float):
    data, alpha = locally_optimal_tokens(sphere(2, 4, 4, trials=12), Lp(p))
    assert data.B >= 4
    radii = [1.0, 10.0, 100.0, 1000.0, 10000.0]
    path = regularization_path(data, Lp(p), radii=radii, tokens=alpha)
    assert path.inside_cone is not None
    assert path.inside_cone[-1].all()
    assert path.converged[path.inside_cone].all()
    # A trial with a single support token is at its limit at once.
    assert (path.distance[-1] < 0.015 * path.distance[-2] + 1e-15)[path.inside_cone[-2]].all()
    assert (path.distance[-1] < 1e-5).all()
    strict = regularization_path(data, Lp(p), radii=radii, tokens=alpha, cone_epsilon=0.05)
    assert strict.inside_cone is not None
    for k, b in product(range(5), range(data.B)):
        assert strict.inside_cone[k, b] == naive_cone(data, b, alpha[b], strict.W[k, b], 0.05)
    assert strict.inside_cone.any()
    assert not strict.inside_cone.all()
    # The global path is another one, and better.
    best = regularization_path(data, Lp(p), radii=radii[-1:])
    assert (best.loss[-1] < path.loss[-1] - 1e-3).all()


def test_the_local_path_of_KQ():
    data, alpha = locally_optimal_tokens(sphere(2, 4, 4, trials=12), Lp(2))
    path = regularization_path(data, "nuclear", "KQ", radii=[300.0, 3000.0], tokens=alpha)
    assert path.inside_cone is not None
    close = path.inside_cone.all(0)
    assert close.any()
    # The limit itself is known to its gap: nearer than that no distance can be seen to fall.
    assert (path.distance[1] < 0.03 * path.distance[0] + path.limit.gap)[close].all()


def test_a_minimiser_inside_the_ball_is_found_there():
    # The same tokens with both labels: best is o·v = 0, which the scores 1 and −0.2 give at the weight 1/6.
    X = [[[1.0], [-0.2]]] * 2
    data = TokenData.cls(X, Y=[1, -1], head=[1.0])
    path = regularization_path(data, radii=[0.1, 1.0, 10.0, 100.0])
    best = -math.log(5) / 1.2
    assert path.W.flatten().tolist() == pytest.approx([-0.1, -1.0, best, best], rel=1e-8)
    assert path.interior.flatten().tolist() == [False, False, True, True]
    assert path.converged.all()
    assert path.distance.isnan().all()


def test_an_unsolvable_trial_does_not_disturb_the_others(data: TokenData):
    X = data.X.clone()
    best = data.optimal_tokens()[2, 0, 0]
    # Between other tokens on a line, so nothing selects it; in numbers that float64 holds, or it would be off the line.
    line = (64 * X[2, 0, best]).round() / 64
    X[2, 0] = line * torch.tensor([0.5, 0.75, 1.0, 1.25]).double()[:, None]
    X[2, 0, best] = 0.875 * line
    mixed = replace(data, X=X)
    tokens = mixed.optimal_tokens()
    tokens[2, 0, 0] = best
    path = regularization_path(mixed, radii=RADII, tokens=tokens)
    assert path.limit.infeasible.nonzero().flatten().tolist() == [2]
    assert path.distance[:, 2].isnan().all()
    assert path.inside_cone is not None
    assert not path.inside_cone[:, 2].any()
    alone = regularization_path(data[[5]], radii=RADII, tokens=tokens[[5]])
    assert torch.allclose(path.W[:, 5], alone.W[:, 0], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("loss", ["exponential", "correlation"])
def test_losses_and_masks(loss: str):
    causal = sphere(2, 3, 4, trials=3, causal=True)
    path = regularization_path(causal, "l1.75", radii=[1.0, 100.0, 1000.0], loss=loss)
    assert path.converged.all()
    assert (path.distance[2] < 0.05 * path.distance[1]).all()


def test_a_quadratic_head_can_have_its_best_inside():
    data = sphere(2, 3, 4, trials=3)
    assert isinstance(data.head, LinearHead)
    data = replace(data, head=QuadraticHead(data.head.v, torch.full((3, 1), 0.8).double()))
    path = regularization_path(data, radii=[0.5, 5.0, 50.0], loss="correlation")
    assert path.converged.all()
    assert path.interior.any()
    assert (path.loss.diff(dim=0) <= 1e-12).all()
    # What ten starts of SLSQP found.
    best = torch.tensor(
        [[-0.02128, -0.03349, -0.00884], [-0.86117, -0.08298, -0.38325], [-0.90085, -0.08686, -0.38524]]
    )
    assert (path.loss < best + 1e-5).all()


def test_one_token_has_nothing_to_learn():
    path = regularization_path(sphere(2, 1, 3, trials=2), radii=[1.0, 10.0])
    assert path.converged.all()
    assert path.W.isfinite().all()


@pytest.mark.parametrize(
    ("message", "args", "options"),
    [
        ("radii must be positive and ascending", (), {"radii": [1.0, 1.0]}),
        ("radii must be positive and ascending", (), {"radii": [0.0, 1.0]}),
        ("radii must be positive and ascending", (), {"radii": []}),
        ("radii must be positive and ascending", (), {"radii": [[1.0]]}),
        ("radii must be finite", (), {"radii": [1.0, math.inf]}),
        ("geometry must be", ("l3", "KQ"), {}),
        ("geometry must be an ℓp norm", ("nuclear",), {}),
        ("parameterization must be one of", ("l2", "QK"), {}),
        ("cone_epsilon belongs to a local path", (), {"cone_epsilon": 0.1}),
        ("cone_epsilon must be", (), {"cone_epsilon": -1.0, "tokens": [0, 0, 0]}),
        ("tokens must", (), {"tokens": [0, 9, 0]}),
        ("m is the width", (), {"m": 2}),
        ("head_radius is the bound of v", (), {"head_radius": 2.0}),
        ("head_radius must be positive", ("l2", "joint"), {"head_radius": 0.0}),
        ("head_radius must be finite", ("l2", "joint"), {"head_radius": lambda R: -R}),
        ("steps_per_radius must be", (), {"steps_per_radius": 0}),
        ("tol must be", (), {"tol": -1.0}),
        ("loss must be", (), {"loss": "hinge"}),
        ("is it detached", (), {"loss": lambda f: (-f).detach()}),
    ],
)
def test_bad_input(data: TokenData, message: str, args: tuple, options: dict):
    with pytest.raises(AttsvmError, match=message):
        regularization_path(data, *args, **{"radii": [1.0, 2.0], **options})


def test_bad_data(data: TokenData):
    with pytest.raises(AttsvmError, match="data must have a head"):
        regularization_path(replace(data, head=None), radii=[1.0])
    with pytest.raises(AttsvmError, match="tokens must be given for a joint path"):
        regularization_path(sphere(6, 8, 10), "l2", "joint", radii=[1.0])


def row_of(loss: float, slopes: list[float], W: float = 0.0) -> Row:
    x = torch.tensor([loss], dtype=torch.float64)
    return Row({"W": torch.full((1, 1, 1), W)}, x, torch.tensor([slopes], dtype=torch.float64), x, x, x > 0)


@pytest.mark.parametrize(
    ("mine", "theirs", "beats"),
    [
        ((1.0, [0.0, 0.0]), (2.0, [-9.0, -9.0]), True),  # the loss decides
        ((2.0, [-9.0, -9.0]), (1.0, [0.0, 0.0]), False),
        ((1.0, [-1.0, 5.0]), (1.0, [0.0, -5.0]), True),  # equal losses: the slope in v
        ((1.0, [0.0, -5.0]), (1.0, [-1.0, 5.0]), False),
        ((1.0, [0.0, -5.0]), (1.0, [0.0, -4.0]), True),  # equal slopes in v, too: that in W
        ((1.0, [0.0, -4.0]), (1.0, [0.0, -5.0]), False),
        ((1.0, [0.0, -5.0]), (1.0 + 1e-13, [0.0, -5.0]), False),  # nothing but rounding
    ],
)
def test_branches_are_compared_by_loss_then_by_slopes(mine: tuple, theirs: tuple, beats: bool) -> None:
    first, second = row_of(*mine, W=1.0), row_of(*theirs, W=2.0)
    assert first.beats(second).tolist() == [beats]
    chosen = first.where(first.beats(second), second)
    assert chosen.blocks["W"].item() == (1.0 if beats else 2.0)


@pytest.mark.parametrize("m", [2, 4, 6])
def test_a_start_of_low_rank_is_made_thick(m: int) -> None:
    """A zero singular value of K Qᵀ has zero gradient: it would stay zero."""
    W = torch.outer(torch.arange(1.0, 5), torch.tensor([1.0, -2.0, 0.5]))[None].double()
    blocks = _thick(W, m)
    assert blocks["K"].shape == (1, 4, m)
    assert blocks["Q"].shape == (1, 3, m)
    product = blocks["K"] @ blocks["Q"].mT
    assert torch.linalg.matrix_norm(product - W) < 1e-4 * torch.linalg.matrix_norm(W)
    sigma = torch.linalg.svdvals(product)[0]
    expected = [1.0, 1e-5, 1e-5][: min(m, 3)]
    torch.testing.assert_close(
        sigma[: len(expected)] / sigma[0], torch.tensor(expected).double(), rtol=1e-6, atol=1e-12
    )
    torch.testing.assert_close(blocks["K"].norm(), blocks["Q"].norm())  # balanced


def test_a_joint_path_with_masks_is_that_of_its_trials_without_the_hidden_tokens() -> None:
    whole = sphere(2, 4, 3, trials=2, seed=5)
    mask = torch.ones(2, 2, 1, 4, dtype=torch.bool)
    mask[:, 0, 0, 1] = False
    mask[1, 1, 0, 3] = False
    changed = whole.X.clone()
    changed[:, 0, 1] += 10.0
    changed[1, 1, 3] -= 10.0
    options = {"parameterization": "joint", "radii": [2.0, 20.0]}
    together = regularization_path(TokenData(whole.X, whole.Z, whole.Y, mask), "l2", **options)
    assert together.converged.all()
    other = regularization_path(TokenData(changed, whole.Z, whole.Y, mask), "l2", **options)
    assert mask.gather(-1, together.tokens[..., None]).all()
    assert torch.equal(other.tokens, together.tokens)
    for name in ("W", "v", "loss"):
        torch.testing.assert_close(getattr(other, name), getattr(together, name), rtol=1e-5, atol=1e-7)
    for b in range(2):
        some = TokenData(whole.X[[b]], whole.Z[[b]], whole.Y[[b]], mask[[b]])
        alone = regularization_path(some, "l2", **options)
        for name in ("W", "v", "loss"):
            torch.testing.assert_close(getattr(alone, name)[:, 0], getattr(together, name)[:, b], rtol=1e-5, atol=1e-7)


def test_the_tokens_of_largest_label_margin_are_those_of_each_trial_alone() -> None:
    data = sphere(2, 3, 3, trials=20, seed=1)
    mask = torch.rand(20, 2, 1, 3, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[..., 2] = True
    data = TokenData(data.X, data.Z, data.Y, mask)
    found = _path._largest_label_margin(data, Lp(2))
    assert mask.gather(-1, found[..., None]).all()
    assert torch.equal(found, torch.cat([_path._largest_label_margin(data[b], Lp(2)) for b in range(20)]))
