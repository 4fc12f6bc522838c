"""One battery of properties for every geometry, and mpmath as the judge of accuracy."""

import math

import mpmath as mp
import pytest
import torch
from draws import random
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Frobenius, Geometry, Lp, Nuclear, parse_geometry

mp.mp.dps = 80
PS = [1.05, 1.1, 1.5, 1.75, 2, 3, 6, 10, 20]
LPS = [Lp(p) for p in PS]
NUCLEARS = [Nuclear(), Nuclear(beta=0.5)]
ALL = [*LPS, *NUCLEARS]
EPS = {torch.float32: 1.2e-7, torch.float64: 2.3e-16}

every_geometry = pytest.mark.parametrize("geometry", ALL, ids=repr)
every_lp = pytest.mark.parametrize("geometry", LPS, ids=repr)
every_nuclear = pytest.mark.parametrize("geometry", NUCLEARS, ids=repr)
both_dtypes = pytest.mark.parametrize("dtype", list(EPS), ids=["f32", "f64"])
free = settings(max_examples=12, deadline=None, derandomize=True, database=None)

entries = st.one_of(st.just(0.0), st.floats(0.01, 3), st.floats(-3, -0.01))
shapes = st.sampled_from([(1, 1), (3, 1), (1, 3), (2, 3), (3, 2), (3, 3)])


@st.composite
def matrices(draw: st.DrawFn, count: int = 1) -> list[Tensor]:
    d, e = draw(shapes)
    numbers = st.lists(entries, min_size=d * e, max_size=d * e)
    return [torch.tensor(draw(numbers), dtype=torch.float64).reshape(d, e) for _ in range(count)]


def inner(G: Tensor, W: Tensor) -> Tensor:
    return (G * W).sum((-2, -1))


def orthogonal(n: int, seed: int) -> Tensor:
    return torch.linalg.qr(random(n, n, seed=seed))[0]


# ---- the definitions, in 80 digits ----


def exact(W: Tensor) -> mp.matrix:
    return mp.matrix(W.double().tolist())


def exact_singular(W: Tensor) -> list[mp.mpf]:
    return list(mp.svd_r(exact(W), compute_uv=False))


def exact_potential(geometry: Geometry, W: Tensor) -> mp.mpf:
    if isinstance(geometry, Lp):
        return mp.fsum(abs(mp.mpf(w)) ** mp.mpf(geometry.p) for w in W.flatten().tolist()) / mp.mpf(geometry.p)
    assert isinstance(geometry, Nuclear)
    beta = mp.mpf(geometry.beta)
    return mp.fsum(s * mp.asinh(s / beta) - mp.hypot(s, beta) + beta for s in exact_singular(W))


def exact_conjugate(geometry: Geometry, theta: Tensor) -> mp.mpf:
    if isinstance(geometry, Lp):
        q = mp.mpf(geometry.p) / (mp.mpf(geometry.p) - 1)
        return mp.fsum(abs(mp.mpf(t)) ** q for t in theta.flatten().tolist()) / q
    assert isinstance(geometry, Nuclear)
    return mp.fsum(mp.mpf(geometry.beta) * (mp.cosh(s) - 1) for s in exact_singular(theta))


def exact_mirror(geometry: Geometry, W: Tensor) -> mp.matrix:
    A = exact(W)
    if isinstance(geometry, Lp):
        return A.apply(lambda w: mp.sign(w) * abs(w) ** (mp.mpf(geometry.p) - 1))
    assert isinstance(geometry, Nuclear)
    U, s, Vh = mp.svd_r(A)
    return U * mp.diag([mp.asinh(x / mp.mpf(geometry.beta)) for x in s]) * Vh


def exact_bregman(geometry: Geometry, W: Tensor, V: Tensor) -> mp.mpf:
    # The definition cancels: 1e-15 raised to the power 20, against 1, already takes 300 digits.
    with mp.workdps(700 if isinstance(geometry, Lp) else 200):
        E, theta = exact(W) - exact(V), exact_mirror(geometry, V)
        linear = mp.fsum(theta[i, j] * E[i, j] for i in range(E.rows) for j in range(E.cols))
        return exact_potential(geometry, W) - exact_potential(geometry, V) - linear


