"""Words and n-grams of texts as the columns of a sparse matrix of damped counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.text._tokens import Tokens, ends

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_MASK = (1 << 22) - 1
_SHARED = -2
"""Several keys have these last bits: look for the key itself."""


@dataclass(frozen=True, eq=False)
class Features:
    """Column `s` is a word for s < len(words); a longer one is an earlier column and a word after it.

    `prefix` and `last` hold these two for the n-grams, level by level, sorted within a level.
    """

    words: list[str]
    prefix: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    last: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    levels: tuple[int, ...] = ()
    """Where the n-grams of each length begin, and where the last ones end, for 2, 3, … words"""

    def __len__(self) -> int:
        return len(self.words) + len(self.last)

    def names(self) -> list[str]:
        """Every column as it reads."""
        names = list(self.words)
        for before, word in zip(self.prefix, self.last):
            names.append(f"{names[before]} {self.words[word]}")
        return names

    def places(self, tokens: Tokens) -> list[tuple[np.ndarray, np.ndarray]]:
        """For 1, 2, … words: the places in `tokens.ids` where a column of that length begins, and the columns."""
        number = {word: s for s, word in enumerate(self.words)}
        ids = np.array([number.get(word, -1) for word in tokens.vocabulary] or [-1], dtype=np.int32)[tokens.ids]
        found = [_known(ids)]
        for size, (start, keys, slots) in enumerate(self._tables, start=2):
            at, key = _longer(tokens, ids, found[-1], size, len(self.words))
            place = slots[key & _MASK]
            shared = np.flatnonzero(place == _SHARED)
            place[shared] = np.minimum(np.searchsorted(keys, key[shared]), len(keys) - 1)
            same = np.flatnonzero(place >= 0)
            same = same[keys[place[same]] == key[same]]
            found.append((at[same], place[same] + np.int32(start + len(self.words))))
        return found

    @cached_property
    def _tables(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """For 2, 3, … words: the first column, the sorted keys, and the place of a key by its last bits."""
        tables = []
        for start, stop in pairwise(self.levels):
            keys = _keys(self.prefix[start:stop], self.last[start:stop], len(self.words))
            slots = np.full(_MASK + 1, -1, dtype=np.int32)
            slots[keys & _MASK] = np.arange(len(keys), dtype=np.int32)
            overwritten = slots[keys & _MASK] != np.arange(len(keys))
            slots[keys[overwritten] & _MASK] = _SHARED
            tables.append((start, keys, slots))
        return tables

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_tables"}  # quickly made again

    def matrix(self, tokens: Tokens) -> csr_matrix:
        """(texts, columns) 1 + log of how often a column occurs in a text."""
        return damped_counts(self.places(tokens), tokens, len(self))


def learn_features(tokens: Tokens, ngrams: int, least: int) -> tuple[Features, csr_matrix]:
    """The words and n-grams of up to `ngrams` words that stand in at least `least` texts, and their matrix."""
    kept = np.flatnonzero(tokens.document_counts() >= least)
    if not len(kept):
        raise AttsvmError(
            f"texts must have words that stand in at least {least} of them, but have none: lower min_texts, or see "
            "whether the texts are empty."
        )
    features = Features([tokens.vocabulary[s] for s in kept])
    new = np.full(len(tokens.vocabulary), -1, dtype=np.int32)
    new[kept] = np.arange(len(kept), dtype=np.int32)
    ids = new[tokens.ids]
    found = [_known(ids)]
    prefix, last, levels = [features.prefix], [features.last], [0]
    for size in range(2, ngrams + 1):
        at, key = _longer(tokens, ids, found[-1], size, len(kept))
        order = np.argsort(key, kind="stable")  # stable: the texts of equal keys stay in order
        sorted_key, text = key[order], tokens.text_of[at[order]]
        first = np.diff(sorted_key, prepend=-1) != 0
        column = np.cumsum(first) - 1
        distinct = first | (np.diff(text, prepend=-1) != 0)
        frequent = np.bincount(column[distinct]) >= least
        number = np.where(frequent, np.cumsum(frequent) - 1 + levels[-1] + len(kept), -1).astype(np.int32)
        columns = np.empty(len(key), dtype=np.int32)
        columns[order] = number[column]
        keys = sorted_key[first][frequent]
        prefix.append((keys // len(kept)).astype(np.int32))
        last.append((keys % len(kept)).astype(np.int32))
        levels.append(levels[-1] + len(keys))
        found.append((at[columns >= 0], columns[columns >= 0]))
    features = Features(features.words, np.concatenate(prefix), np.concatenate(last), tuple(levels))
    return features, damped_counts(found, tokens, len(features))


def damped_counts(found: list[tuple[np.ndarray, np.ndarray]], tokens: Tokens, columns: int) -> csr_matrix:
    """The matrix of the columns found at these places."""
    from scipy.sparse import csr_matrix

    ids = found[0][1] if len(found) == 1 else np.concatenate([columns for _, columns in found])
    texts = np.concatenate([tokens.text_of[at] for at, _ in found])
    lengths = np.bincount(texts, minlength=len(tokens))
    if len(found) > 1:
        ids = ids[np.argsort(texts, kind="stable")]
    matrix = csr_matrix((np.ones(len(ids), np.float32), ids, ends(lengths)), shape=(len(tokens), columns))
    matrix.sum_duplicates()
    matrix.data = 1 + np.log(matrix.data)
    return matrix


def _known(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at = np.flatnonzero(ids >= 0)
    return at, ids[at]


def _longer(
    tokens: Tokens, ids: np.ndarray, shorter: tuple[np.ndarray, np.ndarray], size: int, words: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where a known column is followed by a known word of the same text, and the key of the two."""
    at, columns = shorter
    inside = at + size <= tokens.offsets[1:][tokens.text_of[at]]
    at, columns = at[inside], columns[inside]
    word = ids[at + size - 1]
    known = word >= 0
    return at[known], _keys(columns[known], word[known], words)


def _keys(prefix: np.ndarray, last: np.ndarray, words: int) -> np.ndarray:
    return prefix.astype(np.int64) * words + last
