"""The fused CUDA update: one pass over memory, one launch for all tensors.

The arithmetic is written once, in `_mirror_step`, for a block of entries. With TABLE a kernel serves a table of
addresses, many tensors in one launch, with ALIGNED by 16 bytes; else one tensor.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from attsvm.optim._tables import table_of

BLOCK = 512
WARPS = 4
SUM_BLOCK = 4096

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _signed_power(x, a, N: tl.constexpr):
    """sign(x)|x|^a. N is `a` where it is whole and small, −1 for a = 1/2, −2 for a = 4/3, else 0."""
    size = tl.abs(x)
    if N == 0:
        power = libdevice.pow(size, a)
    elif N == -1:
        power = tl.sqrt_rn(size)
    elif N == -2:
        power = size * libdevice.cbrt(size)
    else:
        power = size
        square = size * size
        if N % 2 == 0:
            power = square
        for bit in tl.static_range(4):
            if (((N - 1) // 2) >> bit) % 2 == 1:
                power = power * square
            square = square * square
    return tl.where(x < 0, -power, power)


@triton.jit
def _slope_of_weight(theta, a, N: tl.constexpr):
    """dw/dθ = a|θ|^(a−1), for a ≥ 1."""
    return a * _signed_power(tl.abs(theta), a - 1, N - 1 if N >= 2 else 0)


@triton.jit
def _power_pair(x, low, LOW: tl.constexpr, N: tl.constexpr):
    """(x + low)^N for 3 ≤ N ≤ 15 as a number and what its rounding left: twice the precision. Without LOW, low is 0."""
    TOP: tl.constexpr = 3 if N >= 8 else (2 if N >= 4 else 1)
    power = x * x
    rest = tl.fma(x, x, -power)
    if LOW:
        rest += 2 * x * low
    for k in tl.static_range(TOP):
        if k > 0:
            square = power * power
            rest = tl.fma(power, power, -square) + 2 * power * rest
            power = square
        if (N >> (TOP - 1 - k)) % 2 == 1:
            product = power * x
            rest = tl.fma(power, x, -product) + rest * x
            if LOW:
                rest += power * low
            power = product
    return power, rest


@triton.jit
def _means(weight, expected, tolerance, WEIGHT: tl.constexpr):
    """Whether a weight is the rounding of a number that close to the expected one."""
    if WEIGHT == tl.float32:  # noqa: SIM300
        return tl.abs(weight - expected) <= tolerance * tl.abs(expected) + 1e-37
    else:
        low = (expected * (1 - tolerance)).to(WEIGHT).to(tl.float32)
        high = (expected * (1 + tolerance)).to(WEIGHT).to(tl.float32)
        return (weight >= tl.minimum(low, high)) & (weight <= tl.maximum(low, high))


@triton.jit
def _mirror_variable(
    weight_ptr, theta_ptr, at, mask, kept, exponent, WEIGHT: tl.constexpr, MIRROR: tl.constexpr, KEEP: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """θ as a pair: that of the weight, where somebody has changed it. With KEEP it is read off the weight, whose
    rounding is only 1/N as large in θ, so that no memory is needed for what roundings lose; θ is read where the weight
    underflows, and costs no traffic elsewhere."""
    if KEEP:
        weight = tl.load(weight_ptr + at, mask=mask, other=1.0)
        size = tl.abs(weight)
        usual = size > 1e-29
        theta = tl.load(theta_ptr + at, mask=mask & kept & (usual == 0), other=0.0)
        edited = _means(weight, _signed_power(theta, exponent, N), 1e-4, WEIGHT) == 0
        root = tl.exp2(libdevice.fast_log2f(size) * (1.0 / N))
        power, rest = _power_pair(root, 0.0, False, N)
        # Newton's step, which nearly doubles the digits: approximations will do for all but the difference.
        low = libdevice.fast_dividef(((size - power) - rest) * root, N * power)
        theta = tl.where(usual | edited, tl.where(weight < 0, -root, root), theta)
        theta_low = tl.where(usual, tl.where(weight < 0, -low, low), 0.0)
    else:
        theta = tl.load(theta_ptr + at, mask=mask, other=0.0)
        if MIRROR:
            weight = tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
            tolerance = (16 + exponent) * 1.2e-7
            edited = _means(weight, _signed_power(theta, exponent, N), tolerance, WEIGHT) == 0
            if tl.max(edited.to(tl.int32), axis=0) > 0:
                theta = tl.where(edited, _signed_power(weight, 1 / exponent, 0), theta)
        theta_low = theta
    return theta, theta_low


@triton.jit
def _mirror_step(
    weight_ptr, theta_ptr, at, mask, kept, theta, theta_low, direction, lr, pull, exponent, l1,
    MIRROR: tl.constexpr, KEEP: tl.constexpr, MASK: tl.constexpr, L1: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """θ ← θ − lr·(direction + pull·θ), and the weight that it means; a soft threshold lr·l1 of θ (L1 = 1) or of the
    weight (L1 = 2); 0 where it is not kept."""
    change = lr * (direction + pull * theta)
    bound = lr * l1
    if KEEP:
        change -= theta_low
    new = theta - change
    if L1 == 1:
        inside = tl.abs(new) <= bound  # never of nan
        change += tl.where(new < 0, -bound, bound)
        new = tl.where(inside, 0.0, theta - change)
    if KEEP:
        low = (theta - new) - change
        if L1 == 1:
            low = tl.where(inside, 0.0, low)
        power, rest = _power_pair(new, low, True, N)
        weight = tl.where(tl.abs(power) < float("inf"), power + rest, power)
        if N % 2 == 0:
            weight = tl.where(new < 0, -weight, weight)
    else:
        weight = _signed_power(new, exponent, N)
    if L1 == 2:
        size = tl.abs(weight) - bound
        weight = tl.where(size <= 0, 0.0, tl.where(weight < 0, -size, size))
        new = _signed_power(weight, 1 / exponent, 0)
    if MASK:
        new = tl.where(kept, new, 0.0)
        weight = tl.where(kept, weight, 0.0)
    tl.store(theta_ptr + at, new, mask=mask)
    if MIRROR:
        tl.store(weight_ptr + at, weight.to(weight_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _address(row, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(row).to(tl.pointer_type(TYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _size(row, ALIGNED: tl.constexpr):
    numel = tl.load(row)
    if ALIGNED:
        numel = tl.multiple_of(numel, 16)
    return numel


@triton.jit
def _descend_kernel(
    weight, grad, theta, keeps, buffer, norm, numel, blocks, lr, pull, exponent, l1, momentum,
    TABLE: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, TENSOR_LR: tl.constexpr,
    MIRROR: tl.constexpr, KEEP: tl.constexpr, MASK: tl.constexpr, L1: tl.constexpr, N: tl.constexpr,
    MAXIMIZE: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    if TABLE:
        row = weight + tl.load(blocks + 2 * tl.program_id(0)) * 7
        at = tl.load(blocks + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
        weight = _address(row, WEIGHT, ALIGNED)
        grad = _address(row + 1, GRAD, ALIGNED)
        theta = _address(row + 2, tl.float32, ALIGNED)
        keeps = _address(row + 3, tl.uint8, ALIGNED)
        buffer = _address(row + 4, tl.float32, ALIGNED)
        norm = _address(row + 5, tl.float32, False)
        numel = _size(row + 6, ALIGNED)
    else:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    mask = at < numel
    kept = mask
    if MASK:
        kept = tl.load(keeps + at, mask=mask, other=0) != 0
    x, x_low = _mirror_variable(weight, theta, at, mask, kept, exponent, WEIGHT, MIRROR, KEEP, N)
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    if MAXIMIZE:
        g = -g
    if NORMALIZE:
        g = g / tl.load(norm)
    if MOMENTUM:
        b = momentum * tl.load(buffer + at, mask=mask, other=0.0) + g
        if MASK:
            b = tl.where(kept, b, 0.0)
        tl.store(buffer + at, b, mask=mask)
        g = g + momentum * b if NESTEROV else b
    _mirror_step(
        weight, theta, at, mask, kept, x, x_low, g, lr, pull, exponent, l1, MIRROR, KEEP, MASK, L1, N
    )  # fmt: skip


@triton.jit
def _adam_kernel(
    weight, grad, theta, keeps, avg, avg_sq, step, numel, blocks, lr, pull, exponent, l1,
    weight1, beta2, weight2, log_beta1, log_beta2, eps,
    TABLE: tl.constexpr, ALIGNED: tl.constexpr, WEIGHT: tl.constexpr, GRAD: tl.constexpr, TENSOR_LR: tl.constexpr,
    MIRROR: tl.constexpr, KEEP: tl.constexpr, MASK: tl.constexpr, L1: tl.constexpr, N: tl.constexpr,
    MAXIMIZE: tl.constexpr, CHAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if TABLE:
        row = weight + tl.load(blocks + 2 * tl.program_id(0)) * 8
        at = tl.load(blocks + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
        weight = _address(row, WEIGHT, ALIGNED)
        grad = _address(row + 1, GRAD, ALIGNED)
        theta = _address(row + 2, tl.float32, ALIGNED)
        keeps = _address(row + 3, tl.uint8, ALIGNED)
        avg = _address(row + 4, tl.float32, ALIGNED)
        avg_sq = _address(row + 5, tl.float32, ALIGNED)
        step = _address(row + 6, tl.float32, False)
        numel = _size(row + 7, ALIGNED)
    else:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if TENSOR_LR:
        lr = tl.load(lr).to(tl.float32)
        pull = tl.load(pull).to(tl.float32)
    mask = at < numel
    kept = mask
    if MASK:
        kept = tl.load(keeps + at, mask=mask, other=0) != 0
    x, x_low = _mirror_variable(weight, theta, at, mask, kept, exponent, WEIGHT, MIRROR, KEEP, N)
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(avg + at, mask=mask, other=0.0)
    v = tl.load(avg_sq + at, mask=mask, other=0.0)
    t = tl.load(step)
    correction1 = -libdevice.expm1(t * log_beta1)  # 1 − β^t, accurate also for small t
    correction2 = -libdevice.expm1(t * log_beta2)
    if MAXIMIZE:
        g = -g
    if CHAIN:
        g *= _slope_of_weight(x + x_low if KEEP else x, exponent, N)
    m += weight1 * (g - m)  # weights are 1 − β: formed here, from a rounded β, they would be wrong
    v = beta2 * v + weight2 * g * g
    if MASK:
        m = tl.where(kept, m, 0.0)
        v = tl.where(kept, v, 0.0)
    tl.store(avg + at, m, mask=mask)
    tl.store(avg_sq + at, v, mask=mask)
    size = tl.sqrt(v) / tl.sqrt(correction2) + eps
    _mirror_step(
        weight, theta, at, mask, kept, x, x_low, m / size / correction1, lr, pull, exponent, l1,
        MIRROR, KEEP, MASK, L1, N,
    )  # fmt: skip


Rows = Sequence[tuple[Tensor, ...]]


def descend(rows: Rows, scalars: Sequence[float | Tensor], capturable: bool, **flags: Any) -> None:
    """MirrorDescent's update; a row is a weight, its gradient, mirror variable, mask, momentum buffer and norm."""
    _launch(_descend_kernel, rows, scalars, capturable, flags)


