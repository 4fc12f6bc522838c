"""The fused CUDA update: one pass over memory, one launch for all small tensors.

The arithmetic is written once, in `_descend` and `_adam`, for a block of entries. Two kernels call each: one takes a
single large tensor; the other takes a table of addresses and serves many small tensors in one launch. A capturable
optimizer launches every tensor by itself: under capture of a CUDA graph no table could be copied to the device.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportMissingImports=false, reportOperatorIssue=false

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

LARGE = 1 << 20  # a tensor of so many entries gets its own launch
BLOCK = 1024
WARPS = 4

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _signed_power(x, a, N: tl.constexpr):
    """sign(x)|x|^a. N is `a` where it is whole and small, −1 for a = 1/2, else 0."""
    if N == 0:
        size = libdevice.pow(tl.abs(x), a)
        power = tl.where(x < 0, -size, size)
    elif N == -1:
        size = tl.sqrt_rn(tl.abs(x))
        power = tl.where(x < 0, -size, size)
    else:
        power = x
        if N % 2 == 0:
            power = x * tl.abs(x)
        square = x * x
        for bit in tl.static_range(4):
            if (((N - 1) // 2) >> bit) % 2 == 1:
                power = power * square
            square = square * square
    return power


@triton.jit
def _write(theta_ptr, weight_ptr, at, mask, theta, exponent, MIRROR: tl.constexpr, N: tl.constexpr):
    tl.store(theta_ptr + at, theta, mask=mask)
    if MIRROR:
        weight = _signed_power(theta, exponent, N)
        tl.store(weight_ptr + at, weight.to(weight_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _descend(
    weight_ptr, grad_ptr, theta_ptr, buffer_ptr, norm_ptr, at, mask, lr, pull, momentum, exponent,
    MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    theta = tl.load(theta_ptr + at, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if MAXIMIZE:
        grad = -grad
    if NORMALIZE:
        grad = grad / tl.load(norm_ptr)
    if MOMENTUM:
        buffer = momentum * tl.load(buffer_ptr + at, mask=mask, other=0.0) + grad
        tl.store(buffer_ptr + at, buffer, mask=mask)
        grad = grad + momentum * buffer if NESTEROV else buffer
    theta -= lr * (grad + pull * theta)
    _write(theta_ptr, weight_ptr, at, mask, theta, exponent, MIRROR, N)


@triton.jit
def _adam(
    weight_ptr, grad_ptr, theta_ptr, avg_ptr, avg_sq_ptr, step_ptr, at, mask, lr, pull,
    weight1, beta2, weight2, log_beta1, log_beta2, eps, exponent,
    MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    theta = tl.load(theta_ptr + at, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    avg = tl.load(avg_ptr + at, mask=mask, other=0.0)
    avg_sq = tl.load(avg_sq_ptr + at, mask=mask, other=0.0)
    step = tl.load(step_ptr)
    correction1 = -libdevice.expm1(step * log_beta1)  # 1 − β^t, accurate also for small t
    correction2 = -libdevice.expm1(step * log_beta2)
    if MAXIMIZE:
        grad = -grad
    avg += weight1 * (grad - avg)  # weights are 1 − β: formed here, from a rounded β, they would be wrong
    avg_sq = beta2 * avg_sq + weight2 * grad * grad
    tl.store(avg_ptr + at, avg, mask=mask)
    tl.store(avg_sq_ptr + at, avg_sq, mask=mask)
    size = tl.sqrt(avg_sq) / tl.sqrt(correction2) + eps
    theta -= lr * (avg / size / correction1 + pull * theta)
    _write(theta_ptr, weight_ptr, at, mask, theta, exponent, MIRROR, N)


@triton.jit
def _descend_tensor(
    weight, grad, theta, buffer, norm, numel, lr, pull, momentum, exponent,
    TENSOR_LR: tl.constexpr, MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    _descend(
        weight, grad, theta, buffer, norm, at, at < numel, lr, pull, momentum, exponent,
        MIRROR, N, MAXIMIZE, MOMENTUM, NESTEROV, NORMALIZE,
    )  # fmt: skip


@triton.jit
def _descend_table(
    rows, blocks, lr, pull, momentum, exponent, WEIGHT: tl.constexpr, GRAD: tl.constexpr,
    TENSOR_LR: tl.constexpr, MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = rows + tl.load(blocks + 2 * tl.program_id(0)) * 6
    at = tl.load(blocks + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
    single = tl.pointer_type(tl.float32)
    weight = tl.load(row).to(tl.pointer_type(WEIGHT))
    grad = tl.load(row + 1).to(tl.pointer_type(GRAD))
    theta = tl.load(row + 2).to(single)
    buffer = tl.load(row + 3).to(single)
    norm = tl.load(row + 4).to(single)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    _descend(
        weight, grad, theta, buffer, norm, at, at < tl.load(row + 5), lr, pull, momentum, exponent,
        MIRROR, N, MAXIMIZE, MOMENTUM, NESTEROV, NORMALIZE,
    )  # fmt: skip


@triton.jit
def _adam_tensor(
    weight, grad, theta, avg, avg_sq, step, numel, lr, pull,
    weight1, beta2, weight2, log_beta1, log_beta2, eps, exponent,
    TENSOR_LR: tl.constexpr, MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    _adam(
        weight, grad, theta, avg, avg_sq, step, at, at < numel, lr, pull,
        weight1, beta2, weight2, log_beta1, log_beta2, eps, exponent, MIRROR, N, MAXIMIZE,
    )  # fmt: skip


@triton.jit
def _adam_table(
    rows, blocks, lr, pull, weight1, beta2, weight2, log_beta1, log_beta2, eps, exponent,
    WEIGHT: tl.constexpr, GRAD: tl.constexpr,
    TENSOR_LR: tl.constexpr, MIRROR: tl.constexpr, N: tl.constexpr, MAXIMIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = rows + tl.load(blocks + 2 * tl.program_id(0)) * 7
    at = tl.load(blocks + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
    single = tl.pointer_type(tl.float32)
    weight = tl.load(row).to(tl.pointer_type(WEIGHT))
    grad = tl.load(row + 1).to(tl.pointer_type(GRAD))
    theta = tl.load(row + 2).to(single)
    avg = tl.load(row + 3).to(single)
    avg_sq = tl.load(row + 4).to(single)
    step = tl.load(row + 5).to(single)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    _adam(
        weight, grad, theta, avg, avg_sq, step, at, at < tl.load(row + 6), lr, pull,
        weight1, beta2, weight2, log_beta1, log_beta2, eps, exponent, MIRROR, N, MAXIMIZE,
    )  # fmt: skip


def descend(
    columns: Sequence[Sequence[Tensor]], scalars: Sequence[float | Tensor], capturable: bool, **flags: Any
) -> None:
    """MirrorDescent's update; columns are weights, gradients, mirrors, momentum buffers, norms."""
    _launch(_descend_tensor, _descend_table, columns, scalars, capturable, flags)


