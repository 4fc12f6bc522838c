"""What the figures of the experiments share: curves with bands, told apart by colour, line and marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attsvm.plots import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, new_figure

__all__ = [
    "BLUE",
    "GREEN",
    "ORANGE",
    "PURPLE",
    "SERIES",
    "SKY",
    "VERMILION",
    "Series",
    "band",
    "bars",
    "dots",
    "finish",
    "heat_map",
    "margin_map",
]
__all__ += ["Axes", "Figure", "new_figure"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # only in annotations: a machine that computes rows needs no matplotlib
    Axes = Figure = Any


class Series(NamedTuple):
    """A look that differs from the others in colour and in grey."""

    colour: str
    line: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """As `Axes.plot` takes it."""
        return {"color": self.colour, "ls": self.line, "marker": self.marker}


SERIES = (
    Series(BLUE, "-", "o"),
    Series(VERMILION, "--", "s"),
    Series(GREEN, "-.", "^"),
    Series(PURPLE, ":", "D"),
    Series(ORANGE, (0, (6, 1, 1, 1, 1, 1)), "v"),  # type: ignore[arg-type]
)


def band(
    ax: Axes,
    x: np.ndarray,
    values: np.ndarray,
    look: Series,
    label: str | None = None,
    *,
    spread: Literal["std", "quantiles"] = "std",
    markers: bool = False,
) -> None:
    """A curve over values (trials, len(x)) with a band: mean and standard deviation, or median and 10% to 90%."""
    values = np.where(np.isfinite(values), values, np.nan)
    known = np.isfinite(values).any(0)
    x, values = np.asarray(x, dtype=float)[known], values[:, known]
    if spread == "std":
        middle, width = np.nanmean(values, 0), np.nanstd(values, 0)
        low, high = middle - width, middle + width
    else:
        low, middle, high = np.nanquantile(values, (0.1, 0.5, 0.9), axis=0)
    marker: dict[str, Any] = {"marker": look.marker, "ms": 4.5} if markers else {}
    ax.plot(x, middle, color=look.colour, ls=look.line, lw=1.6, label=label, **marker)
    if len(values) > 1:
        # On a log axis a band below 0 would have no lower edge: it ends at the floor of the figure.
        ax.fill_between(x, np.maximum(low, 1e-17), high, color=look.colour, alpha=0.15, lw=0)


def dots(ax: Axes, x: np.ndarray, y: np.ndarray, look: Series, label: str | None = None) -> None:
    """A cloud of trials."""
    ax.scatter(x, y, s=8, marker=look.marker, color=look.colour, alpha=0.45, lw=0, label=label, rasterized=len(x) > 300)


def bars(ax: Axes, groups: list[Any], shares: dict[str, list[float]], trials: int, ylabel: str = "") -> None:
    """Bars of percentages side by side for every group, with their standard error, and hatches for grey print."""
    width = 0.8 / len(shares)
    colours, hatches = (VERMILION, BLUE, SKY, GREEN), ("", "//", "..", "xx")
    for k, (label, heights) in enumerate(shares.items()):
        position = np.arange(len(groups)) + (k - (len(shares) - 1) / 2) * width
        share = np.asarray(heights) / 100
        look: dict[str, Any] = {"color": colours[k], "hatch": hatches[k], "edgecolor": "white", "label": label}
        error = 100 * np.sqrt(share * (1 - share) / trials)
        ax.bar(position, heights, width, yerr=error, error_kw={"elinewidth": 0.8}, **look)
        for x, height in zip(position, heights):
            if height == 0:  # a bar of 0% would look like one that is not there
                ax.text(x, 0.5, "0", ha="center", va="bottom", color=colours[k], fontsize=7)
    ax.set(xticks=range(len(groups)), xticklabels=[str(group) for group in groups], ylabel=ylabel)


def heat_map(
    ax: Axes,
    table: np.ndarray,
    words: list[list[str]],
    dark: np.ndarray,
    bold: list[list[bool]],
    columns: Sequence[str],
    rows: Sequence[str],
    size: float = 8,
    **look: Any,
) -> Any:
    """A table by colours, with words in its cells, white where the colour is dark and some of them bold; the image.

    `columns` and `rows` are what its axes say.
    """
    picture = ax.imshow(table, aspect="auto", **look)
    for (i, j), is_dark in np.ndenumerate(dark):
        weight, colour = "bold" if bold[i][j] else "normal", "white" if is_dark else "black"
        ax.text(j, i, words[i][j], ha="center", va="center", fontsize=size, weight=weight, color=colour)
    ax.set(xticks=range(table.shape[1]), xticklabels=columns, yticks=range(table.shape[0]), yticklabels=rows)
    return picture


def margin_map(
    ax: Axes,
    table: np.ndarray,
    norms: Mapping[str, str],
    suited: Sequence[str],
    rows: Sequence[str],
    title: str,
    words: list[list[str]] | None = None,
    size: float = 8,
) -> None:
    """Shares of the largest margin in several norms, as a `heat_map` with its colour bar; that of a row's suited norm
    is bold. `norms` says how they are written."""
    words = [[f"{share:.3f}" for share in row] for row in table] if words is None else words
    bold = [[norm == own for norm in norms] for own in suited]
    columns = list(norms.values())
    picture = heat_map(ax, table, words, ~(table > 0.6), bold, columns, rows, size, cmap="viridis", vmin=0, vmax=1)
    ax.set(xlabel="norm of the margin", title=title)
    ax.figure.colorbar(picture, ax=ax, label="margin efficiency")


def finish(figure: Figure, *, legend: bool | str = True) -> Figure:
    """Grids, and a legend in every panel that has labels, or one for all below ("outside")."""
    for ax in figure.axes:
        ax.grid(alpha=0.25)
        if legend is True and ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=8)
    if legend == "outside":
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize=8)
    return figure
