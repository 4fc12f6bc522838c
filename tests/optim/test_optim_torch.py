"""MirrorDescent and MirrorAdam inside the rest of PyTorch, as a user would write it."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch.distributed as dist
from small_task import DEVICES, MAKERS, batch, fit, loss_of, make_all, network, same
from torch import Tensor, nn
from torch.optim import lr_scheduler
from two_processes import run_pair

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, _fused, from_torch, starting_lr


@make_all
@pytest.mark.parametrize("device", DEVICES)
def test_trains(make, device):
    model = network(device=device)
    assert fit(model, make(model.parameters(), p=1.5), range(100)) < 0.35 < loss_of(network(device=device), 0)


@make_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer_first", [False, True])
def test_resume_from_a_checkpoint_is_bit_equal(make, dtype, device, optimizer_first):
    model = network(dtype, device)
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias], "p": 2}]
    optimizer = make(groups)
    fit(model, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    fit(model, optimizer, range(5, 10))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network(dtype, device)
    again = make([{"params": [resumed[0].weight, resumed[2].weight]}, {"params": [resumed[0].bias, resumed[2].bias]}])
    for part in ("optimizer", "model") if optimizer_first else ("model", "optimizer"):
        (again if part == "optimizer" else resumed).load_state_dict(saved[part])
    assert again.param_groups[1]["p"] == 2
    assert again.state[resumed[0].weight]["mirror"].dtype == (dtype if dtype == torch.float64 else torch.float32)
    fit(resumed, again, range(5, 10))
    assert same(model, resumed)
    for a, b in zip(model.parameters(), resumed.parameters()):
        assert optimizer.state[a].keys() == again.state[b].keys()
        assert all(torch.equal(optimizer.state[a][name], again.state[b][name]) for name in optimizer.state[a])


@make_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_alike(make, dtype, how):
    model = network(dtype)
    optimizer = make(model.parameters())
    fit(model, optimizer, range(3))
    pair = (model, optimizer)
    other, copied = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    fit(model, optimizer, range(3, 6))
    fit(other, copied, range(3, 6))
    assert same(model, other)


def test_checkpoints_of_an_older_version_load():
    model = network()
    optimizer = MirrorDescent(model.parameters(), lr=0.1)
    fit(model, optimizer, range(2))
    saved = optimizer.state_dict()
    for name in ("maximize", "foreach", "fused", "capturable", "nesterov", "normalize"):
        del saved["param_groups"][0][name]
    optimizer.load_state_dict(saved)
    fit(model, optimizer, range(2, 4))


@make_all
def test_hooks_may_change_a_loaded_state(make):
    model = network(torch.bfloat16)
    optimizer = make(model.parameters())
    fit(model, optimizer, range(2))
    saved = optimizer.state_dict()

    def rename(_: torch.optim.Optimizer, state: dict) -> dict:
        entries = {key: {n: v + 1 if n == "mirror" else v for n, v in e.items()} for key, e in state["state"].items()}
        return {**state, "state": entries}

    optimizer.register_load_state_dict_pre_hook(rename)
    before = optimizer.state[model[0].weight]["mirror"].clone()
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.state[model[0].weight]["mirror"], before + 1)


SCHEDULERS = {
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=20),
    "warm-up from 0": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(step / 5, 1)),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 5), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[5]
    ),
}


@make_all
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_schedulers(make, schedule, tensor_lr):
    model = network()
    optimizer = make(model.parameters(), lr=torch.tensor(0.05) if tensor_lr else 0.05)
    scheduler = schedule(optimizer)
    rates, inertia = [], []
    for step in range(19):
        fit(model, optimizer, range(step, step + 1))
        scheduler.step()
        group = optimizer.param_groups[0]
        rates.append(float(group["lr"]))
        inertia.append(group["betas"][0] if "betas" in group else group["momentum"])
    assert len(set(rates)) > 3
    if isinstance(scheduler, lr_scheduler.OneCycleLR):
        assert len(set(inertia)) > 5
    assert all(param.isfinite().all() for param in model.parameters())


@make_all
@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler_skips_a_step_with_inf_and_unscales_the_others(make, device):
    model, plain = network(device=device), network(device=device)
    optimizer, reference = make(model.parameters()), make(plain.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step == 2:
            model[0].weight.grad[0, 0] = torch.inf
            before = copy.deepcopy(model)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if step == 2:
            assert same(model, before)
        else:
            fit(plain, reference, range(step, step + 1))
    # Powers of two scale without rounding.
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore")
@make_all
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_step_follows_a_tensor_lr_without_recompiling(make, device):
    model, eager = network(device=device), network(device=device)
    optimizer = make(model.parameters(), lr=torch.tensor(0.05, device=device), p=1.5)
    reference = make(eager.parameters(), lr=0.05, p=1.5)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # The code that is made of the other steps is compared with float64 below.
    step = torch.compile(optimizer.step, backend="inductor" if make is MAKERS["normalised"] else "eager")
    compiled = []
    for k in range(6):
        for m, o, advance in ((model, optimizer, step), (eager, reference, reference.step)):
            m.zero_grad(set_to_none=False)
            loss_of(m, k).backward()
            advance()
            for group in o.param_groups:
                group["lr"] *= 0.9
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert (compiled[0] > 0) == (make is not MAKERS["muon"])  # whose step stays as it is
    assert compiled[-1] == compiled[1]
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_step_agrees_with_float64_after_100_steps(adam, device):
    exponents = (1.1, 1.5, 2, 3)
    torch.manual_seed(0)
    start = [0.1 * torch.randn(500) for _ in exponents]
    gradients = [[torch.randn(500) for _ in exponents] for _ in range(100)]
    results = []
    for dtype in (torch.float32, torch.float64):
        params = [nn.Parameter(w.to(device, dtype, copy=True)) for w in start]
        groups = [{"params": [param], "p": p} for param, p in zip(params, exponents)]
        lr = torch.tensor(1e-3, device=device, dtype=torch.float64)
        optimizer = MirrorAdam(groups, lr=lr) if adam else MirrorDescent(groups, lr=lr, momentum=0.9)
        torch._dynamo.reset()
        step = torch.compile(optimizer.step) if dtype == torch.float32 else optimizer.step
        for grads in gradients:
            for param, grad in zip(params, grads):
                param.grad = grad.to(device, dtype)
            step()
        results.append([optimizer.state[param].get("mirror", param).detach().double() for param in params])
        results.append([param.detach().double() for param in params])
    for p, theta, W, exact_theta, exact_W in zip(exponents, *results):
        assert (theta - exact_theta).norm() < 1e-6 * exact_theta.norm()
        assert (W - exact_W).norm() < 1e-6 * exact_W.norm(), p


def test_loaded_state_takes_the_layout_of_the_parameter():
    w = nn.Parameter(torch.randn(3, 4).t())
    optimizer = MirrorDescent([w])
    w.grad = torch.ones_like(w)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["mirror"] = saved["state"][0]["mirror"].contiguous()
    optimizer.load_state_dict(saved)
    assert optimizer.state[w]["mirror"].stride() == w.stride()
    assert torch.equal(optimizer.state[w]["mirror"], saved["state"][0]["mirror"])


def _ddp(rank: int, least: int) -> None:
    _fused.LEAST = least
    for make in MAKERS.values():
        model = nn.parallel.DistributedDataParallel(network())
        optimizer = make(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            X, y = batch(step)
            half = slice(16 * rank, 16 * rank + 16)
            nn.functional.cross_entropy(model(X[half]), y[half]).backward()
            optimizer.step()
        alone = network()
        fit(alone, make(alone.parameters()), range(3))
        for a, b in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def _fsdp2(rank: int, least: int, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _fused.LEAST = least
    forms = [False, True] if least > 1 else [None]
    mesh = init_device_mesh("cpu", (2,))

    def sharded() -> nn.Sequential:
        model = network()
        model.append(nn.Linear(2, 1, bias=False))  # one row for two ranks: one of them holds nothing
        fully_shard(model, mesh=mesh)
        return model

    def loss(model: nn.Module, step: int) -> Tensor:
        X, y = batch(step)
        return nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], y.float())

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, which: range) -> None:
        for step in which:
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()

    model, alone = sharded(), network().append(nn.Linear(2, 1, bias=False))
    for a, b in zip(model.parameters(), alone.parameters()):
        b.data.copy_(a.full_tensor())
    for p in (1.1, 3.0):
        assert starting_lr(1e-3, p, model.parameters()) == pytest.approx(starting_lr(1e-3, p, alone.parameters()))
        assert math.isfinite(starting_lr(1e-3, p, model[-1].weight))  # of which one rank has nothing

    for name, make in MAKERS.items():
        for foreach in forms:
            model = sharded()
            optimizer = make(model.parameters(), foreach=foreach)
            steps(model, optimizer, range(3))
            alone = network()
            alone.append(nn.Linear(2, 1, bias=False))
            steps(alone, make(alone.parameters(), foreach=foreach), range(3))
            for a, b in zip(model.parameters(), alone.parameters()):
                torch.testing.assert_close(a.full_tensor(), b.detach(), rtol=1e-4, atol=1e-6)

        # A distributed checkpoint, and on from it.
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{name}")
        steps(model, optimizer, range(3, 5))
        resumed = sharded()
        again = make(resumed.parameters(), foreach=forms[-1])
        weights, state = get_state_dict(resumed, again)
        loaded = {"model": weights, "optimizer": state}
        dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
        set_state_dict(resumed, again, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        steps(resumed, again, range(3, 5))
        for a, b in zip(model.parameters(), resumed.parameters()):
            assert torch.equal(a.to_local(), b.to_local())

        # The whole state of a sharded parameter is not that of its shard.
        saved = again.state_dict()
        saved["state"][0] = {key: t.full_tensor() if t.ndim else t for key, t in saved["state"][0].items()}
        with pytest.raises(AttsvmError, match=r"the parameter has \(16, 8\) with \(8, 8\) on this rank"):
            again.load_state_dict(saved)

    for moments_of in ("weight", "mirror"):
        both = sharded(), network().append(nn.Linear(2, 1, bias=False))
        for model in both:
            before = torch.optim.AdamW(model.parameters(), lr=1e-3)
            steps(model, before, range(2))
            after = from_torch(before, model, p=1.1, moments_of=moments_of)
            steps(model, after, range(2, 4))
            assert after.state[model[0].weight]["step"] == 4
        for a, b in zip(*(model.parameters() for model in both)):
            torch.testing.assert_close(a.full_tensor(), b.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
@pytest.mark.parametrize("least", [_fused.LEAST, 1])  # by default the compiled kernel is for large groups
def test_with_two_processes(wrap, least, tmp_path):
    if wrap == "ddp":
        run_pair(_ddp, least)
    else:
        run_pair(_fsdp2, least, str(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_exponents_are_compiled_in_one_process():
    """The second p is a symbol to the compiler; 0.01·1.5 − 0.01 is not 0.01·0.5 in floating point."""
    torch._dynamo.reset()
    for p in (1.1, 1.5):
        w = torch.nn.Parameter(torch.ones(5))
        w.grad = torch.ones(5)
        torch.compile(MirrorAdam([w], lr=torch.tensor(1e-3), p=p, weight_decay=0.01).step)()
        assert (w < 1).all()
