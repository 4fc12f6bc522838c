"""The command line as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run, run_script
from safetensors.numpy import load_file

import attsvm
from attsvm.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    run("data", "sphere", "--n", "3", "--tokens", "4", "--dim", "6", "--trials", "5", "--out", "data.npz", cwd=folder)
    return folder


def test_data_is_what_the_library_makes(folder: Path) -> None:
    data = attsvm.load(folder / "data.npz")
    assert np.array_equal(data.X, attsvm.sphere(3, 4, 6, trials=5, seed=0).X)


def test_solve_prints_a_table_and_writes_the_solution(folder: Path) -> None:
    result = run("solve", "data.npz", "--norm", "l1.75", "--out", "solution.safetensors", cwd=folder)
    assert "5 instances: 5 solved" in result.stdout
    assert "support tokens" in result.stdout
    written = load_file(folder / "solution.safetensors")
    data = attsvm.load(folder / "data.npz")
    expected = attsvm.solve(attsvm.att_svm(data), "l1.75")
    assert np.allclose(written["W"], expected.W, rtol=1e-6)
    assert np.array_equal(written["support_tokens"], expected.support_tokens)
    assert np.array_equal(written["tokens"], data.optimal_tokens())


def test_json_is_complete_and_alone_on_stdout(folder: Path) -> None:
    result = run("solve", "data.npz", "--norm", "nuclear", "--json", cwd=folder)
    content = json.loads(result.stdout)
    assert [trial["status"] for trial in content["trials"]] == ["solved"] * 5
    for trial in content["trials"]:
        assert trial["lower"] <= trial["norm"] * (1 + 1e-12)
        assert trial["margin"] == pytest.approx(1 / trial["norm"])
        assert len(trial["support_tokens"]) == 3


def test_tokens_by_number_and_by_file(folder: Path) -> None:
    listed = json.loads(run("solve", "data.npz", "--tokens", "0,2,1", "--json", cwd=folder).stdout)
    np.save(folder / "tokens.npy", np.array([0, 2, 1]))
    (folder / "tokens.txt").write_text("0\n2\n1\n")
    (folder / "tokens.csv").write_text("0,2,1\n")
    for name in ("tokens.npy", "tokens.txt", "tokens.csv"):
        from_file = json.loads(run("solve", "data.npz", "--tokens", name, "--json", cwd=folder).stdout)
        assert from_file == listed
    assert listed["trials"][0]["tokens"] == [[0], [2], [1]]


def test_infeasible_trials_are_reported_and_nothing_is_lost(folder: Path) -> None:
    run("data", "sphere", "--n", "5", "--tokens", "5", "--dim", "2", "--trials", "8", "--out", "flat.npz", cwd=folder)
    result = run("solve", "flat.npz", "--out", "flat_solution.npz", cwd=folder, check=False)
    assert result.returncode == 3
    assert "are infeasible" in result.stderr
    with np.load(folder / "flat_solution.npz") as written:
        assert (written["status"] == 1).any()
        assert len(written["W"]) == 8
        assert json.loads(str(written["geometry"])) == {"kind": "Lp", "p": 2.0}
        assert len(written["norm"]) == 8


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["solve", "nowhere.npz"], 1, "nowhere.npz is not a file"),
        (["solve", "data.npz", "--norm", "l0.5"], 1, "1 ≤ p"),
        (["solve", "data.npz", "--norm", "spectral3"], 1, "not a geometry"),
        (["solve", "data.npz", "--out", "./data.npz"], 1, "--out must not be data.npz, the data themselves"),
        (["solve", "data.npz", "--tokens", "0,1"], 1, "must have n·K = 3 numbers"),
        (["solve", "data.npz", "--tokens", ",".join("0" * 300)], 1, "must have n·K = 3 numbers"),  # too long for a name
        (["solve", "data.npz", "--tokens", "0,1,9"], 1, "tokens must be in 0..3"),
        (["solve", "data.npz", "--tokens", "a,b"], 1, "--tokens must be"),
        (["solve", "data.npz", "--tokens", "odd.txt"], 1, "as many in every line"),
        (["solve", "data.npz", "--tokens", "empty.txt"], 1, "tokens must have shape"),
        (["solve", "data.npz", "--tol", "2"], 1, "tol must be between"),
        (["solve", "data.npz", "--device", "cuda:7"], 1, "not available"),
        (["solve", "data.npz", "--out", "solution.txt"], 1, "must end in .npz or .safetensors"),
        (["solve", "data.npz", "--out", "missing/solution.npz"], 1, "cannot be written"),
        (["data", "sphere", "--n", "0", "--out", "x.npz"], 2, "--n"),
        (["data", "orthonormal", "--tokens", "5", "--dim", "3", "--out", "x.npz"], 1, "T must be at most d"),
        (["frobnicate"], 2, "No such command"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_wrong_input_gets_one_sentence(folder: Path, arguments: list[str], status: int, message: str) -> None:
    (folder / "odd.txt").write_text("0,1\n2\n")
    (folder / "empty.txt").write_text("")
    result = run(*arguments, cwd=folder, check=False)
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if status == 1:
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_damaged_file_is_refused(folder: Path) -> None:
    (folder / "broken.npz").write_bytes((folder / "data.npz").read_bytes()[:300])
    result = run("solve", "broken.npz", cwd=folder, check=False)
    assert result.returncode == 1
    assert "broken.npz is not a readable .npz file" in result.stderr


def test_interrupting_leaves_no_half_written_file(tmp_path: Path) -> None:
    """Ctrl-C in the middle of writing."""
    code = """
