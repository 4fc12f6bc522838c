"""The fused update on a CPU: one pass over memory, by code that the machine's C++ compiler makes on the first step."""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.native import compiled

DTYPES = (torch.float32, torch.bfloat16)
LEAST_SHARED = 1 << 15  # entries that are worth a thread
SOURCE = Path(__file__).with_name("_kernel.cpp")
# Every operation is rounded as IEEE says, so that results depend neither on the compiler nor on the machine; only what
# traps and errno would tell is not asked for.
OPTIONS = ("-ffp-contract=off", "-fno-trapping-math")
USUAL = {"ADAM": 1, "KEEP": 1, "MIRROR": 1, "N": 10}  # MirrorAdam at p = 1.1; what else is compiled in is 0
NAMES = ("BF16", "BF16_GRAD", "CHAIN", "L1", "LEAN", "MASK", "MAXIMIZE")

Rows = Sequence[tuple[Tensor, ...]]


def adam(rows: Rows, scalars: Sequence[float | Tensor], capturable: bool, **flags: Any) -> None:
    """MirrorAdam's update; a row is that of CUDA, and rest and signatures."""
    _launch(rows, scalars, {"ADAM": True, **flags})


def descend(rows: Rows, scalars: Sequence[float | Tensor], capturable: bool, **flags: Any) -> None:
    """MirrorDescent's update; a row is that of CUDA, and rest and signatures."""
    _launch(rows, scalars, {"ADAM": False, **flags})


def power_sums(weights: Any, grads: Any, q: float, capturable: bool) -> None:
    """Norms are computed as in the other forms of the step."""


def _launch(rows: Rows, scalars: Sequence[float | Tensor], flags: dict[str, Any]) -> None:
    weight, grad, theta = rows[0][:3]
    flags |= {"KEEP": rows[0][-2] is not theta, "LEAN": theta is weight and scalars[2] != 1}
    flags |= {"BF16": weight.dtype == torch.bfloat16, "BF16_GRAD": grad.dtype == torch.bfloat16}
    step = _compiled(_macros(flags))
    addresses = chain.from_iterable((*[t.data_ptr() for t in row], row[0].numel()) for row in rows)
    table = np.fromiter(addresses, dtype=np.int64)
    numbers = np.array([float(s) for s in scalars])
    total = sum(row[0].numel() for row in rows)
    shares = max(1, min(torch.get_num_threads(), total // LEAST_SHARED))
    ends = [total * k // shares for k in range(shares + 1)]
    calls = [(table.ctypes.data, numbers.ctypes.data, *pair) for pair in pairwise(ends)]
    others = [_threads().submit(step, *call) for call in calls[1:]]
    step(*calls[0])
    for other in others:
        other.result()
    torch.autograd.graph.increment_version([row[0] for row in rows])


@cache
def works() -> bool:
    """Whether a C++ compiler is there and makes the kernel. It is asked for the usual one, which is then at hand."""
    try:
        _compiled(_macros(dict.fromkeys(NAMES, 0) | USUAL))
    except (AttsvmError, OSError):  # or nothing may be run from the folder for temporary files
        return False
    return True


def _macros(flags: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"-D{name}={int(value)}" for name, value in sorted(flags.items()))


@cache
def _threads() -> ThreadPoolExecutor:
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads
    return ThreadPoolExecutor(thread_name_prefix="attsvm-step")  # the kernel does not hold Python's lock


@cache
def _compiled(macros: tuple[str, ...]) -> Any:
    """The step, compiled with these macros."""
    try:
        step = compiled(SOURCE, *OPTIONS, *macros).attsvm_step
    except AttsvmError as error:
        raise AttsvmError(f"fused=True on a CPU: {error} (set fused=False)") from error
    step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    step.restype = None
    return step
