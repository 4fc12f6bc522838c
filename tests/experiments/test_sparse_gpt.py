"""The experiment on gradual pruning reads kept rows, and judges leads by seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import AttsvmError
from attsvm.experiments import CATALOG, Rows, run
from attsvm.experiments.catalog.sparse_gpt import SETTINGS, TAUGHT
from attsvm.experiments.sparse.rows import kept_rows, method_of

pq = pytest.importorskip("pyarrow.parquet")
EXPERIMENT = CATALOG["sparse-gpt"]
SETTING = next(iter(SETTINGS))
REPOSITORY = str(Path(__file__).parents[2] / "benchmarks/results/sparse")
TAUGHT_MUON = '{"distil": 0.8, "teacher_lr": 0.006}'
(MUON,) = (taught for taught in TAUGHT if taught.setting == SETTING and taught.name == "Muon")


def kept(folder: Path, losses: dict[tuple[str, float], list[float]], tuned: tuple[float, ...] = ()) -> str:
    import pyarrow as pa

    usual: dict[str, Any] = {"corpus": "imdb", "clip": 1.0, "lr": 1e-3, "seconds": 1.0, **SETTINGS[SETTING]}
    usual |= {"epochs": 4.0}
    kinds = {"mirror": {"options": '{"p": 1.1}'}, "taught": {"method": "muon", "note": "front", "options": TAUGHT_MUON}}
    for method, options in (("adamw", '{"scope": "relative"}'), ("mirror", '{"p": 1.1, "scope": "relative"}')):
        kinds[f"{method}, relative"] = {"method": method, "note": "relative", "options": options}
    for method, options in (("adamw", {"weight_decay": 1.0}), ("mirror", {"p": 1.1, "weight_decay": 0.3})):
        kinds[f"{method}, decay"] = {
            "method": method,
            "note": "decay",
            "options": json.dumps(options | {"scope": "relative"}),
        }
    rows = []
    for (method, share), values in losses.items():
        for seed, loss in enumerate(values, start=1):
            found = {"note": "main", "seed": seed, "sparsity": share, "zeros": share, "test": loss, "validation": loss}
            rows.append({"options": "{}", "method": method} | usual | found | kinds.get(method, {}))
    tune = {"options": "{}", "method": "adamw", "note": "tune", "seed": 0, "sparsity": 0.9, "zeros": 0.9, **usual}
    rows += [tune | {"test": loss + 1, "validation": loss} for loss in tuned]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    kept_rows.cache_clear()
    return str(folder)


def rows_of(folder: str) -> Rows:
    data = {"sparse": folder}
    return Rows([(cell, EXPERIMENT.run(cell, range(3), "cpu", data)) for cell in EXPERIMENT.cells(quick=False)])


@pytest.mark.parametrize(("lead", "noise", "passed"), [(0.05, 0.001, True), (0.03, 0.001, False), (0.05, 0.03, False)])
def test_a_lead_counts_where_it_is_large_and_beyond_the_noise(tmp_path, lead, noise, passed) -> None:
    base = [4.5 - noise, 4.5, 4.5 + noise]
    folder = kept(tmp_path, {("adamw", 0.95): base, ("mirror", 0.95): [loss - lead for loss in base]})
    rows = rows_of(folder)
    (check,) = [check for check in EXPERIMENT.checks(rows) if "95% zeros" in check.name]
    assert f"{lead:+.3f} ± 0.000" in check.ours  # seed by seed it is exact
    assert check.passed is passed
    assert np.isnan(rows.where(method="Muon")["test"]).all()
    EXPERIMENT.figure(rows).canvas.draw()


def test_a_threshold_for_each_matrix_is_given_to_both(tmp_path) -> None:
    base, best = [4.499, 4.5, 4.501], [4.399, 4.4, 4.401]
    losses = {("adamw", 0.95): base, ("adamw, relative", 0.95): best, ("mirror, relative", 0.95): best}
    rows = rows_of(kept(tmp_path, losses))
    (check,) = [check for check in EXPERIMENT.checks(rows) if "95% zeros" in check.name]
    assert "p = 1.1, scope = relative is below AdamW, scope = relative by 0.04" in check.name
    assert "+0.000 ± 0.000" in check.ours  # AdamW with one threshold for all is 0.1 above
    assert not check.passed


def test_weight_decay_is_tuned_for_both(tmp_path) -> None:
    losses = {("adamw, relative", 0.95): [4.5, 4.6, 4.7], ("adamw, decay", 0.95): [4.4, 4.45, 4.6]}
    rows = rows_of(kept(tmp_path, losses | {("mirror, decay", 0.95): [4.35, 4.4, 4.55]}))
    (check,) = [check for check in EXPERIMENT.checks(rows) if "95% zeros" in check.name]
    assert (
        "p = 1.1, scope = relative, weight_decay = 0.3 is below AdamW, scope = relative, weight_decay = 1" in check.name
    )
    assert "+0.050 ± 0.000" in check.ours
    (ax,) = [
        ax for ax in EXPERIMENT.figure(rows).axes if "decay tuned" in ax.get_title() and "below" in ax.get_xlabel()
    ]
    (place,) = ax.containers[0].lines[0].get_xdata()
    assert place == pytest.approx(0.05)


@pytest.mark.parametrize(("above", "passed"), [(-0.01, [True, True]), (0.04, [False, True]), (0.06, [False, False])])
def test_a_taught_model_is_measured_by_dense_adamw(tmp_path, above: float, passed: list[bool]) -> None:
    dense = [4.4, 4.5, 4.7]
    taught = [loss + above for loss in dense]
    folder = kept(tmp_path, {("adamw", 0.0): dense, ("taught", 0.9): taught, ("taught", 0.95): taught})
    found = [check for check in EXPERIMENT.checks(rows_of(folder)) if "teacher" in check.name]
    assert [check.passed for check in found] == passed
    assert all(f"{above:+.3f} ± 0.000" in check.ours for check in found)


def test_longer_runs_are_not_mixed_with_the_others(tmp_path) -> None:
    import pyarrow as pa

    folder = Path(kept(tmp_path, {("taught", 0.9): [4.0, 4.1, 4.2]}))
    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    longer = [row | {"epochs": 8.0, "test": 3.0} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows + longer), folder / "rows.parquet")
    kept_rows.cache_clear()
    found = rows_of(str(folder)).where(setting=SETTING, method=MUON.method, sparsity=0.9)["test"]
    np.testing.assert_array_equal(found, [4.0, 4.1, 4.2])


def test_the_figure_shows_how_far_below_adamw_a_method_is(tmp_path) -> None:
    base = [4.4, 4.5, 4.7]
    losses = {("adamw", 0.95): base, ("mirror", 0.95): [4.3, 4.42, 4.58], ("muon", 0.95): [4.0]}  # a second seed lacks
    figure = EXPERIMENT.figure(rows_of(kept(tmp_path, losses)))
    (ax,) = [ax for ax in figure.axes if ax.get_title() == SETTING and "below" in ax.get_xlabel()]
    (shown,) = ax.containers
    (place,) = shown.lines[0].get_xdata()
    assert place == pytest.approx(0.1)
    names = {text.get_position()[1]: text.get_text() for text in ax.texts}
    assert names[round(shown.lines[0].get_ydata()[0])] == "MirrorAdam p = 1.1"


@pytest.fixture(scope="module")
def rows_of_repository() -> Rows:
    kept_rows.cache_clear()
    return rows_of(REPOSITORY)


def test_the_figure_shows_every_taught_seed_above_dense_adamw(rows_of_repository: Rows) -> None:
    rows = rows_of_repository
    ax = EXPERIMENT.figure(rows).axes[-1]
    longer = [taught for taught in TAUGHT if taught.epochs == 8]
    names = [taught.name.removesuffix(", twice the steps") for taught in longer]
    assert [text.get_text() for text in ax.texts] == names
    dense = rows.where(setting=SETTING, method="AdamW", sparsity=0.0)["test"]
    for taught, line in zip(longer, ax.lines):
        over = rows.where(setting=SETTING, method=taught.cell, sparsity=0.95)["test"] - dense
        assert np.isfinite(over).all()
        np.testing.assert_allclose(line.get_xdata(), over)
    one, other = (rows.where(method=taught.cell, sparsity=0.95)["lr"] for taught in longer if taught.lr)
    assert np.nanmax(other) < np.nanmin(one)  # two rates are not mixed


def test_the_tuned_rate_is_the_best_by_validation(tmp_path) -> None:
    rows = rows_of(kept(tmp_path, {("adamw", 0.95): [4.0]}, tuned=(4.3, 4.2, float("nan"))))
    assert rows.where(setting=SETTING, method="AdamW", sparsity=0.9)["tuned"] == pytest.approx(5.2)
    line = EXPERIMENT.figure(rows).axes[0].lines[0]  # of a fresh run with 5% non-zeros and the one that chose the rate
    np.testing.assert_allclose(line.get_xydata(), [[5, 4.0], [10, 5.2]])


def test_a_run_at_another_rate_than_the_chosen_one_does_not_count(tmp_path) -> None:
    folder = Path(kept(tmp_path, {("adamw", 0.95): [4.0, 4.1, 4.2]}, tuned=(4.3,)))
    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    for row in rows:
        row["lr"] = 2e-3 if row["test"] == 4.1 else row["lr"]
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    kept_rows.cache_clear()
    found = rows_of(str(folder)).where(setting=SETTING, method="AdamW", sparsity=0.95)["test"]
    np.testing.assert_array_equal(found, [4.0, np.nan, 4.2])


def test_the_rows_of_the_repository_are_read_and_their_zeros_are_exact(rows_of_repository: Rows) -> None:
    kept_rows.cache_clear()
    rows = rows_of_repository
    assert [check for check in EXPERIMENT.checks(rows) if check.passed and "exact zeros" in check.name]
    assert json.dumps([row["options"] for row in kept_rows(REPOSITORY)])
    for taught in TAUGHT:
        found = rows.where(setting=taught.setting, method=taught.cell)["test"]
        own = [row for row in kept_rows(REPOSITORY) if method_of(row) == taught.method and row["seed"]]
        own = [row for row in own if taught.lr in (None, row["lr"])]
        assert sorted(found[np.isfinite(found)]) == sorted(row["test"] for row in own)
        assert {row["epochs"] for row in own} == {taught.epochs}


def test_the_runner_takes_it(tmp_path) -> None:
    folder = kept(tmp_path, {("adamw", 0.95): [4.5, 4.4, 4.6]})
    few = replace(EXPERIMENT, only=lambda params: params["setting"] == SETTING, checks=lambda rows: [])
    outcome = run(few, tmp_path / "runs", data={"sparse": folder})
    assert np.nanmean(outcome.rows["test"]) == pytest.approx(4.5)


def test_other_folders_are_refused(tmp_path) -> None:
    kept_rows.cache_clear()
    with pytest.raises(AttsvmError, match=r"rows\.parquet"):
        kept_rows(str(tmp_path))
