"""The norms that are not smooth, or smooth without a potential in closed form: definitions, duality, bounds, names."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Group, Hybrid, Lp, Mahalanobis, Nuclear, Part, Schatten, Spectral, parse_geometry

FROM_ONE = torch.arange(1.0, 13.0, dtype=torch.float64)
LABELS = [[0, 0, 1], [2, 1, 1], [2, 2, 2], [0, 3, 3]]
DENSE = torch.diag(FROM_ONE) + 0.1
MIXED = Hybrid((Part((0, 2), (0, 3), Lp(math.inf)), Part((2, 4), (0, 3), Spectral(), 0.5)))
ALL: list[Geometry] = [
    Lp(1),
    Lp(math.inf),
    Schatten(1),
    Schatten(1.5),
    Schatten(2),
    Schatten(4),
    Spectral(),
    Group("rows"),
    Group("columns"),
    Group("rows", largest=True),
    Group(LABELS),
    Mahalanobis(DENSE),
    Mahalanobis(FROM_ONE.reshape(4, 3)),
    MIXED,
]
every = pytest.mark.parametrize("geometry", ALL, ids=lambda g: g.name)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(geometry: Geometry, W: Tensor) -> Tensor:
    """The norm of one matrix, written out."""
    sizes = torch.linalg.svdvals(W)
    if isinstance(geometry, Lp):
        return W.abs().sum() if geometry.p == 1 else W.abs().max()
    if isinstance(geometry, Schatten):
        return torch.linalg.vector_norm(sizes, ord=geometry.p)
    if isinstance(geometry, Mahalanobis):
        M = torch.tensor(geometry.M, dtype=torch.float64)
        M = M if len(M) == W.numel() else torch.diag(M.flatten())
        return (W.flatten() @ M @ W.flatten()).sqrt()
    if isinstance(geometry, Hybrid):
        return torch.maximum(W[:2].abs().max(), 0.5 * torch.linalg.matrix_norm(W[2:], 2))
    assert isinstance(geometry, Group)
    labels = torch.tensor(LABELS)
    if isinstance(geometry.groups, str):
        labels = torch.arange(4)[:, None].expand(4, 3) if geometry.groups == "rows" else torch.arange(3).expand(4, 3)
    groups = torch.stack([W[labels == g].square().sum().sqrt() for g in range(int(labels.max()) + 1)])
    return groups.max() if geometry.largest else groups.sum()


@every
def test_the_norm_is_its_definition(geometry: Geometry) -> None:
    W = random(5, 4, 3)
    expected = torch.stack([by_definition(geometry, w) for w in W])
    assert torch.allclose(geometry.norm(W), expected, rtol=1e-13, atol=0)
    assert torch.allclose(geometry.norm(-1e100 * W) / 1e100, expected, rtol=1e-12)
    assert (geometry.norm(torch.zeros(2, 4, 3, dtype=torch.float64)) == 0).all()


@every
def test_norm_axioms(geometry: Geometry) -> None:
    W, V = random(40, 4, 3), random(40, 4, 3, seed=1)
    for norm in (geometry.norm, geometry.dual_norm):
        assert (norm(W + V) <= (norm(W) + norm(V)) * (1 + 1e-14)).all()
        assert torch.allclose(norm(-2.5 * W), 2.5 * norm(W), rtol=1e-13)
        assert (norm(W) > 0).all()


@every
def test_the_dual_unit_attains_the_dual_norm(geometry: Geometry) -> None:
    G, W = random(30, 4, 3), random(30, 4, 3, seed=1)
    unit = geometry.dual_unit(G)
    assert torch.allclose(geometry.norm(unit), torch.ones(30, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose((G * unit).sum((1, 2)), geometry.dual_norm(G), rtol=1e-12)
    assert ((G * W).sum((1, 2)) <= geometry.norm(W) * geometry.dual_norm(G) * (1 + 1e-13)).all()
    assert not geometry.dual_unit(torch.zeros(1, 4, 3, dtype=torch.float64)).isnan().any()


@every
def test_bounds_lie_above_every_matrix_they_speak_of(geometry: Geometry) -> None:
    W, error = random(20, 4, 3), 1e-9 * random(20, 4, 3, seed=2).abs()
    for norm, bound in (
        (geometry.norm, geometry.norm_bound),
        (geometry.dual_norm, geometry.dual_norm_bound),
    ):
        assert (bound(W) >= norm(W)).all()
        assert torch.allclose(bound(W), norm(W), rtol=1e-11)
        for seed in range(3):
            inside = W + error * random(20, 4, 3, seed=seed).clamp(-1, 1)
            assert (bound(W, error) >= norm(inside)).all()
        assert torch.allclose(bound(W, error), norm(W), rtol=1e-6)


@every
def test_mirror_maps_exist_where_they_should(geometry: Geometry) -> None:
    W, V = random(6, 4, 3), random(6, 4, 3, seed=1)
    if not geometry.has("mirror", "inverse"):
        with pytest.raises(AttsvmError, match="mirror"):
            geometry.mirror(W)
        with pytest.raises(AttsvmError, match=r"mirror|inverse"):
            geometry.inverse(W)
        return
    theta = geometry.mirror(W)
    assert torch.allclose(geometry.inverse(theta), W, rtol=1e-9, atol=1e-12)
    at = W.clone().requires_grad_()
    (slope,) = torch.autograd.grad(geometry.potential(at).sum(), at)
    assert torch.allclose(slope, theta)
    young = geometry.potential(W) + geometry.conjugate(theta)
    assert torch.allclose(young, (W * theta).sum((1, 2)), rtol=1e-8)
    naive = geometry.potential(W) - geometry.potential(V) - (geometry.mirror(V) * (W - V)).sum((1, 2))
    assert torch.allclose(geometry.bregman(W, V), naive, rtol=1e-5)
    assert (geometry.bregman(W, W).abs() <= 1e-12).all()


@pytest.mark.parametrize("geometry", [Schatten(1.5), Schatten(3), Mahalanobis(DENSE)], ids=lambda g: g.name)
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (12, 1)], ids=str)
def test_hessians_of_half_the_square(geometry: Geometry, shape: tuple[int, int]) -> None:
    W, E = random(3, *shape), random(3, *shape, seed=1)
    for gradient, hessian in (
        (geometry.gradient, geometry.hessian),
        (lambda G: geometry.dual_norm(G)[:, None, None] * geometry.dual_unit(G), geometry.dual_hessian),
    ):
        step = 1e-5
        slope = (gradient(W + step * E) - gradient(W - step * E)) / (2 * step)
        product = (hessian(W) @ E.flatten(1)[..., None]).reshape(W.shape)
        assert torch.allclose(slope, product, rtol=1e-6, atol=1e-7)


def test_special_cases() -> None:
    W = random(7, 4, 3)
    assert torch.allclose(Schatten(2).norm(W), Lp(2).norm(W))
    assert torch.allclose(Schatten(1).norm(W), Nuclear().norm(W))
    assert torch.allclose(Schatten(3).norm(W[:, :, :1]), Lp(2).norm(W[:, :, :1]))
    assert torch.allclose(Group([[0] * 3] * 4).norm(W), Lp(2).norm(W))
    assert torch.allclose(Group(torch.arange(12).reshape(4, 3)).norm(W), Lp(1).norm(W))
    assert torch.allclose(Mahalanobis(torch.ones(4, 3)).norm(W), Lp(2).norm(W))
    assert Lp(1).dual == Lp(math.inf)
    assert Spectral().dual == Schatten(1)
    assert Group("rows").dual.dual == Group("rows")


def test_names_and_parsing() -> None:
    names = {
        "l1": Lp(1),
        "linf": Lp(math.inf),
        "inf": Lp(math.inf),
        "spectral": Spectral(),
        "schatten3": Schatten(3),
        "Schatten1.5": Schatten(1.5),
        "group:rows": Group("rows"),
        "group-max:columns": Group("columns", largest=True),
        "fro": Lp(2),
        "nuc": Nuclear(),
    }
    for text, geometry in names.items():
        assert parse_geometry(text) == geometry
    for geometry in ALL:
        if not isinstance(geometry, Mahalanobis | Hybrid) and geometry.name != "group:own":
            assert parse_geometry(geometry.name) == geometry
        again = copy.deepcopy(geometry)
        assert again == geometry
        assert hash(again) == hash(geometry)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schatten(0.5), "1 ≤ p ≤ inf"),
        (lambda: Group("entries"), "groups must be 'rows', 'columns'"),
        (lambda: Group([[0, 2]]), "all of them in use"),
        (lambda: Group(LABELS).norm(random(2, 2)), "groups were given for W"),
        (lambda: Mahalanobis([[1.0, 2], [3, -1]]), "positive definite"),
        (lambda: Mahalanobis(DENSE).norm(random(2, 2)), "M is for W with 12 entries"),
        (lambda: Hybrid(()), "parts must be"),
        (lambda: MIXED.norm(random(5, 3)), "must cover W"),
        (lambda: Part((0, 0), (0, 1), Lp(2)), "start < stop"),
        (lambda: Part((0, 1), (0, 1), Lp(2), 0.0), "weight"),
        (lambda: Lp(1).check_smooth(), "l1 has no mirror map: take 1 < p < inf"),
        (lambda: Spectral().mirror(random(2, 2)), "spectral has no mirror map"),
        (lambda: Hybrid((Part((0, 2), (0, 2), Lp(3)),)).blocks(2, 2), "a Hybrid with l3 cannot be solved"),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        make()  # type: ignore[operator]
