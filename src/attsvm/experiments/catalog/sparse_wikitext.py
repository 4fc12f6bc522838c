"""Sparse training of a small GPT on WikiText-2: every method, each at its own best rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows
from attsvm.experiments.sparse_rows import SEEDS, SHARES, SOURCE, curve, exact_zeros, lead, read, share_axis
from attsvm.experiments.transformers import nothing_yet

WANTED = {"corpus": "wikitext-2", "epochs": 6.0, "tied": False, "init": "torch"}
PANELS = {
    "gradual pruning with other optimizers": (
        "AdamW",
        "MirrorAdam p = 1.1",
        "MirrorAdam p = 1.25",
        "MirrorAdam p = 1.5",
        "Muon",
    ),
    "other ways to zeros": ("AdamW", "powerprop, alpha = 2", "powerprop, alpha = 10", "RigL", "MirrorAdam p = 1.5"),
}
METHODS = tuple(dict.fromkeys(method for methods in PANELS.values() for method in methods))
BARS = {0.95: 0.04, 0.98: 0.08}
"""So much lower than AdamW's the loss should be, as on IMDB."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    return read(params, WANTED, trials, data)


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(1, len(PANELS), (10, 4.2))
    for ax, (title, methods) in zip(axes[0], PANELS.items()):
        for method, look in zip(methods, SERIES):
            curve(ax, rows.where(method=method), look, method)
        share_axis(ax, title)
        ax.set_ylabel("test loss, nats per byte pair")
    return finish(figure, list(axes[0]))


def checks(rows: Rows) -> list[Check]:
    made = []
    for share, bar in BARS.items():
        base = rows.where(method="AdamW", sparsity=share)["test"]
        for method in ("MirrorAdam p = 1.1", "MirrorAdam p = 1.5"):
            ours = rows.where(method=method, sparsity=share)["test"]
            if np.isfinite(base - ours).sum() >= 2:
                made.append(lead(f"{share:.0%} zeros: {method}", base, ours, bar))
    return [*made, exact_zeros(rows)]


EXPERIMENT = Experiment(
    id="sparse-wikitext",
    title="Sparse training of a small GPT on WikiText-2",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"method": list(METHODS), "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    trials=len(SEEDS),
    quick=len(SEEDS),
    batch=len(SEEDS),
    needs=(SOURCE,),
    cost=lambda params: 0.01,
    remark="The runs took a GPU and are kept as rows: benchmarks/sparse computes them. Rates were tuned on another "
    "seed, at 0 and at 90% zeros; benchmarks/results/sparse.md has the protocol and all rates.",
)
