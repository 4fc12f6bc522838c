"""MirrorDescent against float64 formulas, torch.optim.SGD and the ℓp max-margin solution."""

import copy
import math
from functools import cache
from typing import Any

import pytest
import torch
from mirror_steps import PATHS, SHAPES, error, flat, random_gradients, run, start
from torch import Tensor

from attsvm import AttsvmError, Lp, MarginProblem, solve
from attsvm.optim import MirrorDescent, _fused
from attsvm.optim._mirror_map import inverse_exponent, signed_power, whole_exponent
from attsvm.optim._norms import dual_norms


def reference(
    weights: list[Tensor],
    gradients: list[list[Tensor]],
    *,
    lr: float,
    p: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    normalize: str | None = None,
    maximize: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """(W, θ) after the steps, in float64, written as the docstring's box."""
    q = p / (p - 1)
    W = [w.detach().cpu().double() for w in weights]
    thetas = [w.sign() * w.abs() ** (p - 1) for w in W]
    buffers = [torch.zeros_like(w) for w in W]
    for grads in gradients:
        gs = [(-1 if maximize else 1) * g.double() for g in grads]
        together = sum((g.abs() ** q).sum() for g in gs) ** (1 / q)
        for i, g in enumerate(gs):
            if normalize is not None:
                g = g / (together if normalize == "group" else (g.abs() ** q).sum() ** (1 / q))
            buffers[i] = momentum * buffers[i] + g
            direction = g + momentum * buffers[i] if nesterov else buffers[i]
            thetas[i] = (1 - lr * weight_decay) ** (p - 1) * thetas[i] - lr * direction
    return [(theta.sign() * theta.abs() ** (1 / (p - 1)), theta) for theta in thetas]


@cache
def reference_after_100_steps(p: float, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """One for all ways to step."""
    return reference(start(), random_gradients(100), lr=1e-3, p=p, **options)


OPTIONS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "maximize": True},
    {"weight_decay": 0.1},
    {"normalize": "tensor"},
    {"normalize": "group", "momentum": 0.5, "weight_decay": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("p", [1.08, 1.1, 1.5, 1.75, 2, 3, 5])
@pytest.mark.parametrize(("device", "path"), PATHS)
def test_every_path_agrees_with_float64_after_100_steps(device, path, p, options):
    params, gradients = start(device), random_gradients(100)
    expected = reference_after_100_steps(p, **options)
    optimizer = MirrorDescent(params, lr=1e-3, p=p, **options, **path)
    run(optimizer, params, gradients)
    mirrors = [optimizer.state[param]["mirror"] if p != 2 else param for param in params]
    theta, exact_theta = flat(mirrors), flat([theta for _, theta in expected])
    W, exact_W = flat(params), flat([W for W, _ in expected])
    assert error(theta, exact_theta) < 1e-6
    # An error of θ is 10 times as large in W at p = 1.1: roundings must not add up. The fused step lets them where
    # 1/(p − 1) is not whole.
    keeps = not path.get("fused") or whole_exponent(inverse_exponent(p)) > 0
    assert error(W, exact_W) < (1e-6 if keeps else 5e-6)
    # And θ is that of W, up to its own rounding.
    means = ((W - theta.sign() * theta.abs() ** (1 / (p - 1))).abs() <= 1e-6 * W.abs()) | (W.abs() < 1e-37)
    assert means.all()


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "maximize": True}]
)
def test_p_2_is_sgd_bit_for_bit(options, foreach, tensor_lr):
    lr = torch.tensor(0.01, dtype=torch.float64) if tensor_lr else 0.01
    ours, theirs = start(dtype=torch.float64), start(dtype=torch.float64)
    gradients = random_gradients(20)
    optimizer = MirrorDescent(ours, lr=lr, p=2, foreach=foreach, **options)
    run(optimizer, ours, gradients)
    run(torch.optim.SGD(theirs, lr=lr, foreach=foreach, **options), theirs, gradients)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    if "momentum" not in options:
        assert not optimizer.state  # no memory either


def test_weight_decay_shrinks_weights_by_the_same_factor_for_every_p():
    for p in (1.1, 2, 3):
        param = torch.nn.Parameter(torch.tensor([0.5, -0.02], dtype=torch.float64))
        param.grad = torch.zeros_like(param)
        before = param.detach().clone()
        MirrorDescent([param], lr=0.1, p=p, weight_decay=0.2).step()
        torch.testing.assert_close(param.detach(), (1 - 0.1 * 0.2) * before, rtol=1e-13, atol=0)
    MirrorDescent([param], lr=10.0, p=3, weight_decay=0.2).step()  # lr·weight_decay > 1
    assert (param.abs() < 1e-6).all()


