"""Sums of products with the trial last: a kernel, or one expression that the compiler fuses."""

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.native import compiled, compiler

Shape = tuple[int, ...]


def contract(equation: str, a: Tensor, b: Tensor, small: bool) -> Tensor:
    """`torch.einsum` of two tensors with the trial last, as in "ntdB,nkdB->nktB".

    Small ones multiply and sum, each trial on its own: by a kernel, or all in one loop when compiled. Large ones are
    matrix products, which do not hold all products in memory at once.
    """
    if not small:
        return torch.einsum(equation, a, b)
    if torch.compiler.is_compiling() or (kernel := _kernel_for(a, b)) is None:
        return _summed(equation, a, b)
    shape, plan = _plan(equation, a.shape, a.stride(), b.shape, b.stride())
    out = a.new_empty(shape)
    kernel(a.data_ptr(), b.data_ptr(), out.data_ptr(), plan)
    return out


def _summed(equation: str, a: Tensor, b: Tensor) -> Tensor:
    inputs, out = equation.split("->")
    first, second = inputs.split(",")
    summed = "".join(axis for axis in first if axis not in out)
    order = out[:-1] + summed + out[-1]
    dims = tuple(range(len(out) - 1, len(order) - 1))
    return (_arranged(a, first, order) * _arranged(b, second, order)).sum(dims)


def _arranged(x: Tensor, axes: str, order: str) -> Tensor:
    """A view of x with the axes in the given order, of size 1 where it has none."""
    x = x.permute([axes.index(axis) for axis in order if axis in axes])
    return x[tuple(slice(None) if axis in axes else None for axis in order)]


def _kernel_for(a: Tensor, b: Tensor) -> Callable[..., None] | None:
    """The kernel, if it can take these: it knows neither derivatives nor other devices."""
    side_by_side = a.shape[-1] == 1 or a.stride(-1) == b.stride(-1) == 1
    suits = a.dtype == b.dtype and a.device.type == b.device.type == "cpu" and side_by_side
    differentiated = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return _kernels().get(a.dtype) if suits and not differentiated else None


@lru_cache(maxsize=1024)
def _plan(equation: str, a: Shape, in_a: Shape, b: Shape, in_b: Shape) -> tuple[Shape, ctypes.Array[ctypes.c_long]]:
    """The shape of the result and the `Plan` of the kernel."""
    inputs, out = equation.split("->")
    first, second = inputs.split(",")
    sizes = dict(zip(first, a)) | dict(zip(second, b))
    shape = tuple(sizes[axis] for axis in out)
    in_out = torch.empty(shape, device="meta").stride()
    # The larger one is read once: its axes go slowest.
    larger = first if torch.Size(a).numel() >= torch.Size(b).numel() else second
    loops = sorted(out[:-1], key=lambda axis: axis not in larger)
    summed = [axis for axis in first if axis not in out]
    order = "".join(loops).rjust(3) + "".join(summed).rjust(2)  # a blank is an axis of size 1
    steps = (dict(zip(first, in_a)), dict(zip(second, in_b)), dict(zip(out, in_out)))
    numbers = [sizes.get(axis, 1) for axis in order]
    numbers += [step.get(axis, 0) for step in steps for axis in order]
    return shape, (ctypes.c_long * (len(numbers) + 1))(*numbers, shape[-1])


@cache
def _kernels() -> dict[torch.dtype, Callable[..., None]]:
    """The compiled kernels; none where they cannot be compiled."""
    if compiler() is None:
        return {}
    try:
        # Rounded as IEEE says: a trial has the same bits in a vector and beside it.
        library = compiled(Path(__file__).with_name("contract.cpp"), "-ffp-contract=off", "-Wno-psabi")
    except AttsvmError:
        return {}
    found = {torch.float64: library.contract_double, torch.float32: library.contract_float}
    for kernel in found.values():
        kernel.argtypes, kernel.restype = [ctypes.c_void_p] * 4, None
    return found
