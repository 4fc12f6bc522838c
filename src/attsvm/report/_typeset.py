"""Formulas of plain text, as HTML and in figures: W_mm, C_{p,μ,R}, d^(−1/4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LETTER = "A-Za-zΑ-Ωα-ω"
_INDEX = rf"_(?:\{{([^{{}}]*)\}}|([0-9{_LETTER}]{{1,6}}))(?![_0-9{_LETTER}])"
_BELOW = re.compile(rf"(?<!\w)([{_LETTER}]{{1,4}}){_INDEX}|([‖)]){_INDEX}")
_ABOVE = re.compile(r"\^(?:\(([^()]*)\)|([\w⊤⋆−]+))")


def html(text: str) -> Markup:
    """The text with subscripts and powers set as such."""
    safe = str(escape(text))

    def below(match: re.Match[str]) -> str:
        base, index = match[1] or match[4], match[2] or match[3] or match[5] or match[6]
        return f"{f'<i>{base}</i>' if len(base) == 1 and base.isalpha() else base}<sub>{index}</sub>"

    safe = _BELOW.sub(below, safe)
    return Markup(_ABOVE.sub(lambda match: f"<sup>{match[1] or match[2]}</sup>", safe))


def mathtext(text: str) -> str:
    """The same for matplotlib; text that has formulas of its own stays as it is."""
    if "$" in text:
        return text

    def roman(name: str) -> str:
        return name if len(name) == 1 or not name.isalpha() else rf"\mathrm{{{name}}}"

    def below(match: re.Match[str]) -> str:
        base, index = match[1] or match[4], match[2] or match[3] or match[5] or match[6]
        return f"${roman(base)}_{{{roman(index)}}}$"

    text = _BELOW.sub(below, text)
    return _ABOVE.sub(lambda match: f"$^{{{match[1] or match[2]}}}$", text)


def typeset(figure: Figure) -> None:
    """Set the formulas in all labels, titles and legends of a figure."""
    from matplotlib.text import Text

    for label in figure.findobj(Text):
        assert isinstance(label, Text)
        if (set_text := mathtext(label.get_text())) != label.get_text():
            label.set_text(set_text)
    for ax in figure.axes:  # tick labels that were given are set again when drawn
        for axis in (ax.xaxis, ax.yaxis):
            names = [label.get_text() for label in axis.get_ticklabels()]
            if any(mathtext(name) != name for name in names):
                axis.set_ticks(axis.get_ticklocs(), [mathtext(name) for name in names])
