"""Mini-batches: which samples a step sees, and that nothing else changes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attsvm import AttsvmError, TokenData, sphere, train
from attsvm.data import LinearHead
from attsvm.dynamics import Adam, Batches, Decaying, Gaussian, Muon, Rule, Steepest, Trajectory
from attsvm.geometry import Lp

RULES: dict[str, Rule] = {
    "gd": Steepest(),
    "plain": Steepest(normalize=False, momentum=0.9),
    "sign": Steepest(Lp(math.inf)),
    "adam": Adam(),
    "muon": Muon(),
}


def seen(batches: Batches, trials: list[int], n: int, first: int, last: int) -> torch.Tensor:
    """How often each sample counts, as a share of its batch: (steps, n, B)."""
    return batches.log_weights(torch.tensor(trials), n, first, last).exp() / n


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_epoch_passes_through_all_samples_once(size: int) -> None:
    n, per_epoch = 7, -(-7 // size)
    shares = seen(Batches(size), [0, 5, 6], n, 1, 12 * per_epoch)
    torch.testing.assert_close(shares.sum(1), torch.ones(12 * per_epoch, 3, dtype=torch.float64))
    members = (shares > 0).reshape(12, per_epoch, n, 3)
    assert (members.sum(1) == 1).all()
    assert (members.sum(2)[:, :-1] == size).all()
    if per_epoch > 1:
        assert (members[0] != members[1]).any(), "epochs are shuffled anew"
        assert (members[..., 0] != members[..., 1]).any(), "every trial has its own order"


def test_draws_with_replacement_are_uniform_and_independent() -> None:
    n, size, steps = 5, 3, 4000
    shares = seen(Batches(size, replace=True, seed=3), [0, 1], n, 1, steps) * size
    torch.testing.assert_close(shares, shares.round())
    count = size * steps
    assert (shares.sum(0) - count / n).abs().max() < 5 * math.sqrt(count / n)
    # The variance of a count per step is that of a binomial: draws of one step do not know each other …
    variance = shares.var(0)
    torch.testing.assert_close(variance, torch.full_like(variance, size * (1 / n) * (1 - 1 / n)), rtol=0.1, atol=0)
    # … nor those of the next step and of the other trial.
    centred = shares - size / n
    for other in (centred.roll(1, 0), centred.flip(2)):
        assert (centred * other).mean(0).abs().max() < 5 * variance.max() / math.sqrt(steps)
    assert (seen(Batches(9, replace=True), [0], n, 1, 3).sum(1) - 1).abs().max() < 1e-12


def only(data: TokenData, samples: torch.Tensor) -> TokenData:
    """These samples of a single trial."""
    return replace(data, X=data.X[:, samples], Z=data.Z[:, samples], Y=data.Y[:, samples], mask=data.mask[:, samples])


@pytest.mark.parametrize("norm", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("name", RULES)
def test_a_step_is_that_of_its_samples_alone(name: str, norm: float) -> None:
    """Also in the tail, where the gradients of the samples left out are larger by hundreds of orders of magnitude."""
    data = sphere(5, 4, 6, trials=3, seed=4)
    start = norm * Gaussian(1.0).draw(data.trials, {"W": (6, 6)})["W"]
    for batches in (Batches(2, seed=1), Batches(1), Batches(4, replace=True)):
        run = train(data, rule=RULES[name], steps=1, lr=0.1, init={"W": start}, batch=batches, compile=False)
        shares = seen(batches, data.trials.tolist(), 5, 1, 1)[0]
        for b in range(3):
            # A sample drawn twice counts twice.
            chosen = torch.arange(5).repeat_interleave((shares[:, b] * batches.size).round().long())
            alone = only(data[b], chosen)
            lone = train(alone, rule=RULES[name], steps=1, lr=0.1, init={"W": start[b]}, compile=False)
            torch.testing.assert_close(run.W[b] - start[b], lone.W[0] - start[b], rtol=1e-9, atol=1e-11 * max(1, norm))


@pytest.mark.parametrize("parameterization", ["W", "KQ", "joint"])
def test_batches_do_not_depend_on_company_or_interruption(parameterization: str, tmp_path) -> None:
    data = sphere(4, 3, 4, trials=34, seed=1)
    batches = Batches(3, seed=7)
    options: dict[str, Any] = {
        "lr": 0.05,
        "init": Gaussian(0.1),
        "record": ["norm"],
        "compile": False,
        "batch": batches,
    }
    whole = train(data, "l2", parameterization, steps=270, **options)
    alone = train(data[33], "l2", parameterization, steps=270, **options)
    assert torch.equal(whole.W[33], alone.W[0])
    half = train(data, "l2", parameterization, steps=131, **options)
    half.save(tmp_path / "half.npz")
    loaded = Trajectory.load(tmp_path / "half.npz")
    assert loaded.settings["batch"] == {"kind": "Batches", "size": 3, "replace": False, "seed": 7}
    rest = train(data, "l2", parameterization, steps=270, resume=loaded, **options)
    assert torch.equal(rest.W, whole.W)
    other: dict[str, Any] = options | {"batch": 3}
    assert not torch.equal(train(data, "l2", parameterization, steps=270, **other).W, whole.W)


def test_all_samples_are_no_mini_batch() -> None:
    data = sphere(4, 3, 4, trials=2, seed=1)
    full = train(data, steps=50, compile=False)
    torch.testing.assert_close(train(data, steps=50, batch=4, compile=False).W, full.W, rtol=1e-12, atol=1e-13)
    assert "batch" not in full.settings


def test_the_head_of_a_joint_run_sees_the_same_batch() -> None:
    data = sphere(4, 3, 4, trials=1, seed=1)
    options: dict[str, Any] = {"steps": 1, "lr": 0.1, "init": Gaussian(0.1), "normalize": False, "compile": False}
    run = train(data, "l2", "joint", batch=2, **options)
    chosen = seen(Batches(2), [0], 4, 1, 1)[0, :, 0].nonzero()[:, 0]
    lone = train(only(data, chosen), "l2", "joint", **options)
    assert run.v is not None
    torch.testing.assert_close(run.v, lone.v, rtol=1e-12, atol=1e-14)


def test_ridge_is_coupled_weight_decay() -> None:
    """r‖W‖_F² adds 2rW to the gradient: torch's weight_decay = 2r of Adam (AdamW's is `decay`)."""
    data = sphere(3, 4, 5, trials=1, seed=1)
    assert isinstance(data.head, LinearHead)
    W = (0.3 * torch.randn(1, 5, 5, dtype=torch.float64)).requires_grad_()
    rule = Adam(0.9, 0.99, 1e-8)
    run = train(data, rule=rule, steps=30, lr=0.05, ridge=0.1, init={"W": W.detach().clone()}, compile=False)
    optimizer = torch.optim.Adam([W], lr=0.05, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.2)
    for _ in range(30):
        optimizer.zero_grad()
        s = torch.softmax(torch.einsum("bntd,bde,bnke->bnkt", data.X, W, data.Z), -1)
        out = data.Y * torch.einsum("bnkt,bntd,bhd->bnk", s, data.X, data.head.v)
        torch.nn.functional.softplus(-out).sum(2).mean(1).sum().backward()
        optimizer.step()
    torch.testing.assert_close(run.W, W.detach(), rtol=1e-9, atol=1e-11)


def test_decaying_steps() -> None:
    data = sphere(2, 3, 4, trials=2, seed=0)
    run = train(data, steps=9, lr=Decaying(0.3, 0.5), record=["W"], at=1, compile=False)
    sizes = torch.linalg.matrix_norm(run.records["W"].diff(dim=0))
    expected = 0.3 / torch.arange(1.0, 10.0, dtype=torch.float64).sqrt()
    torch.testing.assert_close(sizes, expected[:, None].expand(-1, 2))


def test_wrong_batches_are_refused(tmp_path) -> None:
    data = sphere(3, 3, 4, trials=1, seed=0)
    for batch, words in ((4, "at most"), (0, "batch"), (1.5, "batch")):
        with pytest.raises(AttsvmError, match=words):
            train(data, steps=1, batch=batch)  # type: ignore[arg-type]
    train(data, steps=3, batch=2, checkpoint=tmp_path / "run.npz")
    with pytest.raises(AttsvmError, match="another run"):
        train(data, steps=3, batch=1, checkpoint=tmp_path / "run.npz")
