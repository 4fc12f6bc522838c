"""When the fused kernels are used, Triton's on CUDA and compiled C++ on a CPU, and what they are given."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.native import compiler
from attsvm.optim import _native
from attsvm.optim._edits import Watch
from attsvm.optim._mirror_map import Step, leaves_weights, whole_exponent
from attsvm.optim._shards import PLAIN, local

try:
    from attsvm.optim import _triton
except ImportError:  # Triton comes with CUDA builds of torch
    _triton = None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Entries for which a CPU's kernel is compiled unasked: it saves a millisecond per step and takes a second.
LEAST = 1 << 20

F = TypeVar("F")
Row = tuple[Tensor, ...]


def outside_compiled(function: F) -> F:
    """`torch.compiler.disable` that keeps the type: a compiled step with fused=True breaks its graph here."""
    return torch.compiler.disable(function)  # pyright: ignore[reportCallIssue, reportArgumentType, reportReturnType]


@outside_compiled
def use_fused(weights: Iterable[Tensor], foreach: bool | None, fused: bool | None) -> bool:
    """`fused=None` means: on CUDA where it can be, unless `foreach` was asked for. For a CPU see `pays_on_cpu`."""
    if fused is None and foreach is None:
        return all(w.is_cuda and _why_not(w) is None for w in weights)
    if fused:
        for weight in weights:
            if reason := _why_not(weight):
                raise AttsvmError(f"fused=True needs {reason}: leave fused out, or set fused=False.")
    return bool(fused)


def pays_on_cpu(group: Mapping[str, Any], states: Mapping[Tensor, Mapping[str, Tensor]]) -> bool:
    """Whether `fused=None` means the compiled kernel for a group: where its parameters are many on a CPU, all as the
    kernel takes them, and a compiler works. Its trained parameters count, not those with a gradient, so that all steps
    take one form. Subclasses of tensors may have no memory to walk through."""
    if group["fused"] is not None or group["foreach"] is not None:
        return False
    params = [param for param in group["params"] if param.requires_grad]
    weights = [*map(local, params)]
    return (
        sum(map(Tensor.numel, weights)) >= LEAST
        and all(type(w) in PLAIN and w.is_cpu and _why_not(w) is None for w in weights)
        and all(_lie_as(weight, states.get(param, {})) for param, weight in zip(params, weights))
        and _native.works()
    )


def _lie_as(weight: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Whether states are in memory as their weight is, which may have changed its format."""
    tensors = [*map(local, state.values())]
    if weight.is_contiguous() and all(map(Tensor.is_contiguous, tensors)):
        return True
    return all(same_layout(t, weight) for t in tensors if t.shape == weight.shape)


def _why_not(weight: Tensor) -> str | None:
    """What the fused step of this weight lacks."""
    dtypes = _native.DTYPES if weight.is_cpu else DTYPES
    if not (weight.is_cuda or weight.is_cpu) or weight.dtype not in dtypes or not _is_dense(weight):
        names = "float32 or bfloat16 on a CPU" if weight.is_cpu else "float32, bfloat16 or float16 on CUDA"
        return f"dense parameters in {names}, but one is {weight.dtype} on {weight.device}"
    if weight.is_cpu:
        return None if compiler() else "a C++ compiler on a CPU, and found none"
    return None if _triton is not None else "Triton, which cannot be imported"


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
    step: Step,
) -> Iterator[tuple[list[Row], tuple[float | Tensor, ...], dict[str, Any]]]:
    """For every device and dtype, masked or not: rows as the kernels take them; lr, pull, exponent and l1; what is
    compiled in."""
    lr, pull, a, l1 = step
    parts: dict[Any, list[Row]] = {}
    for weight, grad, theta, mask, *others in zip(weights, grads, mirrors, masks, *states):
        if weight.numel() > 0:
            if grad.dtype not in (_native.DTYPES if weight.is_cpu else DTYPES):
                grad = grad.float()
            key = weight.device, weight.dtype, grad.dtype, mask is not None
            row = weight, grad, theta, theta if mask is None else mask.view(torch.uint8), *others
            parts.setdefault(key, []).append(_in_order(row))
    for (device, _, _, masked), rows in parts.items():
        weight, _, theta = rows[0][:3]
        flags = {
            "MIRROR": theta is not weight and not leaves_weights(lr),
            "N": _how(a),
            # The kernels need no memory for it: see `_mirror_variable`.
            "KEEP": whole_exponent(a) >= 2 and weight.dtype == theta.dtype and not leaves_weights(lr),
            "MASK": masked,
            # At p = 2 the weight is its own mirror variable, up to its precision.
            "L1": 0 if l1.strength == 0 or leaves_weights(lr) else 2 if l1.of_weight and a != 1 else 1,
        }
        yield rows, (*_both(lr, pull, device), a, l1.strength), flags


@outside_compiled
def fused_step(
    kernel: str,
    columns: Sequence[Any],
    rests: list[Tensor],
    watch: Watch | None,
    step: Step,
    moments: tuple[float, ...],
    capturable: bool,
    **flags: bool,
) -> None:
    """Hand columns of weights, gradients, mirror variables, masks and states to a kernel: on a CPU with the rests,
    which on CUDA are read off the weights, and with signatures."""
    if columns[0][0].is_cpu:
        watch = watch or Watch()
        columns = [*columns, rests, [theta if compares(step.a) else watch.sums(theta) for theta in columns[2]]]
    for rows, scalars, compiled in launches(*columns, step=step):
        getattr(kernels(rows[0][0]), kernel)(rows, (*scalars, *moments), capturable, **compiled, **flags)


def _how(a: float) -> int:
    """How to raise to the power a: by so many factors, by a square root, by a cube root, or 0 for any power."""
    return {0.5: -1, 4 / 3: -2}.get(a, whole_exponent(a))


def compares(a: float) -> bool:
    """Whether the kernel for a CPU compares every weight with θ: where powers are products or roots, which take no
    time."""
    return _how(a) not in (0, -2)


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


def kernels(weight: Tensor) -> Any:
    return _native if weight.is_cpu else _triton  # `use_fused` has seen to it that they can be used
