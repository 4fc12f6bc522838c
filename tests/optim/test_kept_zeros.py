"""Zeros that stay: in longer runs, after other ways to load a state, beside masks of others; and when nothing steps."""

from typing import Any

import pytest
import torch
from small_task import fit_pruned, loss_of, network, same
from torch import Tensor, nn

from attsvm.errors import AttsvmError
from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, MirrorMuon, param_groups

OPTIMIZERS = {
    "MirrorAdam": lambda groups: MirrorAdam(groups, lr=1e-2),
    "MirrorDescent": lambda groups: MirrorDescent(groups, lr=1e-2, normalize="tensor"),
    "MirrorMuon": lambda groups: MirrorMuon(groups, lr=1e-2),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
}
with_all = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def start(make, steps: int = 20, **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer, GradualPruning]:
    model = network()
    optimizer = make(param_groups(model, 1.5))
    return model, optimizer, GradualPruning(optimizer, 0.8, steps, **options)


@with_all
def test_in_a_longer_run_nothing_comes_back(make) -> None:
    done, longer = start(make), start(make, steps=60)
    fit_pruned(*done, range(20))
    for new, old in zip(longer, done):
        new.load_state_dict(old.state_dict())
    for step in range(20, 60):
        fit_pruned(*longer, range(step, step + 1))
        assert longer[2].achieved() == pytest.approx(0.8, abs=1 / 160)


def test_masks_of_the_user_stay() -> None:
    model, optimizer, pruning = start(OPTIMIZERS["MirrorAdam"])
    kept = torch.rand_like(model[0].weight) < 0.4
    assert isinstance(optimizer, MirrorAdam)
    optimizer.set_mask(model[0].weight, kept)
    fit_pruned(model, optimizer, pruning, range(20))
    assert not model[0].weight[~kept].any()
    assert pruning.achieved() == pytest.approx(0.8, abs=1 / 160)


@pytest.mark.parametrize("make", list(OPTIMIZERS.values())[:3], ids=list(OPTIMIZERS)[:3])
def test_masks_come_back_where_the_state_of_the_optimizer_brings_none(make) -> None:
    """torch.distributed.checkpoint loads only what a fresh optimizer has."""
    stopped, whole = start(make), start(make)
    fit_pruned(*whole, range(20))
    fit_pruned(*stopped, range(14))
    state = stopped[1].state_dict()
    state["state"] = {k: {name: v for name, v in s.items() if name != "mask"} for k, s in state["state"].items()}
    resumed = start(make)
    resumed[0].load_state_dict(stopped[0].state_dict())
    resumed[1].load_state_dict(state)
    resumed[2].load_state_dict(stopped[2].state_dict())
    fit_pruned(*resumed, range(14, 20))
    assert resumed[2].achieved() == pytest.approx(0.8, abs=1 / 160)
    assert same(resumed[0], whole[0])


def test_between_the_steps_of_accelerate_nothing_is_counted() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, OPTIMIZERS["MirrorAdam"](param_groups(model, 1.5)))
    pruning = GradualPruning(optimizer, 0.8, 10)
    for step in range(40):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, step))
            optimizer.step()
            pruning.step()
            optimizer.zero_grad()
        assert pruning.count == (step + 1) // 4
    assert pruning.achieved() == pytest.approx(0.8, abs=1 / 160)


@pytest.mark.parametrize("steps", [20, 60, 90])
def test_short_runs_are_pruned_gradually_and_may_regrow(steps: int) -> None:
    plain, exchanging = start(OPTIMIZERS["AdamW"], steps), start(OPTIMIZERS["AdamW"], steps, regrow=0.3)
    shares = set()
    for step in range(steps):
        for run in (plain, exchanging):
            fit_pruned(*run, range(step, step + 1))
        shares.add(plain[2].achieved())
    assert len(shares) >= 9
    assert not torch.equal(plain[0][0].weight == 0, exchanging[0][0].weight == 0)
    with pytest.raises(AttsvmError, match="every smaller"):
        start(OPTIMIZERS["AdamW"], steps, regrow=0.3, every=50)


def test_less_zeros_than_at_the_start_are_refused() -> None:
    with pytest.raises(AttsvmError, match=r"initial must be at most sparsity, 0\.8"):
        start(OPTIMIZERS["AdamW"], initial=0.9)


