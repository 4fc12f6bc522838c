"""Shapes of models and batches, and what they are trained on: streams of tokens, labelled texts, or images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from attsvm.errors import AttsvmError

VOCABULARY = 30592  # BERT's 30,522 word pieces, to a multiple of 64 for the matrix units
PADDING = 2  # around images, of which a part is cut out
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Shape:
    """The model and its batches."""

    width: int = 384
    layers: int = 6
    heads: int = 6
    length: int = 256  # of a window in tokens, or of an image's side
    batch: int = 64
    every: int = 50
    vocabulary: int = VOCABULARY
    dropout: float = 0.0
    classes: int = 0  # 0: a language model
    patch: int = 0  # of images; 0: texts
    most_evaluated: int = 10**9  # tokens of a split


CHARACTERS = Shape(64, 2, 2, length=64, batch=32, every=25, vocabulary=128, most_evaluated=200_000)
SHAPES = {
    "imdb": Shape(),
    "wikitext-2": Shape(width=256, layers=4, heads=4, every=25, vocabulary=4096, dropout=0.1),
    "cifar10-16": Shape(256, 4, 4, length=16, batch=256, every=50, dropout=0.1, classes=10, patch=2),
    "wikitext-characters": CHARACTERS,
    "imdb-characters": CHARACTERS,
    "imdb-labels": Shape(384, 3, 3, batch=128, every=25, dropout=0.2, classes=2),
}


class Samples(ABC):
    """Splits on a device: "train", "validation" and "test"."""

    device: torch.device

    @abstractmethod
    def batches(self, shape: Shape, seed: int) -> Iterator[Batch]:
        """Of the train split, for ever, in an order that the seed decides."""

    @abstractmethod
    def steps(self, shape: Shape, epochs: float) -> int:
        """Batches in so many epochs."""

    @abstractmethod
    def evaluation(self, split: str, shape: Shape) -> Iterator[Batch]:
        """The whole split once."""


class Corpus(Samples):
    """Streams of tokens."""

    def __init__(self, path: Path, device: str) -> None:
        with np.load(path) as streams:
            self.streams = {name: torch.from_numpy(streams[name].astype(np.int32)).to(device) for name in streams.files}
        self.device = self.streams["train"].device

    def batches(self, shape: Shape, seed: int) -> Iterator[Batch]:
        """Windows of the stream in random order, from another offset in every epoch."""
        stream, generator = self.streams["train"], torch.Generator().manual_seed(seed)
        places = torch.arange(shape.length + 1, device=stream.device)
        while True:
            offset = int(torch.randint(shape.length, (), generator=generator))
            count = (len(stream) - offset - 1) // shape.length
            order = torch.randperm(count, generator=generator).to(stream.device)
            for i in range(0, count - shape.batch + 1, shape.batch):
                window = stream[offset + order[i : i + shape.batch, None] * shape.length + places].long()
                yield window[:, :-1], window[:, 1:]

    def steps(self, shape: Shape, epochs: float) -> int:
        return int(epochs * (len(self.streams["train"]) // shape.length // shape.batch))

    def evaluation(self, split: str, shape: Shape) -> Iterator[Batch]:
        stream = self.streams[split][: shape.most_evaluated]
        count = (len(stream) - 1) // shape.length
        places = torch.arange(shape.length + 1, device=stream.device)
        windows = stream[torch.arange(count, device=stream.device)[:, None] * shape.length + places].long()
        for i in range(0, count - shape.batch + 1, shape.batch):
            yield windows[i : i + shape.batch, :-1], windows[i : i + shape.batch, 1:]


class Labelled(Samples):
    """Samples with their classes."""

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]

    def __init__(self, path: Path, device: str) -> None:
        with np.load(path) as splits:
            names = ("train", "validation", "test")
            self.inputs = {split: self.prepared(torch.from_numpy(splits[split]).to(device)) for split in names}
            self.labels = {split: torch.from_numpy(splits[f"{split}_labels"]).long().to(device) for split in names}
        self.device = self.labels["train"].device

    @abstractmethod
    def prepared(self, stored: Tensor) -> Tensor:
        """What the model gets of a split; the train split comes first."""

    def steps(self, shape: Shape, epochs: float) -> int:
        return int(epochs * (len(self.labels["train"]) // shape.batch))

    def evaluation(self, split: str, shape: Shape) -> Iterator[Batch]:
        inputs, labels = self.inputs[split], self.labels[split]
        for i in range(0, len(labels) - shape.batch + 1, shape.batch):
            yield inputs[i : i + shape.batch], labels[i : i + shape.batch]


class Texts(Labelled):
    """Texts (count, length) as tokens, with their classes."""

    def prepared(self, stored: Tensor) -> Tensor:
        return stored.long()

    def batches(self, shape: Shape, seed: int) -> Iterator[Batch]:
        tokens, labels, generator = self.inputs["train"], self.labels["train"], torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(labels), generator=generator).to(self.device)
            for i in range(0, len(labels) - shape.batch + 1, shape.batch):
                part = order[i : i + shape.batch]
                yield tokens[part], labels[part]


class Images(Labelled):
    """Images (count, side, side, channels) of bytes, with their classes."""

    def prepared(self, stored: Tensor) -> Tensor:
        if not hasattr(self, "mean"):
            pixels = stored.double().flatten(0, 2) / 255
            self.mean, self.deviation = pixels.mean(0).float(), pixels.std(0).float()
        return ((stored.float() / 255 - self.mean) / self.deviation).permute(0, 3, 1, 2)

    def batches(self, shape: Shape, seed: int) -> Iterator[Batch]:
        """In random order, moved by up to two pixels, and every second one mirrored."""
        generator, labels = torch.Generator().manual_seed(seed), self.labels["train"]
        padded = torch.nn.functional.pad(self.inputs["train"], 4 * (PADDING,))
        count, side = len(labels), torch.arange(shape.length, device=self.device)
        channels = torch.arange(padded.shape[1], device=self.device)[None, :, None, None]
        while True:
            order = torch.randperm(count, generator=generator).to(self.device)
            down, right = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator).to(self.device)
            mirrored = torch.randint(2, (count, 1), generator=generator).to(self.device)
            columns = right + torch.where(mirrored == 1, shape.length - 1 - side, side)
            for i in range(0, count - shape.batch + 1, shape.batch):
                part = slice(i, i + shape.batch)
                rows = (down[part] + side)[:, None, :, None]
                yield (
                    padded[order[part, None, None, None], channels, rows, columns[part, None, None]],
                    labels[order[part]],
                )


def open_samples(folder: str | Path, corpus: str, device: str) -> Samples:
    """A corpus that benchmarks/sparse/corpora.py has written into the folder."""
    path, shape = Path(folder) / f"{corpus}.npz", SHAPES[corpus]
    kind = Corpus if not shape.classes else Images if shape.patch else Texts
    try:
        return kind(path, device)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise AttsvmError(
            f"--data corpora must be a folder with {path.name}, which benchmarks/sparse/corpora.py writes, but {path} "
            "is not such a file."
        ) from error