def exact_norm(W: Tensor, p: float) -> mp.mpf:
    return mp.fsum(abs(mp.mpf(w)) ** mp.mpf(p) for w in W.flatten().tolist()) ** (1 / mp.mpf(p))


def assert_close(value: Tensor, truth: mp.mpf, rtol: float) -> None:
    """Relatively close; beyond the range of the dtype, exactly ±inf or 0."""
    info, number = torch.finfo(value.dtype), value.item()
    assert not math.isnan(number)
    if abs(truth) > info.max:
        assert number == math.copysign(math.inf, truth)
    elif abs(truth) < info.tiny:
        assert abs(mp.mpf(number) - truth) <= info.tiny
    else:
        assert abs(mp.mpf(number) - truth) <= rtol * abs(truth), (number, truth)


# ---- norms ----


@every_geometry
@free
@given(matrices(2), st.floats(-5, 5))
def test_norm_axioms(geometry: Geometry, pair: list[Tensor], c: float) -> None:
    W, V = pair
    for norm in (geometry.norm, geometry.dual_norm):
        assert (norm(W) == 0) == (not W.any())
        torch.testing.assert_close(norm(c * W), abs(c) * norm(W))
        assert norm(W + V) <= (norm(W) + norm(V)) * (1 + 1e-12)


@every_geometry
@free
@given(matrices(2))
def test_hoelder_holds_and_dual_unit_attains_it(geometry: Geometry, pair: list[Tensor]) -> None:
    G, W = pair
    dual = geometry.dual_norm(G)
    assert inner(G, W) <= dual * geometry.norm(W) * (1 + 1e-12) + 1e-14
    steepest = geometry.dual_unit(G)
    torch.testing.assert_close(inner(G, steepest), dual)
    torch.testing.assert_close(geometry.norm(steepest), G.any().double())
    torch.testing.assert_close(geometry.norm(geometry.unit(G)), G.any().double())


@every_lp
@both_dtypes
def test_norms_of_extreme_entries(geometry: Lp, dtype: torch.dtype) -> None:
    W = torch.tensor([[1e30, -1e-30, 3e29, 0.0]], dtype=dtype)
    for X in (W, W[:, 1:2], 1e-7 * W[:, 1:], 1e7 * W):
        assert_close(geometry.norm(X), exact_norm(X, geometry.p), 20 * EPS[dtype])
        assert_close(geometry.dual_norm(X), exact_norm(X, geometry.q), 20 * EPS[dtype])
        truth = [mp.sign(x) * (abs(mp.mpf(x)) / exact_norm(X, geometry.q)) ** (geometry.q - 1) for x in X[0].tolist()]
        for value, target in zip(geometry.dual_unit(X)[0], truth, strict=True):
            assert_close(value, target, 500 * EPS[dtype])


# ---- potential, mirror map, conjugate ----


@every_geometry
@free
@given(matrices(2))
def test_fenchel_young(geometry: Geometry, pair: list[Tensor]) -> None:
    W, theta = pair
    bound = geometry.potential(W) + geometry.conjugate(theta)
    assert inner(theta, W) <= bound * (1 + 1e-12)
    theta = geometry.mirror(W)
    torch.testing.assert_close(
        geometry.potential(W) + geometry.conjugate(theta), inner(theta, W), rtol=1e-11, atol=1e-13
    )


@every_geometry
@free
@given(matrices())
def test_mirror_and_inverse_undo_each_other(geometry: Geometry, one: list[Tensor]) -> None:
    (W,) = one
    rtol, atol = 1e-12, 0.0 if isinstance(geometry, Lp) else 1e-10
    torch.testing.assert_close(geometry.inverse(geometry.mirror(W)), W, rtol=rtol, atol=atol)
    torch.testing.assert_close(geometry.mirror(geometry.inverse(W)), W, rtol=rtol, atol=atol)


@every_geometry
@free
@given(matrices(2), st.floats(0, 1))
def test_potential_is_convex_and_conjugate_is_its_definition(geometry: Geometry, pair: list[Tensor], c: float) -> None:
    W, V = pair
    chord = c * geometry.potential(W) + (1 - c) * geometry.potential(V)
    assert geometry.potential(c * W + (1 - c) * V) <= chord * (1 + 1e-12) + 1e-14
    assert_close(geometry.potential(W), exact_potential(geometry, W), 1e-12)
    assert_close(geometry.conjugate(W), exact_conjugate(geometry, W), 1e-12)


