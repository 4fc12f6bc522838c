"""Every experiment of the catalog is well declared; the command line lists, runs and refuses."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._report import report_command
from attsvm.cli._reproduce import reproduce_command
from attsvm.experiments import CATALOG, Check, Experiment, at_least, at_most, catalog, find, fine, verdict_line
from attsvm.experiments.catalog import MODULES


def test_file_names_are_ids() -> None:
    assert [name.replace("_", "-") for name in MODULES] == list(CATALOG)
    folder = Path(catalog.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == set(MODULES)


@pytest.mark.parametrize("experiment", CATALOG.values(), ids=list(CATALOG))
def test_experiment_is_well_declared(experiment: Experiment) -> None:
    assert pickle.loads(pickle.dumps(experiment.run)) is experiment.run  # workers find it by name
    for quick in (False, True):
        batches = experiment.batches(quick)
        assert batches
        assert len({batch.path for batch in batches}) == len(batches)
        assert all(batch.cost > 0 for batch in batches)
        json.dumps([dict(batch.params) for batch in batches])
    assert not experiment.rows_of or experiment.rows_of in CATALOG
    if experiment.rows_of:
        assert {b.path for b in experiment.batches(True)} == {b.path for b in CATALOG[experiment.rows_of].batches(True)}


def test_find_keeps_the_order_of_the_catalog() -> None:
    assert [experiment.id for experiment in find(["md-fig3", "svm-fig1"])] == ["svm-fig1", "md-fig3"]
    assert len(find(["all"])) == len(CATALOG)
    with pytest.raises(AttsvmError, match="did you mean svm-fig9"):
        find(["svm-fig99"])


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    app.command("report")(report_command)
    return app


def test_command_line(app: typer.Typer, tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in CATALOG)
    rows, page = str(tmp_path / "runs"), tmp_path / "report.html"
    done = runner.invoke(
        app, ["reproduce", "md-fig2", "md-fig3", "--quick", "--workers", "0", "--out", rows, "--quiet"]
    )
    assert done.exit_code == 0, done.output
    assert "all 3 checks passed" in done.output
    written = runner.invoke(app, ["report", rows, "--out", str(page), "--figures", str(tmp_path / "figures")])
    assert written.exit_code == 0, written.output
    assert page.is_file()
    assert (tmp_path / "figures" / "md-fig2.pdf").is_file()
    for wrong in (["reproduce"], ["reproduce", "nothing"], ["report", str(tmp_path / "figures")]):
        assert isinstance(runner.invoke(app, wrong).exception, AttsvmError)


def test_a_check_may_fail_only_for_a_reason() -> None:
    good, bad = Check("a", "", "", True, why="never read"), Check("b", "", "", False)
    errs = Check("c", "", "", False, why="a counter-example is in d")
    assert fine([good, errs])
    assert not fine([good, errs, bad])
    assert verdict_line([good]) == "1 check passed"
    assert "explained: c" in verdict_line([good, errs])
    assert "2 of 3 checks failed: b; c" in verdict_line([good, errs, bad])


def test_extra_checks_are_counted_apart_and_bars_say_which_way() -> None:
    angle = at_most("angle", 2.0, 3.0, unit="°")
    more, less = at_least("more", 0.5, 0.25, extra=True), at_least("less", 0.5, 0.75, extra=True)
    assert angle.ours == "2° (≤ 3°)"
    assert less.ours == "0.5 (≥ 0.75)"
    assert verdict_line([angle, more]) == "all 1 check and 1 extra check passed"
    assert verdict_line([more, more]) == "all 2 extra checks passed"
    assert verdict_line([angle, more, less]) == "0 of 1 checks and 1 of 2 extra failed: less"
