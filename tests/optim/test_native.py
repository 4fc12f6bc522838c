"""The fused step on a CPU: the same step as the others, in turns with them, by any number of threads."""

import pytest
import torch
from small_task import MAKERS, fit, gradients, network, same
from torch import nn

from attsvm import AttsvmError
from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent, _native
from attsvm.optim._mirror_map import inverse_exponent, signed_power

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
by_name = pytest.mark.parametrize("name", MAKERS)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {"p": 1.1, "weight_decay": 0.1}),
        ("adam", {"p": 1.08}),
        ("adam", {"p": 1.4, "maximize": True}),
        ("adam", {"p": 2, "betas": (0.0, 0.9), "eps": 0.1}),
        ("descent", {"p": 1.1}),
        ("descent", {"p": 1.75, "nesterov": True, "weight_decay": 0.1}),
        ("descent", {"p": 3, "momentum": 0.0}),
        ("normalised", {"p": 1.5, "maximize": True}),
    ],
    ids=str,
)
def test_it_agrees_with_float64_after_100_steps(name: str, options: dict) -> None:
    size = 999
    start = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(0))
    found = []
    for dtype, form in ((torch.float32, {"fused": True}), (torch.float64, {"foreach": False})):
        w = nn.Parameter(start.to(dtype, copy=True))
        optimizer = MAKERS[name]([w], lr=1e-3, **options, **form)
        for grad in gradients(100, size):
            w.grad = grad.to(dtype)
            optimizer.step()
        found.append(w.detach().double())
    assert (found[0] - found[1]).norm() < 1e-6 * found[1].norm()


@pytest.mark.parametrize("p", [1.3, 1.7])
def test_any_power_is_as_exact_as_a_float32(p: float) -> None:
    w = nn.Parameter(torch.logspace(-30, 3, 4000) * torch.tensor([1.0, -1.0]).repeat(2000))
    w.grad = torch.zeros_like(w)
    optimizer = MirrorDescent([w], lr=1e-3, p=p, fused=True)
    optimizer.step()
    a = inverse_exponent(p)
    exact = signed_power(optimizer.state[w]["mirror"].double(), a)
    assert ((w.detach() - exact) / exact).abs().max() < (2 + a) / 2 * 2**-23


def test_the_smallest_weights_are_read_off_too() -> None:
    w = nn.Parameter(torch.logspace(-44, -30, 100))  # some are subnormal
    before, w.grad = w.detach().clone(), torch.zeros_like(w)
    MirrorDescent([w], p=1.1, fused=True, keep_mirror=False).step()
    torch.testing.assert_close(w.detach(), before, rtol=1e-6, atol=2e-45)


@by_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forms_may_take_turns(name: str, dtype: torch.dtype) -> None:
    """Each goes on from the other's state, and none sees an edit where there was none."""
    model, other = network(dtype), network(dtype)
    optimizer = MAKERS[name](model.parameters(), p=1.1, lr=1e-3)
    reference = MAKERS[name](other.parameters(), p=1.1, lr=1e-3, foreach=True)
    for step in range(12):
        optimizer.param_groups[0]["fused"] = step % 2 == 0
        fit(model, optimizer, range(step, step + 1))
        fit(other, reference, range(step, step + 1))
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=2e-5 if dtype == torch.float32 else 2e-2, atol=1e-6)
        assert optimizer.state[a].keys() == reference.state[b].keys()


def test_threads_and_cuts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [5000, 1, 0, 37, 2048, 700]
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(_native, "LEAST_SHARED", 100)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
        params.append(nn.Parameter(torch.randn(30, 40, generator=generator).t()))  # dense, but not in order
        optimizer = MirrorAdam(params, p=1.1, fused=True)
        for _ in range(3):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator)
            optimizer.step()
        found.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