@every_lp
@both_dtypes
@pytest.mark.parametrize("size", [1e30, 1e10, 1.0, 1e-10, 1e-30])
def test_lp_extremes_leave_the_range_only_where_the_truth_does(geometry: Lp, dtype: torch.dtype, size: float) -> None:
    w = torch.tensor([[size]], dtype=dtype)
    p, x = mp.mpf(geometry.p), mp.mpf(w.item())
    rtol = 200 * EPS[dtype]
    assert_close(geometry.potential(w), x**p / p, rtol)
    assert_close(geometry.conjugate(w), x ** (p / (p - 1)) * (p - 1) / p, 10 * rtol)
    assert_close(geometry.mirror(-w), -(x ** (p - 1)), rtol)
    assert_close(geometry.inverse(-w), -(x ** (1 / (p - 1))), 10 * rtol)


# ---- Bregman divergence ----


@every_geometry
@free
@given(matrices(2), st.sampled_from([0.0, 1e-15, 1e-12, 1e-8, 1e-4, 1e-2, 0.3, 1.0]))
def test_bregman_is_its_definition_near_and_far(geometry: Geometry, pair: list[Tensor], step: float) -> None:
    V, E = pair
    W = V + step * E
    D, truth = geometry.bregman(W, V), exact_bregman(geometry, W, V)
    assert D == 0 if torch.equal(W, V) else D > 0 or truth < 1e-300
    assert_close(D, truth, 1e-12)


@every_lp
@both_dtypes
def test_lp_bregman_of_all_pairs_of_extremes(geometry: Lp, dtype: torch.dtype) -> None:
    sizes = torch.tensor([0, 1e-30, 1.1e-30, 1e-8, 0.3, 1, 1.000001, 1.5, 7, 1e8, 0.9e30, 1e30, 3e38], dtype=dtype)
    values = torch.cat([sizes, -sizes[1:]])
    W, V = (x[..., None, None] for x in torch.meshgrid(values, values, indexing="ij"))
    D = geometry.bregman(W, V)
    assert (D >= 0).all()
    assert (D.diagonal() == 0).all()
    for i in range(0, len(values), 2):
        for j in range(i // 2 % 2, len(values), 2):
            assert_close(D[i, j], exact_bregman(geometry, W[i, j], V[i, j]), 300 * EPS[dtype])


@every_geometry
@free
@given(matrices(2), st.floats(1e-20, 1e20), st.floats(1e-20, 1e20))
def test_directional_bregman_ignores_positive_scale(geometry: Geometry, pair: list[Tensor], a: float, b: float) -> None:
    W, V = pair
    D = geometry.directional_bregman(W, V)
    torch.testing.assert_close(geometry.directional_bregman(a * W, b * V), D, rtol=1e-11, atol=1e-24)
    torch.testing.assert_close(geometry.directional_bregman(a * W, b * W), 0 * D, rtol=0, atol=1e-26)


def test_bregman_broadcasts_leading_axes_and_refuses_other_shapes() -> None:
    assert Lp(3).bregman(random(5, 1, 2, 3), random(4, 2, 3, seed=1)).shape == (5, 4)
    with pytest.raises(AttsvmError, match="same"):
        Lp(3).bregman(random(2, 3), random(2, 1))


# ---- gradients ----


@every_geometry
@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3)])
def test_autograd(geometry: Geometry, shape: tuple[int, int]) -> None:
    # Entries of modulus 0.5 to 1: finite differences of |w|^20 are of no use elsewhere.
    W, V = (
        (x.sign() * (1 + torch.tanh(x.abs())) / 2).requires_grad_()
        for x in (random(2, *shape), random(2, *shape, seed=1))
    )
    check = torch.autograd.gradcheck
    for f in (geometry.norm, geometry.dual_norm, geometry.potential, geometry.mirror, geometry.unit):
        assert check(f, W, rtol=1e-3, atol=1e-5)
    small = (0.5 * W).detach().requires_grad_()
    for f in (geometry.conjugate, geometry.inverse, geometry.dual_unit):
        assert check(f, small, rtol=1e-3, atol=1e-5)
    assert check(geometry.bregman, (W, V), rtol=1e-3, atol=1e-5)
    assert check(geometry.directional_bregman, (W, V), rtol=1e-3, atol=1e-5)
    assert torch.autograd.gradgradcheck(geometry.potential, W, rtol=1e-3, atol=1e-5)


