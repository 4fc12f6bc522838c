"""Nasty max-margin problems for `fuzz_certificates.py`: each function makes a batch of them, over tokens or of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from attsvm import MarginProblem, TokenData, att_svm, gen_svm

BATCH = 10


def _tokens(rng: np.random.Generator, n: int, T: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(BATCH, n, T, d)), rng.normal(size=(BATCH, n, d))


def _size(rng: np.random.Generator) -> tuple[int, int, int]:
    return tuple(rng.choice([(6, 8, 10), (3, 4, 6), (4, 5, 4), (2, 6, 5), (5, 3, 3)]))  # type: ignore[return-value]


def _att(X: np.ndarray, Z: np.ndarray) -> MarginProblem:
    return att_svm(TokenData.cross(X, Z), np.zeros(X.shape[1], dtype=int))


def scaled_queries(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    return _att(X, Z * 10.0 ** rng.uniform(-8, 8, size=Z.shape[:2])[..., None])


def scaled_tokens(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    return _att(X * 10.0 ** rng.uniform(-8, 8, size=X.shape[:2])[..., None, None], Z)


def float32_tokens(rng: np.random.Generator) -> MarginProblem:
    """Differences of tokens of other sizes: what float32 loses of them is 2⁻²⁴."""
    X, Z = _tokens(rng, *_size(rng))
    X = X * 10.0 ** rng.uniform(-3, 3, size=X.shape[:3])[..., None]
    tokens = (torch.from_numpy(X).float(), torch.from_numpy(Z).float())
    return att_svm(TokenData.cross(*tokens), np.zeros(X.shape[1], dtype=int))


def scaled_rows(rng: np.random.Generator) -> MarginProblem:
    N, d, e = rng.integers(3, 30), rng.integers(2, 7), rng.integers(1, 5)
    A = rng.normal(size=(BATCH, N, d)) * 10.0 ** rng.uniform(-8, 8, size=(BATCH, N, 1))
    return MarginProblem.from_rows(A, rng.normal(size=(BATCH, N, e)), b=10.0 ** rng.uniform(-2, 2, size=(BATCH, N)))


def scaled_columns(rng: np.random.Generator) -> MarginProblem:
    N, d = rng.integers(2, 12), rng.integers(2, 12)
    return MarginProblem.from_rows(rng.normal(size=(BATCH, N, d)) * 10.0 ** rng.uniform(-8, 0, size=(BATCH, 1, d)))


def near_ties(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    gap = 10.0 ** rng.uniform(-12, -3, size=(BATCH, 1))
    X[:, 0, 1] = X[:, 0, 0] + gap * rng.normal(size=X[:, 0, 0].shape)
    return _att(X, Z)


def duplicates(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    X[:, 0, 2] = X[:, 0, 1]  # two equal competitors
    Z[:, 1] = Z[:, 0]
    X[:, 1] = X[:, 0]  # the same sequence twice
    if rng.random() < 0.3:
        X[:, 1, [0, 1]] = X[:, 1, [1, 0]]  # with the opposite wish
    elif rng.random() < 0.3:
        X[:, 0, 1] = X[:, 0, 0]  # the selected token is repeated
    return _att(X, Z)


def near_infeasible(rng: np.random.Generator) -> MarginProblem:
    """Margins of 1e-1 to 1e-6 of the rows' length."""
    return _margins(rng, 10.0 ** rng.uniform(-6, -1, size=(BATCH, 1)))


def tiny_margins(rng: np.random.Generator) -> MarginProblem:
    """Margins of 1e-6 to 1e-12 of the rows' length, the same for the whole batch."""
    return _margins(rng, np.full((BATCH, 1), tiny(rng)))


def tiny(rng: np.random.Generator) -> float:
    return 10.0 ** rng.uniform(-12, -6)


def _margins(rng: np.random.Generator, gamma: np.ndarray) -> MarginProblem:
    N, d, e = rng.integers(5, 40), rng.integers(2, 5), rng.integers(1, 4)
    W = rng.normal(size=(BATCH, d, e))
    A, Z = rng.normal(size=(BATCH, N, d)), rng.normal(size=(BATCH, N, e))
    Wz = np.einsum("bde,bne->bnd", W, Z)
    value = np.einsum("bnd,bnd->bn", A, Wz)
    A *= np.where(value < 0, -1, 1)[..., None]
    gamma = gamma * (1 + rng.exponential(size=(BATCH, N)))
    A += ((gamma - abs(value)) / (Wz**2).sum(-1))[..., None] * Wz
    return MarginProblem.from_rows(A, Z)


def overfull(rng: np.random.Generator) -> MarginProblem:
    """Mostly infeasible."""
    n, T, d = rng.integers((3, 4, 2), (7, 9, 4)).tolist()
    return _att(*_tokens(rng, n, T, d))


def whole_numbers(rng: np.random.Generator) -> MarginProblem:
    n, T, d = rng.integers(1, 5), rng.integers(2, 6), rng.integers(1, 5)
    X, Z = rng.integers(-2, 3, size=(BATCH, n, T, d)), rng.integers(-2, 3, size=(BATCH, n, d))
    return _att(X, Z)


def equalities(rng: np.random.Generator) -> MarginProblem:
    n, T, d = _size(rng)
    X, Z = _tokens(rng, n, T, d)
    data = TokenData.cross(X, Z * 10.0 ** rng.uniform(-3, 3, size=Z.shape[:2])[..., None])
    selected = torch.zeros_like(data.mask)
    selected[..., 0] = True
    selected[:, 0, :, 1] = True
    return gen_svm(data, selected)


KINDS: dict[str, Callable[[np.random.Generator], MarginProblem]] = {
    f.__name__: f
    for f in (
        scaled_queries,
        scaled_tokens,
        scaled_rows,
        scaled_columns,
        near_ties,
        duplicates,
        near_infeasible,
        tiny_margins,
        overfull,
        whole_numbers,
        equalities,
        float32_tokens,
    )
}
