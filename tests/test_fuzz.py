"""The short form of tools/fuzz.py: damaged files of every kind are refused in a sentence, or read as written; calls
that make no sense end with one; a killed command ends as if undisturbed."""

import pickle
import sys
from pathlib import Path

import pytest
from command_line import run_script

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import fuzz_files

TOOLS = Path(fuzz_files.__file__).parent
KINDS = fuzz_files.kinds()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_files(kind: fuzz_files.Kind) -> None:
    ((_, counts, failures),) = fuzz_files.fuzz(20, seed=1, wanted=[kind])
    assert failures == []
    assert counts["refused"] >= 10


def test_what_is_accepted_is_seen(tmp_path: Path) -> None:
    """A reader that trusts its file fails."""
    credulous = fuzz_files.Kind("bytes", lambda folder: _written(folder / "a.bin"), lambda path: path.read_bytes())
    ((_, counts, failures),) = fuzz_files.fuzz(10, seed=0, wanted=[credulous])
    assert counts["accepted"] >= 9
    assert len(failures) == counts["accepted"]
    breaking = fuzz_files.Kind("numbers", lambda folder: _written(folder / "a.bin"), lambda path: int(path.read_text()))
    ((_, counts, _),) = fuzz_files.fuzz(10, seed=0, wanted=[breaking])
    assert counts["traceback"] >= 5


def test_what_a_file_runs_is_seen() -> None:
    assert not fuzz_files.was_run()
    pickle.loads(pickle.dumps(fuzz_files.Evil()))
    assert fuzz_files.was_run()
    assert not fuzz_files.was_run()


@pytest.mark.parametrize(
    "command",
    [("fuzz_calls.py", "--calls", "20"), ("fuzz_kills.py", "--kills", "1", "--pairs", "1", "--commands", "text fit")],
    ids=["calls", "kills"],
)
def test_calls_and_kills(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = run_script(TOOLS / command[0], *command[1:], cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "traceback" in ended.stdout  # the head of the table


def test_one_table_has_it_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpmath")
    pytest.importorskip("scipy")
    import fuzz

    monkeypatch.setattr(fuzz_files, "kinds", lambda: KINDS[:1])
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--cases", "5", "--calls", "0", "--kills", "0", "--instances", "10"])
    assert fuzz.main() == 0
    table = capsys.readouterr().out
    assert "| file        | token data .npz" in table
    assert "| certificate | l1 " in table
    assert "|     15 |" in table.splitlines()[-2]


def _written(path: Path) -> Path:
    path.write_bytes(b"12345678")
    return path
