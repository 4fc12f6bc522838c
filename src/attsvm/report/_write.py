"""The page, and the figures as files of their own."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attsvm._version import __version__
from attsvm.files import make_folder
from attsvm.pages import render, write_page
from attsvm.plots import STYLE, restyle, save_figure
from attsvm.report._gather import Section
from attsvm.report._typeset import html, typeset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 10.0
"""Inches of the page's width; wider figures are laid out anew."""


def write_report(sections: Sequence[Section], runs: Path, out: Path) -> None:
    """Everything in one file: figures inline, no script, no request to anywhere."""

    def link(path: Path) -> str:
        return quote(Path(os.path.relpath(path.resolve(), out.resolve().parent)).as_posix())

    page = render(
        "report/template.html",
        sections=sections,
        version=__version__,
        passed=sum(section.passed for section in sections),
        explained=sum(section.explained for section in sections),
        stated=[check.passed for section in sections for check in section.checks if not check.extra],
        extra=[check.passed for section in sections for check in section.checks if check.extra],
        # The time of rows that two figures share counts once.
        seconds=sum({(s.experiment.rows_of or s.experiment.id): s.seconds for s in sections}.values()),
        quick=any(section.quick for section in sections),
        link=link,
        math=html,
        svg={s.experiment.id: inline_svg(s.figure, s.experiment.id) for s in sections if s.figure is not None},
        runs=runs,
        own=any(not section.experiment.paper for section in sections),
    )
    write_page(out, page)


def export_figures(sections: Sequence[Section], folder: Path, style: str | None = None) -> list[Path]:
    """Every figure as PDF and SVG; in a style ("paper", "slides") the figures keep its size and fonts."""
    make_folder(folder)
    written = []
    for section in sections:
        if section.figure is not None:
            paths = [folder / f"{section.experiment.id}.{ending}" for ending in ("pdf", "svg")]
            typeset(section.figure)
            if style is not None:
                restyle(section.figure, style)
            save_figure(section.figure, *paths)
            written += paths
    return written


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element: as wide as it was drawn, so that letters have one size on the whole page. It says
    its name to a screen reader, and its ids are its own."""
    import matplotlib as mpl

    width, height = figure.get_size_inches()
    width = min(width, WIDEST)
    figure.set_size_inches(width, height)
    typeset(figure)
    buffer = io.StringIO()
    # Text as outlines: a phone has none of matplotlib's fonts, and letters of other widths would overlap.
    style: dict[Any, Any] = STYLE | {"svg.fonttype": "path", "svg.hashsalt": name}
    with mpl.rc_context(style):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # "figure_1", "axes_1": the same in every figure of the page
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
    opening = re.sub(r' (width|height)="[^"]*"', "", svg[: svg.index(">")])
    look = f'style="width: calc({width:.3g} * var(--inch))" role="img" aria-label="Figure of {name}"'
    return f"{opening} {look}" + svg[svg.index(">") :]
