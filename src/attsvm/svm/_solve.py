"""From a margin problem to its certified solution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real, describe
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, Lp, Nuclear, parse_geometry
from attsvm.svm._lp import Iterates, solve_lp
from attsvm.svm._nuclear import solve_nuclear
from attsvm.svm._problem import MarginProblem, att_svm, head_svm
from attsvm.svm._result import MaxMargin, Status
from attsvm.svm._rows import Rows, System

_CHUNK_BYTES = {"cpu": 8e6, "cuda": 4e9}
"""Working set of a chunk of instances: what a CPU keeps in its cache, a good part of a GPU's memory."""


def solve(
    problem: MarginProblem, geometry: Geometry | str = "l2", *, tol: float = 1e-9, max_iterations: int = 200
) -> MaxMargin:
    """Solve every instance of `problem` in the given norm, certified to the relative gap `tol`.

    The arithmetic is float64 on the problem's device. A gap ε determines W to about √ε: ask for tol=1e-12 when the
    direction matters to six digits. An instance that does not converge in `max_iterations` is tried once more from
    another start. Infeasible instances and instances that do not converge come back in the same batch with their
    `status`; they do not disturb the others.
    """
    if not isinstance(problem, MarginProblem):
        hint = ": state one, such as att_svm(data)" if isinstance(problem, TokenData) else ""
        raise AttsvmError(f"problem must be a MarginProblem, but got {describe(problem)}{hint}.")
    geometry = parse_geometry(geometry)
    if not isinstance(geometry, Lp | Nuclear):
        raise AttsvmError(f"geometry must be Lp(p) or Nuclear() to be solved, but got {geometry!r}.")
    if not 1e-13 <= as_real("tol", tol, least=0) < 1:
        raise AttsvmError(f"tol must be between 1e-13 and 1, but got {tol}.")
    max_iterations = as_count("max_iterations", max_iterations)
    with torch.no_grad(), _enough_memory(problem, geometry):
        system, row_norm, scale, impossible = _prepare(problem, geometry)
        answer = _without_iterating(system, impossible)
        left = (answer.status == Status.NOT_CONVERGED).nonzero()[:, 0]
        rows = system.rows
        per_instance = 8 * max(rows.N**2, rows.Q * rows.N * rows.d, 1)
        chunk = max(1, int(_CHUNK_BYTES.get(scale.device.type, 4e9) / per_instance))
        for index in left.split(chunk) if len(left) else ():
            part = system.take(index)
            answer.put(index, _certify(part, geometry, _run(part, geometry, tol, max_iterations), tol))
            again = index[answer.status[index] == Status.NOT_CONVERGED]
            if isinstance(geometry, Lp) and geometry.p != 2 and len(again):
                answer.improve(again, _second_attempt(system.take(again), geometry, tol, max_iterations))
        share = torch.maximum(_share(system, answer.lam), 1e-8 * system.b)
        support = system.inequality & (rows.apply(answer.W) - system.b <= share)

        # Back to original units: rows were divided by their norms, and b by the scale of W.
        shape, infeasible = problem.b.shape, answer.status == Status.INFEASIBLE
        lam = answer.lam * torch.where(infeasible, 1 / scale, scale)[:, None] / row_norm
        return MaxMargin(
            problem=problem,
            geometry=geometry,
            W=answer.W * scale[:, None, None],
            multipliers=lam.reshape(shape),
            lower=answer.lower * scale,
            upper=answer.upper * scale,
            support=support.reshape(shape),
            status=answer.status,
            iterations=answer.iterations,
        )


@contextmanager
def _enough_memory(problem: MarginProblem, geometry: Lp | Nuclear) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        _, Q, R, d = problem.A.shape
        # The Newton matrix, its factor and a copy; for p ≠ 2 also what its products are made of.
        numbers = 3 * (Q * R) ** 2 + (0 if geometry == Lp(2) else Q * Q * R * d)
        raise AttsvmError(
            f"an instance of {Q * R} rows needs about {8e-9 * numbers:.0f} GB of memory, which is not there: leave out "
            "samples or tokens, or use a machine with more."
        ) from error


def token_margin(data: TokenData, tokens: Any | None = None, geometry: Geometry | str = "l2") -> Tensor:
    """1/‖W_mm‖ (B,) of the attention SVM for these tokens (the optimal ones by default), 0 if infeasible."""
    return solve(att_svm(data, tokens), geometry).margin


