"""Exact zeros: masks, soft thresholds, and weights that others edit."""

import copy

import pytest
import torch
from small_task import DEVICES, MAKERS, fit, network, same
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from attsvm.errors import AttsvmError
from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent
from attsvm.optim._edits import signature
from attsvm.optim._mirror_map import means

FORMS = [
    *[("cpu", {"foreach": foreach}) for foreach in (True, False)],
    *([("cpu", {"fused": True})] if compiler() else []),
    *([("cuda", {"fused": True})] if "cuda" in DEVICES else []),
]
forms = pytest.mark.parametrize(("device", "form"), FORMS)
# Code for a CPU is compiled for each p and dtype: every p in one of them will do.
PRECISIONS = [
    (device, form, p, dtype)
    for device, form in FORMS
    for k, p in enumerate((1.1, 1.5, 2, 3))
    for dtype in (torch.float32, torch.bfloat16)
    if device != "cpu" or "fused" not in form or (k % 2 == 0) == (dtype == torch.float32)
]
in_all_precisions = pytest.mark.parametrize(("device", "form", "p", "dtype"), PRECISIONS)


def gradients(steps: int, size: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(steps)]


def pruned_entries(optimizer: torch.optim.Optimizer, w: Tensor, mask: Tensor) -> Tensor:
    values = [w.detach(), *(v for name, v in optimizer.state[w].items() if name != "mask" and v.shape == w.shape)]
    return torch.cat([value[~mask] for value in values])


@pytest.mark.parametrize("by", ["tensor", "group"])
@in_all_precisions
def test_the_norm_of_a_step_does_not_see_pruned_entries(by, p, dtype, device, form):
    size = 6000
    mask = (torch.arange(size) % 3 > 0).to(device)
    results = []
    for pruned in (0.0, 100.0, torch.nan):
        w = nn.Parameter((0.1 * gradients(1, size)[0]).to(device, dtype))
        optimizer = MirrorDescent([w], lr=0.1, p=p, normalize=by, **form)
        optimizer.set_mask(w, mask)
        w.grad = torch.where(mask, gradients(1, size, seed=1)[0].to(device), pruned).to(dtype)
        optimizer.step()
        results.append(w.detach())
    assert results[0].isfinite().all()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", ["descent", "adam"])
@in_all_precisions
def test_pruned_entries_are_exact_zeros_and_others_do_not_notice(name, p, dtype, device, form):
    make, size = MAKERS[name], 6000
    masked, free = (nn.Parameter((0.1 * gradients(1, size)[0]).to(device, dtype)) for _ in range(2))
    optimizer, other = make([masked], p=p, **form), make([free], p=p, **form)
    mask = (torch.arange(size) % 3 > 0).to(device)
    for step, grad in enumerate(gradients(6, size, seed=1)):
        if step == 2:
            optimizer.set_mask(masked, mask)
        grad = torch.where((torch.arange(size) == 0) & (step > 2), torch.nan, grad)  # also nan is kept out
        for w, o in ((masked, optimizer), (free, other)):
            w.grad = grad.to(device, dtype)
            o.step()
        if step >= 2:
            assert not pruned_entries(optimizer, masked, mask).any()
            assert torch.equal(masked[mask], free[mask])


@pytest.mark.parametrize("name", ["descent", "adam"])
def test_a_masked_training_resumes_bit_for_bit(name, tmp_path):
    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        return model, MAKERS[name](model.parameters())

    model, optimizer = start()
    fit(model, optimizer, range(3))
    weight = model[0].weight
    optimizer.set_mask(weight, weight.abs() > weight.abs().median())
    fit(model, optimizer, range(3, 6))
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "saved")
    fit(model, optimizer, range(6, 12))

    resumed, again = start()
    weights, state = torch.load(tmp_path / "saved", weights_only=True)
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    fit(resumed, again, range(6, 12))
    assert same(model, resumed)
    assert again.state[resumed[0].weight]["mask"].dtype == torch.bool
    assert (resumed[0].weight == 0).float().mean() == 0.5


