"""Gradual pruning: what is 0, when, and that a stopped training goes on with the same bits."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.utils.prune as torch_prune
from small_task import batch, fit_pruned, network, same
from torch import nn
from two_processes import run_pair

from attsvm.errors import AttsvmError
from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, param_groups
from attsvm.optim._units import smallest

STEPS = 40
OPTIMIZERS = {
    "MirrorAdam": lambda groups: MirrorAdam(groups, lr=1e-2),
    "MirrorDescent": lambda groups: MirrorDescent(groups, lr=1e-2, momentum=0.9, normalize="tensor"),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "AdamW foreach": lambda groups: torch.optim.AdamW(groups, lr=1e-2, foreach=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "Muon": lambda groups: torch.optim.Muon([g for g in groups if g["name"] == "matrices"], lr=1e-2),
}
with_all = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def start(make, **options) -> tuple[nn.Sequential, torch.optim.Optimizer, GradualPruning]:
    model = network()
    optimizer = make(param_groups(model, 1.5))
    settings = {"sparsity": 0.8, "total_steps": STEPS, "every": 3, **options}
    return model, optimizer, GradualPruning(optimizer, **settings)


def zeros(model: nn.Sequential) -> float:
    weights = torch.cat([model[0].weight.flatten(), model[2].weight.flatten()])
    return (weights == 0).double().mean().item()


@with_all
@pytest.mark.parametrize("scope", ["global", "relative", "layer"])
def test_zeros_follow_the_schedule_and_are_exact_in_every_state(make, scope):
    model, optimizer, pruning = start(make, scope=scope)
    for step in range(STEPS):
        fit_pruned(model, optimizer, pruning, range(step, step + 1))
        last = max((k for k in range(8, min(step + 1, 30) + 1) if (k - 8) % 3 == 0 or k == 30), default=0)
        t = (last - 8) / 22
        expected = 0.8 * (1 - (1 - t) ** 3) if last else 0.0
        assert zeros(model) == pytest.approx(expected, abs=1.5 / 160)  # whole entries of two matrices, 128 and 32
        for w, mask in pruning.masks().items():
            states = [v for k, v in optimizer.state[w].items() if k != "mask" and v.shape == w.shape]
            assert states
            assert not any(v[~mask].any() for v in (w.detach(), *states))
    assert pruning.achieved() == zeros(model) == pytest.approx(0.8, abs=1 / 160)
    assert not (model[0].bias == 0).any()


def test_the_relative_scope_does_not_see_the_scale_of_a_matrix():
    kept = {}
    for scale in (1.0, 0.01):
        for scope in ("global", "relative"):
            drawn = [torch.randn(64, 64, generator=torch.Generator().manual_seed(k)) for k in (1, 2)]
            small, large = nn.Parameter(scale * drawn[0]), nn.Parameter(drawn[1])
            optimizer = torch.optim.SGD([small, large], lr=0.1)
            pruning = GradualPruning(optimizer, 0.5, 10, start=0.0, end=0.0, scope=scope, params=[small, large])
            kept[scale, scope] = [mask.clone() for mask in pruning.masks().values()]
            assert pruning.achieved() == pytest.approx(0.5, abs=1e-3)
    for a, b in zip(kept[1.0, "relative"], kept[0.01, "relative"]):
        assert torch.equal(a, b)
    assert kept[0.01, "global"][0].double().mean() < 0.02  # nearly all of the small one is cut


@with_all
@pytest.mark.parametrize("regrow", [0.0, 0.3])
@pytest.mark.parametrize("at", [5, 20])
def test_a_stopped_training_goes_on_bit_for_bit(make, at, regrow, tmp_path):
    model, optimizer, pruning = start(make, regrow=regrow)
    fit_pruned(model, optimizer, pruning, range(at))
    torch.save([x.state_dict() for x in (model, optimizer, pruning)], tmp_path / "saved")
    fit_pruned(model, optimizer, pruning, range(at, STEPS))

    parts = start(make, regrow=regrow)
    for part, state in zip(parts, torch.load(tmp_path / "saved", weights_only=True)):
        part.load_state_dict(state)
    fit_pruned(*parts, range(at, STEPS))
    assert same(model, parts[0])
    assert all(torch.equal(a, b) for a, b in zip(pruning.masks().values(), parts[2].masks().values(), strict=True))


@with_all
@pytest.mark.parametrize("options", [{"initial": 0.3}, {"initial": 0.8, "regrow": 0.3}], ids=["gradual", "rigl"])
def test_the_initial_share_is_not_pruned_again_in_a_resumed_training(make, options, tmp_path):
    """Trainers load the optimizer's state before they make the pruning."""
    model, optimizer, pruning = start(make, start=0.0, **options)
    fit_pruned(model, optimizer, pruning, range(15))
    torch.save([x.state_dict() for x in (model, optimizer, pruning)], tmp_path / "saved")
    fit_pruned(model, optimizer, pruning, range(15, STEPS))

    weights, state, count = torch.load(tmp_path / "saved", weights_only=True)
    resumed = network()
    resumed.load_state_dict(weights)
    loaded = make(param_groups(resumed, 1.5))
    loaded.load_state_dict(state)
    again = GradualPruning(loaded, 0.8, STEPS, every=3, start=0.0, **options)
    again.load_state_dict(count)
    fit_pruned(resumed, loaded, again, range(15, STEPS))
    assert same(model, resumed)
    assert zeros(resumed) == pytest.approx(0.8, abs=1.5 / 160)


