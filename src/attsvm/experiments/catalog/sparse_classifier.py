"""A classifier of reviews: the saturated case, which cannot rank sparse methods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse.rows import (
    MIRROR_MUON,
    OURS,
    POWERPROP,
    REMARK,
    by_penalty,
    curves,
    exact_zeros,
    from_rows,
    read,
    share_axis,
)

CORPUS = {"corpus": "imdb-labels"}
METHODS = ("AdamW", *OURS, POWERPROP, "powerprop, alpha = 2", "Muon", MIRROR_MUON, "RigL")
PROXIMAL = "MirrorAdam p = 2, l1"
"""L1-proximal AdamW."""
PENALTIES = (PROXIMAL, "MirrorAdam p = 1.5, l1 of W", "AdaBreg", "pAdam")
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.998)


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    return (by_penalty if params["method"] in PENALTIES else read)(params, CORPUS, trials, device, data)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (10, 4))
    panels = {"the same pruning for all": METHODS, "zeros by a penalty": ("AdamW", *PENALTIES)}
    for ax, (title, methods) in zip(axes[0], panels.items()):
        curves(ax, rows, methods, "accuracy", {PROXIMAL: "L1-proximal AdamW", "AdamW": "AdamW, pruned"})
        share_axis(ax, title)
        ax.set(ylabel="test accuracy", ylim=(0.5, 0.9))
    figure.suptitle("reviews of IMDB; hollow: one seed", fontsize=9)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    dense = np.nanmean(rows.where(method="AdamW", sparsity=0.0)["accuracy"])
    found = {method: np.nanmean(rows.where(method=method, sparsity=0.9)["accuracy"]) for method in METHODS}
    words = ", ".join(f"{method} {100 * accuracy:.1f}" for method, accuracy in found.items())
    spread = max(found.values()) - min(found.values())
    plain = rows.where(method=PROXIMAL, sparsity=0.98)
    kept, zeros = plain["tuned_accuracy"][0], plain["tuned_zeros"][0]
    return [
        Check("at 90% zeros the methods differ by less than two points", "", words, bool(spread < 0.02)),
        Check(
            "L1-proximal AdamW makes 98% zeros or more and loses less than two points",
            "",
            f"{100 * zeros:.1f}% zeros: {100 * kept:.1f}, dense AdamW: {100 * dense:.1f}",
            bool(zeros >= 0.98 and kept > dense - 0.02),
        ),
        exact_zeros(rows, PENALTIES),
    ]


EXPERIMENT = from_rows(
    id="sparse-classifier",
    title="A classifier of reviews: the saturated case",
    statement="A classifier of IMDB's reviews cannot rank sparse methods: at 90% zeros they agree, and a plain L1 "
    "penalty goes far beyond.",
    grid={"method": [*METHODS, *PENALTIES], "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark=f"{REMARK} At 98% zeros and more penalties have one seed, but for pAdam.",
)
