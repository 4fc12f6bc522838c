"""States of a gradual pruning: copied, loaded in any order, handed over, and refused where they are not its."""

import copy
import itertools
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_task import fit, fit_pruned, loss_of, network, same
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import SGD, AdamW, Optimizer

from attsvm.errors import AttsvmError
from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, MirrorMuon, param_groups

OPTIMIZERS = {
    "MirrorAdam": lambda groups: MirrorAdam(groups, lr=1e-2),
    "MirrorMuon": lambda groups: MirrorMuon(groups, lr=1e-2),
    "MirrorDescent": lambda groups: MirrorDescent(groups, lr=1e-2, momentum=0.9, normalize="tensor"),
    "AdamW": lambda groups: AdamW(groups, lr=1e-2),
    "SGD": lambda groups: SGD(groups, lr=1e-2, momentum=0.9),
}
with_all = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
with_both = pytest.mark.parametrize("make", [OPTIMIZERS[n] for n in ("MirrorAdam", "AdamW")], ids=["mirror", "torch"])
RIGL = {"initial": 0.8, "start": 0.0, "regrow": 0.3}
STEPS = 40

Parts = tuple[nn.Sequential, Optimizer, GradualPruning]


def start(make, **options: Any) -> Parts:
    model = network()
    optimizer = make(param_groups(model, 1.5))
    return model, optimizer, GradualPruning(optimizer, **{"sparsity": 0.8, "total_steps": STEPS, "every": 3} | options)


@with_all
@pytest.mark.parametrize(
    "options", [{}, RIGL, {"structure": "row", "scope": "layer", "sparsity": 0.5}], ids=["gradual", "rigl", "rows"]
)
@pytest.mark.parametrize(
    "copying", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))], ids=["copy", "pickle"]
)
def test_a_copy_of_all_three_goes_on_by_itself(make, options, copying) -> None:
    parts = start(make, **options)
    fit_pruned(*parts, range(20))
    before = copy.deepcopy(parts[0])
    copied = copying(parts)
    fit_pruned(*copied, range(20, STEPS))
    assert same(before, parts[0])
    fit_pruned(*parts, range(20, STEPS))
    assert same(copied[0], parts[0])
    assert [param is own for param, own in zip(copied[2].masks(), copied[2].params)] == [True, True]


@with_all
def test_the_masks_of_an_earlier_pruning_are_handed_over(make) -> None:
    """Else they would hold what the later one takes back."""
    model, optimizer, first = start(make)
    fit_pruned(model, optimizer, first, range(STEPS))
    kept = [mask.clone() for mask in first.masks().values()]
    later = GradualPruning(optimizer, 0.8, STEPS, every=3, **RIGL)
    assert all(torch.equal(a, b) for a, b in zip(later.masks().values(), kept, strict=True))
    fit_pruned(model, optimizer, later, range(STEPS))
    fit(model, optimizer, range(3))
    assert later.achieved() == pytest.approx(0.8, abs=1 / 160)
    grown = torch.cat([w[mask.logical_not()] for w, mask in zip(later.params, kept)])
    assert grown.any()


@with_all
def test_parts_of_a_model_may_be_pruned_apart(make) -> None:
    model = network()
    optimizer = make(param_groups(model, 1.5))
    matrices = [model[0].weight, model[2].weight]
    each = [GradualPruning(optimizer, s, STEPS, every=3, params=[w]) for s, w in zip((0.5, 0.75), matrices)]
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        for pruning in each:
            pruning.step()
    assert [(w == 0).double().mean().item() for w in matrices] == [0.5, 0.75]
    assert [list(pruning.masks()) == [w] for pruning, w in zip(each, matrices)] == [True, True]


