"""Polar factors inside a compiled step: a kernel that is several times as fast as decomposing each matrix."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Nuclear, Spectral
from attsvm.native import compiled, compiler
from attsvm.objective import contract, trial_first, trial_last

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that Muon iterates; they take singular values to about 1, not exactly to it."""
COEFFICIENTS = (ctypes.c_double * 3)(*NEWTON_SCHULZ)
"""The same, as the kernel reads them."""


def polar(M: Tensor, newton_schulz: int = 0, rank_one: bool = False) -> Tensor:
    """U Vᵀ of M = U S Vᵀ (d, e, B): exactly, without singular values that are rounding, or by steps of the quintic; or
    its part u₁v₁ᵀ of the largest singular value."""
    if torch.compiler.is_compiling() and M.device.type == "cpu":
        return torch.ops.attsvm.polar(M.contiguous(), newton_schulz, rank_one)
    return _eager(M, newton_schulz, rank_one)


def largest_singular_value(M: Tensor) -> Tensor:
    """(B,) of M (d, e, B)."""
    if torch.compiler.is_compiling() and M.device.type == "cpu":
        return contract("deB,deB->B", M, polar(M, rank_one=True), small=True)  # ⟨M, u₁v₁ᵀ⟩
    return Spectral().norm(trial_first(M))


def _eager(M: Tensor, newton_schulz: int, rank_one: bool) -> Tensor:
    if newton_schulz:
        return _quintic(M, newton_schulz)
    return trial_last((Nuclear() if rank_one else Spectral()).dual_unit(trial_first(M)))


def _quintic(M: Tensor, steps: int) -> Tensor:
    """X ← aX + (bA + cA²)X with A = XXᵀ, from M/‖M‖_F."""
    a, b, c = NEWTON_SCHULZ
    X = trial_first(M)
    wide = X.shape[-2] > X.shape[-1]
    X = (X.mT if wide else X).contiguous()
    size = torch.linalg.matrix_norm(X, keepdim=True)
    X = X / torch.where(size > 0, size, 1.0)
    for _ in range(steps):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return trial_last(X.mT if wide else X)


def _compiled(M: Tensor, newton_schulz: int, rank_one: bool) -> Tensor:
    kernel = _kernel()
    if kernel is None:
        return _eager(M, newton_schulz, rank_one)
    G = M.double()
    out = torch.empty_like(G)
    d, e, trials = G.shape
    noise = 8 * max(d, e) * torch.finfo(M.dtype).eps  # as in Spectral().dual_unit
    kernel(G.data_ptr(), out.data_ptr(), d, e, trials, noise, newton_schulz, COEFFICIENTS, rank_one)
    return out.to(M.dtype)


# torch.library.custom_op would add a third to the time of 32 small matrices.
_OPERATORS = torch.library.Library("attsvm", "FRAGMENT")
_OPERATORS.define("polar(Tensor M, int newton_schulz, bool rank_one) -> Tensor")
_OPERATORS.impl("polar", _compiled, "CPU")
torch.library.register_fake("attsvm::polar", lambda M, newton_schulz, rank_one: torch.empty_like(M), lib=_OPERATORS)


@cache
def _kernel() -> Callable[..., None] | None:
    """The compiled kernel, None where it cannot be compiled."""
    if compiler() is None:
        return None
    try:
        kernel = compiled(Path(__file__).with_name("polar.cpp"), "-Wno-psabi").polar_factors
    except AttsvmError:
        return None
    real, count, address = ctypes.c_double, ctypes.c_long, ctypes.c_void_p
    kernel.argtypes = [address, address, count, count, count, real, count, address, ctypes.c_int]
    kernel.restype = None
    return kernel
