"""The experiments on lemmas, cones and basins: their checks pass on few trials, and a trial knows only its number."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attsvm.embeddings import signed_frequency
from attsvm.experiments import CATALOG, Experiment, Rows
from attsvm.experiments.catalog import emb_kq, emb_tuples

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


def test_attention_and_regression_both_go_to_their_svm() -> None:
    experiment = CATALOG["svm-fig3"]
    assert all(check.passed for check in experiment.checks(rows_of(experiment, range(4))))


def test_w_kq_in_place_of_p_is_the_same_model() -> None:
    """One start: the product moves as p does, and W_KQ is what p says, to rounding."""
    columns = CATALOG["emb-kq"].run({"case": emb_kq.ALONE}, range(1), "cpu")
    assert max(columns[name][0] for name in ("q", "E", "W")) < 1e-12


def test_single_tokens_of_the_pairs_say_nothing() -> None:
    data, pairs = emb_tuples._draw(15, np.random.default_rng(0))
    assert signed_frequency(data).abs().max() == 0
    assert data.n == len(pairs) == 60
    # Within a group the pair decides: the two labels have opposite parities of it.
    parity = np.array([1, -1, -1, 1])[pairs % 4] * data.Y.numpy()
    assert set(np.abs(parity.reshape(15, 4).sum(1)).tolist()) == {4.0}


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
