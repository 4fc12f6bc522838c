"""What follows from a norm, its dual and a mirror map alone: the defaults of Geometry against formulas."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from draws import random
from torch import Tensor

from attsvm import TokenData, att_svm, solve, sphere, train
from attsvm.dynamics import Steepest
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp

D = torch.linspace(0.5, 2, 12, dtype=torch.float64).reshape(4, 3)


@dataclass(frozen=True)
class Diagonal(Geometry):
    """‖W‖ = (Σ (Dw)⁴)^¼ with ψ = Σ (Dw)⁴/4, nothing else."""

    @property
    def name(self) -> str:
        return "weighted"

    def norm(self, W: Tensor) -> Tensor:
        return Lp(4).norm(D * W)

    def dual_norm(self, G: Tensor) -> Tensor:
        return Lp(4 / 3).norm(G / D)

    def mirror(self, W: Tensor) -> Tensor:
        return D**4 * W**3

    def inverse(self, theta: Tensor) -> Tensor:
        scaled = theta / D**4
        return scaled.sign() * scaled.abs() ** (1 / 3)


@dataclass(frozen=True)
class Bare(Geometry):
    @property
    def name(self) -> str:
        return "bare"

    def norm(self, W: Tensor) -> Tensor:
        return W.abs().amax((-2, -1))


OWN = Diagonal()


def close(a: Tensor, b: Tensor, rtol: float = 1e-10) -> bool:
    return torch.allclose(a, b, rtol=rtol, atol=1e-12)


def test_potentials_follow_from_the_mirror_map() -> None:
    W, V = random(5, 4, 3), random(5, 4, 3, seed=1)
    psi = (D * W).pow(4).sum((1, 2)) / 4
    assert close(OWN.potential(W), psi)
    theta = OWN.mirror(W)
    assert close(OWN.conjugate(theta), 3 * psi)  # ψ is homogeneous of degree 4: ⟨θ, W⟩ = 4ψ
    naive = OWN.potential(W) - OWN.potential(V) - (OWN.mirror(V) * (W - V)).sum((1, 2))
    assert close(OWN.bregman(W, V), naive)
    assert (OWN.bregman(W, W) == 0).all()


def test_divergences_are_differentiable_on_both_sides() -> None:
    W, V = random(2, 4, 3).requires_grad_(), random(2, 4, 3, seed=1).requires_grad_()
    for_W, for_V = torch.autograd.grad(OWN.bregman(W, V).sum(), (W, V))
    assert close(for_W, OWN.mirror(W) - OWN.mirror(V))
    assert close(for_V, 3 * D**4 * V**2 * (V - W))  # ∇²ψ(V)[V − W]


def test_gradients_and_hessians_of_half_the_square() -> None:
    """½‖W‖² = ½s^½ with s = Σ (Dw)⁴: the gradient is g/√s with g = D⁴w³, the Hessian diag(3D⁴w²)/√s − 2 ggᵀ/s^(3/2)."""
    W = random(3, 4, 3)
    s, g = (D * W).pow(4).sum((1, 2)), OWN.mirror(W)
    assert close(OWN.gradient(W), g / s[:, None, None].sqrt())
    flat = g.flatten(1)
    H = torch.diag_embed((3 * D**4 * W**2).flatten(1)) / s[:, None, None].sqrt()
    H = H - 2 * flat[:, :, None] * flat[:, None] / s[:, None, None] ** 1.5
    assert close(OWN.hessian(W), H)
    # ∇²½‖·‖_*² at ∇½‖W‖² is the inverse of ∇²½‖·‖² at W.
    product = OWN.dual_hessian(OWN.gradient(W)) @ OWN.hessian(W)
    assert close(product, torch.eye(12, dtype=torch.float64).expand(3, 12, 12), 1e-6)


def test_the_dual_unit_is_the_slope_of_the_dual_norm() -> None:
    G = random(4, 4, 3)
    unit = OWN.dual_unit(G)
    assert close(OWN.norm(unit), torch.ones(4, dtype=torch.float64))
    assert close((G * unit).sum((1, 2)), OWN.dual_norm(G))
    assert close(OWN.norm(OWN.unit(-3 * G)), torch.ones(4, dtype=torch.float64))


def test_bounds_are_by_the_triangle_inequality() -> None:
    W, error = random(4, 4, 3), 1e-3 * random(4, 4, 3, seed=1).abs()
    none = torch.zeros_like(W)
    for norm, bound, single in ((OWN.norm, OWN.norm_bound, D), (OWN.dual_norm, OWN.dual_norm_bound, 1 / D)):
        assert (bound(W) > norm(W)).all()
        assert close(bound(W), norm(W), 1e-12)
        assert close(bound(none, error), (error * single).sum((1, 2)))
        assert close(bound(W, error), norm(W) + (error * single).sum((1, 2)))
        assert (bound(W, error) > norm(W + error * torch.sign(W))).all()


def test_what_is_missing_is_said() -> None:
    W = random(2, 2)
    assert Bare().has("norm")
    assert not Bare().has("norm", "dual_norm")
    Bare().require("norm", to="be measured")
    with pytest.raises(AttsvmError, match="geometry bare must define dual_norm to train"):
        Bare().require("norm", "dual_norm", to="train")
    for method in ("dual_norm", "mirror", "inverse"):
        with pytest.raises(AttsvmError, match=f"must define {method} to be used here"):
            getattr(Bare(), method)(W)
    assert Bare().blocks(2, 2) is None
    assert not Bare().strictly_convex(2, 2)
    with pytest.raises(AttsvmError, match=r"\(4, 3\) and \(3, 4\): give both the same"):
        OWN.bregman(random(4, 3), random(3, 4))


def test_units_of_extreme_matrices() -> None:
    W = random(4, 3)
    for factor in (1e-300, 1.0, 1e300):
        assert close(OWN.unit(factor * W), OWN.unit(W))
    assert not OWN.unit(torch.zeros(4, 3, dtype=torch.float64)).any()
    assert math.isclose(OWN.directional_bregman(W, 5 * W).item(), 0, abs_tol=1e-15)


@dataclass(frozen=True)
class Made(Geometry):
    """ℓ2, with the norm and its dual that a test gives."""

    of_norm: Callable[[Tensor], Any] = Lp(2).norm
    of_dual: Callable[[Tensor], Any] = Lp(2).norm
    of_inverse: Callable[[Tensor], Any] = torch.clone

    @property
    def name(self) -> str:
        return "made"

    def norm(self, W: Tensor) -> Tensor:
        return self.of_norm(W)

    def dual_norm(self, G: Tensor) -> Tensor:
        return self.of_dual(G)

    def mirror(self, W: Tensor) -> Tensor:
        return W

    def inverse(self, theta: Tensor) -> Tensor:
        return self.of_inverse(theta)


def squared(W: Tensor) -> Tensor:
    return W.square().sum((-2, -1))


def of_positive_part(W: Tensor) -> Tensor:
    """A gauge: 2W is twice as long, −W is not as long."""
    return Lp(2).norm(W.clamp(min=0)) + Lp(2).norm(W) / 2


def root_sum(W: Tensor) -> Tensor:
    """ℓ½, whose ball is not convex."""
    return W.abs().sqrt().sum((-2, -1)).square()


NO_NORMS = {
    r"norm\(2W\) must be 2·norm\(W\), but it is 4·norm\(W\)": Made(squared, squared),
    r"dual_norm\(2W\) must be 2·dual_norm\(W\), but it is 4·dual": Made(of_dual=squared),
    r"norm\(−W\) must be norm\(W\)": Made(of_positive_part),
    r"norm\(W \+ V\) must be at most norm\(W\) \+ norm\(V\)": Made(root_sum),
    r"norm\(W\) must be positive and finite for W ≠ 0, but it is 0": Made(lambda W: 0 * W.abs().sum((-2, -1))),
    r"norm\(W\) must be positive and finite for W ≠ 0, but it is nan": Made(lambda W: W.sum((-2, -1)) * math.nan),
    r"norm of 3 matrices must return a tensor of shape \(3,\), but got shape \(\)": Made(torch.linalg.vector_norm),
    r"norm of 3 matrices must return a tensor of shape \(3,\), but got float 1": Made(lambda W: 1.0),
    r"norm must keep the dtype and device of W, torch.float64 on cpu, .* torch.float32": Made(
        lambda W: Lp(2).norm(W.float())
    ),
    r"dual_norm\(G\) must be max ⟨G, W⟩ over norm\(W\) ≤ 1": Made(of_dual=lambda G: 0.9 * Lp(2).norm(G)),
    r"dual_norm\(G\) must be max ⟨G, W⟩": Made(Lp(1.5).norm, Lp(4).norm),  # its dual is ℓ3
}


@pytest.mark.parametrize("words", NO_NORMS)
def test_what_is_no_norm_is_refused(words: str) -> None:
    data = sphere(3, 4, 6, trials=2, seed=3)
    for use in (lambda made: solve(att_svm(data), made), lambda made: train(data, made, steps=2)):
        with pytest.raises(AttsvmError, match=f"geometry made: .*{words}"):
            use(NO_NORMS[words])


def test_steps_along_a_dual_unit_need_its_derivative() -> None:
    """A detached dual norm is enough to normalise steps, and for nothing else."""
    data = sphere(3, 4, 6, trials=2, seed=3)
    detached = Made(of_dual=lambda G: Lp(2).norm(G).detach())
    assert close(train(data, detached, steps=5).W, train(data, "l2", steps=5).W)
    words = r"⟨G, dual_unit\(G\)⟩ must be dual_norm\(G\), but it is 0·dual_norm\(G\): is dual_norm differentiable"
    with pytest.raises(AttsvmError, match=words):
        solve(att_svm(data), detached)
    with pytest.raises(AttsvmError, match=words):
        train(data, rule=Steepest(detached), steps=5)


def test_an_inverse_undoes_the_mirror_map() -> None:
    data = sphere(3, 4, 6, trials=2, seed=3)
    for inverse, words in (
        (lambda theta: 2 * theta, r"inverse\(mirror\(W\)\) must be W, but is off by 1 of the largest entry"),
        (
            lambda theta: theta[0],
            r"inverse of 3 matrices must return a tensor of shape \(3, 6, 6\), but got shape \(6, 6\)",
        ),
        (lambda theta: None, "inverse of 3 matrices must return a tensor .* but got NoneType None"),
    ):
        with pytest.raises(AttsvmError, match=f"geometry made: {words}"):
            train(data, Made(of_inverse=inverse), steps=2)
        assert solve(att_svm(data), Made(of_inverse=inverse)).solved.all()  # which needs none


def test_a_dual_norm_that_a_feasible_matrix_refutes() -> None:
    """Wrong for few matrices only: those with a zero column."""
    wrong = Made(of_dual=lambda G: Lp(2).norm(G) * torch.where((G == 0).all(-2).any(-1), 0.9, 1.0))
    data = sphere(3, 4, 6, trials=2, seed=3)
    Z = data.Z.clone()
    Z[..., 0] = 0
    problem = att_svm(TokenData.cross(data.X, Z, Y=data.Y, head=data.head))
    with pytest.raises(AttsvmError, match="but a feasible W is shorter than the bound from it: correct dual_norm"):
        solve(problem, wrong)
    assert solve(problem, Made()).solved.all()


def test_norms_of_a_single_precision_run_are_checked_at_its_precision() -> None:
    data = sphere(3, 4, 6, trials=2, seed=3).to(dtype=torch.float32)
    assert train(data, Made(), steps=5).W.isfinite().all()
