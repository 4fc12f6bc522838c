"""Which saved states the optimizers take, and how runs of torch's optimizers go on."""

import copy

import pytest
import torch
from small_task import fit, loss_of, network, same, small_transformer
from torch import nn
from torch.optim import lr_scheduler

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, MirrorMuon, from_torch, param_groups, starting_lr


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1), lambda params: MirrorAdam(params, p=1.5)),
        (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), lambda params: MirrorDescent(params, p=1.5)),
        (lambda params: torch.optim.SGD(params, lr=0.05), lambda params: MirrorDescent(params, normalize="tensor")),
    ],
    ids=["AdamW", "SGD with momentum", "SGD"],
)
def test_state_of_torch_optimizers_goes_on(theirs, ours, groups):
    model = network()
    params = list(model.parameters())
    split = [{"params": params[:2]}, {"params": params[2:]}] if groups == 2 else params
    before = theirs(split)
    fit(model, before, range(3))
    saved = before.state_dict()

    after = ours([{"params": params[:2], "p": 1.2}, {"params": params[2:]}] if groups == 2 else params)
    p = [group["p"] for group in after.param_groups]
    normalize = after.defaults.get("normalize")
    after.load_state_dict(saved)
    assert [group["p"] for group in after.param_groups] == p
    assert all(group["lr"] == before.param_groups[0]["lr"] for group in after.param_groups)
    assert all(group.get("normalize") == normalize for group in after.param_groups)
    for i, param in enumerate(params):  # moments and counts carry over
        for name, value in saved["state"].get(i, {}).items():
            assert torch.equal(after.state[param][name], value)
    loss = loss_of(model, 3).item()
    assert fit(model, after, range(3, 20)) < loss
    assert all("mirror" in after.state[param] for param in params)


@pytest.mark.parametrize("flag", ["fused", "foreach", "capturable"])
def test_how_torch_optimizers_computed_is_not_taken_over(flag):
    model = network()
    before = torch.optim.AdamW(model.parameters(), **({"fused": True} if flag == "fused" else {}))
    fit(model, before, range(2))
    saved = before.state_dict()
    saved["param_groups"][0][flag] = True
    after = MirrorAdam(model.parameters())
    after.load_state_dict(saved)
    assert after.param_groups[0][flag] == after.defaults[flag]
    fit(model, after, range(2, 4))


def test_counts_that_are_numbers_load():
    model, other = network(), network()
    before = torch.optim.AdamW(model.parameters())
    fit(model, before, range(3))
    saved = copy.deepcopy(before.state_dict())
    numbers = copy.deepcopy(saved)
    for state in numbers["state"].values():
        state["step"] = int(state["step"])
    other.load_state_dict(model.state_dict())
    for each, state in ((model, saved), (other, numbers)):
        after = MirrorAdam(each.parameters())
        after.load_state_dict(state)
        fit(each, after, range(3, 5))
    assert same(model, other)


@pytest.mark.parametrize(
    ("theirs", "ours", "what"),
    [
        (lambda params: torch.optim.SGD(params, momentum=0.9, dampening=0.9), MirrorDescent, "dampening=0.9"),
        (lambda params: torch.optim.AdamW(params, amsgrad=True), MirrorAdam, "amsgrad=True"),
    ],
)
def test_states_that_cannot_go_on_are_refused(theirs, ours, what):
    model = network()
    with pytest.raises(AttsvmError, match=f"has {what}, which the mirror optimizers have not"):
        ours(model.parameters()).load_state_dict(theirs(model.parameters()).state_dict())