def test_weight_decay_minimises_the_lp_penalty():
    # The fixed point of θ ← (1 − lr λ)^(p−1) θ − lr g is g = −λ(p − 1)θ + O(lr): that of f + λ(p − 1)ψ.
    p, decay, lr = 1.5, 0.3, 1e-4
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    W = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = MirrorDescent([W], lr=1e-2, p=p, weight_decay=decay)
    for step in range(4000):
        if step == 2000:
            optimizer.param_groups[0]["lr"] = lr
        W.grad = W.detach() - target
        optimizer.step()
    stationary = W.detach() - target + decay * (p - 1) * Lp(p).mirror(W.detach()[:, None])[:, 0]
    assert stationary.abs().max() < 1e-3


@pytest.mark.parametrize(("device", "path"), PATHS)
def test_no_zero_trap(device, path):
    w = torch.nn.Parameter(torch.zeros(4, device=device))
    with pytest.warns(UserWarning, match="start at 0"):
        optimizer = MirrorDescent([w], lr=1e-5, p=1.1, **path)
    for step in range(1, 3001):
        w.grad = -torch.ones_like(w)
        optimizer.step()
        theta = step * 1e-5
        # |θ|^10 is below float32's range at first; the mirror variable keeps moving.
        assert optimizer.state[w]["mirror"][0].item() == pytest.approx(theta, rel=1e-6)
        if step >= 17:
            # Half a unit of θ is ten times as much of w; its power takes a few roundings more.
            bound = 2**-24 * 20
            if path.get("fused"):
                # Until |θ|^10 is above 1e-29 each of 126 equal steps may lose half a unit of θ. From then on roundings
                # of w alone add up, as a random walk.
                bound += 2**-24 * (step**0.5 + 10 * min(step, 126) * 126 / step)
            assert w[0].item() == pytest.approx(theta**10, rel=bound)


@pytest.mark.parametrize(("device", "path"), PATHS)
def test_steps_below_the_resolution_of_theta_add_up(device, path):
    p = 1.1
    w = torch.nn.Parameter(torch.tensor([0.5, -0.3, 0.02], device=device))
    before = w.detach().cpu().double()
    theta = before.sign() * before.abs() ** (p - 1)
    lr = 2.0**-26  # a quarter of a unit of every θ between 1/2 and 1: θ + lr is θ in float32
    optimizer = MirrorDescent([w], lr=lr, p=p, **path)
    # A step is two or three units of the weight. Equal steps are all rounded the same way, by up to a fifth of them;
    # the roundings of unequal ones are a random walk, a few per cent of the way after a thousand.
    gradients = 2 * torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
    for g in gradients:
        w.grad = g.to(device)
        optimizer.step()
    theta = theta - lr * gradients.double().sum(0)
    exact = theta.sign() * theta.abs() ** (1 / (p - 1))
    change = (exact - before).abs()
    assert ((w.detach().cpu().double() - exact).abs() < 0.1 * change).all()


@pytest.mark.parametrize("p", [1.05, 1.1, 1.3])
def test_roundings_do_not_add_up(p):
    gradients = [[g.abs() for g in gs] for gs in random_gradients(3000)]  # which go one way, and so do roundings
    expected = reference(start(), gradients, lr=1e-4, p=p)
    for foreach in (False, True):
        params = start()
        run(MirrorDescent(params, lr=1e-4, p=p, foreach=foreach), params, gradients)
        # Half a unit of a θ, and its power.
        assert error(flat(params), flat([W for W, _ in expected])) < 2**-24 * (1 / (p - 1))


def test_a_training_that_diverges_is_named():
    # Plain steps at a rate that is usual for SGD walk to inf at p = 1.1.
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(20))
    optimizer = MirrorDescent([w], lr=0.1, momentum=0.9)

    def train() -> None:
        for _ in range(64):
            w.grad = w.detach() ** 3
            optimizer.step()

    with pytest.warns(UserWarning, match=r"weights of a group with p = 1.1 are inf or nan: lower lr.*normalize"):
        train()


def test_options_are_checked_before_parameters():
    for options in ({"lr": -1.0}, {"p": 1.0}, {"momentum": -1.0}, {"nesterov": True}, {"weight_decay": -1.0}):
        with pytest.raises(AttsvmError, match=next(iter(options))):
            MirrorDescent([], **options)
        with pytest.raises(AttsvmError, match=next(iter(options))):
            MirrorDescent(None, **options)


