"""Token sequences of unequal length, as one flat array and the places where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.checks import as_count
from attsvm.errors import AttsvmError


@dataclass(frozen=True, eq=False)
class Tokens:
    """Text `i` is `vocabulary[ids[offsets[i]:offsets[i + 1]]]`; nothing is padded."""

    ids: np.ndarray
    """(total,) int32"""
    offsets: np.ndarray
    """(texts + 1,) int64, from 0 to total"""
    vocabulary: list[str]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Tokens({len(self)} texts, {len(self.ids)} tokens, {len(self.vocabulary)} words)"

    def words(self, text: int) -> list[str]:
        """The tokens of one text, in order."""
        return [self.vocabulary[s] for s in self.ids[self.offsets[text] : self.offsets[text + 1]]]

    @property
    def lengths(self) -> np.ndarray:
        """(texts,) the number of tokens in each text"""
        return np.diff(self.offsets)

    @cached_property
    def text_of(self) -> np.ndarray:
        """(total,) int32: the text that each token stands in"""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)

    def counts(self) -> np.ndarray:
        """(vocabulary,) how often each word occurs in all texts together"""
        return np.bincount(self.ids, minlength=len(self.vocabulary))

    def document_counts(self, times: np.ndarray | None = None) -> np.ndarray:
        """(vocabulary,) in how many texts each word occurs, text `i` counted `times[i]` times"""
        width = max(1, len(self.vocabulary))
        pairs = np.sort(self.text_of.astype(np.int64) * width + self.ids)  # np.unique is several times slower
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        weights = None if times is None else times[pairs // width]
        return np.bincount(pairs % width, weights, minlength=len(self.vocabulary))

    def purge(self, least: int) -> Tokens:
        """Without the words that occur less than `least` times; the others keep their order and get new numbers."""
        kept = np.flatnonzero(self.counts() >= as_count("least", least))
        new = np.full(len(self.vocabulary), -1, dtype=np.int32)
        new[kept] = np.arange(len(kept), dtype=np.int32)
        return self.mapped(new, [self.vocabulary[s] for s in kept])

    def onto(self, vocabulary: Sequence[str]) -> Tokens:
        """Numbered by another vocabulary, such as that of the training texts; other words are dropped."""
        number = {word: s for s, word in enumerate(vocabulary)}
        return self.mapped(np.array([number.get(word, -1) for word in self.vocabulary], np.int32), list(vocabulary))

    def mapped(self, new: np.ndarray, vocabulary: list[str]) -> Tokens:
        """Word `s` becomes `new[s]` of another vocabulary, and is dropped where that is negative."""
        ids = new[self.ids].astype(np.int32, copy=False)
        keep = ids >= 0
        before = np.concatenate([[0], np.cumsum(keep)])
        return Tokens(ids[keep], before[self.offsets], vocabulary)

    def __getitem__(self, texts: Any) -> Tokens:
        """Some of the texts: a slice, an array of numbers or of booleans. The vocabulary stays."""
        chosen = np.arange(len(self))[texts]
        if chosen.ndim != 1:
            raise AttsvmError("texts must be a slice or an array; one text is tokens.words(i).")
        lengths = self.lengths[chosen]
        return Tokens(self.ids[spread(self.offsets[chosen], lengths)], ends(lengths), self.vocabulary)


def ends(lengths: np.ndarray) -> np.ndarray:
    """Offsets of pieces of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, … of each piece, one piece after the other."""
    offsets = ends(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
