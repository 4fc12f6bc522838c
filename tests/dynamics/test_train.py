"""Runs: what they return, that they resume, and that trials do not meet."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import AttsvmError, LinearHead, Lp, MLPHead, Nuclear, TokenData, att_svm, solve, sphere
from attsvm.data import FunctionHead
from attsvm.dynamics import QUANTITIES, Gaussian, Growing, MirrorDescent, Near, Trajectory, train
from attsvm.dynamics._compile import wants_compiled
from attsvm.dynamics._step import Method
from attsvm.objective import LOSSES

MODELS = [("W", "l2"), ("W", "l1.75"), ("W", "l3"), ("W", "nuclear"), ("KQ", "nuclear"), ("joint", "l1.5")]


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(3, 4, 5, trials=20, seed=1)


def same(a: Trajectory, b: Trajectory) -> bool:
    records = all(torch.equal(x, b.records[name]) for name, x in a.records.items())
    return torch.equal(a.W, b.W) and torch.equal(a.steps, b.steps) and records


def plain_step(data: TokenData, W: torch.Tensor, p: float, lr: float) -> torch.Tensor:
    """ℓp-AttGD by autograd."""
    W = W.clone().requires_grad_()
    f = data.Y * data.head.value((data.attention(W) @ data.X)[:, :, :, None])[..., 0]
    torch.nn.functional.softplus(-f).sum(2).mean(1).sum().backward()
    with torch.no_grad():
        theta = W.sign() * W.abs() ** (p - 1) - lr * W.grad
        return theta.sign() * theta.abs() ** (1 / (p - 1))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_unnormalised_steps_are_mirror_descent(data: TokenData, p: float):
    W = Gaussian(1.0).draw(data.trials, {"W": (5, 5)})["W"]
    run = train(data, Lp(p), steps=5, lr=0.5, normalize=False, init={"W": W})
    for _ in range(5):
        W = plain_step(data, W, p, 0.5)
    assert torch.allclose(run.W, W, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_normalised_steps_have_dual_norm_lr(data: TokenData, p: float):
    geometry = Lp(p)
    run = train(data, geometry, steps=3, lr=lambda k: 0.1 * k, record=["W"], at=1)
    theta = geometry.mirror(run.records["W"])
    sizes = geometry.dual_norm(theta[1:] - theta[:-1])
    assert torch.allclose(sizes, torch.tensor([[0.1], [0.2], [0.3]], dtype=torch.float64).expand_as(sizes))


@pytest.mark.parametrize("r", [1e-3, 1e-200])
def test_ridge_adds_its_gradient(data: TokenData, r: float):
    start = Gaussian(1.0).draw(data.trials, {"K": (5, 5), "Q": (5, 5)})
    runs = [train(data, "l2", "KQ", steps=1, lr=1.0, normalize=False, init=start, ridge=x).factors for x in (0.0, r)]
    for plain, ridged, block in zip(*runs, start.values()):
        assert torch.allclose(ridged, plain - 2 * r * block, rtol=1e-12, atol=1e-14)
    # Where the loss's gradient is far below the ridge's, the step is along the block.
    far = {"K": 1e4 * torch.eye(5), "Q": 1e4 * solve(att_svm(data, data.optimal_tokens()), "l2").W.mT}
    pulled = train(data, "l2", "KQ", steps=1, lr=1.0, init=far, ridge=r).factors
    assert pulled is not None
    assert torch.allclose(pulled[0], (1 - 1 / far["K"].norm()) * far["K"].double())


def test_growing_steps_are_in_proportion_to_the_norm(data: TokenData):
    run = train(data, steps=200, lr=Growing(0.1, 4.0), record=["W", "norm"], at=[1, 149, 150])
    step = (run.records["W"][2] - run.records["W"][1]).flatten(1).norm(dim=1)
    assert torch.allclose(step, 4 * run.records["norm"][1] / 150)
    assert torch.allclose(run.records["norm"][0], torch.tensor(0.1, dtype=torch.float64))


def test_each_block_has_its_own_step_and_norm(data: TokenData):
    lr = {"K": 0.1, "Q": 0.3}
    start = Gaussian(1.0).draw(data.trials, {"K": (5, 2), "Q": (5, 2)})
    run = train(data, "nuclear", "KQ", steps=1, lr=lr, m=2, init=start)
    assert run.factors is not None
    for block, name in zip(run.factors, "KQ"):
        size = (block - start[name]).flatten(1).norm(dim=1)
        assert torch.allclose(size, torch.full_like(size, lr[name]))
    assert torch.allclose(run.W, run.factors[0] @ run.factors[1].mT)
    assert isinstance(run.geometry, Nuclear)


@pytest.mark.parametrize(("parameterization", "geometry"), MODELS)
def test_resumed_run_has_the_same_bits(data: TokenData, tmp_path, parameterization: str, geometry: str):
    lr = 0.1 if (parameterization, geometry) == ("W", "nuclear") else Growing(0.1, 2.0)  # W grows like e^θ
    options = {"lr": lr, "init": Gaussian(0.3), "record": ["loss", "W"], "at": 20}
    whole = train(data, geometry, parameterization, steps=60, **options)
    half = train(data, geometry, parameterization, steps=27, **options)
    for suffix in (".npz", ".safetensors"):
        half.save(tmp_path / f"half{suffix}")
        loaded = Trajectory.load(tmp_path / f"half{suffix}")
        assert same(half, loaded)
        assert loaded.geometry == half.geometry
        assert loaded.settings == half.settings
        assert same(whole, train(loaded.data, geometry, parameterization, steps=60, resume=loaded, **options))


BATCHES = {"alone": ([17], 0), "2": (slice(16, 18), 1), "16": (slice(2, 18), 15), "17": (slice(1, 18), 16)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("parameterization", "geometry"), [("W", "l1.1"), *MODELS])
def test_trials_do_not_meet(parameterization: str, geometry: str, dtype: torch.dtype):
    check_trials_do_not_meet(parameterization, geometry, dtype, compile=False)


def check_trials_do_not_meet(parameterization: str, geometry: str, dtype: torch.dtype, compile: bool):
    """Trial 17 has the same bits alone and in any batch; but for LAPACK's decompositions in the nuclear geometry."""
    many = sphere(3, 4, 5, trials=500 if compile else 100, seed=1).to(dtype=dtype)
    options = {"steps": 40, "record": ["loss", "W", "log_rest"], "init": Gaussian(0.3), "compile": compile}
    together = train(many, geometry, parameterization, **options)
    for trials, place in BATCHES.values():
        some = train(many[trials], geometry, parameterization, **options)
        pairs = [(some.W[place], together.W[17])]
        pairs += [(x[:, place], together.records[name][:, 17]) for name, x in some.records.items()]
        for mine, theirs in pairs:
            if (parameterization, geometry) == ("W", "nuclear"):
                torch.testing.assert_close(mine, theirs, rtol=1e3 * torch.finfo(dtype).eps, atol=1e-6)
            else:
                assert torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("parameterization", "geometry"), [("W", "l1.1"), ("W", "l2"), ("KQ", "nuclear")])