@pytest.mark.parametrize(
    ("p", "foreach"), [(1.05, False), (1.1, False), (1.1, True), (1.5, False), (3, False), (10, False)]
)
def test_thousands_of_steps_stay_finite(p, foreach):
    scales = torch.logspace(-6, 6, 13)
    w = torch.nn.Parameter(torch.linspace(-1, 1, 13))
    target = torch.linspace(1, -1, 13)
    options = {"momentum": 0.9, "normalize": "tensor"} if foreach else {}
    optimizer = MirrorDescent([w], lr=4e-3, p=p, weight_decay=1e-3, foreach=foreach, **options)
    for _ in range(2500):
        # Curvatures from 1e-6 to 1e6, clipped as users clip them.
        w.grad = (scales * (w.detach() - target)).clamp(-1, 1)
        optimizer.step()
    assert w.isfinite().all()
    assert optimizer.state[w]["mirror"].isfinite().all()


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_direction_goes_to_the_lp_max_margin_solution(p):
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(12, 6, dtype=torch.float64, generator=generator)
    X[:, 0] += 3
    svm = solve(MarginProblem.from_rows(X), Lp(p))  # rows y·x, all labels 1
    w = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = MirrorDescent([w], lr=0.1, p=p, normalize="tensor")
    for _ in range(2000):
        # The logistic gradient up to a positive factor, which the normalised step does not see.
        w.grad = -(torch.softmax(-(X @ w.detach()), 0)[:, None] * X).sum(0)
        optimizer.step()
    direction = Lp(p).unit(w.detach()[:, None])[:, 0]
    margin = (X @ direction).min().item()
    best = 1 / svm.norm.item()
    assert 0.99 * best < margin <= best * (1 + 1e-9)


def test_normalised_steps_have_the_size_of_lr():
    params, (grads,) = start(dtype=torch.float64), random_gradients(1)
    for by in ("tensor", "group"):
        for scale in (1.0, 1e-30):  # |g|^11 underflows even in float64
            scaled = [scale * g.double() for g in grads]
            norms = dual_norms(scaled, scaled, 1.1, by)
            scaled = [scale * g.double() / n for g, n in zip(grads, norms)]
            sizes = torch.stack([Lp(11).norm(g.flatten()[:, None]) for g in scaled])
            size = sizes if by == "tensor" else Lp(11).norm(sizes[:, None])
            torch.testing.assert_close(size, torch.ones_like(size))
    params[0].grad = torch.zeros_like(params[0])
    before = params[0].detach().clone()
    MirrorDescent(params, lr=1.0, normalize="tensor").step()
    torch.testing.assert_close(params[0].detach(), before)


@pytest.mark.parametrize("a", [1, 2, 3, 5, 8, 10, 12, 0.5, 0.1, 4 / 3, 1.25, 1.01, 20])
def test_signed_powers(a):
    x = torch.cat([torch.logspace(-3, 0.3, 500), -torch.logspace(-3, 0.3, 500), torch.tensor([0.0, -0.0])])
    exact = x.double().sign() * x.double().abs() ** a
    scratch = torch.empty(3, len(x)).unbind()
    for power in (signed_power(x, a), signed_power(x, a, scratch)):
        assert ((power - exact).abs() <= 1e-6 * exact.abs() + 1e-44).all()
    special = torch.tensor([math.inf, -math.inf, math.nan])
    power = signed_power(special, a)
    assert torch.equal(power[:2], special[:2])
    assert power[2].isnan()


def test_exponents_are_the_decimal_ones():
    assert [inverse_exponent(p) for p in (1.1, 1.05, 1.01, 1.5, 2, 3)] == [10, 20, 100, 2, 1, 0.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [1.1, 2])
@pytest.mark.parametrize(("device", "path"), PATHS)
def test_low_precision_parameters_have_float32_masters(device, path, p, dtype):
    # Steps far below the resolution of bf16 still add up.
    params = start(device, dtype)
    gradients = [[torch.ones(s) for s in SHAPES]] * 100
    expected = reference(params, gradients, lr=1e-5, p=p)
    optimizer = MirrorDescent(params, lr=1e-5, p=p, **path)
    run(optimizer, params, gradients)
    for param, (W, theta) in zip(params, expected):
        assert optimizer.state[param]["mirror"].dtype == torch.float32
        # Equal steps may be rounded the same way 100 times.
        assert error(flat([optimizer.state[param]["mirror"]]), theta.flatten()) < 100 * 2**-24
        assert ((param.detach().cpu().double() - W).abs() <= torch.finfo(dtype).eps * W.abs() + 1e-6).all()


@pytest.mark.parametrize("foreach", [False, True])
def test_p_and_options_are_per_group(foreach):
    together, apart = start(), start()
    gradients = random_gradients(5)
    groups = [{"params": together[:2], "p": 1.1}, {"params": together[2:], "p": 3, "lr": 0.1, "momentum": 0.5}]
    run(MirrorDescent(groups, lr=0.01, foreach=foreach), together, gradients)
    run(MirrorDescent(apart[:2], lr=0.01, p=1.1, foreach=foreach), apart[:2], [g[:2] for g in gradients])
    run(MirrorDescent(apart[2:], lr=0.1, p=3, momentum=0.5, foreach=foreach), apart[2:], [g[2:] for g in gradients])
    assert all(torch.equal(a, b) for a, b in zip(together, apart))


