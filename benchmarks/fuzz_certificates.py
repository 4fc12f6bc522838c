"""Nasty max-margin problems, and every certificate of their solutions checked in exact arithmetic.

Values of rows, multipliers and ℓ2 norms are computed in fractions, other norms to 80 digits, from the numbers that
`solve` was given and those that it returned. A claim that no W is feasible is checked by a vertex of the alternative,
found by HiGHS and solved in fractions. One table comes out:

python benchmarks/fuzz_certificates.py --instances 10000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import scipy.optimize
import torch

from attsvm import Lp, MarginProblem, MaxMargin, Nuclear, Status, TokenData, att_svm, gen_svm, solve
from attsvm.geometry import Group, Schatten

NORMS = ("l1", "l1.1", "l1.5", "l2", "l3", "l4", "l10", "linf", "nuclear", "spectral", "group:rows")
BATCH = 10
Vector = list[Fraction]


# The nasty instances. Each function makes a batch of problems over tokens or of own rows.


def _tokens(rng: np.random.Generator, n: int, T: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(BATCH, n, T, d)), rng.normal(size=(BATCH, n, d))


def _size(rng: np.random.Generator) -> tuple[int, int, int]:
    return tuple(rng.choice([(6, 8, 10), (3, 4, 6), (4, 5, 4), (2, 6, 5), (5, 3, 3)]))  # type: ignore[return-value]


def _att(X: np.ndarray, Z: np.ndarray) -> MarginProblem:
    return att_svm(TokenData.cross(X, Z), np.zeros(X.shape[1], dtype=int))


def scaled_queries(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    return _att(X, Z * 10.0 ** rng.uniform(-8, 8, size=Z.shape[:2])[..., None])


def scaled_tokens(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    return _att(X * 10.0 ** rng.uniform(-4, 4, size=X.shape[:2])[..., None, None], Z)


def scaled_rows(rng: np.random.Generator) -> MarginProblem:
    N, d, e = rng.integers(3, 30), rng.integers(2, 7), rng.integers(1, 5)
    A = rng.normal(size=(BATCH, N, d)) * 10.0 ** rng.uniform(-8, 8, size=(BATCH, N, 1))
    return MarginProblem.from_rows(A, rng.normal(size=(BATCH, N, e)), b=10.0 ** rng.uniform(-2, 2, size=(BATCH, N)))


def scaled_columns(rng: np.random.Generator) -> MarginProblem:
    N, d = rng.integers(2, 12), rng.integers(2, 12)
    return MarginProblem.from_rows(rng.normal(size=(BATCH, N, d)) * 10.0 ** rng.uniform(-8, 0, size=(BATCH, 1, d)))


def near_ties(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    gap = 10.0 ** rng.uniform(-9, -3, size=(BATCH, 1))
    X[:, 0, 1] = X[:, 0, 0] + gap * rng.normal(size=X[:, 0, 0].shape)
    return _att(X, Z)


def duplicates(rng: np.random.Generator) -> MarginProblem:
    X, Z = _tokens(rng, *_size(rng))
    X[:, 0, 2] = X[:, 0, 1]  # two equal competitors
    Z[:, 1] = Z[:, 0]
    X[:, 1] = X[:, 0]  # the same sequence twice
    if rng.random() < 0.3:
        X[:, 1, [0, 1]] = X[:, 1, [1, 0]]  # with the opposite wish
    elif rng.random() < 0.3:
        X[:, 0, 1] = X[:, 0, 0]  # the selected token is repeated
    return _att(X, Z)


def near_infeasible(rng: np.random.Generator) -> MarginProblem:
    """Margins of 1e-1 to 1e-6 of the rows' length."""
    N, d, e = rng.integers(5, 40), rng.integers(2, 5), rng.integers(1, 4)
    W = rng.normal(size=(BATCH, d, e))
    A, Z = rng.normal(size=(BATCH, N, d)), rng.normal(size=(BATCH, N, e))
    Wz = np.einsum("bde,bne->bnd", W, Z)
    value = np.einsum("bnd,bnd->bn", A, Wz)
    A *= np.where(value < 0, -1, 1)[..., None]
    gamma = 10.0 ** rng.uniform(-6, -1, size=(BATCH, 1)) * (1 + rng.exponential(size=(BATCH, N)))
    A += ((gamma - abs(value)) / (Wz**2).sum(-1))[..., None] * Wz
    return MarginProblem.from_rows(A, Z)


def overfull(rng: np.random.Generator) -> MarginProblem:
    """Mostly infeasible."""
    n, T, d = rng.integers((3, 4, 2), (7, 9, 4)).tolist()
    return _att(*_tokens(rng, n, T, d))


def whole_numbers(rng: np.random.Generator) -> MarginProblem:
    n, T, d = rng.integers(1, 5), rng.integers(2, 6), rng.integers(1, 5)
    X, Z = rng.integers(-2, 3, size=(BATCH, n, T, d)), rng.integers(-2, 3, size=(BATCH, n, d))
    return _att(X, Z)


def equalities(rng: np.random.Generator) -> MarginProblem:
    n, T, d = _size(rng)
    X, Z = _tokens(rng, n, T, d)
    data = TokenData.cross(X, Z * 10.0 ** rng.uniform(-3, 3, size=Z.shape[:2])[..., None])
    selected = torch.zeros_like(data.mask)
    selected[..., 0] = True
    selected[:, 0, :, 1] = True
    return gen_svm(data, selected)


