"""What holds for every test: no example of Hypothesis is judged by the clock, and failures can be repeated."""

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("attsvm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attsvm")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not go through torch again and again, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 20)
