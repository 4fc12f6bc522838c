"""From the iterates of a solver to what is certain in real arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.geometry import Geometry
from attsvm.svm._exact import UNIT, combination, inner, magnitude, values
from attsvm.svm._farkas import prove_infeasible
from attsvm.svm._result import Status
from attsvm.svm._rows import Batch, Iterates, System

_LIFTS = (0.25, 1.0, 4.0)
"""How far rows at the margin are lifted above it, in units of what rounding the entries of W can do to them."""

_AT_MARGIN = 1e-13
"""Rows that are this near to their margin, as a part of it, are there."""

_NEARLY_CANCELLED = 1e-6
"""Where A'λ is below this fraction of its terms, it is worth looking for a proof that no W is feasible."""


@dataclass
class Answer(Batch):
    """Everything of a MaxMargin that the solver finds, in scaled units."""

    W: Tensor
    lam: Tensor
    lower: Tensor
    upper: Tensor
    violation: Tensor  # (B, N), of the equality rows
    status: Tensor
    iterations: Tensor

    def fits(self, tol: float) -> Tensor:
        """Where there is a W, and its violation of the equalities is within the tolerance (B,): rows have norm 1 or
        so."""
        return self.upper.isfinite() & (self.violation <= tol * self.upper[:, None]).all(1)

    def improve(self, part: Answer, tol: float) -> None:
        """Take over what is better: a proof of infeasibility, a smaller W, a larger lower bound."""
        self.iterations += part.iterations
        fits, fitted = part.fits(tol), self.fits(tol)  # a W that violates equalities may be shorter
        smaller = torch.where(fits == fitted, part.upper < self.upper, fits)
        larger = part.lower > self.lower
        for better, names in ((smaller, ("W", "upper", "violation")), (larger, ("lam", "lower"))):
            for name in names:
                old, new = getattr(self, name), getattr(part, name)
                old[better] = new[better]
        self.status = status_of(self, tol)
        proved = (part.status == Status.INFEASIBLE).nonzero()[:, 0]
        for name in ("W", "lam", "lower", "upper", "violation", "status"):
            getattr(self, name)[proved] = getattr(part, name)[proved]


def status_of(answer: Answer, tol: float) -> Tensor:
    """Solved where the bracket and W's violation of the equalities are both within the tolerance.

    A `lower` above `upper` by more means that W violates equalities by too much, small as that is beside its norm.
    """
    solved = ((answer.upper - answer.lower).abs() <= tol * answer.lower) & answer.fits(tol)
    return torch.where(solved, int(Status.SOLVED), int(Status.NOT_CONVERGED))


def certify(system: System, geometry: Geometry, run: Iterates, tol: float) -> Answer:
    """Make W feasible, and bracket the optimal norm from W and λ alone."""
    inequality = system.inequality
    lam = torch.where(inequality, run.lam.clamp_min(0), run.lam).nan_to_num(0.0, 0.0, 0.0)
    W, tight = _polished(system, geometry, run.W, lam)
    answer = _bracket(system, geometry, W, lam, tol, double=False)
    answer.iterations = run.iterations

    # Where the a-priori bounds of the rounding are too coarse: the same in double-double arithmetic, with rows lifted
    # above the margin by what rounding takes from them.
    hard = (answer.status == Status.NOT_CONVERGED).nonzero()[:, 0]
    if len(hard):
        part = system.take(hard)
        some = answer.take(hard)
        some.iterations = torch.zeros_like(some.iterations)
        # A bound of the dual norm that needs an SVD, and a projection, are of no use where W separates nothing.
        again = _bracket(part, geometry, W[hard], lam[hard], tol, double=True)
        some.improve(again, tol)
        for lift in _LIFTS:
            lifted = _lifted(part, W[hard], tight[hard], lift)
            W_lifted, upper, violation = _feasible(part, geometry, lifted, double=True)
            better = upper < some.upper
            some.W = torch.where(better[:, None, None], W_lifted, some.W)
            some.upper = torch.where(better, upper, some.upper)
            some.violation = torch.where(better[:, None], violation, some.violation)
        some.status = status_of(some, tol)
        match_scales(some, part, geometry, tol)
        some.iterations = answer.iterations[hard]
        answer.put(hard, some)

    hard = (answer.status == Status.NOT_CONVERGED).nonzero()[:, 0]
    if len(hard):
        dual = geometry.dual_norm(system.rows.take(hard).adjoint(answer.lam[hard]))
        suspects = hard[system.take(hard).cancelled(answer.lam[hard], dual, _NEARLY_CANCELLED)]
        proved, farkas = prove_infeasible(system.take(suspects), answer.lam[suspects])
        at = suspects[proved]
        answer.lam[at] = farkas[proved]
        answer.W[at], answer.lower[at], answer.upper[at] = math.nan, math.inf, math.inf
        answer.violation[at], answer.status[at] = 0.0, int(Status.INFEASIBLE)
    return answer


def share(system: System, lam: Tensor) -> Tensor:
    """The multipliers over b'λ. Near the solution a row's slack times its share is small; which of the two
    is larger tells the rows at the margin from the others."""
    return lam / (system.b * lam).sum(1, keepdim=True)