def label_margin(data: TokenData, tokens: Any | None = None, geometry: Geometry | str = "l2") -> Tensor:
    """1/‖v_mm‖ (B,) of the SVM that separates these tokens by their labels, 0 if infeasible."""
    return solve(head_svm(data, tokens), geometry).margin


@dataclass
class _Answer:
    """Everything of a MaxMargin that the solver finds, in scaled units."""

    W: Tensor
    lam: Tensor
    lower: Tensor
    upper: Tensor
    status: Tensor
    iterations: Tensor

    def put(self, index: Tensor, part: _Answer) -> None:
        for f in fields(self):
            getattr(self, f.name)[index] = getattr(part, f.name)

    def take(self, index: Tensor) -> _Answer:
        return _Answer(*(getattr(self, f.name)[index] for f in fields(self)))

    def improve(self, index: Tensor, part: _Answer) -> None:
        """Put in what is better: an answer, or a narrower bracket."""
        part.iterations += self.iterations[index]
        self.iterations[index] = part.iterations
        narrower = part.upper - part.lower < self.upper[index] - self.lower[index]
        better = ((part.status != Status.NOT_CONVERGED) | narrower).nonzero()[:, 0]
        self.put(index[better], part.take(better))


def _prepare(problem: MarginProblem, geometry: Lp | Nuclear) -> tuple[System, Tensor, Tensor, Tensor]:
    """The scaled system, what its rows (B, N) and W (B,) were divided by, and the rows (B, N) that no W can satisfy
    because they are zero."""
    A, Z, b = (x.to(torch.float64) for x in (problem.A, problem.Z, problem.b))
    B, Q, R, d = A.shape
    inequality, equality = problem.present & ~problem.equality, problem.present & problem.equality
    mixed = inequality.flatten(1).any(1) & (equality & (b != 0)).flatten(1).any(1)
    if bool(mixed.any()):
        raise AttsvmError(
            "equality rows beside inequalities must have b = 0, because their margin scales with W; "
            f"instance {int(mixed.nonzero()[0])} has another right-hand side."
        )
    A, b = torch.where(problem.present[..., None], A, 0.0), torch.where(problem.present, b, 0.0)
    norm = Lp(2.0 if isinstance(geometry, Nuclear) else geometry.q).norm
    norm_A, norm_Z = norm(A[..., None]), norm(Z[..., None])
    A, Z = A / _or_one(norm_A)[..., None], Z / _or_one(norm_Z)[..., None]
    if problem.shape[1] == 1:  # a scalar z joins its row, and all rows form one group
        A, Z = (A * Z[:, :, None, :]).reshape(B, 1, Q * R, d), Z.new_ones(B, 1, 1)
    b, inequality, equality = b.flatten(1), inequality.flatten(1), equality.flatten(1)
    row_norm = (_or_one(norm_A) * _or_one(norm_Z)[..., None]).flatten(1)
    zero = ((norm_A == 0) | (norm_Z == 0)[..., None]).flatten(1)
    asked, impossible = b / row_norm, zero & (b != 0)
    possible = (asked.abs() > 1e-150) & (asked.abs() < 1e150) | (b == 0)
    if not bool(((row_norm > 0) & row_norm.isfinite() & possible | zero).all()):
        raise AttsvmError("the rows ⟨a ⊗ z, W⟩/b must have norms between 1e-150 and 1e150: rescale A, Z or b.")
    scale = _or_one(asked.masked_fill(zero, 0.0).abs().sum(1))
    system = System(
        rows=Rows(A, Z),
        b=torch.where(zero, 0.0, asked / scale[:, None]),
        inequality=inequality & ~zero,
        equality=equality & ~zero,
    )
    # A zero row has no norm to divide by: with this one its multiplier of 1 becomes the Farkas vector 1/b.
    row_norm = torch.where(impossible, b / scale[:, None], row_norm)
    return system, row_norm, scale, impossible


def _or_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


def _without_iterating(system: System, impossible: Tensor) -> _Answer:
    """W = 0 where nothing is asked, infeasible where a zero row asks for something, the others still open."""
    b, rows = system.b, system.rows
    stuck = impossible.any(1)
    trivial = ~stuck & ~(b != 0).any(1)
    status = torch.full(stuck.shape, Status.NOT_CONVERGED, device=b.device)
    status = status.masked_fill(trivial, Status.SOLVED).masked_fill(stuck, Status.INFEASIBLE)
    first = impossible & (impossible.cumsum(1) == 1)
    return _Answer(
        W=b.new_full((rows.B, rows.d, rows.e), math.nan).masked_fill(trivial[:, None, None], 0.0),
        lam=first.to(b.dtype),
        lower=b.new_zeros(rows.B).masked_fill(stuck, math.inf),
        upper=b.new_full((rows.B,), math.inf).masked_fill(trivial, 0.0),
        status=status,
        iterations=torch.zeros_like(status),
    )


