"""What holds for every test: no example of Hypothesis is judged by the clock, failures can be repeated, and tests side
by side take one thread each, and Ctrl-C interrupts as usual."""

import gc
import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded: threads that wait for a core took 15 times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Else torch.compile starts processes that load torch, each two seconds, to compile a handful of kernels.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile("attsvm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attsvm")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not go through torch again and again, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 20)


def pytest_runtest_setup() -> None:
    """A job that a shell starts with & ignores Ctrl-C, and so does a command that was interrupted in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