@every_geometry
@free
@given(matrices())
def test_gradients_of_the_potentials_are_the_mirror_maps(geometry: Geometry, one: list[Tensor]) -> None:
    W = one[0].requires_grad_()
    for f, gradient in ((geometry.potential, geometry.mirror), (geometry.conjugate, geometry.inverse)):
        (g,) = torch.autograd.grad(f(W), W)
        torch.testing.assert_close(g, gradient(W).detach())


@every_geometry
def test_gradients_at_zero_are_zero(geometry: Geometry) -> None:
    W = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    for f in (geometry.norm, geometry.dual_norm, geometry.potential, geometry.conjugate):
        (g,) = torch.autograd.grad(f(W), W)
        assert torch.equal(g, torch.zeros_like(W))
    assert not geometry.unit(W).any()
    assert not geometry.dual_unit(W).any()


@every_nuclear
def test_nuclear_mirror_is_differentiable_at_repeated_and_zero_singular_values(geometry: Nuclear) -> None:
    for W in (torch.eye(3), torch.zeros(3, 2), torch.diag(torch.tensor([1.0, 1.0, 0.0])), torch.ones(2, 3)):
        W = W.double().requires_grad_()
        rescaled = lambda X: geometry.mirror(1e-2 * geometry.beta * X)  # noqa: E731
        assert torch.autograd.gradcheck(rescaled, W, rtol=1e-3, atol=1e-6)
        assert torch.autograd.gradcheck(geometry.inverse, W, rtol=1e-3, atol=1e-6)
        V = W.detach().clone().requires_grad_()
        for g in torch.autograd.grad(geometry.bregman(W, V), (W, V)):
            assert not g.any()


def test_nuclear_says_that_second_derivatives_of_the_mirror_map_are_missing() -> None:
    W = random(3, 2).requires_grad_()
    (g,) = torch.autograd.grad(Nuclear().mirror(W).sum(), W, create_graph=True)
    with pytest.raises(AttsvmError, match="once"):
        g.sum().backward()


# ---- special cases, symmetries, shapes ----


def test_p_2_is_euclidean() -> None:
    F, W, V = Frobenius(), random(4, 3, 2), random(4, 3, 2, seed=1)
    norm = torch.linalg.matrix_norm(W)
    assert Lp(2) == F
    torch.testing.assert_close(F.norm(W), norm)
    torch.testing.assert_close(F.dual_norm(W), norm)
    torch.testing.assert_close(F.dual_unit(W), W / norm[:, None, None])
    torch.testing.assert_close(F.potential(W), norm.square() / 2)
    torch.testing.assert_close(F.conjugate(W), norm.square() / 2)
    torch.testing.assert_close(F.bregman(W, V), torch.linalg.matrix_norm(W - V).square() / 2)
    cosine = torch.cosine_similarity(W.flatten(1), V.flatten(1))
    torch.testing.assert_close(F.directional_bregman(W, V), 1 - cosine)
    assert torch.equal(F.mirror(W), W)
    assert torch.equal(F.inverse(W), W)
    assert F.mirror(W).data_ptr() != W.data_ptr()  # θ may be updated in place


