"""Whether somebody else changed a weight between two steps: also through `.data`, which no version counter sees."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

SMALL = 1 << 13  # of weights with so few entries a copy is kept, of all together
PIECES = 256
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Kind = tuple[torch.device, torch.dtype]


class Watch:
    """Weights as a step left them: copies of small ones, signatures of large ones."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, ...], Tensor] = {}
        self._signatures: dict[int, Tensor] = {}

    def remember(self, weights: dict[int, Tensor]) -> None:
        """Weights by the id of their parameter."""
        for of_kind in _kinds(weights):
            together = _together(of_kind.values())
            self._copies[tuple(of_kind)] = together.clone() if len(of_kind) == 1 else together  # of one it is a view
        for key, weight in weights.items():
            if weight.numel() > SMALL:
                self._signatures[key] = signature(weight)

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._signatures.pop(key, None)
        self._copies.clear()

    def touched(self, weights: dict[int, Tensor]) -> set[int]:
        """Which of the weights may be others than those remembered."""
        found: set[int] = set()
        for of_kind in _kinds(weights):
            before = self._copies.get(tuple(of_kind))
            if before is None or not torch.equal(before, _together(of_kind.values())):
                found.update(of_kind)
        for key, weight in weights.items():
            if weight.numel() > SMALL:
                before = self._signatures.get(key)
                if before is None or not torch.equal(before, signature(weight)):
                    found.add(key)
        return found


def signature(weight: Tensor) -> Tensor:
    """The sums, as whole numbers, of the bits of about 256 pieces of a weight.

    A change of one entry changes the sum of its piece. Exchanged entries, as by a permutation of rows or columns, stay
    unnoticed only inside one piece, and pieces are of odd length, so that they do not end where rows do.
    """
    flat = weight.detach().reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    words = flat[: flat.numel() * size // 8 * 8 // size].view(torch.int64)
    length = max(len(words) // PIECES, 1) | 1
    count = len(words) // length
    rest = flat[count * length * 8 // size :].view(_WORDS[size]).sum()
    return torch.cat([words[: count * length].view(count, length).sum(1), rest.view(1)])


def _kinds(weights: dict[int, Tensor]) -> Iterable[dict[int, Tensor]]:
    """Small weights, those of one device and dtype together."""
    found: dict[Kind, dict[int, Tensor]] = {}
    for key, weight in weights.items():
        if weight.numel() <= SMALL:
            found.setdefault((weight.device, weight.dtype), {})[key] = weight
    return found.values()


def _together(weights: Iterable[Tensor]) -> Tensor:
    """The bits of many weights: nan is then equal to itself."""
    flat = _flatten_dense_tensors(list(weights))
    return flat.view(_WORDS[flat.element_size()])