def test_compiled_trials_do_not_meet(parameterization: str, geometry: str, dtype: torch.dtype):
    check_trials_do_not_meet(parameterization, geometry, dtype, compile=True)


def test_whether_a_run_is_compiled_does_not_depend_on_the_batch(data: TokenData):
    method = Method(MirrorDescent(), LOSSES["logistic"], growing=False)
    for steps in (100, 10**6):
        assert wants_compiled(data, method, steps) == wants_compiled(data[:1], method, steps)


def test_long_steps_near_p_1_are_chaotic_and_short_ones_are_not():
    """Why last bits matter for ℓ1.1: relative changes of W(0) of 1e-10 grow, however exact the arithmetic is."""
    data = sphere(6, 8, 10, trials=20, seed=0)
    W = Gaussian(0.3).draw(data.trials, {"W": (10, 10)})["W"]
    growth = {}
    for lr in (0.1, 0.003):
        a, b = (train(data, "l1.1", steps=150, lr=lr, init={"W": x}, record=[]).W for x in (W, W * (1 + 1e-10)))
        growth[lr] = ((a - b).flatten(1).norm(dim=1) / a.flatten(1).norm(dim=1) / 1e-10).median().item()
    assert growth[0.1] > 1e4
    assert growth[0.003] < 10


def test_records_are_what_they_say(data: TokenData):
    run = train(data, steps=37, record=[name for name in QUANTITIES if name not in "KQv"], at=[3, 37])
    assert run.steps.tolist() == [3, 37]
    for row in range(2):
        record = {name: x[row] for name, x in run.records.items()}
        W = record["W"]
        attention = data.attention(W)
        assert torch.allclose(record["attention"], attention)
        assert torch.equal(record["tokens"], attention.argmax(-1))
        assert torch.allclose(record["top_weight"], attention.amax(-1))
        assert torch.allclose(record["log_rest"], torch.log(1 - attention.amax(-1)))
        output = data.Y * data.head.value((attention @ data.X)[:, :, :, None])[..., 0]
        assert torch.allclose(record["output"], output)
        assert torch.allclose(record["loss"], torch.nn.functional.softplus(-output).sum(2).mean(1))
        assert torch.allclose(record["norm"], torch.linalg.matrix_norm(W))
    assert torch.equal(run.W, run.records["W"][-1])
    assert torch.equal(run.tokens, run.records["tokens"][-1])


