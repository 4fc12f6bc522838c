"""Malformed input is refused with AttsvmError, one sentence, and nothing else is ever raised."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.data import LinearHead, MLPHead, TokenData, orthonormal, sphere
from attsvm.errors import AttsvmError

X = np.ones((2, 3, 4, 5))
Z = np.ones((2, 3, 6))
MASK = np.ones((2, 3, 4), dtype=bool)


def with_entry(array: np.ndarray, value: float) -> np.ndarray:
    array = array.astype(float)
    array.flat[-1] = value
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": np.ones((3, 4))}, "X must have shape (n, T, d) or (B, n, T, d)"),
        ({"X": np.ones((2, 3, 0, 5))}, "n, T, d ≥ 1, but got shape (2, 3, 0, 5)."),
        ({"X": np.ones((2, 0, 4, 5))}, "n, T, d ≥ 1, but got shape (2, 0, 4, 5)."),
        ({"X": with_entry(X, np.nan)}, "X must be finite"),
        ({"X": with_entry(X, -np.inf)}, "X must be finite"),
        ({"X": [[[1], [1, 2]]]}, "X must be a rectangular array"),
        ({"X": X + 1j}, "X must be an array of real numbers, but got ndarray of dtype complex128."),
        ({"X": "tokens"}, "X must be an array of real numbers, but got str 'tokens'."),
        ({"X": torch.ones(2, 3, 4, 5).to_sparse()}, "X must be a dense tensor"),
        ({"Z": np.ones((2, 4, 6))}, "Z must have shape (B, n, K, e) = (2, 3, K, e) with K, e ≥ 1"),
        ({"Z": np.ones((2, 3, 0, 6))}, "K, e ≥ 1, but got shape (2, 3, 0, 6)."),
        ({"Z": np.ones(6)}, "Z must have shape (B, n, e) or (B, n, K, e), but got shape (6,)."),
        ({"Z": with_entry(Z, np.inf)}, "Z must be finite"),
        ({"Z": None}, "Z must be an array"),
        (
            {"Y": np.ones((2, 2))},
            "Y must have shape (B, n, K) = (2, 3, 1) with entries ±1, but got shape (2, 2, 1).",
        ),
        ({"Y": np.zeros((2, 3))}, "Y must have entries ±1, but got the entry 0."),
        ({"Y": with_entry(np.ones((2, 3)), np.nan)}, "Y must be finite"),
        ({"mask": MASK.astype(int)}, "mask must be boolean"),
        ({"mask": MASK[:, :, :3]}, "mask must have shape (B, n, K, T) = (2, 3, 1, 4)"),
        ({"mask": MASK & (np.arange(3) < 2)[:, None]}, "but query 0 of sample 2 in trial 0 has none."),
        ({"head": np.ones(4)}, "v must have shape (d,), (B, d) or (B, H, d) with B = 2 and d = 5"),
        ({"head": np.ones((2, 3, 5))}, "linear head must have B = 2, H = 1 and d = 5, but got B = 2, H = 3"),
        ({"head": MLPHead.sum_relu(3, 5)}, "mlp head must have B = 2"),
        ({"head": "linear"}, "v must be an array"),
    ],
)
def test_constructor_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(AttsvmError) as caught:
        TokenData.cross(**({"X": X, "Z": Z} | change))
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


GOOD: dict[str, Any] = {
    "X": torch.ones(1, 2, 3, 4),
    "Z": torch.ones(1, 2, 1, 4),
    "Y": torch.ones(1, 2, 1),
    "mask": torch.ones(1, 2, 1, 3, dtype=torch.bool),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": np.ones((1, 2, 3, 4))}, "X must be a float32 or float64 tensor, but got ndarray"),
        ({"X": torch.ones(1, 2, 3, 4, dtype=torch.float16)}, "X must be a float32 or float64 tensor"),
        ({"Z": torch.ones(1, 2, 1, 4, dtype=torch.float64)}, "Z must have the dtype and device of X"),
        ({"Y": torch.ones(1, 2, 1, dtype=torch.int64)}, "Y must be a float32 or float64 tensor"),
        (
            {"mask": torch.ones(1, 2, 1, 3)},
            "mask must be a boolean tensor on cpu, but got torch.float32 on cpu.",
        ),
        ({"mask": None}, "mask must be a boolean tensor on cpu, but got NoneType."),
        ({"head": torch.ones(4)}, "head must be a Head or None, but got Tensor."),
        ({"head": LinearHead(torch.ones(1, 1, 4, dtype=torch.float64))}, "dtype and device of X"),
    ],
)
def test_dataclass_refuses(change: dict[str, Any], words: str) -> None:
    TokenData(**GOOD)
    with pytest.raises(AttsvmError) as caught:
        TokenData(**(GOOD | change))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: TokenData(**GOOD).scores(), "scores need a head"),
        (
            lambda data: data.logits(np.ones((4, 3))),
            "W must have shape (d, e) = (4, 4) or (B, d, e) = (2, 4, 4)",
        ),
        (lambda data: data.logits(np.ones((3, 4, 4))), "but got shape (3, 4, 4)."),
        (lambda data: data.attention(np.full((4, 4), np.nan)), "W must be finite"),
        (lambda data: data.selected_sets(np.ones((4, 4)), tol=-1), "tol must be finite and at least 0"),
        (lambda data: data.selected_sets(np.ones((4, 4)), tol="no"), "tol must be a number"),
        (lambda data: data[2], "trials must be numbers below B = 2, but got int 2."),
        (lambda data: data[[0, 5]], "trials must be numbers below B = 2"),
        (lambda data: data["a"], "trials must be numbers"),
        (lambda data: data[0.5], "trials must be numbers"),
        (lambda data: data[[[0], [1]]], "one-dimensional"),
        (lambda data: data[None], "one-dimensional"),
        (lambda data: data.to(dtype=torch.float16), "dtype must be torch.float32 or torch.float64"),
        (lambda data: TokenData.cat([]), "empty list"),
        (lambda data: TokenData.cat([data, sphere(2, 3, 5)]), "must agree in everything but B"),
        (
            lambda data: TokenData.self_attention(X, query=4),
            "query must be a whole number in 0..3, but got 4.",
        ),
        (lambda data: TokenData.self_attention(X, query=True), "query must be a whole number"),
        (lambda data: TokenData.causal(X, Z=np.ones((2, 3, 2, 5))), "with K = T = 4"),
        (lambda data: sphere(0, 1, 1), "n must be a whole number at least 1, but got 0."),
        (lambda data: sphere(1, 1.0, 1), "T must be a whole number at least 1, but got float 1.0."),
        (lambda data: sphere(1, 1, 1, trials=-1), "trials must be"),
        (lambda data: sphere(1, 1, 1, trials=[0, -1]), "trials must be"),
        (lambda data: sphere(1, 1, 1, trials="ab"), "trials must be"),
        (lambda data: sphere(1, 1, 1, trials=None), "trials must be"),
        (lambda data: sphere(1, 1, 1, seed=2**64), "seed must be"),
        (
            lambda data: sphere(1, 2, 1, queries=3, self_attention=True),
            "self_attention takes queries ≤ T = 2",
        ),
        (lambda data: sphere(1, 2, 3, e=2, self_attention=True), "of size e = d = 3"),
        (lambda data: sphere(1, 3, 3, queries=2, causal=True), "queries of causal data must be T = 3"),
        (lambda data: sphere(1, 3, 3, min_score_gap=-0.1), "min_score_gap must be finite and at least 0"),
        (lambda data: sphere(1, 3, 3, min_score_gap=2.5), "none of 8191 met 2.5."),
        (lambda data: orthonormal(1, 3, 2), "T must be at most d = 2 for orthonormal tokens, but got 3."),
    ],
)
def test_calls_refuse(call, words: str) -> None:
    with pytest.raises(AttsvmError) as caught:
        call(sphere(2, 3, 4, trials=2))
    assert words in str(caught.value)


def shaped(element: float) -> Any:
    return st.lists(st.integers(0, 3), max_size=5).map(lambda shape: np.full(shape, element))


entries = st.sampled_from([1.0, -1.0, 0.0, np.nan, np.inf, 1e300])
arrays = entries.flatmap(shaped)
things = st.one_of(
    arrays,
    arrays.map(torch.from_numpy),
    arrays.map(lambda array: array == 1),
    st.none(),
    st.text(max_size=3),
    st.recursive(st.integers(-2, 2), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
    st.just(1j),
    st.just(object()),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(X=things, Z=things, Y=things, head=things, mask=things)
def test_any_shapes_give_data_or_AttsvmError(**fields: Any) -> None:
    for build in (TokenData.cross, TokenData.self_attention, TokenData.causal, TokenData.cls, TokenData):
        names = inspect.signature(build).parameters
        try:
            data = build(**{name: value for name, value in fields.items() if name in names})
        except AttsvmError:
            continue
        assert data.X.ndim == 4


@settings(max_examples=300, deadline=None, derandomize=True)
@given(B=st.integers(0, 2), n=st.integers(1, 3), T=st.integers(1, 3), K=st.integers(1, 3), data=st.data())
def test_any_argument_gives_a_result_or_AttsvmError(B: int, n: int, T: int, K: int, data: Any) -> None:
    tokens = sphere(n, T, 2, trials=B, queries=K)
    call = data.draw(st.sampled_from(["check_tokens", "logits", "selected_sets", "__getitem__"]))
    try:
        result = getattr(tokens, call)(data.draw(things))
    except AttsvmError:
        return
    if call == "check_tokens":
        assert result.shape == (B, n, K)
        assert result.dtype == torch.long
    elif call == "__getitem__":
        assert result.X.shape[1:] == tokens.X.shape[1:]
    else:
        assert result.shape == (B, n, K, T)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    X_shape=st.sampled_from([(2, 3, 2), (1, 2, 3, 2), (0, 2, 3, 2)]),
    Z_shape=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    Y_shape=st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
def test_accepted_shapes_are_consistent(X_shape: tuple[int, ...], Z_shape: list[int], Y_shape: list[int]) -> None:
    try:
        data = TokenData.cross(np.ones(X_shape), np.ones(Z_shape), np.ones(Y_shape), head=[1.0, 1.0])
    except AttsvmError:
        return
    B, n, T, _ = data.X.shape
    assert data.Z.shape[:2] == (B, n)
    assert data.Y.shape == data.Z.shape[:3]
    assert data.scores().shape == data.attention(np.ones((data.d, data.e))).shape == (B, n, data.K, T)
