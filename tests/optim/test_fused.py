"""The fused step: CUDA graphs, sizes and layouts, its turns with the other steps, its tables."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from small_task import batch, fit, make_all, needs_cuda, network
from torch import nn

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, _fused, _tables, mirror_adam, mirror_descent
from attsvm.optim._fused import launches
from attsvm.optim._mirror_map import L1, Step, inverse_exponent, signed_power
from attsvm.optim._tables import table_of


@needs_cuda
@make_all
@pytest.mark.parametrize("path", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_cuda_graph_replays_follow_the_lr(make, path):
    model, eager = network(device="cuda"), network(device="cuda")
    lr = torch.tensor(0.05, device="cuda")
    optimizer = make(model.parameters(), lr=lr, capturable=True, **path)
    reference = make(eager.parameters(), lr=0.05, foreach=False)
    X, y = batch(0, "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for k in range(5):
        lr.fill_(0.05 / (k + 1))
        graph.replay()
    for k in range(8):
        reference.param_groups[0]["lr"] = 0.05 / max(k - 2, 1)
        reference.zero_grad()
        nn.functional.cross_entropy(eager(X), y).backward()
        reference.step()
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@needs_cuda
@make_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [1.1, 1.75, 2, 3])
def test_fused_takes_many_sizes_and_layouts(make, p, dtype):
    shapes = [(1,), (3, 5), (1000,), (0, 4), (1025,), (64, 33), (1 << 20,), ((1 << 20) + 3,), *[(17,)] * 300]

    def start() -> list[nn.Parameter]:
        generator = torch.Generator("cuda").manual_seed(0)
        draw = lambda s: 0.1 * torch.randn(s, generator=generator, device="cuda")  # noqa: E731
        params = [nn.Parameter(draw(s).to(dtype)) for s in shapes]
        params[5] = nn.Parameter(draw((33, 64)).to(dtype).t())  # dense, but not in order
        params[2] = nn.Parameter(draw(1001).to(dtype)[1:].detach())  # not aligned
        return params

    fused, plain = start(), start()
    optimizers = make(fused, p=p, fused=True), make(plain, p=p, foreach=False)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(3):
        for a, b in zip(fused, plain):
            a.grad = torch.randn(a.shape, generator=generator, device="cuda").to(dtype)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(fused, plain):
        theta, expected = (o.state[x].get("mirror", x).detach() for o, x in zip(optimizers, (a, b)))
        torch.testing.assert_close(theta, expected, rtol=2e-6, atol=1e-7)
        weight = signed_power(theta.double(), inverse_exponent(p))
        torch.testing.assert_close(a.detach().double(), weight, rtol=max(1.5e-6, torch.finfo(dtype).eps), atol=1e-37)


@needs_cuda
@make_all
def test_fused_and_other_steps_may_take_turns(make):
    torch.manual_seed(0)
    w = nn.Parameter(0.1 * torch.randn(5000, device="cuda"))
    exact = nn.Parameter(w.detach().double())
    # a small lr: at 0.05 momentum takes random gradients to weights of 1e10, and loses 2e-6 without any turns
    optimizer, reference = make([w], lr=1e-3, p=1.1), make([exact], lr=1e-3, p=1.1, foreach=False)
    for step in range(40):
        fused = step // 10 % 2 == 0
        optimizer.param_groups[0]["fused"] = fused
        w.grad = torch.randn_like(w)
        exact.grad = w.grad.double()
        optimizer.step()
        reference.step()
        assert ("rest" in optimizer.state[w]) != fused
    assert (w.detach() - exact.detach()).norm() < 1e-6 * exact.detach().norm()


@needs_cuda
def test_fused_refuses_a_parameter_whose_memory_format_has_changed():
    w = nn.Parameter(torch.randn(4, 3, 2, 2, device="cuda"))
    optimizer = MirrorAdam([w], fused=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    w.data = w.data.contiguous(memory_format=torch.channels_last)
    with pytest.raises(AttsvmError, match="memory format"):
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert optimizer.state[w]["mirror"].stride() == w.stride()


@needs_cuda
def test_fused_is_the_default_on_cuda_and_can_be_switched_off(monkeypatch):
    seen = []
    for cls in (MirrorDescent, MirrorAdam):
        module = sys.modules[cls.__module__]
        for name in ("fused_step", "chunks"):
            f = getattr(module, name)
            spy = lambda *a, f=f, name=name, **k: (seen.append((name, k.get("alone"))), f(*a, **k))[1]  # noqa: E731
            monkeypatch.setattr(module, name, spy)
        for options, expected in (
            ({}, ("fused_step", None)),
            ({"fused": False}, ("chunks", False)),
            ({"foreach": False}, ("chunks", True)),
        ):
            seen.clear()
            model = network(device="cuda")
            fit(model, cls(model.parameters(), **options), range(1))
            assert seen == [expected]


@pytest.mark.parametrize("name", ["adam", "descend"])
def test_kernels_on_a_device_get_the_rows_that_they_walk_through(name, monkeypatch):
    """On tensors without memory, so that no device is needed."""
    seen = []
    kernels = SimpleNamespace(**{name: lambda *given, **flags: seen.append((given, flags))})
    monkeypatch.setattr(_fused, "_triton", kernels)
    weight, grad, theta, rest, first, second = (torch.empty(3, device="meta") for _ in range(6))
    shared = {"lr": 0.1, "p": 1.1, "weight_decay": 0.0, "maximize": True, "fused": True, "capturable": True}
    if name == "adam":
        count = torch.zeros((), device="meta")
        columns = [weight], [grad], [theta], [rest], [first], [second], [count]
        mirror_adam(*columns, beta1=0.75, beta2=0.5, eps=1e-8, **shared)
        expected, settings = [first, second, count], (0.25, 0.5, 0.5, math.log(0.75), math.log(0.5), 1e-8)
        own = {"CHAIN": False}
    else:
        columns = [weight], [grad], [theta], [rest], [first], [second]
        mirror_descent(*columns, momentum=0.9, nesterov=True, **shared)
        expected, settings = [first, second], (0.9,)
        own = {"MOMENTUM": True, "NESTEROV": True, "NORMALIZE": True}
    (((row,), scalars, capturable), flags) = seen[0]
    assert len(seen) == 1
    assert all(a is b for a, b in zip(row, [weight, grad, theta, theta, *expected], strict=True))
    assert scalars == (0.1, 0.0, 10.0, 0.0, *settings)
    assert capturable
    assert flags == {"MIRROR": True, "N": 10, "KEEP": True, "MASK": False, "L1": 0, "MAXIMIZE": True, **own}


@pytest.mark.parametrize("sizes", [[1], [16], [17, 1], [70, 16, 15, 1, 33]])
def test_tables_say_where_tensors_and_their_blocks_are(sizes):
    block = 16
    rows = [(torch.empty(size), torch.empty(size)) for size in sizes]
    table = table_of(rows, rows[0][0], block, capturable=False)
    assert table is not None
    assert table.rows.tolist() == [[a.data_ptr(), b.data_ptr(), a.numel()] for a, b in rows]
    blocks = [[i, place] for i, size in enumerate(sizes) for place in range(-(-size // block))]
    assert table.blocks.tolist() == blocks
    assert table.first.tolist() == [[i for i, _ in blocks].index(k) for k in range(len(sizes))] + [len(blocks)]


@pytest.mark.parametrize(("split", "aligned"), [(0, 3), (64, 3), (65, 0)])
def test_tables_put_aligned_tensors_first(split, aligned, monkeypatch):
    monkeypatch.setattr(_tables, "SPLIT", split)
    _tables._table.cache_clear()
    weights = [torch.empty(33), torch.empty(49)[1:], torch.empty(48), torch.empty(16)]
    rows = [(w, torch.empty_like(w), torch.empty(5)[1]) for w in weights]  # a number may lie anywhere
    table = table_of(rows, weights[0], 32, capturable=False, aligned_first=True)
    assert table is not None
    order = [2, 3, 0, 1] if aligned else range(4)
    assert table.aligned == aligned
    assert table.rows[:, 0].tolist() == [weights[i].data_ptr() for i in order]
    assert table.rows[:, -1].tolist() == [weights[i].numel() for i in order]
    table = table_of(rows[2:], weights[2], 32, capturable=False, aligned_first=True)
    assert table is not None
    assert table.aligned == len(table.blocks) == 3


def test_blocks_are_kept_where_addresses_change():
    first, second = (table_of([(torch.empty(70),)], torch.empty(1), 16, capturable=False) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.blocks is second.blocks


@pytest.mark.parametrize(
    ("p", "l1", "flags"),
    [
        (1.1, L1(0.0, False), {"N": 10, "KEEP": True, "L1": 0}),
        (1.5, L1(0.1, False), {"N": 2, "KEEP": True, "L1": 1}),
        (1.5, L1(0.1, True), {"N": 2, "KEEP": True, "L1": 2}),
        (3, L1(0.1, True), {"N": -1, "KEEP": False, "L1": 2}),
        (2, L1(0.1, True), {"N": 1, "KEEP": False, "L1": 1}),  # the same as of θ
    ],
)
def test_kernels_are_told_of_masks_and_thresholds(p, l1, flags):
    weights = [torch.ones(3), torch.ones(4)]
    mirrors = weights if p == 2 else [torch.ones(3), torch.ones(4)]
    masks = [None, torch.tensor([True, False, True, True])]
    found = list(launches(weights, weights, mirrors, masks, mirrors, step=Step(0.1, 0.0, inverse_exponent(p), l1)))
    assert [compiled["MASK"] for _, _, compiled in found] == [False, True]
    for rows, scalars, compiled in found:
        assert flags.items() <= compiled.items()
        assert scalars == (0.1, 0.0, inverse_exponent(p), l1.strength)
        (weight, _, theta, mask, _), *others = rows
        assert not others
        assert compiled["MIRROR"] == (theta is not weight)
        assert mask.tolist() == [1, 0, 1, 1] if compiled["MASK"] else mask is theta
