"""Whether somebody else changed a weight between two steps: also through `.data`, which no version counter sees."""

import torch
from torch import Tensor

SMALL = 1 << 12  # of so few entries a copy is kept
PIECES = 256
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def signature(weight: Tensor) -> Tensor:
    """The bits of a small weight; of a large one the sums, as whole numbers, of the bits of about 256 pieces.

    A change of one entry changes the sum of its piece. Exchanged entries, as by a permutation of rows or columns, stay
    unnoticed only inside one piece, and pieces are of odd length, so that they do not end where rows do.
    """
    flat = weight.detach().reshape(-1)
    size = flat.element_size()
    if flat.numel() <= SMALL:
        return flat.view(_WORDS[size]).clone()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    words = flat[: flat.numel() * size // 8 * 8 // size].view(torch.int64)
    length = len(words) // PIECES | 1
    count = len(words) // length
    rest = flat[count * length * 8 // size :].view(_WORDS[size]).sum()
    return torch.cat([words[: count * length].view(count, length).sum(1), rest.view(1)])


def unchanged(weight: Tensor, before: Tensor) -> bool:
    """Whether the weight has the signature that it had before."""
    flat = weight.detach().reshape(-1)
    now = flat.view(_WORDS[flat.element_size()]) if flat.numel() <= SMALL else signature(weight)
    return torch.equal(now, before)
