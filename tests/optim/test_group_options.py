"""Options in groups that an optimizer would ignore, misspell or contradict are refused; what others note may stay."""

import pytest
import torch
from small_task import make_all
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, MirrorMuon, param_groups, starting_lr


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (MirrorAdam, "amsgrad", True),
        (MirrorAdam, "normalize", "tensor"),
        (MirrorAdam, "momentum", 0.5),
        (MirrorAdam, "head_lr", 9),
        (MirrorAdam, "differentiable", True),
        (MirrorDescent, "betas", (0.9, 0.99)),
        (MirrorDescent, "dampening", 0.9),
        (MirrorMuon, "nesterov", True),
    ],
)
def test_options_that_an_optimizer_has_not_are_refused(make, name, value):
    model = nn.Linear(2, 2)
    with pytest.raises(AttsvmError, match=f"{make.__name__} has no option {name}, but a group has {name}="):
        make(param_groups(model, **{name: value}))
    optimizer = make(model.parameters())
    with pytest.raises(AttsvmError, match=f"{make.__name__} has no option {name}"):
        optimizer.add_param_group({"params": nn.Parameter(torch.ones(2)), name: value})
    groups = len(optimizer.param_groups)
    optimizer.add_param_group({"params": nn.Parameter(torch.ones(2)), name: None})
    assert len(optimizer.param_groups) == groups + 1


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("moment_of", "moments_of"), ("beta", "betas"), ("LR", "lr"), ("weightdecay", "weight_decay"), ("P", "p")],
)
def test_misspelled_options_are_refused(wrong, meant):
    with pytest.raises(AttsvmError, match=rf"MirrorAdam has no option {wrong}, .* did you mean {meant}\?"):
        MirrorAdam([{"params": nn.Linear(2, 2).parameters(), wrong: 1}])


@make_all
def test_what_schedulers_and_trainers_note_in_groups_may_stay(make):
    model = nn.Linear(2, 2)
    optimizer = make(param_groups(model))
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, cycle_momentum="betas" in optimizer.defaults)
    torch.optim.swa_utils.SWALR(optimizer, 0.1)
    notes = (
        "base_momentum",
        "max_momentum",
        "lr_scale",
        "lr_mult",
        "wd_mult",
        "weight_decay_end",
        "base_lr",
        "lr_decay",
    )
    for group in optimizer.param_groups:
        group.update(dict.fromkeys(notes, 0.1))
    make(optimizer.param_groups)


def test_groups_of_torch_optimizers_are_taken():
    model = nn.Linear(2, 2)
    MirrorAdam(torch.optim.AdamW(model.parameters()).param_groups)
    MirrorDescent(torch.optim.SGD(model.parameters(), momentum=0.9).param_groups)


def test_fused_and_foreach_are_not_asked_for_together():
    for make in (MirrorAdam, MirrorDescent, MirrorMuon):
        with pytest.raises(AttsvmError, match="fused and foreach cannot both be True"):
            make(param_groups(nn.Linear(2, 2), fused=True, foreach=True))


@make_all
def test_parameters_without_a_shape_are_refused(make):
    with pytest.raises(AttsvmError, match="a parameter has no shape yet: run a batch"):
        make(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)).parameters())
    with pytest.raises(AttsvmError, match="one of the weights has no shape yet"):
        starting_lr(1e-3, 1.1, nn.LazyLinear(2))


def test_a_module_is_no_list_of_parameters():
    for model in (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), None, 5):
        with pytest.raises(AttsvmError, match=r"pass model.parameters\(\) or attsvm.optim.param_groups\(model\)"):
            MirrorAdam(model)


@pytest.mark.parametrize("kind", [MirrorAdam, MirrorDescent, MirrorMuon])
def test_parameters_that_start_at_zero_are_warned_of_where_they_would_stay(kind, recwarn) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.zeros_(model[0].bias)
    made = kind(model.parameters(), lr=1e-3, p=1.1)
    told = [str(warning.message) for warning in recwarn]
    if kind is MirrorMuon:  # gives vectors p = 2
        assert not told
    else:
        (sentence,) = told
        assert sentence.startswith("2 of 4 parameters start at 0, as biases do, and hardly move at p = 1.1")
        assert recwarn[0].filename == __file__
    recwarn.clear()
    kind(param_groups(model, 1.1), lr=1e-3)
    kind(model.parameters(), lr=1e-3, p=1.75, **({"moments_of": "weight"} if kind is MirrorMuon else {}))
    kind([{"params": list(model.parameters()), "name": "all"}], lr=1e-3, p=1.1)
    made.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "p": 2})
    made.add_param_group({"params": [nn.Parameter(torch.ones(16, 16).triu(8))], "p": 1.1})  # 0 in a corner alone
    made.add_param_group({"params": [nn.Parameter(torch.zeros(0, 3))], "p": 1.1})
    assert not recwarn.list
    with pytest.warns(UserWarning, match="1 of 1 parameters start at 0"):
        made.add_param_group({"params": [nn.Parameter(torch.zeros(3, 3))], "p": 1.1})