def test_at_p_2_a_state_of_adamw_goes_on_as_adamw():
    ours, theirs = network(torch.float64), network(torch.float64)
    before, reference = (torch.optim.AdamW(model.parameters(), lr=0.01) for model in (ours, theirs))
    fit(ours, before, range(3))
    fit(theirs, reference, range(6))
    after = MirrorAdam(ours.parameters(), p=2)
    after.load_state_dict(before.state_dict())
    fit(ours, after, range(3, 6))
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def stepped(make, *shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    params = [nn.Parameter(torch.full(shape, 0.1)) for shape in shapes]
    optimizer = make(params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("other", [(8, 4), (50, 8), (32,), (4, 8, 1)])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.optim.AdamW, lambda params: MirrorAdam(params, p=2)),
        (lambda params: MirrorAdam(params, p=2), lambda params: MirrorAdam(params, p=2)),
        (MirrorAdam, MirrorAdam),
        (MirrorDescent, MirrorDescent),
        (lambda params: torch.optim.SGD(params, momentum=0.9), MirrorDescent),
    ],
    ids=["AdamW", "p = 2", "MirrorAdam", "MirrorDescent", "SGD"],
)
def test_states_of_another_shape_are_refused(before, after, other):
    saved = stepped(before, (2,), (4, 8))[1].state_dict()
    params, optimizer = stepped(after, (2,), other)
    kept = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(AttsvmError, match=r"of parameter 1 has shape \(4, 8\), but the parameter has") as refusal:
        optimizer.load_state_dict(saved)
    assert f"the parameter has {other}:" in str(refusal.value)
    assert str(optimizer.state_dict()) == str(kept)  # a refused state leaves no trace
    named = after([("bias", params[0]), ("head.weight", params[1])])
    with pytest.raises(AttsvmError, match=r"of parameter head.weight has shape"):
        named.load_state_dict(saved)


def test_states_of_other_groups_and_no_states_are_refused():
    model = network()
    optimizer = MirrorAdam(param_groups(model))
    fewer = MirrorAdam([model[0].weight, model[0].bias]).state_dict()
    for make, how in ((MirrorAdam, "the groups of the saved one"), (torch.optim.AdamW, "attsvm.optim.from_torch")):
        with pytest.raises(AttsvmError, match=r"have \[4\] parameters, .* \[2, 2\]: make it with " + how):
            optimizer.load_state_dict(make(model.parameters()).state_dict())
    with pytest.raises(AttsvmError, match=r"have \[2\] parameters, but those of this optimizer \[4\]"):
        MirrorAdam(model.parameters()).load_state_dict(fewer)
    for wrong in ({}, {"count": 3, "masks": {}}, None, [1]):
        with pytest.raises(AttsvmError, match=r"state_dict must be what optimizer.state_dict\(\) returned, but"):
            optimizer.load_state_dict(wrong)


def test_a_state_without_mirror_variables_needs_weights_that_hold_the_digits():
    model = network()
    optimizer = MirrorAdam(param_groups(model), keep_mirror=False)
    fit(model, optimizer, range(2))
    half = MirrorAdam(param_groups(network().bfloat16()))
    with pytest.raises(AttsvmError, match="keep_mirror=False needs float32 or float64 weights"):
        half.load_state_dict(optimizer.state_dict())
    assert not half.state
    assert half.param_groups[0]["keep_mirror"]


