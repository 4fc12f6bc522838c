"""Searching: counter-examples to conjectures about training, the basins of a problem, and starts inside a cone."""

from attsvm.search._basins import Basins, basins
from attsvm.search._conclusions import optimal_tokens_lead
from attsvm.search._cone_start import cone_start
from attsvm.search._descent import Descent
from attsvm.search._falsify import Counterexample, falsify
from attsvm.search._known import counterexample, wrong_for_good
from attsvm.search._precise import PreciseDescent

__all__ = [
    "Basins",
    "Counterexample",
    "Descent",
    "PreciseDescent",
    "basins",
    "cone_start",
    "counterexample",
    "falsify",
    "optimal_tokens_lead",
    "wrong_for_good",
]
