"""The same rows from every backend; finished batches are not computed again."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import toy_experiment
from command_line import run_script
from compare import bits
from test_experiments_sources import counting, opened
from toy_experiment import make

from attsvm import AttsvmError
from attsvm.experiments import Batch, Columns, Params, _runner
from attsvm.experiments._runner import Backend, run_batch, run_experiments
from attsvm.experiments._store import read_stored
from attsvm.interrupts import asked_to_stop


def test_pool_and_process_give_the_same_bits(tmp_path: Path) -> None:
    """Of an experiment that draws its data, and of one that reads them."""
    alone, pool, words = tmp_path / "alone", tmp_path / "pool", tmp_path / "words.txt"
    words.write_text("one two three")
    both, sources = [make(), counting()], opened(words)
    assert run_experiments(both, alone, sources=sources) == 12
    assert run_experiments(both, pool, sources=sources, backend=Backend(workers=2)) == 12
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


def test_an_absent_scheduler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(_runner, "CONNECT", 0.5)
    with pytest.raises(AttsvmError, match="cannot be reached"):
        run_experiments([make()], tmp_path, quick=True, backend=Backend(scheduler="tcp://127.0.0.1:9"))


def interrupted(params: Params, trials: range, device: str, work: Path | None = None) -> Columns:
    """Fails once in every batch, after it has kept something."""
    assert work is not None
    if not (work / "kept").is_file():
        (work / "kept").write_text(str(trials.start))
        raise AttsvmError("cut off")
    return {"kept": np.full(len(trials), int((work / "kept").read_text()))}


def test_what_a_batch_keeps_outlives_a_failure_and_goes_with_it(tmp_path: Path) -> None:
    experiment = make(run=interrupted, checkpoints=True)
    with pytest.raises(AttsvmError, match="cut off"):
        run_experiments([experiment], tmp_path, quick=True)
    assert len(list(tmp_path.rglob("*.work"))) == 1
    with pytest.raises(AttsvmError, match="cut off"):
        run_experiments([experiment], tmp_path, quick=True)  # the first batch is done now, the second is not
    assert run_experiments([experiment], tmp_path, quick=True) == 1
    assert not list(tmp_path.rglob("*.work"))
    stored = read_stored(tmp_path, experiment)
    assert stored is not None
    assert (stored.rows()["kept"] == 0).all()


def cut_short(params: Params, trials: range, device: str) -> Columns:
    with asked_to_stop() as asked:  # as solve does with many rows
        signal.raise_signal(signal.SIGINT)
        assert not asked.is_set()
    return {"norm": np.full(len(trials), np.nan)}


def test_what_an_interrupt_cuts_short_is_never_kept_as_done(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiments([make(run=cut_short)], tmp_path, quick=True)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_second_run_of_a_folder_that_is_at_work_is_refused(tmp_path: Path) -> None:
    def again(batch: Batch) -> None:
        with pytest.raises(AttsvmError, match="is in use by process"):
            run_experiments([make()], tmp_path, quick=True)

    run_experiments([make()], tmp_path, quick=True, report=again)


HOLDER = """
import multiprocessing, numpy as np
from attsvm.experiments import Experiment

held = []

def run(params, trials, device):
    held.append(multiprocessing.get_context("spawn").Lock())  # as a compiler in the worker does
    return {"x": np.zeros(len(trials))}

EXPERIMENT = Experiment(
    id="holder", title="t", statement="s", grid={"a": [1]}, run=run, figure=lambda rows: None,
    checks=lambda rows: [], trials=1, quick=1,
)
"""
ATTSVM = """
from multiprocessing import resource_tracker
from attsvm.cli import main

if __name__ == "__main__":  # and not in a worker
    try:
        main()
    finally:
        resource_tracker._resource_tracker._stop()  # it says what leaked, and then this returns
"""


def test_workers_free_their_semaphores_when_all_is_done(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    done = run_script(ATTSVM, "reproduce", "./holder.py", "--quick", "--workers", "1", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
