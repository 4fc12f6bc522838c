"""Figures resized for a paper's column or a slide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attsvm.errors import AttsvmError, did_you_mean
from attsvm.plots._common import STYLE, import_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """Widths in inches of a figure with one panel and of a wide one, largest font size in points, and fonts."""

    narrow: float
    wide: float
    size: float
    family: str
    mathematics: str


STYLES = {
    "paper": Style(3.4, 7.0, 8.0, "STIXGeneral", "stix"),
    "slides": Style(6.2, 12.4, 18.0, "DejaVu Sans", "dejavusans"),
}
WIDE = 7.0
"""Inches from which on a figure is a wide one."""


def find_style(name: str) -> Style:
    """The style of this name; an unknown one is refused."""
    if name not in STYLES:
        raise AttsvmError(f"there is no style {name!r}: take {' or '.join(STYLES)}{did_you_mean(name, STYLES)}")
    return STYLES[name]


def restyle(figure: Figure, style: str) -> None:
    """Give a finished figure the width, fonts and lines of a style ("paper", "slides")."""
    look = find_style(style)
    mpl = import_matplotlib()
    width, height = figure.get_size_inches()
    wanted = look.wide if width >= WIDE else look.narrow
    # Text may grow by 1.35 relative to the figure before titles and legends run into one another.
    grown = min(look.size / STYLE["font.size"], 1.35 * wanted / width)
    figure.set_size_inches(wanted, wanted * height / width * max(1.0, (grown * width / wanted) ** 0.5))
    parts: list[Any] = figure.findobj()
    for part in parts:
        if isinstance(part, mpl.text.Text):
            part.set_fontsize(part.get_fontsize() * grown)
            part.set_fontfamily(look.family)
            part.set_math_fontfamily(look.mathematics)
        elif isinstance(part, mpl.lines.Line2D):
            part.set_linewidth(part.get_linewidth() * grown)
            part.set_markersize(part.get_markersize() * grown)
