"""MirrorAdam against a float64 formula and torch.optim.AdamW."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from mirror_steps import PATHS, error, flat, random_gradients, run, start
from torch import Tensor

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam
from attsvm.optim._mirror_map import inverse_exponent, whole_exponent


def reference(
    weights: list[Tensor],
    gradients: list[list[Tensor]],
    *,
    lr: float,
    p: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """(W, θ) after the steps, in float64, written as the docstring's box."""
    result = []
    for i, weight in enumerate(weights):
        W = weight.detach().cpu().double()
        theta = W.sign() * W.abs() ** (p - 1)
        m, v = torch.zeros_like(W), torch.zeros_like(W)
        for t, grads in enumerate(gradients, 1):
            g = (-1 if maximize else 1) * grads[i].double()
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g**2
            step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
            theta = (1 - lr * weight_decay) ** (p - 1) * theta - lr * step
        result.append((theta.sign() * theta.abs() ** (1 / (p - 1)), theta))
    return result


@cache
def reference_after_100_steps(p: float, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """One for all ways to step."""
    return reference(start(), random_gradients(100), lr=1e-3, p=p, **options)


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0, "maximize": True}, {"betas": (0.5, 0.9), "eps": 0.1}])
@pytest.mark.parametrize("p", [1.08, 1.1, 1.5, 1.75, 2, 3, 5])
@pytest.mark.parametrize(("device", "path"), PATHS)
def test_every_path_agrees_with_float64_after_100_steps(device, path, p, options, tensor_lr):
    params, gradients = start(device), random_gradients(100)
    expected = reference_after_100_steps(p, **options)
    lr = torch.tensor(1e-3, device=device) if tensor_lr else 1e-3
    optimizer = MirrorAdam(params, lr=lr, p=p, **options, **path)
    run(optimizer, params, gradients)
    mirrors = [optimizer.state[param]["mirror"] if p != 2 else param for param in params]
    theta, exact_theta = flat(mirrors), flat([theta for _, theta in expected])
    W, exact_W = flat(params), flat([W for W, _ in expected])
    assert error(theta, exact_theta) < 1e-6
    # Where 1/(p − 1) is whole, the fused step keeps what roundings of θ lose; else they add up, 1/(p − 1) times each.
    keeps = not path.get("fused") or whole_exponent(inverse_exponent(p)) > 0
    assert error(W, exact_W) < (1e-6 if keeps else 5e-6)
    assert ((W - theta.sign() * theta.abs() ** (1 / (p - 1))).abs() <= 1e-6 * W.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize(("device", "path"), PATHS)
def test_p_2_is_adamw(device, path, weight_decay, dtype):
    if path.get("fused") and dtype == torch.float64:
        pytest.skip("the kernels take float32, bfloat16 and float16")
    ours, theirs = start(device, dtype), start(dtype=torch.float32)
    theirs = [torch.nn.Parameter(param.detach().double()) for param in theirs]
    gradients = random_gradients(100)
    optimizer = MirrorAdam(ours, lr=1e-2, p=2, weight_decay=weight_decay, **path)
    run(optimizer, ours, gradients)
    run(torch.optim.AdamW(theirs, lr=1e-2, weight_decay=weight_decay), theirs, gradients)
    assert error(flat(ours), flat(theirs)) < 10 * torch.finfo(dtype).eps
    assert "mirror" not in optimizer.state[ours[0]]


@pytest.mark.parametrize("foreach", [False, True])
def test_betas_may_be_tensors(foreach):
    results = []
    for betas in ((0.5, 0.75), (torch.tensor(0.5), torch.tensor(0.75))):
        params = start()
        run(MirrorAdam(params, betas=betas, foreach=foreach), params, random_gradients(5))
        results.append(flat(params))
    assert torch.equal(*results)


def test_steps_are_multiplicative_near_p_1():
    # All weights are multiplied by about exp(lr/(p − 1)), whatever their size and the gradient's.
    W = torch.nn.Parameter(torch.logspace(-4, 0, 5, dtype=torch.float64))
    before = W.detach().clone()
    optimizer = MirrorAdam([W], lr=1e-6, p=1.0001, weight_decay=0.0)
    W.grad = -torch.logspace(3, -3, 5, dtype=torch.float64)
    optimizer.step()
    torch.testing.assert_close((W.detach() / before).log(), torch.full((5,), 1e-2).double(), rtol=2e-3, atol=0)


def test_weight_decay_shrinks_weights_as_adamw_does():
    for p in (1.1, 1.5, 3):
        W = torch.nn.Parameter(torch.tensor([0.5, -0.02], dtype=torch.float64))
        W.grad = torch.zeros_like(W)
        before = W.detach().clone()
        MirrorAdam([W], lr=0.1, p=p, weight_decay=0.2).step()
        torch.testing.assert_close(W.detach(), (1 - 0.1 * 0.2) * before, rtol=1e-13, atol=0)


@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 3, 10])
def test_thousands_of_steps_stay_finite(p):
    scales = torch.logspace(-6, 6, 13)
    W = torch.nn.Parameter(torch.linspace(-1, 1, 13))
    target = torch.linspace(1, -1, 13)
    optimizer = MirrorAdam([W], lr=1e-3, p=p, foreach=p == 1.1)
    for _ in range(4000):  # θ moves by lr per step, and has 2 to go
        W.grad = scales * (W.detach() - target)
        optimizer.step()
    assert W.isfinite().all()
    # Adam is free of the gradient's scale: 12 decades of curvature do not matter. A step from 0 has size lr^(1/(p−1)).
    assert ((W.detach() - target).abs() < max(0.2, 1e-3 ** (1 / (p - 1)))).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [1.1, 2])
