"""Weights and exponents that somebody changes between two steps of MirrorDescent."""

import math

import pytest
import torch
from mirror_steps import SHAPES, random_gradients, run, start

from attsvm.optim import MirrorDescent


def test_a_weight_overwritten_through_data_goes_on_from_there():
    for value in (1e6, -1e6, 0.0, 1e-30, math.inf):
        w = torch.nn.Parameter(torch.full((4,), 0.01))
        optimizer = MirrorDescent([w], lr=1e-3)
        w.grad = torch.ones_like(w)
        optimizer.step()
        w.data.fill_(value)
        optimizer.step()
        theta = math.copysign(abs(value) ** 0.1, value)
        expected = torch.full((4,), theta - 1e-3)
        torch.testing.assert_close(optimizer.state[w]["mirror"], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_changed_by_hand_are_noticed(dtype):
    params, fresh = start(dtype=dtype), start(dtype=dtype)
    gradients = random_gradients(2)
    optimizer = MirrorDescent(params, lr=0.01)
    run(optimizer, params, gradients[:1])
    kept = optimizer.state[params[0]]["mirror"].clone()
    with torch.no_grad():
        params[0][:5] = 0.25
        fresh[0].copy_(params[0])
    run(optimizer, params, gradients[1:])
    # Entries that were set go on from the weight; the others from the mirror variable, to the last bit.
    step = 0.01 * gradients[1][0].to(dtype).float()
    theta = optimizer.state[params[0]]["mirror"]
    torch.testing.assert_close(theta[:5], 0.25**0.1 - step[:5])
    torch.testing.assert_close(theta[5:], kept[5:] - step[5:], rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [1.1, 1.5, 2, 3])
def test_a_change_of_the_last_bit_of_a_coarse_weight_is_noticed(p, dtype):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(2000).to(dtype))
    optimizer = MirrorDescent([w], lr=1e-3, p=p)
    for _ in range(3):
        w.grad = torch.randn_like(w)
        optimizer.step()
    w.grad = torch.zeros_like(w)
    kept = optimizer.state[w]["mirror"].clone()
    with torch.no_grad():
        w.mul_(1)  # a change, and none
    optimizer.step()
    assert torch.equal(optimizer.state[w]["mirror"], kept)
    changed = torch.nextafter(w.detach(), torch.tensor(math.inf, dtype=dtype))
    with torch.no_grad():
        w.copy_(changed)
    optimizer.step()
    # But where θ means a number so near to the middle between two weights that it may be either.
    near = (16 + 1 / (p - 1)) * torch.finfo(torch.float32).eps / torch.finfo(dtype).eps
    assert (w.detach() != changed).float().mean() <= 8 * near


def test_resync_after_a_change_through_data_or_of_p():
    params = start()
    optimizer = MirrorDescent(params, lr=0.0)
    run(optimizer, params, random_gradients(1))
    params[0].data.fill_(0.25)
    optimizer.param_groups[0]["p"] = 3
    optimizer.resync()
    torch.testing.assert_close(optimizer.state[params[0]]["mirror"], torch.full(SHAPES[0], 0.25**2))
    assert not optimizer.state[params[0]]["rest"].any()
    optimizer.param_groups[0]["p"] = 2
    optimizer.resync()
    assert not optimizer.state[params[0]]


@pytest.mark.parametrize("foreach", [False, True])
def test_steps_that_keep_no_roundings_forget_those_of_others(foreach):
    params, fresh = start(), start()
    gradients = random_gradients(3)
    optimizer = MirrorDescent(params, lr=0.01, p=1.1, foreach=foreach)
    run(optimizer, params, gradients[:2])
    assert all(optimizer.state[param]["rest"].any() for param in params)
    optimizer.param_groups[0]["p"] = 1.5
    optimizer.resync()
    for ours, theirs in zip(params, fresh):
        theirs.data.copy_(ours.data)
    run(optimizer, params, gradients[2:])
    run(MirrorDescent(fresh, lr=0.01, p=1.5, foreach=foreach), fresh, gradients[2:])
    assert all(set(optimizer.state[param]) == {"mirror"} for param in params)
    assert all(torch.equal(a, b) for a, b in zip(params, fresh))
