"""The W half of Figure 5, without Assumption B.1."""

from __future__ import annotations

from dataclasses import replace

from attsvm.experiments import Check, Rows
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments.catalog import svm_fig5


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 1, (6, 3.6))
    svm_fig5.draw(axes[0][0], rows.where(trained="W"), with_b1=False)
    return finish(figure, legend="outside")


def checks(rows: Rows) -> list[Check]:
    return svm_fig5.convergence_checks(rows, "W", "W")


EXPERIMENT = replace(
    svm_fig5.EXPERIMENT,
    id="svm-fig2",
    rows_of="svm-fig5",
    title="Global and local convergence of W",
    paper="TF-as-SVM, Figure 2",
    statement="Larger over-parameterization (d) increases the likelihood of convergence to the globally optimal SVM "
    "solution.",
    figure=figure,
    checks=checks,
    remark="The runs of svm-fig5.",
)
