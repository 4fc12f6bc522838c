"""Sums of products by the kernel, against einsum."""

import pytest
import torch
from torch import Tensor

from attsvm.native import compiler
from attsvm.objective import _contract, contract

EQUATIONS = {
    "ntdB,nkdB->nktB": ((3, 4, 5), (3, 2, 5)),
    "ntdB,nktB->nkdB": ((3, 4, 5), (3, 2, 4)),
    "deB,nkeB->nkdB": ((5, 6), (3, 2, 6)),
    "nkdB,nkeB->deB": ((3, 2, 5), (3, 2, 6)),
    "ntdB,dB->ntB": ((3, 4, 5), (5,)),
    "deB,deB->B": ((5, 6), (5, 6)),
}
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def pair(equation: str, trials: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    a, b = (torch.randn(trials, *shape, dtype=dtype).movedim(0, -1).contiguous() for shape in EQUATIONS[equation])
    return a, b


@needs_compiler
@pytest.mark.parametrize("trials", [1, 7, 32, 75])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_is_einsum(equation: str, dtype: torch.dtype, trials: int) -> None:
    a, b = pair(equation, trials, dtype)
    assert _contract._kernel_for(a, b) is not None
    torch.testing.assert_close(contract(equation, a, b, small=True), torch.einsum(equation, a, b))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_trial_has_the_same_bits_alone(equation: str) -> None:
    a, b = pair(equation, 75)
    together = contract(equation, a[..., :64].contiguous(), b[..., :64].contiguous(), small=True)
    for trials in (slice(0, 1), slice(3, 40), slice(32, 64)):
        some = contract(equation, a[..., trials].contiguous(), b[..., trials].contiguous(), small=True)
        if _contract._kernels():
            assert torch.equal(some, together[..., trials])
        else:
            torch.testing.assert_close(some, together[..., trials])


@pytest.mark.parametrize("equation", EQUATIONS)
def test_views_are_read_where_they_are(equation: str) -> None:
    a, b = pair(equation, 40)
    wide = torch.stack([a, -a], 1)[:, 0], torch.stack([b, -b], 1)[:, 0]
    torch.testing.assert_close(contract(equation, *wide, small=True), torch.einsum(equation, a, b))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_without_a_kernel_and_with_derivatives(equation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(equation, 40)
    a.requires_grad_()
    contract(equation, a, b, small=True).sum().backward()
    expected = torch.autograd.grad(torch.einsum(equation, a, b).sum(), a)[0]
    torch.testing.assert_close(a.grad, expected)
    monkeypatch.setattr(_contract, "_kernels", dict)
    with torch.no_grad():
        torch.testing.assert_close(contract(equation, a, b, small=True), torch.einsum(equation, a, b))
