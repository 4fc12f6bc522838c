"""Gradual pruning of a GPT on WikiText-2: MirrorAdam against many others, and what pushes the front further."""

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
    PENALTIES,
    POWERPROP,
    REMARK,
    SHARES,
    by_penalty,
    curves,
    dense_line,
    exact_zeros,
    from_rows,
    leads,
    read,
    share_axis,
)

CORPUS = CORPORA["GPT on WikiText-2"]
MUON_FIRST = "MirrorAdam p = 1.1, muon_lr = 0.004, muon_until = 0.2"
TAUGHT = "MirrorAdam p = 1.1, distil = 0.5, muon_lr = 0.004, muon_until = 0.2, teacher_lr = 0.004"
TAUGHT_POWERPROP = TAUGHT.replace("MirrorAdam p = 1.1", "powerprop, alpha = 10")
PUSHED: dict[str, str] = {
    MUON_FIRST: "Muon for the first fifth, then p = 1.1",
    "AdamW, distil = 0.5, teacher_lr = 0.004": "AdamW, distilled",
    "MirrorAdam p = 1.1, distil = 0.5, teacher_lr = 0.004": "p = 1.1, distilled",
    TAUGHT: "Muon, then p = 1.1, distilled",
    TAUGHT_POWERPROP: "Muon, then powerprop, distilled",
}
"""Combined methods, as runs are named and as people say it."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    if params["method"] in PENALTIES:
        return by_penalty(params, CORPUS, trials, device, data)
    notes = ("combined", "explore") if params["method"] in PUSHED else ("main",)
    return read(params, CORPUS, trials, device, data, notes)


def figure(rows: Rows) -> Figure:
    figure, _ = new_figure(2, 2, (10, 8))
    panels: dict[str, tuple[str, ...]] = {
        "the same pruning for all": (*ADVISED, "MirrorAdam p = 1.1"),
        "other methods, the same pruning": ("AdamW", *OURS, *OTHERS),
        "zeros by a penalty": ("AdamW", *PENALTIES),
        "combined": ("MirrorAdam p = 1.1", *PUSHED),
    }
    for ax, (title, methods) in zip(figure.axes, panels.items()):
        curves(ax, rows, methods, names=PUSHED | {"AdamW": "AdamW, pruned"} if "AdaBreg" in methods else PUSHED)
        dense_line(ax, rows)
        share_axis(ax, title)
        ax.set_ylabel("test loss, nats per byte pair")
    figure.suptitle("grey: dense AdamW; hollow: one seed", fontsize=9)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    return [*leads(rows, "GPT on WikiText-2", (*OURS, POWERPROP, MIRROR_MUON), BARS), exact_zeros(rows, PENALTIES)]


EXPERIMENT = from_rows(
    id="sparse-wikitext",
    title="Gradual pruning of a GPT on WikiText-2: MirrorAdam against many others",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"method": [*METHODS, *PUSHED, *PENALTIES], "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark=f"{REMARK} Up to 80% zeros Muon is the "
    "best, at 90% MirrorMuon, at 95 and 98% powerprop with α = 10 (p = 1.1 with moments of the mirror variable).",
)
