"""Heads against their formulas and torch autograd."""

import numpy as np
import pytest
import torch

from attsvm.data import Head, LinearHead, MLPHead, QuadraticHead
from attsvm.errors import AttsvmError

B, K, n, M, d, width = 3, 4, 2, 5, 6, 7


def make_head(kind: str, H: int, seed: int = 0) -> Head:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    if kind == "linear":
        return LinearHead(draw(B, H, d))
    if kind == "mlp":
        return MLPHead(draw(B, H, width, d), draw(B, H, width), draw(B, H, width))
    return QuadraticHead(draw(B, H, d), draw(B, H))


def formula(head: Head, b: int, h: int, x: torch.Tensor) -> torch.Tensor:
    if isinstance(head, LinearHead):
        return head.v[b, h] @ x
    if isinstance(head, MLPHead):
        return head.a[b, h] @ torch.relu(head.U[b, h] @ x + head.c[b, h])
    assert isinstance(head, QuadraticHead)
    return head.v[b, h] @ x - head.lam[b, h] * (x @ x)


KINDS = pytest.mark.parametrize("kind", ["linear", "mlp", "quadratic"])
COUNTS = pytest.mark.parametrize(("H", "queries"), [(1, 1), (1, K), (K, 1), (K, K)])


@KINDS
@COUNTS
def test_value_and_gradient_follow_the_formula(kind: str, H: int, queries: int) -> None:
    head = make_head(kind, H)
    x = torch.randn(B, n, queries, M, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = max(H, queries)
    value, grad = head.value(x), head.grad(x)
    assert value.shape == (B, n, out, M)
    assert grad.shape == (B, n, out, M, d)
    for b, i, k, m in np.ndindex(B, n, out, M):
        point = x[b, i, k % queries, m].clone().requires_grad_()
        expected = formula(head, b, k % H, point)
        (slope,) = torch.autograd.grad(expected, point)
        torch.testing.assert_close(value[b, i, k, m], expected.detach())
        torch.testing.assert_close(grad[b, i, k, m], slope)


@KINDS
def test_value_is_differentiable_in_x(kind: str) -> None:
    head = make_head(kind, 1)
    x = torch.randn(B, n, 1, M, d, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(head.value(x).sum(), x)
    torch.testing.assert_close(head.grad(x).detach(), slope)


def test_sum_relu() -> None:
    x = torch.randn(B, n, 1, M, d, dtype=torch.float64)
    torch.testing.assert_close(MLPHead.sum_relu(B, d).value(x), x.relu().sum(-1))


@KINDS
def test_trials_can_be_cut_and_joined(kind: str) -> None:
    head = make_head(kind, K)
    joined = Head.cat([head[:1], head[torch.tensor([1, 2])]])
    assert type(joined) is type(head)
    for name, tensor in head.tensors().items():
        assert torch.equal(joined.tensors()[name], tensor)


@KINDS
def test_to_changes_every_parameter(kind: str) -> None:
    single = make_head(kind, 1).to(dtype=torch.float32)
    assert {tensor.dtype for tensor in single.tensors().values()} == {torch.float32}


def test_parameters_may_be_arrays_and_lists() -> None:
    head = QuadraticHead(np.ones((1, 1, 2), dtype=np.float32), [[3]])  # type: ignore[arg-type]
    assert head.v.dtype == head.lam.dtype == torch.float64
    assert head.value(torch.ones(1, 1, 1, 1, 2, dtype=torch.float64)).item() == 2 - 3 * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearHead(torch.ones(3, 4)), "linear head's v must have shape (B, H, d)"),
        (lambda: LinearHead(torch.full((1, 1, 2), torch.nan)), "must be finite"),
        (lambda: LinearHead(torch.ones(1, 0, 2)), "H, d ≥ 1"),
        (lambda: LinearHead("v"), "must be an array of real numbers"),  # type: ignore[arg-type]
        (lambda: LinearHead(torch.ones(1, 1, 2, dtype=torch.complex64)), "real numbers"),
        (
            lambda: QuadraticHead(torch.ones(2, 1, 3), torch.ones(2, 2)),
            "lam must have shape (B, H) = (2, 1), but got shape (2, 2).",
        ),
        (
            lambda: QuadraticHead(torch.ones(2, 1, 3), torch.ones(2, 1, dtype=torch.float64)),
            "must have the dtype and device of quadratic head's v",
        ),
        (lambda: MLPHead(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 3)), "(1, 1, 3)"),
        (lambda: Head.cat([]), "one kind"),
        (lambda: Head.cat([make_head("linear", 1), make_head("mlp", 1)]), "linear, mlp"),
        (lambda: Head.cat([make_head("linear", 1), make_head("linear", 2)]), "equal shapes"),
        (lambda: make_head("linear", 1).value(torch.ones(B, n, M, d)), "x must have shape"),
        (lambda: make_head("linear", 2).grad(torch.ones(B, n, 3, M, d)), "fitting H = 2"),
        (lambda: MLPHead.sum_relu(1, 0), "d must be a whole number"),
    ],
)
def test_malformed_heads_are_refused(make, words: str) -> None:
    with pytest.raises(AttsvmError) as caught:
        make()
    assert words in str(caught.value)


def test_bend_says_where_a_head_is_convex() -> None:
    a = torch.tensor([[[1.0, 2.0]], [[-1.0, -2.0]], [[1.0, -2.0]], [[0.0, 0.0]], [[0.0, -1.0]]]).double()
    mlp = MLPHead(torch.ones(5, 1, 2, 3).double(), torch.zeros(5, 1, 2).double(), a)
    assert mlp.bend()[:, 0].nan_to_num(9).tolist() == [1, -1, 9, 0, -1]  # mixed signs: neither
    quadratic = QuadraticHead(torch.ones(3, 1, 2).double(), torch.tensor([[1.0], [-1.0], [0.0]]).double())
    assert quadratic.bend()[:, 0].tolist() == [-1, 1, 0]
    assert LinearHead(torch.ones(2, 1, 3).double()).bend().tolist() == [[0], [0]]


@pytest.mark.parametrize("kind", ["linear", "mlp", "quadratic"])
def test_derivatives_in_closed_form_are_those_of_the_formula(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = {
        "linear": LinearHead(draw(2, 3, 4)),
        "mlp": MLPHead(draw(2, 3, 5, 4), draw(2, 3, 5), draw(2, 3, 5)),
        "quadratic": QuadraticHead(draw(2, 3, 4), draw(2, 3)),
    }
    head, x, u = heads[kind], draw(2, 6, 1, 2, 4), draw(2, 6, 3, 2, 4)
    torch.testing.assert_close(head.grad(x), Head.dh(head, x))
    torch.testing.assert_close(head.hessian(x.expand(-1, -1, 3, -1, -1), u), Head.d2h(head, x, u))
