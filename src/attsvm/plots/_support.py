"""Which tokens hold the margin, geometry by geometry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from attsvm.data import TokenData
from attsvm.plots._common import VERMILION, new_figure, styled
from attsvm.svm import MaxMargin


@styled
def support_figure(data: TokenData, tokens: Tensor, solutions: Sequence[MaxMargin], title: str) -> Figure:
    """A grid a geometry, for the first trial: sequences by tokens, shaded by the margin to the selected token."""
    figure, axes = new_figure(1, len(solutions), (2.6 * len(solutions) + 0.6, 3.4))
    first = data[0]
    chosen = tokens[0].reshape(-1).cpu().numpy()
    shade = ScalarMappable(Normalize(0, 3), cmap="Greys_r")
    for ax, solution in zip(axes[0], solutions):
        logits = first.logits(solution.W[:1].to(first.dtype))[0].flatten(0, 1)
        margin = (logits.amax(-1, keepdim=True) - logits).cpu().numpy()
        support = solution.support_tokens[0].flatten(0, 1).cpu().numpy()
        ax.imshow(shade.to_rgba(np.clip(margin, 0, 3)), aspect="equal")
        rows = np.arange(len(chosen))
        ax.scatter(chosen, rows, marker="*", s=110, color="white", edgecolor="black", lw=0.7)
        ax.scatter(*support.nonzero()[::-1], marker="o", s=38, color=VERMILION, edgecolor="white", lw=0.6)
        ax.set(xlabel="token", xticks=range(data.T), yticks=rows)
        ax.tick_params(length=0)
        W = solution.W[0].cpu().numpy()
        entries = int((np.abs(W) > 1e-3 * np.abs(W).max()).sum())
        ax.set_title(
            f"{solution.geometry.name}\n{int(support.sum())} support tokens\n"
            f"rank {np.linalg.matrix_rank(W, rtol=1e-4)}, {entries} of {W.size} entries"
        )
    axes[0][0].set_ylabel("sequence")
    figure.colorbar(shade, ax=axes[0], label="margin to the selected token", shrink=0.75, ticks=[0, 1, 2, 3])
    figure.suptitle(title)
    return figure
