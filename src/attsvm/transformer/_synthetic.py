"""Small data sets made on the spot: reviews with one word that decides, and images of stripes."""

from __future__ import annotations

import numpy as np
import torch

from attsvm.checks import as_count
from attsvm.transformer._data import Data, Texts, image_data
from attsvm.transformer._pivotal import Probes, Review

_SPECIAL = "[PAD] [CLS] [SEP]"
_FILLERS = (
    "the a film movie plot story actor scene was is it i we they saw watched found thought and with of in this that "
    "one very rather quite really old new long short first last music camera ending director"
)
_POSITIVE, _NEGATIVE = "good great wonderful lovely brilliant charming", "bad awful dull terrible boring clumsy"
WORDS = f"{_SPECIAL} {_FILLERS} {_POSITIVE} {_NEGATIVE}".split()
"""The vocabulary of the synthetic reviews; the last twelve words decide, six for each label."""
FILLERS, PIVOTS = range(3, len(WORDS) - 12), len(WORDS) - 12


def synthetic_sentiment(train: int = 512, test: int = 256, *, length: int = 24, seed: int = 0) -> Data:
    """Reviews of random filler words with one word, good or bad, that decides the label.

    Lengths vary between 5 tokens and `length`; [CLS] comes first and [SEP] last.
    """
    random = np.random.default_rng(seed)
    as_count("length", length, least=5)
    splits = []
    for n in (as_count("train", train), as_count("test", test)):
        labels = random.integers(2, size=n)
        sequences = []
        for label in labels:
            words = random.choice(FILLERS, size=random.integers(3, length - 1))
            # six positive words come before six negative ones
            words[random.integers(len(words))] = PIVOTS + random.integers(6) + 6 * (1 - label)
            sequences.append(np.concatenate([[1], words, [2]]))
        offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])])
        splits.append(Texts.ragged(np.concatenate(sequences), offsets, labels))
    return Data(splits[0], splits[1], classes=2, vocabulary=len(WORDS))


def synthetic_probes(count: int = 60, *, seed: int = 1) -> tuple[Probes, tuple[Review, ...]]:
    """Synthetic reviews that nothing was trained on, as texts and as tokens, with the word that decides."""
    split = synthetic_sentiment(16, as_count("count", count, least=2), seed=seed).test
    assert isinstance(split, Texts)
    spans, reviews = torch.zeros(*split.tokens.shape, 2, dtype=torch.int64), []
    for row, (tokens, length, label) in enumerate(zip(split.tokens.tolist(), split.lengths.tolist(), split.labels)):
        at, start, stop = 0, 0, 0
        for place in range(1, length - 1):
            word = WORDS[tokens[place]]
            spans[row, place] = torch.tensor([at, at + len(word)])
            if tokens[place] >= PIVOTS:
                start, stop = at, at + len(word)
            at += len(word) + 1
        text = " ".join(WORDS[token] for token in tokens[1 : length - 1])
        reviews.append(Review(text, start, stop, int(label)))
    probes = Probes(split.tokens.long(), split.lengths, split.tokens >= PIVOTS, spans)
    return probes, tuple(reviews)


def tiny_images(train: int = 256, test: int = 128, *, size: int = 8, seed: int = 0) -> Data:
    """Noisy colour images of 8 × 8 pixels with horizontal (0), vertical (1) or no (2) stripes."""
    random = np.random.default_rng(seed)
    splits = []
    for n in (as_count("train", train), as_count("test", test)):
        labels = random.integers(3, size=n)
        i, j = np.mgrid[:8, :8]
        pattern = np.stack([i % 2, j % 2, np.full_like(i, 0.5)])[labels]
        colour = random.uniform(60, 160, size=(n, 3, 1, 1))
        pixels = colour * pattern[:, None] + random.normal(60, 15, size=(n, 3, 8, 8))
        splits.append((pixels.clip(0, 255).astype(np.uint8), labels))
    return image_data(splits[0], splits[1], classes=3, size=as_count("size", size))
