"""A page of short reviews in which a word is as dark as [CLS] attends to it, one line per model; opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.pages import render, write_page
from attsvm.transformer._pivotal import Review, pivotal_reviews

_DARKEST = 0.75
"""Opacity of a word with all of the attention: it can still be read."""


def write_attention_page(
    path: str | Path, models: Mapping[str, Mapping[str, Any]], reviews: Sequence[Review] | None = None
) -> None:
    """Write the page.

    Args:
        path: the .html file.
        models: results of :func:`class_attention` by name, all for the same reviews.
        reviews: those reviews; the pivotal ones unless others are given, such as those of `synthetic_probes`.
    """
    reviews = pivotal_reviews() if reviews is None else reviews
    if not models:
        raise AttsvmError("the page needs the attention of at least one model.")
    for name, probes in models.items():
        if len(probes["attention"]) != len(reviews):
            count = len(probes["attention"])
            raise AttsvmError(f"{name} must have attention for {len(reviews)} reviews, but has it for {count}.")
    page = render(
        "transformer/attention.html",
        summary=[_summary(name, probes, reviews) for name, probes in models.items()],
        reviews=[
            {
                "label": review.label,
                "lines": [_line(name, probes, number, review) for name, probes in models.items()],
            }
            for number, review in enumerate(reviews)
        ],
    )
    write_page(path, page)


def _summary(name: str, probes: Mapping[str, Any], reviews: Sequence[Review]) -> dict[str, Any]:
    labels = np.array([review.label for review in reviews])
    return {
        "name": name,
        "share": np.mean(probes["pivotal"]),
        "first": np.mean([_is_top(probes, number, review) for number, review in enumerate(reviews)]),
        "right": ((np.asarray(probes["positive"]) > 0.5) == labels).mean(),
    }


def _shares(probes: Mapping[str, Any], number: int, text: str) -> tuple[list[tuple[int, int, float]], float]:
    """Attention on every stretch of the text, and on what is not in it. Pieces of one word are joined."""
    words: list[tuple[int, int, float]] = []
    special = 0.0
    for (start, stop), share in zip(probes["spans"][number], probes["attention"][number]):
        if start == stop:
            special += share
        elif words and words[-1][1] == start and text[words[-1][0] : stop].isalnum():
            words[-1] = (words[-1][0], stop, words[-1][2] + share)
        else:
            words.append((start, stop, share))
    return words, special


def _is_top(probes: Mapping[str, Any], number: int, review: Review) -> bool:
    words, _ = _shares(probes, number, review.text)
    start, stop, _ = max(words, key=lambda word: word[2])
    return start < review.stop and review.start < stop


def _line(name: str, probes: Mapping[str, Any], number: int, review: Review) -> dict[str, Any]:
    words, special = _shares(probes, number, review.text)
    parts: list[dict[str, Any]] = []
    at = 0
    for start, stop, share in words:
        pivotal = start < review.stop and review.start < stop
        parts.append({"text": review.text[at:start], "share": None})
        parts.append({"text": review.text[start:stop], "share": share, "pivotal": pivotal, "colour": _DARKEST * share})
        at = stop
    parts.append({"text": review.text[at:], "share": None})
    share, positive = probes["pivotal"][number], probes["positive"][number]
    return {"name": name, "parts": parts, "share": share, "special": special, "positive": positive}
