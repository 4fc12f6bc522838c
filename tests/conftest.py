"""What holds for every test: no example of Hypothesis is judged by the clock, failures can be repeated, tests side by
side take one thread each, and Ctrl-C interrupts as usual."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded: threads that wait for a core took 15 times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Else torch.compile starts processes that load torch, each two seconds, to compile a handful of kernels.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # And it compiles a file for every set of instructions that the CPU has, to see whether the compiler knows it.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("attsvm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attsvm")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not go through torch again and again, nor so often."""
    if (torch := sys.modules.get("torch")) is not None:
        # torch's cache of kernels does not know the CPU: made for AVX-512, they crash a process that has AVX2.
        user, capability = getattr(os, "getuid", int)(), torch.backends.cpu.get_cpu_capability()
        kernels = Path(tempfile.gettempdir(), f"torchinductor-{user}-{capability}")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernels))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 20)


def pytest_runtest_setup() -> None:
    """A job that a shell starts with & ignores Ctrl-C, and so does a command that was interrupted in this process. A
    test draws the same numbers whatever ran before it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright, for the pages that attsvm writes."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = driver.chromium.launch(executable_path=found, args=options)
        yield chromium
        chromium.close()
