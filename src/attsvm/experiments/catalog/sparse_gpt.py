"""Gradual pruning of a GPT on IMDB's word pieces: MirrorAdam against many others, up to 98% zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, Axes, Figure, finish, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse.rows import (
    ADVISED,
    BARS,
    METHODS,
    MIRROR_MUON,
    OTHERS,
    OURS,
    PENALTIES,
    POWERPROP,
    REMARK,
    SHARES,
    UNMASKED,
    base_of,
    below,
    by_penalty,
    curves,
    dense_line,
    exact_zeros,
    from_rows,
    leads,
    read,
    share_axis,
)
from attsvm.experiments.transformers import interval

SETTINGS: dict[str, dict[str, Any]] = {
    "own head, nn.Linear's start": {"tied": False, "init": "torch", "width": 0},
    "own head, GPT-2's start": {"tied": False, "init": "gpt2", "width": 0},
    "tied head, GPT-2's start": {"tied": True, "init": "gpt2", "width": 0},
    "width 768, nn.Linear's start": {"tied": False, "init": "torch", "width": 768, "epochs": 2.0},
}
OWN, OWN_GPT2, TIED, WIDE = SETTINGS
EVERYWHERE = ("AdamW", "MirrorAdam p = 1.1", "MirrorAdam p = 1.5", "Muon", UNMASKED)
"""Methods that were run in all settings; the others were run in the first."""


class Taught(NamedTuple):
    """A part of every label is the prediction of a dense teacher, which Muon trained."""

    setting: str
    name: str
    method: str
    epochs: float = 4.0
    lr: float | None = None
    """Where it was run at two rates."""

    @property
    def cell(self) -> str:
        return self.method + (f", lr = {self.lr:g}" if self.lr else "")


TWICE = ", twice the steps"
MOSTLY, LONGER = "distil = 0.8, scope = relative", "teacher_epochs = 4, teacher_lr = 0.006"
MIRROR_MUON_TAUGHT = f"{MIRROR_MUON}, distil = 0.8, head_lr = 0.0045, scope = relative, {LONGER}"
TAUGHT = (
    Taught(OWN, "AdamW", f"AdamW, {MOSTLY}, teacher_lr = 0.006"),
    Taught(OWN, "Muon", "Muon, distil = 0.8, teacher_lr = 0.006"),
    Taught(OWN, POWERPROP, f"{POWERPROP}, {MOSTLY}, teacher_lr = 0.006"),
    Taught(OWN, f"AdamW, one threshold{TWICE}", f"AdamW, distil = 0.8, {LONGER}", 8.0),
    Taught(OWN, f"AdamW{TWICE}", f"AdamW, {MOSTLY}, {LONGER}", 8.0),
    Taught(OWN, f"Muon{TWICE}", f"Muon, distil = 0.8, {LONGER}", 8.0),
    Taught(OWN, f"{MIRROR_MUON}{TWICE}", MIRROR_MUON_TAUGHT, 8.0),
    Taught(OWN, f"{POWERPROP}{TWICE}", f"{POWERPROP}, {MOSTLY}, {LONGER}", 8.0, 0.0045),
    Taught(OWN, f"{POWERPROP} at 3e-3{TWICE}", f"{POWERPROP}, {MOSTLY}, {LONGER}", 8.0, 0.003),
    Taught(TIED, "AdamW", "AdamW, distil = 0.5, teacher_lr = 0.0035"),
    Taught(TIED, "Muon", "Muon, distil = 0.5, teacher_lr = 0.0035"),
)
RELATIVE = tuple(f"{method}, scope = relative" for method in ("AdamW", "Muon", "MirrorAdam p = 1.1", POWERPROP))
"""Pruned by a threshold in units of each matrix, as MirrorMuon always is here."""
DECAYED = (
    "AdamW, scope = relative, weight_decay = 1",
    "Muon, scope = relative, weight_decay = 1",
    "MirrorAdam p = 1.1, scope = relative, weight_decay = 0.3",
    f"{POWERPROP}, scope = relative, weight_decay = 0.3",
    f"{MIRROR_MUON}, weight_decay = 0.3",
)
"""The same threshold for all, and each with the weight decay and rate that are best for it on seed 0."""
BY_CELL = {taught.cell: taught for taught in TAUGHT}
AIMS = {0.9: 0.0, 0.95: 0.05}
"""So much above dense AdamW's the loss may be, by share of zeros."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    method = params["method"]
    wanted = {"corpus": "imdb", "clip": 1.0, "epochs": 4.0} | SETTINGS[params["setting"]]
    if method in PENALTIES:
        return by_penalty(params, wanted, trials, device, data)
    if method in BY_CELL:
        taught = BY_CELL[method]
        wanted |= {"epochs": taught.epochs} | ({"lr": taught.lr} if taught.lr else {})
        return read({**params, "method": taught.method}, wanted, trials, device, data, ("front",))
    note = "relative" if method in RELATIVE else "decay" if method in DECAYED else "main"
    return read(params, wanted, trials, device, data, (note,))


def _taught(setting: str) -> list[str]:
    return [taught.cell for taught in TAUGHT if taught.setting == setting and taught.epochs == 4]


