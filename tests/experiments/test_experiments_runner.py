"""The same rows from every backend; finished batches are not computed again."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_experiment
from compare import bits
from toy_experiment import make

from attsvm import AttsvmError
from attsvm.experiments import Batch
from attsvm.experiments._runner import Backend, run_batch, run_experiments
from attsvm.experiments._store import read_stored


def test_pool_and_process_give_the_same_bits(tmp_path: Path) -> None:
    alone, pool = tmp_path / "alone", tmp_path / "pool"
    assert run_experiments([make()], alone) == 6
    assert run_experiments([make()], pool, backend=Backend(workers=2)) == 6
    assert bits(alone) == bits(pool)
    stored = read_stored(alone, make())
    assert stored is not None
    assert stored.complete
    assert stored.rows().where(d=3)["norm"].shape[0] == 12


def test_resume_computes_only_what_is_missing(tmp_path: Path) -> None:
    run_experiments([make()], tmp_path)
    before = bits(tmp_path)
    some = sorted(tmp_path.rglob("*.parquet"))[::2]
    for path in some:
        path.unlink()
    heard: list[Batch] = []
    assert run_experiments([make()], tmp_path, report=heard.append) == len(some)
    assert len(heard) == 6
    assert bits(tmp_path) == before


def test_a_new_version_is_computed_beside_the_old_one(tmp_path: Path) -> None:
    run_experiments([make()], tmp_path, quick=True)
    assert run_experiments([make(version=2)], tmp_path, quick=True) == 2
    assert len(bits(tmp_path)) == 4
    stored = read_stored(tmp_path, make(version=2))
    assert stored is not None
    assert len(stored.paths) == 2


def test_workers_of_another_version_are_refused() -> None:
    with pytest.raises(AttsvmError, match=r"workers must have attsvm 0\.0\.0"):
        run_batch(toy_experiment.run, {"d": 2}, range(2), "cpu", "0.0.0")


def test_an_error_in_a_batch_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(AttsvmError, match="d must be"):
        run_experiments([make(grid={"d": [0]})], tmp_path, quick=True, backend=Backend(workers=1))


def test_an_absent_scheduler_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(AttsvmError, match="cannot be reached"):
        run_experiments([make()], tmp_path, quick=True, backend=Backend(scheduler="tcp://127.0.0.1:9"))
