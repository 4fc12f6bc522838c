"""What all commands share: kinds of folders, hints, output that cannot be written, nothing left behind a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attsvm import AttsvmError, save, sphere
from attsvm.cli._app import app


def said(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, AttsvmError):
        return 1, str(result.exception)
    return result.exit_code, result.output


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, list[object]]:
    """A command of every kind that fills a folder, but for --out."""
    save(sphere(2, 3, 4), tmp_path / "data.npz")
    (tmp_path / "texts.csv").write_text(
        "text,label\n" + "".join(f"good day {i},1\nbad night {i},0\n" for i in range(8))
    )
    small = ["--layers", 1, "--width", 4, "--hidden", 4, "--batch", 100, "--epochs", 1, "--lr", 1e-3]
    return {
        "train": ["train", tmp_path / "data.npz", "--steps", 2, "--quiet"],
        "text fit": ["text", "fit", tmp_path / "texts.csv", "--quiet", "--penalty", 1, "--test", 0],
        "transformer fit": ["transformer", "fit", "tiny-images", *small, "--heads", 1, "--quiet"],
        "reproduce": ["reproduce", "md-fig2", "--quick", "--quiet", "--workers", 0],
    }


def test_a_folder_holds_one_kind_of_run(inputs: dict[str, list[object]], tmp_path: Path) -> None:
    for kind, command in inputs.items():
        code, output = said(*command, "--out", tmp_path / kind)
        assert code in (0, 3), output
    for kind in inputs:
        before = sorted((tmp_path / kind).rglob("*"))
        for other, command in inputs.items():
            if other != kind:
                code, output = said(*command, "--out", tmp_path / kind)
                assert (code, f"holds a run of attsvm {kind}, not of attsvm {other}" in output) == (1, True), output
        assert sorted((tmp_path / kind).rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("train", ["--geometry", "l0.5"]),
        ("train", ["--seed", 3]),
        ("transformer fit", ["--p", 1]),
        ("transformer fit", ["--tokenizer", "none.json"]),
        ("text fit", ["--label", "none"]),
        ("reproduce", ["--data", "imdb=/nowhere"]),
        ("reproduce", ["svm-fg7"]),
        ("reproduce", ["--scheduler", "tcp://127.0.0.1:9", "--device", "meta"]),
    ],
)
def test_a_refused_command_leaves_nothing(
    inputs: dict[str, list[object]], tmp_path: Path, kind: str, wrong: list[object]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, output = said(*inputs[kind], *wrong, "--out", tmp_path / "new" / "folder")
    assert code == 1, output
    assert output.count("\n") <= 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        ["solve", "nowhere.npz", "--out"],
        ["report", "nowhere", "--out"],
        ["text", "predict", "nowhere", "nowhere.csv", "--out"],
        ["text", "words", "nowhere", "--out"],
        ["text", "explain", "nowhere", "good", "--html"],
        ["transformer", "tokens", "nowhere.parquet", "--out"],
        ["transformer", "attention", "nowhere", "--out"],
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(command: list[str], tmp_path: Path) -> None:
    code, output = said(*command, tmp_path / "missing" / "file")
    told = (
        f"{command[-1]} {tmp_path / 'missing' / 'file'} cannot be written: there is no folder {tmp_path / 'missing'}."
    )
    assert (code, output) == (1, told)
    assert said(*command, tmp_path) == (1, f"{command[-1]} {tmp_path} cannot be written: it is a folder.")


def test_hints() -> None:
    assert "did you mean svm-fig7?" in said("reproduce", "svm-fg7")[1]
    code, output = said("reproduce", "svm-fig7", "--quik")
    assert (code, "--quick" in output) == (2, True)


def test_output_that_cannot_be_written() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-m", "attsvm", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device.\n"
    closed = subprocess.run(f"{sys.executable} -m attsvm --version >&-", shell=True, capture_output=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, b"")
