"""A whole corpus: in parallel, and from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from attsvm.checks import as_count
from attsvm.files import is_file, make_folder, read_arrays, write_arrays
from attsvm.schema import Array, Schema
from attsvm.text._tokenizers import WordTokenizer, expand, split_texts
from attsvm.text._tokens import Tokens

_SCHEMA = Schema(
    "attsvm-tokens/1",
    "tokens of a corpus",
    {
        "ids": Array("whole", "tokens", least=0),
        "offsets": Array("whole", "texts+1", least=0),
        "vocabulary": Array("whole", "bytes", least=0, most=255),
    },
)
_CHUNK = 2_000_000
"""Characters handed to a worker at a time."""


def tokenize(texts: list[str], tokenizer: WordTokenizer, *, workers: int, cache: str | Path | None) -> Tokens:
    """See `WordTokenizer.__call__`."""
    workers = as_count("workers", workers, least=0)
    path = None
    if cache is not None:
        path = Path(cache) / f"{_content_hash(texts, tokenizer)}.npz"
        found = _read(path)
        if found is not None:
            return found
    words, ids, lengths = split_texts(texts) if workers == 0 else _split_in_parallel(texts, workers)
    tokens = expand(words, ids, lengths, tokenizer)
    if path is not None:
        _write(path, tokens)
    return tokens


def length_between(texts: Sequence[str], least: int, most: int) -> np.ndarray:
    """(texts,) bool: is the text that many characters long? The paper takes Yelp reviews of 1000 to 1500."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return (lengths >= least) & (lengths <= most)


def _split_in_parallel(texts: list[str], workers: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Chunks are split apart and numbered again in order, so that the numbers are those of a single process."""
    characters = np.cumsum([len(text) for text in texts])
    cuts = [0, *(np.flatnonzero(np.diff(characters // _CHUNK)) + 1), len(texts)]
    chunks = [texts[start:stop] for start, stop in pairwise(cuts)]
    number: dict[str, int] = {}
    parts = []
    # spawn: a forked copy of a process with torch's threads may hang.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for words, ids, lengths in pool.map(split_texts, chunks):
            new = np.array([number.setdefault(word, len(number)) for word in words], dtype=np.int32)
            parts.append((new[ids] if len(words) else ids, lengths))
    return list(number), np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])


def _content_hash(texts: list[str], tokenizer: WordTokenizer) -> str:
    digest = hashlib.sha256(f"{_SCHEMA.format} {tokenizer.fingerprint()}".encode())
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()[:32]


def _write(path: Path, tokens: Tokens) -> None:
    make_folder(path.parent)
    words = np.frombuffer("\n".join(tokens.vocabulary).encode(), dtype=np.uint8)
    arrays = {"ids": tokens.ids, "offsets": tokens.offsets, "vocabulary": words}
    write_arrays(path, arrays, {"format": _SCHEMA.format})


def _read(path: Path) -> Tokens | None:
    """What is in the cache; what is not, or is damaged, is computed again."""
    if not is_file(path):
        return None
    try:
        arrays, _ = read_arrays(path, _SCHEMA)
        words = arrays["vocabulary"].astype(np.uint8).tobytes().decode()
    except ValueError:  # AttsvmError too
        return None
    vocabulary, offsets = words.split("\n") if words else [], arrays["offsets"]
    rising = offsets[0] == 0 and offsets[-1] == len(arrays["ids"]) and bool((np.diff(offsets) >= 0).all())
    if not rising or arrays["ids"].max(initial=-1) >= len(vocabulary):
        return None
    return Tokens(arrays["ids"], offsets, vocabulary)
