"""What all figures share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attsvm.errors import AttsvmError
from attsvm.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: colour-blind readers can tell them apart, and in grey their lightness differs.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"

F = TypeVar("F", bound=Callable[..., Any])

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 150,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "attsvm",
}


def styled(function: F) -> F:
    """Draw a figure in the common style."""

    @wraps(function)
    def drawn(*arguments: Any, **named: Any) -> Any:
        with import_matplotlib().rc_context(STYLE):
            return function(*arguments, **named)

    return cast(F, drawn)


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of axes, free of pyplot's global state."""
    figure = import_matplotlib().figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def save_figure(figure: Figure, *paths: str | os.PathLike[str]) -> None:
    """Write the figure to every path, in the format of its ending, whole or not at all."""
    layout = figure.get_layout_engine()
    for path in paths:
        with import_matplotlib().rc_context(STYLE), atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150)
        figure.set_layout_engine(None)  # laid out once, for all formats
    figure.set_layout_engine(layout)


def import_matplotlib() -> Any:
    """Imported only where a figure is drawn: computing needs no matplotlib."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise AttsvmError("figures need matplotlib: pip install 'attsvm[plot]'.") from error
    return matplotlib
