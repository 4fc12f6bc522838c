"""The gradient of a step against 80-digit arithmetic and against autograd."""

import mp_reference as reference
import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm import LinearHead, MLPHead, QuadraticHead, TokenData, sphere, train
from attsvm.data import class_data, next_token_data
from attsvm.objective import LOSSES, Lanes, gradients, trial_first, trial_last, value

NORMS = (0.1, 1.0, 100.0, 1e4, 1e5)
N, T, D, E, K = 3, 4, 3, 2, 2


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(80):
        yield


def make_head(kind: str, H: int, positive: bool = False):
    g = torch.Generator().manual_seed(7)
    plain = lambda *shape: torch.randn(1, H, *shape, generator=g, dtype=torch.float64)  # noqa: E731
    draw = (lambda *shape: plain(*shape).abs() + 3 * bool(shape)) if positive else plain
    if kind == "linear":
        return LinearHead(draw(D))
    if kind == "quadratic":
        return QuadraticHead(draw(D), draw().abs())
    return MLPHead(draw(5, D), draw(5), draw(5))


def make_data(head: str, layout: str, loss: str = "logistic") -> TokenData:
    """One query a sample, or two with a mask and a head each; −log f is for outputs f > 0."""
    positive = loss == "log"
    data = sphere(N, T, D, e=E, seed=3, queries=1 if layout == "plain" else K)
    if positive:
        data = TokenData(data.X.abs(), data.Z, data.Y.abs(), data.mask)
    if layout == "plain":
        return TokenData(data.X, data.Z, data.Y, data.mask, make_head(head, 1, positive))
    mask = data.mask.clone()
    mask[:, 0, :, 1], mask[:, 1, 1, 2:] = False, False
    mask[:, 2, 0, 1:] = False  # a query with a single token
    return TokenData(data.X, data.Z, data.Y, mask, make_head(head, K, positive))


def blocks_of_norm(parameterization: str, size: float) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(11)
    draw = lambda *shape: torch.randn(1, *shape, generator=g, dtype=torch.float64)  # noqa: E731
    if parameterization == "W":
        W = draw(D, E)
        return {"W": W * (size / W.norm())}
    factors = draw(D, 4), draw(E, 4)
    scale = (size / (factors[0] @ factors[1].mT).norm()).sqrt()
    return {"K": factors[0] * scale, "Q": factors[1] * scale}


def library_gradients(data: TokenData, loss: str, blocks: dict[str, torch.Tensor], joint: bool = False):
    lanes = Lanes.of(data, fixed_head=not joint)
    found = gradients(lanes, LOSSES[loss], {name: trial_last(x) for name, x in blocks.items()})
    return {name: (trial_first(G)[0], shift[0].item()) for name, (G, shift) in found.items()}


def assert_exact(found, shift: float, n: int, truth, tolerance: float = 1e-10) -> None:
    """Direction and logarithm of the size."""
    found = reference.exact(found)
    size, true_size = reference.norm(found), reference.norm(truth)
    assert reference.norm(found / size - truth / true_size) < tolerance
    assert abs(mp.log(size) + shift - mp.log(n) - mp.log(true_size)) < tolerance


@pytest.mark.parametrize("layout", ["plain", "masked"])
@pytest.mark.parametrize("parameterization", ["W", "KQ"])
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("head", ["linear", "mlp", "quadratic"])
def test_exact_at_any_norm(head: str, loss: str, parameterization: str, layout: str):
    data = make_data(head, layout, loss)
    for size in NORMS:
        blocks = blocks_of_norm(parameterization, size)
        truth = {name: reference.exact(x[0]) for name, x in blocks.items()}
        W = truth["W"] if parameterization == "W" else truth["K"] @ truth["Q"].T
        G, _ = reference.gradients(data, loss, W)
        expected = {"W": G} if parameterization == "W" else {"K": G @ truth["Q"], "Q": G.T @ truth["K"]}
        found = library_gradients(data, loss, blocks)
        for name, gradient in expected.items():
            assert_exact(*found[name], data.n, gradient)


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("v_norm", [0.1, 30.0, 3e3])
def test_joint_is_exact_at_any_norm_of_both(v_norm: float, loss: str):
    data = make_data("linear", "masked", loss)
    v = torch.tensor([[0.5, -1.0, 0.25]], dtype=torch.float64)
    v = (v.abs() if loss == "log" else v) * (v_norm / v.norm())
    for size in NORMS:
        blocks = blocks_of_norm("W", size) | {"v": v[..., None]}
        G, g_v = reference.gradients(data, loss, reference.exact(blocks["W"][0]), LinearHead(v[:, None]))
        found = library_gradients(data, loss, blocks, joint=True)
        assert_exact(*found["W"], data.n, G)
        assert_exact(found["v"][0][:, 0], found["v"][1], data.n, g_v)


