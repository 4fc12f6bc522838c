"""Gradual pruning of a ViT on small images: MirrorAdam against many others, up to 98% zeros."""

from __future__ import annotations

from collections.abc import Mapping

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse.rows import (
    ADVISED,
    BARS,
    CORPORA,
    METHODS,
    MIRROR_MUON,
    OTHERS,
    OURS,
    POWERPROP,
    REMARK,
    SHARES,
    curves,
    exact_zeros,
    from_rows,
    leads,
    read,
    share_axis,
)


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    return read(params, CORPORA["ViT on CIFAR-10"], trials, device, data)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(2, 2, (10, 8))
    panels = {"the same pruning for all": (*ADVISED, *OURS[:1]), "other methods": ("AdamW", *OURS, *OTHERS)}
    values = {"test": "test loss, nats per image", "accuracy": "test accuracy"}
    for line, (value, label) in zip(axes, values.items()):
        for ax, (title, methods) in zip(line, panels.items()):
            curves(ax, rows, methods, value)
            share_axis(ax, title)
            ax.set_ylabel(label)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    made = leads(rows, "ViT", (*OURS, POWERPROP, MIRROR_MUON), BARS)
    return [*made, exact_zeros(rows)]


EXPERIMENT = from_rows(
    id="sparse-vit",
    title="Gradual pruning of a ViT: MirrorAdam against many others",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"method": list(METHODS), "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark=f"CIFAR-10 at 16 × 16 pixels. {REMARK} "
    "Muon is the best up to 90% zeros, where MirrorMuon equals it, and MirrorMuon beyond.",
)
