"""The atlas of basins: where training of small problems can end, and how often it does, by the scale of the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, new_figure, styled

if TYPE_CHECKING:
    from attsvm.search._basins import Basins

_LOCAL = (BLUE, ORANGE, SKY, PURPLE, VERMILION)
_HATCHES = ("", "//", "..", "xx", "\\\\")


@styled
def basins_figure(atlas: Basins, trials: int = 4) -> Figure:
    """A panel for each of the first problems: stacked shares of the locally optimal choices at every scale.

    The optimal tokens are green, other locally optimal choices follow by size, the fifth and later ones in one;
    grey is what ended at tokens that are not locally optimal.
    """
    shown = min(trials, len(atlas))
    figure, axes = new_figure(1, shown, (3.0 * shown + 0.6, 4.6))
    labels = ["0" if scale == 0 else f"{scale:g}" for scale in atlas.scales.tolist()]
    x = np.arange(len(labels))
    for trial, ax in enumerate(axes[0]):
        rows = atlas.table(trial)
        bottom = np.zeros(len(labels))
        rows.sort(key=lambda row: not row["globally optimal"])
        local = 0
        for row in rows:
            height = 100 * np.array(list(row["share"].values()))
            if row["globally optimal"]:
                colour, hatch = GREEN, ""
            else:
                colour, hatch = _LOCAL[min(local, 4)], _HATCHES[min(local, 4)]
                local += 1
            name = " ".join(str(t) for query in row["tokens"] for t in query)
            label = f"{name}, margin {row['margin']:.2g}" if local <= 4 else None
            ax.bar(x, height, 0.8, bottom, color=colour, hatch=hatch, edgecolor="white", label=label)
            bottom = bottom + height
        ax.bar(x, 100 - bottom, 0.8, bottom, color="0.8", label="not final" if bottom.min() < 99.9 else None)
        ax.set(xticks=x, xticklabels=labels, ylim=(0, 100), xlabel="scale of W(0)")
        ax.set_title(f"problem {trial}: locally optimal choices: {len(rows)}")
        ax.legend(
            fontsize=8, title="tokens selected", title_fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18)
        )
    axes[0][0].set_ylabel(f"% of {atlas.starts} starts that end there")
    return figure