def test_log_rest_where_the_weight_is_one(data: TokenData):
    W = solve(att_svm(data, data.optimal_tokens()), "l2").W * 1000
    run = train(data, steps=0, init={"W": W}, record=["top_weight", "log_rest"])
    assert (run.records["top_weight"] == 1).all()
    logits = data.logits(W)
    best = logits.topk(2).values
    gap = (best[..., 1] - best[..., 0]).clamp(max=0)
    assert (run.records["log_rest"][0] - gap).abs().max() < 2  # log of at most T tokens
    assert run.records["log_rest"].max() < -900


def test_recorded_steps():
    data = sphere(2, 3, 2)
    assert train(data, steps=7, at=3).steps.tolist() == [0, 3, 6, 7]
    assert train(data, steps=5, at=[]).steps.tolist() == [5]
    long, short = (train(data, steps=k, record=()).steps.tolist() for k in (150, 100))
    assert [k for k in long if k <= 100] == short
    assert long[:6] == [0, 1, 2, 3, 4, 5]


def test_stops_when_directions_rest(data: TokenData):
    run = train(data, steps=5000, at=100, stop=2e-2, record=["W"])
    units = Lp(2).unit(run.records["W"])
    moves = (units[1:] - units[:-1]).flatten(2).norm(dim=2).amax(1)
    assert run.state.step == run.steps[-1] < 5000
    assert moves[-1] <= 2e-2 < moves[1:-1].min()


@pytest.mark.parametrize("parameterization", ["W", "KQ", "joint"])
def test_the_log_loss_of_outputs_that_are_no_probabilities_is_refused(data: TokenData, parameterization: str):
    """It is no short name of the logistic loss: −log of a negative number is no loss."""
    with pytest.raises(AttsvmError, match=r"outputs that are probabilities.*take logistic"):
        train(data, "l2", parameterization, steps=5, loss="log")
    assert len(train(data[[]], steps=5, loss="log")) == 0


def test_runs_that_stop_resume_as_if_never_interrupted(data: TokenData, tmp_path: Path):
    options: dict[str, Any] = {"at": 20, "stop": 5e-2, "record": ["loss"]}
    data = data[:4]
    whole = train(data, steps=5000, **options)
    last = whole.state.step
    for cut in (last - 30, last - 20, last - 10):
        part = train(data, steps=cut, **options)
        assert part.state.step == cut
        resumed = train(data, steps=5000, resume=part, **options)
        assert same(resumed, whole)
    path = tmp_path / "run.safetensors"
    for _ in range(3):  # repeating the call changes nothing
        assert train(data, steps=5000, checkpoint=path, **options).state.step == last
    assert train(data[[1, 3]], steps=last, resume=Trajectory.load(path)[[1, 3]], **options).state.step == last


def test_near_starts_inside_the_cone(data: TokenData):
    target = solve(att_svm(data, data.optimal_tokens()), "l3").W
    run = train(data, "l3", steps=0, init=Near(target, norm=7.0, angle=0.25))
    cosine = (Lp(2).unit(run.W) * Lp(2).unit(target)).sum((1, 2))
    assert torch.allclose(cosine, torch.cos(torch.tensor(0.25, dtype=torch.float64)))
    assert torch.allclose(Lp(3).norm(run.W), torch.tensor(7.0, dtype=torch.float64))
    factored = train(data, "nuclear", "KQ", steps=0, init=Near(target, norm=7.0, angle=0.25), m=6)
    assert torch.allclose(Nuclear().norm(factored.W), torch.tensor(7.0, dtype=torch.float64))


def test_zero_start_and_zero_gradient():
    data = sphere(2, 3, 2, trials=3)
    equal = TokenData(data.X, data.Z, data.Y, data.mask, LinearHead(torch.zeros(3, 1, 2)).to(dtype=torch.float64))
    single = sphere(2, 1, 2)
    for start in (equal, single):
        for p in (1.1, 2, 3):
            assert (train(start, Lp(p), steps=3, lr=Growing()).W == 0).all()
    assert (train(data, "l1.1", steps=1).W != 0).any()
    joint = train(sphere(2, 1, 2), "l1.5", "joint", steps=3)
    assert joint.v is not None
    assert (joint.W == 0).all()
    assert (joint.v != 0).all()


