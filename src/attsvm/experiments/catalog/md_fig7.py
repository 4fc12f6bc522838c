"""Joint training: softmax and logistic probabilities go to 1."""

from __future__ import annotations

from dataclasses import replace

from attsvm.experiments import Check, Rows, at_least
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.experiments.catalog import md_fig6


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (8, 3.4))
    for look, p in zip(SERIES, rows.values("p")):
        cell = rows.where(p=p)
        for ax, column in zip(axes[0], ("top_weight", "logistic")):
            band(ax, cell["steps"][0, 1:], cell[column][:, 1:], look, f"p = {p}")
    for ax, title in zip(axes[0], ("softmax probability of the chosen token", "logistic probability")):
        ax.set(xscale="log", xlabel="iteration", ylabel="mean probability", title=title, ylim=(0, 1.03))
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        cell = rows.where(p=p)
        for column, title in (("top_weight", "softmax"), ("logistic", "logistic")):
            name = f"p = {p}: mean {title} probability at the end"
            found.append(at_least(name, float(cell[column][0, -1]), 0.999, "converges to 1 (Figure 7)"))
    return found


EXPERIMENT = replace(
    md_fig6.EXPERIMENT,
    id="md-fig7",
    rows_of="md-fig6",
    title="Joint training, probabilities",
    paper="mirror-descent, Figure 7",
    statement="The average softmax probability of the chosen token and the average logistic probability converge to 1.",
    figure=figure,
    checks=checks,
    remark="The runs of md-fig6.",
)
