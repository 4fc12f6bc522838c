"""Two gloo processes on this machine, that cannot hang a test run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

SECONDS = 120
"""A pair takes some seconds; one that takes this long waits for something that will not come."""


def run_pair(worker: Callable[..., None], arguments: Callable[[], tuple[Any, ...]]) -> None:
    """Run worker(rank, *arguments()) for both ranks; a pair that never met is tried once more, with new arguments."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for _ in range(2):
        context = mp.spawn(worker, args=arguments(), nprocs=2, join=False)
        assert context is not None
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if context.join(timeout=1):
                return
        for process in context.processes:
            process.kill()
    raise AssertionError(f"two processes did not finish in {SECONDS} seconds, twice")
