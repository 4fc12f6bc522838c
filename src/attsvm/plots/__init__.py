"""Figures. Each function takes results and returns a matplotlib Figure; `save_figure` writes it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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

_LAZY = {"separation_figure": "_separation", "direction_figure": "_training", "weight_figure": "_training"}


def __getattr__(name: str) -> Any:
    """What draws needs matplotlib; colours and sizes do not."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ImportError as error:
        from attsvm.errors import AttsvmError

        raise AttsvmError("figures need matplotlib: pip install 'attsvm[plot]'.") from error
