"""Gradual pruning of a GPT on IMDB's word pieces: MirrorAdam against AdamW and Muon, up to 98% zeros."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse_rows import BARS, SHARES, curves, exact_zeros, from_rows, leads, read, share_axis
from attsvm.experiments.transformers import nothing_yet

SETTINGS = {
    "own head, nn.Linear's start": {"tied": False, "init": "torch"},
    "own head, GPT-2's start": {"tied": False, "init": "gpt2"},
    "tied head, GPT-2's start": {"tied": True, "init": "gpt2"},
}
METHODS = ("AdamW", "MirrorAdam p = 1.1", "MirrorAdam p = 1.5", "Muon")


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    return read(params, SETTINGS[params["setting"]] | {"corpus": "imdb", "clip": 1.0}, trials, data)


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(1, len(SETTINGS), (12, 4))
    for ax, setting in zip(axes[0], SETTINGS):
        curves(ax, rows.where(setting=setting), METHODS)
        share_axis(ax, setting)
    axes[0][0].set_ylabel("test loss, nats per word piece")
    figure.suptitle("hollow: only the seed that chose the rate", fontsize=9)
    return finish(figure, axes[0])


def checks(rows: Rows) -> list[Check]:
    methods = ("MirrorAdam p = 1.1", "MirrorAdam p = 1.5")
    made = [check for setting in SETTINGS for check in leads(rows, setting, methods, BARS, setting=setting)]
    return [*made, exact_zeros(rows)]


EXPERIMENT = from_rows(
    id="sparse-gpt",
    title="Gradual pruning of a GPT: MirrorAdam against AdamW and Muon",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"setting": list(SETTINGS), "method": list(METHODS), "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark="The runs took a GPU and are kept as rows: benchmarks/sparse computes them. Rates were tuned on another "
    "seed, at 0 and at 90% zeros; benchmarks/results/sparse.md has the protocol and all rates.",
)