def adam(
    columns: Sequence[Sequence[Tensor]], scalars: Sequence[float | Tensor], capturable: bool, **flags: Any
) -> None:
    """MirrorAdam's update; columns are weights, gradients, mirrors, first moments, second moments, steps."""
    _launch(_adam_tensor, _adam_table, columns, scalars, capturable, flags)


def _launch(
    tensor_kernel: Any,
    table_kernel: Any,
    columns: Sequence[Sequence[Tensor]],
    scalars: Sequence[float | Tensor],
    capturable: bool,
    flags: dict[str, Any],
) -> None:
    """Columns are of one device and dtype, rows of one layout; scalars start with lr and the pull of weight decay."""
    weights, grads = columns[:2]
    scalars = [s if isinstance(s, Tensor) else float(s) for s in scalars]
    flags = flags | {"TENSOR_LR": isinstance(scalars[0], Tensor), "BLOCK": BLOCK, "num_warps": WARPS}
    device = weights[0].device
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        small: list[tuple[int, ...]] = []
        for row in zip(*columns):
            numel = row[0].numel()
            if numel >= LARGE or (capturable and numel > 0):
                tensor_kernel[(triton.cdiv(numel, BLOCK),)](*row, numel, *scalars, **flags)
            elif numel > 0:
                small.append((*(t.data_ptr() for t in row), numel))
        if small:
            stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0
            rows, blocks = _table(tuple(small), device, stream)
            dtypes = {"WEIGHT": _DTYPES[weights[0].dtype], "GRAD": _DTYPES[grads[0].dtype]}
            table_kernel[(len(blocks),)](rows, blocks, *scalars, **dtypes, **flags)
    # As every in-place change: autograd then refuses to use a value that it saved before.
    torch.autograd.graph.increment_version(weights)


@lru_cache(maxsize=64)
def _table(rows: tuple[tuple[int, ...], ...], device: torch.device, stream: int) -> tuple[Tensor, Tensor]:
    """The addresses and sizes `(tensors, columns)`, and for every block its tensor and its place in it `(blocks, 2)`.

    Its content depends on the arguments alone, so a table made for earlier tensors at the same addresses still holds.
    """
    host = torch.tensor(rows, dtype=torch.int64)
    counts = (host[:, -1] + BLOCK - 1) // BLOCK
    tensor = torch.repeat_interleave(torch.arange(len(host)), counts)
    place = torch.arange(len(tensor)) - (counts.cumsum(0) - counts)[tensor]
    joined = torch.cat([host.flatten(), torch.stack([tensor, place], dim=1).flatten()])
    if device.type == "cuda":
        joined = joined.pin_memory().to(device, non_blocking=True)
    return joined[: host.numel()].view_as(host), joined[host.numel() :].view(-1, 2)
