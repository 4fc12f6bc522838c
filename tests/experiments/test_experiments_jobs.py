"""Batches computed elsewhere: the same rows, only for the data they were written for, without the heavy packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from compare import bits
from test_experiments_sources import counting, opened
from toy_experiment import make
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli import INCOMPLETE
from attsvm.cli._reproduce import reproduce_command
from attsvm.experiments._runner import Backend, run_experiments
from attsvm.experiments.jobs import work


def test_rows_from_elsewhere_are_the_same(tmp_path: Path) -> None:
    folder, rows = tmp_path / "jobs", tmp_path / "rows"
    run_experiments([make()], tmp_path / "here", quick=True)
    away = Backend(jobs=folder)
    assert run_experiments([make()], rows, quick=True, backend=away) == 0
    assert work(folder, {}, report=lambda line: None) == 2
    assert work(folder, {}, report=lambda line: None) == 0
    assert run_experiments([make()], rows, quick=True, backend=away) == 2
    assert bits(rows) == bits(tmp_path / "here")
    assert run_experiments([make(version=2)], rows, quick=True, backend=away) == 0  # other rows, other jobs


def test_a_job_takes_only_its_own_data(tmp_path: Path) -> None:
    words, other, folder = tmp_path / "words.txt", tmp_path / "other.txt", tmp_path / "jobs"
    words.write_text("one two three")
    other.write_text("one two")
    away = Backend(jobs=folder)
    run_experiments([counting()], tmp_path / "rows", quick=True, sources=opened(words), backend=away)
    for places, match in (({}, "give --data words"), ({"words": str(other)}, "not the data set")):
        with pytest.raises(AttsvmError, match=match):
            work(folder, places)
    assert work(folder, {"words": str(words)}, report=lambda line: None) == 2


def test_command_line(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    command = ["md-fig2", "--quick", "--quiet", "--out", str(tmp_path / "rows"), "--jobs", str(tmp_path / "jobs")]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == INCOMPLETE, first.output
    assert "batches wait in" in first.output
    folder = str(tmp_path / "jobs")
    done = subprocess.run(
        [sys.executable, "-m", "attsvm.experiments.jobs", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 0, second.output
    wrong = CliRunner().invoke(app, [*command, "--workers", "2"])
    assert isinstance(wrong.exception, AttsvmError)


def test_jobs_need_torch_and_numpy_alone() -> None:
    """Where figures, tables and the command line cannot be imported, jobs still can."""
    hidden = ["matplotlib", "pyarrow", "typer", "rich", "jinja2", "sklearn", "scipy", "tokenizers"]
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden})); import attsvm.experiments.jobs"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
