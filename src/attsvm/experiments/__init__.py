"""Every figure and theorem of the papers as an experiment: a grid, a function that makes rows, and checks of them."""

from typing import TYPE_CHECKING, Any

from attsvm.experiments._checks import Check, at_least, at_most, fine, verdict_line
from attsvm.experiments._experiment import Batch, Columns, Experiment, Params, Rows

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """The catalog draws figures: a machine that only computes rows need not have matplotlib."""
    if name in ("CATALOG", "find"):
        from attsvm.experiments import catalog

        return getattr(catalog, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
