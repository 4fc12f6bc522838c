"""MirrorAdam with the moments of the gradient with respect to θ: powerprop under Adam."""

import copy

import pytest
import torch
from mirror_steps import error
from small_task import DEVICES, fit, network, same
from torch import Tensor, nn

from attsvm import AttsvmError
from attsvm.native import compiler
from attsvm.optim import GradualPruning, MirrorAdam, from_torch, param_groups
from attsvm.optim._mirror_map import slope_of_weight

FORMS = [(device, {"foreach": foreach}) for device in DEVICES for foreach in (True, False)]
FUSED = [(device, {"fused": True}) for device in DEVICES if device != "cpu" or compiler()]
forms = pytest.mark.parametrize(("device", "form"), FORMS + FUSED, ids=str)
SIZES = [5, 300, 40]
STEPS, LR = 30, 0.01


def start() -> Tensor:
    w = torch.randn(sum(SIZES), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return w + 0.1 * w.sign()  # away from 0, where roundings are large in θ


def gradient(w: Tensor, step: int) -> Tensor:
    noise = torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step + 1))
    return (3 * w).sin() + noise.to(w)


def trained(p: float, device: str = "cpu", dtype: torch.dtype = torch.float64, **options) -> Tensor:
    params = [nn.Parameter(part.to(device, dtype, copy=True)) for part in start().split(SIZES)]
    optimizer = MirrorAdam(params, **({"lr": LR, "p": p, "weight_decay": 0.0, "moments_of": "mirror"} | options))
    for step in range(STEPS):
        whole = gradient(torch.cat([param.detach() for param in params]), step)
        for param, grad in zip(params, whole.split(SIZES)):
            param.grad = grad
        optimizer.step()
    return torch.cat([param.detach().cpu().double() for param in params])


def adam_beneath(alpha: float, maximize: bool = False) -> Tensor:
    """torch's Adam on φ, where w = φ|φ|^(α−1), by autograd."""
    phi = (start().sign() * start().abs() ** (1 / alpha)).requires_grad_()
    adam = torch.optim.Adam([phi], lr=LR, maximize=maximize)
    for step in range(STEPS):
        adam.zero_grad()
        w = phi * phi.abs() ** (alpha - 1)
        w.backward(gradient(w.detach(), step))
        adam.step()
    return (phi * phi.abs() ** (alpha - 1)).detach()


@pytest.mark.parametrize("alpha", [1.25, 2, 2.5, 4, 10])
@forms
def test_it_is_adam_on_the_parameter_of_powerprop(device, form, alpha):
    expected = adam_beneath(alpha)
    if "fused" not in form:
        assert error(trained(1 + 1 / alpha, device, **form), expected) < 1e-11
    assert error(trained(1 + 1 / alpha, device, torch.float32, **form), expected) < 1e-5
    assert error(trained(1 + 1 / alpha, device, moments_of="weight"), expected) > 1e-4  # so they differ


@pytest.mark.parametrize("options", [{"keep_mirror": False}, {"maximize": True}, {"lr": torch.tensor(LR)}], ids=str)
@pytest.mark.parametrize("p", [1.1, 1.4, 1.5])
@forms
def test_so_it_is_in_every_form(device, form, p, options):
    expected = adam_beneath(1 / (p - 1), maximize="maximize" in options)
    assert error(trained(p, device, torch.float32, **form, **options), expected) < 1e-5


@pytest.mark.parametrize("p", [1.1, 1.5])
@forms
def test_moments_of_low_precision_weights_are_of_their_float32_mirror(device, form, p):
    assert error(trained(p, device, torch.bfloat16, lr=1e-4, **form), trained(p, lr=1e-4)) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@forms
def test_at_p_2_both_gradients_are_the_same(device, form, dtype):
    options = {"weight_decay": 0.1, "l1": 0.1, **form}
    assert torch.equal(*(trained(2, device, dtype, moments_of=of, **options) for of in ("weight", "mirror")))


@pytest.mark.parametrize(
    "options",
    [{"weight_decay": 0.3}, {"l1": 0.3}, {"l1": 0.3, "l1_of": "weight"}],
    ids=lambda options: next(iter(options)),
)
@forms
def test_decay_and_thresholds_stay_outside_of_the_moments(device, form, options):
    # With gradient 0 they alone move the weight, as they do whatever the moments are of.
    found = []
    for of in ("weight", "mirror"):
        w = nn.Parameter(start().float().to(device))
        w.grad = torch.zeros_like(w)
        optimizer = MirrorAdam([w], lr=LR, p=1.25, moments_of=of, **form, **options)
        for _ in range(5):
            optimizer.step()
        found.append(w.detach())
    assert torch.equal(*found)
    assert not torch.equal(found[0].cpu(), start().float())


