"""The short form of tools/fuzz_files.py: damaged files of every kind are refused in a sentence, or read as written."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import fuzz_files

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


def _written(path: Path) -> Path:
    path.write_bytes(b"12345678")
    return path
