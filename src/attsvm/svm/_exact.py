"""Sums of products with a bound on what rounding did to them.

A certificate is a statement about real numbers, so every sum it takes comes as an interval: a float64 value and a bound
of its distance from the sum in real arithmetic. The plain sums have the a-priori bound n·u·Σ|terms| (u = 2⁻⁵³, any
order of summation, fused or not). Where that is too coarse the same sums are taken in double-double arithmetic: every
product and every sum of two numbers comes with its exact rounding error, which leaves about n·2⁻¹⁰⁴·Σ|terms|.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from attsvm.svm._rows import Rows

UNIT = 2.0**-53
"""Relative rounding error of one operation in float64."""

_DOUBLE = 2.0**-101
"""The same for double-double numbers, with room to spare."""

_TINY = 1e-300
"""More than what underflow can do to a sum of numbers of size 1."""

LEAST = 1e-290
"""Entries of rows of norm 1 below this may have lost digits to underflow: they serve in sums, not in fractions."""

_SPLIT = 2.0**27 + 1

BLOCK = 2**21
"""Products that are alive at the same time."""


def power_of_two(x: Tensor) -> Tensor:
    """The power of two next to each positive x, exactly; 1 for x = 0, ∞ for a norm that overflowed."""
    fraction, exponent = torch.frexp(x)
    exponent = exponent - (fraction < 0.5**0.5).int()
    bits = (exponent.long().clamp(-1022, 1023) + 1023) << 52
    return torch.where(x.isfinite(), torch.where(x > 0, bits.view(torch.float64), 1.0), x)


def shrunk(x: Tensor, by: Tensor) -> Tensor:
    """x over powers of two. What would underflow becomes ±2⁻¹⁰²²: still not 0, and far below `LEAST`."""
    y, tiny = x / by, torch.finfo(torch.float64).tiny
    return torch.where((x != 0) & (y.abs() < tiny), torch.copysign(torch.full_like(y, tiny), x), y)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as its rounded value and the exact rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a·b in float64 as its rounded value and the exact rounding error, unless the latter underflows."""
    p = a * b
    a_high, b_high = _high(a), _high(b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def fractions(A: Tensor, low: Tensor | None) -> list[list[Fraction]]:
    """Rows (N, d), with what rounding took from them, as exact numbers."""
    a = [[Fraction(x) for x in row] for row in A.tolist()]
    return a if low is None else [[x + Fraction(y) for x, y in zip(row, more)] for row, more in zip(a, low.tolist())]


def magnitude(rows: Rows, W: Tensor) -> Tensor:
    """⟨|a| ⊗ |z|, |W|⟩ of every row, (B, N): the size of the terms of AW."""
    return Rows(rows.A.abs(), rows.Z.abs()).apply(W.abs())


def values(rows: Rows, W: Tensor, double: bool = False) -> tuple[Tensor, Tensor]:
    """AW (B, N) and a bound of its error; `double` takes the sums in double-double arithmetic."""
    size = magnitude(rows, W)
    terms = rows.d + rows.e + 16
    if not double:
        return rows.apply(W), 1.01 * terms * UNIT * size + _TINY
    high, low = [], []
    for A, A_low, Z in _blocks(rows):
        V, V_low = _sum(*two_product(Z[:, :, None, :], W[:, None]))
        v, v_low = two_product(A, V[:, :, None, :])
        v_low = v_low + A * V_low[:, :, None, :]
        if A_low is not None:
            v_low = v_low + A_low * V[:, :, None, :]
        v, v_low = _sum(v, v_low)
        high.append(v.flatten(1))
        low.append(v_low.flatten(1))
    return torch.cat(high, 1), torch.cat(low, 1).abs() + terms * _DOUBLE * size + _TINY


def combination(rows: Rows, lam: Tensor, double: bool = False) -> tuple[Tensor, Tensor]:
    """A'λ (B, d, e) and an entrywise bound of its error."""
    size = Rows(rows.A.abs(), rows.Z.abs()).adjoint(lam.abs())
    terms = rows.Q + rows.R + 16
    if not double:
        return rows.adjoint(lam), 1.01 * terms * UNIT * size + _TINY
    U = U_low = torch.zeros_like(size)
    lam = lam.reshape(rows.B, rows.Q, rows.R, 1)
    start = 0
    for A, A_low, Z in _blocks(rows):
        part = lam[:, start : start + A.shape[1]]
        start += A.shape[1]
        v, v_low = two_product(part, A)
        if A_low is not None:
            v_low = v_low + part * A_low
        v, v_low = (x[..., None] for x in _sum(v.mT, v_low.mT))
        u, u_low = two_product(v, Z[:, :, None, :])
        u, u_low = _sum(u.movedim(1, -1), (u_low + v_low * Z[:, :, None, :]).movedim(1, -1))
        U, U_low = _add(U, U_low, u, u_low)
    return U, U_low.abs() + terms * _DOUBLE * size + _TINY


def inner(b: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """b'λ (B,) and a bound of its error."""
    value, low = _sum(*two_product(b, lam))
    size = (b * lam).abs().sum(1)
    return value, low.abs() + (b.shape[1] + 16) * _DOUBLE * size + _TINY


def _blocks(rows: Rows) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    """A, its low part and Z, a few groups at a time, so that products of all pairs fit in memory."""
    step = max(1, BLOCK // max(1, rows.B * rows.d * max(rows.e, rows.R)))
    cuts = [slice(q, q + step) for q in range(0, rows.Q, step)]
    return [(rows.A[:, q], None if rows.A_low is None else rows.A_low[:, q], rows.Z[:, q]) for q in cuts]


def _high(a: Tensor) -> Tensor:
    """The leading 26 bits (Veltkamp)."""
    c = _SPLIT * a
    return c - (c - a)


def _add(a: Tensor, a_low: Tensor, b: Tensor, b_low: Tensor) -> tuple[Tensor, Tensor]:
    s, error = two_sum(a, b)
    t, t_error = two_sum(a_low, b_low)
    s, error = _renormal(s, error + t)
    return _renormal(s, error + t_error)


def _renormal(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = a + b
    return s, b - (s - a)


def _sum(high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the last axis, by halves."""
    if high.shape[-1] == 0:
        return high.sum(-1), low.sum(-1)
    high, low = _renormal(high, low)
    while high.shape[-1] > 1:
        half = high.shape[-1] // 2
        rest, rest_low = high[..., 2 * half :], low[..., 2 * half :]
        high, low = _add(high[..., :half], low[..., :half], high[..., half : 2 * half], low[..., half : 2 * half])
        high, low = torch.cat((high, rest), -1), torch.cat((low, rest_low), -1)
    return high[..., 0], low[..., 0]