@with_all
def test_two_of_four_neighbours_are_zero(make):
    model, optimizer, pruning = start(make, sparsity=0.5, structure="2:4")
    fit_pruned(model, optimizer, pruning, range(STEPS))
    for layer in (model[0], model[2]):
        assert ((layer.weight.unflatten(1, (-1, 4)) == 0).sum(-1) == 2).all()


def test_rows_go_as_a_whole():
    model, optimizer, pruning = start(OPTIMIZERS["MirrorAdam"], sparsity=0.5, structure="row", scope="layer")
    fit_pruned(model, optimizer, pruning, range(STEPS))
    for layer, count in ((model[0], 8), (model[2], 1)):
        gone = (layer.weight == 0).all(1)
        assert gone.sum() == count
        assert (layer.weight[~gone] != 0).all()


@pytest.mark.parametrize("name", ["AdamW", "MirrorAdam"])
def test_rigl_exchanges_weights_at_a_constant_share(name):
    model, optimizer, pruning = start(OPTIMIZERS[name], initial=0.8, start=0.0, regrow=0.5)
    assert zeros(model) == pytest.approx(0.8, abs=1 / 160)
    before = {id(w): mask.clone() for w, mask in pruning.masks().items()}
    fit_pruned(model, optimizer, pruning, range(STEPS))
    changed = sum(int((mask & ~before[id(w)]).sum()) for w, mask in pruning.masks().items())
    kept = sum(int(mask.sum()) for mask in pruning.masks().values())
    assert kept == pytest.approx(0.2 * 160, abs=1)
    assert changed > 2


def test_at_p_2_an_exchange_is_that_of_adamw():
    """What is taken back starts at 0 there: it moves."""
    options = {"initial": 0.8, "start": 0.0, "regrow": 0.5}
    found = []
    for kind in (torch.optim.AdamW, MirrorAdam):
        model = network(torch.float64)
        optimizer = kind([{**group, "p": 2.0} for group in param_groups(model, 2.0)], lr=1e-2)
        pruning = GradualPruning(optimizer, 0.8, STEPS, every=3, **options)
        fit_pruned(model, optimizer, pruning, range(STEPS))
        found.append([w.detach() for w in model.parameters()])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_by_layer_every_matrix_keeps_its_share_in_an_exchange():
    options = {"initial": 0.8, "start": 0.0, "regrow": 0.5, "scope": "layer"}
    model, optimizer, pruning = start(OPTIMIZERS["AdamW"], **options)
    before = {id(w): mask.clone() for w, mask in pruning.masks().items()}
    fit_pruned(model, optimizer, pruning, range(STEPS))
    for w, mask in pruning.masks().items():
        assert int(mask.sum()) == pytest.approx(0.2 * mask.numel(), abs=1)
        assert (mask & ~before[id(w)]).any()


def test_grown_weights_have_the_largest_gradients():
    model, optimizer, pruning = start(OPTIMIZERS["AdamW"], initial=0.8, start=0.0, end=1.0, regrow=0.2, every=5)
    fit_pruned(model, optimizer, pruning, range(4))
    before = {id(w): mask.clone() for w, mask in pruning.masks().items()}
    fit_pruned(model, optimizer, pruning, range(4, 5))
    free = torch.cat([w.grad.abs()[~before[id(w)]] for w in pruning.params])
    grown = torch.cat([mask[~before[id(w)]] for w, mask in pruning.masks().items()])
    assert grown.any()
    assert free[grown].min() >= free[~grown].max()


