"""The norms that are not smooth, or smooth without a potential in closed form: definitions, duality, bounds, names."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from draws import random
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
        for factor in (1e-100, 1e100):
            assert torch.allclose(hessian(factor * W), hessian(W), rtol=1e-10, atol=1e-10)


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


WITH_BLOCKS: list[Geometry] = [
    *(g for g in ALL if not isinstance(g, Mahalanobis)),
    Group(LABELS, largest=True),
    Hybrid(
        (
            Part((0, 3), (0, 1), Lp(2), 2.0),
            Part((0, 3), (1, 3), Spectral()),
            Part((3, 4), (0, 2), Group("columns", largest=True), 0.5),
            Part((3, 4), (2, 3), Lp(math.inf), 3.0),
        )
    ),
    Hybrid((Part((0, 4), (0, 3), MIXED, 3.0),)),
]


@pytest.mark.parametrize("geometry", WITH_BLOCKS, ids=lambda g: g.name)
def test_blocks_make_the_norm(geometry: Geometry) -> None:
    """The largest spectral norm, or the sum of the nuclear norms, of the blocks."""
    blocks = geometry.blocks(4, 3)
    if blocks is None:
        assert 1 < geometry.p < math.inf  # type: ignore[attr-defined]
        return
    W = random(6, 4, 3)
    parts = torch.nn.functional.pad(W.flatten(1), (0, 1))[:, blocks.index]  # −1 is the zero at the end
    assert sorted(x for x in blocks.index.flatten().tolist() if x >= 0) == list(range(12))
    sizes = torch.linalg.svdvals(parts)
    sizes = sizes.amax(-1) if blocks.kind == "max" else sizes.sum(-1)
    sizes = sizes if blocks.weight is None else sizes * blocks.weight
    assert torch.allclose(geometry.norm(W), sizes.amax(-1) if blocks.kind == "max" else sizes.sum(-1), rtol=1e-13)


@pytest.mark.parametrize(
    ("geometry", "convex"),
    [
        (Lp(1), {(1, 1): True, (2, 2): False, (3, 1): False}),
        (Lp(3), {(1, 1): True, (2, 2): True}),
        (Lp(math.inf), {(1, 1): True, (1, 3): False}),
        (Spectral(), {(3, 1): True, (1, 3): True, (2, 2): False}),
        (Schatten(3), {(2, 2): True}),
        (Nuclear(), {(4, 1): True, (1, 4): True, (2, 3): False}),
        (Mahalanobis(DENSE), {(4, 3): True}),
        (Group("rows"), {(2, 2): False}),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_flat_parts_of_unit_balls(geometry: Geometry, convex: dict[tuple[int, int], bool]) -> None:
    """Where a ball has none, the middle of two different unit matrices lies inside it."""
    for shape, expected in convex.items():
        assert geometry.strictly_convex(*shape) is expected
        if expected:
            W, V = (geometry.unit(random(50, *shape, seed=seed)) for seed in (0, 1))
            apart = (W - V).abs().amax((1, 2)) > 0.1
            assert (geometry.norm((W + V) / 2)[apart] < 1 - 1e-6).all()


def test_reprs_make_the_geometry_again() -> None:
    for geometry in (Lp(1), Lp(1.75), Lp(math.inf), Schatten(3), Schatten(1.5), Spectral(), Nuclear(beta=0.5)):
        assert eval(repr(geometry).replace("inf", "math.inf")) == geometry


@pytest.mark.parametrize("n", [6, 8])
def test_bounds_of_a_matrix_near_a_singular_one_are_true_in_real_numbers(n: int) -> None:
    """A Hilbert matrix as M: wᵀMw cancels nearly all of |w|ᵀ|M||w|, and the inverse has lost many digits."""
    mpmath = pytest.importorskip("mpmath")
    numbers = torch.arange(1, n + 1, dtype=torch.float64)
    M = 1 / (numbers[:, None] + numbers - 1)
    geometry = Mahalanobis(M)
    exact, low = mpmath.matrix(M.tolist()), torch.linalg.eigh(M).eigenvectors[:, :2].T
    W = torch.cat([low, low + 1e-4 * random(2, n), random(8, n)])[..., None]
    with mpmath.workdps(60):
        for w, above, dual_above in zip(W, geometry.norm_bound(W), geometry.dual_norm_bound(W)):
            vector = mpmath.matrix(w.tolist())
            norm = mpmath.sqrt((vector.T * exact * vector)[0])
            dual = mpmath.sqrt((vector.T * mpmath.lu_solve(exact, vector))[0])
            assert norm <= above.item() <= norm * 1.001
            assert dual <= dual_above.item() <= dual * 1.01
            assert mpmath.mpf(geometry.norm_bound(0 * w, w.abs()).item()) >= norm
            assert mpmath.mpf(geometry.dual_norm_bound(0 * w, w.abs()).item()) >= dual


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_a_mahalanobis_norm_at_any_scale(size: float) -> None:
    geometry = Mahalanobis([[2.0, 0.5], [0.5, 1.0]])
    W = torch.tensor([[[1.0], [-3.0]]], dtype=torch.float64)
    for norm in (geometry.norm, geometry.dual_norm):
        torch.testing.assert_close(norm(size * W) / size, norm(W))
    torch.testing.assert_close(geometry.norm(geometry.dual_unit(size * W)), torch.ones(1).double())
    assert geometry.dual_unit(0 * W).abs().max() == 0


@pytest.mark.parametrize("p", [1.05, 1.2, 1.5, 3.0])
def test_schatten_divergences_where_singular_values_vanish(p: float) -> None:
    geometry, generator = Schatten(p), torch.Generator().manual_seed(1)
    W = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    expected = geometry.conjugate(geometry.mirror(W))  # D(0, W) = ψ*(∇ψ(W))
    torch.testing.assert_close(geometry.bregman(0 * W, W), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(geometry.bregman(W, 0 * W), geometry.potential(W), rtol=1e-10, atol=0)
    vectors = W[:, :, :1]  # there it is ℓp of one singular value
    near = geometry.bregman(1.001 * vectors, vectors)
    size = torch.linalg.vector_norm(vectors, dim=(1, 2))
    plain = size**p / p * (1.001**p - 1 - p * 0.001)
    torch.testing.assert_close(near, plain, rtol=1e-6, atol=0)
