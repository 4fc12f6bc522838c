"""Experiments that need data: rows of other content never meet, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from toy_experiment import count, make
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._report import report_command
from attsvm.cli._reproduce import reproduce_command
from attsvm.experiments import CATALOG, Experiment, Rows
from attsvm.experiments._runner import run_experiments
from attsvm.experiments._sources import content_digest, open_sources, with_data
from attsvm.experiments._store import read_stored


def counting(**changes) -> Experiment:
    return make(id="counting", run=count, needs=("words",), **changes)


def opened(path: Path):
    return open_sources([f"words={path}"], [counting()])


def test_rows_follow_the_content_and_not_the_place(tmp_path: Path) -> None:
    first, moved, changed = tmp_path / "a.txt", tmp_path / "moved" / "b.txt", tmp_path / "c.txt"
    moved.parent.mkdir()
    first.write_text("one two three")
    moved.write_text("one two three")
    changed.write_text("one two")
    rows = tmp_path / "rows"
    assert run_experiments([counting()], rows, quick=True, sources=opened(first)) == 2
    assert run_experiments([counting()], rows, quick=True, sources=opened(moved)) == 0
    assert run_experiments([counting()], rows, quick=True, sources=opened(changed)) == 2
    stored = read_stored(rows, counting())
    assert stored is not None
    assert stored.complete
    assert set(stored.rows()["norm"][:, 1]) == {2}
    with pytest.raises(AttsvmError, match="words"):
        run_experiments([counting()], rows, quick=True)


def test_a_folder_is_its_names_and_contents(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, (name, text) in zip(folders, [("x", "1"), ("x", "1"), ("y", "1")]):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / name).write_text(text)
    digests = [content_digest(folder) for folder in folders]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("wrong", ["words", "words=", "other=x", "words=/no/such/file", "words=nothing.txt"])
def test_wrong_sources_are_refused(wrong: str) -> None:
    with pytest.raises(AttsvmError, match="--data"):
        open_sources([wrong], [counting()])


def test_a_name_is_fetched_as_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "x.parquet").write_bytes(b"1")
    asked = []

    def fetch(name: str, **options: str) -> str:
        asked.append((name, options["repo_type"]))
        if name == "owner/absent":
            raise OSError("not found")
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert open_sources(["words=owner/words"], [counting()])["words"].path == str(tmp_path)
    assert asked == [("owner/words", "dataset")]
    with pytest.raises(AttsvmError, match="owner/absent"):
        open_sources(["words=owner/absent"], [counting()])


def test_missing_data_leaves_an_experiment_out_unless_it_was_named(tmp_path: Path) -> None:
    ready, left_out = with_data([make(), counting()], {}, ["all"])
    assert [experiment.id for experiment in ready] == ["toy"]
    assert len(left_out) == 1
    assert "counting" in left_out[0]
    assert "--data words=PATH" in left_out[0]
    with pytest.raises(AttsvmError, match="counting needs data: give --data words=PATH"):
        with_data([make(), counting()], {}, ["counting"])


def test_command_line_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    app.command("report")(report_command)
    monkeypatch.setitem(CATALOG, "counting", counting(figure=_figure))
    words = tmp_path / "words.txt"
    words.write_text("one two three")
    runner, rows, page = CliRunner(), str(tmp_path / "rows"), tmp_path / "report.html"
    command = ["reproduce", "counting", "--quick", "--workers", "0", "--out", rows, "--quiet"]
    assert isinstance(runner.invoke(app, command).exception, AttsvmError)
    done = runner.invoke(app, [*command, "--data", f"words={words}"])
    assert done.exit_code == 0, done.output
    assert runner.invoke(app, ["report", rows, "--out", str(page)]).exit_code == 0
    text = page.read_text()
    assert f"words (SHA-256 {content_digest(words)[:16]}" in text
    assert str(words) not in text


def _figure(rows: Rows):
    from matplotlib.figure import Figure

    return Figure()