@pytest.mark.parametrize(("parameterization", "geometry"), MODELS)
def test_empty_batch(data: TokenData, parameterization: str, geometry: str):
    run = train(data[:0], geometry, parameterization, steps=3, init=Gaussian())
    assert run.W.shape == (0, 5, 5)
    assert run.records["top_weight"].shape[1:] == (0, 3, 1)


def test_cls_model_is_a_single_column():
    data = sphere(3, 4, 5, trials=2)
    cls = TokenData.cls(data.X, data.Y[..., 0], data.head)
    W = train(cls, "l1.5", steps=20).W
    ones = TokenData.cross(data.X, torch.ones(2, 3, 1), data.Y[..., 0], data.head)
    assert W.shape == (2, 5, 1)
    assert torch.equal(W, train(ones, "l1.5", steps=20).W)


def test_single_precision_and_other_heads():
    data = sphere(2, 3, 4, trials=2)
    narrow = train(data.to(dtype=torch.float32), steps=20)
    assert narrow.W.dtype == torch.float32
    assert torch.allclose(narrow.W.double(), train(data, steps=20).W, atol=1e-4)
    relu = TokenData(data.X, data.Z, data.Y, data.mask, MLPHead.sum_relu(2, 4))
    run = train(relu, steps=50, loss="correlation", record=["loss"])
    assert (run.records["loss"][-1] < run.records["loss"][0]).all()


