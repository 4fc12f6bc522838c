"""Random and printed data sets of the papers.

Every trial has its own random stream, Philox keyed by (seed, trial). So one trial can be made again on its own:
`sphere(6, 8, 10, trials=[17])` is trial 17 of `sphere(6, 8, 10, trials=500)`, bit for bit.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.random import Generator, Philox

from attsvm.checks import as_count, as_real
from attsvm.data._token_data import TokenData
from attsvm.errors import AttsvmError
from attsvm.memory import free_bytes

Trials = int | Iterable[int]

# A score gap is refused once this many candidates for one sequence have missed it.
CANDIDATES = 8191
# Numbers that a trial draws at once while it searches for the score gap.
BLOCK_SIZE = 2**17
# Arrays of the size of the tokens that are alive at the same time.
COPIES = 3


def sphere(
    n: int,
    T: int,
    d: int,
    *,
    trials: Trials = 1,
    seed: int = 0,
    queries: int = 1,
    self_attention: bool = False,
    causal: bool = False,
    min_score_gap: float = 0.0,
    e: int | None = None,
) -> TokenData:
    """Tokens, queries and v uniform on unit spheres, labels uniform in ±1; float64 on the CPU.

    `queries` is K. With `self_attention` the queries are the first K tokens. With `causal` K = T, and query k sees the
    tokens 0..k. The scores of a query's best and second best token differ by at least `min_score_gap`.
    """
    n, T, d, K = as_count("n", n), as_count("T", T), as_count("d", d), as_count("queries", queries)
    e = d if e is None else as_count("e", e)
    gap = as_real("min_score_gap", min_score_gap, least=0)
    if causal:
        if K not in (1, T):
            raise AttsvmError(f"queries of causal data must be T = {T} (one per token), but got {K}.")
        K = T
    if self_attention and (K > T or e != d):
        raise AttsvmError(
            f"self_attention takes queries ≤ T = {T} of size e = d = {d}, but got queries = {K} and e = {e}."
        )
    numbers = trial_numbers(trials)
    streams = trial_streams(seed, numbers)
    v = _unit(_normal(streams, d))
    Y = np.where(_normal(streams, n, K) < 0, -1.0, 1.0)
    X = _unit(_normal(streams, n, T, d))
    Z = None if self_attention else _unit(_normal(streams, n, K, e))
    allowed = np.tri(K, T, dtype=bool) if causal else np.ones((K, T), dtype=bool)
    if gap > 0 and T > 1:
        # A few trials at a time: little memory, and an impossible gap is noticed early.
        step = max(1, BLOCK_SIZE // (16 * n * T * d))
        for start in range(0, len(streams), step):
            some = slice(start, start + step)
            _resample(streams[some], X[some], Y[some], v[some], allowed, gap)
    mask = np.broadcast_to(allowed, (len(streams), n, K, T))
    data = TokenData.cross(X, X[:, :, :K] if Z is None else Z, Y, v, mask)
    return replace(data, trials=torch.tensor(numbers, dtype=torch.long))


def orthonormal(
    n: int,
    T: int,
    d: int,
    *,
    trials: Trials = 1,
    seed: int = 0,
    queries: int = 1,
    e: int | None = None,
) -> TokenData:
    """Random orthonormal tokens in every sample (T ≤ d), queries and v uniform on unit spheres.

    Labels are +1, as in Lemma 6 of "Transformers as SVMs", where −h must be convex.
    """
    n, T, d, K = as_count("n", n), as_count("T", T), as_count("d", d), as_count("queries", queries)
    e = d if e is None else as_count("e", e)
    if d < T:
        raise AttsvmError(f"T must be at most d = {d} for orthonormal tokens, but got {T}.")
    numbers = trial_numbers(trials)
    streams = trial_streams(seed, numbers)
    v = _unit(_normal(streams, d))
    Q, R = np.linalg.qr(_normal(streams, n, d, T))
    # A positive diagonal of R makes Q uniform (Haar) instead of following the signs of the QR routine.
    Q *= np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[..., None, :]
    data = TokenData.cross(Q.swapaxes(-1, -2), _unit(_normal(streams, n, K, e)), head=v)
    return replace(data, trials=torch.tensor(numbers, dtype=torch.long))


def figure1(*, trials: Trials = 1, seed: int = 0) -> TokenData:
    """The setting of Figure 1 of "Transformers as SVMs": cross-attention, n = d = 2, T = 3.

    The paper does not print its coordinates; these are random, with the spheres and the score gap 0.1 of its
    other experiments, so that the optimal token is clear to the eye.
    """
    return sphere(2, 3, 2, trials=trials, seed=seed, min_score_gap=0.1)


def example1() -> TokenData:
    """Example 1 of the mirror-descent paper: n = T = d = 2, z_i the first token, which is the optimal one.

    The paper gives no v; (1/5, 0), the ℓp-SVM solution of the first tokens for every p, makes them optimal.
    """
    X = [[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]]
    return TokenData.self_attention(X, Y=[1, -1], head=[0.2, 0.0])


def example2() -> TokenData:
    """Example 2 of the mirror-descent paper, for joint training: n = 2, T = 3, d = 2, z_i the first token.

    The paper trains v; this one is the ℓ2-SVM solution of the first tokens, which it makes optimal. They have
    the largest label margin of all choices for p = 2 and 3; for p = 1.75 tokens 2 of X_1 and 1 of X_2 have.
    """
    X = [[[-5.4, 2.4], [2.8, 4.2], [2.6, -0.2]], [[0.8, -4.4], [-2.2, -0.8], [1.8, 0.2]]]
    return TokenData.self_attention(X, Y=[1, -1], head=[-2.0 / 21.84, 4.6 / 21.84])


def trial_numbers(trials: Trials) -> list[int]:
    """The numbers of the trials, from their count or a list of them."""
    try:
        numbers = iter(trials)  # type: ignore[arg-type]
    except TypeError:
        return list(range(as_count("trials", trials, 0, 10**7)))
    return [as_count("trials", trial, 0, 2**63 - 1) for trial in numbers]


def trial_streams(seed: int, trials: Trials) -> list[Generator]:
    """The random stream of every trial, keyed by (seed, its number)."""
    seed = as_count("seed", seed, 0, 2**64 - 1)
    return [Generator(Philox(key=np.array((seed, number), dtype=np.uint64))) for number in trial_numbers(trials)]


def _normal(streams: list[Generator], *shape: int) -> np.ndarray:
    """Standard normals (B, *shape), each trial from its own stream."""
    shape = (len(streams), *shape)
    free = free_bytes(torch.device("cpu"))
    try:
        if free is not None and COPIES * 8 * math.prod(shape) > free:
            raise MemoryError
        out = np.empty(shape)
    except (MemoryError, ValueError) as error:  # ValueError: more than can be counted
        sizes = " × ".join(map(str, shape))
        raise AttsvmError(f"{sizes} numbers do not fit into memory: take fewer trials or smaller sizes.") from error
    for stream, row in zip(streams, out):
        stream.standard_normal(out=row)
    return out


def _unit(x: np.ndarray) -> np.ndarray:
    """Vectors along the last axis scaled to the unit sphere."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _resample(
    streams: list[Generator], X: np.ndarray, Y: np.ndarray, v: np.ndarray, allowed: np.ndarray, gap: float
) -> None:
    """Draw the tokens of a sample again, in place, until its score gap is large enough.

    The paper rejects whole trials; rejecting samples gives the same law, because given v the samples are
    independent and by rotation invariance the acceptance probability is the same for every v. (Labels are
    kept: with several queries the probability depends on them, and rejecting trials would favour equal ones.)
    """
    _, n, T, d = X.shape
    short = ~_has_gap(X, Y, v[:, None], allowed, gap)
    tried, block = 0, 1
    while short.any():
        if tried >= CANDIDATES:
            raise AttsvmError(
                f"min_score_gap must be met by at least one in {CANDIDATES} random sequences, "
                f"but with T = {T} and d = {d} none of {tried} met {gap:g}."
            )
        b, i = short.nonzero()
        # What a trial draws depends on its own history alone, so the other trials make no difference.
        draws = [stream.standard_normal((count, block, T, d)) for stream, count in zip(streams, short.sum(1)) if count]
        candidates = _unit(np.concatenate(draws))
        fits = _has_gap(candidates, Y[b, i][:, None], v[b][:, None], allowed, gap)
        found = fits.any(1)
        X[b[found], i[found]] = candidates[found, fits[found].argmax(1)]
        short[b[found], i[found]] = False
        tried += block
        block = min(2 * block, 256, max(1, BLOCK_SIZE // (n * T * d)))


def _has_gap(X: np.ndarray, Y: np.ndarray, v: np.ndarray, allowed: np.ndarray, gap: float) -> np.ndarray:
    """Whether each query's best token leads by `gap`: X (..., T, d), Y (..., K), v (..., d) → (...)."""
    # One sum per row. A matrix product could round differently with the number of trials.
    values = (X * v[..., None, :]).sum(-1)
    scores = np.where(allowed, Y[..., None] * values[..., None, :], -np.inf)
    second, best = np.moveaxis(np.partition(scores, -2, axis=-1)[..., -2:], -1, 0)
    return (best - second >= gap).all(-1)
