"""Figures. Each function takes results and returns a matplotlib Figure; `save_figure` writes it."""

from attsvm.plots._basins import basins_figure
from attsvm.plots._common import save_figure
from attsvm.plots._separation import separation_figure
from attsvm.plots._training import direction_figure, weight_figure

__all__ = ["basins_figure", "direction_figure", "save_figure", "separation_figure", "weight_figure"]