def _above(ax: Axes, rows: Rows, share: float) -> None:
    """How far the seeds with twice the steps are above dense AdamW: one dot each."""
    longer = [taught for taught in TAUGHT if taught.epochs == 8]
    dense = rows.where(method="AdamW", sparsity=0.0)["test"]
    for y, taught in enumerate(longer):
        over = rows.where(method=taught.cell, sparsity=share)["test"] - dense
        ax.plot(over, np.full(len(over), y), SERIES[1].marker, color=SERIES[1].colour, ms=5, alpha=0.6)
        ax.text(0.01, y, taught.name.removesuffix(TWICE), transform=ax.get_yaxis_transform(), fontsize=8, va="center")
    left, right = ax.get_xlim()
    ax.set(xlim=(left - 0.8 * (right - left), right), ylim=(len(longer) - 0.5, -0.5), yticks=[])
    ax.axvline(0, color="0.6", lw=0.8)
    ax.axvline(AIMS[share], color="0.3", ls="--", lw=0.8)
    ax.set(title=f"{OWN}: {share:.0%} zeros, a teacher{TWICE}")
    ax.set_xlabel(f"test loss above dense AdamW's, every seed; dashed: {AIMS[share]:g}")


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(7, 2, (10, 28))
    panels = {
        OWN: (*ADVISED, *OURS[:1]),
        f"{OWN}: other methods": ("AdamW", *OURS, *OTHERS),
        f"{OWN}: zeros by a penalty": ("AdamW", *PENALTIES),
        f"{OWN}: with a teacher": ("AdamW", *_taught(OWN)),
        TIED: EVERYWHERE,
        f"{TIED}: with a teacher": ("AdamW", *_taught(TIED)),
    }
    panels[OWN_GPT2] = EVERYWHERE
    panels |= {
        f"{setting}: a threshold for each matrix": ("AdamW", *RELATIVE, MIRROR_MUON) for setting in (OWN_GPT2, OWN)
    }
    panels[f"{OWN}: that threshold, weight decay tuned"] = DECAYED
    panels[WIDE] = ("AdamW", OURS[0], "Muon", POWERPROP, MIRROR_MUON, RELATIVE[0])
    names = {taught.cell: f"{taught.name}, taught" for taught in TAUGHT}
    names |= {method: method.replace("scope = ", "") for method in RELATIVE}
    names |= {method: base_of(method) for method in DECAYED}
    for ax, (title, methods) in zip(figure.axes, panels.items()):
        own = rows.where(setting=title.partition(":")[0])
        curves(ax, own, methods, names=names | ({"AdamW": "AdamW, pruned"} if "pAdam" in methods else {}))
        dense_line(ax, own)
        share_axis(ax, title)
        ax.set_ylabel("test loss, nats per word piece")
    own = rows.where(setting=OWN)
    below(figure.axes[11], own, METHODS[1:], OWN)
    below(axes[6][0], own, DECAYED[1:], f"{OWN}: that threshold, weight decay tuned", DECAYED[0], names)
    _above(axes[6][1], own, 0.95)
    figure.suptitle("grey: dense AdamW; hollow: one seed", fontsize=9)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    methods = (*OURS, POWERPROP, MIRROR_MUON)
    made = [check for setting in SETTINGS for check in leads(rows, setting, methods, BARS, setting=setting)]
    for setting in (OWN, OWN_GPT2, WIDE):
        made += leads(rows, setting, (*RELATIVE[1:], MIRROR_MUON), BARS, RELATIVE[0], setting=setting)
    made += leads(rows, OWN, DECAYED[1:], BARS, DECAYED[0], setting=OWN)
    for taught in TAUGHT:
        own = rows.where(setting=taught.setting)
        dense = own.where(method="AdamW", sparsity=0.0)["test"]
        for share, more in AIMS.items():
            over = own.where(method=taught.cell, sparsity=share)["test"] - dense
            if np.isfinite(over).sum() >= 2:
                above, half = interval(over[np.isfinite(over)])
                where = f"{taught.setting}: {taught.name} with a teacher at {share:.0%} zeros"
                words = f"{where} is at most {more:g} above dense AdamW"
                made.append(Check(words, "", f"{above:+.3f} ± {half:.3f}", bool(above <= more)))
    return [*made, exact_zeros(rows, PENALTIES)]


EXPERIMENT = from_rows(
    id="sparse-gpt",
    title="Gradual pruning of a GPT: MirrorAdam against many others",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={
        "setting": list(SETTINGS),
        "method": [*METHODS, *BY_CELL, *RELATIVE, *DECAYED, *PENALTIES],
        "sparsity": list(SHARES),
    },
    run=run,
    figure=figure,
    checks=checks,
    remark=f"{REMARK} Rates were tuned on another "
    "seed, at 0 and at 90% zeros; benchmarks/results/sparse.md has the protocol and all rates. Up to 90% zeros Muon is "
    "the best, at 95% MirrorMuon and powerprop with α = 10 (p = 1.1 with moments of the mirror variable), at 98% "
    "MirrorMuon. Penalties were run with nn.Linear's start. A teacher costs a dense run more.",
)
