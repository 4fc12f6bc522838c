"""Figures from plain numbers: their common style, and those that several packages draw. They need matplotlib."""

from attsvm.plots._axes import draw_curves, draw_matrix, own_axes
from attsvm.plots._common import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    new_figure,
    save_figure,
    styled,
)
from attsvm.plots._separation import Solution, separation_figure
from attsvm.plots._styles import STYLES, Style, find_style, restyle
from attsvm.plots._training import weight_figure

__all__ = [
    "BLUE",
    "GREEN",
    "ORANGE",
    "PURPLE",
    "SKY",
    "STYLE",
    "STYLES",
    "VERMILION",
    "Solution",
    "Style",
    "draw_curves",
    "draw_matrix",
    "find_style",
    "new_figure",
    "own_axes",
    "restyle",
    "save_figure",
    "separation_figure",
    "styled",
    "weight_figure",
]
