"""Proofs that no W is feasible.

A Farkas vector, λ ≥ 0 on the inequalities with A'λ = 0 and b'λ > 0, shows that no W is feasible. No vector of float64
numbers has A'λ = 0 exactly, so each proof shows that an exact one exists close to the λ found:

1. *By robustness.* If X is about a right inverse of A', A'X = I − F with ‖F‖_∞ < 1, then δ = X(I − F)⁻¹A'λ is an exact
   correction, A'(λ − δ) = 0, and |δ| ≤ |X|·1·‖A'λ‖_∞/(1 − ‖F‖_∞). If that is no more than λ, λ − δ ≥ 0. Almost all
   infeasible problems are proved this way: the rows with weight span the whole space.
2. *Group by group.* The rows of one query live in the smaller space a ⊗ z. If they contradict each other alone, the
   same argument holds there.
3. *By elimination in fractions.* Rows of a structured problem (words, one-hot vectors, opposite rows) may contradict
   each other in a subspace. Then λ is moved to a vertex, where a few rows determine it, and their dependence is solved
   exactly, because float64 numbers are fractions.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from attsvm.svm._exact import LEAST, UNIT, combination, fractions, inner
from attsvm.svm._rows import Rows, System

_MOST_NUMBERS = 2**26
"""Entries of dense rows (of all instances of a piece) that a proof may take."""

_MOST_ROWS = 120
"""Rows that elimination in fractions is tried with."""


def prove_infeasible(system: System, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Which instances are infeasible beyond doubt (B,), and their Farkas vectors with b'λ = 1 (to rounding)."""
    lam = lam / (system.b * lam).sum(1, keepdim=True)
    proved, farkas = _by_robustness(system, lam)
    for prove in (_by_group, _by_elimination):
        left = (~proved).nonzero()[:, 0]
        if len(left):
            proved[left], farkas[left] = prove(system.take(left), lam[left])
    value = (system.b * farkas).sum(1, keepdim=True)
    return proved, farkas / torch.where(proved[:, None], value, 1.0)


