"""TokenData against naive loops over its definitions."""

import math

import numpy as np
import pytest
import torch

from attsvm.data import LinearHead, MLPHead, QuadraticHead, TokenData, sphere
from attsvm.errors import AttsvmError


def random_data(K: int = 3, H: int = 1, B: int = 2, n: int = 3, T: int = 4, d: int = 5, e: int = 2) -> TokenData:
    rng = np.random.default_rng(0)
    mask = rng.random((B, n, K, T)) < 0.6
    mask[..., 0] |= ~mask.any(-1)
    Y = np.where(rng.random((B, n, K)) < 0.5, -1, 1)
    head = LinearHead(torch.from_numpy(rng.standard_normal((B, H, d))))
    return TokenData.cross(rng.standard_normal((B, n, T, d)), rng.standard_normal((B, n, K, e)), Y, head, mask)


@pytest.mark.parametrize(("K", "H"), [(1, 1), (3, 1), (3, 3)])
def test_scores_and_optimal_tokens_follow_their_definition(K: int, H: int) -> None:
    data = random_data(K, H)
    assert isinstance(data.head, LinearHead)
    scores, best = data.scores(), data.optimal_tokens()
    gaps = [math.inf] * data.B
    for b, i, k in np.ndindex(data.B, data.n, K):
        allowed = [t for t in range(data.T) if data.mask[b, i, k, t]]
        gamma = {t: (data.Y[b, i, k] * data.head.v[b, k % H] @ data.X[b, i, t]).item() for t in allowed}
        for t in range(data.T):
            assert scores[b, i, k, t].item() == pytest.approx(gamma.get(t, -math.inf))
        assert best[b, i, k].item() == max(allowed, key=lambda t: gamma[t])
        ordered = sorted(gamma.values(), reverse=True)
        gaps[b] = min(gaps[b], ordered[0] - ordered[1] if len(ordered) > 1 else math.inf)
    assert data.score_gap().tolist() == pytest.approx(gaps)


