"""Batches computed elsewhere: the same rows, only for the data they were written for, without the heavy packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from command_line import run_script
from compare import bits
from test_experiments_sources import counting, opened
from toy_experiment import make
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli import INCOMPLETE
from attsvm.cli._reproduce import reproduce_command
from attsvm.experiments._runner import Backend, run_experiments
from attsvm.experiments.jobs import work
from attsvm.files import read_arrays, write_arrays


def test_rows_from_elsewhere_are_the_same(tmp_path: Path) -> None:
    folder, rows = tmp_path / "jobs", tmp_path / "rows"
    run_experiments([make()], tmp_path / "here", quick=True)
    away = Backend(jobs=folder)
    assert run_experiments([make()], rows, quick=True, backend=away) == 0
    own = {"toy": make()}
    assert work(folder, {}, report=lambda line: None, own=own) == 2
    assert work(folder, {}, report=lambda line: None, own=own) == 0
    assert run_experiments([make()], rows, quick=True, backend=away) == 2
    assert bits(rows) == bits(tmp_path / "here")
    assert run_experiments([make(version=2)], rows, quick=True, backend=away) == 0  # other rows, other jobs


def test_a_job_takes_only_its_own_data(tmp_path: Path) -> None:
    words, other, folder = tmp_path / "words.txt", tmp_path / "other.txt", tmp_path / "jobs"
    words.write_text("one two three")
    other.write_text("one two")
    away, own = Backend(jobs=folder), {counting().id: counting()}
    run_experiments([counting()], tmp_path / "rows", quick=True, sources=opened(words), backend=away)
    for places, match in (({}, "give --data words"), ({"words": str(other)}, "not the data set")):
        with pytest.raises(AttsvmError, match=match):
            work(folder, places, own=own)
    assert work(folder, {"words": str(words)}, report=lambda line: None, own=own) == 2


def test_command_line(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    command = ["md-fig2", "--quick", "--quiet", "--out", str(tmp_path / "rows"), "--jobs", str(tmp_path / "jobs")]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == INCOMPLETE, first.output
    assert "batches wait in" in first.output
    as_module = "import runpy; runpy.run_module('attsvm.experiments.jobs', run_name='__main__', alter_sys=True)"
    done = run_script(as_module, str(tmp_path / "jobs"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 0, second.output
    wrong = CliRunner().invoke(app, [*command, "--workers", "2"])
    assert isinstance(wrong.exception, AttsvmError)


def test_batches_that_two_experiments_share_are_counted_once(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    folder = tmp_path / "jobs"
    twins = ["md-fig6", "md-fig7", "--quick", "--quiet", "--out", str(tmp_path / "rows"), "--jobs", str(folder)]
    said = CliRunner().invoke(app, twins).output
    assert said.startswith(f"{len(list(folder.glob('*.json')))} batches wait")


def test_a_job_is_data_and_never_code(tmp_path: Path) -> None:
    """A job names a batch of an experiment that is known here; whatever else it says is refused."""
    folder = tmp_path / "jobs"
    run_experiments([make()], tmp_path / "rows", quick=True, backend=Backend(jobs=folder))
    path, *_ = sorted(folder.glob("*.json"))
    job = json.loads(path.read_text())
    own = {"toy": make()}
    for change, match in (
        ({"run": "os:system"}, "it has also run"),
        ({"experiment": "pty:spawn"}, "unknown to the catalog"),
        ({"experiment": "ty"}, "did you mean toy?"),
        ({"experiment": ["toy"]}, "experiment must be text"),
        ({"device": "nowhere"}, "not available here"),
        ({"quick": False}, "is no job of toy as it is here"),
        ({"data": {"words": 3}}, "data.words must be text"),
        ({"attsvm": "0.0.0"}, "was written by attsvm 0.0.0"),
        ({"format": "attsvm-job/7"}, "format must be one of attsvm-job/1"),
    ):
        path.write_text(json.dumps(job | change))
        with pytest.raises(AttsvmError, match=match):
            work(folder, {}, report=lambda line: None, own=own)
    for content in ("", "[]", "[" * 100_000, json.dumps({"experiment": "toy"})):
        path.write_text(content)
        with pytest.raises(AttsvmError, match=str(path)):
            work(folder, {}, report=lambda line: None, own=own)
    path.write_text(json.dumps(job))
    renamed = path.rename(path.with_name("toy-0123456789ab-trials-00000-00003.json"))
    with pytest.raises(AttsvmError, match="is no job of toy"):
        work(folder, {}, report=lambda line: None, own=own)
    renamed.rename(path)
    assert work(folder, {}, report=lambda line: None, own=own) == 2


def test_results_with_other_rows_are_refused(tmp_path: Path) -> None:
    folder, rows, own = tmp_path / "jobs", tmp_path / "rows", {"toy": make()}
    away = Backend(jobs=folder)
    run_experiments([make()], rows, quick=True, backend=away)
    work(folder, {}, report=lambda line: None, own=own)
    path, *_ = sorted(folder.glob("*.npz"))
    arrays, facts = read_arrays(path)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for change, match in (
        ({name: tensor[:2] for name, tensor in tensors.items()}, "must have 4 rows"),
        ({"column.norm": tensors["column.norm"][:2]}, "must have shape"),
    ):
        write_arrays(path, tensors | change, facts)
        with pytest.raises(AttsvmError, match=match):
            run_experiments([make()], rows, quick=True, backend=away)
    write_arrays(path, tensors, facts)
    run_experiments([make()], rows, quick=True, backend=away)
    assert len(bits(rows)) == 2