@with_both
@pytest.mark.parametrize("options", [{}, RIGL], ids=["gradual", "rigl"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_states_are_loaded_in_any_order(make, options, order, tmp_path: Path) -> None:
    for at in (0, 5, 20):
        whole, resumed = start(make, **options), start(make, **options)
        fit_pruned(*whole, range(at))
        torch.save([part.state_dict() for part in whole], tmp_path / "saved")
        states = torch.load(tmp_path / "saved", weights_only=True)
        for i in order:
            resumed[i].load_state_dict(states[i])
        for parts in (whole, resumed):
            fit_pruned(*parts, range(at, STEPS))
        assert same(whole[0], resumed[0])


@with_all
@pytest.mark.parametrize("scope", ["global", "relative"])
@pytest.mark.parametrize("structure", [None, "row"])
def test_a_matrix_of_which_nothing_was_left_is_still_the_first_to_go(make, scope, structure) -> None:
    """As in a resumed training, before its masks are loaded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    nn.init.zeros_(model[0].weight)
    optimizer = make([{"params": [w for w in model.parameters() if w.ndim == 2], "name": "matrices"}])
    GradualPruning(optimizer, 0.5, 10, initial=0.5, start=0.0, scope=scope, structure=structure)
    assert (model[1].weight != 0).all()


@with_all
def test_loaded_masks_hold_at_once(make) -> None:
    whole, other = start(make), start(make)
    fit_pruned(*whole, range(STEPS))
    other[2].load_state_dict(whole[2].state_dict())
    assert other[2].achieved() == pytest.approx(0.8, abs=1 / 160)


@with_both
@pytest.mark.parametrize("options", [{}, {"initial": 0.5, "start": 0.0}, RIGL], ids=["gradual", "initial", "rigl"])
@pytest.mark.parametrize("order", ["together", "optimizer before", "optimizer after", "optimizer before it is made"])
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_a_distributed_checkpoint_is_loaded_in_any_order(make, options, order, tmp_path: Path) -> None:
    """It makes the states of a fresh optimizer before it loads them, by a step, unless some are there."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def load(model: nn.Module, optimizer: Optimizer, **others: Any) -> None:
        weights, state = get_state_dict(model, optimizer)
        found = {"model": weights, "optimizer": state, **others}
        dcp.load(found, checkpoint_id=tmp_path / f"{at}", no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])

    for at in (0, 5, 20):
        whole = start(make, **options)
        fit_pruned(*whole, range(at))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a process that is alone
            weights, state = get_state_dict(*whole[:2])
            saved = {"model": weights, "optimizer": state, "pruning": whole[2]}
            dcp.save(saved, checkpoint_id=tmp_path / f"{at}", no_dist=True)
            if order == "optimizer before it is made":
                model = network()
                optimizer = make(param_groups(model, 1.5))
                load(model, optimizer)
                settings = {"sparsity": 0.8, "total_steps": STEPS, "every": 3} | options
                resumed = model, optimizer, GradualPruning(optimizer, **settings)
            else:
                resumed = start(make, **options)
            pruning = resumed[2]
            if order == "together":
                load(*resumed[:2], pruning=pruning)
            else:
                if order == "optimizer before":
                    load(*resumed[:2])
                dcp.load({"pruning": pruning}, checkpoint_id=tmp_path / f"{at}", no_dist=True)
                if order == "optimizer after":
                    load(*resumed[:2])
        for parts in (whole, resumed):
            fit_pruned(*parts, range(at, STEPS))
        assert same(whole[0], resumed[0])
        assert resumed[2].achieved() == pytest.approx(0.8, abs=1 / 160)


def test_masks_before_the_first_step_leave_gradients_and_frozen_weights_alone() -> None:
    model = network()
    model[2].weight.requires_grad_(False)
    model[0].bias.grad = torch.ones(16)
    before = [w.detach().clone() for w in (model[0].bias, model[2].weight)]
    optimizer = MirrorAdam([{"params": list(model.parameters()), "p": 1.5}], lr=1e-2)
    GradualPruning(optimizer, 0.5, 10, initial=0.5, start=0.0, params=[model[0].weight])
    assert [w.grad is None for w in model.parameters()] == [True, False, True, True]
    assert all(torch.equal(w, old) for w, old in zip((model[0].bias, model[2].weight), before))
    assert {int(state["step"]) for state in optimizer.state.values()} == {0}


@with_all
def test_skipped_steps_exchange_nothing(make) -> None:
    """As where gradients of AMP overflow: they do not tell what to take back."""
    model, optimizer, pruning = start(make, **RIGL | {"every": 1})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(STEPS):
        model.zero_grad()
        skipped = step in (7, 8, 20, 28)
        scaler.scale(loss_of(model, step) * (torch.nan if skipped else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        before = [mask.clone() for mask in pruning.masks().values()]
        pruning.step()
        masks = list(pruning.masks().values())
        assert sum(int((~mask).sum()) for mask in masks) == 128
        if skipped:
            assert all(torch.equal(a, b) for a, b in zip(before, masks))


@with_all
def test_an_optimizer_that_was_given_other_parameters_is_named(make) -> None:
    """As accelerator.prepare does with FSDP2."""
    _, optimizer, pruning = start(make, every=1)
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(param.detach().clone()) for param in group["params"]]
    for _ in range(pruning.first):
        pruning.step()
    with pytest.raises(AttsvmError, match="no longer trains what is pruned: make GradualPruning after"):
        pruning.step()


def test_what_is_parametrized_is_warned_of() -> None:
    model = network()
    parametrizations.orthogonal(model[0])
    groups = param_groups(model, 1.5)
    with pytest.warns(
        UserWarning, match=r"^0\.parametrizations\.weight\.original is pruned, but zeros of it need not be"
    ):
        GradualPruning(AdamW(groups), 0.5, 10)


@pytest.mark.parametrize(("saved", "loads"), [("MirrorAdam", "AdamW"), ("AdamW", "MirrorAdam")])
def test_masks_of_another_optimizer_are_refused(saved, loads) -> None:
    parts = start(OPTIMIZERS[saved], start=0.0, initial=0.5)
    fit_pruned(*parts, range(3))
    *_, other = start(OPTIMIZERS[loads])
    with pytest.raises(AttsvmError, match="begin with the same optimizer"):
        other.load_state_dict(parts[2].state_dict())
    assert other.count == 0


@pytest.mark.parametrize("name", ["AdamW", "MirrorAdam"])
def test_states_of_something_else_are_refused(name) -> None:
    _, optimizer, pruning = start(OPTIMIZERS[name])
    for wrong in ({}, None, optimizer.state_dict()):
        with pytest.raises(AttsvmError, match="state_dict must be what GradualPruning"):
            pruning.load_state_dict(wrong)


@pytest.mark.parametrize("wrong", [{7: torch.ones(2, 2)}, {0: torch.ones(2, 2)}])
def test_masks_of_another_model_are_refused(wrong) -> None:
    _, _, pruning = start(OPTIMIZERS["AdamW"])
    with pytest.raises(AttsvmError, match="of other parameters"):
        pruning.load_state_dict({"count": 3, "masks": wrong})
    assert pruning.count == 0


@with_both
def test_a_state_without_masks_takes_those_of_the_start_away(make) -> None:
    before = start(make)
    after = start(make, initial=0.5, start=0.0)
    assert after[2].achieved() > 0.4
    after[2].load_state_dict(before[2].state_dict())
    assert after[2].count == 0
    assert all(mask.all() for mask in after[2].masks().values())
    before[2].load_state_dict(before[2].state_dict())
    assert not before[2].masks()


@pytest.mark.parametrize(
    "masks", [{"0": torch.ones(16, 8)}, {-1: torch.ones(2, 16)}, {0: 1}, [torch.ones(16, 8)], None]
)
def test_masks_with_other_numbers_or_of_other_kinds_are_refused(masks) -> None:
    *_, pruning = start(OPTIMIZERS["AdamW"])
    with pytest.raises(AttsvmError, match="other parameters"):
        pruning.load_state_dict({"count": 1, "masks": masks})
    for count in ("x", 1.5, -1):
        with pytest.raises(AttsvmError, match="the saved count must be a whole number"):
            pruning.load_state_dict({"count": count, "masks": {}})
    assert pruning.count == 0
