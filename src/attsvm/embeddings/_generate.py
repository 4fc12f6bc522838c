"""Random sequences: the K-level model (34), and data of Assumption 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from attsvm.checks import as_count
from attsvm.data import trial_streams
from attsvm.embeddings._sequences import Sequences
from attsvm.errors import AttsvmError

LEVELS = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)
"""δ_1 … δ_8 of Figure 2: the probability that a token of level k stands in a sequence of the other label."""
SIZES = tuple(4 + 2**k for k in range(1, 9))
"""|S_k|: the printed 4 + 2^(k−1) does not add up to the printed 2048 tokens, 4 + 2^k does."""


@dataclass(frozen=True)
class KLevel:
    """The K-level model (33) to (35). Tokens 0 … |S̃| − 1 are irrelevant, then come S_1⁺, S_1⁻, S_2⁺, S_2⁻, ….

    sizes       |S_k⁺| = |S_k⁻|
    levels      δ_k
    irrelevant  |S̃|
    share       δ̃, the share of the other tokens in a sequence
    """

    sizes: Sequence[int] = SIZES
    levels: Sequence[float] = LEVELS
    irrelevant: int = 964
    share: float = 0.05

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.levels) or not self.sizes:
            raise AttsvmError("sizes and levels must have one entry for every level.")
        if not all(0 < level < 0.5 for level in self.levels) or not 0 < self.share < 1:
            raise AttsvmError("levels must lie between 0 and 1/2, and share between 0 and 1.")
        for name, count in (("irrelevant", self.irrelevant), *(("sizes", size) for size in self.sizes)):
            as_count(name, count)

    @property
    def size(self) -> int:
        """|S|."""
        return self.irrelevant + 2 * sum(self.sizes)

    def level(self) -> Tensor:
        """(|S|,) k = 1 … K with the sign of the label it speaks for, 0 for irrelevant tokens."""
        signed = [sign * (k + 1) for k in range(len(self.sizes)) for sign in (1, -1)]
        each = [size for size in self.sizes for _ in (1, -1)]
        return torch.cat([torch.zeros(self.irrelevant, dtype=torch.long), torch.tensor(np.repeat(signed, each))])

    def probabilities(self) -> Tensor:
        """(2, |S|) p(s|y) for y = −1 and y = 1: eq. (34), with δ̃δ_k in its third line."""
        level = self.level()
        delta = torch.tensor([0.5, *self.levels], dtype=torch.float64)[level.abs()]
        total = sum(self.sizes)
        agree = self.share * (1 - delta) / total
        against = self.share * delta / total
        plain = torch.full_like(delta, (1 - self.share) / self.irrelevant)
        rows = [torch.where(level == 0, plain, torch.where(level.sign() == y, agree, against)) for y in (-1, 1)]
        return torch.stack(rows)

    def sample(self, n: int, T: int, *, seed: int = 0, trial: int = 0) -> Sequences:
        """n sequences of T tokens, labels +1 and −1 in turn."""
        n, T = as_count("n", n), as_count("T", T)
        stream = random_stream(seed, trial)
        Y = np.where(np.arange(n) % 2 == 0, 1, -1)
        edges = self.probabilities().cumsum(1).numpy()
        ids = np.empty((n, T), dtype=np.int64)
        for sign, edge in zip((-1, 1), edges):
            which = np.flatnonzero(sign == Y)
            ids[which] = np.searchsorted(edge / edge[-1], stream.random((len(which), T)), side="right")
        return Sequences.of(ids.reshape(-1), np.arange(n + 1) * T, Y, self.size)


def single_important(
    n: int, T: int, important: int, irrelevant: int, *, seed: int = 0, trial: int = 0, even: bool = True
) -> Sequences:
    """Data of Assumption 4: n sequences of T tokens, the first of each completely positive or negative.

    Tokens 0 … important − 1 are the completely positive, then the completely negative, `important` of each kind; the
    others are irrelevant. The irrelevant tokens of the negative sequences are those of the positive ones, reshuffled,
    so that every α_s = 0. With `even` the important tokens occur equally often (n/2 must be a multiple of their
    number), otherwise at random, each at least once.
    """
    n, T = as_count("n", n, 2), as_count("T", T, 2)
    important, irrelevant = as_count("important", important), as_count("irrelevant", irrelevant)
    half, slots = n // 2, n // 2 * (T - 1)
    if n % 2 or half < important or (even and half % important):
        raise AttsvmError(f"n must be even, and n/2 at least (if even, a multiple of) important = {important}.")
    if irrelevant > slots:
        raise AttsvmError(f"irrelevant must be at most n/2 · (T − 1) = {slots}, or a token has no place.")
    stream = random_stream(seed, trial)
    others = np.concatenate([np.arange(irrelevant), stream.integers(irrelevant, size=slots - irrelevant)])
    rows = []
    for sign in (0, 1):
        extra = (
            np.resize(np.arange(important), half - important)
            if even
            else stream.integers(important, size=half - important)
        )
        first = stream.permutation(np.concatenate([np.arange(important), extra])) + sign * important
        rest = stream.permutation(others).reshape(half, T - 1) + 2 * important
        rows.append(np.concatenate([first[:, None], rest], 1))
    Y = np.repeat([1, -1], half)
    return Sequences.of(np.concatenate(rows).reshape(-1), np.arange(n + 1) * T, Y, 2 * important + irrelevant)


def random_stream(seed: int, trial: int) -> Generator:
    """The random stream of a trial, as in `attsvm.data`."""
    return trial_streams(seed, [trial])[0]