@every_lp
def test_lp_ignores_the_order_of_entries(geometry: Lp) -> None:
    W, V = random(3, 4), random(3, 4, seed=1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    w, v = (X.flatten()[order].reshape(4, 3) for X in (W, V))
    for f in (geometry.norm, geometry.dual_norm, geometry.potential, geometry.conjugate):
        torch.testing.assert_close(f(w), f(W))
    torch.testing.assert_close(geometry.bregman(w, v), geometry.bregman(W, V))
    torch.testing.assert_close(geometry.mirror(w).flatten(), geometry.mirror(W).flatten()[order])


@every_nuclear
def test_nuclear_ignores_rotations(geometry: Nuclear) -> None:
    W, V, A, B = random(4, 3), random(4, 3, seed=1), orthogonal(4, 2), orthogonal(3, 3)
    for f in (geometry.norm, geometry.dual_norm, geometry.potential, geometry.conjugate):
        torch.testing.assert_close(f(A @ W @ B), f(W))
    torch.testing.assert_close(geometry.bregman(A @ W @ B, A @ V @ B), geometry.bregman(W, V))
    torch.testing.assert_close(geometry.bregman(W.mT, V.mT), geometry.bregman(W, V))
    torch.testing.assert_close(geometry.mirror(A @ W @ B), A @ geometry.mirror(W) @ B)


def test_nuclear_potential_tends_to_the_norm() -> None:
    W = random(4, 3)
    ratios = [Nuclear(b).potential(W) / math.log(2 / b) / Nuclear().norm(W) for b in (1e-10, 1e-50, 1e-250)]
    errors = [abs(r.item() - 1) for r in ratios]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 2e-3


def test_factor_flow_is_the_mirror_flow_at_twice_the_speed() -> None:
    # Diagonal factors with k² − q² = 2β: dσ/dt = −(k² + q²) g = −2 √(σ² + β²) g = −2 g/ψ″(σ).
    q = torch.tensor([0.0, 0.1, 3.0], dtype=torch.float64)
    beta = 0.02
    k = (q.square() + 2 * beta).sqrt()
    inverse_curvature = 1 / torch.diagonal(Nuclear(beta)._hessian(torch.diag(k * q), torch.eye(3).double()))
    torch.testing.assert_close(k.square() + q.square(), 2 * inverse_curvature)


@every_nuclear
@both_dtypes
@pytest.mark.parametrize("sizes", [(1e30, 1e-30), (1e30, 1e29), (1e-30, 2e-30), (1e30, 1.0), (1.0, 1e-30)])
def test_nuclear_extremes(geometry: Nuclear, dtype: torch.dtype, sizes: tuple[float, float]) -> None:
    W = torch.diag(torch.tensor(sizes, dtype=dtype))[:, [1, 0]]
    V = torch.diag(torch.tensor(sizes[::-1], dtype=dtype))
    tol = 100 * EPS[dtype]
    assert_close(geometry.norm(W), mp.mpf(W.double().sum().item()), tol)
    assert_close(geometry.dual_norm(W), mp.mpf(W.max().item()), tol)
    assert_close(geometry.potential(W), exact_potential(geometry, W), tol)
    theta = geometry.mirror(W)
    for value, truth in zip(theta.flatten(), exact_mirror(geometry, W), strict=True):
        assert_close(value, truth, tol)
    back = geometry.inverse(theta)
    torch.testing.assert_close(back[W > 0], W[W > 0], rtol=300 * EPS[dtype], atol=0)
    assert_close(geometry.conjugate(theta), exact_conjugate(geometry, theta), 2 * tol)
    for A, B in ((W, V), (V, W), (W, 1.000001 * W), (W, -W), (W, 0 * W), (0 * W, W)):
        assert_close(geometry.bregman(A, B), exact_bregman(geometry, A, B), tol)


@every_nuclear
def test_nuclear_bregman_of_dense_matrices_with_spread_singular_values(geometry: Nuclear) -> None:
    s = torch.tensor([1e30, 1.0, 1e-30], dtype=torch.float64)
    W, V = orthogonal(3, 0) * s @ orthogonal(3, 1), random(3, 3)
    for A, B in ((W, V), (V, W), (W, 1.5 * W)):
        assert_close(geometry.bregman(A, B), exact_bregman(geometry, A, B), 1e-12)


@every_nuclear
def test_nuclear_inverse_beyond_the_range_is_infinite_never_nan(geometry: Nuclear) -> None:
    theta = torch.diag(torch.tensor([1e4, 5.0, 0.0], dtype=torch.float64))
    W = geometry.inverse(theta)
    assert W[0, 0] == math.inf
    assert not W.isnan().any()
    assert geometry.conjugate(theta) == math.inf
    for size in (705.0, 709.0, 711.0, 715.0):
        truth = mp.mpf(geometry.beta) * mp.sinh(mp.mpf(size))
        assert_close(geometry.inverse(theta * 0 + size * torch.eye(3))[1, 1], truth, 1e-12)
    assert geometry.inverse(100 * torch.eye(2)).tolist() == [[math.inf, 0], [0, math.inf]]


@every_geometry
def test_batches_are_loops(geometry: Geometry) -> None:
    W, V = random(2, 3, 4, 2), random(2, 3, 4, 2, seed=1)
    unary = ("norm", "dual_norm", "potential", "mirror", "inverse", "conjugate", "unit", "dual_unit")
    for name in unary:
        f = getattr(geometry, name)
        loop = torch.stack([torch.stack([f(x) for x in row]) for row in W])
        torch.testing.assert_close(f(W), loop)
        assert f(W[:0]).shape == loop[:0].shape
        assert f(W[:, :0]).shape == loop[:, :0].shape
    for f in (geometry.bregman, geometry.directional_bregman):
        loop = torch.stack([torch.stack([f(x, y) for x, y in zip(*rows)]) for rows in zip(W, V)])
        torch.testing.assert_close(f(W, V), loop)
        assert f(W[:0], V[:0]).shape == (0, 3)


@every_geometry
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_results_keep_the_dtype(geometry: Geometry, dtype: torch.dtype) -> None:
    W, V = random(3, 2, dtype=dtype), random(3, 2, seed=1, dtype=dtype)
    for name in ("norm", "dual_norm", "potential", "mirror", "inverse", "conjugate", "unit", "dual_unit"):
        assert getattr(geometry, name)(W).dtype is dtype, name
    assert geometry.directional_bregman(W, V).dtype is dtype
    torch.testing.assert_close(geometry.norm(W).double(), geometry.norm(W.double()), rtol=3e-2, atol=0)


# ---- names and refusals ----


@pytest.mark.parametrize(
    ("text", "geometry"),
    [("l1.75", Lp(1.75)), ("L3", Lp(3)), (" l2 ", Lp(2)), ("Frobenius", Lp(2)), ("nuclear", Nuclear())],
)
def test_parse(text: str, geometry: Geometry) -> None:
    assert parse_geometry(text) == geometry
    assert parse_geometry(geometry) is geometry
    assert parse_geometry(geometry.name) == geometry
    assert hash(parse_geometry(text)) == hash(geometry)


def test_names_and_reprs() -> None:
    assert [g.name for g in (Lp(1.75), Lp(2), Nuclear(0.5))] == ["l1.75", "l2", "nuclear"]
    assert [repr(g) for g in (Lp(1.75), Frobenius(), Nuclear(0.5))] == [
        "Lp(1.75)",
        "Lp(2)",
        "Nuclear(beta=0.5)",
    ]


@pytest.mark.parametrize("text", ["", "l", "lp:1.5", "spectral3", "l1.5x", "schatten", "group:entries", None, True])
def test_parse_lists_what_it_accepts(text: object) -> None:
    with pytest.raises(AttsvmError, match=r"'l1\.75'.*'frobenius'.*'nuclear'"):
        parse_geometry(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [0.5, -2, math.nan, "2"])
def test_lp_refuses(p: float) -> None:
    with pytest.raises(AttsvmError, match="1 ≤ p ≤ inf"):
        Lp(p)


@pytest.mark.parametrize("text", ["l0.9", "lnan", "schatten0.5"])
def test_parse_refuses_bad_exponents(text: str) -> None:
    with pytest.raises(AttsvmError, match="1 ≤ p ≤ inf"):
        parse_geometry(text)


@pytest.mark.parametrize("beta", [0, -1, math.inf, math.nan])
def test_nuclear_refuses(beta: float) -> None:
    with pytest.raises(AttsvmError, match="0 < beta < inf"):
        Nuclear(beta)


@pytest.mark.parametrize("geometry", [Lp(1.5), Nuclear()], ids=lambda g: g.name)
def test_an_undefined_matrix_does_not_stop_the_batch(geometry: Geometry) -> None:
    W = torch.tensor([[[1.0, 2.0]], [[float("nan"), 0.0]]], dtype=torch.float64)
    for norm in (geometry.norm(W), geometry.dual_norm(W)):
        assert norm[0].isfinite()
        assert norm[1].isnan()
