"""When the Triton kernels are used, and what they are given."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.optim._mirror_map import L1, leaves_weights, whole_exponent

try:
    from attsvm.optim import _triton
except ImportError:  # Triton comes with CUDA builds of torch
    _triton = None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

F = TypeVar("F")
Row = tuple[Tensor, ...]


def outside_compiled(function: F) -> F:
    """`torch.compiler.disable` that keeps the type: a compiled step with fused=True breaks its graph here."""
    return torch.compiler.disable(function)  # pyright: ignore[reportCallIssue, reportArgumentType, reportReturnType]


def use_fused(weights: Iterable[Tensor], foreach: bool | None, fused: bool | None) -> bool:
    """`fused=None` means: where it can be, unless `foreach` was asked for or the step is being compiled."""
    if fused is None and foreach is None:
        return not torch.compiler.is_compiling() and _triton is not None and all(map(_fusible, weights))
    if fused:
        if _triton is None:
            raise AttsvmError("fused=True needs Triton, which cannot be imported: leave fused out, or install triton.")
        for weight in weights:
            if not _fusible(weight):
                raise AttsvmError(
                    "fused=True needs dense CUDA parameters in float32, bfloat16 or float16, but one is "
                    f"{weight.dtype} on {weight.device}: leave fused out, or set fused=False."
                )
    return bool(fused)


def _fusible(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype in DTYPES and _is_dense(weight)


def _is_dense(t: Tensor) -> bool:
    """Whether the entries fill one block of memory, in any order of the axes."""
    return t.is_contiguous() or torch.empty_like(t, device="meta").stride() == t.stride()


def same_layout(a: Tensor, b: Tensor) -> bool:
    return a.stride() == b.stride() or (a.is_contiguous() and b.is_contiguous())


def launches(
    weights: list[Tensor],
    grads: list[Tensor],
    mirrors: list[Tensor],
    masks: Sequence[Tensor | None],
    *states: list[Tensor],
    lr: float | Tensor,
    pull: float | Tensor,
    a: float,
    l1: L1,
) -> Iterator[tuple[list[Row], tuple[float | Tensor, ...], dict[str, Any]]]:
    """For every device and dtype, masked or not: rows as the kernels take them; lr, pull, exponent and l1; what is
    compiled in."""
    parts: dict[Any, list[Row]] = {}
    for weight, grad, theta, mask, *others in zip(weights, grads, mirrors, masks, *states):
        if weight.numel() > 0:
            key = weight.device, weight.dtype, grad.dtype, mask is not None
            row = weight, grad, theta, theta if mask is None else mask.view(torch.uint8), *others
            parts.setdefault(key, []).append(_in_order(row))
    for (device, _, _, masked), rows in parts.items():
        weight, _, theta = rows[0][:3]
        flags = {
            "MIRROR": theta is not weight and not leaves_weights(lr),
            # How to raise to the power: by so many factors, by a square root, by a cube root, or 0 for any power.
            "N": {0.5: -1, 4 / 3: -2}.get(a, whole_exponent(a)),
            # The kernels need no memory for it: see `_mirror_variable`.
            "KEEP": whole_exponent(a) >= 2 and weight.dtype == theta.dtype and not leaves_weights(lr),
            "MASK": masked,
            # At p = 2 the weight is its own mirror variable, up to its precision.
            "L1": 0 if l1.strength == 0 or leaves_weights(lr) else 2 if l1.of_weight and a != 1 else 1,
        }
        yield rows, (*_both(lr, pull, device), a, l1.strength), flags


def _in_order(row: Row) -> Row:
    """The row with all entries in the weight's order in memory, through which the kernels walk."""
    weight, grad, *states = row
    if weight.is_contiguous() and grad.is_contiguous() and states[0].is_contiguous():  # other states lie as θ does
        return row
    if not all(t.shape != weight.shape or same_layout(t, weight) for t in states):
        raise AttsvmError(
            "a parameter has changed its memory format since its state was made: set fused=False, or call "
            "optimizer.load_state_dict(optimizer.state_dict())."
        )
    if not same_layout(grad, weight):
        grad = torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
    return (weight, grad, *states)


def _both(lr: float | Tensor, pull: float | Tensor, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
    """Both numbers or both tensors on the device."""
    if not isinstance(lr, Tensor):
        return lr, pull
    pull = pull if isinstance(pull, Tensor) else torch.full((), pull, device=device)
    return lr.to(device, non_blocking=True), pull.to(device, non_blocking=True)


def kernels() -> Any:
    assert _triton is not None  # `use_fused` has seen to it
    return _triton
