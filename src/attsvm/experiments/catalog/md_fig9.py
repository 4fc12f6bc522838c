"""How much of the attention of [CLS] goes to the word that decides a short review."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.experiments import Check, Rows
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments.catalog import md_table1
from attsvm.experiments.transformers import PAPER_SIZE, measured, nothing_yet, sign_flip_test, there_are
from attsvm.transformer import pivotal_reviews


def figure(rows: Rows) -> Figure:
    sizes = measured(rows, "pivotal")
    if not sizes:
        return nothing_yet("no finished run with attention on the reviews is there yet")
    figure, axes = new_figure(len(sizes), 2, (12, 3.5 * len(sizes)))
    labels = np.array([review.label for review in pivotal_reviews()])
    for (left, right), (layers, found) in zip(axes, sizes.items()):
        names = [method.replace(" p", "\np") for method in found]
        left.boxplot([runs.columns["pivotal"].mean(0) for runs in found.values()], tick_labels=names, showmeans=True)
        title = f"size {layers}, last layer, mean over heads and seeds"
        left.set(ylabel="attention of [CLS] on the pivotal word", title=title)
        accuracy = [100 * ((runs.columns["positive"] > 0.5) == labels).mean(1) for runs in found.values()]
        error = [each.std(ddof=1) if len(each) > 1 else np.nan for each in accuracy]
        height, colours = [each.mean() for each in accuracy], [runs.look.colour for runs in found.values()]
        right.bar(range(len(found)), height, yerr=error, color=colours, capsize=3)
        right.set(xticks=range(len(found)), xticklabels=names, ylabel="reviews classified right, %")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    sizes = measured(rows, "pivotal")
    made = there_are("Figure 9", sizes)
    pairs = ("ℓ1.1-MD", "ℓ2-MD"), ("ℓ1.1-MD", "AdamW"), ("MirrorAdam p = 1.1", "AdamW")
    for layers, found in sizes.items():
        for first, second in (pair for pair in pairs if set(pair) <= set(found)):
            a, b = (found[method].columns["pivotal"].mean(0) for method in (first, second))
            p_value = sign_flip_test(a - b)
            count = f"larger on {(a > b).sum()} of {len(a)} reviews"
            ours = f"{a.mean():.3f} against {b.mean():.3f}, {count}, p = {p_value:.2g}"
            in_paper = second == "ℓ2-MD" and layers == PAPER_SIZE
            paper = "better on three of five sentences" if in_paper else ""
            name = f"size {layers}: more attention on the pivotal word with {first} than with {second}"
            made.append(Check(name, paper, ours, a.mean() > b.mean() and p_value < 0.05, extra=not in_paper))
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
    "(random signs). The paper's models have six layers. The maps themselves: attsvm transformer attention.",
)
