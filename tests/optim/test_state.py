"""What the optimizers keep, and the step that keeps no mirror variable."""

import copy

import pytest
import torch
from small_task import MAKERS, fit, gradients, network, same
from torch import nn

from attsvm import AttsvmError
from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent

by_name = pytest.mark.parametrize("name", MAKERS)


@pytest.mark.parametrize(
    ("options", "dtype", "expected"),
    [
        ({"p": 2}, torch.float32, 8),
        ({"p": 1.5}, torch.float32, 12),
        ({"p": 1.34}, torch.float32, 12),
        ({"p": 4 / 3}, torch.float32, 16),
        ({"p": 1.1}, torch.float32, 16),
        ({"p": 1.1}, torch.bfloat16, 12),
        ({"p": 1.1, "keep_mirror": False}, torch.float32, 8),
    ],
    ids=str,
)
def test_bytes_per_parameter(options: dict, dtype: torch.dtype, expected: int) -> None:
    w = nn.Parameter(torch.ones(10, dtype=dtype))
    w.grad = torch.ones_like(w)
    optimizer = MirrorAdam([w], **options)
    optimizer.step()
    found = {name: value.nbytes for name, value in optimizer.state[w].items() if value.ndim}
    assert sum(found.values()) == expected * w.numel()


OPTIONS = [
    {"p": 1.1, "weight_decay": 0.1},
    {"p": 1.5, "maximize": True},
    {"p": 1.75, "l1": 0.5},
    {"p": 3, "l1": 0.1, "l1_of": "weight"},
    {"p": 2, "weight_decay": 0.1},
]
CASES = [(name, options, {"foreach": foreach}) for name in MAKERS for options in OPTIONS for foreach in (True, False)]
CASES += [("adam", options, {"fused": True}) for options in OPTIONS if compiler()]


@pytest.mark.parametrize(("name", "options", "form"), CASES, ids=str)
def test_a_step_without_mirror_agrees_with_float64(name: str, options: dict, form: dict) -> None:
    size, found = 300, []
    for dtype, own in ((torch.float32, {"keep_mirror": False, **form}), (torch.float64, {})):
        # away from 0, through which a weight with l1 passes by its threshold
        start = gradients(1, size)[0].sign() * 0.3 + 0.05 * gradients(1, size)[0]
        params = [nn.Parameter(part.to(dtype, copy=True)) for part in start.split([100, 200])]
        optimizer = MAKERS[name](params, lr=1e-3, **options, **own)
        for grad in gradients(50, size):
            for param, part in zip(params, grad.split([100, 200])):
                param.grad = part.to(dtype)
            optimizer.step()
        found.append(torch.cat([param.detach().double() for param in params]))
    assert (found[0] - found[1]).norm() < 1e-6 * found[1].norm()


@by_name
def test_the_mirror_may_be_kept_from_some_step_on_or_no_longer(name: str) -> None:
    model, other = network(), network()
    optimizer = MAKERS[name](model.parameters(), p=1.1, lr=1e-3)
    reference = MAKERS[name](other.parameters(), p=1.1, lr=1e-3)
    for step in range(9):
        kept = step // 3 % 2 == 0
        for group in optimizer.param_groups:
            group["keep_mirror"] = kept
        fit(model, optimizer, range(step, step + 1))
        fit(other, reference, range(step, step + 1))
        assert all(("mirror" in optimizer.state[w]) == ("rest" in optimizer.state[w]) == kept for w in optimizer.state)
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@by_name
def test_without_mirror_masks_edits_and_resumes_hold(name: str) -> None:
    model = network()
    optimizer = MAKERS[name](model.parameters(), p=1.1, lr=1e-3, keep_mirror=False)
    fit(model, optimizer, range(2))
    weight = model[0].weight
    optimizer.set_mask(weight, (torch.arange(128) % 2 == 0).view(16, 8))
    model[2].weight.data[0] = 0.0  # the weight is the state: an edit holds by itself
    fit(model, optimizer, range(2, 4))
    assert not weight.flatten()[1::2].any()
    assert weight.flatten()[::2].all()
    assert model[2].weight[0].abs().max() < 1e-10
    resumed = copy.deepcopy(model)
    again = MAKERS[name](resumed.parameters(), p=1.1, lr=1e-3, keep_mirror=False)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    fit(model, optimizer, range(4, 7))
    fit(resumed, again, range(4, 7))
    assert same(model, resumed)


def test_without_mirror_weights_need_their_digits() -> None:
    with pytest.raises(AttsvmError, match="keep_mirror=False needs"):
        MirrorDescent([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], keep_mirror=False)


def test_a_state_saved_before_the_option_existed_keeps_its_mirror() -> None:
    model = network()
    optimizer = MirrorAdam(model.parameters())
    fit(model, optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        del group["keep_mirror"]
    optimizer.load_state_dict(saved)
    fit(model, optimizer, range(1, 2))
    for group in optimizer.param_groups:
        del group["keep_mirror"]
    optimizer.__setstate__(optimizer.__getstate__())  # as pickle does
    fit(model, optimizer, range(2, 3))
    assert all("mirror" in optimizer.state[w] for w in model.parameters())