@pytest.mark.parametrize("per_trial", [True, False])
def test_logits_and_attention_follow_their_definition(per_trial: bool) -> None:
    data = random_data()
    W = torch.randn(data.B, data.d, data.e, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    W = W if per_trial else W[0]
    logits, weights = data.logits(W), data.attention(W)
    for b, i, k in np.ndindex(data.B, data.n, data.K):
        a = data.X[b, i] @ (W[b] if per_trial else W) @ data.Z[b, i, k]
        allowed = data.mask[b, i, k]
        torch.testing.assert_close(logits[b, i, k][allowed], a[allowed])
        torch.testing.assert_close(weights[b, i, k][allowed], a[allowed].softmax(0))
        assert (logits[b, i, k][~allowed] == -torch.inf).all()
        assert (weights[b, i, k][~allowed] == 0).all()


def test_selected_sets_are_the_tokens_of_largest_logit() -> None:
    X = [[[1.0, 0.0], [1.0, 5.0], [0.5, 0.0], [1.0 + 1e-12, 0.0]]]
    data = TokenData.cls(X, mask=[[True, True, True, True]])
    assert data.selected_sets([[1.0], [0.0]]).tolist() == [[[[True, True, False, True]]]]
    assert data.selected_sets([[1.0], [0.0]], tol=0).tolist() == [[[[False, False, False, True]]]]
    assert data.selected_sets([[1e9], [0.0]]).tolist() == [[[[True, True, False, True]]]]
    hidden = TokenData.cls(X, mask=[[True, False, True, False]])
    assert hidden.selected_sets([[1.0], [1.0]]).tolist() == [[[[True, False, False, False]]]]
    assert hidden.selected_sets([[1e10], [0.0]], tol=1e300).tolist() == [[[[True, False, True, False]]]]


def test_first_of_equal_scores_is_optimal() -> None:
    data = TokenData.self_attention([[[1.0], [2.0], [2.0]]], head=[1.0])
    assert data.optimal_tokens().item() == 1
    assert data.score_gap().item() == 0


def test_one_token_has_an_infinite_score_gap() -> None:
    assert sphere(1, 1, 1).score_gap().tolist() == [math.inf]
    lone = TokenData.self_attention([[[1.0], [2.0]]], head=[1.0], mask=[[True, False]])
    assert lone.score_gap().tolist() == [math.inf]


def test_nonlinear_heads_give_scores() -> None:
    data = sphere(2, 3, 4, trials=2)
    relu = TokenData(data.X, data.Z, data.Y, data.mask, MLPHead.sum_relu(2, 4))
    torch.testing.assert_close(relu.scores(), data.Y[..., None] * data.X.relu().sum(-1)[:, :, None])
    assert isinstance(data.head, LinearHead)
    lam = torch.tensor([[2.0], [3.0]], dtype=torch.float64)
    curved = TokenData(data.X, data.Z, data.Y, data.mask, QuadraticHead(data.head.v, lam))
    torch.testing.assert_close(curved.scores(), data.scores() - data.Y[..., None] * lam[:, None, :, None])


def test_single_trial_and_batch_agree() -> None:
    rng = np.random.default_rng(1)
    X, Z, Y = rng.standard_normal((3, 4, 2)), rng.standard_normal((3, 2)), [1, -1, 1]
    mask = np.array([[True, True, False, True]] * 3)
    one = TokenData.cross(X, Z, Y, [1.0, 2.0], mask)
    batch = TokenData.cross(X[None], Z[None, :, None], [[[1], [-1], [1]]], [[1.0, 2.0]], mask[None, :, None])
    assert (one.B, one.n, one.T, one.d, one.K, one.e) == (1, 3, 4, 2, 1, 2)
    assert one.dtype == torch.float64
    for name in ("X", "Z", "Y", "mask"):
        assert torch.equal(getattr(one, name), getattr(batch, name))
    assert torch.equal(one.scores(), batch.scores())


def test_missing_query_axis_serves_all_queries() -> None:
    rng = np.random.default_rng(1)
    X, Z = rng.standard_normal((2, 3, 4, 2)), rng.standard_normal((2, 3, 5, 1))
    mask = np.ones((2, 3, 4), dtype=bool)
    mask[0, 1, 2] = False
    data = TokenData.cross(X, Z, -np.ones((2, 3)), mask=mask)
    assert data.Y.shape == (2, 3, 5)
    assert (data.Y == -1).all()
    assert (data.mask == torch.from_numpy(mask)[:, :, None]).all()


def test_a_bare_v_becomes_a_linear_head() -> None:
    X = np.random.default_rng(0).standard_normal((2, 3, 4, 2))
    for v, shape in (([1.0, 2.0], (2, 1, 2)), (np.ones((2, 2)), (2, 1, 2)), (np.ones((2, 4, 2)), (2, 4, 2))):
        data = TokenData.self_attention(X, head=v, query=None)
        assert isinstance(data.head, LinearHead)
        assert data.head.v.shape == shape
    per_query = TokenData.self_attention(X[0], head=np.arange(8.0).reshape(4, 2), query=None)
    assert isinstance(per_query.head, LinearHead)
    assert per_query.head.v.shape == (1, 4, 2)


def test_self_causal_and_cls_attention() -> None:
    X = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert torch.equal(TokenData.self_attention(X).Z, X[:, :, :1])
    assert torch.equal(TokenData.self_attention(X, query=2).Z, X[:, :, 2:3])
    assert torch.equal(TokenData.self_attention(X, query=None).Z, X)
    causal = TokenData.causal(X)
    assert torch.equal(causal.Z, X)
    for k in range(4):
        assert causal.mask[:, :, k].sum(-1).eq(k + 1).all()
        assert causal.mask[:, :, k, : k + 1].all()
    assert TokenData.causal(X[0], Z=np.ones((3, 4, 2))).e == 2
    cls = TokenData.cls(X)
    assert (cls.e, cls.K) == (1, 1)
    p = torch.randn(5, 1, dtype=torch.float64)
    torch.testing.assert_close(cls.logits(p)[:, :, 0], (X @ p)[..., 0])


def test_dtype_follows_X() -> None:
    single = TokenData.self_attention(torch.ones(1, 2, 3), Y=[1], head=[1, 2, 3])
    assert single.dtype == single.Z.dtype == single.scores().dtype == torch.float32
    assert single.to(dtype=torch.float64).scores().dtype == torch.float64
    assert TokenData.self_attention(np.ones((1, 2, 3), dtype=np.float32)).dtype == torch.float64
    assert TokenData.self_attention(torch.ones(1, 2, 3, dtype=torch.int32)).dtype == torch.float64
    assert TokenData.self_attention(torch.ones(1, 2, 3, dtype=torch.bfloat16)).dtype == torch.float64


def test_data_do_not_change_with_the_callers_array() -> None:
    X = np.ones((1, 2, 3))
    X.flags.writeable = False
    frozen = TokenData.self_attention(X)
    writable = X.copy()
    data = TokenData.self_attention(writable[::-1])
    writable[:] = 5
    assert torch.equal(data.X, frozen.X)


def test_indexing_keeps_the_trial_axis() -> None:
    data = sphere(2, 3, 4, trials=6)
    whole = torch.arange(6)
    mask = np.array([True, False] * 3)
    for index in (
        0,
        -1,
        np.int64(2),
        slice(1, 4),
        slice(None, None, -2),
        [3, 3, 0],
        mask,
        torch.tensor([5, 1]),
    ):
        picked = data[index]
        expected = np.atleast_1d(whole.numpy()[index if not isinstance(index, torch.Tensor) else index.numpy()])
        assert len(picked) == len(expected)
        for b, source in enumerate(expected):
            assert torch.equal(picked.X[b], data.X[source])
            assert torch.equal(picked.scores()[b], data.scores()[source])
    assert data[2:4].X.data_ptr() == data.X[2].data_ptr()
    assert [len(trial) for trial in data] == [1] * 6


def test_cat_undoes_cutting() -> None:
    data = random_data(B=4)
    joined = TokenData.cat([data[:1], data[1:1], data[1:]])
    for name in ("X", "Z", "Y", "mask"):
        assert torch.equal(getattr(joined, name), getattr(data, name))
    assert torch.equal(joined.scores(), data.scores())
    assert TokenData.cat([TokenData.cls(np.ones((1, 1, 1)))] * 2).head is None


def test_zero_trials() -> None:
    data = sphere(2, 3, 4, trials=0, queries=2)
    assert len(data) == 0
    assert data.scores().shape == (0, 2, 2, 3)
    assert data.optimal_tokens().shape == (0, 2, 2)
    assert data.score_gap().shape == (0,)
    assert data.attention(torch.zeros(4, 4)).shape == (0, 2, 2, 3)
    assert data.selected_sets(torch.zeros(0, 4, 4)).shape == (0, 2, 2, 3)
    assert data.check_tokens([[0, 1], [1, 2]]).shape == (0, 2, 2)
    assert len(TokenData.cat([data, data])) == 0


def test_check_tokens_expands() -> None:
    one_query, more = sphere(3, 4, 2, trials=2), sphere(3, 4, 2, trials=2, queries=2)
    expected = torch.tensor([0, 3, 1])
    for tokens in ([0, 3, 1], np.array([0, 3, 1], dtype=np.uint8), [[0], [3], [1]], [[0, 3, 1]] * 2):
        assert torch.equal(one_query.check_tokens(tokens), expected[None, :, None].expand(2, 3, 1))
    pairs = torch.tensor([[0, 1], [2, 3], [3, 0]])
    assert torch.equal(more.check_tokens(pairs), pairs.expand(2, 3, 2))
    assert torch.equal(more.check_tokens(more.optimal_tokens()), more.optimal_tokens())


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([0, 1], "tokens must have shape (n, K) = (2, 3) or (B, n, K) = (1, 2, 3), but got shape (2,)."),
        ([[0, 1, 2], [0, 1, 3]], "tokens must be in 0..2, but got 3."),
        ([[0, 1, 2], [0, -1, 2]], "but got -1."),
        ([[0, 1, 2], [1, 1, 2]], "token 1 is masked for query 0 of sample 1 in trial 0."),
        ([[0.0, 1, 2], [1, 1, 2]], "whole numbers"),
        ([[True] * 3] * 2, "whole numbers"),
        ([[0], [1, 2]], "tokens must be a rectangular array"),
        (np.full((2, 3), 2**64 - 1, dtype=np.uint64), "below 2^63"),
        (None, "real numbers"),
    ],
)
def test_wrong_tokens_are_refused(tokens, words: str) -> None:
    data = TokenData.causal(np.ones((2, 3, 1)))
    with pytest.raises(AttsvmError) as caught:
        data.check_tokens(tokens)
    assert words in str(caught.value)


def test_repr_is_short() -> None:
    assert repr(sphere(2, 3, 4)) == "TokenData(B=1, n=2, T=3, d=4, K=1, e=4, linear head, float64 on cpu)"
