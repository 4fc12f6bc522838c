"""Sizes of the attention weights of trained IMDB transformers, and what is left of the accuracy after pruning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.experiments import Check, Rows
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments.catalog import md_table1
from attsvm.experiments.transformers import (
    KINDS,
    PAPER_SIZE,
    PRUNED,
    Runs,
    measured,
    nothing_yet,
    pruning_checks,
    there_are,
)
from attsvm.transformer import LARGE_EDGES

PAPER_LARGE = {"ℓ1.1-MD": (13_964, 18_206, 7_643), "ℓ2-MD": (14_654, 27_224, 10_127)}
"""Weights of at least 0.06 in W_Q, W_K and W_V, Figure 8."""


def figure(rows: Rows) -> Figure:
    sizes = measured(rows)
    if not sizes:
        return nothing_yet("no finished run is there yet")
    figure, axes = new_figure(len(sizes), 4, (13, 3.3 * len(sizes)))
    middles = (LARGE_EDGES[1:] + LARGE_EDGES[:-1]) / 2
    for row, (layers, found) in zip(axes, sizes.items()):
        for k, (ax, kind) in enumerate(zip(row, KINDS)):
            for runs in found.values():
                counts = runs.columns["large_histogram"][:, k].mean(0)
                ax.step(middles, counts, where="mid", color=runs.look.colour, ls=runs.look.line, label=runs.method)
                ax.plot(runs.columns["largest"][:, k].max(), 0.5, runs.look.marker, color=runs.look.colour, ms=5)
            title = f"size {layers}, {kind} weights (largest: marker)"
            ax.set(xscale="log", yscale="log", ylim=(0.3, None), xlabel="|w|, from 0.06 on", title=title)
            ax.set_xticks([0.1, 0.3, 1, 3, 10], labels=["0.1", "0.3", "1", "3", "10"])
            ax.set_xticks([], minor=True)
            ax.set_xlim(
                LARGE_EDGES[0], 1.3 * max(1.0, *(runs.columns["largest"][:, k].max() for runs in found.values()))
            )
        for runs in found.values():
            accuracy = 100 * runs.columns["pruned"]
            error = accuracy.std(0, ddof=1) if len(accuracy) > 1 else None
            row[3].errorbar(100 * np.array(PRUNED), accuracy.mean(0), error, ms=4, **runs.look.style)
        row[3].set(
            xlabel="smallest attention weights set to 0, %", ylabel="test accuracy, %", title=f"size {layers}, pruning"
        )
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    sizes = measured(rows)
    made = there_are("Figure 8", sizes)
    for found in sizes.values():
        for first, second in (("ℓ1.1-MD", "ℓ2-MD"), ("MirrorAdam p = 1.1", "AdamW")):
            if first in found and second in found:
                made += _compare(found[first], found[second])
    return made


def _compare(sparse: Runs, dense: Runs) -> list[Check]:
    made = []
    against = f"with {sparse.method} than with {dense.method}"
    size = f"size {sparse.layers}: "
    for k, kind in enumerate(KINDS):
        if sparse.method in PAPER_LARGE:
            paper = f"{PAPER_LARGE[sparse.method][k]:,} against {PAPER_LARGE[dense.method][k]:,} (Figure 8)"
            paper = paper if sparse.layers == PAPER_SIZE else f"so at size {PAPER_SIZE}"
            a, b = (runs.columns["large"][:, k].mean() for runs in (sparse, dense))
            name = f"{size}fewer {kind} weights ≥ 0.06 {against}"
            made.append(Check(name, paper, f"{a:,.0f} against {b:,.0f}", a < b))
        a, b = (runs.columns["gini"][:, k].mean() for runs in (sparse, dense))
        name, paper = f"{size}larger Gini coefficient of the {kind} weights {against}", "p near 1 is sparser"
        made.append(Check(name, paper, f"{a:.3f} against {b:.3f}", a > b))
    return made + pruning_checks(sparse, dense, size)


EXPERIMENT = replace(
    md_table1.EXPERIMENT,
    id="md-fig8",
    title="IMDB transformer: sizes of the attention weights, pruning",
    paper="mirror-descent, Figure 8",
    statement="ℓ1.1 mirror descent leaves fewer large attention weights than gradient descent.",
    figure=figure,
    checks=checks,
    rows_of="md-table1",
    remark="Weights of the last epoch, all layers together. The paper's figure does not say of which model it is; the "
    "notebooks of its public code open six layers. A count from 0.06 on depends on the learning rate and on how long a "
    "run trained: initial weights are below 0.051, and with ℓ2-MD few go beyond. Gini coefficient and pruning do not "
    "depend on a threshold.",
)
