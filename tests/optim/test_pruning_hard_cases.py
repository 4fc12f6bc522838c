"""Pruning where masks could go wrong: zeros by chance, checkpoints of shards, compiled steps, weights that are nan."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_task import fit_pruned, loss_of, network, same
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from two_processes import run_pair

from attsvm.errors import AttsvmError
from attsvm.native import compiler
from attsvm.optim import GradualPruning, MirrorAdam, _units, param_groups

MAKERS = {"MirrorAdam": lambda groups: MirrorAdam(groups, lr=1e-2), "AdamW": lambda groups: AdamW(groups, lr=1e-2)}
with_both = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
STEPS = 40


def start(make, **options) -> tuple[nn.Sequential, Optimizer, GradualPruning]:
    model = network()
    optimizer = make(param_groups(model, 1.5))
    return model, optimizer, GradualPruning(optimizer, **{"sparsity": 0.8, "total_steps": STEPS, "every": 3} | options)


@with_both
@pytest.mark.parametrize("structure", [None, "2:4", "row", "head"])
@pytest.mark.parametrize("scope", ["global", "relative"])
def test_weights_that_are_0_by_chance_do_not_widen_the_masks(make, structure, scope) -> None:
    """As by l1: of what is 0 the masked entries come first, and the share holds."""
    weight = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    last = weight.data.view(-1, 4)[:, 2:] if structure == "2:4" else weight.data[8:]
    last.mul_(1e-3)
    optimizer = make([{"params": [("q_proj.weight", weight)], "p": 2.0}])
    options = {"scope": scope, "structure": structure, "heads": 8 if structure == "head" else None}
    pruning = GradualPruning(optimizer, 0.5, 10, start=0.1, end=0.8, every=1, params=[weight], **options)
    for step in range(10):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        pruning.step()
        if step == 5:
            first = weight.data.view(-1, 4)[:, :2] if structure == "2:4" else weight.data[:8]
            first.fill_(1e-60)  # 0 in float32
            first[::2] = 0
    assert int((~pruning.masks()[weight]).sum()) == 128


@with_both
@pytest.mark.parametrize("regrow", [0.0, 0.3])
def test_accelerate_saves_and_restores_it_between_accumulated_steps(make, regrow, tmp_path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared() -> tuple:
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
        model = network()
        model, optimizer = accelerator.prepare(model, make(param_groups(model, 1.5)))
        pruning = GradualPruning(optimizer, 0.8, STEPS // 2, every=2, regrow=regrow)
        accelerator.register_for_checkpointing(pruning)
        return accelerator, model, optimizer, pruning

    def steps(accelerator, model, optimizer, pruning, numbers: range) -> None:
        for step in numbers:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, step))
                optimizer.step()
                pruning.step()
                optimizer.zero_grad()

    whole = prepared()
    steps(*whole, range(20))
    whole[0].save_state(str(tmp_path / "state"))
    steps(*whole, range(20, STEPS))
    resumed = prepared()
    resumed[0].load_state(str(tmp_path / "state"))
    assert resumed[3].count == 10
    steps(*resumed, range(20, STEPS))
    assert same(whole[1], resumed[1])
    assert resumed[3].count == STEPS // 2
    assert resumed[3].achieved() == pytest.approx(0.8, abs=1 / 160)


def test_what_is_pruned_are_parameters_and_steps_may_be_a_tensor() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(AttsvmError, match="params must be parameters or a module, but got 5"):
        GradualPruning(SGD([weight], lr=0.1), 0.5, 10, params=5)
    pruning = GradualPruning(SGD([weight], lr=0.1), 0.5, torch.tensor(100), params=[weight])
    assert (pruning.first, pruning.last) == (20, 75)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own compiler
def test_a_compiled_step_is_not_compiled_again_for_every_count() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, optimizer, pruning = start(MAKERS["AdamW"], start=0.05, every=1)
    counter = CompileCounter()
    step, counts = torch.compile(optimizer.step, backend=counter), []
    for k in range(12):
        model.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        step()
        assert not any(weight[~mask].any() for weight, mask in pruning.masks().items())
        pruning.step()
        counts.append(counter.frame_count if k else 0)
    assert pruning.achieved() > 0.3
    assert counts[-1] == counts[4]


FORMS = [(form, dtype) for form in ("foreach", "single") for dtype in (torch.float32, torch.bfloat16)]
FORMS += [("fused", torch.bfloat16)] if compiler() else []


@pytest.mark.parametrize(("form", "dtype"), FORMS, ids=str)
@pytest.mark.parametrize("make", [MirrorAdam, AdamW])
def test_zeros_are_exact_in_every_form_and_where_steps_are_skipped(make, dtype, form) -> None:
    model = network(dtype)
    groups = [group for group in param_groups(model, 1.1) if group["name"] == "matrices"]
    optimizer = make(groups, lr=1e-2, **({"foreach": False} if form == "single" else {form: True}))
    pruning = GradualPruning(optimizer, 0.8, STEPS, every=3, regrow=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step % 6 == 5:  # also where masks are changed
            model[0].weight.grad[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        pruning.step()
        for weight, mask in pruning.masks().items():
            states = [v for k, v in optimizer.state[weight].items() if k != "mask" and v.shape == weight.shape]
            assert not any(value[~mask].any() for value in (weight.detach(), *states))
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert pruning.achieved() == pytest.approx(0.8, abs=1 / 160)


@with_both
def test_weights_that_are_nan_are_no_error_of_an_exchange(make) -> None:
    weight = nn.Parameter(torch.randn(6, 6))
    optimizer = make([{"params": [weight], "p": 1.5}])
    pruning = GradualPruning(optimizer, 0.8, 10, params=[weight], initial=0.5, start=0.0, every=1, regrow=0.3)
    weight.grad = torch.full_like(weight, torch.nan)
    optimizer.step()
    pruning.step()
    assert not weight[~pruning.masks()[weight]].any()


def test_of_weights_that_are_all_0_a_tenth_is_0() -> None:
    weight = nn.Parameter(torch.zeros(6, 6))
    optimizer = MirrorAdam([weight], lr=0.0, p=1.5)
    pruning = GradualPruning(optimizer, 0.8, 10, params=[weight], initial=0.5, start=0.0, every=1, regrow=0.3)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    pruning.step()
    assert not weight.any()


def test_weights_that_grow_back_without_a_gradient_wait_at_0() -> None:
    weight = nn.Parameter(torch.arange(1.0, 37.0).view(6, 6))
    optimizer = MirrorAdam([weight], lr=0.0, p=1.5)
    pruning = GradualPruning(optimizer, 0.5, 10, params=[weight], initial=0.5, start=0.0, every=1, regrow=0.3)
    before = pruning.masks()[weight].clone()
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    pruning.step()
    grown = pruning.masks()[weight] & ~before
    assert grown.any()
    assert not weight[grown].any()


@pytest.mark.parametrize("other", [None, torch.ones(8, 8)])
def test_a_head_of_which_one_part_is_masked_stays_by_what_is_left(other) -> None:
    matrices = {name: nn.Parameter(torch.ones(8, 8)) for name in ("q_proj.weight", "k_proj.weight")}
    query, key = matrices.values()
    optimizer = MirrorAdam([query, key], lr=0.0, p=1.5)
    optimizer.set_mask(query, (torch.arange(8) > 1)[:, None].expand(8, 8))  # the first head
    optimizer.set_mask(key, other)
    key.data[:2] = 10
    key.data[4:6] = 0.5  # the third
    options = {"structure": "head", "heads": 4, "start": 0.0, "end": 0.0}
    GradualPruning(optimizer, 0.25, 10, params=matrices.items(), **options)
    assert [bool(head.any()) for head in key.detach().split(2)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("structure", "scope"),
    [(None, "global"), (None, "relative"), ("2:4", "layer"), ("row", "global"), ("head", "layer")],
)
def test_complex_weights_go_by_their_size(structure, scope) -> None:
    masks = []
    for turned in (1, torch.polar(torch.tensor(1.0), torch.tensor(2.0))):
        generator = torch.Generator().manual_seed(0)
        weights = {
            f"{name}.weight": nn.Parameter(turned * torch.randn(8, 8, generator=generator))
            for name in ("q_proj", "k_proj")
        }
        optimizer = AdamW(weights.values(), lr=0.0)
        options = {"scope": scope, "structure": structure, "heads": 4 if structure == "head" else None}
        pruning = GradualPruning(optimizer, 0.5, 4, start=0.5, end=0.5, params=weights.items(), **options)
        for _ in range(4):
            for weight in weights.values():
                weight.grad = turned * torch.ones_like(weight)
            optimizer.step()
            pruning.step()
        masks.append(list(pruning.masks().values()))
        for weight, mask in pruning.masks().items():
            states = [v for v in optimizer.state[weight].values() if v.shape == weight.shape]
            assert not any(value[~mask].any() for value in (weight.detach(), *states))
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))


def test_weights_without_values_are_refused() -> None:
    model = nn.Linear(4, 4, device="meta")
    with pytest.raises(AttsvmError, match="meta device"):
        GradualPruning(SGD(param_groups(model), lr=0.1), 0.5, 10)


class Ranks:
    """What `smallest` asks of torch.distributed, by threads."""

    def __init__(self, number: int) -> None:
        self.number, self.own = number, threading.local()
        self.barrier, self.slots = threading.Barrier(number, timeout=120), [torch.empty(0)] * number

    def get_rank(self) -> int:
        return self.own.rank

    def get_world_size(self) -> int:
        return self.number

    def all_gather(self, found: list[Tensor], value: Tensor) -> None:
        self.slots[self.own.rank] = value.clone()
        self.barrier.wait()
        for into, slot in zip(found, self.slots):
            into.copy_(slot)
        self.barrier.wait()

    def all_reduce(self, value: Tensor) -> None:
        parts = [torch.empty_like(value) for _ in range(self.number)]
        self.all_gather(parts, value)
        value.copy_(sum(parts))

    def run(self, work: Callable[[int], list[Tensor]]) -> list[list[Tensor]]:
        def member(rank: int) -> list[Tensor]:
            self.own.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self.number) as threads:
            return list(threads.map(member, range(self.number)))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 1)])
def test_shards_lose_what_the_whole_loses_with_ties_and_copies(share, sizes, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randint(1, 5, (n,), generator=generator).float() for n in (13, 8, 9)]
    ends = (5, 0)  # of what the first rank has of two; the third is on both
    ranks = Ranks(2)
    monkeypatch.setattr(_units, "dist", ranks)

    def on(rank: int) -> list[Tensor]:
        parts = [score[:first] if rank == 0 else score[first:] for score, first in zip(scores, ends)]
        return _units.smallest([*parts, scores[2]], sizes, share, [rank, rank, 0])

    marks, (first, second) = _units.smallest(scores, sizes, share), ranks.run(on)
    for k in range(2):
        assert torch.equal(torch.cat([first[k], second[k]]), marks[k])
    assert torch.equal(first[2], marks[2])
    assert torch.equal(second[2], marks[2])
    total = sum(size * len(score) for size, score in zip(sizes, scores))
    assert 0 <= round(share * total) - sum(int(m.sum()) * size for m, size in zip(marks, sizes)) < max(sizes)


def _sharded(rank: int) -> None:
    """Callbacks save whole masks, once: they load into shards."""
    from torch.distributed.fsdp import fully_shard

    from attsvm.optim._callbacks import _whole_state

    for make in MAKERS.values():
        parts = []
        for _ in range(2):
            model = network()
            fully_shard(model)
            optimizer = make(param_groups(model, 1.5))
            parts.append((model, optimizer, GradualPruning(optimizer, 0.8, STEPS, every=3)))
        for state in (parts[0][2].state_dict(), _whole_state(parts[0][2])):
            parts[1][2].load_state_dict(state)  # nothing is pruned yet, and no optimizer has states
            assert not parts[1][2].masks()
            assert not parts[1][1].state
        fit_pruned(*parts[0], range(20))
        saved = _whole_state(parts[0][2])
        assert {i: type(mask) for i, mask in saved["masks"].items()} == {0: Tensor, 1: Tensor}
        parts[1][2].load_state_dict(saved)
        for (_, a), (_, b) in zip(*(part[2].masks().items() for part in parts), strict=True):
            assert torch.equal(a.to_local(), b.to_local())
        assert parts[1][2].count == 20


def _partly_sharded(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    for options in ({}, {"scope": "layer"}, {"structure": "row", "sparsity": 0.5}):
        zeros = []
        for how in ("whole", "first layer", "all", "copies"):
            model = network(torch.bfloat16)  # with many weights of one size
            if how in ("first layer", "all"):
                fully_shard(model[0] if how == "first layer" else model, mesh=mesh)
            trained = nn.parallel.DistributedDataParallel(model) if how == "copies" else model
            optimizer = AdamW(param_groups(trained), lr=1e-2)
            settings = {"sparsity": 0.8, "total_steps": STEPS, "every": 3, **options}
            fit_pruned(trained, optimizer, GradualPruning(optimizer, **settings), range(STEPS))
            weights = [layer.weight.detach() for layer in (model[0], model[2])]
            zeros.append([getattr(weight, "full_tensor", lambda w=weight: w)() == 0 for weight in weights])
        assert all(torch.equal(a, b) for parts in zeros[1:] for a, b in zip(zeros[0], parts))
    columns = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Shard(1)]))
    for structure in ("row", "2:4"):
        with pytest.raises(AttsvmError, match=r"whole rows|multiple of 4"):
            GradualPruning(SGD([columns], lr=0.1), 0.5, 10, structure=structure, params=[columns])


def _parts_of_the_state(rank: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    for kind in (AdamW, MirrorAdam):
        model = nn.parallel.DistributedDataParallel(network())
        optimizer = ZeroRedundancyOptimizer(param_groups(model, 1.5), kind, lr=1e-2)
        pruning = GradualPruning(optimizer, 0.8, STEPS, every=3)
        fit_pruned(model, optimizer, pruning, range(STEPS))
        assert pruning.achieved() == pytest.approx(0.8, abs=1 / 160)
        for weight, mask in pruning.masks().items():
            states = [v for v in optimizer.optim.state.get(weight, {}).values() if v.shape == weight.shape]
            assert not any(value[~mask].any() for value in (weight.detach(), *states))


@pytest.mark.slow
def test_zeros_are_exact_where_every_process_has_a_part_of_the_state() -> None:
    run_pair(_parts_of_the_state)


@pytest.mark.slow
def test_parameters_may_be_sharded_in_part_and_have_ties() -> None:
    run_pair(_partly_sharded)


@pytest.mark.slow
def test_whole_masks_load_into_shards() -> None:
    run_pair(_sharded)


def with_closure(by_name: bool, model: nn.Module, optimizer: Optimizer, pruning: GradualPruning) -> None:
    def closure() -> Tensor:
        model.zero_grad()
        loss = loss_of(model, pruning.count)
        loss.backward()
        return loss

    for _ in range(STEPS):
        assert isinstance(optimizer.step(closure=closure) if by_name else optimizer.step(closure), Tensor)
        pruning.step()


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_that_a_closure_makes_are_masked_too(by_name) -> None:
    """As Lightning's does. In Muon's orthogonal factor those of pruned entries would steer the others."""

    def muon(groups: list[dict]) -> Optimizer:
        return torch.optim.Muon([group for group in groups if group["name"] == "matrices"], lr=1e-2)

    plain, other = start(muon), start(muon)
    fit_pruned(*plain, range(STEPS))
    with_closure(by_name, *other)
    assert same(plain[0], other[0])
