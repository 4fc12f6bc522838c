"""Explanations and words as HTML: in a notebook, or one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm import pages
from attsvm._version import __version__
from attsvm.text._tokenizers import visible

if TYPE_CHECKING:
    from attsvm.text._explain import Explanation, Words

_ROWS = 12
"""Words of a text in the table below it."""
_STRONG = 2.0
"""A contribution that gets the full colour."""


def write_page(explanations: Sequence[Explanation], path: Path) -> None:
    """A whole page."""
    texts = [_text(one) for one in explanations]
    pages.write_page(path, pages.render("text/templates/page.html", texts=texts, version=__version__))


def explanations_html(explanations: Sequence[Explanation]) -> str:
    """A fragment for a notebook."""
    return pages.render("text/templates/explanations.html", texts=[_text(one) for one in explanations])


def words_html(words: Words) -> str:
    """The top words of every class, as a fragment."""
    tops = [{"label": label, "name": visible(str(label)), "rows": words.top(label)} for label in words.classes.tolist()]
    return pages.render("text/templates/words.html", tops=tops)


def _text(one: Explanation) -> dict[str, Any]:
    """Pieces of the text with their contributions; what is between the words has none."""
    # The strongest word of the text has the full colour, unless all are weak.
    unit = max([abs(share) for _, _, share in one.spans] + [abs(c) for c in one.contribution] + [_STRONG / 4])
    pieces, end = [], 0
    for start, stop, share in one.spans:
        pieces.append({"text": visible(one.text[end:start]), "share": None})
        pieces.append({"text": one.text[start:stop], "share": share, "strength": _strength(share, unit)})
        end = stop
    pieces.append({"text": visible(one.text[end:]), "share": None})
    columns = (one.words, one.attention, one.direction, one.contribution, one.effect, one.opposed)
    rows = [
        {"word": w, "attention": a, "direction": d, "contribution": c, "effect": e, "opposed": o}
        | {"strength": _strength(c, unit)}
        for w, a, d, c, e, o in list(zip(*columns))[:_ROWS]
    ]
    rest = float(one.contribution[_ROWS:].sum())
    hidden = max(0, len(one.words) - _ROWS)
    return {
        "one": one,
        "label": visible(str(one.label)),
        "pieces": pieces,
        "rows": rows,
        "rest": rest,
        "hidden": hidden,
        "opposed": any(one.opposed[:_ROWS]),
    }


def _strength(contribution: float, unit: float) -> str:
    return f"{min(1.0, abs(contribution) / unit):.3f}"
