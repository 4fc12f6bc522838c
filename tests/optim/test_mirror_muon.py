"""MirrorMuon: Muon on the parameter of powerprop for hidden matrices, Adam on it for the others."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from small_task import fit, network, same
from torch import Tensor, nn

from attsvm import AttsvmError
from attsvm.models import GPT
from attsvm.optim import GradualPruning, MirrorAdam, MirrorMuon, param_groups
from attsvm.optim._mirror_muon import orthogonal

STEPS = 12


def gradients(*shape: int, count: int = STEPS, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def trained(w: nn.Parameter, optimizer: torch.optim.Optimizer, grads: list[Tensor]) -> Tensor:
    for grad in grads:
        w.grad = grad.to(w.dtype)
        optimizer.step()
    return w.detach()


def plain_factor(x: Tensor) -> Tensor:
    """The orthogonal factor as Muon's authors write it, of one matrix."""
    wide = x if x.shape[0] <= x.shape[1] else x.T
    wide = wide / wide.norm()
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide if wide.shape == x.shape else wide.T


@pytest.mark.parametrize("alpha", [1, 2, 4])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6)], ids=str)
def test_hidden_matrices_are_muon_on_the_parameter_of_powerprop(alpha: int, shape: tuple[int, int]) -> None:
    """W = φ|φ|^(α−1) with the gradient of φ by autograd, and Muon's step of φ by its plain formula."""
    start, lr = 0.3 * gradients(*shape, count=1)[0], 0.02
    phi = (start.sign() * start.abs() ** (1 / alpha)).requires_grad_()
    buffer = torch.zeros(shape, dtype=torch.float64)
    for grad in gradients(*shape):
        (g,) = torch.autograd.grad((phi * phi.abs() ** (alpha - 1) * grad).sum(), phi)
        buffer = 0.95 * buffer + 0.05 * g
        with torch.no_grad():
            phi -= lr * 0.2 * max(shape) ** 0.5 * plain_factor(0.95 * buffer + 0.05 * g)
    expected = (phi * phi.abs() ** (alpha - 1)).detach()
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        w = nn.Parameter(start.to(dtype, copy=True))
        found = trained(w, MirrorMuon([w], lr=lr, p=1 + 1 / alpha), gradients(*shape))
        assert (found - expected).abs().max() < tolerance
    assert (expected - start).abs().max() > 0.02


def test_the_momentum_may_be_of_the_weights_gradient() -> None:
    start, lr = 0.3 * gradients(6, 9, count=1)[0], 0.02
    theta, buffer = start.sign() * start.abs().sqrt(), torch.zeros(6, 9, dtype=torch.float64)
    for grad in gradients(6, 9):
        buffer = 0.95 * buffer + 0.05 * grad
        theta -= lr * 0.2 * 3 * plain_factor(0.95 * buffer + 0.05 * grad)
    w = nn.Parameter(start.clone())
    found = trained(w, MirrorMuon([w], lr=lr, p=1.5, moments_of="weight"), gradients(6, 9))
    torch.testing.assert_close(found, theta * theta.abs())


def test_without_a_kept_mirror_variable_it_makes_the_same_steps() -> None:
    start, found = 0.3 + 0.1 * gradients(6, 9, count=1)[0], []
    for kept in (True, False):
        w = nn.Parameter(start.float())
        optimizer = MirrorMuon([w], lr=0.02, p=1.5, keep_mirror=kept)
        found.append(trained(w, optimizer, gradients(6, 9)).clone())
        assert ("mirror" in optimizer.state[w]) == kept
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_0_makes_no_step_and_what_is_empty_is_left() -> None:
    w, nothing = nn.Parameter(torch.eye(4)), nn.Parameter(torch.empty(0, 4))
    optimizer = MirrorMuon([w, nothing], lr=0.1, p=1.5)
    w.grad, nothing.grad = torch.zeros_like(w), torch.zeros_like(nothing)
    optimizer.step()
    assert torch.equal(w.detach(), torch.eye(4))


