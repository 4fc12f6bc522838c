"""Losses, heads, geometries, rules and data that a user writes, taken through everything that the library does."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import attsvm
from attsvm import AttsvmError, Geometry, Head, Loss, TokenData, Trajectory, att_svm, solve, sphere, train, verdict
from attsvm.diagnostics import assumption_e, misalignment
from attsvm.dynamics import Rule
from attsvm.objective import Gradient, curvature, gradient

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")


@dataclass(frozen=True)
class Tempered(Loss):
    """ℓ(f) = log(1 + e^(−cf))/c, by its value alone."""

    c: float = 2.0
    name: ClassVar[str] = "tempered"

    def value(self, f: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-self.c * f) / self.c


def squared_hinge(f: Tensor) -> Tensor:
    return (3 - f).clamp(min=0).square()


@dataclass(frozen=True, eq=False, repr=False)
class TanhHead(Head):
    """h(x) = tanh(vᵀx), by its value alone."""

    v: Tensor
    name: ClassVar[str] = "tanh"
    axes: ClassVar[dict[str, str]] = {"v": "B H d"}

    def h(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.einsum("bnkmd,bkd->bnkm", x, self.v))


@dataclass(frozen=True)
class Weighted(Geometry):
    """‖W‖ = √(Σ c W²), the first row of W at four times the price."""

    first: float = 4.0

    @property
    def name(self) -> str:
        return f"weighted{self.first:g}"

    def price(self, W: Tensor) -> Tensor:
        price = torch.ones(W.shape[-2], 1, dtype=W.dtype)
        price[0] = self.first
        return price

    def norm(self, W: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self.price(W).sqrt() * W, dim=(-2, -1))

    def dual_norm(self, G: Tensor) -> Tensor:
        return torch.linalg.vector_norm(G / self.price(G).sqrt(), dim=(-2, -1))

    def mirror(self, W: Tensor) -> Tensor:
        return self.price(W) * W

    def inverse(self, theta: Tensor) -> Tensor:
        return theta / self.price(theta)


@dataclass(frozen=True)
class OnlyNorm(Geometry):
    @property
    def name(self) -> str:
        return "only"

    def norm(self, W: Tensor) -> Tensor:
        return W.abs().sum((-2, -1))


@dataclass(frozen=True)
class Polyak(Rule):
    """Normalised gradient descent with momentum."""

    beta: float = 0.5
    name: ClassVar[str] = "polyak"

    def start(self, W: Tensor) -> dict[str, Tensor]:
        return {"W": W, "momentum": torch.zeros_like(W)}

    def weights(self, state: dict[str, Tensor]) -> Tensor:
        return state["W"]

    def step(self, state: dict[str, Tensor], gradient: Gradient, eta: Tensor) -> dict[str, Tensor]:
        momentum = self.beta * state["momentum"] - gradient.G / gradient.G.norm(dim=(0, 1))
        return {"W": state["W"] + eta * momentum, "momentum": momentum}

    def limit(self) -> Geometry:
        return attsvm.Frobenius()


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(3, 4, 6, trials=5, seed=3, min_score_gap=0.1)


def logits_loss(data: TokenData, W: Tensor, loss: Loss) -> Tensor:
    """The training loss by the plain formula."""
    assert data.head is not None
    o = torch.einsum("bntd,bnkt->bnkd", data.X, data.attention(W))[:, :, :, None]
    return loss.value(data.Y * data.head.value(o)[..., 0]).sum(2).mean(1)


def with_tanh(data: TokenData) -> TokenData:
    assert isinstance(data.head, attsvm.LinearHead)
    return TokenData(data.X, data.Z, data.Y, data.mask, TanhHead(data.head.v))


def smooth(x: Tensor) -> Tensor:
    return x[..., 0].tanh() + 0.3 * x[..., 1].square()


HEADS = {"tanh": with_tanh, "function": lambda data: TokenData.cross(data.X, data.Z, data.Y, smooth)}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", [Tempered(), squared_hinge], ids=["class", "function"])
def test_gradient_and_curvature_of_own_loss_and_head_by_differences(data: TokenData, head: str, loss) -> None:
    data = HEADS[head](data)
    generator = torch.Generator().manual_seed(0)
    W, V = (torch.randn(data.B, data.d, data.e, generator=generator, dtype=torch.float64) for _ in range(2))
    own = attsvm.objective.as_loss(loss)
    t = 1e-4
    plus, zero, minus = (logits_loss(data, W + s * V, own) for s in (t, 0.0, -t))
    torch.testing.assert_close(
        (gradient(data, W, loss) * V).sum((1, 2)), (plus - minus) / (2 * t), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(curvature(data, W, V, loss), (plus - 2 * zero + minus) / t**2, rtol=1e-4, atol=1e-6)


def test_own_loss_through_everything(data: TokenData, tmp_path: Path) -> None:
    run = train(data, steps=400, lr=0.5, loss=Tempered(3.0))
    judged = verdict(run)
    assert judged.reached.any()
    assert not any(holds.any() for name, holds in judged.theorems.items() if "Theorem 2 " in name)  # A is not known
    # Two trainings whose losses differ by the scale of f only: ℓ(f) = logistic(3f)/3 on scores of v is logistic on 3v.
    assert isinstance(data.head, attsvm.LinearHead)
    same = train(TokenData(data.X, data.Z, data.Y, data.mask, attsvm.LinearHead(3 * data.head.v)), steps=400, lr=0.5)
    torch.testing.assert_close(run.W, same.W, rtol=1e-6, atol=1e-8)
    path = attsvm.regularization_path(data, radii=[1.0, 30.0], loss=Tempered(3.0))
    assert path.converged.all()
    run.save(tmp_path / "run.npz")
    loaded = Trajectory.load(tmp_path / "run.npz")
    assert loaded.loss == Tempered(3.0)
    assert loaded.identity() == run.identity()
    assert train(data, steps=2, loss="tempered").loss == Tempered()


def test_a_function_as_loss_is_given_again_when_a_file_is_read(data: TokenData, tmp_path: Path) -> None:
    run = train(data, steps=30, lr=0.1, loss=squared_hinge, checkpoint=tmp_path / "run.safetensors")
    with pytest.raises(AttsvmError, match=r"the loss is a function, squared_hinge, that no file holds: pass loss=…"):
        Trajectory.load(tmp_path / "run.safetensors")
    loaded = Trajectory.load(tmp_path / "run.safetensors", loss=attsvm.objective.as_loss(squared_hinge))
    assert torch.equal(loaded.W, run.W)
    longer = train(data, steps=60, lr=0.1, loss=squared_hinge, checkpoint=tmp_path / "run.safetensors")
    assert torch.equal(longer.W, train(data, steps=60, lr=0.1, loss=squared_hinge).W)
    assert len(verdict(longer)) == data.B


@pytest.mark.parametrize("head", HEADS)
def test_own_head_through_everything(data: TokenData, tmp_path: Path, head: str) -> None:
    data = HEADS[head](data)
    run = train(data, steps=300, lr=0.5)
    assert run.records["loss"][-1].lt(run.records["loss"][0]).all()
    assert len(verdict(run)) == data.B
    assert assumption_e(data, data.optimal_tokens()).samples is not None  # its bend is not known
    assert attsvm.regularization_path(data, radii=[0.5], loss="logistic").loss.isfinite().all()
    assert solve(att_svm(data)).solved.all()
    attsvm.save(data, tmp_path / "data.npz")
    run.save(tmp_path / "run.npz")
    given = data.head if head == "function" else None
    if head == "function":
        with pytest.raises(AttsvmError, match="pass head=…"):
            attsvm.load(tmp_path / "data.npz")
    loaded = attsvm.load(tmp_path / "data.npz", head=given)
    assert loaded.digest() == data.digest()
    assert torch.equal(train(loaded, steps=300, lr=0.5).W, Trajectory.load(tmp_path / "run.npz", head=given).W)
    assert torch.equal(train(data[[3]], steps=300, lr=0.5).W[0], run.W[3])
    assert TokenData.cat([data[:2], data[2:]]).digest() == data.digest()


def test_own_geometry_through_everything(data: TokenData, tmp_path: Path) -> None:
    geometry = Weighted(4.0)
    solution = solve(att_svm(data), geometry)
    # The same problem in ℓ2, with the first coordinate of tokens halved.
    scaled = data.X.clone()
    scaled[..., 0] /= 2
    reference = solve(att_svm(TokenData(scaled, data.Z, data.Y, data.mask, data.head), data.optimal_tokens()))
    assert solution.solved.all()
    torch.testing.assert_close(solution.norm, reference.norm, rtol=1e-7, atol=0)
    run = train(data, geometry, steps=3000, lr=attsvm.Growing(), compile=False)
    judged = verdict(run)
    assert judged.reached.sum() >= 3
    assert judged.error_name == "directional Bregman divergence"
    unit = geometry.unit(run.W), geometry.unit(judged.W_mm)
    half = geometry.norm(unit[0] - unit[1]).square() / 2  # the divergence of a quadratic potential
    torch.testing.assert_close(judged.bregman, half, rtol=1e-6, atol=1e-12)
    run.save(tmp_path / "run.npz")
    assert Trajectory.load(tmp_path / "run.npz").geometry == geometry
    torch.testing.assert_close(geometry.potential(run.W), geometry.norm(run.W).square() / 2)
    theta = geometry.mirror(run.W)
    torch.testing.assert_close(geometry.potential(run.W) + geometry.conjugate(theta), (theta * run.W).sum((1, 2)))


def test_what_is_missing_is_said_at_the_first_call(data: TokenData) -> None:
    with pytest.raises(AttsvmError, match="geometry only must define mirror to be trained in"):
        train(data, OnlyNorm(), steps=1)
    with pytest.raises(AttsvmError, match="geometry only must define dual_norm"):
        solve(att_svm(data), OnlyNorm())
    with pytest.raises(AttsvmError, match="geometry only must define dual_norm to be judged by"):
        verdict(Trajectory.of(data, torch.ones(5, 6, 6), OnlyNorm(), rule=Polyak()))


def test_own_rule_through_everything(data: TokenData, tmp_path: Path) -> None:
    whole = train(data, steps=600, rule=Polyak(0.5))
    judged = verdict(whole)
    assert (judged.misalignment < 0.05).all()
    assert not any(holds.any() for name, holds in judged.theorems.items() if "Theorem 7" in name)  # about GD
    half = train(data, steps=250, rule=Polyak(0.5))
    half.save(tmp_path / "half.npz")
    loaded = Trajectory.load(tmp_path / "half.npz")
    assert loaded.rule == Polyak(0.5)
    assert torch.equal(train(data, steps=600, rule=Polyak(0.5), resume=loaded).W, whole.W)
    with pytest.raises(AttsvmError, match="a run of the same kind"):
        train(data, steps=600, rule=Polyak(0.6), resume=loaded)


def test_a_file_names_no_code(data: TokenData, tmp_path: Path) -> None:
    train(data, steps=2, loss=Tempered(3.0)).save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as saved:
        arrays = {name: saved[name] for name in saved}
    for facts, words in (
        ('{"kind": "os.system"}', "is not defined here"),
        ('{"kind": "tempered", "d": 1}', "must have other parameters"),
        ("[]", "loss must be an object"),
        ('{"c": 1}', "described by its kind"),
    ):
        np.savez(tmp_path / "other.npz", **arrays | {"loss": np.array(facts)})
        with pytest.raises(AttsvmError, match=words):
            Trajectory.load(tmp_path / "other.npz")


def test_own_runs_are_judged(data: TokenData) -> None:
    """Weights that another program trained."""
    solution = solve(att_svm(data), tol=1e-12)
    run = Trajectory.of(data, 50 * solution.W)
    judged = verdict(run)
    assert judged.reached.all()
    assert misalignment(run.W, judged.W_mm).max() < 1e-6


def test_sweep_is_a_table_of_runs() -> None:
    table = attsvm.sweep(
        lambda d: sphere(2, 3, d, trials=4, seed=1), d=[3, 6], geometry=["l2", 3], steps=200, record=["norm"]
    )
    columns = table.to_pydict() if hasattr(table, "to_pydict") else table.to_dict("list")
    assert columns["d"] == [3, 3, 6, 6]
    assert columns["geometry"] == ["l2", "3", "l2", "3"]
    single = verdict(train(sphere(2, 3, 6, trials=4, seed=1), 3, steps=200, record=["norm"]))
    assert columns["direction error"][3] == single.summary()["median direction error"]
    with pytest.raises(AttsvmError, match="speed must be an option of train"):
        attsvm.sweep(sphere(2, 3, 3), speed=[1, 2], steps=10)
    partly = attsvm.sweep(lambda d, n=2: sphere(n, 3, d, trials=2), d=[3], steps=5)
    assert len(partly) == 1
    with pytest.raises(AttsvmError, match="data needs n: give it a value"):
        attsvm.sweep(lambda d, n: sphere(n, 3, d), d=[3], steps=5)
    with pytest.raises(AttsvmError, match="data must be TokenData or a function that makes them, but got int 5"):
        attsvm.sweep(5, steps=5)  # type: ignore[arg-type]


def test_the_rows_of_a_sweep_say_what_they_are_of() -> None:
    data = sphere(2, 3, 4, trials=2, seed=1)
    table = attsvm.sweep(data, lr=[0.5, attsvm.Growing(0.1), attsvm.Growing(1.0)], rule=["adam", "sign"], steps=2)
    columns = table.to_pydict() if hasattr(table, "to_pydict") else table.to_dict("list")
    assert columns["lr"][::2] == ["0.5", "Growing(base=0.1, factor=4.0)", "Growing(base=1.0, factor=4.0)"]
    assert columns["rule"] == ["adam", "sign"] * 3
    two = [attsvm.Mahalanobis(c * torch.eye(16)) for c in (1, 2)]
    table = attsvm.sweep(data, loss=[squared_hinge, "logistic"], geometry=two, steps=2)
    columns = table.to_pydict() if hasattr(table, "to_pydict") else table.to_dict("list")
    assert columns["loss"] == ["squared_hinge"] * 2 + ["logistic"] * 2
    assert len(set(columns["geometry"])) == 2
    with pytest.raises(AttsvmError, match="steps must be given"):
        attsvm.sweep(data)
    with pytest.raises(AttsvmError, match="norm is a column of the results"):
        attsvm.sweep(lambda norm: replace(data, X=norm * data.X), norm=[1.0, 2.0], steps=2)


def test_two_classes_of_one_name_are_not_confused(data: TokenData, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Twin(Weighted):
        pass

    first = Twin
    train(data, first(), steps=5).save(tmp_path / "run.npz")

    def elsewhere() -> type[Weighted]:
        @dataclass(frozen=True)
        class Twin(Weighted):
            pass

        return Twin

    other = elsewhere()
    with pytest.raises(AttsvmError, match=r"'Twin' may be any of .*pass the one that is meant as geometry="):
        Trajectory.load(tmp_path / "run.npz")
    assert isinstance(Trajectory.load(tmp_path / "run.npz", geometry=first()).geometry, first)
    assert other is not first


def test_functions_that_return_something_else_are_named(data: TokenData) -> None:
    def total(f: Tensor) -> Tensor:
        return f.sum()

    def same(x: Tensor) -> Tensor:
        return x

    with pytest.raises(AttsvmError, match=r"loss total, .* must return a tensor of shape \(.*\), but got shape \(\)"):
        attsvm.train(data, steps=2, loss=total)
    with pytest.raises(AttsvmError, match=r"must return a tensor .* but got int 3"):
        attsvm.train(data, steps=2, loss=cast(Any, lambda f: 3))
    with pytest.raises(AttsvmError, match=r"head same, a number for each vector .* must return a tensor"):
        attsvm.train(TokenData.cross(data.X, data.Z, Y=data.Y, head=same), steps=2)


def test_a_state_that_is_no_dict_is_named(data: TokenData) -> None:
    class Bare(Polyak):
        def start(self, W: Tensor) -> dict[str, Tensor]:
            return cast(Any, W)

    with pytest.raises(AttsvmError, match="rule polyak: start must return a dict of tensors by name"):
        attsvm.train(data, rule=Bare(), steps=2)


@dataclass(frozen=True)
class Sloped(Loss):
    """ℓ(f) = e^(−f), with the slope that a test gives."""

    given: Any
    name: ClassVar[str] = "sloped"

    def value(self, f: Tensor) -> Tensor:
        return torch.exp(-f)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.given(f)


def test_a_slope_is_the_derivative(data: TokenData) -> None:
    right = train(data, steps=20, loss=Sloped(lambda f: (-f, torch.ones_like(f))))
    assert torch.equal(right.W, train(data, steps=20, loss="exponential").W)
    for slope, words in (
        (lambda f: (f, torch.ones_like(f)), r"slope must be −ℓ′, but at f = -8.7 it is 0.000166586 and −ℓ′ is 6002.91"),
        (lambda f: (-f, -torch.ones_like(f)), r"slope must be −ℓ′, but .* it is -6002.91"),
        (lambda f: (-f, (1 + 1e-5) * torch.ones_like(f)), "slope must be −ℓ′"),
        (lambda f: (-f, torch.ones(7)), r"slope, in both parts, must return a tensor of shape .* but got shape \(7,\)"),
        (lambda f: -f, r"slope must return a pair \(log part, factor\), but got Tensor"),
    ):
        with pytest.raises(AttsvmError, match=f"loss sloped: {words}"):
            train(data, steps=2, loss=Sloped(slope))


def test_a_loss_without_a_derivative_is_named(data: TokenData) -> None:
    def detached(f: Tensor) -> Tensor:
        return (-f).detach()

    with pytest.raises(AttsvmError, match="loss detached: its derivative is 0 everywhere: is it detached"):
        train(data, steps=100, loss=detached)


def test_losses_that_are_tried_need_not_be_defined_everywhere(data: TokenData) -> None:
    """−log f is for f > 0, (4 − f)² decreases for f < 4, and a sum over queries couples them."""
    positive = TokenData.cross(data.X, data.Z, head=lambda x: x[..., 0].sigmoid())
    own, known = (train(positive, steps=20, loss=loss) for loss in (lambda f: -f.log(), "log"))
    torch.testing.assert_close(own.W, known.W)
    for loss in (lambda f: (4 - f).square(), attsvm.objective.Added(Tempered())):
        assert train(data, steps=20, loss=loss).records["loss"].diff(dim=0).le(0).all()


def test_heads_that_torch_cannot_differentiate_are_named(data: TokenData) -> None:
    for head, words in (
        (torch.nn.Linear(6, 1), "head Linear must be a differentiable function of torch.float64 x, but"),
        (lambda x: np.tanh(x[..., 0]), "must be a differentiable function of torch.float64 x, but: Can't call numpy"),
        (lambda x: torch.from_numpy(np.tanh(x[..., 0].detach().numpy())), "but it is constant or detached"),
        (torch.nn.Linear, "head must be a Head, a function of x, or v, but got the class Linear"),
    ):
        with pytest.raises(AttsvmError, match=words):
            train(TokenData.cross(data.X, data.Z, head=head), steps=2)


def test_what_a_rule_returns_is_checked(data: TokenData) -> None:
    def rule(**methods: Any) -> Rule:
        return type("Changed", (Polyak,), methods)()

    for changed, words in (
        (rule(step=lambda *_: None), r"step must return a state .* a dict of W, momentum, but got NoneType None"),
        (rule(step=lambda _, state, *__: state["W"]), "step must return a state .* but got Tensor"),
        (rule(step=lambda _, state, *__: {"W": state["W"]}), "but got a dict of W"),
        (rule(step=lambda _, state, *__: state | {"W": 3}), "step, for W, must return a tensor .* but got int 3"),
        (rule(step=lambda _, state, *__: state | {"W": state["W"][0]}), "step, for W, must return a tensor of shape"),
        (rule(step=lambda _, state, G, eta: {x: state[x].sub_(eta) for x in state}), "but it changed it in place"),
        (rule(step=lambda _, state, *__: state.update(W=state["W"] + 1) or state), "but it changed it in place"),
        (rule(weights=lambda *_: None), r"weights must return a tensor of shape \(6, 6, 32\), but got NoneType"),
        (rule(weights=lambda _, state: state["W"][0]), "weights must return a tensor of shape"),
        (rule(limit=lambda _: "round"), "'round' is not a geometry"),
    ):
        with pytest.raises(AttsvmError, match=words):
            train(data, rule=changed, steps=2)
    run = train(data, rule=rule(limit=lambda _: 2), steps=20)
    assert run.geometry == attsvm.Frobenius()
    assert "was chosen" not in verdict(run).prediction.why
