"""Spearman's correlation against scipy, and its interval by coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.experiments.rank_correlation import ranks, spearman, spearman_interval


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=30))
def test_agrees_with_scipy_with_ties(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    x, y = (np.array(values, dtype=float) for values in zip(*pairs))
    np.testing.assert_allclose(ranks(x), stats.rankdata(x) - 1)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    else:
        assert np.isnan(spearman(x, y))


def test_interval_covers_the_truth() -> None:
    """For a Gaussian pair of correlation r the rank correlation is 6/π · arcsin(r/2)."""
    truth, hits = 6 / np.pi * np.arcsin(0.3), 0
    for seed in range(40):
        x, noise = np.random.default_rng(seed).normal(size=(2, 150))
        low, high = spearman_interval(x, 0.6 * x + 0.8 * noise, level=0.95, seed=seed)
        hits += low <= truth <= high
    assert hits >= 34  # 38 are expected; fewer than 34 have a chance of 1%
