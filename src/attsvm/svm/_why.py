"""Why a margin problem has no solution, where the reason is simple."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from attsvm.svm._exact import fractions

if TYPE_CHECKING:
    from attsvm.svm._problem import MarginProblem

_BLOCK = 512


def simple_reasons(problem: MarginProblem, k: int) -> list[str]:
    """Sentences about zero rows that ask for something, and about pairs of rows that ask for opposite things."""
    A, Z, b = (x[k].double() for x in (problem.A, problem.Z, problem.b))
    Q, R, _ = A.shape
    present = problem.present[k].flatten()
    zero = ((A == 0).all(-1) | (Z == 0).all(-1)[:, None]).flatten()
    asks = b.flatten() != 0
    reasons = [_of_zero(problem, k, c) for c in (zero & present & asks).nonzero()[:, 0].tolist()]

    # Candidates by the cosine of the rows; the exact check is in fractions.
    a = (A / A.abs().amax(-1, keepdim=True).clamp_min(1e-300)).flatten(0, 1)
    z = (Z / Z.abs().amax(-1, keepdim=True).clamp_min(1e-300)).repeat_interleave(R, 0)
    a, z = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-300) for x in (a, z))
    good = present & ~zero
    for start in range(0, Q * R, _BLOCK):
        block = slice(start, start + _BLOCK)
        cosine = (a[block] @ a.mT) * (z[block] @ z.mT)
        near = (cosine < -1 + 1e-12) & good[block, None] & good[None]
        for i, j in near.nonzero().tolist():
            i += start
            if i < j and _opposite(problem, k, i, j):
                reasons.append(f"{_name(problem, k, i)} and {_name(problem, k, j)} ask for the opposite.")
    return list(dict.fromkeys(reasons))


def _of_zero(problem: MarginProblem, k: int, c: int) -> str:
    R = problem.A.shape[2]
    if bool((problem.Z[k, c // R] == 0).all()):
        return f"the z of {_name(problem, k, c)} is zero, and no W makes it ask for something."
    if problem.token is None:
        return f"{_name(problem, k, c)} is zero, and no W makes it reach b = {problem.b[k].flatten()[c].item():g}."
    sequence, _, selected, other = _where(problem, k, c)
    pair = sorted((selected, other))
    return (
        f"tokens {pair[0]} and {pair[1]} of sequence {sequence} are equal: mask or merge them, e.g. by "
        "data.without_repeats()."
    )


def _name(problem: MarginProblem, k: int, c: int) -> str:
    if problem.token is None or problem.layout is None:
        return f"row {c}"
    sequence, query, selected, other = _where(problem, k, c)
    of_query = f" and query {query}" if problem.layout[1] > 1 else ""
    return f"token {selected} over token {other} in sequence {sequence}{of_query}"


def _where(problem: MarginProblem, k: int, c: int) -> tuple[int, int, int, int]:
    """Sequence, query, selected token and other token of a row."""
    assert problem.token is not None
    assert problem.layout is not None
    _, K, T = problem.layout
    R = problem.A.shape[2]
    tokens = problem.token[k, c // R].tolist()
    selected = next(t for t in range(T) if t not in tokens)
    return c // R // K, c // R % K, selected, tokens[c % R]


def _opposite(problem: MarginProblem, k: int, i: int, j: int) -> bool:
    """Whether row i is −κ times row j, κ > 0, and they cannot both hold."""
    first, second = (_dense(problem, k, c) for c in (i, j))
    at = max(range(len(first)), key=lambda n: abs(first[n]))
    if not second[at]:
        return False
    kappa = -first[at] / second[at]
    if kappa <= 0 or any(x + kappa * y for x, y in zip(first, second)):
        return False
    b, equality = problem.b[k].flatten(), problem.equality[k].flatten()
    asked = Fraction(b[i].item()) + kappa * Fraction(b[j].item())
    return asked > 0 or (asked != 0 and bool(equality[i]) and bool(equality[j]))


def _dense(problem: MarginProblem, k: int, c: int) -> list[Fraction]:
    group, row = divmod(c, problem.A.shape[2])
    low = None if problem.A_low is None else problem.A_low[k, group, row, None]
    (a,), (z,) = fractions(problem.A[k, group, row, None], low), fractions(problem.Z[k, group, None], None)
    return [x * y for x in a for y in z]