def test_compiled_step_is_the_same_step(data: TokenData):
    eager, compiled = (train(data, "l1.75", steps=30, compile=choice) for choice in (False, True))
    assert torch.allclose(eager.W, compiled.W, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": -1}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"parameterization": "V"}, "parameterization"),
        ({"geometry": "l0.5"}, "p"),
        ({"geometry": "l3", "parameterization": "KQ"}, "geometry"),
        ({"parameterization": "KQ", "init": "zero"}, "zero"),
        ({"lr": -1}, "lr"),
        ({"lr": "fast"}, "lr"),
        ({"lr": {"K": 0.1}}, "lr"),
        ({"lr": lambda k: float("nan")}, "lr at step 1"),
        ({"loss": "hinge"}, "loss"),
        ({"init": "one"}, "init"),
        ({"init": {"V": 0}}, "init"),
        ({"init": {"W": torch.zeros(3, 3)}}, "init W"),
        ({"init": {"W": torch.full((5, 5), float("nan"))}}, "W"),
        ({"init": Near(torch.zeros(5, 5))}, "direction"),
        ({"m": 3}, "m"),
        ({"m": 0, "parameterization": "KQ"}, "m"),
        ({"record": ["speed"]}, "record"),
        ({"record": ["v"]}, "record"),
        ({"at": "lin"}, "at"),
        ({"at": 0}, "at"),
        ({"at": [-1]}, "at"),
        ({"stop": -1.0}, "stop"),
        ({"ridge": -1.0}, "ridge"),
        ({"resume": 3}, "resume"),
        ({"rule": "fast"}, "rule"),
        ({"rule": MirrorDescent(), "normalize": False}, "normalize belongs to the rule"),
        ({"loss": lambda f: f}, "loss must not increase"),
    ],
)
def test_bad_input(data: TokenData, options: dict, words: str):
    with pytest.raises(AttsvmError, match=words) as caught:
        train(data, **({"steps": 2} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("geometry", ["l2", "l1.5", "nuclear"])
def test_a_trial_that_leaves_the_range_of_numbers_touches_no_other(data: TokenData, geometry: str):
    X = data.X.clone()
    X[0] *= 1e150
    options: dict = {"steps": 20, "normalize": False, "lr": 0.1}
    run = train(TokenData(X, data.Z, data.Y, data.mask, head=data.head), geometry, **options)
    assert not run.W[0].isfinite().all()
    torch.testing.assert_close(run.W[1:], train(data, geometry, **options).W[1:], rtol=1e-12, atol=0)


def test_bad_data_and_files(data: TokenData, tmp_path):
    with pytest.raises(AttsvmError, match="head"):
        train(TokenData(data.X, data.Z, data.Y, data.mask), steps=1)
    with pytest.raises(AttsvmError, match="TokenData"):
        train(np.zeros(3), steps=1)  # type: ignore[arg-type]
    run = train(data, steps=1)
    with pytest.raises(AttsvmError, match="record"):
        train(data, steps=2, resume=run, record=["W"])
    with pytest.raises(AttsvmError, match="a run of the same kind"):
        train(data, "l3", steps=2, resume=run)
    with pytest.raises(AttsvmError, match="a run on the same data"):
        train(TokenData(data.X, data.Z, -data.Y, data.mask, head=data.head), steps=2, resume=run)
    with pytest.raises(AttsvmError, match="steps must be at least 1"):
        train(data, steps=0, resume=run)
    np.savez(tmp_path / "other.npz", x=np.zeros(2))
    with pytest.raises(AttsvmError, match="trajectory"):
        Trajectory.load(tmp_path / "other.npz")


def test_a_checkpoint_resumes_its_own_run_and_no_other(data: TokenData, tmp_path, monkeypatch):
    path, options = tmp_path / "run.safetensors", {"init": Gaussian(0.3), "lr": Growing(0.1, 2.0)}
    whole = train(data, "l3", steps=300, **options)
    monkeypatch.setattr("attsvm.dynamics._train.CHECKPOINT_SECONDS", 0.0)
    real = Trajectory.save

    def killed(self, where):
        real(self, where)
        if self.state.step >= 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trajectory, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(data, "l3", steps=300, checkpoint=path, **options)
    monkeypatch.setattr(Trajectory, "save", real)
    assert 100 <= Trajectory.load(path).state.step < 300
    assert same(whole, train(data, "l3", steps=300, checkpoint=path, **options))
    assert same(whole, Trajectory.load(path))
    changed = {"lr": 0.1, "init": Gaussian(0.4), "loss": "exponential", "ridge": 0.1}
    for name, value in changed.items():
        with pytest.raises(AttsvmError, match=f"holds another run, with .*{name}"):
            train(data, "l3", steps=300, checkpoint=path, **options | {name: value})
    with pytest.raises(AttsvmError, match="geometry"):
        train(data, "l2", steps=300, checkpoint=path, **options)
    with pytest.raises(AttsvmError, match="with other data"):
        train(sphere(3, 4, 5, trials=20, seed=2), "l3", steps=300, checkpoint=path, **options)
    with pytest.raises(AttsvmError, match="steps must be at least 300"):
        train(data, "l3", steps=200, checkpoint=path, **options)
    with pytest.raises(AttsvmError, match="not both"):
        train(data, "l3", steps=300, checkpoint=path, resume=whole, **options)


def test_runs_of_the_first_format_still_load(data: TokenData, tmp_path):
    """Its settings were texts."""
    run = train(data, "nuclear", "KQ", steps=7, lr=Growing(0.1, 2.0), init=Gaussian(0.3, 5))
    run.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as new:
        arrays = {
            name.replace("state.K.theta", "theta.K").replace("state.Q.theta", "theta.Q"): new[name] for name in new
        }
    for name in ("rule", "loss", "data.trials"):
        del arrays[name]
    settings = {"steps": 7, "lr": "Growing(base=0.1, factor=2.0)", "normalize": True, "loss": "logistic"}
    settings |= {"init": "Gaussian(scale=0.3, seed=5, trials=None)", "m": 5, "ridge": 0.0, "stop": None}
    arrays |= {
        "format": "attsvm-trajectory/1",
        "geometry": "nuclear",
        "beta": "0.0001",
        "settings": json.dumps(settings),
    }
    np.savez(tmp_path / "old.npz", **arrays)
    old = Trajectory.load(tmp_path / "old.npz")
    assert same(old, run)
    assert old.identity() == run.identity()
    assert (old.geometry, old.rule, old.loss) == (run.geometry, run.rule, run.loss)
    longer = train(data, "nuclear", "KQ", steps=12, lr=Growing(0.1, 2.0), resume=old)
    assert torch.equal(longer.W, train(data, "nuclear", "KQ", steps=12, lr=Growing(0.1, 2.0), resume=run).W)


def test_equal_scores_do_not_hide_the_other_samples() -> None:
    """Where tokens tie in score their factor is as small as the softmax weights; it must not set the common shift."""
    X = sphere(3, 4, 6, trials=6, seed=2).X.clone()
    X[..., 0] = 0
    X[:, :, 0, 0] = 1  # one better token in every sample, all others of score 0
    X[:, 0, 1:, 0] = 1  # in the first sample all tokens are equal but the last, which is worse
    X[:, 0, 3, 0] = 0
    v = torch.zeros(6, dtype=torch.float64)
    v[0] = 1
    data = TokenData.cross(X, sphere(3, 4, 6, trials=6, seed=2).Z, head=v)
    run = train(data, "l2", steps=4000, lr=1.0, record=("norm",))
    assert run.W.isfinite().all()
    assert (run.records["norm"][-1] > 100).all()


@pytest.mark.parametrize("loss", ["correlation", "logistic"])
def test_theorem_4_of_tf_as_svm_has_a_counter_example(loss: str) -> None:
    """Equal scores, plain GD from 0, and yet the second sequence's wrong token wins (docs/papers.md)."""
    X = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]]], dtype=torch.float64)
    data = TokenData.cross(X, torch.ones(1, 2, 1), torch.ones(1, 2), torch.tensor([1.0, 2.1]).double())
    run = train(data, steps=2000, lr=0.1, normalize=False, loss=loss, record=("W",))
    assert data.optimal_tokens().flatten().tolist() == [0, 0]
    w1, w2 = run.records["W"][:, 0, :, 0].T
    a1, a2 = w1, w2 - 2 * w1
    assert (a1.diff() > 0).all()
    assert (a2 <= -1.5 * a1).all()


