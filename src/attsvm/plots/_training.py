"""How the softmax saturates along a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from attsvm.plots._axes import draw_band
from attsvm.plots._common import BLUE, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def weight_figure(steps: Tensor, top_weight: Tensor, log_rest: Tensor, title: str) -> Figure:
    """Softmax weight s of the top token (R, B, n, K), and 1 − s, which falls far below what 1 − s can show."""
    figure, axes = new_figure(1, 2, (7.0, 3.2))
    left, right = axes[0]
    draw_band(left, steps, top_weight.flatten(2).mean(2), BLUE, "-", "mean over queries")
    draw_band(left, steps, top_weight.flatten(2).amin(2), ORANGE, "--", "least certain query")
    left.set(xscale="log", xlabel="step", ylabel="softmax weight of the top token", ylim=(0, 1.02))
    log10 = log_rest.flatten(2).amax(2) / np.log(10)
    draw_band(right, steps, log10, ORANGE, "--", "least certain query")
    right.set(xscale="log", xlabel="step", ylabel="log₁₀ of the weight of all others")
    for ax in (left, right):
        ax.grid(alpha=0.25)
        ax.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(title)
    return figure
