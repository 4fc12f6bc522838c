"""Two gloo processes on this machine, that cannot hang a test run."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SECONDS = 120
"""A pair takes some seconds; one that takes this long waits for something that will not come."""


def run_pair(worker: Callable[..., None], *arguments: Any) -> None:
    """Run worker(rank, *arguments) in two processes of one gloo group.

    The store by which they meet is this process's. It is bound to a port that the system chose, so no other run can
    have it; and it outlives both, so that the one that ends first takes nothing from the other.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.spawn(_member, args=(store.port, worker, arguments), nprocs=2, join=False)
    assert context is not None
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if context.join(timeout=1):
            return
    for process in context.processes:
        process.kill()
    raise AssertionError(f"two processes did not finish in {SECONDS} seconds")


def _member(rank: int, port: int, worker: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    wait = timedelta(seconds=SECONDS / 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=wait)
    try:
        worker(rank, *arguments)
        gc.collect()  # models in reference cycles hold the group
        dist.barrier()  # who leaves early closes connections that the other still reads from
    finally:
        dist.destroy_process_group()
    # The work is done and checked. What C++ destroys at an exit may be a thread of gloo that still runs: "terminate
    # called without an active exception", seen in 1 of 13 runs.
    os._exit(0)
