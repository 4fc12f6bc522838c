"""An experiment of a few lines in a file of one's own: run, resume, workers, command line, figure, report."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli import INCOMPLETE
from attsvm.cli._app import app
from attsvm.experiments import (
    Backend,
    Check,
    Columns,
    Experiment,
    Params,
    Rows,
    load_experiments,
    run,
    run_experiments,
    write_template,
)
from attsvm.experiments.jobs import main, work
from attsvm.report import gather, write_report

OWN = """
import numpy as np
from attsvm.experiments import Experiment, at_most
from attsvm.plots import new_figure

def run(params, trials, device):
    return {"square": np.array([(params["a"] * trial) ** 2 for trial in trials], float)}

def figure(rows):
    figure, axes = new_figure(1, 1, (3, 2))
    axes[0][0].plot(rows["square"])
    return figure

def checks(rows):
    return [at_most("the largest square", rows["square"].max(), BOUND, "below the bound")]

BOUND = 100
EXPERIMENT = Experiment(
    id="own-squares", title="Squares", statement="Squares stay small <b>here</b>.", grid={"a": [1, 2]},
    run=run, figure=figure, checks=checks, trials=5, quick=3, batch=2,
)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def attsvm(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, AttsvmError):
        return 1, str(result.exception)
    return result.exit_code, result.output


def test_run_resume_and_figure(own: Path, tmp_path: Path) -> None:
    (experiment,) = load_experiments(own)
    out = tmp_path / "runs"
    outcome = run(experiment, out, progress=True)
    assert outcome.passed
    assert outcome.rows.where(a=2)["square"].tolist() == [0, 4, 16, 36, 64]
    assert "own-squares: 1 check passed" in repr(outcome)
    drawn = outcome.figure()
    drawn.canvas.draw()
    assert not any(ax.spines["top"].get_visible() for ax in drawn.axes)  # the common style
    assert run_experiments([experiment], out) == 0  # all is there
    sorted(out.rglob("*.parquet"))[0].unlink()
    assert run_experiments([experiment], out, backend=Backend(workers=1)) == 1  # in a process that opens the file
    assert run(experiment, out).rows["square"].tolist() == outcome.rows["square"].tolist()


def test_command_line_and_report(own: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "runs", tmp_path / "report.html"
    code, said = attsvm("reproduce", own, "--out", out, "--quiet", "--workers", 0)
    assert code == 0, said
    assert "1 check passed" in said
    code, said = attsvm("report", out, own, "--out", page, "--figures", tmp_path / "figures")
    assert code == 0, said
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"own-squares.pdf", "own-squares.svg"}
    text = page.read_text()
    assert "<strong>Claim:</strong>" in text
    assert 'data-label="claim"' in text
    assert "paper" not in text.lower()
    assert "&lt;b&gt;here&lt;/b&gt;" in text
    code, said = attsvm("report", out, "--out", page)
    assert (code, "name the file of own-squares" in said) == (1, True)
    own.write_text(OWN.replace("BOUND = 100", "BOUND = 10"))
    code, said = attsvm("reproduce", own, "--out", out, "--quiet", "--workers", 0)
    assert code == INCOMPLETE
    assert "1 of 1 checks failed: the largest square" in said


