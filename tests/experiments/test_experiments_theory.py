"""The experiments on lemmas, cones and basins: their checks pass on few trials, and a trial knows only its number."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attsvm.experiments import CATALOG, Experiment, Rows

ROOT = Path(__file__).parents[2]


def rows_of(experiment: Experiment, trials: range) -> Rows:
    return Rows([(cell, experiment.run(cell, trials, "cpu")) for cell in experiment.cells(quick=True)])


@pytest.mark.parametrize("name", ["md-lemmas", "svm-lemmas"])
def test_lemmas_hold_on_random_data(name: str) -> None:
    experiment = CATALOG[name]
    rows = rows_of(experiment, range(12))
    failed = [check for check in experiment.checks(rows) if not check.passed]
    assert not failed
    assert experiment.figure(rows).axes


@pytest.mark.parametrize("name", ["md-lemmas", "svm-lemmas", "svm-conjecture"])
def test_a_trial_depends_on_its_number_only(name: str) -> None:
    experiment = CATALOG[name]
    cell = experiment.cells(quick=True)[-1]
    some, all_of_them = experiment.run(cell, range(2, 4), "cpu"), experiment.run(cell, range(4), "cpu")
    for column, values in some.items():
        np.testing.assert_allclose(values, all_of_them[column][2:], rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def sweep_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sweep_theorems", ROOT / "benchmarks" / "sweep_theorems.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_listed_theorem_is_contradicted(sweep_module: ModuleType) -> None:
    """A small form of benchmarks/sweep_theorems.py."""
    totals = sweep_module.sweep(40, seed=5, steps=200)
    assert sum(counts[0] for counts in totals.values()) > 20
    assert {name: counts[1] for name, counts in totals.items() if counts[1]} == {}
    assert all(applies == against + out + left for applies, against, out, left in totals.values())
