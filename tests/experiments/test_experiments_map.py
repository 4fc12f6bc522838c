"""The experiments on optimizers and models: a short run of one cell, and figure and checks of rows of its shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.experiments import CATALOG, Check, Rows
from attsvm.experiments.catalog import heads_classes, heads_kq, layers_svm, map_p

SHORT: dict[str, dict[str, Any]] = {
    "map-adam": {"horizon": 330},
    "map-muon": {"horizon": 330},
    "map-batch": {"steps": 40},
    "map-decay": {"steps": 40},
    "map-p": {},
    "ntp-svm": {"horizon": 120},
    "ntp-graph": {"horizon": 120},
    "heads-kq": {},
    "heads-classes": {},
    "layers-svm": {},
}


@pytest.mark.parametrize("name", SHORT)
def test_a_trial_depends_on_its_number_alone_and_rows_are_drawn(name: str, monkeypatch) -> None:
    monkeypatch.setattr(heads_kq, "STEPS", 40)
    monkeypatch.setattr(map_p, "FOLDS", 2)
    monkeypatch.setattr(heads_classes, "RULES", {name: (*rule[:3], 40) for name, rule in heads_classes.RULES.items()})
    monkeypatch.setattr(layers_svm, "RECORDED", [30, 60])
    experiment = CATALOG[name]
    cells = experiment.cells(False)
    params = {**cells[-1 if name != "map-adam" else 0], **SHORT[name]}
    columns = experiment.run(params, range(2), "cpu")
    alone = experiment.run(params, range(1, 2), "cpu")
    for key, column in columns.items():
        assert len(column) == 2
        np.testing.assert_allclose(column[1:], alone[key], rtol=1e-6, atol=1e-9)
    rows = Rows([({**cell, **SHORT[name]}, columns) for cell in cells])
    figure = experiment.figure(rows)
    assert all(ax.get_title() or ax.get_ylabel() for ax in figure.axes)
    found = experiment.checks(rows)
    assert found
    assert all(isinstance(check, Check) and check.name for check in found)


def test_runs_of_two_and_of_four_heads_are_checked_together() -> None:
    experiment = CATALOG["heads-svm"]
    numbers = ("spread", "same_tokens", "difference", "optimal")
    rows = Rows(
        [
            (cell, {"error": np.full((3, cell["heads"]), 0.1), **{name: np.ones(3) for name in numbers}})
            for cell in experiment.cells(False)
        ]
    )
    assert experiment.checks(rows)
    assert experiment.figure(rows).axes
