"""How much memory an instance takes, and whether that much is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp, Nuclear
from attsvm.memory import free_bytes
from attsvm.svm._exact import BLOCK


def numbers_per_instance(Q: int, R: int, d: int, e: int, geometry: Geometry, wide: bool) -> int:
    """Numbers of 8 bytes that are alive at the same time when one instance is solved."""
    N, D = Q * R, d * e
    exact = 12 * min(Q * d * max(e, R), max(BLOCK, D, R * d))  # products in double-double arithmetic
    small = 32 * N * (d + 4) + 16 * D + 8 * Q * e + exact
    if not isinstance(geometry, Lp | Nuclear):  # dense rows and matrices of the size of the Hessian
        small += 8 * D * D + 8 * N * D
    if wide:  # C⁻¹, M and its factor; the rows at the margin; products of all pairs of a and of z per group
        return small + 14 * D * D + 2 * Q * (d * d + e * e)
    pairs = 0 if geometry == Lp(2) else Q * Q * (d + e)
    products = 2 * Q * N * d if isinstance(geometry, Lp) and geometry.p != 2 else 0
    return small + 4 * N * N + pairs + products


@contextmanager
def enough_memory(rows: int, numbers: int, device: torch.device) -> Iterator[None]:
    """Refuse what does not fit, before and during the work."""
    gigabytes = 8e-9 * numbers
    refusal = (
        f"an instance of {rows} rows needs about {gigabytes:.2g} GB of memory, which is not free: leave out samples "
        "or tokens, or use a machine with more."
    )
    free = free_bytes(device)
    if free is not None and 8 * numbers > free:
        raise AttsvmError(refusal)
    try:
        yield
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise AttsvmError(refusal) from error


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what is freed between two steps, instead of giving pages back and asking for them again.

    It keeps up to twice the largest block that was ever freed, if that is below 32 MiB. This one is never touched.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)