@pytest.mark.parametrize("maximize", [False, True])
def test_grown_weights_start_at_a_tenth_of_the_smallest_that_stays(maximize):
    """Near p = 1 what is about to be dropped may be as small as a float can be; downhill is uphill for maximize."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(8, 8))
    with torch.no_grad():
        w[:2] *= 1e-30
        w[2] = 0
    optimizer = MirrorAdam([w], lr=1e-3, p=1.1, maximize=maximize)
    pruning = GradualPruning(optimizer, 0.5, 10, initial=0.5, start=0.0, end=1.0, every=1, regrow=0.5, params=[w])
    before = pruning.masks()[w].clone()
    with torch.no_grad():
        w[before.nonzero()[0][0], before.nonzero()[0][1]] = 1e-30  # kept, and about to be dropped
    w.grad = torch.randn(8, 8)
    optimizer.step()
    pruning.step()
    after = pruning.masks()[w]
    grown = after & ~before
    assert grown.sum() > 5
    torch.testing.assert_close(w[grown].abs(), 0.1 * w[before & after].abs().min().expand(int(grown.sum())))
    assert w[before & after].abs().min() > 1e-3
    assert torch.equal(w[grown].sign(), w.grad[grown].sign() * (1 if maximize else -1))


def test_an_exchange_may_leave_nothing():
    w = nn.Parameter(torch.ones(2, 2))
    optimizer = MirrorAdam([w], p=1.5)
    pruning = GradualPruning(optimizer, 0.9, 4, initial=0.9, start=0.0, end=1.0, every=1, regrow=0.5, params=[w])

    def step() -> None:
        w.grad = torch.ones(2, 2)
        optimizer.step()
        pruning.step()

    for _ in range(3):
        step()
    with pytest.warns(UserWarning, match=r"^pruning has left nothing of 0.0 \(2×2\).$"):
        step()
    assert (w == 0).all()  # 0.9 of four entries, rounded


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("scope", "sizes", "said"),
    [
        (
            "global",
            [[1e-3] * 64, [1.0] * 64],
            ['pruning has left nothing of 0.weight (8×8): try scope="relative" or "layer".'],
        ),
        ("relative", [[1e-3] * 64, [1.0] * 64], []),
        (
            "relative",
            [[1.0] * 64, [0.1] * 32 + [3.0] * 32],
            ['pruning has left nothing of 0.weight (8×8): try scope="layer".'],
        ),
        ("layer", [[1.0] * 64, [0.1] * 32 + [3.0] * 32], []),
    ],
)
def test_a_matrix_of_which_nothing_is_left_is_named(name: str, scope: str, sizes: list[list[float]], said: list[str]):
    """One threshold for all takes a matrix of small entries whole; in units of its size, one without large entries."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        for layer, size in zip(model, sizes):
            layer.weight.copy_((torch.tensor(size) * (1 + 0.01 * torch.rand(64))).view(8, 8))
    optimizer = OPTIMIZERS[name](param_groups(model))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    pruning = GradualPruning(optimizer, 0.75, 4, start=0.5, end=0.5, scope=scope)
    found: list[str] = []
    for _ in range(4):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            pruning.step()
        found += [str(one.message) for one in warned]
    assert pruning.achieved() == pytest.approx(0.75)
    assert found == said


def test_vectors_and_what_is_empty_are_left_as_they_are():
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    empty = nn.Parameter(torch.ones(3, 0))
    optimizer = MirrorAdam([*model.parameters(), empty])
    pruning = GradualPruning(optimizer, 0.5, 10, structure="row", params=[*model.parameters(), empty])
    assert [id(w) for w in pruning.params] == [id(layer.weight) for layer in model]