def _run(system: System, geometry: Lp | Nuclear, tol: float, max_iterations: int) -> Iterates:
    # Making W exact on the equalities afterwards moves its norm a little: aim lower.
    if bool(system.equality.any()):
        tol = max(tol / 4, 1e-13)
    if isinstance(geometry, Nuclear):
        return solve_nuclear(system, tol, max_iterations)
    return solve_lp(system, geometry.p, tol, max_iterations)


def _second_attempt(system: System, geometry: Lp, tol: float, max_iterations: int) -> _Answer:
    """From near the solution for p = 2, which is found where others are not; infeasible for p = 2 is so for all p."""
    first = solve_lp(system, 2.0, tol, max_iterations)
    value = (system.b * first.lam).sum(1, keepdim=True)
    equal = system.equal_multipliers()
    start = torch.where((value > 0) & value.isfinite(), 0.9 * first.lam / value + 0.1 * equal, equal)
    run = solve_lp(system, geometry.p, tol, max_iterations, start)
    run.iterations += first.iterations
    return _certify(system, geometry, run, tol)


def _share(system: System, lam: Tensor) -> Tensor:
    """The multipliers over b'λ. Near the solution a row's slack times its share is small; which of the two
    is larger tells the rows at the margin from the others."""
    return lam / (system.b * lam).sum(1, keepdim=True)


def _certify(system: System, geometry: Lp | Nuclear, run: Iterates, tol: float) -> _Answer:
    """Make W exactly feasible, and bracket the optimal norm from W and λ alone."""
    rows, b, inequality, equality = system.rows, system.b, system.inequality, system.equality
    lam = torch.where(inequality, run.lam.clamp_min(0), run.lam)
    # An interpolation has no margin: its scale is fixed by the right-hand sides.
    has_margin = inequality.any(1)
    interpolated = (b * rows.apply(run.W)).sum(1) / (b * b).sum(1)
    W = run.W / torch.where(has_margin, 1.0, interpolated)[:, None, None]
    if bool(equality.any()):
        W = rows.project(W, b, equality)

    def at_margin(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W scaled to margin 1, its norm (infinite if W separates nothing), and the slack of its rows."""
        AW = rows.apply(W)
        margin = torch.where(has_margin, system.least_margin(AW), 1.0)
        norm = geometry.norm(W) / margin
        found = (margin > 0) & norm.isfinite()
        W = torch.where(found[:, None, None], W / margin[:, None, None], math.nan)
        return W, torch.where(found, norm, math.inf), AW / margin[:, None] - b

    W, upper, slack = at_margin(W)
    # Put the rows at the margin exactly there. Because A'λ is the gradient of the norm, a correction of size ε
    # that does so leaves the optimal norm only by ε².
    tight = equality | (inequality & (slack <= _share(system, lam)))
    polished, polished_upper, _ = at_margin(rows.project(W, b, tight))
    better = polished_upper < upper
    W = torch.where(better[:, None, None], polished, W)
    upper = torch.where(better, polished_upper, upper)

    dual = geometry.dual_norm(rows.adjoint(lam))
    value = (b * lam).sum(1)
    lower = torch.where(value > 0, value / dual, 0.0)
    infeasible = system.cancelled(lam, dual) & (value > 0)
    solved = ~infeasible & (upper - lower <= (tol * 1.001 + 1e-15) * lower)
    status = torch.full_like(run.iterations, Status.NOT_CONVERGED)
    status = status.masked_fill(solved, Status.SOLVED).masked_fill(infeasible, Status.INFEASIBLE)
    # Multipliers of min ½‖W‖² have ‖A'λ‖_* = ‖W‖; a Farkas vector is scaled to b'λ = 1.
    factor = torch.where(infeasible, 1 / value, torch.where(upper.isfinite(), upper, lower) / dual)
    return _Answer(
        W=W.masked_fill(infeasible[:, None, None], math.nan),
        lam=lam * factor[:, None],
        lower=lower,
        upper=upper.masked_fill(infeasible, math.inf),
        status=status,
        iterations=run.iterations,
    )
