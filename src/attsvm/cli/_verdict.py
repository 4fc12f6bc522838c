"""`attsvm verdict`: judge a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from attsvm.cli import INCOMPLETE
from attsvm.cli._common import AsJson, console
from attsvm.errors import AttsvmError
from attsvm.files import atomic_path
from attsvm.tolerances import REACHED

if TYPE_CHECKING:
    from attsvm.diagnostics import Verdict
    from attsvm.dynamics import Trajectory

TRAJECTORY = "trajectory.safetensors"
VERDICT = "verdict.json"


def verdict_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, written by `attsvm train`.", show_default=False)],
    as_json: AsJson = False,
    tol: Annotated[float | None, typer.Option(help="Direction error up to which a limit counts as reached.")] = None,
) -> None:
    """Judge a finished run again: which limit, reached or not, under which theorem, how fast."""
    from attsvm.diagnostics import verdict
    from attsvm.dynamics import Trajectory

    if run.is_file():
        raise AttsvmError(f"{run} is a file: give the folder of a run, which attsvm train wrote.")
    if not (run / TRAJECTORY).is_file():
        raise AttsvmError(f"{run} holds no run: {TRAJECTORY} is missing; make one with attsvm train … --out {run}.")
    judged = verdict(Trajectory.load(run / TRAJECTORY), tol=REACHED if tol is None else tol)
    if as_json:
        typer.echo(judged.to_json())
    else:
        print_verdict(judged)
    if not all_well(judged):
        raise typer.Exit(INCOMPLETE)


def all_well(judged: Verdict) -> bool:
    """Are all weights finite, and all problems feasible?"""
    from attsvm.svm import Status

    return bool(judged.finite.all()) and Status.INFEASIBLE not in judged.status


def write_verdict(judged: Verdict, folder: Path) -> None:
    with atomic_path(folder / VERDICT) as temporary:
        temporary.write_text(judged.to_json())


def draw_run(trajectory: Trajectory, judged: Verdict, folder: Path) -> list[Path]:
    """The direction error and the softmax weight along the run, as .png and .svg; what was not recorded is left out."""
    from attsvm.plots import new_figure, save_figure, weight_figure

    trials = f"{len(trajectory)} trial{'s' * (len(trajectory) != 1)}"
    records, name = trajectory.records, f"{trajectory.parameterization} in {trajectory.geometry.name}"
    figures = {}
    if "W" in records and len(trajectory):
        figures["direction"], ((ax,),) = new_figure(1, 1, (5.0, 3.4))
        judged.plot(ax).set_title(f"{name}: distance to the SVM\nof the selected tokens, {trials}")
    if {"top_weight", "log_rest"} <= records.keys() and len(trajectory):
        figures["weight"] = weight_figure(trajectory.steps, records["top_weight"], records["log_rest"], name)
    written = []
    for stem, figure in figures.items():
        paths = [folder / f"{stem}.png", folder / f"{stem}.svg"]
        save_figure(figure, *paths)
        written.append(paths[0])
    return written


def print_verdict(judged: Verdict) -> None:
    """The verdict as a table, with the advice where a trial went wrong."""
    table = Table(title=judged.title, title_justify="left", show_header=False)
    table.add_column(style="bold", ratio=2)
    table.add_column(ratio=3)
    for row in judged.table():
        table.add_row(*row)
    console().print(table)