import os, signal, sys, time
import numpy as np
from attsvm.cli import main

def interrupted(path, **arrays):
    with open(path, "wb") as file:
        file.write(b"half")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)

np.savez = interrupted
sys.argv = ["attsvm", "data", "sphere", "--out", "data.npz"]
main()
"""
    result = run_script(code, cwd=tmp_path)
    assert result.returncode == 130
    assert "Interrupted" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_reproduction_says_that_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(experiments: object, out: Path, **options: object) -> None:
        (out / "svm-fig1").mkdir(parents=True)
        (out / "svm-fig1" / "plan.json").touch()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("attsvm.experiments.run_experiments", interrupted)
    monkeypatch.setattr("sys.argv", ["attsvm", "reproduce", "svm-fig1", "--out", str(tmp_path / "runs")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    said = f"Interrupted; the same command resumes the run in {tmp_path / 'runs'}.\n"
    assert capsys.readouterr().err.endswith(said)


def test_interrupting_while_it_loads(tmp_path: Path) -> None:
    code = """
import signal, sys
from attsvm.cli import main

class Interrupted:
    def find_spec(self, *arguments):
        signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
main()
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stderr == "Interrupted; no file was left half written.\n"


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import errno, sys
import numpy as np
from attsvm.cli import main

def full(path, **arrays):
    with open(path, "wb") as file:
        file.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")

np.savez = full
sys.argv = ["attsvm", "data", "sphere", "--out", "data.npz"]
main()
"""
    result = run_script(code, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "Error: data.npz cannot be written: No space left on device.\n"
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-m", "attsvm", "--version"], capture_output=True, text=True, check=True)
    assert attsvm.__version__ in said.stdout
    assert "attsvm data" not in said.stdout
    text = run("--help", cwd=tmp_path).stdout
    for command in ("data", "solve", "train", "verdict", "reproduce", "report"):
        assert command in text
    text = run("data", "--help", cwd=tmp_path).stdout
    for command in ("sphere", "orthonormal", "example1", "example2", "figure1"):
        assert command in text


@pytest.mark.parametrize("name", ["orthonormal", "figure1", "example1", "example2"])
def test_every_data_set_can_be_solved(tmp_path: Path, name: str) -> None:
    run("data", name, "--out", "data.safetensors", cwd=tmp_path)
    assert "solved" in run("solve", "data.safetensors", "--norm", "l3", cwd=tmp_path).stdout


def test_importing_attsvm_and_its_subpackages_needs_only_torch_and_numpy() -> None:
    """And where the others cannot be imported, jobs of experiments still can, with all of the catalog."""
    heavy = ["typer", "rich", "matplotlib", "safetensors", "scipy", "cvxpy", "pandas", "sklearn", "jinja2", "pyarrow"]
    heavy += ["tokenizers"]
    names = "from attsvm import *; from attsvm import embeddings, models, optim, transformer; solve"
    hidden = f"print([m for m in {heavy} if m in sys.modules]); sys.modules.update(dict.fromkeys({heavy}))"
    code = f"import sys; {names}; {hidden}; import attsvm.experiments.jobs, attsvm.experiments.catalog"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_help_and_wrong_usage_do_not_wait_for_torch() -> None:
    code = "import sys; from attsvm.cli import _load; _load(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_all_names_of_the_package_are_there_and_no_others() -> None:
    found = {name: getattr(attsvm, name) for name in attsvm.__all__}
    assert found["solve"] is attsvm.svm.solve
    assert found["MirrorDescent"] is attsvm.dynamics.MirrorDescent
    assert found["__version__"] == attsvm.__version__
    assert {*attsvm.__all__, "optim", "text"} <= {*dir(attsvm)}
    assert attsvm.optim.MirrorAdam.__name__ == "MirrorAdam"
    with pytest.raises(AttributeError, match="module 'attsvm' has no attribute 'slove'"):
        attsvm.slove  # noqa: B018
