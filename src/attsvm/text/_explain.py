"""What a model says of words, and of the words of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.checks import as_count
from attsvm.errors import AttsvmError
from attsvm.text._page import explanations_html, words_html, write_page
from attsvm.text._tokenizers import clean_and_count, visible

if TYPE_CHECKING:
    from attsvm.text._classifier import AttentionTextClassifier
    from attsvm.text._features import Found


@dataclass(frozen=True, eq=False)
class Words:
    """The words and n-grams of a model, with two numbers each: how much it is attended to, which way it points.

    They are sorted by influence, |direction| e^importance √(texts that have the word).
    """

    word: list[str]
    importance: np.ndarray
    """(words,) a: the attention to a word is in proportion to e^a"""
    direction: np.ndarray
    """(words, classes) b: the score that the word stands for"""
    texts: np.ndarray
    """(words,) how many training texts have it"""
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.word)

    def __repr__(self) -> str:
        return f"Words({len(self)}: {', '.join(self.word[:8])}, …)"

    def __getitem__(self, word: str) -> dict[str, Any]:
        try:
            return self._row(self.word.index(word))
        except ValueError as error:
            raise KeyError(f"{word!r} is not among the words of the model") from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._row, range(len(self)))

    def influence(self) -> np.ndarray:
        """(words, classes) direction · e^importance · √texts"""
        return self.direction * (np.exp(self.importance) * np.sqrt(self.texts))[:, None]

    def top(self, label: Any, count: int = 20) -> list[dict[str, Any]]:
        """The words that speak most for a class."""
        influence = self.influence()[:, _place(self.classes, label)]
        order = np.argsort(-influence, kind="stable")[: as_count("count", count, 0)]
        return [self._row(s) for s in order if influence[s] > 0]

    def _row(self, s: int) -> dict[str, Any]:
        directions = {label: float(b) for label, b in zip(self.classes.tolist(), self.direction[s])}
        return {
            "word": self.word[s],
            "importance": float(self.importance[s]),
            "direction": directions,
            "texts": int(self.texts[s]),
        }

    def _repr_html_(self) -> str:
        return words_html(self)


_SHOWN = 10
"""Words of an explanation that is printed."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a text gets a class: `bias + contribution.sum() == score`.

    Words are those of the text that the model knows, n-grams included, sorted by the size of their contribution.
    """

    text: str
    label: Any
    probability: float
    score: float
    """For two classes the log odds of `label`, else its logit"""
    bias: float
    words: list[str]
    attention: np.ndarray
    """(words,) sums to 1 with `cls_attention`"""
    direction: np.ndarray
    contribution: np.ndarray
    """(words,) attention · direction"""
    effect: np.ndarray
    """(words,) what the score loses if the model does not know the word; the other words then share its attention"""
    spans: list[tuple[int, int, float]]
    """Words of the text: start, end and share of the contributions; they too sum to score − bias"""
    tags: int
    """HTML tags and comments that were taken out of the text"""

    @property
    def opposed(self) -> np.ndarray:
        """(words,) bool: the word speaks one way, and leaving it out moves the score that way too.

        It speaks for the class, but less than the rest of the text does; or against it, but less than the rest.
        """
        rounding = 1e-6 * np.abs(self.contribution).sum()
        seen = np.minimum(np.abs(self.contribution), np.abs(self.effect)) > rounding
        return seen & (self.contribution * self.effect < 0)

    @property
    def cls_attention(self) -> float:
        """What is left for the ⟨cls⟩ token, that is for no word."""
        return 1 - float(self.attention.sum())

    @property
    def selected(self) -> list[str]:
        """The words that are attended to more than they would be if all were alike, most attended first."""
        order = np.argsort(-self.attention, kind="stable")
        return [self.words[s] for s in order if self.attention[s] > 1 / (1 + len(self.words))]

    def __str__(self) -> str:
        label = visible(str(self.label))
        lines = [f"{label}  probability {self.probability:.3f}, score {self.score:+.3f}, bias {self.bias:+.3f}"]
        if not self.words:
            lines.append("  no word that the model knows: the bias alone decides")
        for word, attention, direction, contribution, effect, opposed in zip(
            self.words[:_SHOWN], self.attention, self.direction, self.contribution, self.effect, self.opposed
        ):
            without = f" (but leaving it out changes the score by {-effect:+.3f})" if opposed else ""
            lines.append(
                f"  {contribution:+.3f} = attention {attention:.3f} × direction {direction:+.2f}  {word}{without}"
            )
        if len(self.words) > _SHOWN:
            lines.append(f"  {self.contribution[_SHOWN:].sum():+.3f} = {len(self.words) - _SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return Explanations([self])._repr_html_()


class Explanations(list[Explanation]):
    """Explanations of several texts; they show themselves in a notebook."""

    def _repr_html_(self) -> str:
        return explanations_html(self)

    def save(self, path: str | Path) -> None:
        """One HTML page that needs nothing else."""
        write_page(self, Path(path))


def explain(model: AttentionTextClassifier, texts: list[str], label: Any) -> Explanations:
    """See `AttentionTextClassifier.explain`."""
    tokens = model.tokenizer_(texts)
    found = model.features_.places(tokens)
    matrix = model.features_.matrix(tokens)
    attention = model.attention_.attention(matrix)
    direction, bias = two_sided(model.attention_.b), two_sided(model.attention_.bias[None])[0]
    probability = model.predict_proba(texts)
    # As the tokenizer did: once, for "&amp;lt;" is not "<".
    cleaned = [clean_and_count(text) for text in texts]
    texts = [text for text, _ in cleaned]
    chosen = probability.argmax(1) if label is None else np.full(len(texts), _place(model.classes_, label))
    names = model.features_.names()
    explanations = Explanations()
    for i, k in enumerate(chosen):
        row = slice(matrix.indptr[i], matrix.indptr[i + 1])
        columns, weight = matrix.indices[row], attention.data[row]
        contribution = weight * direction[columns, k]
        # Without s the mean m of the directions is (m − α_s b_s) / (1 − α_s), less by α_s (b_s − m) / (1 − α_s).
        effect = weight * (direction[columns, k] - contribution.sum()) / (1 - weight)
        order = np.argsort(-np.abs(contribution), kind="stable")
        start, stop = int(tokens.offsets[i]), int(tokens.offsets[i + 1])
        shares = _shares(found, start, stop, columns, contribution)
        explanations.append(
            Explanation(
                text=texts[i],
                label=model.classes_[k],
                probability=float(probability[i, k]),
                score=float(bias[k] + contribution[order].sum()),  # in this order, so that it adds up to the last bit
                bias=float(bias[k]),
                words=[names[s] for s in columns[order]],
                attention=weight[order],
                direction=direction[columns[order], k],
                contribution=contribution[order],
                effect=effect[order],
                spans=_spans(model.tokenizer_.spans(texts[i]), shares),
                tags=cleaned[i][1],
            )
        )
    return explanations


def two_sided(b: np.ndarray) -> np.ndarray:
    """(…, classes) from (…, outputs): the one output of two classes speaks for the second and against the first."""
    return np.hstack([-b, b]) if b.shape[1] == 1 else b


def _place(classes: np.ndarray, label: Any) -> int:
    found = np.flatnonzero(classes == label)
    if not len(found):
        raise AttsvmError(f"label must be one of {classes.tolist()}, but got {label!r}.")
    return int(found[0])


def _shares(found: list[Found], start: int, stop: int, known: np.ndarray, contribution: np.ndarray) -> np.ndarray:
    """(tokens of the text,) the contributions of the `known` columns, spread over occurrences and their tokens."""
    shares = np.zeros(stop - start)
    for size, at, columns in found:
        inside = slice(*np.searchsorted(at, [start, stop]))
        place = np.searchsorted(known, columns[inside])
        times = np.bincount(place, minlength=len(known))
        share = contribution[place] / (times[place] * size)
        for step in range(size):
            np.add.at(shares, at[inside] - start + step, share)
    return shares


def _spans(spans: list[tuple[int, int, list[str]]], shares: np.ndarray) -> list[tuple[int, int, float]]:
    filled, token = [], 0
    for start, end, pieces in spans:
        filled.append((start, end, float(shares[token : token + len(pieces)].sum())))
        token += len(pieces)
    return filled
