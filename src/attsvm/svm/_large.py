"""One instance with up to millions of rows: a working set that grows by the worst violator of every query.

The problem is solved over the working set. All rows are priced at its W, queries whose worst row falls below the margin
give that row to the set, and rows without weight and far from the margin leave it. Every set bounds the optimal norm
from below, because its multipliers are multipliers of all rows, with zeros. W over its smallest margin on all rows
bounds it from above. Both bounds count all rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp
from attsvm.interrupts import asked_to_stop
from attsvm.progress import Tell, progress_bar
from attsvm.svm._augmented import Augmented, WorkingRows
from attsvm.svm._embedding import EmbeddingProblem
from attsvm.svm._exact import UNIT, combination, inner
from attsvm.svm._farkas import prove_infeasible
from attsvm.svm._pricing import OUT_OF_RANGE, EmbeddingPricing, FormedPricing, Priced, Pricing, TokenPricing
from attsvm.svm._problem import MarginProblem, TokenProblem
from attsvm.svm._result import MaxMargin, Status
from attsvm.svm._rows import Rows, System

PATIENCE = 25
"""Rounds without progress of the gap, or before there is one of the lower bound, after which an instance is left."""

_SUSPICIOUS = (1e-6, 1e-7, 1e-8)
"""Where A'λ has cancelled to these fractions of its terms, a proof of infeasibility is tried, once each."""

_FEW_STEPS = 25
"""Newton steps up to which the penalty may grow tenfold."""

_MOST_FOR_PROOF = 2000
"""Rows that are solved anew for such a proof."""

SmallSolver = Callable[[MarginProblem, float], MaxMargin]


class Found(NamedTuple):
    """What solving over the working set gave: W, multipliers, a certified lower bound, to which fraction of its terms
    A'λ has cancelled, and whether λ is a Farkas vector: then no W is feasible."""

    W: Tensor
    lam: Tensor
    lower: float
    cancelled: float = math.inf
    infeasible: bool = False


@dataclass
class _Best:
    """The best bracket so far. Until `certified`, `upper` is of plain arithmetic; W has margin 1."""

    W: Tensor
    working: WorkingRows
    lam: Tensor
    lower: float = 0.0
    upper: float = math.inf
    off: float = 0.0
    status: Status = Status.NOT_CONVERGED
    rounds: int = 0

    @property
    def gap(self) -> float:
        return abs(self.upper - self.lower) / self.lower if self.lower > 0 else math.inf

    def fits(self, tol: float) -> bool:
        """Equalities hold to the tolerance where a row of the norm of theirs would reach at most ‖W‖."""
        equal = self.working.scale[self.working.equality]
        return self.off <= tol * self.upper * (float(equal.amin()) if len(equal) else 1.0)

    def within(self, tol: float) -> bool:
        return self.gap <= tol and self.fits(tol)

    def rank(self, tol: float) -> tuple[bool, bool, float, float]:
        """Less is better: a W that violates equalities may be shorter, and then lies below the lower bound."""
        fits = self.fits(tol)
        return self.upper == math.inf, not fits, self.gap if fits else self.off / self.upper, self.upper


def solve_large(
    problem: MarginProblem, geometry: Geometry, tol: float, max_rounds: int, progress: bool, small: SmallSolver
) -> MaxMargin:
    """Each instance of the problem by itself; `small` solves a problem of few rows in this norm."""
    answers = []
    with asked_to_stop() as stop, progress_bar(progress, 0.0, -math.log10(tol), f"{problem.rows:,} rows") as tell:
        for k in range(problem.B):
            pricing = _pricing(problem, k)
            best = _rounds(pricing, problem.shape, geometry, tol, max_rounds, small, stop.is_set, tell)
            answers.append(_spread(best, pricing, problem))
    if stop.is_set():
        warnings.warn("interrupted: the brackets are those reached by then.", stacklevel=3)
    names = ("W", "multipliers", "lower", "upper", "violation", "support", "codes", "iterations")
    return MaxMargin(problem=problem, geometry=geometry, **dict(zip(names, map(torch.stack, zip(*answers)))))


