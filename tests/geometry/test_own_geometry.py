"""What follows from a norm, its dual and a mirror map alone: the defaults of Geometry against formulas."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

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


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
