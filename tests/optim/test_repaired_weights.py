"""Weights that became nan and were set again by hand: the weight wins, in every precision."""

import pytest
import torch
from small_task import MAKERS

from attsvm.optim._mirror_map import means


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_a_repaired_weight_is_taken_up(name: str, dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.tensor([0.5, -0.25, 1.0], dtype=dtype))
    optimizer = MAKERS[name]([weight], weight_decay=0.0)
    weight.grad = torch.tensor([torch.nan, 0.0, 0.0], dtype=dtype)
    optimizer.step()
    assert weight.isnan()[0]
    with torch.no_grad():
        weight.fill_(0.5)
    # moments keep their nan, as in torch
    optimizer.state[weight] = {key: value for key, value in optimizer.state[weight].items() if "mirror" in key}
    weight.grad = torch.zeros(3, dtype=dtype)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.5, dtype=dtype))
    with torch.no_grad():
        weight[1] = torch.nan
    optimizer.step()
    assert weight.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_weight_means_is_told_among_nan_and_inf_too(dtype: torch.dtype) -> None:
    numbers = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-30, 1.0, 1.0 + 1e-9, 1.001, -1.0, 4.0]
    theta, weight = torch.cartesian_prod(*[torch.tensor(numbers, dtype=dtype)] * 2).T
    tolerance = 18 * torch.finfo(dtype).eps
    expected = torch.isclose(weight, theta * theta.abs(), rtol=tolerance, atol=0, equal_nan=True)
    assert torch.equal(means(theta, weight, 1.5), expected)
