"""A step takes other forms in a compiler, with a tensor as lr, and over many small tensors: all are the same step."""

import copy
import math

import pytest
import torch
from small_task import MAKERS, fit, network

from attsvm.optim import _chunks, _edits
from attsvm.optim._mirror_map import decay_pull

by_name = pytest.mark.parametrize("name", MAKERS)


@by_name
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"p": 2}, {"p": 3}], ids=str)
def test_the_form_for_a_compiler_makes_the_same_steps(
    name: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There counts stay tensors, and every weight is compared with its θ."""
    model, other = network(), network()
    settings = {"p": 1.5, "lr": 1e-3} | options
    if name == "adam":
        settings["betas"] = (0.0, 0.99) if options else (0.9, 0.999)
    optimizer, compiled = MAKERS[name](model.parameters(), **settings), MAKERS[name](other.parameters(), **settings)
    for step in range(5):
        if step == 3:
            with torch.no_grad():
                for m in (model, other):
                    m[0].weight[0] = 0.25  # somebody changes a weight
        fit(model, optimizer, range(step, step + 1))
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            fit(other, compiled, range(step, step + 1))
    for a, b in zip(model.parameters(), other.parameters()):
        # Orthogonal factors enlarge roundings.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 if name == "muon" else 1e-7)


@by_name
def test_lr_may_be_a_tensor(name: str) -> None:
    model, other = network(), network()
    settings = {"p": 1.5, "weight_decay": 0.1}
    one = MAKERS[name](model.parameters(), lr=1e-3, **settings)
    two = MAKERS[name](other.parameters(), lr=torch.tensor(1e-3), **settings)
    for m, o in ((model, one), (other, two)):
        fit(m, o, range(5))
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("p", [1.1, 1.5, 2, 3])
@pytest.mark.parametrize("lr", [0.0, 1e-3, 0.4, 5.0, 20.0])
def test_decay_multiplies_the_weight_by_one_minus_lr_times_it(p: float, lr: float) -> None:
    pull = decay_pull(lr, 0.1, p)
    assert float(decay_pull(torch.tensor(lr, dtype=torch.float64), 0.1, p)) == pytest.approx(pull, rel=1e-12)
    factor = 1 - lr * pull  # of θ
    assert factor == pytest.approx(max(0.0, 1 - 0.1 * lr) ** (p - 1) if p != 2 else 1 - 0.1 * lr, abs=1e-12)
    assert decay_pull(lr, 0.0, p) == 0
    if lr == 0:
        assert pull == pytest.approx(0.1 * (p - 1))


@by_name
@pytest.mark.parametrize("limit", [8, 20, 1000])
def test_many_small_tensors_are_stepped_in_chunks(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chunks, "MOST", limit)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator) for size in (3, 4, 0, 5, 2, 30, 1, 7, 6)]
    grads = [[torch.randn(t.shape, generator=generator) for t in start] for _ in range(3)]
    found = []
    for foreach in (False, True):
        params = [torch.nn.Parameter(t.clone()) for t in start]
        optimizer = MAKERS[name](params, p=1.5, lr=1e-2, foreach=foreach)
        for step in grads:
            for param, grad in zip(params, step):
                param.grad = grad
            optimizer.step()
        found.append(params)
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_copied_optimizer_has_its_own_state() -> None:
    model = network()
    optimizer = MAKERS["adam"](model.parameters())
    fit(model, optimizer, range(2))
    again = copy.deepcopy((model, optimizer))
    before = [param.detach().clone() for param in model.parameters()]
    fit(*again, range(2, 4))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert math.isclose(float(next(iter(optimizer.state.values()))["step"]), 2)


@by_name
@pytest.mark.parametrize("sizes", [[5], [5, 7], [3000], [3000, 3001]])
@pytest.mark.parametrize("foreach", [True, False])
def test_no_edit_is_seen_where_there_was_none(name: str, sizes: list, foreach: bool, monkeypatch) -> None:
    params = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = MAKERS[name](params, p=1.5, foreach=foreach)
    for step in range(3):
        for param in params:
            param.grad = torch.randn(param.shape)
        optimizer.step()
        if step == 0:
            monkeypatch.setattr(_edits, "follow", lambda *_: pytest.fail("an edit was seen"))


@by_name
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_edit_of_any_tensor_in_a_chunk_is_seen(name: str, count: int) -> None:
    params = [torch.nn.Parameter(torch.full((5,), 0.5 + k)) for k in range(count)]
    optimizer = MAKERS[name](params, p=1.5, lr=1e-2, foreach=True, weight_decay=0.0)
    for param in params:
        param.grad = torch.zeros(5)
    for edited in params:
        optimizer.step()
        edited.data.fill_(0.25)
        optimizer.step()
        torch.testing.assert_close(edited.detach(), torch.full((5,), 0.25))
