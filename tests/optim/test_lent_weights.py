"""Large weights on a CPU share their memory with a twin between two steps: an edit gives them memory of their own."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_task import MAKERS
from torch import Tensor, nn

from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent, _base, _edits

SHAPE = (64, 80)  # enough to be lent
fused = pytest.param({"fused": True}, id="fused", marks=pytest.mark.skipif(not compiler(), reason="needs a compiler"))
FORMS = [pytest.param({"foreach": True}, id="foreach"), pytest.param({"foreach": False}, id="single"), fused]
forms = pytest.mark.parametrize("form", FORMS)


def weight(seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)))


def step(optimizer: torch.optim.Optimizer, *params: Tensor, k: int = 0) -> None:
    generator = torch.Generator().manual_seed(100 + k)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)
    optimizer.step()


def address(w: Tensor) -> int:
    return torch._C._data_address(w)


@pytest.fixture(autouse=True)
def _lent_to_the_kernel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_edits, "LENT_BY_KERNEL", _edits.LENT)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every comparison of weights with mirror variables, and every signature, adds to this list."""
    found: list[float] = []

    def seen(module: Any, name: str) -> None:
        usual = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (found.append(0.0), usual(*args))[1])

    seen(_base, "means")
    seen(_edits, "follow")
    seen(_edits, "signature")
    return found


@pytest.mark.parametrize("name", MAKERS)
@forms
@pytest.mark.parametrize("p", [1.3, 1.75])
def test_nobody_looks_at_weights_that_only_models_read(name: str, form: dict, p: float, looked: list) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(80, 64), nn.TransformerEncoderLayer(64, 4, 80, dropout=0.0, batch_first=True))
    params = [w for w in model.parameters() if w.numel() >= _edits.LENT]
    optimizer = MAKERS[name](params, p=p, **form)
    for k in range(4):
        optimizer.zero_grad()
        model(torch.arange(24).view(2, 12) + k).square().mean().backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        assert all(w.norm() > 0 for w in params)
        model.state_dict()
        if k == 0:
            looked.clear()
            places = [address(w) for w in params]
    assert not looked
    assert [address(w) for w in params] == places


EDITS: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda w: w.data.mul_(0.5),
    "one entry": lambda w: w.data.view(-1)[777].zero_(),
    "a view": lambda w: w.data.view(-1).split(100)[3].fill_(0.25),
    "numpy": lambda w: w.detach().numpy().__setitem__((3, slice(None)), 0.25),
    "dlpack": lambda w: torch.from_dlpack(w.detach()).clamp_(-0.5, 0.5),
    "foreach": lambda w: torch._foreach_mul_([w.data], 0.5),
    "out": lambda w: torch.mul(w.data, 0.5, out=w.data),
    "storage": lambda w: w.data.untyped_storage().copy_(torch.full(SHAPE, 0.25).untyped_storage()),
    "other memory": lambda w: setattr(w, "data", torch.full(SHAPE, 0.25)),
    "other strides": lambda w: setattr(w, "data", w.data.view(SHAPE[::-1]).t()),
    "renorm": lambda w: nn.functional.embedding(torch.arange(9), w, max_norm=0.1),
    "another optimizer": lambda w: step(torch.optim.SGD([nn.Parameter(w.data)], lr=0.1), w),
}


@forms
@pytest.mark.parametrize("p", [1.3, 1.75])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_every_edit_of_a_lent_weight_holds(edit: Callable, form: dict, p: float) -> None:
    # as the same values do that are written in a way that the version counter sees
    if edit is EDITS["other strides"] and form.get("fused"):
        form = {}  # the kernel refuses a weight whose states lie otherwise
    results = []
    for seen in (False, True):
        w = weight()
        optimizer = MirrorAdam([w], lr=1e-2, p=p, **form)
        for k in range(5):
            if k == 3:
                value = w.detach().clone() if seen else w
                edit(value)
                if seen:
                    w.detach().copy_(value)
            step(optimizer, w, k=k)
        results.append(w.detach())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-9)


@forms
@pytest.mark.parametrize("look", [Tensor.numpy, np.from_dlpack], ids=["numpy", "dlpack"])
def test_arrays_that_look_at_a_weight_go_on_doing_so(look: Callable, form: dict) -> None:
    w = weight()
    array = look(w.detach())
    optimizer = MirrorDescent([w], lr=1e-2, p=1.75, **form)
    for k in range(3):
        step(optimizer, w, k=k)
        w.data.mul_(0.5)
        assert (array == w.detach().numpy()).all()
    w.data.fill_(0.5)
    if array.flags.writeable:
        array[:] = 0.25  # which torch does not see
    w.grad = torch.zeros(SHAPE)
    optimizer.step()
    assert (array == w.detach().numpy()).all()
    torch.testing.assert_close(w.detach(), torch.full(SHAPE, 0.25 if array.flags.writeable else 0.5))


def loaded(w: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(w, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize(
    "place",
    [Tensor.share_memory_, lambda w: torch.from_numpy(w.numpy().copy()), loaded, lambda w: torch.stack([w, w])[0]],
)
@forms
def test_edits_hold_wherever_a_weight_lies(place: Callable, form: dict) -> None:
    w = nn.Parameter(place(weight().detach()))
    optimizer = MirrorDescent([w], lr=1e-2, p=1.75, **form)
    shared = w.is_shared()
    for k in range(3):
        step(optimizer, w, k=k)
    w.data.fill_(0.25)
    assert w.is_shared() == shared
    w.grad = torch.zeros(SHAPE)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full(SHAPE, 0.25))


@pytest.mark.parametrize("foreach", [True, False])
def test_who_may_have_written_is_looked_at_and_trusted_again_later(foreach: bool, looked: list) -> None:
    w = weight()
    optimizer = MirrorAdam([w], lr=1e-2, p=1.75, foreach=foreach)

    def looks() -> bool:
        looked.clear()
        step(optimizer, w)
        return bool(looked)

    assert [looks() for _ in range(3)] == [True, False, False]
    w.data_ptr()  # an address to write to
    assert [looks() for _ in range(_edits.APART + 4)] == [*[True] * (_edits.APART + 2), False, False]


@forms
@pytest.mark.parametrize("p", [1.3, 1.75])
def test_without_copy_on_write_signatures_tell(form: dict, p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for lent in (True, False):
        monkeypatch.setattr(_edits, "_copies_on_write", lambda lent=lent: lent)
        w = weight()
        optimizer = MirrorAdam([w], lr=1e-2, p=p, **form)
        for k in range(5):
            if k == 3:
                w.data[5:9] = 0.125
            step(optimizer, w, k=k)
        results.append(w.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


def test_a_mask_is_set_in_place() -> None:
    w = weight()
    optimizer = MirrorAdam([w], lr=1e-2, p=1.75, foreach=True)
    step(optimizer, w)
    at = address(w)
    optimizer.set_mask(w, w > 0)
    assert address(w) == at
    step(optimizer, w)
    assert address(w) == at


def test_a_weight_without_gradients_is_not_held() -> None:
    w, other = weight(), weight(1)
    optimizer = MirrorAdam([w, other], lr=1e-2, p=1.75, foreach=True)
    step(optimizer, w, other)
    w.grad = None
    for _ in range(2):
        step(optimizer, other)
    at = address(w)
    w.data.mul_(0.5)
    assert address(w) == at
