"""The translated lr moves the weights as far as the lr it comes from."""

import copy
import math

import numpy as np
import pytest
import torch
from small_task import moved
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, param_groups, starting_lr


def first_step(make, model: nn.Module, lr: float) -> torch.Tensor:
    """How one step changes a copy of the model."""
    start, model = model, copy.deepcopy(model)
    optimizer = make(model.parameters(), lr=lr)
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(1))
    nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
    return moved(model, start)


def network(init: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 100, bias=False), nn.Tanh(), nn.Linear(100, 2, bias=False))
    for weight in model.parameters():
        {"normal": lambda w: nn.init.normal_(w, std=0.02), "uniform": nn.init.xavier_uniform_}[init](weight)
    return model


@pytest.mark.parametrize("init", ["normal", "uniform"])
@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 1.75])
def test_the_first_step_has_the_same_rms_as_adamw_and_sgd(p, init):
    model = network(init)
    lr = 1e-4
    translated = starting_lr(lr, p, model.parameters())
    ours = first_step(lambda *a, **k: MirrorAdam(*a, **k, p=p, weight_decay=0), model, translated)
    theirs = first_step(lambda *a, **k: torch.optim.AdamW(*a, **k, weight_decay=0), model, lr)
    # Every entry of Adam's first step has the size lr, so this is exact up to the curvature of the mirror map.
    assert ours.square().mean().sqrt() == pytest.approx(theirs.square().mean().sqrt().item(), rel=0.02)

    # SGD's entries differ, and are independent of the weights within one layer only.
    for layer in range(2):
        alone = copy.deepcopy(model).requires_grad_(False)
        list(alone.parameters())[layer].requires_grad_(True)
        translated = starting_lr(lr, p, list(alone.parameters())[layer])
        ours = first_step(lambda *a, **k: MirrorDescent(*a, **k, p=p), alone, translated)
        theirs = first_step(torch.optim.SGD, alone, lr)
        assert ours.square().mean().sqrt() == pytest.approx(theirs.square().mean().sqrt().item(), rel=0.1)


@pytest.mark.parametrize("p", [2.5, 3.0])
def test_for_large_p_the_median_weight_moves_as_far(p):
    model = network("normal")
    lr = 1e-5
    translated = starting_lr(lr, p, model.parameters())
    ours = first_step(lambda *a, **k: MirrorAdam(*a, **k, p=p, weight_decay=0), model, translated)
    assert ours.abs().median().item() == pytest.approx(lr, rel=0.05)


def test_p_2_keeps_the_lr():
    assert starting_lr(3e-4, 2, []) == 3e-4
    for p in (2 - 1e-9, 2 + 1e-9):
        assert starting_lr(3e-4, p, torch.randn(100)) == pytest.approx(3e-4, rel=1e-6)


def test_a_number_is_the_size_of_all_weights():
    w = torch.tensor([0.05, -0.05], dtype=torch.float64)
    for p in (1.1, 1.5, 3.0):
        assert starting_lr(1e-3, p, 0.05) == pytest.approx(starting_lr(1e-3, p, w))
        assert starting_lr(1e-3, p, 0.05) == pytest.approx(1e-3 * (p - 1) * 0.05 ** (p - 2))
        assert starting_lr(1e-3, p, np.float32(0.05)) == pytest.approx(starting_lr(1e-3, p, 0.05))


@pytest.mark.parametrize("p", [1.1, 3.0])
def test_weights_may_be_a_module_or_named_or_of_numpy(p):
    model = network("normal")
    expected = starting_lr(1e-3, p, model.parameters())
    assert starting_lr(1e-3, p, model) == expected
    assert starting_lr(1e-3, p, model.named_parameters()) == expected
    arrays = [param.detach().numpy() for param in model.parameters()]
    assert starting_lr(1e-3, p, arrays) == expected
    assert starting_lr(1e-3, p, arrays[0]) == starting_lr(1e-3, p, model[0].weight)


@pytest.mark.parametrize("weights", ["0.02", None, [None], ["0.02"], {"params": []}], ids=str)
def test_what_is_no_weights_is_refused(weights):
    with pytest.raises(AttsvmError, match="weights must be parameters, a module or a number"):
        starting_lr(1e-3, 1.1, weights)


def test_groups_of_a_model():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    groups = param_groups(model, p=1.1)
    for group in groups:
        group["lr"] = starting_lr(3e-4, group["p"], group["params"])
    assert [group["lr"] == 3e-4 for group in groups] == [False, False, True]
    assert all(math.isfinite(group["lr"]) for group in MirrorAdam(groups).param_groups)


@pytest.mark.parametrize("p", [1.1, 3])
@pytest.mark.parametrize("weights", [0.0, math.nan, math.inf, torch.zeros(3), [torch.tensor(math.nan)], []])
def test_weights_without_a_size_are_refused(weights, p):
    with pytest.raises(AttsvmError, match="not all 0"):
        starting_lr(1e-3, p, weights)


def test_weights_without_values_are_refused():
    with pytest.raises(AttsvmError, match="one of the weights is on the meta device"):
        starting_lr(1e-3, 1.1, nn.Linear(4, 4, device="meta"))


def test_wrong_lr_and_p_are_refused():
    with pytest.raises(AttsvmError, match="lr must be"):
        starting_lr(-1.0, 1.1, 0.1)
    with pytest.raises(AttsvmError, match="p must be"):
        starting_lr(1.0, 1.0, 0.1)
