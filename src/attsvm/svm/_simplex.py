"""The simplex method in fractions for the multipliers of ℓ1 and ℓ∞: slow, and sure to end in a vertex (Bland's rule).

ℓ1   maximise b'λ with A'λ + u = 1, −A'λ + v = 1;       it starts from λ = 0, the basis u, v;
ℓ∞   maximise b'λ with P − M = A'λ, Σ(P + M) + u = 1;   it starts from λ = 0, the basis P, u;

λ, u, v, P, M ≥ 0, but λ is free on equalities. The entries of W that have a sign (ℓ1: where u or v is out of the basis;
ℓ∞: where P or M is in it) are then as many as a vertex of `_vertex` needs beside the rows with λ in the basis.
"""

from __future__ import annotations

from fractions import Fraction

Vector = list[Fraction]


def vertex_of_multipliers(
    rows: list[Vector], b: Vector, equal: list[bool], largest: bool
) -> tuple[list[int], list[int]] | None:
    """The numbers of the rows at the margin and the sign of every entry, 0 for none; None where b'λ has no maximum."""
    D, zero, one = len(rows[0]), Fraction(0), Fraction(1)
    # A column of the table for each unknown: λ, with −λ where that is allowed, and then u, v or P, M, u.
    owner = [(c, way) for c in range(len(rows)) for way in ((1, -1) if equal[c] else (1,))]
    lam = len(owner)
    table = [[way * rows[c][j] for c, way in owner] for j in range(D)]
    gain = [way * b[c] for c, way in owner] + [zero] * (2 * D + largest)
    if largest:
        table = [[-x for x in row] for row in table]
        table.append([-sum((row[k] for row in table), zero) for k in range(lam)])  # Σ(P + M), with P as A'λ + M
        for j in range(D):
            table[j] += [one * ((i == j) - (i == j + D)) for i in range(2 * D + 1)] + [zero]
        table[D] += [Fraction(2) * (D <= i < 2 * D) + (i == 2 * D) for i in range(2 * D + 1)] + [one]
        basis = [*range(lam, lam + D), lam + 2 * D]
    else:
        table += [[-x for x in row] for row in table]
        for j in range(2 * D):
            table[j] += [one * (i == j) for i in range(2 * D)] + [one]
        basis = list(range(lam, lam + 2 * D))
    while (new := next((k for k, x in enumerate(gain) if x > 0), None)) is not None:
        leaving = [(row[-1] / row[new], basis[i], i) for i, row in enumerate(table) if row[new] > 0]
        if not leaving:
            return None
        at = min(leaving)[2]
        basis[at] = new
        pivot = table[at][new]
        table[at] = head = [x / pivot for x in table[at]]
        for i, row in enumerate(table):
            if i != at and (factor := row[new]):
                table[i] = [x - factor * y for x, y in zip(row, head)]
        factor = gain[new]
        gain = [x - factor * y for x, y in zip(gain, head)]
    inside = set(basis)
    tight = sorted(owner[k][0] for k in inside if k < lam)
    up, down = ([(lam + side * D + j in inside) == largest for j in range(D)] for side in (0, 1))
    return tight, [int(x) - int(y) for x, y in zip(up, down)]
