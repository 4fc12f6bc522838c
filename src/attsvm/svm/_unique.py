"""Vertices of ℓ1 and ℓ∞ problems beyond rounding: which solutions are the only ones, and their exact numbers.

A vertex (see `_vertex`) is optimal where W and λ of its two linear systems are feasible. It is the only solution where
also every named row has a positive multiplier, every entry at the bound (ℓ∞) has A'λ ≠ 0, and every zero entry (ℓ1) has
|A'λ| below its largest value: then each solution satisfies the same equations, and their matrix is regular.

`certainly_unique` shows this for a batch in float64. With X about the inverse of M, r = ‖I − XM‖_∞ < 1 and a residual ρ
of an approximate solution, the exact one of Mx = y is within ‖Xρ‖_∞/(1 − r), that of Mᵀx = y within |Xᵀ|·‖ρ‖₁/(1 − r).
`vertices` solves both systems in integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Lp
from attsvm.svm._exact import UNIT, combination, fractions, magnitude, values
from attsvm.svm._nuclear import first_of_equals
from attsvm.svm._problem import MarginProblem
from attsvm.svm._result import MaxMargin
from attsvm.svm._rows import Rows, System
from attsvm.svm._simplex import vertex_of_multipliers
from attsvm.svm._solve import prepare, solve
from attsvm.svm._vertex import basis_matrix, named
from attsvm.tolerances import SHARP

_NEAR = 1e-8
"""Rows and entries this near to their bounds count as being there when a vertex of a face is looked for."""

_MOST_ROWS = 2000
"""Rows up to which uniqueness is looked into."""

_MOST_CELLS = 5000
"""Numbers of the table up to which the simplex method in fractions is tried."""


@dataclass(frozen=True)
class Vertex:
    """A solution of an ℓ1 or ℓ∞ problem in fractions.

    W (d × e) satisfies every row exactly and has the least norm: `multipliers`, a fraction for each of the Q·R rows,
    prove it by b'λ = ‖W‖ and ‖A'λ‖_* = 1. `unique` says whether no other W does.
    """

    W: tuple[tuple[Fraction, ...], ...]
    multipliers: tuple[Fraction, ...]
    norm: Fraction
    unique: bool


def certainly_unique(solution: MaxMargin) -> Tensor:
    """Where an ℓ1 or ℓ∞ solution is certainly the only one, (B,)."""
    known = solution.solved & (solution.norm > 0)
    largest = _kind(solution)
    if largest is None or solution.problem.rows > _MOST_ROWS or not bool(known.any()):
        return torch.zeros_like(known)
    index = known.nonzero()[:, 0]
    system, tight, signs, fits = _named_by(solution, largest, index)
    known[index] = fits
    index = fits.nonzero()[:, 0]
    if len(index):
        known[known.clone()] = _is_strict(system.take(index), tight[index], signs[index], largest)
    return known


def vertices(solution: MaxMargin) -> list[Vertex | None]:
    """An exact solution of every instance of an ℓ1 or ℓ∞ problem; None where there is none or none is found.

    Where solutions form a face, one of its vertices is taken. That of a small problem is always found."""
    largest = _kind(solution)
    if largest is None:
        raise AttsvmError(f"vertices are known for l1 and linf problems, but this one is in {solution.geometry.name}.")
    found: list[Vertex | None] = [None] * len(solution)
    index = (solution.solved & (solution.norm > 0)).nonzero()[:, 0]
    if len(index) == 0:
        return found
    problem = solution.problem.formed()
    _, tight, signs, _ = _named_by(solution, largest, index)
    for n, k in enumerate(index.tolist()):
        rows = tight[n].nonzero()[:, 0].tolist()
        found[k] = _exact_vertex(problem, k, rows, signs[n].int().tolist(), largest)
    missing = [n for n, k in enumerate(index.tolist()) if found[k] is None]
    if missing:  # an interior W of a face, or one that is known too roughly to name a vertex
        part = index[torch.tensor(missing, device=index.device)]
        sharp = solve(solution[part].problem, solution.geometry, tol=SHARP)
        for n, k in enumerate(part.tolist()):
            if bool(sharp.norm[n].isfinite()):
                rows, named_signs = _at_corner(sharp, n, largest)
                found[k] = _exact_vertex(problem, k, rows, named_signs, largest)
            if found[k] is None:  # integers, as a rule: many vertices meet, and float64 does not tell them apart
                found[k] = _by_simplex(problem, k, largest)
    return found


def _by_simplex(problem: MarginProblem, k: int, largest: bool) -> Vertex | None:
    """A vertex from scratch, for problems so small that it does not take long."""
    D, R = problem.shape[0] * problem.shape[1], problem.A.shape[2]
    there = problem.present[k].flatten().nonzero()[:, 0].tolist()
    if (2 * D + 1) * (2 * D + len(there)) > _MOST_CELLS:
        return None
    a, z, b = _in_fractions(problem, k)
    rows = [[x * y for x in a[c] for y in z[c // R]] for c in there]
    equal = problem.equality[k].flatten()[there].tolist()
    vertex = vertex_of_multipliers(rows, [b[c] for c in there], equal, largest)
    if vertex is None:
        return None
    tight, signs = vertex
    e = problem.shape[1]
    return _exact_vertex(problem, k, [there[c] for c in tight], [signs[i : i + e] for i in range(0, D, e)], largest)


def _in_fractions(problem: MarginProblem, k: int) -> tuple[list[list[Fraction]], list[list[Fraction]], list[Fraction]]:
    """The a of every row, the z of every group and b, exactly."""
    low = None if problem.A_low is None else problem.A_low[k].flatten(0, 1)
    b = [Fraction(x) for x in problem.b[k].double().flatten().tolist()]
    return fractions(problem.A[k].flatten(0, 1), low), fractions(problem.Z[k], None), b


def _at_corner(solution: MaxMargin, k: int, largest: bool) -> tuple[list[int], list[list[int]]]:
    """The rows and signs of a vertex of the face that W of an instance lies in.

    While the rows at the margin leave W a direction to move in, it moves until another row or bound is met."""
    system, row_norm, _, _ = prepare(solution[[k]].problem, solution.geometry)
    shape = solution.problem.shape
    F, b = system.rows.dense()[0].cpu().numpy(), system.b[0].cpu().numpy()
    W = (solution.W[k] / solution.norm[k]).flatten().cpu().numpy().copy()
    lam = (solution.multipliers[k].flatten().double() * row_norm[0]).cpu().numpy()
    lam = lam / (b @ lam)
    U = lam @ F
    equal, ineq = system.equality[0].cpu().numpy(), system.inequality[0].cpu().numpy()
    nu = (F @ W / np.where(ineq, b, np.nan))[ineq].min() if ineq.any() else (b @ (F @ W)) / (b @ b)
    slack = F @ W - nu * b
    tight = equal | (ineq & (slack <= np.maximum(lam, _NEAR * b)))
    if largest:
        fixed = (1 - abs(W) <= np.maximum(len(W) * abs(U) / abs(U).sum(), _NEAR)) & (abs(W) > 0.5)
        W[fixed] = np.sign(W[fixed])
    else:
        fixed = len(W) * abs(W) <= np.maximum(1 - abs(U) / abs(U).max(), _NEAR)
        W[fixed] = 0.0
    for _ in range(len(W)):
        C = F[tight][:, ~fixed]
        if not largest:
            C = np.vstack((C, np.sign(W[~fixed])))
        _, sizes, Vh = np.linalg.svd(C, full_matrices=True)
        rank = int((sizes > 1e-9 * sizes.max(initial=1e-300)).sum())
        if rank == int((~fixed).sum()):
            break
        V = np.zeros_like(W)
        V[~fixed] = Vh[rank]
        with np.errstate(divide="ignore", invalid="ignore"):
            to_bound = np.where(V != 0, (1 - np.sign(V) * W) / abs(V) if largest else -W / V, np.inf)
            to_bound = np.where(fixed | (to_bound < 0), np.inf, to_bound)
            AV = F @ V
            to_row = np.where(ineq & ~tight & (AV < 0), np.maximum(F @ W - nu * b, 0) / -AV, np.inf)
        step = min(to_bound.min(), to_row.min())
        if not np.isfinite(step):
            break
        W = W + step * V
        if to_row.min() <= to_bound.min():
            tight[to_row.argmin()] = True
        else:
            at = to_bound.argmin()
            fixed[at], W[at] = True, np.sign(V[at]) if largest else 0.0
    signs = np.sign(W) * (fixed if largest else ~fixed)
    # As many independent rows as unknowns, those with weight first.
    kept: list[int] = []
    wanted = int((~fixed).sum()) + largest
    columns = np.column_stack((F[:, ~fixed], b))
    for c in sorted(np.flatnonzero(tight).tolist(), key=lambda c: (not equal[c], -lam[c])):
        if len(kept) < wanted and np.linalg.matrix_rank(columns[[*kept, c]], tol=1e-9) > len(kept):
            kept.append(c)
    return sorted(kept), signs.astype(int).reshape(shape).tolist()


def _kind(solution: MaxMargin) -> bool | None:
    """Whether the norm is ℓ∞ or ℓ1, None for others."""
    geometry = solution.geometry
    return None if not isinstance(geometry, Lp) or geometry.smooth else geometry.p == math.inf


def _named_by(solution: MaxMargin, largest: bool, index: Tensor) -> tuple[System, Tensor, Tensor, Tensor]:
    """The scaled systems of these instances, the vertices that their solutions name, and where they name one."""
    part = solution[index]
    problem = part.problem
    system, row_norm, _, _ = prepare(problem, solution.geometry)
    lam = part.multipliers.double().flatten(1) * row_norm
    lam = lam / (system.b * lam).sum(1, keepdim=True)
    W = (part.W / part.norm[:, None, None]).nan_to_num()
    AW = system.rows.apply(W)
    slack = (AW - system.margin(AW)[:, None] * system.b).clamp_min(1e-300)
    U = system.rows.adjoint(lam).abs()
    D = U[0].numel()
    if largest:
        of_entries = D * U / U.sum((1, 2), keepdim=True) / (1 - W.abs()).clamp_min(1e-300)
    else:
        of_entries = D * W.abs() / (1 - U / U.amax((1, 2), keepdim=True)).clamp_min(1e-300)
    sign = torch.where(W < 0, -1.0, 1.0).to(W) if largest else W.sign()
    level = slack.mean(1, keepdim=True) / lam.abs().mean(1, keepdim=True)
    of_rows = torch.where(first_of_equals(system), level * lam / slack, 0.0)
    tight, signs, fits = named(system, of_rows, of_entries.clamp(1e-300, 1e300), sign, largest)
    square = (signs != 0).sum((1, 2)) if not largest else D + 1 - (signs != 0).sum((1, 2))
    return system, tight, signs, fits & (tight.sum(1) == square)


def _is_strict(system: System, tight: Tensor, signs: Tensor, largest: bool) -> Tensor:
    """Whether the vertex is optimal and the only solution, with all rounding accounted for."""
    rows, b, ineq = system.rows, system.b, system.inequality
    M, right, order, columns = basis_matrix(system, tight, signs, largest)
    k = M.shape[1]
    X, info = torch.linalg.inv_ex(M)
    size, sum_error = M.abs(), (k + 12) * UNIT
    eye = torch.eye(k, dtype=M.dtype, device=M.device)
    r = ((eye - X @ M).abs() + sum_error * (X.abs() @ size)).sum(2).amax(1) * (1 + sum_error)
    keep = 1 / (1 - r) * (1 + 4 * UNIT)
    safe = (info == 0) & (r < 0.5)

    def times(A: Tensor, x: Tensor) -> Tensor:
        return (A @ x[..., None])[..., 0]

    # W: (ν, w) and how far the exact numbers may be from them.
    of_right = sum_error * right.abs()
    if largest:
        of_right = of_right + values(rows, signs)[1].gather(1, order) * tight.gather(1, order)
    x = times(X, right)
    x = x + times(X, right - times(M, x))
    rho = (right - times(M, x)).abs() + sum_error * times(size, x.abs()) + of_right
    off = times(X.abs(), rho).amax(1) * keep * (1 + sum_error)
    nu, w = x[:, 0], x[:, 1:]
    free = (signs == 0) if largest else (signs != 0)
    W = torch.zeros_like(signs).flatten(1).scatter(1, columns, w).reshape(signs.shape) * free
    within = (W.abs() + off[:, None, None] <= 1) if largest else (W * signs - off[:, None, None] >= 0)
    safe &= (nu > off) & (within | ~free).all(2).all(1)
    W = W + signs if largest else W
    value, error = values(rows, W)
    error = error + off[:, None] * (magnitude(rows, free.to(W.dtype)) + b) * (1 + sum_error)
    room = value - nu[:, None] * b - error - 4 * UNIT * (value.abs() + (nu[:, None] * b).abs())
    safe &= ((room >= 0) | ~ineq | tight).all(1)

    # λ, with b'λ = 1, and A'λ.
    first = torch.zeros_like(right)
    first[:, 0] = -1.0
    y = times(X.mT, first)
    y = y + times(X.mT, first - times(M.mT, y))
    rho = (first - times(M.mT, y)).abs() + sum_error * (times(size.mT, y.abs()) + first.abs())
    off = X.abs().amax(1) * (rho.sum(1) * keep)[:, None] * (1 + sum_error)
    t, of_t = -y[:, 0], off[:, 0]  # of ℓ1
    lam, of_lam = (y, off) if largest else (y[:, 1:], off[:, 1:])
    lam, of_lam = (torch.zeros_like(b).scatter(1, order, v) * tight for v in (lam, of_lam))
    safe &= ((lam > of_lam) | ~(tight & ineq)).all(1)
    U, error = combination(rows, lam)
    error = error + Rows(rows.A.abs(), rows.Z.abs()).adjoint(of_lam) * (1 + (rows.N + 8) * UNIT)
    if largest:
        strict = (U * signs > error) | (signs == 0)
    else:
        strict = ((U.abs() + error) * (1 + 4 * UNIT) < (t - of_t)[:, None, None]) | (signs != 0)
        safe &= t > of_t
    return safe & strict.all(2).all(1)


def _exact_vertex(
    problem: MarginProblem, k: int, tight: list[int], signs: list[list[int]], largest: bool
) -> Vertex | None:
    """The vertex in fractions, if it is a solution."""
    d, e = problem.shape
    R = problem.A.shape[2]
    a, z, b = _in_fractions(problem, k)
    there = [c for c, yes in enumerate(problem.present[k].flatten().tolist()) if yes]
    equal = problem.equality[k].flatten().tolist()
    entries = [(i, j) for i in range(d) for j in range(e) if (signs[i][j] == 0) == largest]

    def value(c: int, W: list[list[Fraction]]) -> Fraction:
        Wz = [sum((x * y for x, y in zip(row, z[c // R])), Fraction(0)) for row in W]
        return sum((x * y for x, y in zip(a[c], Wz)), Fraction(0))

    fixed = [[Fraction(x) if largest else Fraction(0) for x in row] for row in signs]
    M = [[-b[c], *(a[c][i] * z[c // R][j] for i, j in entries)] for c in tight]
    right = [-value(c, fixed) for c in tight]
    if not largest:
        M.insert(0, [Fraction(0), *(Fraction(signs[i][j]) for i, j in entries)])
        right.insert(0, Fraction(1))
    if not M or len(M) != len(M[0]):
        return None
    x = _solved(M, right)
    y = _solved([list(column) for column in zip(*M)], [Fraction(-1)] + [Fraction(0)] * (len(M) - 1))
    if x is None or y is None or x[0] <= 0:
        return None
    W = fixed
    for (i, j), w in zip(entries, x[1:]):
        W[i][j] = w
    nu = x[0]
    W = [[w / nu for w in row] for row in W]
    lam = [Fraction(0)] * len(b)
    for c, weight in zip(tight, y if largest else y[1:]):
        lam[c] = weight
    # From here on the vertex is only a candidate: all that is claimed is checked.
    U = [[Fraction(0)] * e for _ in range(d)]
    for c in tight:
        for i in range(d):
            for j in range(e):
                U[i][j] += lam[c] * a[c][i] * z[c // R][j]
    sizes = [abs(w) for row in W for w in row]
    duals = [abs(u) for row in U for u in row]
    norm, dual = (max(sizes), sum(duals)) if largest else (sum(sizes), max(duals))
    feasible = all(value(c, W) == b[c] if equal[c] else value(c, W) >= b[c] for c in there)
    signed = all(lam[c] >= 0 for c in tight if not equal[c])
    total = sum((b[c] * lam[c] for c in tight), Fraction(0))
    if not (feasible and signed and dual > 0 and total == norm * dual):
        return None
    strict = all(lam[c] > 0 for c in tight if not equal[c])
    if largest:
        strict &= all(U[i][j] != 0 for i in range(d) for j in range(e) if signs[i][j])
    else:
        strict &= all(abs(U[i][j]) < dual for i in range(d) for j in range(e) if not signs[i][j])
    return Vertex(tuple(map(tuple, W)), tuple(weight / dual for weight in lam), Fraction(norm), strict)


def _solved(M: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """The solution of Mx = right by elimination in whole numbers (Bareiss), None for a singular M."""
    n = len(M)
    rows = []
    for row, y in zip(M, right):
        common = math.lcm(*(v.denominator for v in (*row, y)))
        rows.append([int(v * common) for v in (*row, y)])
    before = 1
    for k in range(n):
        pivot = next((i for i in range(k, n) if rows[i][k]), None)
        if pivot is None:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        head = rows[k]
        for i in range(k + 1, n):
            row, factor = rows[i], rows[i][k]
            rows[i] = [0] * (k + 1) + [(head[k] * row[j] - factor * head[j]) // before for j in range(k + 1, n + 1)]
        before = head[k]
    x = [Fraction(0)] * n
    for k in reversed(range(n)):
        total = sum((rows[k][j] * x[j] for j in range(k + 1, n)), Fraction(0))
        x[k] = (rows[k][n] - total) / rows[k][k]
    return x