@pytest.mark.parametrize("layout", ["plain", "masked"])
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("head", ["linear", "mlp", "quadratic"])
def test_agrees_with_autograd_at_small_norm(head: str, loss: str, layout: str):
    data = make_data(head, layout, loss)
    for parameterization in ("W", "KQ"):
        blocks = blocks_of_norm(parameterization, 1.0)
        leaves = {name: x.clone().requires_grad_() for name, x in blocks.items()}
        W = leaves["W"] if parameterization == "W" else leaves["K"] @ leaves["Q"].mT
        o = data.attention(W) @ data.X
        f = data.Y * data.head.value(o[:, :, :, None])[..., 0]
        LOSSES[loss].value(f).sum(2).mean(1).sum().backward()
        for name, (G, shift) in library_gradients(data, loss, blocks).items():
            gradient = leaves[name].grad
            assert torch.allclose(G * np.exp(shift) / data.n, gradient[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gap", [20.0, 95.0, 300.0, 740.0, 2000.0])
def test_tokens_of_equal_scores_are_exact_however_far_the_others_are(gap: float, dtype: torch.dtype):
    """Two tokens share the attention, and what moves them is as small as the weight of the third."""
    X = torch.tensor([[[1.0, 0, 0], [1, 1, 0], [0, 0, 1]], [[2, 0, 1], [2, 1, 0], [1, 1, 1]]], dtype=dtype)
    data = TokenData.cross(X, torch.ones(2, 1, dtype=dtype), head=torch.tensor([1.0, 0, 0], dtype=dtype))
    W = torch.tensor([[[gap], [0.25], [0.0]]], dtype=dtype)
    truth, _ = reference.gradients(data, "logistic", reference.exact(W[0]))
    assert_exact(
        *library_gradients(data, "logistic", {"W": W})["W"], data.n, truth, 1e-10 if X.dtype == torch.float64 else 1e-4
    )
    run = train(data, steps=1, lr=1.0, init={"W": W})
    assert torch.allclose(torch.linalg.matrix_norm(W - run.W), torch.ones(1, dtype=dtype), atol=1e-3)


@pytest.mark.parametrize("gap", [20.0, 40.0, 700.0, 740.0, 3000.0])
@pytest.mark.parametrize("model", ["classes", "next tokens"])
def test_cross_entropy_is_exact_where_labels_are_far_behind(model: str, gap: float):
    g = torch.Generator().manual_seed(5)
    E = torch.randn(5, 7, generator=g, dtype=torch.float64)
    labels = [0, 4, 2]
    if model == "classes":
        data, tokens = class_data(E[:3], labels, 5), np.tile(np.arange(5), (3, 1))
    else:
        tokens = np.array([[0, 1, 2], [3, 1, 4], [2, 0, 3]])
        data = next_token_data(E, tokens, labels)
    W = torch.randn(1, data.d, data.e, generator=g, dtype=torch.float64)
    behind = (data.logits(W).amax(-1) - data.logits(W).masked_fill(data.scores() == 0, -torch.inf).amax(-1)).max()
    W = W * (gap / behind)
    X, Z, Wm = reference.exact(data.X[0]), reference.exact(data.Z[0, :, 0]), reference.exact(W[0])
    truth, loss = reference.exact(np.zeros(W.shape[1:])), mp.mpf(0)
    for x, z, row, label in zip(X, Z, tokens, labels):
        a = x @ (Wm @ z)
        s = np.array([mp.exp(logit - max(a)) for logit in a])
        s = s / s.sum()
        own = np.array([mp.mpf(int(t == label)) for t in row])
        loss = loss - mp.log(s @ own) / 3
        truth = truth + np.outer((s - s * own / (s @ own)) @ x, z) / 3
    assert_exact(*library_gradients(data, "log", {"W": W})["W"], data.n, truth)
    assert value(data, W, "log").item() == pytest.approx(float(loss), rel=1e-12)


def test_order_of_tokens_does_not_matter():
    data = make_data("quadratic", "masked")
    order = torch.tensor([2, 0, 3, 1])
    shuffled = TokenData(data.X[:, :, order], data.Z, data.Y, data.mask[..., order], data.head)
    for size in NORMS:
        blocks = blocks_of_norm("W", size)
        (G, M), (H, S) = (library_gradients(x, "logistic", blocks)["W"] for x in (data, shuffled))
        assert (G / G.norm() - H / H.norm()).norm() < 1e-10
        assert abs(M - S) < 1e-10


def test_scaled_tokens_with_inversely_scaled_weights():
    data = make_data("linear", "masked")
    for c in (1e-3, 8.0):
        head = LinearHead(data.head.v / c)
        scaled = TokenData(data.X * c, data.Z, data.Y, data.mask, head)
        W = blocks_of_norm("W", 50.0)["W"]
        G, _ = library_gradients(data, "logistic", {"W": W})["W"]
        H, _ = library_gradients(scaled, "logistic", {"W": W / c})["W"]
        assert (G / G.norm() - H / H.norm()).norm() < 1e-12


def test_large_shapes_use_matrix_products_with_the_same_result():
    data = make_data("mlp", "masked")
    for parameterization in ("W", "KQ"):
        blocks = {name: trial_last(x) for name, x in blocks_of_norm(parameterization, 20.0).items()}
        lanes = Lanes.of(data, fixed_head=True)
        large = Lanes(lanes.X, lanes.Z, lanes.Y, lanes.hidden, lanes.scores, lanes.head, small=False)
        found = (gradients(x, LOSSES["logistic"], blocks) for x in (lanes, large))
        for a, b in zip(*(x.values() for x in found)):
            assert torch.allclose(a.G, b.G, rtol=1e-12, atol=1e-14)
