"""A page of short reviews in which every word is as dark as [CLS] attends to it, one line a model; opens offline."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.files import atomic_path
from attsvm.transformer._pivotal import Review, pivotal_reviews

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #111; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
.review { border-top: 1px solid #ddd; padding: .6rem 0; } .model { color: #555; font-size: 85%; white-space: nowrap; }
.word { border-radius: .2rem; padding: 0 .1rem; } .pivotal { border-bottom: 2px solid #d55e00; }
"""


def write_attention_page(path: str | Path, models: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page.

    Args:
        path: the .html file.
        models: by name what :func:`class_attention` gave; all of the same reviews.
    """
    reviews = pivotal_reviews()
    if not models:
        raise AttsvmError("the page needs the attention of at least one model.")
    for name, probes in models.items():
        if len(probes["attention"]) != len(reviews):
            count = len(probes["attention"])
            raise AttsvmError(f"{name} must have attention for {len(reviews)} reviews, but has it for {count}.")
    body = [_summary(models)]
    for number, review in enumerate(reviews):
        lines = [_line(name, probes, number, review) for name, probes in models.items()]
        kind = "good" if review.label else "bad"
        body.append(
            f'<div class="review"><table aria-label="review {number + 1}, {kind}">{"".join(lines)}</table></div>'
        )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Attention maps</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        "<h1>Where [CLS] looks</h1><p>Last layer, mean over heads. A word is as dark as its share of the attention, "
        "relative to the largest share in its line; the pivotal word is underlined. “Special” is what [CLS] and [SEP] "
        f"take, which have no place in the text.</p>{''.join(body)}</body></html>\n"
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _summary(models: Mapping[str, Mapping[str, Any]]) -> str:
    labels = np.array([review.label for review in pivotal_reviews()])
    rows = []
    for name, probes in models.items():
        right = ((np.asarray(probes["positive"]) > 0.5) == labels).mean()
        share = np.mean(probes["pivotal"])
        first = np.mean([_is_top(probes, number, review) for number, review in enumerate(pivotal_reviews())])
        rows.append(
            f"<tr><td>{html.escape(name)}</td><td>{share:.3f}</td><td>{first:.0%}</td><td>{right:.0%}</td></tr>"
        )
    head = "<tr><th>model</th><th>attention on the pivotal word</th><th>it is the largest</th><th>right</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


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


def _line(name: str, probes: Mapping[str, Any], number: int, review: Review) -> str:
    words, special = _shares(probes, number, review.text)
    top = max(share for _, _, share in words) or 1.0
    parts, at = [], 0
    for start, stop, share in words:
        parts.append(html.escape(review.text[at:start]))
        pivotal = " pivotal" if start < review.stop and review.start < stop else ""
        colour = f"rgba(0,114,178,{0.75 * share / top:.2f})"
        text = html.escape(review.text[start:stop])
        parts.append(f'<span class="word{pivotal}" title="{share:.3f}" style="background:{colour}">{text}</span>')
        at = stop
    parts.append(html.escape(review.text[at:]))
    share, positive = probes["pivotal"][number], probes["positive"][number]
    label = f"{html.escape(name)}<br>pivotal {share:.2f}, special {special:.2f}, good {positive:.0%}"
    return f'<tr><td class="model">{label}</td><td>{"".join(parts)}</td></tr>'
