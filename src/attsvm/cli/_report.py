"""`attsvm report`: one HTML file from the rows of `attsvm reproduce`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attsvm.cli._common import check_file, console

if TYPE_CHECKING:
    from attsvm.experiments import Experiment

Runs = Annotated[Path, typer.Argument(help="Folder that attsvm reproduce filled.", show_default=False)]
Own = Annotated[
    list[Path] | None, typer.Argument(help="Files of your own experiments in it, ./mine.py.", show_default=False)
]


def report_command(
    runs: Runs,
    experiments: Own = None,
    out: Annotated[Path, typer.Option(help="The report, one HTML file that opens offline.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures as PDF and SVG.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser, where there is a display.")] = False,
) -> None:
    """Write the figures, checks and provenance of all experiments in a folder into one page."""
    from attsvm.experiments import load_experiments
    from attsvm.report import export_figures, gather, write_report

    check_file(out)
    own = [experiment for file in experiments or [] for experiment in load_experiments(file)]
    sections = gather(runs, own)
    output = console()
    write_report(sections, runs, out)
    output.print(f"wrote {out}: {len(sections)} experiment{'s' * (len(sections) != 1)}")
    if figures is not None:
        for path in export_figures(sections, figures):
            output.print(f"wrote {path}")
    _say_strangers(runs, own)
    if show and _has_display():
        webbrowser.open(out.resolve().as_uri())


def figures_command(
    runs: Runs,
    experiments: Own = None,
    style: Annotated[
        str, typer.Option(help="paper: a column or a page; slides: half a slide or a whole one.")
    ] = "paper",
    out: Annotated[Path, typer.Option(help="Folder for the figures, as PDF and SVG.")] = Path("figures"),
) -> None:
    """Write the figures of all experiments in a folder as vector graphics for a paper or a talk."""
    from attsvm.experiments import load_experiments
    from attsvm.plots import find_style
    from attsvm.report import export_figures, gather

    find_style(style)
    own = [experiment for file in experiments or [] for experiment in load_experiments(file)]
    sections = gather(runs, own)
    written = export_figures(sections, out, style)
    console().print(f"wrote {len(written)} files to {out}")
    for section in sections:
        if not section.complete:
            console().print(f"left out: {section.experiment.id}, {section.verdict}")
    _say_strangers(runs, own)


def _say_strangers(runs: Path, own: list[Experiment]) -> None:
    from attsvm.report import strangers

    if others := strangers(runs, own):
        console().print(f"left out: {', '.join(others)}; name their files to include them")


def _has_display() -> bool:
    """Without one, Python would open a browser inside the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