def adam(rows: Rows, scalars: Sequence[float | Tensor], capturable: bool, **flags: Any) -> None:
    """MirrorAdam's update; a row is a weight, its gradient, mirror variable, mask, two moments and step."""
    _launch(_adam_kernel, rows, scalars, capturable, flags)


def _launch(
    kernel: Any, rows: Rows, scalars: Sequence[float | Tensor], capturable: bool, flags: dict[str, Any]
) -> None:
    """Rows are of one device and dtype, and each of one layout; scalars start with lr and the pull of weight decay."""
    weight, grad = rows[0][:2]
    scalars = [s if isinstance(s, Tensor) else float(s) for s in scalars]
    flags |= {"TENSOR_LR": isinstance(scalars[0], Tensor), "BLOCK": BLOCK, "num_warps": WARPS}
    flags |= {"WEIGHT": _DTYPES[weight.dtype], "GRAD": _DTYPES[grad.dtype]}
    with torch.cuda.device(weight.device) if weight.is_cuda else torch.no_grad():
        table = table_of(rows, weight, BLOCK, capturable, True)
        if table is None:
            for row in rows:
                grid = (triton.cdiv(row[0].numel(), BLOCK),)
                kernel[grid](*row, row[0].numel(), weight, *scalars, TABLE=False, ALIGNED=False, **flags)
        else:
            addresses = [table.rows] * len(rows[0])
            parts = table.blocks[: table.aligned], table.blocks[table.aligned :]
            for aligned, blocks in zip((True, False), parts):
                if len(blocks):
                    kernel[(len(blocks),)](*addresses, 0, blocks, *scalars, TABLE=True, ALIGNED=aligned, **flags)
    # As every in-place change: autograd then refuses to use a value that it saved before.
    torch.autograd.graph.increment_version([row[0] for row in rows])


