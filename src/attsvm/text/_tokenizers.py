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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.text._tokens import Tokens, ends, spread

_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--.*?-->", re.DOTALL)
_MARKS = r"\u0300-\u036f\u0900-\u0963\u0966-\u0fff"  # accents and vowel signs, which \w leaves out
WORD = re.compile(rf"\w[\w{_MARKS}]*(?:['’]\w[\w{_MARKS}]*|(?<=\d)[./]\d+)*")
"""A word: letters and digits, with apostrophes inside (don't) and 7/10 or 3.5 in one piece."""


def clean(text: str) -> str:
    """Without HTML tags, and with its entities as characters."""
    if "<" in text:
        text = _TAG.sub(" ", text)
    return html.unescape(text) if "&" in text else text


@cache
def stop_words() -> frozenset[str]:
    """The English words that say little by themselves, negations included."""
    return frozenset(files("attsvm.text").joinpath("stop_words.txt").read_text(encoding="utf-8").split())


def checked_texts(texts: Any, name: str = "texts") -> list[str]:
    """Strings, whatever the container."""
    if isinstance(texts, (str, bytes)):
        raise AttsvmError(f"{name} must be a list of texts, but got one bare string: put it in a list, [text].")
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

    def pieces(self, words: Sequence[str]) -> list[list[str]]:
        """What becomes of each word as it stands in a text: no token, one or several."""
        lower = [unicodedata.normalize("NFKC", word).lower().replace("’", "'").strip("_") for word in words]
        kept = [word if word not in self.stop else "" for word in lower]
        if self.stem is not None:
            kept = _stemmer(self.stem).stemWords(kept)
        return [[word] if word else [] for word in kept]

    def fingerprint(self) -> str:
        """Tokenizers of equal fingerprint give equal tokens."""
        return f"{type(self).__name__} {sorted(self.stop)} {self.stem}"

    def spans(self, text: str) -> list[tuple[int, int, list[str]]]:
        """Where the words of `text` stand, and the tokens each becomes."""
        found = list(WORD.finditer(text))
        pieces = self.pieces([match.group() for match in found])
        return [(match.start(), match.end(), tokens) for match, tokens in zip(found, pieces)]


@dataclass(frozen=True)
class WordPieceTokenizer(WordTokenizer):
    """Word pieces of a `tokenizer.json` (package tokenizers), such as BERT's, after stop words and stems.

    Every word is split by itself: for a tokenizer that splits at blanks and punctuation, as BERT's does, that is the
    same as splitting the text. Pieces of punctuation alone are left out.
    """

    file: str | Path = field(default="tokenizer.json", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _word_pieces(str(self.file))

    def pieces(self, words: Sequence[str]) -> list[list[str]]:
        kept = [" ".join(word) for word in super().pieces(words)]
        encoded = _word_pieces(str(self.file)).encode_batch(kept, add_special_tokens=False)
        return [[piece for piece in code.tokens if any(map(str.isalnum, piece))] for code in encoded]

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}"


def paper_tokenizer(file: str | Path | None = None) -> WordTokenizer:
    """The preprocessing of the trained-embeddings paper: no punctuation, no stop words, stems, then BERT's word pieces.

    Without the file of the word pieces the stems themselves are the tokens.
    """
    if file is None:
        return WordTokenizer(stop_words(), "english")
    return WordPieceTokenizer(stop_words(), "english", file=file)


def split_words(texts: Iterable[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct words as they stand in the texts, the number of each word of the texts, words a text."""
    number: defaultdict[str, int] = defaultdict(count().__next__)
    find, look_up = WORD.findall, number.__getitem__
    parts = []
    for text in texts:
        words = find(clean(text))
        parts.append(np.fromiter(map(look_up, words), np.int32, len(words)))
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return list(number), np.concatenate(parts) if parts else np.empty(0, np.int32), lengths


def expand(words: list[str], ids: np.ndarray, lengths: np.ndarray, tokenizer: WordTokenizer) -> Tokens:
    """Words replaced by their pieces; equal pieces of different words get one number."""
    number: defaultdict[str, int] = defaultdict(count().__next__)
    pieces = tokenizer.pieces(words)
    flat = np.array([number[piece] for word in pieces for piece in word], dtype=np.int32)
    sizes = np.array([len(word) for word in pieces], dtype=np.int64)
    if not words:
        return Tokens(np.empty(0, np.int32), np.zeros(len(lengths) + 1, np.int64), [])
    chosen = spread(ends(sizes)[ids], sizes[ids])
    return Tokens(flat[chosen], ends(sizes[ids])[ends(lengths)], list(number))


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
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise AttsvmError("word pieces need tokenizers: pip install 'attsvm[text]'.") from error
    if not Path(file).is_file():
        raise AttsvmError(f"file must be a tokenizer.json of word pieces, but {file} is not a file.")
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the package raises Exception itself
        raise AttsvmError(f"{file} is not a readable tokenizer.json: {' '.join(str(error).split())}.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