def _polished(system: System, geometry: Geometry, W: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """W with margin 1, moved so that the rows at the margin meet it to plain rounding; and these rows.

    Because A'λ is the gradient of the norm, a correction of size ε that does so leaves the optimal norm only by ε².
    """
    rows, b, inequality, equality = system.rows, system.b, system.inequality, system.equality
    # An interpolation has no margin: its scale is fixed by the right-hand sides.
    has_margin = inequality.any(1)
    interpolated = (b * rows.apply(W)).sum(1) / (b * b).sum(1)
    W = W / torch.where(has_margin, 1.0, interpolated)[:, None, None]
    if bool(equality.any()):
        W = rows.project(W, b, equality)

    W, norm, slack = _at_margin(system, geometry, W, lam)
    tight = equality | (inequality & (slack <= share(system, lam)))
    off = (tight & (slack.abs() > _AT_MARGIN * b)).any(1).nonzero()[:, 0]
    if len(off):
        part, of_part = system.take(off), W[off]
        polished, shorter, _ = _at_margin(part, geometry, part.rows.project(of_part, part.b, tight[off]), lam[off])
        W[off] = torch.where((shorter < norm[off])[:, None, None], polished, of_part)
    return W.nan_to_num(0.0, 0.0, 0.0), tight


def _at_margin(system: System, geometry: Geometry, W: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W scaled to margin 1, its norm (infinite if W separates nothing), and the slack of its rows."""
    AW, has_margin = system.rows.apply(W), system.inequality.any(1)
    margin = torch.where(has_margin, system.least_margin(AW), 1.0)
    # What separates nothing keeps its size: lifting its rows may still make it separate.
    keep = torch.where(margin > 0, margin, torch.where(has_margin, (AW * lam).sum(1), 1.0).abs() + UNIT)
    norm = torch.where(margin > 0, geometry.norm(W.nan_to_num()) / keep, math.inf)
    return W / keep[:, None, None], norm, AW / keep[:, None] - system.b


def _lifted(system: System, W: Tensor, tight: Tensor, lift: float) -> Tensor:
    """W with the rows at the margin, and those that rounding brings below it, lifted above it.

    Rounding the entries of W moves the value of a row by up to u⟨|a| ⊗ |z|, |W|⟩. Where a row asks for less than that,
    no scaling of W helps, but asking a little more of only this row does, and hardly costs norm.
    """
    rows, b = system.rows, system.b
    for _ in range(2):
        size = magnitude(rows, W)
        target = b + torch.where(system.inequality, lift * UNIT * size, 0.0)
        value, error = values(rows, W, double=True)
        tight = tight | (system.inequality & (value - error < b))
        W = rows.project(W, target, tight, lambda W: values(rows, W, double=True)[0])
    return W


def _feasible(system: System, geometry: Geometry, W: Tensor, double: bool) -> tuple[Tensor, Tensor, Tensor]:
    """W scaled so that its margin is at least 1 in real arithmetic, a bound of its norm (infinite where that fails)
    and of what it leaves of the equalities."""
    rows, b = system.rows, system.b
    has_margin = system.inequality.any(1)

    def least(value: Tensor, error: Tensor) -> Tensor:
        return torch.where(has_margin, system.least_margin(value - error) * (1 - 2 * UNIT), 1.0)

    value, error = values(rows, W, double)
    margin = least(value, error)
    if not double:  # the bound of plain sums leaves room for the rounding of this division
        found = margin > 0
        shrink = torch.where(found & has_margin, margin * (1 - 4 * UNIT), 1.0)[:, None]
        W, value, error = W / shrink[..., None], value / shrink, error / shrink
    else:
        for attempt in range(4):
            short = (margin > 0) & (margin < 1)
            if not bool(short.any()):
                break
            W = W / torch.where(short, margin * (1 - 4**attempt * UNIT), 1.0)[:, None, None]
            value, error = values(rows, W, double)
            margin = least(value, error)
        found = margin >= 1
    left = torch.where(system.equality, (value - b).abs() + error, 0.0)
    upper = geometry.norm_bound(W)
    found &= upper.isfinite()
    return (
        torch.where(found[:, None, None], W, math.nan),
        torch.where(found, upper, math.inf),
        torch.where(found[:, None], left, 0.0) * (1 + 4 * UNIT),
    )


def _bound_below(system: System, geometry: Geometry, lam: Tensor, upper: Tensor, double: bool) -> tuple[Tensor, Tensor]:
    """Multipliers scaled to those of min ½‖W‖², and what no feasible W can have less norm than: b'λ/‖A'λ‖_*."""

    def bounds(lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, error = inner(system.b, lam)
        value = (value - error) * (1 - 4 * UNIT)
        dual = geometry.dual_norm_bound(*combination(system.rows, lam, double))
        lower = value / dual * (1 - 2 * UNIT)
        return value, dual, torch.where((value > 0) & (lower > 0), lower, 0.0)

    value, dual, lower = bounds(lam)
    factor = torch.where(upper.isfinite(), upper, value / dual) / dual
    lam = lam * torch.where((factor > 0) & factor.isfinite(), factor, 1.0)[:, None]
    # The bounds of plain sums leave room for the rounding of this product; the others are taken again.
    return lam, bounds(lam)[2] if double else lower


def match_scales(answer: Answer, system: System, geometry: Geometry, tol: float) -> None:
    """Scale the multipliers to the W beside them, which another attempt may have found, and bound anew from them."""
    at = (answer.status == Status.SOLVED).nonzero()[:, 0]
    if len(at):
        some = answer.take(at)
        some.lam, some.lower = _bound_below(system.take(at), geometry, some.lam, some.upper, double=True)
        still = status_of(some, tol) == Status.SOLVED
        answer.put(at[still], some.take(still))


def _bracket(system: System, geometry: Geometry, W: Tensor, lam: Tensor, tol: float, double: bool) -> Answer:
    W, upper, violation = _feasible(system, geometry, W, double)
    lam, lower = _bound_below(system, geometry, lam, upper, double)
    none = torch.zeros_like(lower, dtype=torch.long)
    answer = Answer(W, lam, lower, upper, violation, none, none.clone())
    answer.status = status_of(answer, tol)
    return answer
