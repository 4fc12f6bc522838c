"""Reviews as labelled sequences, prepared as in Appendix E of trained-embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attsvm.embeddings._sequences import Sequences
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, one_line, read_arrays, write_arrays
from attsvm.schema import Array, Schema

_SCHEMA = Schema(
    "attsvm-reviews/1",
    "prepared reviews (Reviews.save)",
    {
        "ids": Array("whole", "tokens", least=0),
        "offsets": Array("whole", "texts+1", least=0),
        "Y": Array("whole", "texts", least=-1, most=1),
        "vocabulary": Array("whole", "bytes", least=0, most=255),
    },
    former=("attsvm reviews 1",),
)
LEAST = 50
"""Tokens that appear less often are purged."""
YELP = (1000, 1500)
"""Characters of the Yelp reviews that are kept."""


@dataclass(frozen=True, eq=False)
class Reviews:
    """Sequences, and the word of every token number. Reading its file needs neither pyarrow nor a tokenizer."""

    sequences: Sequences
    vocabulary: list[str]

    def save(self, path: PathLike) -> None:
        """Write a .npz or .safetensors file."""
        data = self.sequences
        words = np.frombuffer("\n".join(self.vocabulary).encode(), dtype=np.uint8)
        arrays = {"ids": data.ids.int(), "offsets": data.offsets, "Y": data.Y.to(torch.int8), "vocabulary": words}
        write_arrays(path, arrays, {"format": _SCHEMA.format})

    @classmethod
    def load(cls, path: PathLike) -> Reviews:
        arrays, _ = read_arrays(path, _SCHEMA)
        try:
            vocabulary = arrays["vocabulary"].astype(np.uint8).tobytes().decode().split("\n")
            sequences = Sequences.of(arrays["ids"], arrays["offsets"], arrays["Y"], len(vocabulary))
        except ValueError as error:  # AttsvmError too
            raise AttsvmError(f"{path}: {one_line(error)}") from error
        return cls(sequences, vocabulary)


def read_reviews(
    source: str | Path,
    *,
    word_pieces: str | Path | None = None,
    characters: tuple[int, int] | None = None,
    balanced: bool = False,
    least: int = LEAST,
    workers: int = 0,
) -> Reviews:
    """Reviews from a table with columns text and label, a folder of parquet files, or prepared ones (.npz).

    Labels are 0 and 1 (−1, which takes no side, is dropped), or stars 0 … 4, of which the middle is dropped; others are
    refused. Texts lose punctuation and stop words. Words become stems, and then BERT's word pieces if `word_pieces`
    names its tokenizer.json. `characters` bounds the length of a text. `balanced` draws as many texts of the larger
    class as the smaller one has. Tokens seen fewer than `least` times are purged.
    """
    if Path(source).suffix in (".npz", ".safetensors"):
        return Reviews.load(source)
    from attsvm.text import length_between, paper_tokenizer, read_texts

    folder = Path(source)
    files = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [folder]
    if not files:
        raise AttsvmError(f"{source} must hold parquet files, but it has none.")
    texts, labels = [], []
    for file in files:
        table = read_texts(file)
        texts += table.texts
        labels.append(table.labels)
    Y = _signs(np.concatenate(labels), source)
    kept = Y != 0
    if characters is not None:
        kept &= length_between(texts, *characters)
    chosen = _balance(np.flatnonzero(kept), Y) if balanced else np.flatnonzero(kept)
    tokens = paper_tokenizer(word_pieces)([texts[i] for i in chosen], workers=workers).purge(least)
    there = tokens.lengths > 0
    if not there.any():
        raise AttsvmError(f"{source} has no token that appears {least} times in its reviews.")
    tokens = tokens[there]
    sequences = Sequences.of(tokens.ids, tokens.offsets, Y[chosen][there], len(tokens.vocabulary))
    return Reviews(sequences, tokens.vocabulary)


def paper_reviews(name: str, source: str | Path, word_pieces: str | Path | None = None) -> Reviews:
    """The data of Figures 1, 3 and 4: "imdb" whole; of "yelp" the texts of 1000 to 1500 characters, balanced.

    The paper does not say that it balances. Where one class is larger, (37) is not 0 for a token that says nothing.
    """
    if name == "yelp":
        return read_reviews(source, word_pieces=word_pieces, characters=YELP, balanced=True)
    return read_reviews(source, word_pieces=word_pieces)


def _balance(chosen: np.ndarray, Y: np.ndarray) -> np.ndarray:
    stream = np.random.default_rng(0)
    classes = [stream.permutation(chosen[Y[chosen] == y]) for y in (-1, 1)]
    smaller = min(map(len, classes))
    return np.sort(np.concatenate([texts[:smaller] for texts in classes]))


def _signs(labels: np.ndarray, source: PathLike) -> np.ndarray:
    """±1, and 0 for reviews that take no side."""
    if labels.dtype.kind not in "iub":
        raise AttsvmError(f"{source} must have whole numbers as labels, but they are {labels.dtype}.")
    values = set(np.unique(labels).tolist())
    if {0, 1} <= values <= {-1, 0, 1}:
        return np.where(labels == -1, 0, 2 * labels.astype(np.int64) - 1)
    if {0, 4} <= values <= set(range(5)):
        return np.sign(labels.astype(np.int64) - 2)
    raise AttsvmError(f"{source} must have labels 0 and 1, or stars 0 to 4, but it has {sorted(values)[:8]}.")
