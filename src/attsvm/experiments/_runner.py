"""Run batches on a process pool, a Dask cluster or in this process; finished batches are skipped."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import torch

from attsvm._version import __version__
from attsvm.checks import as_count, as_device
from attsvm.errors import AttsvmError, describe
from attsvm.experiments._checks import Check, fine, verdict_line
from attsvm.experiments._experiment import Batch, Experiment, Params, Rows
from attsvm.experiments._sources import Source, open_sources
from attsvm.experiments._store import clear_leftovers, is_done, read_stored, write_batch, write_plan
from attsvm.experiments._work import Done, Paths, Run, run_batch
from attsvm.experiments.jobs import read_result, write_job
from attsvm.identity import run_folder
from attsvm.interrupts import never_asked, without_interrupts
from attsvm.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RETRIES = 3
"""New pools in a row that may lose a worker without finishing a batch, before the run is given up."""
CONNECT, PATIENCE = 10.0, 20.0
"""Seconds without a connection to the Dask scheduler after which the run is given up: at first, and later."""
IN_FLIGHT = 3
"""Batches handed out for every worker: few, so that a broken pool loses little."""

Report = Callable[[Batch], None]


@dataclass(frozen=True)
class Backend:
    """Where batches run: `workers` local processes (0: this one), the Dask cluster of `scheduler`, or elsewhere:
    then `jobs` is a folder of job files, and only batches whose result is there are taken up.
    """

    workers: int = 0
    scheduler: str | None = None
    jobs: Path | None = None


def run_experiments(
    experiments: Sequence[Experiment],
    root: Path,
    *,
    quick: bool = False,
    backend: Backend = Backend(),
    device: str = "cpu",
    sources: Mapping[str, Source] | None = None,
    report: Report = lambda batch: None,
    progress: bool = False,
) -> int:
    """Compute every batch that `root` does not have yet; the number of batches computed.

    `sources` are the data sets by name; workers read them at the same path. `report` is told of each batch, including
    those found in the folder; `progress` shows a bar.
    """
    sources = sources or {}
    missing = {name for experiment in experiments for name in experiment.needs} - sources.keys()
    if missing:
        raise AttsvmError(f"sources must name {', '.join(sorted(missing))}: an experiment needs it.")
    digests = {name: source.digest for name, source in sources.items()}
    batches = [batch for experiment in experiments for batch in experiment.batches(quick, device, digests)]
    done: list[float] = []

    def heard(batch: Batch) -> None:
        done.append(batch.cost)
        tell(sum(done), f"{batch.experiment.id:12} {len(done)} of {len(batches)} batches")
        report(batch)

    with run_folder(root, "reproduce"), ExitStack() as undo:
        tell = undo.enter_context(progress_bar(progress, 0, sum(batch.cost for batch in batches), "reproduce"))
        for experiment in experiments:
            if not (root / experiment.id).exists():
                undo.callback(_remove_unused, root / experiment.id)
            write_plan(root, experiment, quick, device, digests)
        clear_leftovers(root, batches)
        return _run(batches, root, backend, _Handing(root, quick, device, sources, backend.scheduler is None), heard)


def _remove_unused(folder: Path) -> None:
    """A run that failed before its first rows leaves no folder; with --jobs its plan is all that there is yet."""
    if sys.exc_info()[0] is not None and not any(folder.glob("*/*")):
        shutil.rmtree(folder, ignore_errors=True)


def _run(batches: list[Batch], root: Path, backend: Backend, handing: _Handing, report: Report) -> int:
    by_file: dict[str, list[Batch]] = {}  # experiments may share rows
    for batch in batches:
        by_file.setdefault(batch.path, []).append(batch)
    todo = [same[0] for same in by_file.values() if not is_done(root, same[0])]
    for path in by_file.keys() - {batch.path for batch in todo}:
        for batch in by_file[path]:
            report(batch)
    todo.sort(key=lambda batch: -batch.cost)  # long ones first, so that no worker idles at the end
    computed = 0
    for batch, done in _results(todo, backend, handing):
        write_batch(root, batch, done.columns, done.where, done.timing)
        if (work := handing.work(batch)) is not None:
            shutil.rmtree(work, ignore_errors=True)
        for same in by_file[batch.path]:
            report(same)
        computed += 1
    return computed


@dataclass(frozen=True)
class _Handing:
    """What a batch is handed out with."""

    root: Path
    quick: bool
    device: str
    sources: Mapping[str, Source]
    here: bool
    """is this machine's disk that of the workers?"""

    def arguments(self, batch: Batch) -> tuple[Run, Params, range, str, str, Paths, Path | None]:
        paths = {name: self.sources[name].path for name in batch.data}
        trials = range(batch.start, batch.stop)
        return batch.experiment.run, batch.params, trials, self.device, __version__, paths, self.work(batch)

    def work(self, batch: Batch) -> Path | None:
        return (self.root / batch.path).with_suffix(".work") if batch.experiment.checkpoints and self.here else None


def _results(todo: list[Batch], backend: Backend, handing: _Handing) -> Iterator[tuple[Batch, Done]]:
    if not todo:
        return
    if backend.jobs is not None:
        for batch in todo:
            done = read_result(backend.jobs, batch)
            if done is None:
                write_job(backend.jobs, batch, handing.device, handing.quick)
            else:
                yield batch, done
    elif backend.scheduler is not None:
        with _dask(backend.scheduler) as (executor, workers, check):
            yield from _finished(executor, list(todo), handing, 2 * workers, check)
    elif backend.workers == 0:
        for batch in todo:
            with never_asked():
                done = run_batch(*handing.arguments(batch))
            yield batch, done
    else:
        yield from _pooled(list(todo), backend.workers, handing)


