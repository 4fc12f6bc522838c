"""How W separates the selected token of every sequence in the plane (Figure 2 of the mirror-descent paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.plots._common import BLUE, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE)


class Solution(NamedTuple):
    """A panel: the name of the norm, W (2, 2) and its norm."""

    name: str
    W: np.ndarray
    norm: float


@styled
def separation_figure(X: np.ndarray, Z: np.ndarray, solutions: Sequence[Solution], title: str) -> Figure:
    """One panel per solution: tokens X (2, T, 2), W z_i as arrows for the queries Z (2, 2), and the line halfway
    between selected and support tokens."""
    if X.ndim != 3 or X.shape[0] != 2 or X.shape[2] != 2:
        raise AttsvmError(f"the separation figure shows two sequences in the plane, but X has shape {X.shape}.")
    reach = 1.25 * np.abs(X).max()
    figure, axes = new_figure(1, len(solutions), (2.5 * len(solutions), 4.0))
    for ax, solution in zip(axes[0], solutions):
        W = solution.W
        for i, colour in enumerate(_COLOURS):
            direction = W @ Z[i]
            best = X[i] @ direction
            selected = int(best.argmax())
            _half_plane(ax, direction, best[selected] - 0.5, colour, reach)
            arrow = 0.45 * reach * direction / np.linalg.norm(direction)
            ax.annotate("", arrow, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6, "shrinkB": 0})
            ax.scatter(*np.delete(X[i], selected, 0).T, s=45, marker="os"[i], color=colour, zorder=3)
            ax.scatter(*X[i, selected], s=190, marker="*", color=colour, edgecolor="black", lw=0.8, zorder=4)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="first coordinate")
        entries = ";\n".join("  ".join(f"{x:.4f}" for x in row + 0.0) for row in W.round(4))
        ax.set_title(f"{solution.name}:  ‖W‖ = {solution.norm:.4f}\nW = [{entries}]")
    axes[0][0].set_ylabel("second coordinate")
    from matplotlib.lines import Line2D

    key = [
        Line2D([], [], marker="*", ls="", ms=11, mfc="white", mec="black", label="selected token"),
        Line2D([], [], marker="o", ls="", mfc="grey", mec="grey", label="other token"),
        Line2D([], [], color="grey", label="arrow: direction W z"),
        Line2D([], [], color="grey", ls="--", label="line halfway to the nearest other token"),
        *(Line2D([], [], color=c, lw=4, label=f"sequence {i + 1}") for i, c in enumerate(_COLOURS)),
    ]
    figure.legend(handles=key, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    figure.suptitle(title)
    return figure


def _half_plane(ax, direction: np.ndarray, level: float, colour: str, reach: float) -> None:
    """The line {x: x·direction = level}, and a tint on its selected side."""
    grid = np.linspace(-reach, reach, 201)
    value = direction[0] * grid[None, :] + direction[1] * grid[:, None] - level
    ax.contour(grid, grid, value, levels=[0], colors=colour, linestyles="--", linewidths=1.2)
    ax.contourf(grid, grid, value, levels=[0, np.inf], colors=[colour], alpha=0.10)