@pytest.mark.parametrize("p", [1.1, 1.4, 2])
@forms
def test_only_at_p_2_a_weight_leaves_0(device, form, p):
    w = nn.Parameter(torch.tensor([0.0, 0.5, -0.0, -0.5], device=device))
    optimizer = MirrorAdam([w], lr=LR, p=p, weight_decay=0.0, moments_of="mirror", **form)
    for _ in range(10):
        w.grad = torch.ones_like(w)
        optimizer.step()
    assert (w[::2] != 0).all() if p == 2 else not w[::2].any()
    assert w.isfinite().all()
    assert (w[1::2] < torch.tensor([0.5, -0.5], device=device)).all()


@pytest.mark.parametrize("a", [1.5, 2.0, 10.0, 100.0])
def test_the_slope_is_that_of_the_mirror_map(a):
    size = torch.logspace(-3, 3, 50, dtype=torch.float64) ** (1 / a)
    theta = torch.cat([-size, size]).requires_grad_()
    w = theta * theta.abs() ** (a - 1)
    (slope,) = torch.autograd.grad(w.sum(), theta)
    torch.testing.assert_close(slope_of_weight(theta.detach(), a), slope, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope_of_weight(w.detach(), a, of_weight=True), slope, rtol=1e-12, atol=0)
    assert not slope_of_weight(torch.zeros(3), a).any()
    assert not slope_of_weight(torch.zeros(3), a, of_weight=True).any()


@forms
def test_an_edited_weight_has_the_slope_of_its_new_value(device, form):
    # the first step after an edit is that of an optimizer that never saw another weight, with the same moments
    found = []
    for edited in (True, False):
        w = nn.Parameter(torch.full((4,), 0.5 if edited else 0.1, device=device))
        optimizer = MirrorAdam([w], lr=LR, p=1.25, moments_of="mirror", **form)
        w.grad = torch.zeros_like(w)
        optimizer.step()
        w.data.fill_(0.1)
        w.grad = torch.ones_like(w)
        optimizer.step()
        found.append(optimizer.state[w]["exp_avg"])
    torch.testing.assert_close(found[0], torch.full_like(found[0], 0.1 * 4 * 0.1**0.75), rtol=1e-5, atol=0)
    torch.testing.assert_close(*found)


@forms
def test_pruned_weights_stay_0_and_a_run_resumes_bit_for_bit(device, form, tmp_path):
    def begin() -> tuple[nn.Module, MirrorAdam, GradualPruning]:
        model = network(device=device)
        optimizer = MirrorAdam(param_groups(model, 1.1), lr=LR, moments_of="mirror", **form)
        return model, optimizer, GradualPruning(optimizer, 0.9, 20, every=2)

    def go_on(model: nn.Module, optimizer: MirrorAdam, pruning: GradualPruning, steps: range) -> None:
        for step in steps:
            fit(model, optimizer, range(step, step + 1))
            pruning.step()

    model, optimizer, pruning = begin()
    go_on(model, optimizer, pruning, range(17))
    pruned = model[0].weight == 0
    torch.save([model.state_dict(), optimizer.state_dict(), pruning.state_dict()], tmp_path / "saved")
    go_on(model, optimizer, pruning, range(17, 25))
    assert pruning.achieved() == pytest.approx(0.9, abs=0.01)
    assert torch.equal(model[0].weight == 0, pruned)
    assert not optimizer.state[model[0].weight]["exp_avg"][pruned].any()

    resumed = begin()
    for part, state in zip(resumed, torch.load(tmp_path / "saved", weights_only=True)):
        part.load_state_dict(state)
    go_on(*resumed, range(17, 25))
    assert same(model, resumed[0])


def test_regrown_weights_move():
    model = network()
    optimizer = MirrorAdam(param_groups(model, 1.1), lr=LR, moments_of="mirror")
    pruning = GradualPruning(optimizer, 0.5, 20, initial=0.5, start=0, every=5, scope="layer", regrow=0.3)
    fit(model, optimizer, range(4))
    before = model[0].weight.detach() == 0
    fit(model, optimizer, range(4, 5))
    pruning.count = 4
    pruning.step()
    grown = model[0].weight.detach().clone()
    back = before & (grown != 0)
    assert back.any()
    fit(model, optimizer, range(5, 8))
    assert (model[0].weight[back] != grown[back]).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("p", [1.1, 1.4])