def test_masks_are_of_the_parameters_shape_and_can_be_taken_away():
    w = nn.Parameter(torch.ones(4))
    optimizer = MirrorAdam([w], p=2)
    with pytest.raises(AttsvmError, match="shape"):
        optimizer.set_mask(w, torch.ones(3))
    for wrong in ([1], torch.ones(4).numpy()):
        with pytest.raises(AttsvmError, match=r"must be a tensor of shape \(4,\), but got (list|ndarray)"):
            optimizer.set_mask(w, wrong)
    with pytest.raises(AttsvmError, match="no parameter"):
        optimizer.set_mask(torch.ones(4), torch.ones(4))
    optimizer.set_mask(w, torch.tensor([1, 0, 1, 0]))
    assert w.tolist() == [1, 0, 1, 0]
    optimizer.set_mask(w, None)
    w.grad = torch.ones(4)
    optimizer.step()
    assert (w != 0).all()


def proximal_adamw(w: Tensor, grads: list[Tensor], lr: float, l1: float, weight_decay: float) -> Tensor:
    """An independent one, in float64."""
    w, m, v = w.double(), torch.zeros(w.shape).double(), torch.zeros(w.shape).double()
    for t, grad in enumerate(grads, start=1):
        g = grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * weight_decay * w - lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        w = w.sign() * (w.abs() - lr * l1).clamp(min=0)
    return w


@pytest.mark.parametrize("of", ["mirror", "weight"])
@forms
def test_p_2_with_l1_is_proximal_adamw(of, device, form):
    start, grads = 0.1 * gradients(1, 5000)[0], gradients(100, 5000, seed=2)
    exact = proximal_adamw(start, grads, 1e-3, 0.4, 0.01)
    w = nn.Parameter(start.to(device))
    optimizer = MirrorAdam([w], lr=1e-3, p=2, weight_decay=0.01, l1=0.4, l1_of=of, **form)
    for grad in grads:
        w.grad = grad.to(device)
        optimizer.step()
    found = w.detach().cpu().double()
    assert (found - exact).norm() < 1e-6 * exact.norm()
    assert 0.001 < (exact == 0).double().mean() < 0.9
    assert ((found == 0) != (exact == 0)).double().mean() < 1e-3  # where it ends next to the threshold