def test_an_idle_matrix_is_no_error_of_an_exchange() -> None:
    model, idle = network(), nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(param_groups(nn.ModuleList([model, idle])), lr=1e-2)
    pruning = GradualPruning(optimizer, 0.8, 20, regrow=0.3)
    fit_pruned(model, optimizer, pruning, range(20))
    assert idle.weight.grad is None
    assert pruning.achieved() == pytest.approx(0.8, abs=1 / 200)


@pytest.mark.parametrize("options", [{}, {"structure": "row"}, {"scope": "relative"}], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_of_either_sign_counts_as_the_largest(options: dict[str, Any], sign: float) -> None:
    weights = [nn.Parameter(torch.randn(8, 8)) for _ in range(2)]
    weights[0].data[0, 0] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    optimizer = torch.optim.SGD(weights, lr=0.1)
    pruning = GradualPruning(optimizer, 0.25, 1, params=weights, start=0.0, end=0.0, **options)
    assert weights[0][0, 0].isnan()
    assert pruning.achieved() == pytest.approx(0.25)
    assert (weights[0] == 0).sum() < 32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_fused_step_reads_gradients_of_any_dtype(dtype: torch.dtype) -> None:
    from attsvm.native import compiler

    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    ended = []
    for fused, grad_dtype in ((False, torch.float32), (True, dtype)):
        w = nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        w.grad_dtype = None  # pyright: ignore[reportAttributeAccessIssue]
        w.grad = torch.full((8, 8), 0.5, dtype=grad_dtype)
        MirrorAdam([w], lr=1e-2, fused=fused).step()
        ended.append(w.detach())
    torch.testing.assert_close(*ended, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("p", [1.1, 1.37])
def test_another_default_device_is_not_that_of_the_step(how: dict[str, bool], p: float) -> None:
    from attsvm.native import compiler

    if "fused" in how and compiler() is None:
        pytest.skip("needs a C++ compiler")
    ended = []
    for device in ("cpu", "meta"):
        w = nn.Parameter(torch.linspace(-1, 1, 4096).reshape(64, 64))
        w.grad = torch.full((64, 64), 0.5)
        optimizer = MirrorAdam([w], p=p, lr=1e-2, **how)
        with torch.device(device):
            for _ in range(2):
                optimizer.step()
        ended.append(w.detach())
    assert torch.equal(*ended)


def test_options_that_mean_nothing_to_adamw_are_not_taken_from_its_state() -> None:
    model = network()
    adamw = torch.optim.AdamW(param_groups(model, 1.1))
    loss_of(model, 0).backward()
    adamw.step()
    ours = MirrorAdam(param_groups(model, 1.5))
    ours.load_state_dict(adamw.state_dict())
    assert [group["p"] for group in ours.param_groups] == [1.5, 2.0]


def test_lbfgs_ends_at_the_least_squares_of_what_is_left() -> None:
    """A history from before a change of the masks would lead it astray."""
    generator = torch.Generator().manual_seed(0)
    X, y = (torch.randn(30, k, generator=generator, dtype=torch.float64) for k in (8, 1))
    weight = nn.Parameter(torch.randn(1, 8, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.LBFGS([weight], line_search_fn="strong_wolfe", tolerance_change=0.0)
    pruning = GradualPruning(optimizer, 0.5, 20, every=1, params=[weight])

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (X @ weight.T - y).square().mean()
        value.backward()
        return value

    for _ in range(20):
        optimizer.step(loss)
        pruning.step()
    kept = pruning.masks()[weight][0]
    assert kept.sum() == 4
    assert not weight[0, ~kept].any()
    torch.testing.assert_close(weight[0, kept], torch.linalg.lstsq(X[:, kept], y).solution[:, 0])


def test_codes_of_quantised_moments_are_left_to_the_optimizer() -> None:
    class Quantised(torch.optim.SGD):
        """Its state of a weight's shape is codes, of which 0 means the least value."""

        def step(self, closure=None) -> None:
            super().step(closure)
            for weight in self.param_groups[0]["params"]:
                self.state[weight]["codes"] = torch.full(weight.shape, 127, dtype=torch.uint8)

    weight = nn.Parameter(torch.arange(1.0, 17.0).view(4, 4))
    optimizer = Quantised([weight], lr=0.1)
    pruning = GradualPruning(optimizer, 0.5, 4, start=0.0, end=0.0, params=[weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    pruning.step()
    assert (weight == 0).sum() == 8
    assert (optimizer.state[weight]["codes"] == 127).all()
