"""Figures. Each function takes results and returns a matplotlib Figure; `save_figure` writes it."""

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
from attsvm.plots._separation import separation_figure
from attsvm.plots._training import direction_figure, weight_figure

__all__ = [
    "BLUE",
    "GREEN",
    "ORANGE",
    "PURPLE",
    "SKY",
    "STYLE",
    "VERMILION",
    "direction_figure",
    "new_figure",
    "save_figure",
    "separation_figure",
    "styled",
    "weight_figure",
]