@pytest.mark.parametrize("p", [1.1, 1.5, 3])
@forms
def test_l1_of_the_mirror_is_the_composite_mirror_step(p, device, form):
    # argmin ⟨g, w⟩ + μ‖w‖₁ + D_ψ(w, w_k)/η satisfies 0 ∈ g + μ∂‖w‖₁ + (θ − θ_k)/η
    lr, mu, size = 1.5, 0.7, 6000
    before = gradients(1, size)[0].double()
    w = nn.Parameter(before.float().to(device))
    w.grad = gradients(1, size, seed=3)[0].to(device)
    MirrorDescent([w], lr=lr, p=p, l1=mu, l1_of="mirror", **form).step()
    after = w.detach().cpu().double()
    theta = [x.sign() * x.abs() ** (p - 1) for x in (before, after)]
    slope = w.grad.cpu().double() + (theta[1] - theta[0]) / lr
    zero = after == 0
    assert 0.05 < zero.double().mean() < 0.95
    assert (slope[zero].abs() <= mu + 1e-5).all()
    torch.testing.assert_close(slope[~zero], -mu * after[~zero].sign(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("p", [1.1, 1.5, 3])
@forms
def test_l1_of_the_weight_is_its_soft_threshold(p, device, form):
    start, grads = 0.1 * gradients(1, 6000)[0], gradients(1, 6000, seed=4)
    plain, sparse = (nn.Parameter(start.to(device, copy=True)) for _ in range(2))
    optimizer = MirrorAdam([sparse], lr=1e-2, p=p, l1=3.0, l1_of="weight", **form)
    for w, o in ((plain, MirrorAdam([plain], lr=1e-2, p=p, **form)), (sparse, optimizer)):
        w.grad = grads[0].to(device)
        o.step()
    expected = torch.nn.functional.softshrink(plain.detach().double(), 3e-2)
    torch.testing.assert_close(sparse.detach().double(), expected, rtol=2e-5, atol=1e-7)
    theta = optimizer.state[sparse]["mirror"].double()
    torch.testing.assert_close(theta, expected.sign() * expected.abs() ** (p - 1), rtol=1e-4, atol=1e-6)
    assert 0.01 < (sparse == 0).double().mean() < 0.9


@pytest.mark.parametrize("p", [1.1, 1.5])
@forms
def test_l1_of_the_weight_loses_no_digits_over_many_steps(p, device, form):
    # Next to the threshold a weight is a small difference of larger numbers, and θ = |w|^(p−1) is steep at 0, so a few
    # entries err by more; errors are measured in units of |w| + threshold.
    lr, l1, size, steps = 1e-3, 0.5, 6000, 50
    start, grads = 0.1 * gradients(1, size)[0], gradients(steps, size, seed=8)
    found = []
    for dtype, path in ((torch.float32, form), (torch.float64, {"foreach": False})):
        w = nn.Parameter(start.to(device, dtype, copy=True))
        optimizer = MirrorAdam([w], lr=lr, p=p, l1=l1, l1_of="weight", **path)
        for grad in grads:
            w.grad = grad.to(device, dtype)
            optimizer.step()
        found.append(w.detach().double())
    error = (found[0] - found[1]).abs() / (found[1].abs() + lr * l1)
    assert error.median() < 1e-6
    assert error.quantile(0.999) < 1e-4
    assert 0.001 < (found[1] == 0).double().mean() < 0.9


@pytest.mark.parametrize("options", [{"l1": -1.0}, {"l1": float("nan")}, {"l1_of": "theta"}])
def test_l1_is_checked(options):
    with pytest.raises(AttsvmError, match="l1"):
        MirrorAdam([nn.Parameter(torch.ones(2))], **options)


def edit(w: Tensor) -> None:
    w.mul_((torch.arange(w.numel(), device=w.device).view(w.shape) % 2).to(w.dtype))


@pytest.mark.parametrize("size", [10, 9000, 9001])  # gathered or alone
@pytest.mark.parametrize("name", ["descent", "adam"])
@in_all_precisions
def test_weights_edited_through_data_stay_edited(name, p, dtype, size, device, form):
    # as those edited in a way that the version counter sees
    results = []
    for data in (False, True):
        w = nn.Parameter((0.1 * gradients(1, size)[0]).to(device, dtype))
        optimizer = MAKERS[name]([w], p=p, **form)
        for step, grad in enumerate(gradients(4, size, seed=5)):
            w.grad = grad.to(device, dtype)
            if step == 2:
                with torch.no_grad():
                    edit(w.data if data else w)
            optimizer.step()
        results.append(w.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["descent", "adam"])
@pytest.mark.parametrize("p", [1.3, 1.5])  # with signatures in the fused step, and without
@pytest.mark.parametrize("size", [10, 9000])  # gathered or alone
@forms
def test_weights_that_exchange_their_memory_keep_their_values(name, p, size, device, form):
    # as copies of the values do, which the version counter sees
    start = [0.1 * g.to(device) for g in gradients(3, size, seed=7)]
    results = []
    for data in (False, True):
        a, b = (nn.Parameter(w.clone()) for w in start[:2])
        optimizer = MAKERS[name]([a, b], p=p, **form)
        for step, grad in enumerate(gradients(8, size, seed=8)):
            a.grad, b.grad = grad.to(device), -grad.to(device)
            values = [w.data if data else w.detach().clone() for w in (a, b)]
            if step == 2:
                values.reverse()
            elif step == 4:  # an average is tried out, and trained for two steps
                aside, values[0] = values[0], start[2].clone()
            elif step == 6:
                values[0] = aside
            for w, value in zip((a, b), values):
                if data:
                    w.data = value
                else:
                    w.detach().copy_(value)
            optimizer.step()
        results.append(torch.cat([a.detach(), b.detach()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["descent", "adam", "muon"])
@pytest.mark.parametrize("idle", [0, 2])
@forms
def test_a_step_that_left_one_out_can_be_taken_back(name, idle, device, form):
    """Weights are then as a step before left them, but mirror variables are not."""
    results = []
    for data in (False, True):
        params = [nn.Parameter(0.1 + g.abs().view(20, 30).to(device)) for g in gradients(3, 600, seed=3)]
        optimizer = MAKERS[name](params, p=1.3, **form)
        for step, grad in enumerate(gradients(4, 600, seed=4)):
            if step == 2:
                saved = [w.detach().clone() for w in params]
            elif step == 3:
                for w, value in zip(params, saved):
                    (w.data if data else w.detach()).copy_(value)
            for k, w in enumerate(params):
                w.grad = None if step == 2 and k == idle else grad.view(20, 30).to(device)
            optimizer.step()
        results.append(torch.cat([w.detach() for w in params]))
    assert torch.equal(*results)


@pytest.mark.filterwarnings("ignore:after")
@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(("device", "form", "p", "dtype"), [case for case in PRECISIONS if case[2] != 2])
def test_a_nan_written_into_a_weight_stays_there_alone(dtype, p, data, device, form):
    clean, spoiled = (nn.Parameter((0.1 * gradients(1, 600)[0]).to(device, dtype)) for _ in range(2))
    optimizers = [MirrorAdam([w], p=p, **form) for w in (clean, spoiled)]
    for step, grad in enumerate(gradients(4, 600, seed=9)):
        if step == 2:
            with torch.no_grad():
                (spoiled.data if data else spoiled)[7] = torch.nan
        for w, optimizer in zip((clean, spoiled), optimizers):
            w.grad = grad.to(device, dtype)
            optimizer.step()
    theta = optimizers[1].state[spoiled]["mirror"]
    assert spoiled[7].isnan()
    assert theta[7].isnan()
    others = torch.arange(600, device=device) != 7
    assert torch.equal(spoiled[others], clean[others])
    # and it is no edit again and again: where θ and weight are both nan they agree
    assert means(theta, spoiled.detach(), p).all()
    with torch.no_grad():
        spoiled[7] = 0.1
    optimizers[1].step()
    assert spoiled.isfinite().all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adam", [False, True])
def test_edits_hold_in_a_compiled_step(adam):
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        w = nn.Parameter(0.1 * gradients(1, 300)[0])
        optimizer = (MirrorAdam if adam else MirrorDescent)([w], lr=torch.tensor(1e-3), p=1.5)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for k, grad in enumerate(gradients(4, 300, seed=6)):
            w.grad = grad
            if k == 3:
                edit(w.data)
            step()
        results.append(w.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w[torch.randperm(len(w))],
        lambda w: w[:, torch.randperm(w.shape[1])],
        lambda w: -w,
        lambda w: torch.where(torch.arange(w.numel()).view(w.shape) == 777, 0, w),
        lambda w: torch.where(w == w.flatten()[-1], 0, w),
    ],
    ids=["rows", "columns", "signs", "one entry", "the last entry"],
)
@pytest.mark.parametrize("shape", [(128, 96), (129, 131), (30, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_edit_is_noticed(change, shape, dtype):
    torch.manual_seed(0)
    w = torch.randn(shape, dtype=dtype)
    before = signature(w)
    assert torch.equal(signature(w.t().contiguous().t()), before)
    assert not torch.equal(signature(change(w)), before)


def test_an_optimizer_with_masks_can_be_copied():
    model = network()
    optimizer = MAKERS["adam"](model.parameters())
    fit(model, optimizer, range(2))
    optimizer.set_mask(model[0].weight, torch.zeros(16, 8))
    twin, copied = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (twin, copied)):
        fit(m, o, range(2, 4))
    assert same(model, twin)
    assert not twin[0].weight.any()


def test_a_mask_before_the_first_step_leaves_whole_states():
    """torch.distributed.checkpoint takes a step of lr = 0 to make states only where there are none."""
    model = network()
    optimizer = MAKERS["adam"](model.parameters())
    optimizer.set_mask(model[0].weight, torch.zeros(16, 8))
    states = get_optimizer_state_dict(model, optimizer)["state"]
    assert {*states} == {name for name, _ in model.named_parameters()}
    assert all({"exp_avg", "exp_avg_sq", "step"} <= {*state} for state in states.values())
    assert all(param.grad is None for param in model.parameters())