# Dual norms: Σ (|g|/m)^q and m = max |g|, block by block and then of every tensor, in an order that never changes.


@triton.jit
def _sum_blocks(rows, blocks, largest, sums, q, GRAD: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    row = rows + tl.load(blocks + 2 * i) * 2
    at = tl.load(blocks + 2 * i + 1) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(row).to(tl.pointer_type(GRAD))
    size = tl.abs(tl.load(grad + at, mask=at < tl.load(row + 1), other=0.0).to(tl.float32))
    most = tl.max(size, axis=0)
    scale = tl.where((most > 0) & (most < float("inf")), most, 1.0)
    tl.store(largest + i, most)
    tl.store(sums + i, tl.sum(_signed_power(size / scale, q, N), axis=0))


@triton.jit
def _sum_tensors(first, largest, sums, most_ptr, sum_ptr, q, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    start = tl.load(first + i)
    end = tl.load(first + i + 1)
    most = 0.0
    for k in range(start, end, BLOCK):
        at = k + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.max(tl.load(largest + at, mask=at < end, other=0.0), axis=0))
    scale = tl.where((most > 0) & (most < float("inf")), most, 1.0)
    total = 0.0
    for k in range(start, end, BLOCK):
        at = k + tl.arange(0, BLOCK)
        share = tl.load(largest + at, mask=at < end, other=0.0) / scale
        part = tl.load(sums + at, mask=at < end, other=0.0) * _signed_power(share, q, N)
        total += tl.sum(part, axis=0)
    tl.store(most_ptr + i, most)
    tl.store(sum_ptr + i, total)


def power_sums(
    weights: Sequence[Tensor], grads: Sequence[Tensor], q: float, capturable: bool
) -> tuple[Tensor, Tensor] | None:
    """Of every gradient max |g| = m and Σ (|g|/m)^q; None where they cannot be computed here."""
    dtype, device = grads[0].dtype, grads[0].device
    if any(g.dtype != dtype or g.device != device or not g.is_contiguous() for g in grads):
        return None
    N = int(q) if q == int(q) and q <= 12 else 0
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        table = table_of([(g,) for g in grads], weights[0], SUM_BLOCK, capturable)
        if table is None:
            return None
        blocks, tensors = len(table.blocks), len(grads)
        largest, sums = torch.empty(2, max(blocks, 1), device=device)
        most, total = torch.empty(2, tensors, device=device)
        if blocks:
            scalars = {"q": float(q), "N": N, "num_warps": 8}
            _sum_blocks[(blocks,)](
                table.rows, table.blocks, largest, sums, GRAD=_DTYPES[dtype], BLOCK=SUM_BLOCK, **scalars
            )
        _sum_tensors[(tensors,)](table.first, largest, sums, most, total, float(q), N=N, BLOCK=1024)
    return most, total
