"""Compute a batch, wherever torch and numpy are: in this process, a worker's, or on a machine that has nothing else."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm._version import __version__
from attsvm.errors import AttsvmError, describe
from attsvm.experiments._experiment import Columns, Params
from attsvm.files import make_folder

Run = Callable[..., Columns]
Paths = dict[str, str]
"""Where the data sets of a batch are, by name."""


@dataclass(frozen=True)
class Done:
    """A finished batch as a worker sends it: numbers, where they were made, and how long it took."""

    columns: Columns
    where: dict[str, Any]
    timing: dict[str, Any]


def run_batch(
    run: Run,
    params: Params,
    trials: range,
    device: str,
    version: str = __version__,
    paths: Paths | None = None,
    work: Path | None = None,
) -> Done:
    """Compute a batch, in whatever process this is. (Functions travel by name, so only `run` does.)"""
    if version != __version__:
        raise AttsvmError(f"workers must have attsvm {version}, but {platform.node()} has {__version__}.")
    if work is not None:
        make_folder(work)
    start, cpu = time.perf_counter(), _cpu_seconds()
    with torch.no_grad():
        columns = run(params, trials, device, *([paths] if paths else []), **({"work": work} if work else {}))
    if not isinstance(columns, Mapping):
        raise AttsvmError(f"run must return columns by name, but it returned {describe(columns)}.")
    timing = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": _cpu_seconds() - cpu,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Done({name: np.asarray(column) for name, column in columns.items()}, hardware(device), timing)


def _cpu_seconds() -> float:
    """Of this process, and of the compilers that it ran."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def hardware(device: str) -> dict[str, Any]:
    """The hardware, as far as the last bits may depend on it."""
    processor = torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu()
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