def _loss(scale: float):
    def own(f: torch.Tensor) -> torch.Tensor:
        return torch.exp(-scale * f)

    return own


def _head(scale: float):
    def own(x: torch.Tensor) -> torch.Tensor:
        return scale * x.sum(-1) + x.square().sum(-1)

    return own


@pytest.mark.parametrize("what", ["loss", "lr", "head"])
def test_a_checkpoint_refuses_a_function_of_the_same_name_that_does_something_else(
    data: TokenData, tmp_path, what: str
):
    def run(scale: float, steps: int) -> Trajectory:
        options = {"loss": {"loss": _loss(scale)}, "lr": {"lr": lambda k: scale / k}}.get(what, {})
        own = TokenData(data.X, data.Z, data.Y, data.mask, FunctionHead(_head(scale), data.B, data.d))
        return train(own if what == "head" else data, steps=steps, checkpoint=tmp_path / "run.npz", **options)

    run(1.0, 3)
    assert run(1.0, 5).state.step == 5
    with pytest.raises(AttsvmError, match=f"holds another run, with other {what} function: choose"):
        run(2.0, 5)


def test_own_functions_that_refuse_some_numbers_train_all_the_same(data: TokenData):
    rates = {1: 0.1, 2: 0.2, 3: 0.1}
    run = train(data, steps=3, lr=lambda k: rates[k], loss=lambda f: (9 - f).square())
    assert {"lr function", "loss function"} <= run.settings.keys()
    assert not {"lr function", "loss function", "head function"} & train(data, steps=1).settings.keys()


def test_a_run_is_not_resumed_with_another_head_function(data: TokenData):
    one, other = (
        TokenData(data.X, data.Z, data.Y, data.mask, FunctionHead(_head(scale), data.B, data.d)) for scale in (1.0, 2.0)
    )
    run = train(one, steps=2)
    part = train(one[[3, 1]], steps=4, resume=run[[3, 1]])
    assert torch.equal(part.W, train(one, steps=4).W[[3, 1]])
    with pytest.raises(AttsvmError, match="same data, but its head is another function"):
        train(other, steps=4, resume=run)


@pytest.mark.parametrize("changed", [{"lr": 0.2}, {"loss": "exponential"}, {"batch": 1}, {"ridge": 1e-3}])
def test_a_run_that_is_resumed_with_other_settings_is_mixed(data: TokenData, tmp_path, changed: dict):
    options = {"lr": 0.1, "loss": "logistic", "normalize": False}
    run = train(data, steps=2, **options)
    run.save(tmp_path / "run.npz")
    run = Trajectory.load(tmp_path / "run.npz")
    same_settings = train(data, steps=4, resume=run, **options)
    assert "mixed" not in same_settings.settings
    assert same_settings.constant_lr == 0.1
    mixed = train(data, steps=4, resume=run, **options | changed)
    back = train(data, steps=6, resume=mixed, **options)
    for one in (mixed, back):
        assert one.settings["mixed"]
        assert one.constant_lr is None
    back.save(tmp_path / "run.npz")
    with pytest.raises(AttsvmError, match="holds another run, with mixed True"):
        train(data, steps=8, checkpoint=tmp_path / "run.npz", **options)