def test_a_compiled_step_is_the_same(p):
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        w = nn.Parameter(start().float())
        optimizer = MirrorAdam([w], lr=torch.tensor(LR), p=p, moments_of="mirror")
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for k in range(4):
            w.grad = gradient(w.detach(), k)
            step()
        found.append(w.detach().clone())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-8)


def test_the_option_is_of_a_group():
    model = network()
    groups = param_groups(model, 1.1, moments_of="mirror", matrices={"moments_of": "weight"})
    assert [group["moments_of"] for group in MirrorAdam(groups).param_groups] == ["weight", "mirror"]
    optimizer = MirrorAdam(param_groups(model, 1.1), moments_of="mirror")
    assert "moments_of: mirror" in repr(optimizer)
    again = MirrorAdam(param_groups(model, 1.1))
    again.load_state_dict(optimizer.state_dict())
    for other in (optimizer, again, copy.deepcopy(optimizer)):
        assert all(group["moments_of"] == "mirror" for group in other.param_groups)


def test_a_matrix_at_0_is_named_at_any_p_below_2():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[1].weight)
    param_groups(model, 1.75)
    with pytest.warns(UserWarning, match=r"all entries of 1.weight are 0 and hardly move"):
        param_groups(model, 1.75, moments_of="mirror")


def test_what_is_refused():
    w = nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    with pytest.raises(AttsvmError, match='moments_of must be "weight" or "mirror"'):
        MirrorAdam([w], moments_of="theta")
    with pytest.raises(AttsvmError, match='moments_of="mirror" needs p ≤ 2, but got p = 3'):
        MirrorAdam([w], p=3, moments_of="mirror")
    optimizer = MirrorAdam([w], moments_of="mirror")
    with pytest.raises(AttsvmError, match="needs p ≤ 2"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "p": 2.5})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["p"] = 3  # between two steps
    with pytest.raises(AttsvmError, match="needs p ≤ 2"):
        optimizer.step()
    assert torch.equal(w, torch.ones(2))


def test_a_state_saved_before_the_option_existed_has_moments_of_the_weight():
    model = network()
    optimizer = MirrorAdam(model.parameters())
    fit(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for group in (*saved["param_groups"], *optimizer.param_groups):
        del group["moments_of"]
    optimizer.__setstate__(optimizer.__getstate__())  # as pickle does
    assert optimizer.param_groups[0]["moments_of"] == "weight"
    fit(model, optimizer, range(2, 3))
    again = MirrorAdam(model.parameters())
    again.load_state_dict(saved)
    assert again.param_groups[0]["moments_of"] == "weight"


@pytest.mark.parametrize("way", ["load_state_dict", "from_torch", "groups of AdamW", "earlier version"])
def test_moments_of_the_weight_are_translated_by_the_chain_rule(way):
    """Adam's direction m/√v, of either gradient, is then the same."""
    model, p = network(), 1.25
    options = {"p": p, "moments_of": "mirror"}
    if way == "earlier version":
        before = MirrorAdam(model.parameters(), p=p)
    else:
        params = [{"params": list(model.parameters()), **options}] if way == "groups of AdamW" else model.parameters()
        before = torch.optim.AdamW(params)
    fit(model, before, range(3))
    kept = copy.deepcopy(before.state_dict())
    if way == "from_torch":
        after = from_torch(before, model, **options)
    else:
        after, saved = MirrorAdam(model.parameters(), **options), before.state_dict()
        if way == "earlier version":
            saved["param_groups"][0].pop("moments_of")
        after.load_state_dict(saved)
    for i, w in enumerate(model.parameters()):
        slope = w.detach().abs() ** (2 - p) / (p - 1) if w.ndim == 2 or way != "from_torch" else 1.0
        old, new = kept["state"][i], after.state[w]
        torch.testing.assert_close(new["exp_avg"], old["exp_avg"] * slope)
        torch.testing.assert_close(new["exp_avg_sq"], old["exp_avg_sq"] * slope**2)
        assert all(torch.equal(before.state[w][name], old[name]) for name in old)  # the old optimizer may go on
    fit(model, after, range(3, 5))
    moments = [after.state[w]["exp_avg"].clone() for w in model.parameters()]
    after.load_state_dict(after.state_dict())  # its own state is not translated again
    assert all(torch.equal(after.state[w]["exp_avg"], m) for w, m in zip(model.parameters(), moments))