def _pricing(problem: MarginProblem, k: int) -> Pricing:
    if isinstance(problem, TokenProblem):
        return TokenPricing(problem)
    return EmbeddingPricing(problem) if isinstance(problem, EmbeddingProblem) else FormedPricing(problem, k)


def _rounds(
    pricing: Pricing,
    shape: tuple[int, int],
    geometry: Geometry,
    tol: float,
    max_rounds: int,
    small: SmallSolver,
    stopped: Callable[[], bool],
    tell: Tell,
) -> _Best:
    most_new = max(256, math.prod(shape) // (1 if geometry == Lp(2) else 4))
    W = pricing.total()
    W = W / torch.linalg.vector_norm(W).clamp_min(1e-300)
    first = pricing.worst(W)
    if bool(first.ratio.isnan().any()):
        raise AttsvmError(OUT_OF_RANGE)
    order = first.ratio.argsort()[: 2 * most_new]
    order = order[first.ratio[order] < math.inf]
    tied = first.off.argsort(descending=True)[:most_new]
    working = pricing.pick(torch.cat((first.code[order], first.off_code[tied[first.off[tied] > 0]])))
    best = _Best(torch.full_like(W, math.nan), working.take(order[:0]), working.b[:0])
    if not len(order):  # nothing is asked
        return replace(best, W=torch.zeros_like(W), upper=0.0, status=Status.SOLVED)
    lam = torch.zeros_like(working.b)
    method = _Euclidean(W, small) if geometry == Lp(2) else _Other(small)
    idle, lowest, suspicions = 0, math.inf, 0
    for best.rounds in range(1, max_rounds + 1):
        zero = ((working.A == 0).all(1) | (working.Z == 0).all(1)) & (working.b > 0)
        if bool(zero.any()):
            return replace(best, working=working, lam=zero / working.b, status=Status.INFEASIBLE)
        found = method.solve(working, lam, best.gap, tol)
        if suspicions < len(_SUSPICIOUS) and found.cancelled <= _SUSPICIOUS[suspicions]:
            suspicions += 1
            found = method.doubt(working, found, tol)
        if found.infeasible:
            return replace(best, working=working, lam=found.lam, status=Status.INFEASIBLE)
        W, lam = found.W, found.lam
        if found.lower > best.lower:
            best.lower, best.lam, best.working = found.lower, lam, working
        if not bool(W.isfinite().all()):
            break
        priced = pricing.worst(W)
        least, off = float(priced.ratio.amin()), float(priced.off.amax())
        value = working.apply(W)
        if least > 0:
            new = replace(best, W=W / least, upper=float(geometry.norm(W)) / least, off=off / least)
            best = min(best, new, key=lambda one: one.rank(tol))
        if best.within(tol) and _certified(best, pricing, geometry).within(tol):
            best.status = Status.SOLVED
            break
        inside = _short(working, value)
        violation = max(1 - least, _short_off(priced, working), 0.0)
        more = f"{len(working):,} in the set, violation {violation:.1e}, gap {best.gap:.1e}"
        tell(-math.log10(min(1.0, max(best.gap, tol))), more=more)
        measure = best.gap if best.gap < math.inf else 1e9 / max(best.lower, 1e-300)
        idle = 0 if measure < 0.99 * lowest else idle + 1
        lowest = min(lowest, measure)
        if stopped() or idle > PATIENCE:
            break
        new = _violators(priced, working, 0.1 * max(inside, 0.1 * tol), most_new)
        method.tighten(inside > 0.5 * violation or not len(new), best.gap, tol)
        keep = ((lam != 0) | working.equality | (value < 2 * working.b)).nonzero()[:, 0]
        working = working.take(keep).join(pricing.pick(new))
        lam = torch.cat((lam[keep], lam.new_zeros(len(new))))
    return _certified(best, pricing, geometry) if best.status != Status.SOLVED else best


class _Euclidean:
    """ℓ2: augmented Lagrangians, warm."""

    def __init__(self, W: Tensor, small: SmallSolver) -> None:
        self.state, self.small = Augmented(W), small

    def solve(self, working: WorkingRows, lam: Tensor, gap: float, tol: float) -> Found:
        lam = self.state.minimise(working, lam, 0.1 * min(gap, 1.0))
        dual = float(torch.linalg.vector_norm(working.adjoint(lam)))
        cancelled = dual / max(float(lam.abs().sum()), 1e-300)
        return Found(self.state.W, lam, _lower_bound(working, lam, Lp(2)), cancelled)

    def doubt(self, working: WorkingRows, found: Found, tol: float) -> Found:
        """A'λ has nearly cancelled: try to prove that the rows with weight contradict each other, or some of them."""
        some = found.lam.nonzero()[:, 0]
        if not len(some):
            return found
        proved, farkas = prove_infeasible(_as_system(working.take(some)), found.lam[some][None])
        if bool(proved[0]):
            return found._replace(lam=torch.zeros_like(found.lam).scatter(0, some, farkas[0]), infeasible=True)
        if found.cancelled > _SUSPICIOUS[-1]:
            return found
        order = found.lam.abs().argsort(descending=True)
        order = order[: min(int((found.lam != 0).sum()), _MOST_FOR_PROOF)]
        count = 8 * (found.W.numel() + 1)
        while True:
            few = order[:count]
            solution = self.small(_as_problem(working.take(few)), tol)
            if bool(solution.infeasible[0]):
                lam = torch.zeros_like(found.lam).scatter(0, few, solution.multipliers.flatten())
                return found._replace(lam=lam, infeasible=True)
            if count >= len(order):
                return found
            count *= 4

    def tighten(self, inside: bool, gap: float, tol: float) -> None:
        if inside and self.state.at_minimum:  # the set itself is not solved well enough
            few = gap <= 1e-2 and self.state.steps <= _FEW_STEPS
            self.state.sigma = min(self.state.sigma * (10 if few else 3), 1e10)


class _Other:
    """Any other norm: the methods for small problems, from the start."""

    def __init__(self, small: SmallSolver) -> None:
        self.small, self.accuracy = small, 1e-3

    def solve(self, working: WorkingRows, lam: Tensor, gap: float, tol: float) -> Found:
        solution = self.small(_as_problem(working), max(self.accuracy, tol / 4))
        lam = solution.multipliers.flatten()
        return Found(solution.W[0], lam, float(solution.lower[0]), infeasible=bool(solution.infeasible[0]))

    def doubt(self, working: WorkingRows, found: Found, tol: float) -> Found:
        return found

    def tighten(self, inside: bool, gap: float, tol: float) -> None:
        self.accuracy = tol / 4 if inside else min(self.accuracy, 0.03 * gap)


def _as_problem(working: WorkingRows) -> MarginProblem:
    own = MarginProblem.from_rows(working.A, working.Z, working.b, working.equality)
    return replace(own, A_low=working.A_low[None, :, None])


def _as_system(working: WorkingRows) -> System:
    rows = Rows(working.A[None, :, None], working.Z[None], working.A_low[None, :, None])
    return System(rows, working.b[None], ~working.equality[None], working.equality[None])


def _lower_bound(working: WorkingRows, lam: Tensor, geometry: Geometry, double: bool = False) -> float:
    """b'λ/‖A'λ‖_*, rounded down: no W that satisfies these rows has a smaller norm."""
    value, error = inner(working.b[None], lam[None])
    dual = geometry.dual_norm_bound(*combination(_as_system(working).rows, lam[None], double))
    lower = float(((value - error) * (1 - 4 * UNIT) / dual * (1 - 4 * UNIT))[0])
    return lower if lower > 0 else 0.0


def _certified(best: _Best, pricing: Pricing, geometry: Geometry) -> _Best:
    """The bracket in real numbers: W over a bound of its smallest margin, and a bound of its norm."""
    if not bool(best.W.isfinite().all()):
        return best
    least, off = (float(x) for x in pricing.bounds(best.W))
    if not least > 0:
        best.W, best.upper, best.off = torch.full_like(best.W, math.nan), math.inf, 0.0
        return best
    least *= 1 - 16 * UNIT  # what the divisions take, W's included
    best.W = best.W / least
    best.upper, best.off = float(geometry.norm_bound(best.W[None])[0]), off / least
    if best.lower > 0:  # multipliers in the scale of W, unless their terms cancel so far that rounding spoils them
        lam = best.lam * (best.upper / float(geometry.dual_norm(best.working.adjoint(best.lam))))
        lower = _lower_bound(best.working, lam, geometry, double=True)
        if lower >= best.lower * (1 - 1e-13):
            best.lam, best.lower = lam, lower
    return best


def _short(working: WorkingRows, value: Tensor) -> float:
    """By how much the working rows fall short, relative to the margin; equalities as against rows of margin 1."""
    typical = working.b[~working.equality].mean()
    short = torch.where(working.equality, value.abs() / typical, 1 - value / working.b.clamp_min(1e-300))
    return max(float(short.amax()), 0.0)


def _short_off(priced: Priced, working: WorkingRows) -> float:
    typical = (working.b * working.scale)[~working.equality].mean()
    return float(priced.off.amax() / typical)


def _violators(priced: Priced, working: WorkingRows, least: float, most: int) -> Tensor:
    """Codes of the worst rows of all queries that fall short by more than `least` and are not in the set."""
    typical = (working.b * working.scale)[~working.equality].mean()
    short = torch.cat((1 - priced.ratio, priced.off / typical))
    code = torch.cat((priced.code, priced.off_code))
    bad = (short > least).nonzero()[:, 0]
    bad = bad[~torch.isin(code[bad], working.code)]
    return code[bad[short[bad].argsort(descending=True)[:most]]]


def _spread(best: _Best, pricing: Pricing, problem: MarginProblem) -> tuple[Tensor, ...]:
    """The fields of a MaxMargin: multipliers and support over all rows, in the problem's units."""
    working, lam, W = best.working, best.lam, best.W
    infeasible = best.status == Status.INFEASIBLE
    number = pricing.rows_of(working.code)
    if infeasible:
        W, best.lower, best.upper, best.off = torch.full_like(W, math.nan), math.inf, math.inf, 0.0
        lam = lam / (working.b * lam).sum()
    share = torch.maximum(lam / (working.b * lam).sum(), 1e-8 * working.b)
    tight = number[~working.equality & (working.apply(W) - working.b <= share)]
    multipliers = W.new_zeros(problem.rows).scatter(0, number, lam / working.scale)
    support = torch.zeros(problem.rows, dtype=torch.bool, device=W.device).index_fill(0, tight, True)
    shape = _groups(problem)
    number_of = lambda x: torch.tensor(x, dtype=torch.float64, device=W.device)  # noqa: E731
    return (
        W,
        multipliers.reshape(shape),
        number_of(best.lower),
        number_of(best.upper),
        number_of(best.off),
        support.reshape(shape),
        torch.tensor(int(best.status), device=W.device),
        torch.tensor(best.rounds, device=W.device),
    )


def _groups(problem: MarginProblem) -> tuple[int, int]:
    """(Q, R)."""
    if isinstance(problem, TokenProblem):
        return problem.data.n * problem.data.K, problem.data.T - 1
    return (1, problem.rows) if isinstance(problem, EmbeddingProblem) else (problem.A.shape[1], problem.A.shape[2])