@pytest.mark.parametrize("p", [1.1, 1.4])  # every entry is compared, or signatures of blocks
@pytest.mark.parametrize(
    "edit",
    [
        lambda w: w[777].zero_(),
        lambda w: w[-1].zero_(),
        lambda w: w.index_copy_(0, torch.tensor([3, 499]), w[[499, 3]]),
        lambda w: w.neg_(),
    ],
    ids=["one entry", "the last", "two exchanged", "signs"],
)
def test_every_kind_of_edit_is_noticed(edit, p: float) -> None:
    found = []
    for form in ({"fused": True}, {"foreach": False}):
        w = nn.Parameter(0.1 * gradients(1, 2003)[0])
        optimizer = MirrorDescent([w], lr=1e-3, p=p, **form)
        for step, grad in enumerate(gradients(4, 2003)):
            w.grad = grad
            if step == 2:
                edit(w.data)
            optimizer.step()
        found.append(w.detach())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "edit",
    [
        lambda w, i, j: w[[i, j]].neg(),
        lambda w, i, j: w[[j, i]],
        lambda w, i, j: (
            w[[i, j]].view(torch.int16 if w.element_size() == 2 else torch.int32).bitwise_xor(1).view(w.dtype)
        ),
        lambda w, i, j: w[[i, j]].mul(2),
        lambda w, i, j: torch.zeros_like(w[[i, j]]),
    ],
    ids=["signs", "exchanged", "last bits", "doubled", "zeros"],
)
def test_signatures_tell_small_edits_anywhere(edit, dtype: torch.dtype) -> None:
    """Edits of two entries, all of one block of 1,024 and of the shorter one after it."""
    generator = torch.Generator().manual_seed(2)
    w = nn.Parameter((0.1 * torch.randn(1500, generator=generator)).to(dtype))
    w.grad = torch.zeros_like(w)
    optimizer = MirrorDescent([w], lr=1e-3, p=1.75, fused=True)
    for start, end in [(0, 1024), (1024, 1500)] * 60:
        optimizer.step()
        i, j = (start + torch.randperm(end - start, generator=generator)[:2]).tolist()
        w.data[[i, j]] = edited = edit(w.data, i, j)
        optimizer.step()
        torch.testing.assert_close(w.detach()[[i, j]], edited, rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


@pytest.mark.parametrize("value", [2.0, 4.0, 0.5, 0.75, -1.0, 0.0])
def test_signatures_tell_one_constant_from_another(value: float) -> None:
    w = nn.Parameter(torch.ones(3000))
    w.grad = torch.zeros_like(w)
    optimizer = MirrorDescent([w], lr=1e-3, p=1.75, fused=True)
    optimizer.step()
    w.data.fill_(value)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full((3000,), value))


def test_signatures_see_no_edit_where_there_was_none() -> None:
    w = nn.Parameter(0.1 * gradients(1, 1500)[0])
    optimizer = MirrorDescent([w], lr=1e-3, p=1.75, fused=True)
    for grad in gradients(3, 1500):
        w.grad = grad
        optimizer.step()
    optimizer.state[w]["mirror"].mul_(2)  # θ, which nobody should touch: a step that compares it would set it back
    theta, w.grad = optimizer.state[w]["mirror"].clone(), torch.zeros(1500)
    optimizer.step()
    assert torch.equal(optimizer.state[w]["mirror"], theta)


@by_name
def test_a_step_of_lr_0_leaves_every_bit(name: str) -> None:
    model, still = network(), network()
    optimizer = MAKERS[name](model.parameters(), p=1.1, lr=0.0, fused=True)
    fit(model, optimizer, range(2))
    assert same(model, still)


def test_autograd_knows_that_weights_have_changed() -> None:
    w = nn.Parameter(torch.ones(3))
    loss = (w * w).sum()
    w.grad = torch.ones(3)
    MirrorDescent([w], fused=True).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_compiled_is_kept_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    w = nn.Parameter(torch.ones(4))
    w.grad = torch.ones(4)
    MirrorDescent([w], lr=0.1, p=1.1, fused=True).step()
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("compiled again"))
    MirrorDescent([w], lr=0.1, p=1.1, fused=True).step()


def test_a_compiler_that_fails_is_named() -> None:
    with pytest.raises(AttsvmError, match=r"fused=True on a CPU: _kernel.cpp needs a C\+\+ compiler, but .* failed"):
        _native._compiled(("-DN=1",))  # other macros are missing


@pytest.mark.parametrize("kind", [MirrorAdam, MirrorDescent])
@pytest.mark.parametrize("p", [1.5, 1.75, 3.0])
def test_what_is_infinite_stays_so_without_weight_decay(kind, p: float) -> None:
    for form in ({"fused": True}, {"foreach": True}):
        w = torch.nn.Parameter(torch.tensor([1.0, torch.inf, -torch.inf]))
        optimizer = kind([w], lr=1e-2, p=p, weight_decay=0, **form)
        for _ in range(3):
            w.grad = torch.ones_like(w)
            optimizer.step()
        assert w.isfinite().tolist() == [True, False, False]
        assert w[1:].tolist() == [torch.inf, -torch.inf]


def test_a_compiled_step_takes_masks_later() -> None:
    """Two groups with other p: what is compiled for the second must not guard what the first is told."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        a, b = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
        groups = [{"params": [a], "p": 1.5}, {"params": [b], "p": 2.0, "weight_decay": 0.0}]
        optimizer = MirrorAdam(groups, lr=1e-2, fused=True)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for k in range(6):
            if k == 3:
                optimizer.set_mask(a, torch.eye(4) > 0)
            a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
            step()
        found.append((a.detach(), b.detach()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert (found[0][0] != 0).sum() == 4