def test_at_p_2_it_is_muon_of_torch() -> None:
    start, grads = gradients(24, 16, count=1)[0].float(), gradients(24, 16)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    found = trained(mine, MirrorMuon([mine], lr=0.03, p=2, weight_decay=0.1), grads)
    muon = torch.optim.Muon([theirs], lr=0.03, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    expected = trained(theirs, muon, grads)  # its products are in bf16
    assert (found - expected).norm() < 0.02 * (expected - start).norm()


def test_long_matrices_take_adams_step_of_the_same_parameter() -> None:
    start, lr, alpha = 0.3 * gradients(2, 40, count=1)[0], 0.02, 2
    phi = nn.Parameter(start.sign() * start.abs().sqrt())
    adam = torch.optim.Adam([phi], lr=lr)
    for grad in gradients(2, 40):
        phi.grad = alpha * phi.detach().abs() * grad
        adam.step()
    w = nn.Parameter(start.clone())
    optimizer = MirrorMuon([w], lr=1.0, head_lr=lr, p=1.5)
    assert [(group["name"], group["muon"]) for group in optimizer.param_groups] == [("heads", False)]
    found = trained(w, optimizer, gradients(2, 40))
    torch.testing.assert_close(found, (phi * phi.abs()).detach())


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (6, 2, 3, 1)], ids=str)
def test_orthogonal_factors_have_even_singular_values(shape: tuple[int, ...]) -> None:
    """Also where matrices of other sizes, and the transposed one, are among them."""
    grads = [*gradients(*shape, count=2), *gradients(4, 9, count=1), *gradients(9, 4, count=1)]
    for grad, found in zip(grads, orthogonal(grads, 8)):
        assert found.shape == grad.shape
        u, _, vh = torch.linalg.svd(grad.flatten(1), full_matrices=False)
        scaled = found.flatten(1) / (0.2 * max(grad.flatten(1).shape) ** 0.5)
        assert torch.allclose(u.T @ scaled @ vh.T, torch.diag((u.T @ scaled @ vh.T).diag()), atol=1e-8)
        assert ((torch.linalg.svdvals(scaled) - 1).abs() < 0.35).all()


def test_what_takes_which_step() -> None:
    model = GPT(vocabulary=400, width=16, layers=1, heads=2, length=8, tied=False)
    optimizer = MirrorMuon(param_groups(model, p=1.5, lr=8e-3, head_lr=4e-3, embeddings={"lr": 2e-3}))
    found = {group["name"]: group for group in optimizer.param_groups}
    assert {name: (group["muon"], group["lr"], group["p"]) for name, group in found.items()} == {
        "attention": (True, 8e-3, 1.5),
        "matrices": (True, 8e-3, 1.5),
        "heads": (False, 4e-3, 1.5),
        "embeddings": (False, 2e-3, 2.0),
        "vectors": (False, 8e-3, 2.0),
    }
    assert found["heads"]["param_names"] == ["head.weight"]
    every = [param for group in optimizer.param_groups for param in group["params"]]
    assert sorted(map(id, every)) == sorted(id(param) for param in model.parameters())
    pruned = GradualPruning(optimizer, 0.5, total_steps=10).params
    assert any(param is model.head.weight for param in pruned)
    assert not MirrorMuon([{"params": [nn.Parameter(torch.ones(4, 4))], "name": "vectors"}]).param_groups[0]["muon"]
    # A convolution is a matrix of its outputs; a group may be kept out.
    conv, linear = nn.Conv2d(4, 8, 3), nn.Linear(8, 8)
    optimizer = MirrorMuon([{"params": conv.parameters()}, {"params": linear.parameters(), "muon": False}])
    assert [(len(group["params"]), group["muon"]) for group in optimizer.param_groups] == [
        (1, True),
        (1, False),
        (2, False),
    ]


