"""Texts to tokens: split, then do everything else once for each distinct word.

A corpus has a few hundred times fewer distinct words than words. Lower case, stop words, stems and word pieces are all
functions of the word alone, so that only the split reads the texts.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.text._tokens import Tokens, ends, spread
from attsvm.tokenizers import encodings, open_tokenizer, tokenizer_file

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)(?:[\s/][^<>]*)?>")
_TAG_OR_COMMENT = re.compile(rf"{_TAG.pattern}|<!--.*?-->", re.DOTALL)
_LONG_NUMBER = re.compile(r"&#\d{100,};?")
"""An entity beyond all characters; Python does not read a number of thousands of digits."""
_MARKS = r"\u0300-\u036f\u0900-\u0963\u0966-\u0fff"  # accents and vowel signs, which \w leaves out
WORD = re.compile(rf"\w[\w{_MARKS}]*(?:['’]\w[\w{_MARKS}]*|(?<=\d)[./]\d+)*")
"""A word: letters and digits, with apostrophes inside (don't) and 7/10 or 3.5 in one piece."""
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese letters"""
_BLANKS = str.maketrans({c: " " for c in map(chr, range(128)) if not (c.isalnum() or c in "_'./")})
"""ASCII that no word has inside."""

_HIDDEN = [
    *(c for c in range(0xA0) if chr(c) not in "\t\n\r" and not chr(c).isprintable()),
    *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
]
"""Control characters, and those that turn the direction of the text around them"""
_VISIBLE = {c: f"⟨U+{c:04X}⟩" for c in _HIDDEN}


def clean(text: str) -> str:
    """Without HTML tags and comments, and with its entities as characters."""
    return clean_and_count(text)[0]


def clean_and_count(text: str) -> tuple[str, int]:
    """The clean text, and how many tags and comments it had."""
    removed = 0
    if "<" in text:

        def blank(match: re.Match[str]) -> str:
            nonlocal removed
            name = match[1]
            if name is not None and name.lower() not in _elements():
                return match[0]
            removed += 1
            return " "

        # To look for the end of a comment where none follows takes a pass over the rest, for each beginning of one.
        last = text.rindex("-->") + 3 if "-->" in text else 0
        text = _TAG_OR_COMMENT.sub(blank, text[:last]) + _TAG.sub(blank, text[last:])
    if "&" in text:
        text = html.unescape(_LONG_NUMBER.sub("\ufffd", text) if "&#" in text else text)
    return text, removed


def visible(text: str) -> str:
    """Control characters by their numbers, as ⟨U+202E⟩: then none of them hides or turns what stands around it."""
    return text.translate(_VISIBLE)


@cache
def stop_words() -> frozenset[str]:
    """The English words that say little by themselves, negations included."""
    return _listed("stop_words.txt")


@cache
def _elements() -> frozenset[str]:
    """The elements of HTML, old ones included: other words between < and > are text."""
    return _listed("html_elements.txt")


def _listed(file: str) -> frozenset[str]:
    return frozenset(files("attsvm.text").joinpath(file).read_text(encoding="utf-8").split())


def checked_texts(texts: Any, name: str = "texts") -> list[str]:
    """Strings, whatever the container."""
    if isinstance(texts, (str, bytes)):
        raise AttsvmError(f"{name} must be a list of texts, but got one bare string: put it in a list, [text].")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise AttsvmError(
            f"{name} must be a list of texts, but got a {type(texts).__name__}: take its column of texts."
        )
    if hasattr(texts, "to_pylist"):  # a pyarrow column
        texts = texts.to_pylist()
    try:
        texts = list(texts)
    except TypeError as error:
        raise AttsvmError(f"{name} must be a list of texts, but got {type(texts).__name__}.") from error
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            what = "nothing (a missing value)" if text is None or text != text else type(text).__name__
            raise AttsvmError(f"{name} must be strings, but text {place} is {what}.")
    return texts


def without_spaces(texts: Iterable[str]) -> bool:
    """Whether most letters, judged on the beginnings, are of scripts that put no space between words."""
    seen = "".join(text[:1000] for text in islice(texts, 1000))
    return 2 * len(_UNSPACED.findall(seen)) > sum(map(str.isalpha, seen))


@dataclass(frozen=True)
class WordTokenizer:
    """Words in lower case; needs no file.

    Args:
        stop: words to leave out; `stop_words()` are the English ones.
        stem: language of the Snowball stemmer (package snowballstemmer), such as "english".
    """

    stop: frozenset[str] = frozenset()
    stem: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise AttsvmError(f"stop must be a set of words, but got the string {self.stop!r}.")
        object.__setattr__(self, "stop", frozenset(self.stop))
        if self.stem is not None:
            _stemmer(self.stem)

    def __call__(self, texts: Sequence[str], *, workers: int = 0, cache: str | Path | None = None) -> Tokens:
        """Tokens of the texts, with a vocabulary in the order of first use.

        Args:
            workers: processes that split the texts; 0 does it in this one. The answer is the same.
            cache: a folder that keeps what was tokenized before, found again by its content.
        """
        from attsvm.text._corpus import tokenize

        return tokenize(checked_texts(texts), self, workers=workers, cache=cache)

    def pieces(self, chunks: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """Of chunks that have no blank inside: the tokens of one after the other, and how many each has."""
        words, sizes = _words(chunks)
        distinct = dict.fromkeys(words)
        token = dict(zip(distinct, self._tokens(list(distinct))))
        tokens = [token[word] for word in words]
        before = ends(np.fromiter(map(bool, tokens), np.int64, len(tokens)))
        return list(filter(None, tokens)), np.diff(before[ends(sizes)])

    def _tokens(self, words: list[str]) -> list[str]:
        """The token of each word, "" for none."""
        kept = [word if word not in self.stop else "" for word in map(_normalized, words)]
        return kept if self.stem is None else _stemmer(self.stem).stemWords(kept)

    def fingerprint(self) -> str:
        """Tokenizers of equal fingerprint give equal tokens."""
        return f"{type(self).__name__} {sorted(self.stop)} {self.stem}"

    def spans(self, text: str) -> list[tuple[int, int, list[str]]]:
        """Where the words of `text` stand, and the tokens each becomes."""
        found = list(WORD.finditer(text))
        tokens, sizes = self.pieces([match.group() for match in found])
        flow = iter(tokens)
        return [(match.start(), match.end(), list(islice(flow, size))) for match, size in zip(found, sizes)]


@dataclass(frozen=True)
class WordPieceTokenizer(WordTokenizer):
    """Word pieces of a `tokenizer.json` (package tokenizers), such as BERT's, after stop words and stems.

    `file` may be the folder that holds it. Every word is split by itself: for a tokenizer that splits at blanks and
    punctuation, as BERT's does, that is the same as splitting the text. Pieces of punctuation alone are left out.
    """

    file: str | Path = field(default="tokenizer.json", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "file", tokenizer_file(self.file))
        _word_pieces(str(self.file))

    def pieces(self, chunks: Sequence[str]) -> tuple[list[str], np.ndarray]:
        words, sizes = super().pieces(chunks)
        distinct = dict.fromkeys(words)
        encoded = encodings(_word_pieces(str(self.file)), list(distinct), special_tokens=False)
        pieces = [[piece for piece in code.tokens if any(map(str.isalnum, piece))] for code in encoded]
        pieces_of = dict(zip(distinct, pieces))
        before = ends(np.array([len(pieces_of[word]) for word in words], dtype=np.int64))
        return [piece for word in words for piece in pieces_of[word]], np.diff(before[ends(sizes)])

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}"


def paper_tokenizer(file: str | Path | None = None) -> WordTokenizer:
    """The preprocessing of the trained-embeddings paper: no punctuation, no stop words, stems, then BERT's word pieces.

    Without the file of the word pieces the stems themselves are the tokens.
    """
    if file is None:
        return WordTokenizer(stop_words(), "english")
    return WordPieceTokenizer(stop_words(), "english", file=file)


def split_texts(texts: Iterable[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct chunks of the texts, the number of each chunk in turn, and how many chunks each text has.

    A chunk is a word, or words that a full stop without a blank joins: to see which is the business of `pieces`, once
    for each. For ASCII that is faster than to look for words in the text.
    """
    number: defaultdict[str, int] = defaultdict(count().__next__)
    find, look_up = WORD.findall, number.__getitem__
    parts = []
    for text in texts:
        text = clean(text)
        chunks = text.lower().translate(_BLANKS).split() if text.isascii() else find(text)
        parts.append(np.fromiter(map(look_up, chunks), np.int32, len(chunks)))
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return list(number), np.concatenate(parts) if parts else np.empty(0, np.int32), lengths


def expand(chunks: list[str], ids: np.ndarray, lengths: np.ndarray, tokenizer: WordTokenizer) -> Tokens:
    """Chunks replaced by their tokens; equal tokens of different chunks get one number."""
    number: defaultdict[str, int] = defaultdict(count().__next__)
    tokens, sizes = tokenizer.pieces(chunks)
    flat = np.fromiter(map(number.__getitem__, tokens), np.int32, len(tokens))
    starts, sizes_of = ends(sizes)[ids], sizes[ids]
    return Tokens(flat[spread(starts, sizes_of)], ends(sizes_of)[ends(lengths)], list(number))


def _words(chunks: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The words of the chunks in one list (small lists keep the garbage collector busy), and how many each has."""
    words: list[str] = []
    sizes = np.ones(len(chunks), dtype=np.int64)
    for place, chunk in enumerate(chunks):
        word = chunk.strip("'./")  # all that most chunks need
        if word.isalnum():
            words.append(word)
        else:
            found = WORD.findall(word)
            words.extend(found)
            sizes[place] = len(found)
    return words, sizes


def _normalized(word: str) -> str:
    if not word.isascii():
        word = unicodedata.normalize("NFKC", word).replace("’", "'")
    return word.lower().strip("_")


@cache
def _stemmer(language: str) -> Any:
    try:
        import snowballstemmer
    except ImportError as error:
        raise AttsvmError("stemming needs snowballstemmer: pip install 'attsvm[text]'.") from error
    try:
        return snowballstemmer.stemmer(language)
    except KeyError as error:
        known = ", ".join(snowballstemmer.algorithms())
        raise AttsvmError(f"stem must be one of {known}, but got {language!r}.") from error


@cache
def _word_pieces(file: str) -> Any:
    return open_tokenizer(file)
