"""Directions meet the certified SVM solution of the tokens they select."""

import pytest
import torch
from torch import Tensor

from attsvm import Lp, TokenData, att_svm, solve, sphere
from attsvm.dynamics import Growing, train


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(6, 8, 10, trials=20)


def distances(data: TokenData, geometry: Lp, records: dict[str, Tensor]) -> list[Tensor]:
    """At every recorded step: 1 − corr (p = 2) or directional Bregman divergence to the SVM solution."""
    result = []
    for W, tokens in zip(records["W"], records["tokens"]):
        svm = solve(att_svm(data, tokens), geometry, tol=1e-12)
        # ½‖a − b‖² of unit vectors is 1 − corr, and the divergence of p = 2.
        result.append(torch.where(svm.solved, geometry.directional_bregman(svm.W, W), torch.inf))
    return result


def test_constant_steps(data: TokenData):
    run = train(data, steps=5_000, record=["W", "tokens"], at=[500, 5_000])
    early, late = distances(data, Lp(2), run.records)
    assert early.median() < 2.5e-2
    assert late.median() < 2.5e-4  # it falls like 1/t²


@pytest.mark.parametrize(("p", "early_bar", "late_bar"), [(1.75, 2e-3, 4e-4), (3.0, 0.1, 0.04)])
def test_constant_mirror_steps(data: TokenData, p: float, early_bar: float, late_bar: float):
    run = train(data, Lp(p), steps=2_000, record=["W", "tokens"], at=[1_000, 2_000])
    early, late = distances(data, Lp(p), run.records)
    assert early.median() < early_bar
    assert late.median() < late_bar < early_bar


@pytest.mark.parametrize(("p", "steps", "bar"), [(2.0, 5_000, 1e-6), (1.75, 3_000, 4e-6), (3.0, 3_000, 1e-5)])
def test_growing_steps(data: TokenData, p: float, steps: int, bar: float):
    run = train(data, Lp(p), steps=steps, lr=Growing(), record=["W", "tokens"], at=[steps])
    (distance,) = distances(data, Lp(p), run.records)
    assert (distance < bar).double().mean() >= 0.95
