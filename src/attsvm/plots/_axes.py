"""One object on one pair of axes, given or new: what `plot()` of runs, verdicts and solutions draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from attsvm.plots._common import BLUE, GREEN, ORANGE, STYLE, VERMILION, import_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (VERMILION, ":"))


def own_axes(ax: Axes | None) -> Axes:
    """The axes, or new ones of a figure that notebooks show."""
    if ax is not None:
        return ax
    matplotlib = import_matplotlib()
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        return pyplot.subplots(figsize=(5.0, 3.4), layout="constrained")[1]


def draw_curves(
    ax: Axes | None, x: Tensor, curves: Mapping[str, Tensor], *, xlabel: str, ylabel: str, log: bool, title: str = ""
) -> Axes:
    """Curves (R, B) over x (R,) on a log axis: median over trials, and a band from 10% to 90% of them."""
    ax = own_axes(ax)
    for (label, values), (colour, line) in zip(curves.items(), LOOKS):
        draw_band(ax, x, values, colour, line, label)
    ax.set(xscale="log", xlabel=xlabel, ylabel=ylabel, title=title)
    if log:
        ax.set_yscale("log")
    ax.grid(alpha=0.25)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize=8)
    return ax


def draw_band(ax: Axes, x: Tensor, values: Tensor, colour: str, line: str, label: str) -> None:
    """Median and band over the trials that have a number; step 0 is drawn at 1/2, because the axis is logarithmic."""
    at = np.maximum(x.cpu().numpy(), 0.5)
    numbers = values.detach().double().cpu().numpy()
    known = np.isfinite(numbers).any(1)
    quantiles = np.full((3, len(numbers)), np.nan)
    if known.any():
        finite = np.where(np.isfinite(numbers[known]), numbers[known], np.nan)
        quantiles[:, known] = np.nanquantile(finite, (0.1, 0.5, 0.9), axis=1)
    low, middle, high = quantiles
    ax.plot(at, middle, color=colour, ls=line, lw=1.6, label=label, marker="." if len(at) < 3 else None)
    if values.shape[1] > 1 and known.any():  # a band of nothing spoils the logarithmic axis
        ax.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)


def draw_matrix(ax: Axes | None, W: Tensor, title: str) -> Axes:
    """The entries of W (d, e) by colour, 0 white; a vector (e = 1) as bars."""
    import_matplotlib()
    from matplotlib.ticker import MaxNLocator

    ax = own_axes(ax)
    entries = W.detach().double().cpu().numpy()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))  # coordinates
    if entries.shape[1] == 1:
        ax.bar(np.arange(len(entries)), entries[:, 0], color=BLUE)
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="coordinate", ylabel="entry of W", title=title)
        return ax
    largest = np.nanmax(np.abs(entries), initial=0.0) or 1.0
    picture = ax.imshow(entries, cmap="RdBu", vmin=-largest, vmax=largest)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.figure.colorbar(picture, ax=ax, label="entry of W", shrink=0.85)
    ax.set(xlabel="query coordinate", ylabel="token coordinate", title=title)
    return ax