def test_figures_say_what_is_left_out(own: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "runs", tmp_path / "figures"
    for text in (OWN, OWN.replace("own-squares", "own-others")):
        own.write_text(text)
        (experiment,) = load_experiments(own)
        run(experiment, out)
    code, said = attsvm("figures", out, own, "--out", figures)
    assert (code, said.split("\n")[1]) == (0, "left out: own-squares; name their files to include them")
    sorted((out / "own-others").rglob("*.parquet"))[0].unlink()
    code, said = attsvm("figures", out, own, "--out", figures)
    assert (code, said.split("\n")[1]) == (0, "left out: own-others, unfinished: 5 of 6 batches")


def test_jobs_of_an_own_experiment(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["reproduce", own, "--quick", "--out", tmp_path / "runs", "--quiet", "--jobs", tmp_path / "jobs"]
    code, said = attsvm(*command)
    assert code == INCOMPLETE
    assert f"--experiment {own}" in " ".join(said.split())
    assert "--data" not in said
    with pytest.raises(AttsvmError, match="unknown to the catalog and to --experiment"):
        work(tmp_path / "jobs", {})
    monkeypatch.setattr(sys, "argv", ["jobs", str(tmp_path / "jobs"), "--experiment", str(own)])
    main()
    assert attsvm(*command)[0] == 0


def test_the_template_runs_and_makes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = attsvm("new-experiment", "my-rate")
    assert (code, "attsvm reproduce ./my_rate.py --quick" in said) == (0, True)
    code, said = attsvm("reproduce", "./my_rate.py", "--quick", "--quiet", "--workers", 0)
    assert code == 0, said
    code, said = attsvm("report", "runs", "my_rate.py")
    assert code == 0, said
    assert "<th>claim</th>" not in Path("report.html").read_text()  # its checks say nothing there
    for name, out, words in (
        ("my-rate", None, "is there already"),
        ("My Rate", None, "lower-case letters"),
        ("../x", None, "lower-case letters"),
        ("other", "other.txt", "must end in .py"),
    ):
        code, said = attsvm("new-experiment", name, *(["--out", out] if out else []))
        assert (code, words in said) == (1, True), said
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"my_rate.py", "report.html", "runs"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0", "line 1 cannot be run: ZeroDivisionError"),
        ("def", "cannot be run: SyntaxError"),
        ("x = 3", "must define an experiment"),
        (OWN.replace("own-squares", "svm-fig7"), "the id svm-fig7 is taken"),
        (OWN.replace("own-squares", "a/b"), "id must be letters"),
        (OWN.replace("batch=2", "batch=0"), "batch must be a whole number at least 1"),
        (OWN.replace("grid={", 'grid={"trial": [1], '), "has 'trial', which is a column of every table"),
        (OWN.replace("grid={", 'grid={"b": [{1}], '), "the values of 'b' in the grid of own-squares must be plain"),
    ],
)
def test_files_that_are_no_experiment(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    code, said = attsvm("reproduce", tmp_path / "mine.py", "--out", tmp_path / "runs")
    assert (code, words in said) == (1, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert attsvm("reproduce", tmp_path / "none.py")[1].endswith("it is not a file.")


def test_an_experiment_of_a_notebook_runs_in_its_process(tmp_path: Path) -> None:
    experiment = Experiment(
        id="local",
        title="",
        statement="",
        grid={},
        run=lambda params, trials, device: {"x": np.array(trials)},
        figure=lambda rows: None,  # type: ignore[arg-type,return-value]
        checks=lambda rows: [Check("three", "", str(len(rows)), len(rows) == 3)],
        trials=3,
        quick=1,
        batch=5,
    )
    assert isinstance(run(experiment, tmp_path).rows, Rows)
    with pytest.raises(AttsvmError, match="put the experiment into a file"):
        run(experiment, tmp_path, workers=1)
    accepting = replace(
        experiment,
        id="accepting",
        accepts=("foo",),
        run=lambda params, trials, device, *rest: {"x": np.array(trials)},
        checks=lambda rows: [],
    )
    (tmp_path / "foo.txt").write_text("x")
    outcome = run(accepting, tmp_path, data={"foo": str(tmp_path / "foo.txt")})
    assert len(outcome.rows) == 3
    assert "accepting: no checks" in repr(outcome)
    with pytest.raises(AttsvmError, match="run must return columns by name"):
        run(replace(experiment, id="nothing", run=lambda params, trials, device: None), tmp_path)  # type: ignore[arg-type,return-value]
    with pytest.raises(AttsvmError, match="must be an attsvm"):
        run("svm-fig7", tmp_path)  # type: ignore[arg-type]


def test_a_run_that_fails_at_once_leaves_nothing(own: Path, tmp_path: Path) -> None:
    own.write_text(
        OWN.replace("    return {", "    from attsvm import AttsvmError\n    raise AttsvmError('no')\n    return {")
    )
    (experiment,) = load_experiments(own)
    with pytest.raises(AttsvmError, match="no"):
        run(experiment, tmp_path / "deep" / "runs")
    assert not (tmp_path / "deep").exists()


def test_the_page_of_own_and_papers_experiments(own: Path, tmp_path: Path) -> None:
    from attsvm.experiments import CATALOG

    out = tmp_path / "runs"
    experiment = replace(load_experiments(own)[0], quick_grid={"a": [2]})
    run(experiment, out, quick=True)
    run(CATALOG["md-fig2"], out, quick=True)
    sections = gather(out, [experiment])
    write_report(sections, out, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert [section.experiment.id for section in sections] == ["md-fig2", "own-squares"]
    assert "<strong>The paper:</strong>" in text
    assert "<strong>Claim:</strong>" in text
    assert "a ∈ 2</dd>" in text  # what was run, and not the whole grid
    assert write_template("abc", tmp_path / "abc.py").is_file()


def test_an_id_of_the_catalog_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "svm_fig7.py"
    code, said = attsvm("new-experiment", "svm-fig7", "--out", path)
    assert code == 1
    assert "the id svm-fig7 is taken" in said
    assert not path.exists()


def test_a_file_is_read_as_python_reads_it(own: Path) -> None:
    """With the text as written, not with what attsvm's own files ask of the compiler."""
    own.write_text(OWN + "def typed(x: int): ...\nassert typed.__annotations__ == {'x': int}\n")
    assert len(load_experiments(own)) == 1


def test_a_file_may_import_its_neighbours(own: Path, tmp_path: Path) -> None:
    (tmp_path / "own_neighbour.py").write_text("BOUND = 100\n")
    own.write_text(OWN.replace("BOUND = 100", "from own_neighbour import BOUND"))
    (experiment,) = load_experiments(own)
    assert run(experiment, tmp_path / "runs", quick=True).passed


def test_an_edited_file_is_read_again_whatever_its_time(own: Path, tmp_path: Path) -> None:
    """A clock of file times may tick every few milliseconds, and bytecode knows whole seconds."""
    (old,) = load_experiments(own)
    stamp = own.stat()
    own.write_text(OWN.replace('["a"] * trial', '["a"] + trial'))
    os.utime(own, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (new,) = load_experiments(own)
    assert own.stat().st_size == stamp.st_size
    assert [experiment.run({"a": 2}, range(3), "cpu")["square"].tolist() for experiment in (new, old)] == [
        [4, 9, 16]
    ] * 2


def test_two_experiments_of_a_file_have_two_ids(own: Path) -> None:
    own.write_text(OWN + "SAME = EXPERIMENT\n")
    assert len(load_experiments(own)) == 1
    own.write_text(
        OWN
        + "from dataclasses import replace\nOTHER = replace(EXPERIMENT, title='Cubes')\n"
        + "EXPERIMENTS = [EXPERIMENT, OTHER]\n"
    )
    with pytest.raises(AttsvmError, match="two experiments with the id own-squares"):
        load_experiments(own)


@pytest.mark.parametrize("values", [[(1, 2), (3, 4)], [[1, 2], [3, 4]], [float("nan"), 1.0], [{"b": 1, "a": 2}]])
def test_values_of_a_grid_are_found_again(own: Path, tmp_path: Path, values: list[object]) -> None:
    calls: list[object] = []

    def count(params: Params, trials: range, device: str) -> Columns:
        calls.append(params["value"])
        return {"square": np.zeros(len(trials))}

    experiment = replace(load_experiments(own)[0], grid={"value": values, "a": [1]}, run=count, batch=5)
    for _ in range(2):
        outcome = run(experiment, tmp_path / "runs", quick=True)
    assert len(calls) == len(values)
    assert list(map(str, outcome.rows.values("value"))) == list(map(str, values))


def test_a_cell_that_the_grid_names_twice_counts_once(own: Path, tmp_path: Path) -> None:
    experiment = replace(load_experiments(own)[0], grid={"a": [2, 1, 2]})
    assert len(run(experiment, tmp_path / "runs", quick=True).rows) == 2 * experiment.quick


def test_a_grid_without_cells_is_refused(own: Path, tmp_path: Path) -> None:
    for nothing in ({"grid": {"a": []}}, {"only": lambda params: False}, {"times": lambda params: 0}):
        with pytest.raises(AttsvmError, match="own-squares has no trial"):
            run(replace(load_experiments(own)[0], **nothing), tmp_path / "runs", quick=True)
    assert not (tmp_path / "runs").exists()


def test_a_column_that_no_table_holds_is_named(own: Path, tmp_path: Path) -> None:
    def roots(params: Params, trials: range, device: str) -> Columns:
        return {"root": np.full(len(trials), 1j)}

    with pytest.raises(AttsvmError, match="column 'root' of own-squares must hold real numbers or texts"):
        run(replace(load_experiments(own)[0], run=roots), tmp_path / "runs", quick=True)


def test_a_scheduler_is_an_address_and_has_workers_of_its_own(own: Path, tmp_path: Path) -> None:
    for wrong, said in ((["tcp://127.0.0.1:9", "--workers", 0], "leave --workers out"), ([""], "it is empty")):
        code, output = attsvm("reproduce", own, "--quick", "--out", tmp_path / "runs", "--scheduler", *wrong)
        assert (code, said in output) == (1, True), output


def test_a_figure_that_is_not_returned_is_named(own: Path, tmp_path: Path) -> None:
    own.write_text(OWN.replace("    return figure\n", ""))
    (experiment,) = load_experiments(own)
    run(experiment, tmp_path / "runs", quick=True)
    with pytest.raises(AttsvmError, match="figure of own-squares must return a matplotlib figure, but got NoneType"):
        gather(tmp_path / "runs", [experiment])
