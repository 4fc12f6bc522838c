"""Searching: counter-examples to conjectures about training, the basins of a problem, and starts inside a cone."""

from attsvm.search._known import counterexample, wrong_for_good
from attsvm.search._precise import PreciseDescent

__all__ = ["PreciseDescent", "counterexample", "wrong_for_good"]