def _by_robustness(system: System, lam: Tensor) -> tuple[Tensor, Tensor]:
    rows, inequality = system.rows, system.inequality
    B, N, D = rows.B, rows.N, rows.d * rows.e
    proved = torch.zeros(B, dtype=torch.bool, device=lam.device)
    if N <= D or N * D > _MOST_NUMBERS:
        return proved, lam
    step = max(1, _MOST_NUMBERS // (8 * N * D))
    if step < B:
        parts = [_by_robustness(system.take(i), lam[i]) for i in torch.arange(B, device=lam.device).split(step)]
        return torch.cat([p for p, _ in parts]), torch.cat([f for _, f in parts])
    # Columns of size 1, by powers of two.
    F = rows.dense()
    weight = lam.abs().where(inequality, lam.abs().amax(1, keepdim=True)) * (inequality | system.equality)
    kept = weight > 1e-9 * weight.amax(1, keepdim=True)
    lam, weight = torch.where(kept, lam, 0.0), torch.where(kept, weight, 0.0)
    column = (F.abs() * weight[..., None]).amax(1).clamp_min(1e-300)
    G = F / column[:, None]
    WG = weight[..., None] * G
    L, info = torch.linalg.cholesky_ex(WG.mT @ WG)
    solid = info == 0
    if not bool(solid.any()):
        return proved, lam
    L = torch.where(solid[:, None, None], L, torch.eye(D, dtype=lam.dtype, device=lam.device))
    X = torch.cholesky_solve((weight[..., None] * WG).mT, L).mT  # A'X = I but for rounding, columns scaled

    for _ in range(3):
        residual = (combination(rows, lam, double=True)[0]).flatten(1) / column
        lam = lam - (X @ residual[..., None])[..., 0]
    residual, error = combination(rows, lam, double=True)
    rho = ((residual.abs() + error).flatten(1) / column).amax(1) * (1 + 4 * UNIT)
    skew = (G.mT @ X - torch.eye(D, dtype=lam.dtype, device=lam.device)).abs()
    skew = (skew + (N + 16) * UNIT * (G.abs().mT @ X.abs())).sum(2).amax(1) * (1 + (D + 8) * UNIT)
    delta = X.abs().sum(2) * (rho / (1 - skew))[:, None] * (1 + (D + 8) * UNIT)
    value, doubt = inner(system.b, lam)
    doubt = doubt + (system.b.abs() * delta).sum(1) * (1 + (N + 4) * UNIT)
    stays = ((lam >= delta) | ~kept | ~inequality).all(1)
    return solid & (skew < 0.5) & stays & (value > doubt), lam


def _by_group(system: System, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Each group alone, as a problem in R^d."""
    rows = system.rows
    B, Q, R, d = rows.B, rows.Q, rows.R, rows.d
    proved = torch.zeros(B, dtype=torch.bool, device=lam.device)
    if rows.e == 1 and Q == 1:
        return proved, lam
    flat = lambda x: x.reshape(B * Q, R)  # noqa: E731
    low = None if rows.A_low is None else rows.A_low.reshape(B * Q, 1, R, d)
    single = System(
        Rows(rows.A.reshape(B * Q, 1, R, d), rows.Z.new_ones(B * Q, 1, 1), low),
        flat(system.b),
        flat(system.inequality),
        flat(system.equality),
    )
    weight = flat(lam)
    size, left = weight.abs().sum(1), torch.linalg.vector_norm(single.rows.adjoint(weight), dim=(1, 2))
    some = ((size > 1e-6 * lam.abs().sum(1).repeat_interleave(Q)) & (left <= 1e-4 * size)).nonzero()[:, 0]
    if not len(some):
        return proved, lam
    good, vectors = _by_robustness(single.take(some), weight[some])
    farkas = torch.zeros_like(weight)
    lam = lam.clone()
    for k, group in enumerate(some.tolist()):
        b = group // Q
        if bool(good[k]) and not bool(proved[b]):
            proved[b] = True
            farkas[group] = vectors[k]
            lam[b] = farkas[b * Q : (b + 1) * Q].flatten()
    return proved, lam


def _by_elimination(system: System, lam: Tensor) -> tuple[Tensor, Tensor]:
    lam = lam.clone()
    proved = torch.zeros(len(lam), dtype=torch.bool, device=lam.device)
    for k in range(len(lam)):
        one = system.take(torch.tensor([k], device=lam.device))
        support = _vertex(one, lam[k])
        weights = _dependence(one.rows, support)
        value = sum(Fraction(one.b[0, c].item()) * x for c, x in zip(support, weights))
        weights = [x / value for x in weights] if value else []
        if weights and all(x >= 0 for c, x in zip(support, weights) if bool(one.inequality[0, c])):
            proved[k] = True
            lam[k] = 0.0
            lam[k, support] = torch.tensor([float(x) for x in weights], dtype=lam.dtype, device=lam.device)
    return proved, lam


def _vertex(one: System, lam: Tensor) -> list[int]:
    """Rows in the support of λ that depend on each other in one way only, or none."""
    there = (one.inequality | one.equality)[0]
    large = (lam.abs() > 1e-7 * lam.abs().amax()) & there
    support = large.nonzero()[:, 0]
    if not 1 < len(support) <= _MOST_ROWS:
        return []
    F = one.rows.dense()[0]
    while True:
        Fs, at = F[support], lam[support]
        _, sizes, Vh = torch.linalg.svd(Fs.mT, full_matrices=True)
        rank = int((sizes > 1e-9 * sizes[0]).sum())
        null = Vh[rank:]
        if len(null) == 0:
            return []
        if len(null) == 1:
            return support.tolist()
        # A direction in the null space that leaves b'λ alone: walk along it until a weight vanishes.
        across = null @ one.b[0][support]
        most = int(across.abs().argmax())
        direction = null[0 if most else 1]
        if bool(across[most].abs() > 1e-300):
            direction = direction - null[most] * (across[0 if most else 1] / across[most])
        direction = direction.where(direction.abs() > 1e-12 * direction.abs().amax(), 0.0)
        free = ~one.inequality[0][support]
        ratio = torch.where(free, torch.inf, at / direction.abs().clamp_min(1e-300))
        forward = ratio.masked_fill(direction <= 0, torch.inf)
        backward = ratio.masked_fill(direction >= 0, torch.inf)
        if bool(forward.isfinite().any()):
            step, drop = forward.amin(), forward.argmin()
        elif bool(backward.isfinite().any()):
            step, drop = -backward.amin(), backward.argmin()
        else:  # only equalities depend on each other here: any of them may vanish
            drop = direction.abs().argmax()
            step = at[drop] / direction[drop]
        lam = lam.clone()
        lam[support] = at - step * direction
        keep = torch.ones_like(support, dtype=torch.bool)
        keep[drop] = False
        support = support[keep]


def _dependence(rows: Rows, support: list[int]) -> list[Fraction]:
    """The weights of the one linear dependence of these rows, exactly; none where there is none, or more than one, or
    where the rows have entries that underflow may have changed."""
    of_rows = [x[0].flatten(0, 1)[support] for x in (rows.A, rows.A_low) if x is not None]
    of_groups = rows.Z[0, [c // rows.R for c in support]]
    if any(bool(((x != 0) & (x.abs() < LEAST)).any()) for x in (*of_rows, of_groups)):
        return []
    z = fractions(rows.Z[0], None)
    a = fractions(rows.A[0].flatten(0, 1), None if rows.A_low is None else rows.A_low[0].flatten(0, 1))
    vectors = [[x * y for x in a[c] for y in z[c // rows.R]] for c in support]
    columns = [list(column) for column in zip(*vectors)]  # D equations in the weights
    pivots: list[int] = []
    reduced: list[list[Fraction]] = []
    for equation in columns:
        for pivot, row in zip(pivots, reduced):
            if equation[pivot]:
                factor = equation[pivot]
                equation = [x - factor * y for x, y in zip(equation, row)]
        pivot = next((k for k, x in enumerate(equation) if x), None)
        if pivot is None:
            continue
        equation = [x / equation[pivot] for x in equation]
        for k, row in enumerate(reduced):
            if row[pivot]:
                factor = row[pivot]
                reduced[k] = [x - factor * y for x, y in zip(row, equation)]
        pivots.append(pivot)
        reduced.append(equation)
        if len(pivots) == len(support):
            return []
    if len(pivots) != len(support) - 1:
        return []
    free = next(k for k in range(len(support)) if k not in pivots)
    weights = [Fraction(0)] * len(support)
    weights[free] = Fraction(1)
    for pivot, row in zip(pivots, reduced):
        weights[pivot] = -row[free]
    return weights
