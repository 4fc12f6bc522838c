"""The fused update on a CPU: one pass over memory, by code that the machine's C++ compiler makes on the first step."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
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

DTYPES = (torch.float32, torch.bfloat16)
LEAST_SHARED = 1 << 15  # entries that are worth a thread
SOURCE = Path(__file__).with_name("_kernel.cpp")
# Every operation is rounded as IEEE says, so that results depend neither on the compiler nor on the machine; only what
# traps and errno would tell is not asked for.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")

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
    step = _compiled(tuple(f"-D{name}={int(value)}" for name, value in sorted(flags.items())))
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
def _threads() -> ThreadPoolExecutor:
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads
    return ThreadPoolExecutor(thread_name_prefix="attsvm-step")  # the kernel does not hold Python's lock


@cache
def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def _compiled(macros: tuple[str, ...]) -> Any:
    """The step, compiled with these macros for this machine, or found where an earlier run has left it."""
    command = [compiler() or "c++", *OPTIONS, *macros, str(SOURCE)]
    key = hashlib.sha256(repr((command, _machine())).encode() + SOURCE.read_bytes()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attsvm"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / f"step-{key}.so"
        if not library.exists():
            _compile(command, library)
    except OSError:  # no place to keep it
        folder = Path(tempfile.mkdtemp(prefix="attsvm-"))
        library = folder / "step.so"
        _compile(command, library)
    step = ctypes.CDLL(str(library)).attsvm_step
    step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    step.restype = None
    return step


def _compile(command: list[str], library: Path) -> None:
    """Under another name first: processes that start together do not see half a file."""
    part = library.with_name(f"{library.stem}-{os.getpid()}.part")
    for own in (["-march=native"], []):  # not every compiler knows the machine
        done = subprocess.run([*command, *own, "-o", str(part)], capture_output=True, text=True)
        if done.returncode == 0:
            os.replace(part, library)
            return
    raise AttsvmError(
        f"fused=True on a CPU needs a C++ compiler, but {command[0]} failed: set fused=False. It said: "
        + done.stderr.strip()[-300:]
    )


def _machine() -> str:
    """What `-march=native` depends on."""
    try:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        flags = platform.processor()
    return platform.platform() + flags
