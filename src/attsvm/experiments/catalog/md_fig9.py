"""How much of the attention of [CLS] goes to the word that decides a short review."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Rows
from attsvm.experiments._transformers import Runs, measured, nothing_yet, sign_flip_test, there_are
from attsvm.experiments.catalog import md_table1
from attsvm.transformer import pivotal_reviews


def _size3(rows: Rows) -> dict[str, Runs]:
    probed = [runs for runs in measured(rows) if runs.layers == 3 and np.isfinite(runs.columns["pivotal"]).all()]
    return {runs.method: runs for runs in probed}


@styled
def figure(rows: Rows) -> Figure:
    found = _size3(rows)
    if not found:
        return nothing_yet("no finished run of size 3 with attention on the reviews is there yet")
    figure, axes = new_figure(1, 2, (10, 3.5))
    shares = [runs.columns["pivotal"].mean(0) for runs in found.values()]
    axes[0][0].boxplot(shares, tick_labels=list(found), showmeans=True)
    axes[0][0].set(ylabel="attention of [CLS] on the pivotal word", title="last layer, mean over heads and seeds")
    labels = np.array([review.label for review in pivotal_reviews()])
    right = [100 * ((runs.columns["positive"] > 0.5) == labels).mean() for runs in found.values()]
    axes[0][1].bar(range(len(found)), right, color=[runs.look.colour for runs in found.values()])
    axes[0][1].set(xticks=range(len(found)), xticklabels=list(found), ylabel="reviews classified right, %")
    return finish(figure, axes[0])


def checks(rows: Rows) -> list[Check]:
    found = _size3(rows)
    made = there_are("Figure 9", found)
    for first, second in (("ℓ1.1-MD", "ℓ2-MD"), ("ℓ1.1-MD", "AdamW"), ("MirrorAdam p = 1.1", "AdamW")):
        if first in found and second in found:
            a, b = (found[method].columns["pivotal"].mean(0) for method in (first, second))
            p_value = sign_flip_test(a - b)
            count = f"larger on {(a > b).sum()} of {len(a)} reviews"
            ours = f"{a.mean():.3f} against {b.mean():.3f}, {count}, p = {p_value:.2g}"
            paper = "better on three of five sentences" if second == "ℓ2-MD" else "not in the paper"
            name = f"more attention on the pivotal word with {first} than with {second}"
            made.append(Check(name, paper, ours, a.mean() > b.mean() and p_value < 0.05))
    return made


EXPERIMENT = replace(
    md_table1.EXPERIMENT,
    id="md-fig9",
    title="IMDB transformer: attention on the pivotal word",
    paper="mirror-descent, Figure 9",
    statement="The model of ℓ1.1 mirror descent selects the pivotal token better than that of gradient descent.",
    figure=figure,
    checks=checks,
    rows_of="md-table1",
    remark="120 short reviews of our own instead of five generated ones, the same for all models, and a paired test "
    "(random signs). The maps themselves: attsvm transformer attention.",
)
