"""Every figure and theorem of the papers as an experiment: a grid, a function that makes rows, and checks of them."""

from attsvm.experiments._checks import Check, at_least, at_most, fine, verdict_line
from attsvm.experiments._experiment import Batch, Columns, Experiment, Params, Rows
from attsvm.experiments.catalog import CATALOG, find

__all__ = [
    "CATALOG",
    "Batch",
    "Check",
    "Columns",
    "Experiment",
    "Params",
    "Rows",
    "at_least",
    "at_most",
    "find",
    "fine",
    "verdict_line",
]