def _finished(
    executor: Executor, todo: list[Batch], handing: _Handing, limit: int, check: Callable[[], None]
) -> Iterator[tuple[Batch, Done]]:
    """Hand out batches from the front of `todo`, a few at a time; a batch leaves the list with its result."""
    running: dict[Future[Done], Batch] = {}
    waiting = iter(list(todo))
    while todo:
        while len(running) < limit and (batch := next(waiting, None)) is not None:
            with without_interrupts():  # this may start a worker, and Ctrl-C is for the runner
                running[executor.submit(run_batch, *handing.arguments(batch))] = batch
        for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
            done = future.result()
            batch = running.pop(future)
            todo.remove(batch)
            yield batch, done
        check()


def _pooled(todo: list[Batch], workers: int, handing: _Handing) -> Iterator[tuple[Batch, Done]]:
    """A pool of fresh processes, and a new pool when a worker was killed."""
    losses = 0
    while todo:
        left = len(todo)
        with _single_threaded(), _pool(min(workers, left)) as pool:
            try:
                yield from _finished(pool, todo, handing, IN_FLIGHT * workers, lambda: None)
            except BrokenProcessPool as error:
                losses = losses + 1 if len(todo) == left else 0
                if losses >= RETRIES:
                    raise AttsvmError(
                        f"workers were killed {losses} times in a row (out of memory?), {len(todo)} batches are left: "
                        "run the same command again, with fewer --workers, to resume."
                    ) from error


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started inside use one thread each: on these small tensors more only get in each other's way."""
    wanted = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are gone at the end, whatever they were computing: only this process writes files.

    If all is done they leave by themselves, and free what they hold (a compiler's semaphores); otherwise at once.
    """
    context = get_context("spawn")  # a forked copy of a process with torch's threads may hang
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(theirs,))
    try:
        yield pool
        with without_interrupts():
            pool.shutdown()
    finally:
        with without_interrupts():
            ours.close()
            pool.shutdown()
            theirs.close()


def _start_worker(leash: Connection) -> None:
    torch.set_num_threads(1)
    Thread(target=_leave_at_the_end_of, args=(leash,), daemon=True).start()


def _leave_at_the_end_of(leash: Connection) -> None:
    """The runner's end of the pipe is closed when it has no more use for workers, or was killed."""
    leash.poll(None)
    os._exit(1)


@contextmanager
def _dask(address: str) -> Iterator[tuple[Executor, int, Callable[[], None]]]:
    """The cluster as an executor, its number of threads, and a check that it is still there."""
    try:
        from distributed import Client
    except ImportError as error:
        raise AttsvmError("--scheduler needs Dask: pip install 'attsvm[dask]'.") from error
    gone = AttsvmError(f"the Dask scheduler {address} cannot be reached: start it, and run the same command again.")
    try:
        client = Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise gone from error
    seen = time.monotonic()

    def check() -> None:
        nonlocal seen
        if client.status == "running":
            seen = time.monotonic()
        elif time.monotonic() - seen > PATIENCE:
            raise gone

    try:
        yield client.get_executor(retries=RETRIES, pure=False), max(1, len(client.scheduler_info()["workers"])), check
    except (CancelledError, OSError) as error:  # what a lost scheduler makes of the futures
        raise gone from error
    finally:
        client.close(timeout=2)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an experiment: its rows and their checks."""

    experiment: Experiment
    rows: Rows
    checks: list[Check]
    out: Path

    @property
    def passed(self) -> bool:
        """Did all checks pass, or fail for a given reason?"""
        return fine(self.checks)

    def figure(self) -> Figure:
        """Its matplotlib figure."""
        return self.experiment.draw(self.rows)

    def __repr__(self) -> str:
        return f"{self.experiment.id}: {verdict_line(self.checks)}"


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    quick: bool = False,
    workers: int = 0,
    device: str = "cpu",
    data: Mapping[str, str | Path] | None = None,
    progress: bool = False,
) -> Outcome:
    """Run an experiment, yours or the catalog's; rows that are already in `out` are not computed again.

    Args:
        experiment: what to run.
        out: folder for the rows, as for `attsvm reproduce`.
        quick: few trials.
        workers: processes; 0 computes in this one. They need an experiment that is in a file.
        device: cpu, cuda, …
        data: paths of the data sets that it needs, by name.
        progress: show a bar.
    """
    if not isinstance(experiment, Experiment):
        raise AttsvmError(f"experiment must be an attsvm.experiments.Experiment, but got {describe(experiment)}.")
    as_device(device)
    module, name = getattr(experiment.run, "__module__", ""), getattr(experiment.run, "__qualname__", "")
    if as_count("workers", workers, 0) and (module == "__main__" or "<" in name):
        raise AttsvmError(
            f"the function {name} cannot travel to workers: put the experiment into a file and load it with "
            "load_experiments, or take workers=0."
        )
    sources = open_sources([f"{name}={place}" for name, place in (data or {}).items()], [experiment])
    root = Path(out)
    run_experiments(
        [experiment],
        root,
        quick=quick,
        backend=Backend(workers),
        device=device,
        sources=sources,
        progress=progress,
    )
    stored = read_stored(root, experiment)
    assert stored is not None  # it was just written
    rows = stored.rows()
    return Outcome(experiment, rows, experiment.checks(rows), root)
