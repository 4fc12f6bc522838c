"""What holds for every test: no example of Hypothesis is judged by the clock, and failures can be repeated."""

from hypothesis import HealthCheck, settings

settings.register_profile("attsvm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("attsvm")
