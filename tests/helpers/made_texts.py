"""Texts made of words whose meaning is known."""

from __future__ import annotations

import numpy as np


def make_texts(
    count: int,
    classes: int = 2,
    *,
    length: int = 12,
    common: int = 60,
    marks: int = 8,
    rate: float = 0.25,
    seed: int = 0,
) -> tuple[list[str], np.ndarray]:
    """Words `w…` stand in all texts alike; a share `rate` of the words are marks `c{k}m…` of the text's class k."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    sizes = 1 + random.poisson(length - 1, count)
    texts = []
    for label, size in zip(labels, sizes):
        marked = random.random(size) < rate
        words = np.where(
            marked,
            [f"c{label}m{j}" for j in random.integers(marks, size=size)],
            [f"w{j}" for j in random.integers(common, size=size)],
        )
        texts.append(" ".join(words))
    return texts, labels
