"""Gradual pruning of a GPT on IMDB's word pieces: MirrorAdam against many others, up to 98% zeros."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse_rows import (
    ADVISED,
    BARS,
    METHODS,
    MIRROR_MUON,
    OTHERS,
    OURS,
    PENALTIES,
    POWERPROP,
    SHARES,
    UNMASKED,
    below,
    by_penalty,
    curves,
    exact_zeros,
    from_rows,
    leads,
    read,
    share_axis,
)
from attsvm.experiments.transformers import nothing_yet

SETTINGS = {
    "own head, nn.Linear's start": {"tied": False, "init": "torch"},
    "own head, GPT-2's start": {"tied": False, "init": "gpt2"},
    "tied head, GPT-2's start": {"tied": True, "init": "gpt2"},
}
EVERYWHERE = ("AdamW", "MirrorAdam p = 1.1", "MirrorAdam p = 1.5", UNMASKED)
"""Methods that were run in all settings; the others were run in the first."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    wanted = SETTINGS[params["setting"]] | {"corpus": "imdb", "clip": 1.0}
    return (by_penalty if params["method"] in PENALTIES else read)(params, wanted, trials, data)


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(3, 2, (10, 12))
    flat, first = [ax for line in axes for ax in line], next(iter(SETTINGS))
    panels = {
        first: (first, (*ADVISED, *OURS[:1])),
        f"{first}: other methods": (first, ("AdamW", *OURS, *OTHERS)),
        f"{first}: zeros by a penalty": (first, ("AdamW", *PENALTIES)),
    }
    panels |= {setting: (setting, EVERYWHERE) for setting in list(SETTINGS)[1:]}
    for ax, (title, (setting, methods)) in zip(flat, panels.items()):
        curves(ax, rows.where(setting=setting), methods, names={"AdamW": "AdamW, pruned"} if "pAdam" in methods else {})
        share_axis(ax, title)
        ax.set_ylabel("test loss, nats per word piece")
    below(flat[-1], rows.where(setting=first), METHODS[1:], first)
    figure.suptitle("hollow: only the seed that chose the rate", fontsize=9)
    return finish(figure, flat)


def checks(rows: Rows) -> list[Check]:
    methods = (*OURS, POWERPROP, MIRROR_MUON)
    made = [check for setting in SETTINGS for check in leads(rows, setting, methods, BARS, setting=setting)]
    return [*made, exact_zeros(rows, PENALTIES)]


EXPERIMENT = from_rows(
    id="sparse-gpt",
    title="Gradual pruning of a GPT: MirrorAdam against many others",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"setting": list(SETTINGS), "method": [*METHODS, *PENALTIES], "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark="The runs took a GPU and are kept as rows: benchmarks/sparse computes them. Rates were tuned on another "
    "seed, at 0 and at 90% zeros; benchmarks/results/sparse.md has the protocol and all rates. Up to 90% zeros Muon is "
    "the best, at 95% MirrorMuon and powerprop with α = 10 (p = 1.1 with moments of the mirror variable), at 98% "
    "MirrorMuon. Penalties were run with nn.Linear's start.",
)
