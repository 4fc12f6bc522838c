"""How training came to its limit: direction error and softmax weight, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from attsvm.plots._common import BLUE, GREEN, ORANGE, VERMILION, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (VERMILION, ":"))


@styled
def direction_figure(
    panels: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]], ylabel: str, title: str | None = None
) -> Figure:
    """A panel each of titled (steps (R,), {curve: errors (R, B)}): median over trials, band from 10% to 90%."""
    figure, axes = new_figure(1, len(panels), (max(5.0, 3.2 * len(panels)), 3.4))
    low = min((_smallest(errors) for _, curves in panels.values() for errors in curves.values()), default=1e-3)
    for ax, (name, (steps, curves)) in zip(axes[0], panels.items()):
        for (curve, errors), (colour, line) in zip(curves.items(), _STYLES):
            _band(ax, steps, errors, colour, line, curve)
        ax.set(xscale="log", yscale="log", xlabel="step", title=name, ylim=(0.5 * low, 3))
        ax.grid(alpha=0.25)
        if len(curves) > 1:
            ax.legend(frameon=False, fontsize=8, loc="lower left")
    axes[0][0].set_ylabel(ylabel)
    if title:
        figure.suptitle(title)
    return figure


@styled
def weight_figure(steps: Tensor, top_weight: Tensor, log_rest: Tensor, title: str) -> Figure:
    """Softmax weight s of the top token (R, B, n, K), and 1 − s, which falls far below what 1 − s can show."""
    figure, axes = new_figure(1, 2, (7.0, 3.2))
    left, right = axes[0]
    _band(left, steps, top_weight.flatten(2).mean(2), BLUE, "-", "mean over queries")
    _band(left, steps, top_weight.flatten(2).amin(2), ORANGE, "--", "least certain query")
    left.set(xscale="log", xlabel="step", ylabel="softmax weight of the top token", ylim=(0, 1.02))
    log10 = log_rest.flatten(2).amax(2) / np.log(10)
    _band(right, steps, log10, ORANGE, "--", "least certain query")
    right.set(xscale="log", xlabel="step", ylabel="log₁₀ of the weight of all others")
    for ax in (left, right):
        ax.grid(alpha=0.25)
        ax.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(title)
    return figure


def _band(ax: Axes, steps: Tensor, values: Tensor, colour: str, line: str, label: str) -> None:
    """Median and band over the trials that have a number; the first step is drawn at 1/2 on a log axis."""
    x = np.maximum(steps.cpu().numpy(), 0.5)
    with np.errstate(all="ignore"):
        low, middle, high = _quantiles(values.cpu().numpy(), (0.1, 0.5, 0.9))
    ax.plot(x, middle, color=colour, ls=line, lw=1.6, label=label)
    if values.shape[1] > 1:
        ax.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def _quantiles(values: np.ndarray, q: Sequence[float]) -> np.ndarray:
    known = np.isfinite(values).any(1)
    out = np.full((len(q), len(values)), np.nan)
    if known.any():
        out[:, known] = np.nanquantile(np.where(np.isfinite(values[known]), values[known], np.nan), q, axis=1)
    return out


def _smallest(errors: Tensor) -> float:
    positive = errors[(errors > 0) & errors.isfinite()]
    return max(positive.min().item(), 1e-16) if len(positive) else 1e-3
