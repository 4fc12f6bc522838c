"""What the experiments on regularization paths share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attsvm.experiments._arrays import array, curves
from attsvm.experiments._checks import Check, at_least, at_most
from attsvm.experiments._draw import SERIES, Axes, Figure, band, finish, new_figure
from attsvm.experiments._experiment import Columns, Rows
from attsvm.paths import RegularizationPath, regularization_path

RADII = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]
"""In units of the norm of the SVM solution at margin 1 they range from a blurred softmax to a saturated one."""


def path_columns(data: Any, geometry: str, parameterization: str = "W", **options: Any) -> Columns:
    """Distance to the limit, stationarity and more at every radius, trials first."""
    path: RegularizationPath = regularization_path(data, geometry, parameterization, radii=RADII, **options)
    columns = {
        "radius": np.tile(array(path.radii), (data.B, 1)),
        "distance": curves(path.distance),
        "stationarity": curves(path.stationarity),
        "converged": curves(path.converged),
        "solved": array(path.limit.solved),
    }
    if path.head_distance is not None and path.head_limit is not None:
        columns["head_distance"] = curves(path.head_distance)
        columns["solved"] = columns["solved"] & array(path.head_limit.solved)
    if path.inside_cone is not None:
        columns["inside_cone"] = curves(path.inside_cone)
    return columns


def draw_path(ax: Axes, cell: Rows, index: int, label: str, column: str = "distance") -> None:
    values = np.maximum(cell[column][cell["solved"]], 1e-16)
    band(ax, cell["radius"][0], values, SERIES[index], label, spread="quantiles", markers=True)
    ax.set(xscale="log", yscale="log", xlabel="radius R", ylabel="distance to the SVM direction")


def path_figure(cells: Mapping[str, Rows], ylabel: str) -> Figure:
    """A path for each cell, under its name."""
    figure, axes = new_figure(1, 1, (5.5, 3.6))
    for k, (name, cell) in enumerate(cells.items()):
        draw_path(axes[0][0], cell, k, name)
    axes[0][0].set(ylabel=ylabel, title="median, and band from 10% to 90%")
    return finish(figure)


def path_checks(cell: Rows, title: str, bar: float, paper: str, column: str = "distance") -> list[Check]:
    """The distance is small at the end, and falls on the way."""
    distance = cell[column][cell["solved"]]
    last = float(np.nanmedian(distance[:, -1]))
    middle = float(np.nanmedian(distance[:, len(RADII) // 2]))
    count = f"{len(distance)} trials with a feasible SVM"
    return [
        at_most(f"{title}: median distance at R = {RADII[-1]:g}", last, bar, paper, count),
        at_most(f"{title}: that over the distance at R = {RADII[len(RADII) // 2]:g}", last / middle, 0.2, paper),
        at_least(f"{title}: share of stationary points found", float(cell["converged"].mean()), 0.9, extra=True),
    ]