def test_the_smallest_are_found_with_ties_nan_and_units_of_any_size():
    torch.manual_seed(0)
    scores = [torch.randint(20, (7, 11)).float(), torch.randint(20, (53,)).float()]
    for share in (0.0, 0.1, 0.5, 0.77, 1.0):
        marks = torch.cat([m.flatten() for m in smallest(scores, [1, 1], share)])
        flat = torch.cat([s.flatten() for s in scores])
        assert marks.sum() == round(share * 130)
        if marks.any() and not marks.all():
            assert flat[marks].max() <= flat[~marks].min()
    nan = torch.tensor([torch.nan, 3.0, 1.0, torch.inf])
    assert smallest([nan], [1], 0.5)[0].tolist() == [False, True, True, False]
    assert smallest([nan], [1], 1.0)[0].tolist() == [False, True, True, False]
    neighbours = torch.arange(10, dtype=torch.int32).add(torch.tensor(0.1).view(torch.int32)).view(torch.float32)
    for count in range(11):
        assert smallest([neighbours], [1], count / 10)[0].tolist() == [True] * count + [False] * (10 - count)
    rows = smallest([torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])], [10, 5], 0.5)
    assert [m.tolist() for m in rows] == [[True, False], [True, False]]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sparsity": 1.0}, "sparsity"),
        ({"sparsity": "0.9"}, "sparsity must be a share"),
        ({"sparsity": None}, "sparsity must be a share"),
        ({"start": None}, "start and end must be"),
        ({"total_steps": 0}, "total_steps"),
        ({"total_steps": None}, "total_steps must be"),
        ({"every": 1.5}, "every"),
        ({"start": 0.9, "end": 0.2}, "start and end"),
        ({"scope": "all"}, "scope"),
        ({"structure": "column"}, "structure"),
        ({"structure": "2:4"}, "0.5"),
        ({"structure": "head"}, "heads"),
        ({"structure": "head", "heads": 0}, "heads must be"),
        ({"structure": "row", "regrow": 0.1}, "regrow"),
        ({"heads": 2}, 'heads is for structure="head"'),
        ({"params": [torch.ones(2, 2)]}, "not in the optimizer"),
    ],
)
def test_options_are_checked(options, what):
    with pytest.raises(AttsvmError, match=what):
        start(OPTIMIZERS["AdamW"], **options)


def test_a_model_is_no_optimizer():
    with pytest.raises(AttsvmError, match="must be the optimizer that trains the model, but got a Sequential"):
        GradualPruning(network(), 0.5, 10)


def test_parameters_may_be_named():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for params in (model, model.named_parameters(), list(model.parameters())):
        assert GradualPruning(optimizer, 0.9, 100, params=params).params == [model[0].weight, model[2].weight]
    attention = nn.ModuleDict({"attn": nn.ModuleDict({"q_proj": nn.Linear(8, 8, bias=False)})})
    optimizer = torch.optim.AdamW(attention.parameters())
    GradualPruning(optimizer, 0.5, 10, structure="head", heads=4, params=attention.named_parameters())


def test_what_torch_masks_is_refused():
    model = network()
    torch_prune.random_unstructured(model[0], "weight", 0.5)
    with pytest.raises(AttsvmError, match=r"but 0\.weight_orig is: make that permanent first"):
        GradualPruning(MirrorAdam(param_groups(model)), 0.5, 10)


