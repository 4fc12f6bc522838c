"""Words, n-grams and parts of words as the columns of a sparse matrix of damped counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.text._tokens import Tokens, ends, spread

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_MASK = (1 << 22) - 1
_SHARED = -2
"""Several keys have these last bits: look for the key itself."""
_SHORTEST_PART = 3


class Found(NamedTuple):
    """Columns that cover `size` words: the places in `tokens.ids` where they begin, in order, and the columns."""

    size: int
    at: np.ndarray
    columns: np.ndarray


@dataclass(frozen=True, eq=False)
class Features:
    """Column `s` is a word for s < len(words); an n-gram is an earlier column and a word after it. Parts come last.

    `prefix` and `last` hold these two for the n-grams, level by level, sorted within a level.
    """

    words: list[str]
    prefix: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    last: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    levels: tuple[int, ...] = ()
    """Where the n-grams of each length begin, and where the last ones end, for 2, 3, … words"""
    parts: list[str] = field(default_factory=list)
    """Of words: un-, -ing, -elie-"""

    def __len__(self) -> int:
        return len(self.words) + len(self.last) + len(self.parts)

    def names(self) -> list[str]:
        """Every column as it reads."""
        names = list(self.words)
        for before, word in zip(self.prefix, self.last):
            names.append(f"{names[before]} {self.words[word]}")
        return names + self.parts

    def places(self, tokens: Tokens) -> list[Found]:
        """For 1, 2, … words, then for the parts."""
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
            found.append(Found(size, at[same], place[same] + np.int32(start + len(self.words))))
        if self.parts:
            found.append(self._places_of_parts(tokens))
        return found

    def _places_of_parts(self, tokens: Tokens) -> Found:
        first = len(self.words) + len(self.last)
        number = {part: first + s for s, part in enumerate(self.parts)}
        known = [
            [number[part] for part in parts_of(word, self._longest) if part in number] for word in tokens.vocabulary
        ]
        return _found_parts(tokens, known)

    @cached_property
    def _longest(self) -> int:
        """Of the parts; a hyphen stands for letters, its absence for an end of the word."""
        return max(len(part.strip("-")) + 2 - part.startswith("-") - part.endswith("-") for part in self.parts)

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


def learn_features(
    tokens: Tokens, ngrams: int, least: int, characters: int = 0, times: np.ndarray | None = None
) -> tuple[Features, csr_matrix]:
    """What stands in at least `least` texts, and its matrix: words, n-grams of up to `ngrams` words, and parts of words
    of up to `characters` characters.

    Text `i` counts as `times[i]` texts.
    """
    if times is not None and (times == 1).all():
        times = None  # counts without weights are faster
    kept = np.flatnonzero(tokens.document_counts(times) >= least)
    if not len(kept):
        if not len(tokens.ids):
            raise AttsvmError("texts must have words, but have none: see whether they are empty, or signs alone.")
        raise AttsvmError(
            f"texts must have words that stand in at least {least} of them, but none does: lower min_texts."
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
        frequent = np.bincount(column[distinct], None if times is None else times[text[distinct]]) >= least
        number = np.where(frequent, np.cumsum(frequent) - 1 + levels[-1] + len(kept), -1).astype(np.int32)
        columns = np.empty(len(key), dtype=np.int32)
        columns[order] = number[column]
        keys = sorted_key[first][frequent]
        prefix.append((keys // len(kept)).astype(np.int32))
        last.append((keys % len(kept)).astype(np.int32))
        levels.append(levels[-1] + len(keys))
        found.append(Found(size, at[columns >= 0], columns[columns >= 0]))
    parts = _learn_parts(tokens, least, characters, times) if characters else []
    features = Features(features.words, np.concatenate(prefix), np.concatenate(last), tuple(levels), parts)
    if parts:
        found.append(features._places_of_parts(tokens))
    return features, damped_counts(found, tokens, len(features))


def _learn_parts(tokens: Tokens, least: int, characters: int, times: np.ndarray | None) -> list[str]:
    number: dict[str, int] = {}
    of_word = [
        [number.setdefault(part, len(number)) for part in parts_of(word, characters)] for word in tokens.vocabulary
    ]
    _, at, columns = _found_parts(tokens, of_word)
    lengths = np.bincount(tokens.text_of[at], minlength=len(tokens))
    names = list(number)
    frequent = Tokens(columns, ends(lengths), names).document_counts(times) >= least
    return [names[s] for s in np.flatnonzero(frequent)]


def parts_of(word: str, characters: int) -> list[str]:
    """Runs of 3 to `characters` characters of a word, its two ends counted as one each.

    >>> parts_of("film", 4)
    ['fi-', '-fil-', '-ilm-', '-lm', 'fil-', '-film-', '-ilm']
    """
    marked = f"\0{word}\0"
    runs = [
        marked[start : start + size]
        for size in range(_SHORTEST_PART, characters + 1)
        for start in range(len(marked) - size + 1)
        if size < len(marked)  # the whole is the word itself
    ]
    return [f"{'' if run[0] == chr(0) else '-'}{run.strip(chr(0))}{'' if run[-1] == chr(0) else '-'}" for run in runs]


def _found_parts(tokens: Tokens, of_word: list[list[int]]) -> Found:
    """Where the parts of each word of the vocabulary stand."""
    sizes = np.array([len(parts) for parts in of_word], dtype=np.int64)
    flat = np.fromiter((part for parts in of_word for part in parts), np.int32, int(sizes.sum()))
    lengths = sizes[tokens.ids]
    at = np.repeat(np.arange(len(tokens.ids)), lengths)
    return Found(1, at, flat[spread(ends(sizes)[tokens.ids], lengths)])


def damped_counts(found: list[Found], tokens: Tokens, columns: int) -> csr_matrix:
    """The matrix of the columns found at these places."""
    from scipy.sparse import csr_matrix

    ids = found[0].columns if len(found) == 1 else np.concatenate([one.columns for one in found])
    texts = np.concatenate([tokens.text_of[one.at] for one in found])
    lengths = np.bincount(texts, minlength=len(tokens))
    if len(found) > 1:
        ids = ids[np.argsort(texts, kind="stable")]
    matrix = csr_matrix((np.ones(len(ids), np.float32), ids, ends(lengths)), shape=(len(tokens), columns))
    matrix.sum_duplicates()
    matrix.data = 1 + np.log(matrix.data)
    return matrix


def _known(ids: np.ndarray) -> Found:
    at = np.flatnonzero(ids >= 0)
    return Found(1, at, ids[at])


def _longer(tokens: Tokens, ids: np.ndarray, shorter: Found, size: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a known column is followed by a known word of the same text, and the key of the two."""
    _, at, columns = shorter
    inside = at + size <= tokens.offsets[1:][tokens.text_of[at]]
    at, columns = at[inside], columns[inside]
    word = ids[at + size - 1]
    known = word >= 0
    return at[known], _keys(columns[known], word[known], words)


def _keys(prefix: np.ndarray, last: np.ndarray, words: int) -> np.ndarray:
    return prefix.astype(np.int64) * words + last