def test_a_model_may_come_without_groups() -> None:
    """Biases at 0 move all the same."""
    model = network()
    nn.init.zeros_(model[0].bias)
    optimizer = MirrorMuon(model.parameters(), lr=0.02, p=1.5)
    found = [(group.get("name"), group["muon"], group["p"], len(group["params"])) for group in optimizer.param_groups]
    assert found == [(None, True, 1.5, 2), ("vectors", False, 2.0, 2)]
    fit(model, optimizer, range(3))
    assert (model[0].bias != 0).all()


def test_a_run_resumes_bit_for_bit_and_a_pickled_optimizer_takes_more_groups(tmp_path) -> None:
    model = network()
    optimizer = MirrorMuon(param_groups(model, p=1.5), lr=0.02)
    fit(model, optimizer, range(4))
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "saved")
    fit(model, optimizer, range(4, 9))
    resumed = network()
    again = MirrorMuon(param_groups(resumed, p=1.5), lr=0.02)
    weights, state = torch.load(tmp_path / "saved", weights_only=True)
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    fit(resumed, again, range(4, 9))
    assert same(model, resumed)

    fit(model, optimizer, range(9, 10))
    pickled = pickle.loads(pickle.dumps(again))
    more = nn.Linear(8, 8)
    pickled.add_param_group({"params": list(more.parameters())})
    assert [group["muon"] for group in pickled.param_groups[-2:]] == [True, False]


def test_a_pruned_run_resumes_bit_for_bit_with_exact_zeros(tmp_path) -> None:
    def start() -> tuple[nn.Sequential, MirrorMuon, GradualPruning]:
        model = network()
        optimizer = MirrorMuon(param_groups(model, p=1.5), lr=0.02)
        return model, optimizer, GradualPruning(optimizer, 0.6, total_steps=12, start=0.1, end=0.8, every=2)

    def advance(model: nn.Sequential, optimizer: MirrorMuon, pruning: GradualPruning, steps: range) -> None:
        for step in steps:
            fit(model, optimizer, range(step, step + 1))
            pruning.step()

    model, optimizer, pruning = start()
    advance(model, optimizer, pruning, range(6))
    torch.save([model.state_dict(), optimizer.state_dict(), pruning.state_dict()], tmp_path / "saved")
    advance(model, optimizer, pruning, range(6, 12))
    again = start()
    for part, state in zip(again, torch.load(tmp_path / "saved", weights_only=True)):
        part.load_state_dict(state)
    advance(*again, range(6, 12))
    assert same(model, again[0])
    assert pruning.achieved() == pytest.approx(0.6, abs=0.01)
    for w, mask in pruning.masks().items():
        states = [v for name, v in optimizer.state[w].items() if name != "mask" and v.shape == w.shape]
        assert len(states) >= 2
        assert all((value[~mask] == 0).all() for value in [w.detach(), *states])


