"""Spearman's rank correlation and its bootstrap interval."""

from __future__ import annotations

import numpy as np

DRAWS = 500


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """NaN where one of them is constant or there are not two."""
    if len(x) < 2:
        return np.nan
    a, b = (r - r.mean() for r in (ranks(x), ranks(y)))
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else np.nan


def spearman_interval(x: np.ndarray, y: np.ndarray, level: float = 0.99, seed: int = 0) -> tuple[float, float]:
    """The percentile interval over pairs drawn anew."""
    stream = np.random.default_rng(seed)
    draws = [stream.integers(len(x), size=len(x)) for _ in range(DRAWS)]
    values = [spearman(x[draw], y[draw]) for draw in draws]
    low, high = np.nanquantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)
