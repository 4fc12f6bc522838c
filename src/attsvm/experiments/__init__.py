"""Experiments: a grid, a function that makes rows, and checks of them. All figures and theorems of the papers are in
the catalog; `run` takes one of these or your own, and `write_template` starts a new one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attsvm.experiments._checks import Check, at_least, at_most, fine, verdict_line
from attsvm.experiments._experiment import Batch, Columns, Experiment, Params, Rows
from attsvm.experiments._own import load_experiments, write_template
from attsvm.experiments._sources import Source, open_sources, with_data

if TYPE_CHECKING:
    from attsvm.experiments._runner import Backend, Outcome, run, run_experiments
    from attsvm.experiments._store import Stored, read_provenance, read_stored
    from attsvm.experiments.catalog import CATALOG, find

__all__ = [
    "CATALOG",
    "Backend",
    "Batch",
    "Check",
    "Columns",
    "Experiment",
    "Outcome",
    "Params",
    "Rows",
    "Source",
    "Stored",
    "at_least",
    "at_most",
    "find",
    "fine",
    "load_experiments",
    "open_sources",
    "read_provenance",
    "read_stored",
    "run",
    "run_experiments",
    "verdict_line",
    "with_data",
    "write_template",
]

_LAZY = {
    "catalog": ("CATALOG", "find"),
    "_runner": ("Backend", "Outcome", "run", "run_experiments"),
    "_store": ("Stored", "read_provenance", "read_stored"),
}


def __getattr__(name: str) -> Any:
    """Rows need pyarrow, and the catalog everything else: a machine that only computes need not have it."""
    module = next((module for module, names in _LAZY.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
