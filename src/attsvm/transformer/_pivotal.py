"""Short reviews with one word that decides: where should attention look, if not there?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.files import read_arrays, write_arrays
from attsvm.schema import Array, Schema
from attsvm.tokenizers import encodings, open_tokenizer, vocabulary_digest

_SCHEMA = Schema(
    "attsvm-probes/1",
    "tokenized probes",
    {
        "tokens": Array("whole", "n longest", least=0),
        "lengths": Array("whole", "n", least=1),
        "pivotal": Array("bool", "n longest"),
        "spans": Array("whole", "n longest 2", least=0),
    },
    {"tokenizer?": str},
    former=("attsvm probes 1",),
)


@dataclass(frozen=True)
class Review:
    """A review; text[start:stop] is its pivotal word, label 1 is a good review."""

    text: str
    start: int
    stop: int
    label: int

    @property
    def word(self) -> str:
        return self.text[self.start : self.stop]


@cache
def pivotal_reviews() -> tuple[Review, ...]:
    """The 120 reviews of `pivotal.txt`, 60 good ones and 60 bad ones, with the word between stars."""
    found = []
    for line in files("attsvm.transformer").joinpath("pivotal.txt").read_text(encoding="utf-8").splitlines():
        before, word, after = line[2:].split("*")
        found.append(Review(before + word + after, len(before), len(before) + len(word), int(line[0] == "+")))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Probes:
    """Tokenized reviews: `pivotal[i, t]` says whether token t belongs to the word that decides review i."""

    tokens: Tensor
    """(n, longest) int64, 0 behind the end"""
    lengths: Tensor
    """(n,) int64"""
    pivotal: Tensor
    """(n, longest) bool"""
    spans: Tensor
    """(n, longest, 2) int64: first character and the one behind the last; both 0 for special tokens"""
    tokenizer: str = ""
    """digest of the vocabulary, where it is known"""

    def save(self, path: str | Path) -> None:
        """As .npz, for a machine without the tokenizer."""
        facts = {"format": _SCHEMA.format, "tokenizer": self.tokenizer}
        write_arrays(path, {name: getattr(self, name) for name in _SCHEMA.arrays}, facts)


def encode_probes(tokenizer: str | Path) -> Probes:
    """The pivotal reviews in the tokens of a tokenizer."""
    opened = open_tokenizer(tokenizer)
    codes = list(encodings(opened, [review.text for review in pivotal_reviews()]))
    longest = max(len(code.ids) for code in codes)
    tokens, pivotal = np.zeros((len(codes), longest), np.int64), np.zeros((len(codes), longest), bool)
    spans = np.zeros((len(codes), longest, 2), np.int64)
    for row, (code, review) in enumerate(zip(codes, pivotal_reviews())):
        tokens[row, : len(code.ids)] = code.ids
        inside = [review.start <= a and b <= review.stop and a < b for a, b in code.offsets]
        pivotal[row, : len(inside)] = inside
        spans[row, : len(inside)] = code.offsets
    lengths = torch.tensor([len(code.ids) for code in codes])
    arrays = (torch.from_numpy(tokens), lengths, torch.from_numpy(pivotal), torch.from_numpy(spans))
    return Probes(*arrays, tokenizer=vocabulary_digest(opened))


def load_probes(path: str | Path) -> Probes:
    """What `Probes.save` wrote."""
    arrays, facts = read_arrays(path, _SCHEMA)
    n, longest = arrays["tokens"].shape
    if n != len(pivotal_reviews()) or arrays["lengths"].max() > longest:
        raise AttsvmError(f"{path} must hold the {len(pivotal_reviews())} reviews, but it holds others.")
    tensors = (torch.from_numpy(arrays[name]) for name in _SCHEMA.arrays)
    return Probes(*tensors, tokenizer=facts.get("tokenizer", ""))
