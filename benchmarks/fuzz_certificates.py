"""Nasty max-margin problems, and every certificate of their solutions checked in exact arithmetic.

Values of rows, multipliers and norms that need no roots are computed in fractions, other norms to 80 digits, from the
numbers that `solve` was given and those that it returned. Norms are written down here a second time: nothing of the
library takes part in a check. A claim that no W is feasible is checked by a vertex of the alternative, found by HiGHS
and solved in fractions. Two tables come out, by kind of instance and by norm:

python benchmarks/fuzz_certificates.py --instances 10000 --seed 0 --workers 2 --rows rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from attsvm import Geometry, Lp, MarginProblem, MaxMargin, Status, parse_geometry, solve
from attsvm.geometry import Group, Hybrid, Mahalanobis, Part, Schatten

sys.path.insert(0, str(Path(__file__).parent))
from nasty_instances import BATCH, KINDS, tiny

Vector = list[Fraction]
Matrix = list[Vector]
Row = dict[str, Any]


# The norms: how the library is asked for them, and an independent answer to "is ‖W‖ more than this?".


@dataclass(frozen=True)
class PricedRows(Geometry):
    """An own norm, ‖c ∘ W‖_1.5 with c = 1, 2, 4 by row, as a user would write it."""

    @property
    def name(self) -> str:
        return "own"

    def norm(self, W: Tensor) -> Tensor:
        return Lp(1.5).norm(self._price(W) * W)

    def dual_norm(self, G: Tensor) -> Tensor:
        return Lp(3).norm(G / self._price(G))

    def _price(self, W: Tensor) -> Tensor:
        return 2.0 ** (torch.arange(W.shape[-2], dtype=W.dtype, device=W.device) % 3)[:, None]


def tridiagonal(D: int) -> np.ndarray:
    """LLᵀ, L the identity with ½ below the diagonal: exact in float64, and in fractions L is solved row by row."""
    L = np.eye(D) + np.eye(D, k=-1) / 2
    return L @ L.T


def two_parts(d: int, e: int) -> Hybrid:
    """ℓ∞ on the first row of W, twice the spectral norm on the others."""
    first = Part((0, 1), (0, e), Lp(math.inf), 0.5 if d > 1 else 1.0)
    return Hybrid((first, *([Part((1, d), (0, e), Schatten(math.inf), 2.0)] if d > 1 else [])))


NORMS: dict[str, Callable[[int, int], Geometry]] = {
    name: (lambda d, e, name=name: parse_geometry(name))
    for name in ("l1", "l1.1", "l1.5", "l2", "l3", "l4", "l10", "l20", "linf", "nuclear", "spectral", "schatten1.5")
} | {
    "schatten3": lambda d, e: Schatten(3),
    "group:rows": lambda d, e: Group("rows"),
    "group-max:rows": lambda d, e: Group("rows", largest=True),
    "mahalanobis": lambda d, e: Mahalanobis(tridiagonal(d * e)),
    "hybrid": two_parts,
    "own": lambda d, e: PricedRows(),
}


def exceeds(name: str, W: Matrix, bound: Fraction, dual: bool) -> bool:
    """Whether the norm of W, or its dual norm, is more than the bound."""
    if bound < 0:
        return True
    flat = [x for row in W for x in row]
    if name == "mahalanobis":
        return _mahalanobis_square(flat, dual) > bound * bound
    if name == "own":
        price = [Fraction(2) ** (i % 3) for i in range(len(W))]
        W = [[x / c if dual else x * c for x in row] for row, c in zip(W, price)]
        return exceeds("l3" if dual else "l1.5", W, bound, dual=False)
    if name == "hybrid":
        first, rest = [W[0]], W[1:]
        if not rest:
            return exceeds("linf", first, bound, dual)
        if not dual:
            return exceeds("linf", first, 2 * bound, dual) or exceeds("spectral", rest, bound / 2, dual)
        with mpmath.workdps(80):
            left = _number(bound - 2 * sum((abs(x) for x in W[0]), Fraction(0)))
            return mpmath.fsum(_singular_values(rest)) / 2 > left
    if name in ("l1", "linf"):
        sizes = [abs(x) for x in flat]
        return (max(sizes) if (name == "l1") == dual else sum(sizes, Fraction(0))) > bound
    if name == "l2":
        return sum((x * x for x in flat), Fraction(0)) > bound * bound
    with mpmath.workdps(80):
        values, p = _parts_and_exponent(name, W, flat)
        if dual:
            p = math.inf if p == 1 else 1 if p == math.inf else p / (p - 1)
        limit = _number(bound)
        if p == math.inf:
            return max(values) > limit
        return mpmath.fsum(x**p for x in values if x) > limit**p


def _parts_and_exponent(name: str, W: Matrix, flat: Vector) -> tuple[list[Any], Any]:
    """The positive numbers whose ℓp norm this is."""
    if name.startswith("group"):
        groups = W if name.endswith("rows") else [list(column) for column in zip(*W)]
        sizes = [mpmath.sqrt(_number(sum((x * x for x in group), Fraction(0)))) for group in groups]
        return sizes, math.inf if "max" in name else 1
    if name in ("nuclear", "spectral") or name.startswith("schatten"):
        p = {"nuclear": 1, "spectral": math.inf}.get(name) or mpmath.mpf(name.removeprefix("schatten"))
        return _singular_values(W), p
    return [abs(_number(x)) for x in flat], mpmath.mpf(name.removeprefix("l"))


def _singular_values(W: Matrix) -> list[Any]:
    """Roots of the eigenvalues of WWᵀ or WᵀW, taken with twice the digits."""
    rows = W if len(W) <= len(W[0]) else [list(column) for column in zip(*W)]
    largest = max(abs(x) for row in rows for x in row) or Fraction(1)
    rows = [[x / largest for x in row] for row in rows]
    with mpmath.workdps(160):
        gram = mpmath.matrix([[_number(_dot(x, y)) for y in rows] for x in rows])
        values = mpmath.eigsy(gram, eigvals_only=True)
        return [mpmath.sqrt(max(x, 0)) * _number(largest) for x in values]


def _mahalanobis_square(w: Vector, dual: bool) -> Fraction:
    """|Lᵀw|², or |y|² with Ly = w."""
    total, y = Fraction(0), Fraction(0)
    for x, after in zip(w, [*w[1:], Fraction(0)]):
        y = x - y / 2 if dual else x + after / 2
        total += y * y
    return total


# The checks.


class Exact:
    """Instance k of a problem and its solution, as fractions; `norm` is a name of the table above."""

    def __init__(self, problem: MarginProblem, solution: MaxMargin, k: int, norm: str | None = None) -> None:
        self.problem, self.solution, self.k = problem, solution, k
        self.norm = norm or solution.geometry.name
        self.R = problem.A.shape[2]
        self.present = problem.present[k].flatten().tolist()
        self.equality = problem.equality[k].flatten().tolist()
        self.b = _fractions(problem.b[k].flatten())
        self.z = [_fractions(z) for z in problem.Z[k]]
        self.a = [_fractions(a) for a in problem.A[k].flatten(0, 1)]
        if problem.A_low is not None:
            low = [_fractions(a) for a in problem.A_low[k].flatten(0, 1)]
            self.a = [[x + y for x, y in zip(a, more)] for a, more in zip(self.a, low)]

    def errors(self) -> list[str]:
        """What is wrong with the certificates."""
        status = int(self.solution.status[self.k])
        if status == Status.INFEASIBLE:
            return [] if self.contradiction() else ["infeasible without a contradiction"]
        return self._upper() + self._lower()

    def _upper(self) -> list[str]:
        upper = self.solution.upper[self.k].item()
        if upper == float("inf"):
            return []
        W = [_fractions(row) for row in self.solution.W[self.k]]
        Wz = [[_dot(row, z) for row in W] for z in self.z]
        off = Fraction(self.solution.violation[self.k].item())
        wrong = []
        for c, (a, b) in enumerate(zip(self.a, self.b)):
            if not self.present[c]:
                continue
            value = _dot(a, Wz[c // self.R])
            if abs(value - b) > off if self.equality[c] else value < b:
                wrong.append(f"row {c} has value {float(value):.17g} for b = {float(b):g}")
        if exceeds(self.norm, W, Fraction(upper), dual=False):
            wrong.append(f"‖W‖ exceeds upper = {upper:.17g}")
        return wrong

    def _lower(self) -> list[str]:
        lower = self.solution.lower[self.k].item()
        if lower == 0:
            return []
        lam = _fractions(self.solution.multipliers[self.k].flatten())
        if any(x < 0 for x, equal in zip(lam, self.equality) if not equal):
            return ["a multiplier is negative"]
        d, e = self.problem.shape
        rows = [[c for c in range(q * self.R, (q + 1) * self.R) if self.present[c]] for q in range(len(self.z))]
        v = [[_dot([lam[c] for c in own], [self.a[c][i] for c in own]) for own in rows] for i in range(d)]
        U = [[_dot(v[i], [z[j] for z in self.z]) for j in range(e)] for i in range(d)]
        value = sum((x * b for x, b, there in zip(lam, self.b, self.present) if there), Fraction(0))
        # lower ≤ b'λ/‖A'λ‖_*, that is ‖A'λ‖_* ≤ b'λ/lower.
        return ["b'λ/‖A'λ‖ is below lower"] if exceeds(self.norm, U, value / Fraction(lower), dual=True) else []

    def contradiction(self) -> bool:
        """Whether some λ with A'λ = 0, b'λ > 0, λ ≥ 0 on inequalities exists, in fractions."""
        rows = [c for c, there in enumerate(self.present) if there]
        dense = {c: [x * y for x in self.a[c] for y in self.z[c // self.R]] for c in rows}
        if any(not any(dense[c]) and self.b[c] != 0 for c in rows):
            return True
        length = {c: max(abs(x) for x in dense[c]) or Fraction(1) for c in rows}
        dense = {c: [x / length[c] for x in dense[c]] for c in rows}
        b = {c: self.b[c] / length[c] for c in rows}
        largest = max(abs(x) for x in b.values())
        A = np.array([[float(x) for x in dense[c]] + [float(b[c] / largest)] for c in rows]).T
        bounds = [(None, None) if self.equality[c] else (0, None) for c in rows]
        # Minimise what is missing of A'λ = 0, b'λ = 1; then also without b'λ = 1, for right-hand sides of all sizes.
        for target in (A[:-1], A):
            right = np.zeros(len(target))
            extra = np.ones(len(rows)) if target is not A else None
            equations = target if extra is None else np.vstack((target, extra))
            right = np.append(right, 1.0) if extra is not None else np.append(right[:-1], 1.0)
            result = scipy.optimize.linprog(
                np.zeros(len(rows)), A_eq=equations, b_eq=right, bounds=bounds, method="highs-ds"
            )
            if result.status != 0:
                continue
            for cut in (1e-12, 1e-9, 1e-7):
                support = [c for c, x in zip(rows, result.x) if abs(x) > cut]
                weights = _dependence([dense[c] for c in support])
                if weights is None:
                    continue
                value = sum(b[c] * x for c, x in zip(support, weights))
                weights = weights if value > 0 else [-x for x in weights]
                if value != 0 and all(x >= 0 for c, x in zip(support, weights) if not self.equality[c]):
                    return True
        return False


def _fractions(x: torch.Tensor) -> Vector:
    return [Fraction(v) for v in x.tolist()]


def _dot(a: Vector, b: Vector) -> Fraction:
    """Over one denominator: a sum of fractions would be reduced after every term."""
    terms = [(x.numerator * y.numerator, x.denominator * y.denominator) for x, y in zip(a, b) if x and y]
    common = math.lcm(*(under for _, under in terms))
    return Fraction(sum(over * (common // under) for over, under in terms), common)


def _number(x: Fraction) -> Any:
    return mpmath.mpf(x.numerator) / x.denominator


def _dependence(vectors: list[Vector]) -> Vector | None:
    """The weights of the one linear dependence of the vectors; None if there is none or more than one."""
    M = [list(column) for column in zip(*vectors)]
    k, pivots, row = len(vectors), [], 0
    for column in range(k):
        found = next((i for i in range(row, len(M)) if M[i][column]), None)
        if found is None:
            continue
        M[row], M[found] = M[found], M[row]
        M[row] = [x / M[row][column] for x in M[row]]
        for i in range(len(M)):
            if i != row and M[i][column]:
                M[i] = [x - M[i][column] * y for x, y in zip(M[i], M[row])]
        pivots.append(column)
        row += 1
    if len(pivots) != k - 1:
        return None
    free = next(c for c in range(k) if c not in pivots)
    weights = [Fraction(0)] * k
    weights[free] = Fraction(1)
    for i, column in enumerate(pivots):
        weights[column] = -M[i][free]
    return weights


def rows_of(batch: int, seed: int, norms: tuple[str, ...], kinds: tuple[str, ...]) -> list[Row]:
    """One batch of instances: what was claimed, and whether it is so."""
    kind = kinds[batch % len(kinds)]
    norm = norms[batch // len(kinds) % len(norms)]
    generator = partial(np.random.default_rng, [seed, batch])
    problem = KINDS[kind](generator())
    # Rounding W and λ alone moves a margin of γ, of rows of length 5 or so, by about 1e-15/γ of itself.
    tol = max(1e-9, 1e-14 / tiny(generator())) if kind == "tiny_margins" else 1e-9
    start = time.perf_counter()
    solution = solve(problem, NORMS[norm](*problem.shape), tol=tol)
    each = (time.perf_counter() - start) / len(problem)
    rows = []
    for k in range(len(problem)):
        errors = Exact(problem, solution, k, norm).errors()
        gap = solution.gap[k].item()
        row = {"kind": kind, "norm": norm, "batch": batch, "instance": k, "tol": tol}
        row |= {"status": str(solution.status[k]), "gap": gap if math.isfinite(gap) else None}
        row |= {"found": bool(solution.upper[k].isfinite()), "seconds": each}
        rows.append(row | {"verified": not errors, "errors": errors[:1]})
    return rows


def fuzz(
    instances: int,
    seed: int,
    norms: Iterable[str] = tuple(NORMS),
    workers: int = 1,
    kinds: Iterable[str] = tuple(KINDS),
) -> Iterator[Row]:
    """Rows of all instances, in any order."""
    work = partial(rows_of, seed=seed, norms=tuple(norms), kinds=tuple(kinds))
    batches = range(math.ceil(instances / BATCH))
    if workers == 1:
        yield from (row for batch in batches for row in work(batch))
        return
    with get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
        for rows in pool.imap_unordered(work, batches):
            yield from rows


def table(rows: list[Row], by: str) -> list[str]:
    """Counts of solved, infeasible, open and false certificates."""
    heads = (by, "instances", "solved", "infeasible", "open", "no W", "false", "ms each")
    lines = ["{:>16} {:>9} {:>7} {:>10} {:>5} {:>5} {:>5} {:>8}".format(*heads)]
    groups = {name: [row for row in rows if row[by] == name] for name in sorted({row[by] for row in rows})}
    for name, some in [*groups.items(), ("all", rows)]:
        count = Counter(row["status"] for row in some)
        nothing = sum(row["status"] == "not converged" and not row["found"] for row in some)
        false = sum(not row["verified"] for row in some)
        each = 1e3 * sum(row["seconds"] for row in some) / max(1, len(some))
        numbers = (len(some), count["solved"], count["infeasible"], count["not converged"], nothing, false, each)
        lines.append("{:>16} {:9} {:7} {:10} {:5} {:5} {:5} {:8.1f}".format(name, *numbers))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--norms", nargs="+", default=list(NORMS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="write a line of JSON per instance")
    parser.add_argument("--table", type=Path, help="only print the tables of these rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table:
        rows = [json.loads(line) for line in options.table.read_text().splitlines()]
    else:
        rows = []
        with open(options.rows or "/dev/null", "a") as file:
            for row in fuzz(options.instances, options.seed, options.norms, options.workers, options.kinds):
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                if not row["verified"]:
                    print("FALSE:", json.dumps(row), flush=True)
    print("\n".join([*table(rows, "kind"), "", *table(rows, "norm")]))
    still_open = sum(row["status"] == "not converged" for row in rows)
    false = sum(not row["verified"] for row in rows)
    print(f"open share {still_open / max(1, len(rows)):.2%}, false certificates {false}")
    sys.exit(1 if false else 0)


if __name__ == "__main__":
    main()
