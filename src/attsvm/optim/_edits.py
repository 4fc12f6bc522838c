"""Whether a weight was changed between two steps, also through `.data`, which no version counter sees."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attsvm.optim._mirror_map import follow

PIECES = 64
SHORT = 2048  # so many entries are sooner copied than summed
BLOCK, LANES = 1024, 16  # of the signatures of `_kernel.cpp`

Row = Sequence[Tensor]
Key = tuple[int, int, int]


class Watch:
    """Signatures of weights as a step left them, for steps that do not read the weights.

    They are taken chunk by chunk, while the weights are in the cache, and kept by the address of the mirror variable:
    `weight.data = …` gives a weight memory that another one had, or that it had before.
    """

    def __init__(self) -> None:
        self._left: dict[Key, Tensor] = {}
        self._before: dict[Key, Tensor] = {}  # by the step before this one

    def turn(self) -> None:
        """After a step: what it did not leave is of older mirror variables, as where a parameter had no gradient."""
        self._before, self._left = self._left, {}

    def _found(self, key: Key) -> Tensor | None:
        return self._left.get(key, self._before.get(key))

    def sums(self, theta: Tensor) -> Tensor:
        """Where the fused step on a CPU, which takes them itself, keeps the signatures of a weight's blocks."""
        key = (theta.data_ptr(), theta.numel(), 0)
        if (sums := self._found(key)) is None:
            sums = torch.full((theta.numel() // BLOCK + 1, LANES), -1, dtype=torch.int32, device="cpu")
        self._left[key] = sums
        return sums

    def before(self, parts: Sequence[Row], weight: Tensor, p: float) -> None:
        """Where a weight of these rows (weight, mirror variable, rest, …) is not as the step left it, it wins: `weight`
        is all of them."""
        left = self._found(_key(parts))
        if left is None or not torch.equal(left, signature(weight)):
            weights, mirrors, rests = ([row[k] for row in parts] for k in range(3))
            follow(weights, mirrors, rests, p)

    def after(self, parts: Sequence[Row], weight: Tensor) -> None:
        """Note the weights as they are now."""
        self._left[_key(parts)] = signature(weight)


def signature(weight: Tensor) -> Tensor:
    """The sums, as whole numbers, of the bits of 64 pieces of a weight; a short one itself.

    A change of one entry changes the sum of its piece. Exchanged entries, as by a permutation of rows or columns, stay
    unnoticed only inside one piece, and pieces start at odd distances, so that they do not end where rows do. They
    overlap a little: all are then of one length, and one call sums them. The length is odd, so that a sign that is the
    first bit of a word is seen where all change; of two such signs in one piece the sum is the same.
    """
    flat = weight.detach().reshape(-1)
    if flat.numel() <= SHORT:
        return flat.clone()
    two_words = 16 // flat.element_size()
    if flat.storage_offset() % max(two_words // 2, 1):
        flat = flat.clone()
    if odd := flat.numel() % two_words:
        flat = torch.cat([flat, flat.new_zeros(two_words - odd)])
    words = flat.view(torch.int64)
    apart = (words.numel() // PIECES - 1) | 1
    return words.as_strided((PIECES, words.numel() - (PIECES - 1) * apart), (apart, 1)).sum(1)


def _key(parts: Sequence[Row]) -> Key:
    return parts[0][1].data_ptr(), parts[0][1].numel(), len(parts)
