"""Gradients of the solution against finite differences, and where there are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm import AttsvmError, Mahalanobis, MarginProblem, TokenData, att_svm, gen_svm, solve, sphere
from attsvm.svm import differentiable


def differences(function: Callable[[Tensor], Tensor], x: Tensor, h: float = 1e-4) -> Tensor:
    """Central differences with respect to every entry of x, of a function of many x at once."""
    steps = h * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    values = function(torch.cat((x + steps, x - steps)))
    up, down = values.chunk(2)
    return ((up - down) / (2 * h)).reshape(x.shape)


@pytest.mark.parametrize("norm", ["l2", "l1.5", "l3", "schatten3"])
def test_gradients_of_norm_and_W_are_the_finite_differences(norm: str) -> None:
    data = sphere(3, 4, 3, seed=4)
    tokens, X0, Z0 = data.optimal_tokens(), data.X[0], data.Z[0]
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def values(X: Tensor, Z: Tensor, of_norm: float) -> Tensor:
        X, Z = X.expand(max(len(X), len(Z)), -1, -1, -1), Z.expand(max(len(X), len(Z)), -1, -1, -1)
        solution = solve(att_svm(TokenData.cross(X, Z), tokens.expand(len(X), -1, -1)), norm, tol=1e-12)
        return (solution.W * weight).sum((1, 2)) + of_norm * solution.norm

    for of_norm in (0.0, 1.0):
        X, Z = X0.clone().requires_grad_(), Z0.clone().requires_grad_()
        W, found = differentiable(att_svm(TokenData.cross(X, Z), tokens[0]), norm)
        ((W[0] * weight).sum() + of_norm * found[0]).backward()
        by_X = differences(partial(values, Z=Z0[None], of_norm=of_norm), X0)
        by_Z = differences(partial(values, X0[None], of_norm=of_norm), Z0)
        scale = by_X.abs().max()
        assert torch.allclose(X.grad, by_X, rtol=1e-3, atol=2e-4 * scale)  # type: ignore[arg-type]
        assert torch.allclose(Z.grad, by_Z, rtol=1e-3, atol=2e-4 * scale)  # type: ignore[arg-type]


def test_right_hand_sides_and_weights() -> None:
    rng = np.random.default_rng(2)
    A = torch.from_numpy(rng.normal(size=(4, 6))).requires_grad_()
    b = torch.tensor([1.0, 2, 0.5, 1], dtype=torch.float64, requires_grad=True)
    geometry = Mahalanobis(rng.uniform(0.5, 2, size=(6, 1)))
    W, norm = differentiable(MarginProblem.from_rows(A, b=b), geometry)
    (norm.sum() + W.square().sum()).backward()

    def values(A: Tensor, b: Tensor) -> Tensor:
        problem = MarginProblem.from_rows(A.expand(max(len(A), len(b)), -1, -1), b=b.expand(max(len(A), len(b)), -1))
        solution = solve(problem, geometry, tol=1e-12)
        return solution.norm + solution.W.square().sum((1, 2))

    by_b = differences(lambda x: values(A.detach()[None], x), b.detach())
    assert torch.allclose(b.grad, by_b, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    by_A = differences(lambda x: values(x, b.detach()[None]), A.detach())
    assert torch.allclose(A.grad, by_A, rtol=1e-3, atol=1e-4)  # type: ignore[arg-type]


def test_with_ties() -> None:
    data = sphere(2, 4, 5, seed=1)
    selected = torch.zeros_like(data.mask)
    selected[..., :2] = True
    X = data.X[0].clone().requires_grad_()
    W, _ = differentiable(gen_svm(TokenData.cross(X, data.Z[0]), selected))
    W[0, 1, 2].backward()

    def entries(X: Tensor) -> Tensor:
        problem = gen_svm(TokenData.cross(X, data.Z.expand(len(X), -1, -1, -1)), selected.expand(len(X), -1, -1, -1))
        return solve(problem, tol=1e-12).W[:, 1, 2]

    by_X = differences(entries, data.X[0])
    assert torch.allclose(X.grad, by_X, rtol=1e-3, atol=1e-4 * by_X.abs().max())  # type: ignore[arg-type]


def test_what_is_not_unique_has_no_gradient() -> None:
    problem = att_svm(sphere(3, 4, 5))
    for norm in ("l1", "spectral", "nuclear"):
        with pytest.raises(AttsvmError, match="must be unique"):
            differentiable(problem, norm)
    with pytest.raises(AttsvmError, match="infeasible"):
        differentiable(MarginProblem.from_rows([[1.0, 0], [-1, 0]]))