@pytest.mark.parametrize("foreach", [False, True])
def test_lr_0_leaves_every_bit_of_the_weights(foreach):
    params, untouched = start(), start()
    run(MirrorDescent(params, lr=0.0, foreach=foreach), params, random_gradients(3))
    assert all(torch.equal(a, b) for a, b in zip(params, untouched))


def test_parameters_without_gradient_are_left_alone():
    params = start()
    before = copy.deepcopy(params)
    optimizer = MirrorDescent(params, lr=0.1)
    params[1].grad = torch.ones_like(params[1])
    optimizer.step()
    assert [torch.equal(a, b) for a, b in zip(params, before)] == [True, False, True, True]
    assert list(optimizer.state) == [params[1]]


def test_closure_and_named_parameters():
    model = torch.nn.Linear(3, 1)
    optimizer = MirrorDescent(model.named_parameters(), lr=0.1, p=1.5)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > optimizer.step(closure) * 0.99


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_gradients_reach_the_weights_as_in_sgd(value, foreach):
    for p in (1.1, 1.75, 3):
        ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2))
        for param, optimizer in (
            (ours, MirrorDescent([ours], lr=0.1, p=p, foreach=foreach)),
            (theirs, torch.optim.SGD([theirs], lr=0.1)),
        ):
            param.grad = torch.tensor([value, 1.0])
            optimizer.step()
        torch.testing.assert_close(ours[0], theirs[0], equal_nan=True)
        assert ours[1].isfinite()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "normalize": "tensor", "p": 1.1}, {"p": 2.0}], ids=str)
def test_large_tensors_are_taken_piece_by_piece(options, monkeypatch):
    monkeypatch.setattr("attsvm.optim._chunks.CACHED", 50)
    whole, pieces = start(), start()
    gradients = random_gradients(3)
    run(MirrorDescent(whole, lr=0.01, foreach=False, **options), whole, gradients)
    run(MirrorDescent(pieces, lr=0.01, foreach=True, **options), pieces, gradients)
    for a, b in zip(whole, pieces):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_of_another_layout(foreach):
    w = torch.nn.Parameter(torch.randn(3, 4).t())
    v = torch.nn.Parameter(w.detach().contiguous())
    for param in (w, v):
        param.grad = torch.arange(12.0).view(4, 3)
        MirrorDescent([param], lr=0.01, foreach=foreach).step()
    assert torch.equal(w, v)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"lr": torch.ones(2)},
        {"lr": "1e-3"},
        {"p": "1.1"},
        {"p": None},
        {"p": torch.tensor(1.1)},
        {"momentum": None},
        {"weight_decay": None},
        {"p": 1.0},
        {"p": math.inf},
        {"p": math.nan},
        {"momentum": -0.1},
        {"weight_decay": -0.1},
        {"nesterov": True},
        {"normalize": "matrix"},
        {"foreach": True, "fused": True},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(AttsvmError, match=next(iter(options))):
        MirrorDescent(start(), **options)


def test_wrong_settings_of_a_group_are_refused():
    with pytest.raises(AttsvmError, match="p must be"):
        MirrorDescent([{"params": start(), "p": 0.5}])
    optimizer = MirrorDescent(start())
    for wrong in ({"p": 0.5}, {"normalize": "matrix"}):
        with pytest.raises(AttsvmError):
            optimizer.add_param_group({"params": start(), **wrong})
    assert len(optimizer.param_groups) == 1


def test_sparse_and_complex_gradients_are_refused():
    w = torch.nn.Parameter(torch.ones(3))
    w.grad = torch.eye(3)[0].to_sparse()
    with pytest.raises(AttsvmError, match="sparse"):
        MirrorDescent([w]).step()
    z = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    z.grad = torch.ones_like(z)
    with pytest.raises(AttsvmError, match="complex"):
        MirrorDescent([z]).step()


def test_fused_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch):
    w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    w.grad = torch.ones_like(w)
    with pytest.raises(AttsvmError, match="fused=True needs dense parameters in float32 or bfloat16 on a CPU"):
        MirrorDescent([w], fused=True).step()
    monkeypatch.setattr(_fused, "compiler", lambda: None)
    w = torch.nn.Parameter(torch.ones(3))
    w.grad = torch.ones_like(w)
    with pytest.raises(AttsvmError, match=r"fused=True needs a C\+\+ compiler"):
        MirrorDescent([w], fused=True).step()
