"""MirrorDescent and MirrorAdam inside the rest of PyTorch, as a user would write it."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import lr_scheduler
from two_processes import run_pair

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent
from attsvm.optim._mirror_adam import _fused_mirror_adam, _single_tensor_mirror_adam
from attsvm.optim._mirror_descent import _fused_mirror_descent, _single_tensor_mirror_descent
from attsvm.optim._mirror_map import inverse_exponent, signed_power
from attsvm.optim._tables import table_of

MAKERS = {
    "descent": lambda params, **options: MirrorDescent(params, **({"lr": 0.05, "momentum": 0.9} | options)),
    "normalised": lambda params, **options: MirrorDescent(params, **({"lr": 0.05, "normalize": "group"} | options)),
    "adam": lambda params, **options: MirrorAdam(params, **({"lr": 0.01} | options)),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
make_all = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def network(dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device, dtype)


def batch(step: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    X = torch.randn(32, 8, generator=generator)
    return X.to(device), (X[:, 0] > 0).long().to(device)


def loss_of(model: nn.Module, step: int) -> Tensor:
    parameter = next(model.parameters())
    X, y = batch(step, str(parameter.device))
    return nn.functional.cross_entropy(model(X.to(parameter.dtype)).float(), y)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    loss = torch.tensor(0.0)
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
    return loss.item()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


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


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1), lambda params: MirrorAdam(params, p=1.5)),
        (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), lambda params: MirrorDescent(params, p=1.5)),
        (lambda params: torch.optim.SGD(params, lr=0.05), lambda params: MirrorDescent(params, normalize="tensor")),
        (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), lambda params: MirrorAdam(params)),
    ],
    ids=["AdamW", "SGD with momentum", "SGD", "SGD to MirrorAdam"],
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
    step = torch.compile(optimizer.step)
    compiled = []
    for k in range(6):
        for m, o, advance in ((model, optimizer, step), (eager, reference, reference.step)):
            m.zero_grad(set_to_none=False)
            loss_of(m, k).backward()
            advance()
            o.param_groups[0]["lr"] *= 0.9
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert compiled[0] > 0
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
        optimizer = (MirrorAdam if adam else MirrorDescent)(groups, lr=lr)
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


@needs_cuda
@make_all
@pytest.mark.parametrize("path", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_cuda_graph_replays_follow_the_lr(make, path):
    model, eager = network(device="cuda"), network(device="cuda")
    lr = torch.tensor(0.05, device="cuda")
    optimizer = make(model.parameters(), lr=lr, capturable=True, **path)
    reference = make(eager.parameters(), lr=0.05, foreach=False)
    X, y = batch(0, "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for k in range(5):
        lr.fill_(0.05 / (k + 1))
        graph.replay()
    for k in range(8):
        reference.param_groups[0]["lr"] = 0.05 / max(k - 2, 1)
        reference.zero_grad()
        nn.functional.cross_entropy(eager(X), y).backward()
        reference.step()
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@needs_cuda
@make_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [1.1, 1.75, 2, 3])
def test_fused_takes_many_sizes_and_layouts(make, p, dtype):
    shapes = [(1,), (3, 5), (1000,), (0, 4), (1025,), (64, 33), (1 << 20,), ((1 << 20) + 3,), *[(17,)] * 300]

    def start() -> list[nn.Parameter]:
        generator = torch.Generator("cuda").manual_seed(0)
        draw = lambda s: 0.1 * torch.randn(s, generator=generator, device="cuda")  # noqa: E731
        params = [nn.Parameter(draw(s).to(dtype)) for s in shapes]
        params[5] = nn.Parameter(draw((33, 64)).to(dtype).t())  # dense, but not in order
        params[2] = nn.Parameter(draw(1001).to(dtype)[1:].detach())  # not aligned
        return params

    fused, plain = start(), start()
    optimizers = make(fused, p=p, fused=True), make(plain, p=p, foreach=False)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(3):
        for a, b in zip(fused, plain):
            a.grad = torch.randn(a.shape, generator=generator, device="cuda").to(dtype)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(fused, plain):
        theta, expected = (o.state[x].get("mirror", x).detach() for o, x in zip(optimizers, (a, b)))
        torch.testing.assert_close(theta, expected, rtol=2e-6, atol=1e-7)
        weight = signed_power(theta.double(), inverse_exponent(p))
        torch.testing.assert_close(a.detach().double(), weight, rtol=max(1.5e-6, torch.finfo(dtype).eps), atol=1e-37)


@needs_cuda
@make_all
def test_fused_and_other_steps_may_take_turns(make):
    torch.manual_seed(0)
    w = nn.Parameter(0.1 * torch.randn(5000, device="cuda"))
    exact = nn.Parameter(w.detach().double())
    optimizer, reference = make([w], p=1.1), make([exact], p=1.1, foreach=False)
    for step in range(40):
        fused = step // 10 % 2 == 0
        optimizer.param_groups[0]["fused"] = fused
        w.grad = torch.randn_like(w)
        exact.grad = w.grad.double()
        optimizer.step()
        reference.step()
        assert ("rest" in optimizer.state[w]) != fused
    assert (w.detach() - exact.detach()).norm() < 1e-6 * exact.detach().norm()


@needs_cuda
def test_fused_refuses_a_parameter_whose_memory_format_has_changed():
    w = nn.Parameter(torch.randn(4, 3, 2, 2, device="cuda"))
    optimizer = MirrorAdam([w], fused=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    w.data = w.data.contiguous(memory_format=torch.channels_last)
    with pytest.raises(AttsvmError, match="memory format"):
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert optimizer.state[w]["mirror"].stride() == w.stride()


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


@needs_cuda
def test_fused_is_the_default_on_cuda_and_can_be_switched_off(monkeypatch):
    seen = []
    for module, functions in (
        ("attsvm.optim._mirror_descent", (_fused_mirror_descent, _single_tensor_mirror_descent)),
        ("attsvm.optim._mirror_adam", (_fused_mirror_adam, _single_tensor_mirror_adam)),
    ):
        for f in functions:
            spy = lambda *a, f=f, **k: (seen.append("fused" in f.__name__), f(*a, **k))  # noqa: E731
            monkeypatch.setattr(f"{module}.{f.__name__}", spy)
    for cls in (MirrorDescent, MirrorAdam):
        for options, expected in (({}, [True]), ({"fused": False}, []), ({"foreach": False}, [False])):
            seen.clear()
            model = network(device="cuda")
            fit(model, cls(model.parameters(), **options), range(1))
            assert seen == expected


def _ddp(rank: int) -> None:
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


def _fsdp2(rank: int, folder: str) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

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

    for name, make in MAKERS.items():
        for foreach in (False, True):
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
        again = make(resumed.parameters(), foreach=True)
        weights, state = get_state_dict(resumed, again)
        loaded = {"model": weights, "optimizer": state}
        dcp.load(loaded, checkpoint_id=f"{folder}/{name}")
        set_state_dict(resumed, again, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        steps(resumed, again, range(3, 5))
        for a, b in zip(model.parameters(), resumed.parameters()):
            assert torch.equal(a.to_local(), b.to_local())


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_with_two_processes(wrap, tmp_path):
    if wrap == "ddp":
        run_pair(_ddp)
    else:
        run_pair(_fsdp2, str(tmp_path))


@pytest.mark.parametrize("sizes", [[1], [16], [17, 1], [70, 16, 15, 1, 33]])
def test_tables_say_where_tensors_and_their_blocks_are(sizes):
    block = 16
    rows = [(torch.empty(size), torch.empty(size)) for size in sizes]
    table = table_of(rows, rows[0][0], block, capturable=False)
    assert table is not None
    assert table.rows.tolist() == [[a.data_ptr(), b.data_ptr(), a.numel()] for a, b in rows]
    blocks = [[i, place] for i, size in enumerate(sizes) for place in range(-(-size // block))]
    assert table.blocks.tolist() == blocks
    assert table.first.tolist() == [[i for i, _ in blocks].index(k) for k in range(len(sizes))] + [len(blocks)]
