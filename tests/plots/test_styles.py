"""Figures for a paper and for slides have the width that they promise, and text that fits it."""

import pytest

from attsvm import AttsvmError
from attsvm.plots import STYLES, new_figure, restyle

matplotlib = pytest.importorskip("matplotlib")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("columns", "size"), [(1, (5.5, 3.6)), (3, (10.0, 3.2))])
def test_width_fonts_and_text_inside(style: str, columns: int, size: tuple[float, float]) -> None:
    figure, axes = new_figure(1, columns, size)
    for ax in axes[0]:
        ax.plot([0, 1], [0, 1], lw=1.0, label="a line")
        ax.set(xlabel="step", ylabel="direction error", title="a panel")
        ax.legend()
    before = axes[0][0].title.get_fontsize()
    restyle(figure, style)
    look = STYLES[style]
    assert figure.get_size_inches()[0] == (look.wide if columns > 1 else look.narrow)
    assert {text.get_fontfamily()[0] for text in figure.findobj(matplotlib.text.Text)} == {look.family}
    grown = axes[0][0].title.get_fontsize() / before
    assert axes[0][0].lines[0].get_linewidth() == pytest.approx(grown)
    assert grown <= 1.35 * figure.get_size_inches()[0] / size[0] + 1e-12
    figure.draw_without_rendering()
    for ax in axes[0]:
        box = ax.get_tightbbox()
        assert box is not None
        assert box.x0 >= figure.bbox.x0 - 1
        assert box.x1 <= figure.bbox.x1 + 1


def test_unknown_style() -> None:
    figure, _ = new_figure(1, 1, (5.0, 3.0))
    with pytest.raises(AttsvmError, match="did you mean slides"):
        restyle(figure, "slide")
