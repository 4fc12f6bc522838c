"""The flow as a curve: its Jacobian, the same curve as small steps, exactness and the limit of Theorem 5."""

from __future__ import annotations

import math

import pytest
import torch

from attsvm import AttsvmError, QuadraticHead, TokenData, embedding_svm, solve, sphere
from attsvm.embeddings import descend, gradient_flow, initial_embeddings, single_important
from attsvm.embeddings._flow import _Problem


def cls_data(n: int = 4, T: int = 3, d: int = 5, B: int = 3, scale: float = 1.0) -> TokenData:
    data = sphere(n, T, d, trials=B, seed=1)
    assert data.head is not None
    return TokenData.cls(data.X * scale, data.Y[..., 0], head=data.head.tensors()["v"] * scale)


@pytest.mark.parametrize("norm", [0.5, 3.0])
def test_direction_and_derivative_against_autograd(norm: float) -> None:
    data = cls_data()
    problem = _Problem.of(data)
    p = norm * torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def direction(q: torch.Tensor, b: int) -> torch.Tensor:
        weights = torch.softmax(data.X[b] @ q, -1)
        f = (weights * data.scores()[b, :, 0]).sum(-1)
        return torch.nn.functional.softplus(-f).mean()

    N, slope = problem.direction(p)
    for b in range(3):
        gradient = torch.autograd.functional.jacobian(lambda q, b=b: direction(q, b), p[b])
        hessian = torch.autograd.functional.hessian(lambda q, b=b: direction(q, b), p[b])
        unit = gradient / gradient.norm()
        torch.testing.assert_close(N[b], unit)
        projected = hessian - unit[:, None] * (unit @ hessian)
        torch.testing.assert_close(slope[b], projected / gradient.norm())


def test_the_curve_is_that_of_many_small_steps() -> None:
    data = cls_data(B=2)
    flow = gradient_flow(data, norm=3.0, tol=1e-5)
    problem, p = _Problem.of(data), torch.zeros(2, 5, dtype=torch.float64)
    length = 5e-3
    points = [p]
    while bool((p.norm(dim=1) < 3.1).any()):
        middle = p - length / 2 * problem.direction(p)[0]
        p = p - length * problem.direction(middle)[0]
        points.append(p)
    curve = torch.stack(points)
    for b in range(2):
        distance = torch.cdist(flow.path[:, b], curve[:, b]).amin(1)
        assert float(distance.max()) < 1e-2


def test_directions_stay_exact_where_the_softmax_has_saturated() -> None:
    """The direction at R·p for very large R is finite, of norm one, and does not jump when R grows a little."""
    problem = _Problem.of(cls_data())
    p = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for R in (1e3, 1e6):
        N, slope = problem.direction(R * p)
        again, _ = problem.direction((R + 1e-6) * p)
        assert bool(slope.isfinite().all())
        torch.testing.assert_close(N.norm(dim=1), torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(N, again, atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", [10.0, 300.0, 3000.0])
def test_directions_against_long_arithmetic(norm: float) -> None:
    """With 60 digits beyond the exponents: the error is that of the logits, about 1e-16 times their size."""
    mp = pytest.importorskip("mpmath")
    data = cls_data(B=1)
    p = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    p = norm * p / p.norm()
    ours = _Problem.of(data).direction(p)[0][0]
    with mp.workdps(60 + int(2 * norm)):
        gradient = [mp.mpf(0)] * 5
        for tokens, scores in zip(data.X[0].tolist(), data.scores()[0, :, 0].tolist()):
            logits = [mp.fdot(x, p[0].tolist()) for x in tokens]
            weights = [mp.exp(a - max(logits)) for a in logits]
            q = [w / mp.fsum(weights) for w in weights]
            f = mp.fdot(q, scores)
            for w, score, x in zip(q, scores, tokens):
                for j in range(5):
                    gradient[j] -= w * (score - f) * x[j] / (1 + mp.exp(f))
        size = mp.sqrt(mp.fsum(g * g for g in gradient))
        exact = torch.tensor([float(g / size) for g in gradient], dtype=torch.float64)
    assert float((ours - exact).norm()) <= 1e-14 * max(1.0, norm)


@pytest.mark.parametrize("stated", [True, False])
def test_limit_is_the_max_margin_vector(stated: bool) -> None:
    n, T = 4, 3
    eta = 4.0 * n**2 * T**2 if stated else 20.0
    d = (88 * eta**2 + 111 * eta + 2) ** 8 if stated else 200
    sequences = single_important(n, T, 1, 3, trial=1)
    at, _ = descend(sequences, initial_embeddings(sequences.size, d, reduced=True), lr=eta)
    rows = sequences.ids.reshape(n, T)
    flow = gradient_flow(TokenData.cls(at.E[rows], sequences.Y, head=at.v), at.p)
    assert bool(flow.arrived.all())
    limit = solve(embedding_svm(at.E, rows, flow.p[0], tol=1e-3), tol=1e-12)
    assert bool(limit.solved.all())
    assert float(1 - torch.cosine_similarity(limit.W[0, :, 0], flow.p[0], dim=0)) < 1e-8
    assert (at.E[rows] @ flow.p[0]).argmax(1).tolist() == [0] * n


def test_a_vanishing_gradient_is_no_arrival_and_wrong_data_are_refused() -> None:
    X = torch.ones(1, 2, 3, 4, dtype=torch.float64)
    flat = TokenData.cls(X, torch.tensor([[1.0, -1.0]], dtype=torch.float64), head=torch.ones(1, 4))
    assert not bool(gradient_flow(flat, max_steps=50).arrived.any())
    with pytest.raises(AttsvmError, match="cls"):
        gradient_flow(sphere(2, 3, 4))
    with pytest.raises(AttsvmError, match="start"):
        gradient_flow(flat, torch.zeros(3))
    for wrong in ({"norm": math.nan}, {"tol": 0.0}, {"start": torch.full((4,), math.nan)}):
        with pytest.raises(AttsvmError, match=f"{next(iter(wrong))} must be"):
            gradient_flow(flat, **wrong)
    curved = QuadraticHead(torch.ones(1, 1, 4), torch.ones(1, 1))
    with pytest.raises(AttsvmError, match="linear head"):
        gradient_flow(TokenData.cls(X, torch.tensor([[1.0, -1.0]], dtype=torch.float64), head=curved))


def test_not_all_constraints_of_the_max_margin_vector_are_tight() -> None:
    """Lemma 3's proof takes p̂ = M†1. Sequences {s₁, u₁, u₂, u₃} and {s₂, u₃}, orthonormal embeddings."""
    E = torch.eye(5, dtype=torch.float64)
    solution = solve(embedding_svm(E, [[0, 2, 3, 4], [1, 4, -1, -1]], torch.tensor([1.0, 1, 0, 0, 0])), tol=1e-12)
    assert float(solution.norm) ** 2 == pytest.approx(7 / 6)
    p = solution.W[0, :, 0]
    assert float(p[0] - p[4]) > 1.1
    M = torch.tensor([[1.0, 0, -1, 0, 0], [1, 0, 0, -1, 0], [1, 0, 0, 0, -1], [0, 1, 0, 0, -1]], dtype=torch.float64)
    tight = torch.linalg.pinv(M) @ torch.ones(4, dtype=torch.float64)
    assert float(tight.square().sum()) == pytest.approx(6 / 5)
