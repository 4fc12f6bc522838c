"""What is trained on: token sequences or images, whole on the device, handed out in batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.models import Places

MULTIPLE = 16
"""Where attention needs padding it is to a multiple of this."""
POOL = 50
"""So many batches are drawn at random and then sorted by length: batches need little padding, and stay mixed."""


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """Rows that are computed together. They lie on the device before the epoch begins, since a copy from the host makes
    it wait until the device is idle."""

    rows: Tensor
    """(batch,) numbers of rows, on the device"""
    sizes: Tensor
    """(batch,) the tokens of each text, or 1 for an image; on the CPU"""

    @property
    def work(self) -> int:
        """Tokens or images: what throughput counts."""
        return int(self.sizes.sum())

    def part(self, number: int, parts: int) -> MiniBatch:
        """Every so-many-th row."""
        return self if parts == 1 else MiniBatch(self.rows[number::parts], self.sizes[number::parts])


class _Labelled:
    """Rows with one answer each: its label."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Tensor:
        """How many answers every row has: what losses and accuracies are means over."""
        return torch.ones_like(self.labels)

    def answers(self, batch: MiniBatch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of classes, the right class and the number of the row, for every answer of the model."""
        return logits, self.labels[batch.rows], batch.rows


@dataclass(frozen=True, eq=False)
class Texts(_Labelled):
    """Token sequences of one split; sequence i is tokens[i, :lengths[i]], and starts with [CLS]."""

    tokens: Tensor
    """(n, longest) int32, 0 behind the end"""
    lengths: Tensor
    """(n,) int64"""
    labels: Tensor
    """(n,) int64"""

    @classmethod
    def ragged(cls, ids: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> Self:
        """From sequences behind one another: sequence i is ids[offsets[i]:offsets[i + 1]]."""
        lengths = np.diff(offsets)
        tokens = np.zeros((len(lengths), max(1, int(lengths.max(initial=0)))), np.int32)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = ids
        return cls(
            torch.from_numpy(tokens),
            torch.from_numpy(lengths.astype(np.int64)),
            torch.from_numpy(labels.astype(np.int64)),
        )

    def cut(self, length: int) -> Texts:
        """Without what lies behind the first `length` tokens."""
        return replace(self, tokens=self.tokens[:, :length], lengths=self.lengths.clamp(max=length))

    def to(self, device: torch.device) -> Self:
        return type(self)(self.tokens.to(device), self.lengths.to(device), self.labels.to(device))

    def batches(self, size: int, generator: torch.Generator | None = None, *, grouped: bool = True) -> list[MiniBatch]:
        """All rows; in a new order if there is a generator, of similar length if `grouped`."""
        n, lengths = len(self), self.lengths.cpu()
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        if grouped:
            # Without a generator the batches are for evaluation, where one pool is best.
            pools = order.split(n if generator is None else POOL * size)
            order = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools])
        found = _cut(order, lengths[order], size, self.labels.device)
        if grouped and generator is not None:
            return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]
        return found

    def take(self, batch: MiniBatch, *, training: bool = False) -> tuple[Tensor, Places]:
        """The tokens of these rows, one behind another, and their places."""
        longest = -(-max(batch.sizes.tolist(), default=1) // MULTIPLE) * MULTIPLE
        places = Places.of(self.lengths[batch.rows], longest, batch.work)
        return self.tokens[batch.rows[places.sequence], places.position], places


@dataclass(frozen=True, eq=False)
class Sequences(Texts):
    """Texts of which every next token is predicted."""

    @property
    def counts(self) -> Tensor:
        return self.lengths - 1

    def take(self, batch: MiniBatch, *, training: bool = False) -> tuple[Tensor]:  # type: ignore[override]
        """The tokens of these rows but their last, (batch, T), 0 behind the end."""
        longest = max(batch.sizes.tolist(), default=1)  # a process may have no row of the last batch
        return (self.tokens[batch.rows, : max(1, longest - 1)].long(),)

    def answers(self, batch: MiniBatch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.arange(logits.shape[1], device=logits.device)
        inside = places < self.counts[batch.rows, None]
        following = self.tokens[batch.rows, 1 : 1 + logits.shape[1]].long()
        return logits[inside], following[inside[:, : following.shape[1]]], batch.rows[:, None].expand_as(inside)[inside]


@dataclass(frozen=True, eq=False)
class Images(_Labelled):
    """Images of one split, brought to `size` and to mean 0 and variance 1 per channel (of the training images)."""

    pixels: Tensor
    """(n, channels, height, width) uint8"""
    labels: Tensor
    """(n,) int64"""
    size: int
    mean: Tensor
    """(channels, 1, 1), as std"""
    std: Tensor

    def to(self, device: torch.device) -> Images:
        pixels, labels, mean, std = (t.to(device) for t in (self.pixels, self.labels, self.mean, self.std))
        return Images(pixels, labels, self.size, mean, std)

    def batches(self, size: int, generator: torch.Generator | None = None, *, grouped: bool = True) -> list[MiniBatch]:
        """All rows; in a new order if there is a generator. (Images are all of one size.)"""
        n = len(self)
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        return _cut(order, torch.ones(n, dtype=torch.int64), size, self.labels.device)

    def take(self, batch: MiniBatch, *, training: bool = False) -> tuple[Tensor]:
        """These images, (batch, channels, size, size); when training each shifted by up to 1/8 and perhaps mirrored."""
        x = self.pixels[batch.rows]
        if training:
            x = _shifted(x)
        x = (x / 255 - self.mean) / self.std
        return (F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False),)


def _cut(order: Tensor, sizes: Tensor, size: int, device: torch.device) -> list[MiniBatch]:
    return [MiniBatch(rows, inside) for rows, inside in zip(order.to(device).split(size), sizes.split(size))]


def _shifted(x: Tensor) -> Tensor:
    """Cut each image out of a black frame of 1/8 at a random place, and mirror half of them."""
    n, _, height, width = x.shape
    margin = max(1, height // 8)
    with torch.device(x.device):
        place = torch.randint(2 * margin + 1, (2, n, 1))
        rows, columns = place[0] + torch.arange(height), place[1] + torch.arange(width)
        mirrored = torch.rand(n, 1) < 0.5
        number = torch.arange(n)[:, None, None]
    columns = torch.where(mirrored, columns.flip(1), columns)
    framed = F.pad(x, (margin,) * 4)
    return framed[number, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Data:
    """A training and a test split; `vocabulary` is the number of tokens of texts, `classes` the number of labels.

    `tokenizer` is the digest of the vocabulary that made the tokens, where it is known.
    """

    train: Texts | Images
    test: Texts | Images
    classes: int
    vocabulary: int = 0
    tokenizer: str = ""

    def __post_init__(self) -> None:
        splits = (("train", self.train), ("test", self.test))
        for name, split in splits:
            if not len(split):
                raise AttsvmError(f"the {name} split must have rows, but it is empty.")
        for name, split in splits:
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.classes:
                allowed = "0 or 1" if self.classes == 2 else "from 0 on" if low < 0 else f"0 to {self.classes - 1}"
                wrong = low if low < 0 else high
                raise AttsvmError(f"labels must be {allowed}, but the {name} split has {wrong}: drop these rows.")
            if isinstance(split, Texts):
                self._check_tokens(name, split)
        if isinstance(self.train, Texts) and not isinstance(self.train, Sequences) and self.classes < 2:
            raise AttsvmError("these texts have no labels: train a language model (--model gpt).")
        first = int(self.train.labels[0])
        if not isinstance(self.train, Sequences) and (self.train.labels == first).all():
            raise AttsvmError(
                f"the train split must have rows of two classes or more, but all {len(self.train)} have label {first}: "
                "if these are the first rows of sorted ones, shuffle before you take them."
            )

    def _check_tokens(self, name: str, split: Texts) -> None:
        if int(split.lengths.min()) < 1:
            row = int(split.lengths.argmin()) + 1
            raise AttsvmError(f"row {row} of the {name} split has no token: drop it, or let the tokenizer add [CLS].")
        low, high = int(split.tokens.min()), int(split.tokens.max())
        if low < 0 or high >= self.vocabulary:
            raise AttsvmError(
                f"tokens must be from 0 to {self.vocabulary - 1}, below the vocabulary, but the {name} split has "
                f"{low if low < 0 else high}: give the vocabulary of the tokenizer, its largest number plus one."
            )

    @property
    def kind(self) -> str:
        """The model that is trained on it."""
        return {Sequences: "gpt", Texts: "text", Images: "vit"}[type(self.train)]

    def next_tokens(self) -> Data:
        """The texts for a language model, which predicts every next token; their labels are not used."""
        splits = []
        for name, split in (("train", self.train), ("test", self.test)):
            if not isinstance(split, Texts):
                raise AttsvmError("a language model needs texts, but these are images.")
            if int(split.lengths.max()) < 2:
                raise AttsvmError(f"a language model needs texts of two tokens or more; the {name} split has none.")
            splits.append(Sequences(split.tokens, split.lengths, split.labels))
        return replace(self, train=splits[0], test=splits[1])

    def to(self, device: torch.device) -> Data:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def digest(self) -> str:
        """Names the content: a checkpoint belongs to its data."""
        found = hashlib.sha256()
        for split in (self.train, self.test):
            content = split.tokens if isinstance(split, Texts) else split.pixels
            found.update(content.cpu().numpy().tobytes())
            found.update(split.labels.cpu().numpy().tobytes())
        return found.hexdigest()[:16]


def image_data(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], classes: int, size: int
) -> Data:
    """Data from (pixels (n, channels, height, width) uint8, labels) of both splits."""
    if not len(train[0]):
        raise AttsvmError("the train split must have rows, but it is empty.")
    scaled = train[0][:: max(1, len(train[0]) // 10_000)] / 255.0
    mean, std = (
        torch.from_numpy(value.astype(np.float32)).view(-1, 1, 1)
        for value in (scaled.mean((0, 2, 3)), np.maximum(scaled.std((0, 2, 3)), 1e-3))
    )
    splits = [
        Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)), size, mean, std)
        for pixels, labels in (train, test)
    ]
    return Data(splits[0], splits[1], classes)