@pytest.mark.parametrize(
    ("sparsity", "layers", "scope", "warns"),
    [
        (0.2, 1, "global", True),
        (0.2, 2, "global", False),
        (0.2, 2, "layer", True),
        (0.25, 1, "global", False),
        (0.0, 1, "global", False),
    ],
)
def test_a_share_below_one_head_is_warned_of(sparsity, layers, scope, warns):
    model = nn.ModuleList(
        [nn.ModuleDict({"q_proj": nn.Linear(8, 8), "k_proj": nn.Linear(8, 8)}) for _ in range(layers)]
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        GradualPruning(MirrorAdam(param_groups(model)), sparsity, 10, structure="head", heads=4, scope=scope)
    assert [str(w.message) for w in seen] == [
        "sparsity = 0.2 prunes nothing: it is less than one head of the matrices."
    ] * warns


def test_whole_numbers_of_numpy_are_whole_numbers():
    ends = []
    for kind in (int, np.int64):
        model, optimizer, pruning = start(OPTIMIZERS["MirrorAdam"], total_steps=kind(STEPS), every=kind(3))
        fit_pruned(model, optimizer, pruning, range(STEPS))
        ends.append(model)
    assert same(*ends)


def test_without_named_groups_it_asks_what_to_prune():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(AttsvmError, match="param_groups"):
        GradualPruning(optimizer, 0.9, 100)
    pruning = GradualPruning(optimizer, 0.9, 100, params=[model[0].weight])
    assert pruning.params == [model[0].weight]


def test_regrowth_without_gradients_says_so():
    _, optimizer, pruning = start(OPTIMIZERS["AdamW"], initial=0.5, start=0.0, regrow=0.1, every=1)
    optimizer.zero_grad()
    with pytest.raises(AttsvmError, match="zero_grad"):
        pruning.step()


def test_accumulated_gradients_change_nothing():
    whole, parts = start(OPTIMIZERS["MirrorAdam"]), start(OPTIMIZERS["MirrorAdam"])
    for step in range(STEPS):
        X, y = batch(step)
        for (model, optimizer, pruning), pieces in ((whole, 1), (parts, 2)):
            model.zero_grad()
            for Xs, ys in zip(X.chunk(pieces), y.chunk(pieces)):
                (nn.functional.cross_entropy(model(Xs), ys) / pieces).backward()
            optimizer.step()
            pruning.step()
    for a, b in zip(whole[0].parameters(), parts[0].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert zeros(whole[0]) == zeros(parts[0])


def _sharded(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for name in ("MirrorAdam", "AdamW"):
        for options in ({}, {"scope": "relative"}, {"scope": "layer"}, {"structure": "2:4", "sparsity": 0.5}):
            results = []
            for sharded in (False, True):
                model = network()
                if sharded:
                    fully_shard(model, mesh=mesh)
                optimizer = OPTIMIZERS[name](param_groups(model, 1.5))
                settings = {"sparsity": 0.8, "total_steps": STEPS, "every": 3, **options}
                fit_pruned(model, optimizer, GradualPruning(optimizer, **settings), range(STEPS))
                weights = [layer.weight.detach() for layer in (model[0], model[2])]
                results.append([w.full_tensor() if sharded else w for w in weights])
            for whole, parts in zip(*results):
                torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)
                assert torch.equal(parts == 0, whole == 0)


@pytest.mark.slow
def test_sharded_parameters_lose_the_same_entries():
    run_pair(_sharded)


def test_pruning_begins_at_the_first_step_with_the_initial_share():
    model, optimizer, pruning = start(OPTIMIZERS["AdamW"], initial=0.25, start=0.3, end=0.9, every=7, sparsity=0.75)
    total = sum(param.numel() for param in pruning.params)
    for step in range(1, STEPS + 1):
        fit_pruned(model, optimizer, pruning, range(step - 1, step))
        number = sum(int((param == 0).sum()) for param in pruning.params)
        due = [k for k in range(pruning.first, step + 1) if (k - pruning.first) % 7 == 0 or k == pruning.last]
        due = [k for k in due if k <= pruning.last]
        assert number == (round(pruning.scheduled(due[-1]) * total) if due else 0)
    assert pruning.first == round(0.3 * STEPS) > 0
    assert pruning.scheduled(pruning.first) == 0.25
    assert pruning.scheduled(pruning.first - 1) == 0
    assert pruning.scheduled(pruning.last) == pruning.scheduled(STEPS) == 0.75
    middle = pruning.scheduled((pruning.first + pruning.last) / 2)
    assert middle == pytest.approx(0.75 - 0.5 / 8)  # what is left falls by the cube


def test_the_exchanged_share_falls_along_a_cosine():
    _, _, pruning = start(OPTIMIZERS["AdamW"], initial=0.5, sparsity=0.5, start=0.2, end=1.0, every=1, regrow=0.4)
    generator = torch.Generator().manual_seed(0)
    total = sum(param.numel() for param in pruning.params)
    for step in range(1, STEPS):
        before = {param: mask.clone() for param, mask in pruning.masks().items()}
        with torch.no_grad():
            for param in pruning.params:
                param.copy_(torch.randn(param.shape, generator=generator) * (before.get(param, True)))
                param.grad = torch.randn(param.shape, generator=generator)
        pruning.step()
        if step >= pruning.first:  # the first exchange finds nothing to take back, and drops no more than the schedule
            assert sum(int(mask.sum()) for mask in pruning.masks().values()) == total // 2
        if step > pruning.first + 1:
            dropped = sum(int((before[param] & ~mask).sum()) for param, mask in pruning.masks().items())
            done = (step - pruning.first) / (pruning.last - pruning.first)
            assert dropped == pytest.approx(0.4 / 2 * (1 + math.cos(math.pi * done)) * 0.5 * total, abs=1.01)
