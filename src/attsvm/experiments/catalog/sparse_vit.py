"""Gradual pruning of a ViT on small images: MirrorAdam against AdamW and Muon, up to 98% zeros."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.catalog.sparse_gpt import LOOKS, METHODS
from attsvm.experiments.sparse_rows import BARS, curve, exact_zeros, from_rows, leads, read, share_axis
from attsvm.experiments.transformers import nothing_yet


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    return read(params, {"corpus": "cifar10-16"}, trials, data)


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(1, 2, (9, 4))
    for ax, value, title in zip(axes[0], ("test", "accuracy"), ("test loss, nats per image", "test accuracy")):
        for method, look in LOOKS.items():
            curve(ax, rows.where(method=method), look, method, value)
        share_axis(ax, title)
    return finish(figure, axes[0])


def checks(rows: Rows) -> list[Check]:
    made = leads(rows, "ViT", ("MirrorAdam p = 1.1", "MirrorAdam p = 1.5"), BARS)
    return [*made, exact_zeros(rows)]


EXPERIMENT = from_rows(
    id="sparse-vit",
    title="Gradual pruning of a ViT: MirrorAdam against AdamW and Muon",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"method": list(METHODS), "sparsity": [0.0, 0.9, 0.95, 0.98]},
    run=run,
    figure=figure,
    checks=checks,
    remark="CIFAR-10 at 16 × 16 pixels. The runs took a GPU and are kept as rows: benchmarks/sparse computes them. "
    "Muon is better up to 95% zeros, and as good at 98%.",
)