def test_states_of_other_optimizers_are_refused() -> None:
    w = nn.Parameter(torch.ones(4, 4))
    for other in (MirrorAdam([w]), torch.optim.Muon([w])):
        with pytest.raises(AttsvmError, match="takes its own states, but"):
            MirrorMuon([w]).load_state_dict(other.state_dict())
    with pytest.raises(AttsvmError, match="takes its own states"):
        MirrorAdam([w]).load_state_dict(torch.optim.Muon([w]).state_dict())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"momentum": -0.1}, "momentum must be"),
        ({"ns_steps": 0}, "ns_steps must be a whole number"),
        ({"muon": "yes"}, "muon must be True, False or None"),
        ({"head_lr": -1.0}, "lr must be"),
        ({"p": 3}, "p ≤ 2"),
    ],
    ids=str,
)
def test_options_are_checked(option: dict, message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        MirrorMuon([nn.Parameter(torch.ones(4, 4))], **option)


def test_an_edited_p_is_checked_and_a_group_may_be_empty() -> None:
    w = nn.Parameter(torch.ones(4, 4))
    optimizer = MirrorMuon([w])
    optimizer.add_param_group({"params": []})
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
    w.grad = torch.ones_like(w)
    optimizer.step()
    optimizer.param_groups[0]["p"] = 3
    with pytest.raises(AttsvmError, match="p ≤ 2"):
        optimizer.step()


def makers() -> list[Callable[[nn.Parameter], torch.optim.Optimizer]]:
    def torch_muon(w: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Muon([{"params": [w], "name": "matrices"}], lr=0.02)

    def mirror_muon(p: float) -> Callable[[nn.Parameter], torch.optim.Optimizer]:
        return lambda w: MirrorMuon([{"params": [w], "name": "matrices"}], lr=0.02, p=p)

    return [torch_muon, mirror_muon(1.5), mirror_muon(2)]


@pytest.mark.parametrize("make", makers(), ids=["torch", "p = 1.5", "p = 2"])
def test_gradients_of_pruned_entries_do_not_steer_the_others(make) -> None:
    start = 0.3 * gradients(12, 8, count=1)[0].float()
    found = []
    for scale in (1.0, 100.0):  # of the gradients of what is pruned
        w = nn.Parameter(start.clone())
        optimizer = make(w)
        pruning = GradualPruning(optimizer, 0.5, total_steps=10, start=0.0, end=0.0)
        mask = pruning.masks()[w].clone()
        for grad in gradients(12, 8, count=5):
            w.grad = torch.where(mask, grad, scale * grad).float()
            optimizer.step()
            pruning.step()
        assert (w[~mask] == 0).all()
        assert (w[mask] != start[mask]).all()
        found.append(w.detach().clone())
    assert torch.equal(*found)


def test_an_exchange_still_sees_the_gradients_of_pruned_entries() -> None:
    w = nn.Parameter(0.3 * gradients(12, 8, count=1)[0].float())
    optimizer = torch.optim.AdamW([{"params": [w], "name": "matrices"}], lr=1e-3)
    pruning = GradualPruning(
        optimizer, 0.5, total_steps=20, initial=0.5, start=0.0, end=0.75, every=4, regrow=0.3, scope="layer"
    )
    pruned = ~pruning.masks()[w]
    for k in range(1, 5):
        w.grad = torch.ones_like(w)
        optimizer.step()
        assert bool((w.grad[pruned] == 0).all()) == (k < 4)
        pruning.step()
    assert (pruned & pruning.masks()[w]).any()  # some have grown back


@pytest.mark.parametrize("form", [{}, {"foreach": False}, {"fused": True}, {"keep_mirror": False}], ids=str)
@pytest.mark.parametrize("data", [False, True])
def test_the_gradient_of_the_mirror_variable_is_at_the_edited_weight(data: bool, form: dict) -> None:
    w = nn.Parameter(gradients(6, 8, count=1)[0].float())
    optimizer = MirrorMuon([w], p=1.5, momentum=0.5, **form)
    trained(w, optimizer, gradients(6, 8, count=2))
    with torch.no_grad():
        (w.data if data else w)[:3] *= 0.01
    before, grad = w.detach().clone(), gradients(6, 8, count=1, seed=2)[0].float()
    buffer = optimizer.state[w]["momentum_buffer"].clone()
    trained(w, optimizer, [grad])
    expected = 0.5 * buffer + 0.5 * grad * 2 * before.abs().sqrt()  # dw/dθ = 2|θ|
    torch.testing.assert_close(optimizer.state[w]["momentum_buffer"], expected, rtol=1e-5, atol=1e-7)


def test_a_copy_steps_alone() -> None:
    model = network()
    optimizer = MirrorMuon(param_groups(model, p=1.5), lr=0.02)
    fit(model, optimizer, range(2))
    before = copy.deepcopy(model)
    other, copied = copy.deepcopy((model, optimizer))
    fit(other, copied, range(2, 4))
    assert same(model, before)
    assert not same(other, before)
