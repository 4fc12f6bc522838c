"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on the device, or None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return None
    found = [x for x in (_of_machine(), _of_group()) if x is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if words is None else 1024 * int(words[1])


def _of_group() -> int | None:
    """What the limit of a container leaves."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else int(limit) - int(used)
    except (OSError, ValueError):
        return None
