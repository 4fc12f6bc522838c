"""Which form of the step a CPU takes by default: for large groups the compiled kernel, where a compiler works."""

import copy
from pathlib import Path

import pytest
import torch
from command_line import run_script
from small_task import MAKERS, fit, network, same
from torch import nn

from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent, _fused, _native

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
by_name = pytest.mark.parametrize("name", MAKERS)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the kernel was called for; a group of 100 entries is large."""
    calls, launch = [], _native._launch
    monkeypatch.setattr(_native, "_launch", lambda *a: (calls.append("kernel"), launch(*a))[1])
    monkeypatch.setattr(_fused, "LEAST", 100)
    return calls


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    w = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype))
    w.grad = torch.ones_like(w)
    return w


@needs_compiler
@pytest.mark.parametrize("make", [MirrorAdam, MirrorDescent])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"p": 2}, True),
        ({"p": 1.75}, True),
        ({"keep_mirror": False}, True),
        ({"lr": torch.tensor(1e-3)}, True),
        ({"fused": False}, False),
        ({"foreach": True}, False),
        ({"foreach": False}, False),
        ({"lr": 0.0}, False),
    ],
    ids=str,
)
def test_large_groups_take_the_kernel_unless_told_otherwise(make, options: dict, expected: bool, launched) -> None:
    make([weight(60), weight(5, 8)], **options).step()
    assert bool(launched) is expected
    launched.clear()
    make([weight(60), weight(39)], **options).step()
    assert not launched


@needs_compiler
@pytest.mark.parametrize(("rows", "expected"), [(1024, True), (1023, False)])
def test_large_is_a_million_entries(rows: int, expected: bool, launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls, launch = [], _native._launch
    monkeypatch.setattr(_native, "_launch", lambda *a: (calls.append("kernel"), launch(*a))[1])
    MirrorAdam([weight(rows, 1024)]).step()
    assert bool(calls) is expected


@needs_compiler
@pytest.mark.parametrize(
    "other",
    [
        weight(5, dtype=torch.float64),
        weight(5, dtype=torch.float16),
        nn.Parameter(torch.ones(4, 6)[:, ::2]),
        nn.Parameter(torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {}))),
    ],
    ids=["float64", "float16", "gaps", "subclass"],
)
def test_one_parameter_that_the_kernel_cannot_take_is_enough(other: nn.Parameter, launched) -> None:
    other.grad = torch.ones_like(other)
    optimizer = MirrorAdam([weight(200), other])
    optimizer.step()
    assert not launched


@needs_compiler
def test_a_compiled_step_has_no_kernel(launched, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = MirrorAdam([weight(200)])
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        optimizer.step()
    assert not launched
    optimizer.step()
    assert launched


@needs_compiler
def test_the_form_does_not_depend_on_which_gradients_there_are(launched) -> None:
    large, small, frozen = weight(200), weight(5), weight(300).requires_grad_(False)
    frozen.grad = None
    optimizer = MirrorAdam([large, small, frozen])
    for step in range(4):
        large.grad = torch.ones_like(large) if step % 2 else None
        optimizer.step()
        assert len(launched) == step + 1
    large.grad = small.grad = None
    optimizer.step()
    assert len(launched) == 4  # nothing to step
    large.requires_grad_(False)
    small.grad = torch.ones_like(small)
    optimizer.step()
    assert len(launched) == 4  # few entries are trained


@needs_compiler
@by_name
@pytest.mark.parametrize(("dtype", "p"), [(torch.float32, 1.1), (torch.bfloat16, 1.75)])
def test_it_agrees_with_foreach(name: str, dtype: torch.dtype, p: float, launched) -> None:
    """With a mask, an edit through .data and a step of lr = 0."""
    found = []
    for options in ({}, {"foreach": True}):
        model = network(dtype)
        optimizer = MAKERS[name](model.parameters(), p=p, lr=1e-3, **options)
        for step in range(8):
            if step == 2:
                optimizer.set_mask(model[0].weight, torch.arange(128).view(16, 8) % 3 > 0)
            if step == 4:
                model[2].weight.data[0, :3] = torch.tensor([0.0, 0.5, -0.25])
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if step == 5 else 1e-3
            fit(model, optimizer, range(step, step + 1))
        found.append((model, optimizer))
    assert launched
    (model, optimizer), (other, reference) = found
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=2e-5 if dtype == torch.float32 else 2e-2, atol=2e-6)
        assert optimizer.state[a].keys() == reference.state[b].keys()
    assert (model[0].weight.flatten()[::3] == 0).all()


@needs_compiler
@by_name
@pytest.mark.parametrize("p", [1.1, 1.75])
def test_a_resumed_run_has_the_same_bits(name: str, p: float, launched) -> None:
    model = network()
    optimizer = MAKERS[name](model.parameters(), p=p)
    fit(model, optimizer, range(3))
    resumed = copy.deepcopy(model)
    again = MAKERS[name](resumed.parameters(), p=p)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    fit(model, optimizer, range(3, 6))
    fit(resumed, again, range(3, 6))
    assert launched
    assert same(model, resumed)


@needs_compiler
def test_a_parameter_may_change_its_memory_format(launched) -> None:
    found = []
    for options in ({}, {"foreach": True}):
        w = weight(4, 8, 2, 2)
        optimizer = MirrorAdam([w], lr=1e-3, **options)
        for step in range(4):
            if step == 2:
                w.data = w.data.contiguous(memory_format=torch.channels_last)
            w.grad = torch.full_like(w, step + 1.0)
            optimizer.step()
        found.append(w.detach())
    assert len(launched) == 2
    torch.testing.assert_close(*found)


@needs_compiler
def test_counters_of_torch_in_float64_are_read(launched) -> None:
    found = []
    for options in ({}, {"foreach": True}):
        w = weight(200)
        adam = torch.optim.AdamW([w], lr=1e-3)
        adam.step()
        saved = adam.state_dict()
        saved["state"][0]["step"] = saved["state"][0]["step"].double()  # as with torch.set_default_dtype(torch.float64)
        optimizer = MirrorAdam([w], lr=1e-3, **options)
        optimizer.load_state_dict(saved)
        optimizer.step()
        found.append(w.detach())
    assert launched
    torch.testing.assert_close(*found)


@by_name
def test_without_a_compiler_that_works_the_step_is_foreach(name: str, launched, monkeypatch) -> None:
    tried = []
    monkeypatch.setattr(_native, "compiled", lambda *a: (tried.append(a), (_ for _ in ()).throw(OSError("noexec")))[1])
    _native.works.cache_clear()
    _native._compiled.cache_clear()
    try:
        model, other = network(), network()
        fit(model, MAKERS[name](model.parameters()), range(3))
        fit(other, MAKERS[name](other.parameters(), foreach=True), range(3))
    finally:
        _native.works.cache_clear()
    assert same(model, other)
    assert not launched
    assert len(tried) == 1  # and that is remembered


BROKEN = """
import os, warnings
import torch
from attsvm import AttsvmError
from attsvm.native import compiler
from attsvm.optim import MirrorAdam
warnings.simplefilter("error")
os.environ["CXX"] = "false"
compiler.cache_clear()
w = torch.nn.Parameter(torch.full((1 << 20,), 0.5))
w.grad = torch.ones_like(w)
optimizer = MirrorAdam([w], lr=1e-3)
optimizer.step()
optimizer.step()
v = torch.nn.Parameter(torch.full((1 << 20,), 0.5))
v.grad = torch.ones_like(v)
reference = MirrorAdam([v], lr=1e-3, foreach=True)
reference.step()
reference.step()
assert torch.equal(v, w)
optimizer.param_groups[0]["fused"] = True
try:
    optimizer.step()
except AttsvmError as error:
    assert str(error).startswith("fused=True on a CPU: _kernel.cpp needs a C++ compiler, but "), error
else:
    raise AssertionError
"""

FORKED = """
import os, warnings
import torch
from attsvm.optim import MirrorAdam, _fused, _native
warnings.simplefilter("error")
_fused.LEAST, _native.LEAST_SHARED = 1, 10
torch.set_num_threads(2)
def step():
    w = torch.nn.Parameter(torch.linspace(-1, 1, 5000))
    w.grad = torch.ones_like(w)
    MirrorAdam([w], lr=1e-3).step()
    return w.detach()
def forked(check):
    if (child := os.fork()) == 0:
        os._exit(0 if check() else 1)
    assert os.waitpid(child, 0)[1] == 0
forked(lambda: step().isfinite().all())  # compiles in the child
mine = step()
forked(lambda: torch.equal(step(), mine))  # what the parent compiled, and threads of its own
assert _native._threads.cache_info().currsize == 1
"""


@pytest.mark.parametrize("script", [BROKEN, pytest.param(FORKED, marks=needs_compiler)], ids=["broken", "forked"])
def test_in_a_process_of_its_own(script: str, tmp_path: Path) -> None:
    done = run_script(script, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