OTHERS = {
    "SGD": lambda params: torch.optim.SGD(params, momentum=0.9),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "Adamax": torch.optim.Adamax,
    "AdamW": torch.optim.AdamW,
    "MirrorDescent": MirrorDescent,
    "MirrorAdam": MirrorAdam,
    "MirrorMuon": MirrorMuon,
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(("make", "takes"), [(MirrorAdam, "AdamW"), (MirrorDescent, "SGD")])
def test_states_of_other_optimizers_are_refused(make, takes, name, grouped):
    model = network()
    params = (lambda: param_groups(model)) if grouped else (lambda: list(model.parameters()))
    before = OTHERS[name](params())
    fit(model, before, range(2))
    after = make(params())
    if name in (takes, make.__name__):
        after.load_state_dict(before.state_dict())
        fit(model, after, range(2, 4))
        assert not {"amsgrad", "dampening", "differentiable"} & after.param_groups[0].keys()
    else:
        with pytest.raises(AttsvmError, match=f"{make.__name__} takes its own states and those of torch.optim.{takes}"):
            after.load_state_dict(before.state_dict())


def test_adam_goes_on_without_weight_decay_alone():
    model = network()
    for weight_decay in (0.0, 0.1):
        before = torch.optim.Adam(model.parameters(), weight_decay=weight_decay)
        fit(model, before, range(2))
        after = MirrorAdam(model.parameters())
        if weight_decay:
            with pytest.raises(AttsvmError, match=r"torch.optim.Adam with weight_decay=0.1"):
                after.load_state_dict(before.state_dict())
        else:
            after.load_state_dict(before.state_dict())
            assert after.param_groups[0]["weight_decay"] == 0


def test_from_adamw_with_groups_of_its_own():
    model = small_transformer()
    matrices = [param for param in model.parameters() if param.ndim == 2]
    others = [param for param in model.parameters() if param.ndim < 2]
    before = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.3}], 1e-3, (0.8, 0.99))
    scheduler = lr_scheduler.ExponentialLR(before, 0.5)
    fit(model, before, range(3))
    scheduler.step()
    kept = copy.deepcopy(before.state_dict())
    after = from_torch(before, model, p=1.1)

    assert isinstance(after, MirrorAdam)
    assert [(g["name"], g["p"], g["weight_decay"]) for g in after.param_groups] == [
        ("attention", 1.1, 0.01),
        ("matrices", 1.1, 0.01),
        ("vectors", 2.0, 0.3),
    ]
    for group in after.param_groups:
        assert group["betas"] == (0.8, 0.99)
        assert group["lr"] == pytest.approx(starting_lr(5e-4, group["p"], group["params"]))
        assert "initial_lr" not in group
    for param in model.parameters():
        assert all(torch.equal(after.state[param][name], value) for name, value in before.state[param].items())
    rates = [group["lr"] for group in after.param_groups]
    lr_scheduler.LambdaLR(after, lambda step: 1.0)
    assert [group["lr"] for group in after.param_groups] == rates
    loss = loss_of(model, 3).item()
    assert fit(model, after, range(3, 20)) < loss
    assert str(before.state_dict()) == str(kept)  # the moments are copies


def test_from_torch_goes_on_at_p_2():
    for theirs in (
        lambda params: torch.optim.AdamW(params, lr=0.01),
        lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
    ):
        model, twin = network(torch.float64), network(torch.float64)
        before, reference = theirs(model.parameters()), theirs(twin.parameters())
        fit(model, before, range(3))
        fit(model, from_torch(before, model, p=2), range(3, 6))
        fit(twin, reference, range(6))
        for a, b in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_from_sgd_with_options():
    model = network()
    frozen = model[0].bias.requires_grad_(False)
    before = torch.optim.SGD([*model[0].parameters(), model[2].weight], lr=0.1, momentum=0.9)  # not the last bias
    after = from_torch(before, model, 1.5, normalize="tensor", lr=3e-3, matrices={"weight_decay": 0.1})
    assert isinstance(after, MirrorDescent)
    (group,) = after.param_groups
    chosen = group["name"], group["p"], group["lr"], group["momentum"], group["normalize"], group["weight_decay"]
    assert chosen == ("matrices", 1.5, 3e-3, 0.9, "tensor", 0.1)
    assert group["param_names"] == ["0.weight", "2.weight"]
    assert all(param is not frozen for param in group["params"])


def test_groups_do_not_share_a_learning_rate():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    old = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    new = from_torch(old, model)
    for group in new.param_groups:  # as a scheduler does
        group["lr"].fill_(2 * group["lr"].item())
    rates = {group["name"]: group["lr"].item() for group in new.param_groups}
    assert rates["embeddings"] == rates["vectors"] == pytest.approx(2e-3)
    assert old.param_groups[0]["lr"].item() == pytest.approx(1e-3)


def test_what_from_torch_refuses():
    model, other = network(), network()
    sgd = torch.optim.SGD(model.parameters())
    with pytest.raises(AttsvmError, match="steps a parameter that is not the model's"):
        from_torch(sgd, other)
    with pytest.raises(AttsvmError, match="pass lr=… too"):
        from_torch(sgd, model, normalize="tensor")
    with pytest.raises(AttsvmError, match="but got a RAdam"):
        from_torch(torch.optim.RAdam(model.parameters()), model)
    with pytest.raises(AttsvmError, match="has amsgrad=True"):
        from_torch(torch.optim.AdamW(model.parameters(), amsgrad=True), model)
