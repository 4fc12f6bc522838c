"""`attsvm reproduce`: the experiments of the papers, resumed where an earlier command stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from attsvm.cli import INCOMPLETE
from attsvm.cli._common import Device, console, resumable
from attsvm.errors import AttsvmError

if TYPE_CHECKING:
    from attsvm.experiments import Experiment


def reproduce_command(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Ids, all, or own files, ./mine.py.", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few trials: seconds per experiment.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the rows; what is there already is not computed again.")] = Path(
        "runs"
    ),
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Local processes; 0 computes in this one. If not given, one per core, or 0 on a GPU.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://host:8786, to compute on its workers instead.")
    ] = None,
    device: Device = "cpu",
    data: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH of a data set that experiments need; repeatable. Also a Hugging Face name."),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(help="Compute elsewhere: folder for batches as files; see python -m attsvm.experiments.jobs."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Reproduce figures and theorems of the papers, or run an experiment of your own; check whether each came out."""
    from attsvm.checks import as_device
    from attsvm.experiments import CATALOG, Backend, find, open_sources, run_experiments, with_data

    if listed:
        _list(list(CATALOG.values()))
        return
    if not experiments:
        raise AttsvmError("experiments must be named, or all: see attsvm reproduce --list.")
    found = find(experiments)
    sources = open_sources(data or [], [*CATALOG.values(), *found])
    own = [experiment.id for experiment in found if experiment.id not in CATALOG]
    chosen, left_out = with_data(found, sources, [*experiments, *own])
    if jobs is not None and (scheduler is not None or workers):
        raise AttsvmError("--jobs computes elsewhere: leave --workers and --scheduler out.")
    if scheduler is not None and workers is not None:
        raise AttsvmError("--scheduler computes on its own workers: leave --workers out.")
    if scheduler == "":  # Dask would start a cluster here
        raise AttsvmError("--scheduler must be an address, tcp://host:8786, but it is empty.")
    if device != "cpu" and jobs is None:
        as_device(device)
        if scheduler is not None:
            raise AttsvmError(f"--device {device} is on this machine: leave --scheduler out.")
        workers = workers or 0
    backend = Backend(_cores() if workers is None else workers, scheduler, jobs)
    with resumable(out):
        run_experiments(chosen, out, quick=quick, backend=backend, device=device, sources=sources, progress=not quiet)
    for line in left_out:
        console().print(line)
    waiting = _unfinished(chosen, out)
    if waiting:
        output = console()
        output.print(f"{waiting} batches wait in {jobs}. Where they can be computed, run")
        files = "".join(f" --experiment {name}" for name in experiments if name.endswith(".py"))
        given = " --data …" if any(experiment.needs or experiment.accepts for experiment in chosen) else ""
        output.print(f"  python -m attsvm.experiments.jobs {jobs}{files}{given}", soft_wrap=True)
        output.print("bring the folder back, and run this command again.")
        raise typer.Exit(INCOMPLETE)
    if not _judge(chosen, out, [name for name in experiments if name.endswith(".py")]):
        raise typer.Exit(INCOMPLETE)


def new_experiment_command(
    name: Annotated[str, typer.Argument(help="Its id: lower-case letters, digits and hyphens.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The file to write; NAME.py here if not given.")] = None,
) -> None:
    """Write a file with an experiment that runs as it is, to be changed into your own."""
    from attsvm.experiments import write_template

    path = write_template(name, out)
    console().print(f"wrote {path}; attsvm reproduce {_typed(path)} --quick runs it")


def _typed(path: Path) -> str:
    return str(path) if path.is_absolute() else f"./{path}"


def _list(experiments: list[Experiment]) -> None:
    table = Table("id", "from", "what", "cells", "trials", "data")
    for experiment in experiments:
        cells = str(len(experiment.cells(quick=False)))
        needs = ", ".join(experiment.needs)
        table.add_row(experiment.id, experiment.paper, experiment.title, cells, str(experiment.trials), needs)
    console().print(table)


def _unfinished(experiments: list[Experiment], out: Path) -> int:
    """Batches without rows: with --jobs they may still be elsewhere."""
    from attsvm.experiments import read_stored

    stored = [run for run in (read_stored(out, experiment) for experiment in experiments) if run is not None]
    # Experiments that show the same rows share their batches, so they are counted by their files.
    planned = {run.root / batch.path for run in stored for batch in run.batches}
    return len(planned - {path for run in stored for path in run.paths})


def _judge(experiments: list[Experiment], out: Path, files: list[str]) -> bool:
    """Print the result of every experiment; did all checks pass, or fail for a reason that is given?"""
    from attsvm.experiments import fine, read_stored, verdict_line

    table = Table("experiment", "seconds", "verdict")
    good = True
    for experiment in experiments:
        stored = read_stored(out, experiment)
        assert stored is not None  # it was just written
        rows = stored.rows()
        found = experiment.checks(rows)
        good = good and fine(found)
        table.add_row(experiment.id, f"{sum(cell['seconds'].sum() for _, cell in rows):.1f}", verdict_line(found))
    output = console()
    output.print(table)
    output.print(f"rows are in {out}; attsvm report {' '.join([str(out), *files])} writes them up")
    return good


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
