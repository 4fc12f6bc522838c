"""Formulas in plain text become subscripts and powers; names of code and markup stay what they are."""

from __future__ import annotations

import pytest

from attsvm.plots import new_figure
from attsvm.report._typeset import html, mathtext, typeset


@pytest.mark.parametrize(
    ("plain", "page", "figure"),
    [
        ("W_mm", "<i>W</i><sub>mm</sub>", r"$W_{\mathrm{mm}}$"),
        ("C_{p,μ,R}", "<i>C</i><sub>p,μ,R</sub>", r"$C_{p,μ,R}$"),
        ("W_KQᵀ p", "<i>W</i><sub>KQ</sub>ᵀ p", r"$W_{\mathrm{KQ}}$ᵀ p"),
        ("‖W‖_p^p", "‖W‖<sub>p</sub><sup>p</sup>", r"‖W$‖_{p}$$^{p}$"),
        ("11 d^(−1/4)", "11 d<sup>−1/4</sup>", r"11 d$^{−1/4}$"),
        ("min_score_gap", "min_score_gap", "min_score_gap"),
        ("a < b_s", "a &lt; <i>b</i><sub>s</sub>", r"a < $b_{s}$"),
        ("$W_1$ W_mm", "$<i>W</i><sub>1</sub>$ <i>W</i><sub>mm</sub>", "$W_1$ W_mm"),
    ],
)
def test_formulas(plain: str, page: str, figure: str) -> None:
    assert str(html(plain)) == page
    assert mathtext(plain) == figure


def test_labels_titles_and_ticks_of_a_figure() -> None:
    drawn, axes = new_figure(1, 1, (3, 2))
    axes[0][0].set(xlabel="W_mm", title="d^(−1/2)", xticks=[0, 1], xticklabels=["L_W", "no"])
    typeset(drawn)
    assert axes[0][0].get_xlabel() == r"$W_{\mathrm{mm}}$"
    assert axes[0][0].get_title() == r"d$^{−1/2}$"
    assert [label.get_text() for label in axes[0][0].get_xticklabels()] == ["$L_{W}$", "no"]
    drawn.draw_without_rendering()