KINDS: dict[str, Callable[[np.random.Generator], MarginProblem]] = {
    f.__name__: f
    for f in (
        scaled_queries,
        scaled_tokens,
        scaled_rows,
        scaled_columns,
        near_ties,
        duplicates,
        near_infeasible,
        overfull,
        whole_numbers,
        equalities,
    )
}


# The checks.


class Exact:
    """Instance k of a problem and its solution, as fractions."""

    def __init__(self, problem: MarginProblem, solution: MaxMargin, k: int) -> None:
        self.problem, self.solution, self.k = problem, solution, k
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
        if self._exceeds(W, upper, dual=False):
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
        U = [[Fraction(0)] * e for _ in range(d)]
        for q, z in enumerate(self.z):
            rows = range(q * self.R, (q + 1) * self.R)
            v = [sum((lam[c] * self.a[c][i] for c in rows if self.present[c]), Fraction(0)) for i in range(d)]
            for i in range(d):
                for j in range(e):
                    U[i][j] += v[i] * z[j]
        value = sum((x * b for x, b, there in zip(lam, self.b, self.present) if there), Fraction(0))
        # lower ≤ b'λ/‖A'λ‖_*, that is ‖A'λ‖_* ≤ b'λ/lower.
        return ["b'λ/‖A'λ‖ is below lower"] if self._exceeds(U, value / Fraction(lower), dual=True) else []

    def _exceeds(self, W: list[Vector], bound: float | Fraction, dual: bool) -> bool:
        bound, geometry = Fraction(bound), self.solution.geometry
        if bound < 0:
            return True
        flat = [x for row in W for x in row]
        if isinstance(geometry, Lp) and not geometry.smooth:
            sizes = [abs(x) for x in flat]
            return (max(sizes) if (geometry.p == 1) == dual else sum(sizes, Fraction(0))) > bound
        if geometry == Lp(2):
            return sum((x * x for x in flat), Fraction(0)) > bound * bound
        with mpmath.workdps(80):
            limit = _number(bound)
            if isinstance(geometry, Lp):
                p = mpmath.mpf(geometry.p)
                p = p / (p - 1) if dual else p
                return mpmath.fsum(abs(_number(x)) ** p for x in flat if x) > limit**p
            if isinstance(geometry, Group):
                index = geometry.blocks(len(W), len(W[0])).index.flatten(1).tolist()
                values = [mpmath.sqrt(mpmath.fsum(_number(flat[i]) ** 2 for i in group if i >= 0)) for group in index]
                return (max(values) if geometry.largest != dual else mpmath.fsum(values)) > limit
            values = mpmath.svd_r(mpmath.matrix([[_number(x) for x in row] for row in W]), compute_uv=False)
            p = float("inf") if isinstance(geometry, Nuclear) and dual else 1.0
            if isinstance(geometry, Schatten):
                p = geometry.dual.p if dual else geometry.p
            if p == float("inf"):
                return max(values) > limit
            return mpmath.fsum(x ** mpmath.mpf(p) for x in values) > limit ** mpmath.mpf(p)

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
    return sum((x * y for x, y in zip(a, b) if x and y), Fraction(0))


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


def fuzz(instances: int, seed: int, norms: tuple[str, ...] = NORMS, verbose: bool = False) -> dict[str, Counter[str]]:
    """Counts of solved, infeasible, open and false certificates, by kind."""
    counts = {name: Counter[str]() for name in KINDS}
    done = 0
    while done < instances:
        name = list(KINDS)[done // BATCH % len(KINDS)]
        rng = np.random.default_rng([seed, done])
        problem, norm = KINDS[name](rng), norms[done // BATCH // len(KINDS) % len(norms)]
        start = time.perf_counter()
        solution = solve(problem, norm)
        counts[name]["ms"] += int(1e3 * (time.perf_counter() - start))
        for k in range(len(problem)):
            outcome = str(solution.status[k])
            counts[name][outcome] += 1
            for error in Exact(problem, solution, k).errors()[:1]:
                counts[name]["false"] += 1
                print(f"FALSE: {name}, seed {seed}, batch {done}, instance {k}, {norm}, {outcome}: {error}", flush=True)
            if verbose and outcome == "not converged":
                bracket = f"[{solution.lower[k].item():.6g}, {solution.upper[k].item():.6g}]"
                print(f"open: {name}, batch {done}, instance {k}, {norm}: {bracket}", flush=True)
        done += len(problem)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--norms", nargs="+", default=NORMS)
    parser.add_argument("--verbose", action="store_true", help="name the instances that stay open")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = fuzz(options.instances, options.seed, tuple(options.norms), options.verbose)
    columns = ("solved", "infeasible", "not converged", "false")
    print(f"{'kind':>16} {'instances':>9} {'solved':>7} {'infeasible':>10} {'open':>5} {'false':>5} {'ms each':>8}")
    total = sum(counts.values(), Counter())
    for name, count in [*counts.items(), ("all", total)]:
        number = sum(count[c] for c in columns[:3])
        numbers = [count[c] for c in columns]
        each = count["ms"] / max(1, number)
        row = (name, number, *numbers, each)
        print("{:>16} {:9} {:7} {:10} {:5} {:5} {:8.1f}".format(*row))
    number = sum(total[c] for c in columns[:3])
    print(f"open share {total['not converged'] / max(1, number):.2%}, false certificates {total['false']}")
    sys.exit(1 if total["false"] else 0)


if __name__ == "__main__":
    main()
