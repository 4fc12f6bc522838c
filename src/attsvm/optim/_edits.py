"""Whether a weight was changed between two steps, also through `.data`, which no version counter sees."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attsvm.optim._mirror_map import follow
from attsvm.optim._shards import PLAIN

LENT = 1 << 12  # a weight of so many entries is sooner lent than summed,
LENT_BY_KERNEL = 1 << 16  # and of so many where the kernel sums
OWN_USERS = 2  # of the memory of a weight that nobody else looks at: itself, and who asks
APART = 64  # steps for which a weight is not lent after somebody has written to it
PIECES = 64
SHORT = 2048  # so many entries are sooner copied than summed
BLOCK, LANES = 1024, 16  # of the signatures of `_kernel.cpp`

# Names of torch that are private: `_copies_on_write` tells whether they are there and do what they should. An address
# is that of `data_ptr`, which is asked for to write and gives a lent tensor memory of its own.
_lazy_clone: Any = getattr(torch, "_lazy_clone", None)
_address: Any = getattr(torch._C, "_data_address", None)
_users: Any = getattr(torch._C, "_storage_Use_Count", None)

Row = Sequence[Tensor]
Key = tuple[int, int, int]


class Watch:
    """What tells steps that do not read the weights whether a weight is as the last step left it.

    On a CPU a large weight is *lent*: between two steps it shares its memory with a twin, by torch's copy on write.
    Whoever writes to the weight makes torch give it memory of its own, so to compare two addresses is to see every
    edit. It takes no pass over memory.

    Of other weights there are signatures. They are taken chunk by chunk, while the weights are in the cache. Both are
    kept by the address of the mirror variable: `weight.data = …` gives a weight memory that another one had, or that it
    had before.
    """

    def __init__(self) -> None:
        self._left: dict[Key, Tensor] = {}
        self._before: dict[Key, Tensor] = {}  # by the last step
        self._known: set[int] = set()  # whose weight nobody has written to since the last step
        self._lent: dict[int, Tensor] = {}  # the weights that will be, after this step
        self._twins: dict[int, Tensor] = {}
        self._old_twins: dict[int, Tensor] = {}
        self._apart: dict[int, int] = {}  # steps to go until a weight may be lent again

    def turn(self) -> None:
        """Before a step: what the last one did not leave is of older mirror variables, as where a parameter had no
        gradient."""
        self._known.clear()
        self._lent.clear()
        self._before, self._left = self._left, {}
        self._old_twins, self._twins = self._twins, {}

    def _found(self, key: Key) -> Tensor | None:
        return self._left.get(key, self._before.get(key))

    def take_back(self, weight: Tensor, theta: Tensor, by_kernel: bool) -> bool:
        """Before a step writes to a weight: whether it is known that nobody has done so since the last step."""
        if weight.numel() < (LENT_BY_KERNEL if by_kernel else LENT):
            return False
        at = theta.data_ptr()
        twin = self._released(at)
        if twin is not None and _address(twin) == _address(weight) and twin.stride() == weight.stride():
            self._known.add(at)
            self._lent[at] = weight
            return True
        if twin is None and self._apart.get(at, 0) > 0:
            self._apart[at] -= 1
        elif twin is None and _can_be_lent(weight):
            self._lent[at] = weight
        else:
            self._apart[at] = APART
            if twin is not None and torch.equal(twin, weight):  # somebody only asked for an address to write to
                self._known.add(at)
        return at in self._known

    def release(self, theta: Tensor) -> None:
        """Keep no twin of a weight: who writes to it then copies nothing."""
        self._released(theta.data_ptr())

    def _released(self, at: int) -> Tensor | None:
        return self._twins.pop(at, None) if at in self._twins else self._old_twins.pop(at, None)

    def duties(self, theta: Tensor) -> tuple["Watch | None", "Watch | None"]:
        """Who looks at a weight before the step, and who signs it afterwards."""
        at = theta.data_ptr()
        return None if at in self._known else self, None if at in self._lent else self

    def lend(self) -> None:
        """After a step."""
        for at, weight in self._lent.items():
            self._twins[at] = _lazy_clone(weight)
        self._lent.clear()

    def sums(self, theta: Tensor) -> Tensor:
        """Where the fused step on a CPU, which takes them itself, keeps the signatures of a weight's blocks; nothing
        for a weight that is known."""
        if theta.data_ptr() in self._known:
            return torch.empty(0, dtype=torch.int32, device="cpu")
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


def _can_be_lent(weight: Tensor) -> bool:
    """Whether torch can lend its memory, and nobody else, such as a numpy array, looks at it: an edit moves it."""
    if not weight.is_cpu or type(weight) not in PLAIN or weight.is_inference() or not _copies_on_write():
        return False
    storage = weight.untyped_storage()
    if not storage.resizable():  # as of a file that was read: torch has no allocator for other memory, and crashes
        return False
    try:
        return _users(storage._cdata) == OWN_USERS and _address(_lazy_clone(weight)) == _address(weight)
    except RuntimeError:  # memory of others, as of a file or another process
        return False


@cache
def _copies_on_write() -> bool:
    """Whether this torch does all that lending takes."""
    try:
        weight = torch.zeros(2, device="cpu")
        storage = weight.untyped_storage()
        alone = _users(storage._cdata) == OWN_USERS
        twin = _lazy_clone(weight)
        lent = _address(twin) == _address(weight)
        weight.data.add_(1)
        return alone and lent and _address(twin) != _address(weight) and twin.tolist() == [0, 0]
    except (TypeError, RuntimeError):
        return False


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