@pytest.mark.parametrize(("device", "path"), PATHS)
def test_low_precision_parameters_have_float32_state(device, path, p, dtype):
    params, gradients = start(device, dtype), random_gradients(50)
    rounded = [[g.to(dtype) for g in grads] for grads in gradients]
    expected = reference(params, rounded, lr=1e-4, p=p)
    optimizer = MirrorAdam(params, lr=1e-4, p=p, **path)
    run(optimizer, params, gradients)
    for param in params:
        assert all(optimizer.state[param][name].dtype == torch.float32 for name in ("mirror", "exp_avg", "exp_avg_sq"))
    mirrors = [optimizer.state[param]["mirror"] for param in params]
    assert error(flat(mirrors), flat([theta for _, theta in expected])) < 1e-6
    W = flat([W for W, _ in expected])
    assert ((flat(params) - W).abs() <= torch.finfo(dtype).eps * W.abs() + 1e-6).all()


@pytest.mark.parametrize("foreach", [False, True])
def test_non_finite_gradients_reach_the_weights_as_in_adamw(foreach):
    for value in (math.nan, math.inf):
        ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
        for param, optimizer in (
            (ours, MirrorAdam([ours], foreach=foreach)),
            (theirs, torch.optim.AdamW([theirs], foreach=foreach)),
        ):
            param.grad = torch.tensor([value, 1.0])
            optimizer.step()
        assert torch.equal(ours.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("foreach", [False, True])
def test_parameters_may_skip_steps(foreach):
    params, gradients = start(), random_gradients(6)
    expected = reference(params, gradients[:3], lr=1e-2, p=1.5)
    optimizer = MirrorAdam(params, lr=1e-2, p=1.5, foreach=foreach)
    for step, grads in enumerate(gradients[:3]):
        for param, grad in zip(params, grads):
            param.grad = grad
        optimizer.step()
        if step < 2:  # only the last parameter sees this step
            optimizer.zero_grad()
            params[-1].grad = torch.ones_like(params[-1])
            optimizer.step()
    assert error(flat(params[:-1]), flat([W for W, _ in expected[:-1]])) < 1e-6
    assert optimizer.state[params[0]]["step"] == 3
    assert optimizer.state[params[-1]]["step"] == 5


@pytest.mark.parametrize(
    "options",
    [
        {"betas": (1.0, 0.9)},
        {"betas": (0.9,)},
        {"betas": (0.9, -0.1)},
        {"betas": 0.9},
        {"betas": (0.9, "0.99")},
        {"eps": -1.0},
        {"eps": None},
        {"weight_decay": -1.0},
        {"p": 1},
        {"lr": "1e-3"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(AttsvmError, match=next(iter(options))):
        MirrorAdam(start(), **options)


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(AttsvmError, match="sparse"):
        MirrorAdam(embedding.parameters()).step()


@pytest.mark.parametrize("p", [1.1, 1.75, 2, 3])
@pytest.mark.parametrize("views", [2, 256])
def test_foreach_is_single_whatever_the_layout(p, views, monkeypatch):
    monkeypatch.setattr("attsvm.optim._chunks.CACHED", 50)  # tensors put together, alone and in pieces
    monkeypatch.setattr("attsvm.optim._chunks.MOST_VIEWS", views)  # more than are kept, or fewer
    results = []
    for foreach in (False, True):
        params = [*start(), *start(dtype=torch.bfloat16), torch.nn.Parameter(start()[0].detach().t())]
        optimizer = MirrorAdam(params, lr=1e-2, p=p, foreach=foreach)
        generator = torch.Generator().manual_seed(2)
        for step in range(6):
            optimizer.param_groups[0]["lr"] = 0.0 if step == 3 else 1e-2  # the moments go on
            for param in params:
                grad = torch.randn(param.shape, generator=generator).to(param.dtype)
                param.grad = grad.t().contiguous().t() if param.ndim == 2 and step % 2 else grad
            optimizer.step()
        if p == 2:  # moments that lie otherwise than the weight
            params[-1].data = params[-1].data.contiguous()
            params[-1].grad = torch.ones_like(params[-1])
            optimizer.step()
        states = [optimizer.state[param][name] for param in params for name in ("exp_avg", "exp_avg_sq", "step")]
        results.append([flat(params), flat(states)])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
