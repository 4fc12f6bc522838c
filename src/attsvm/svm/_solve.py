"""From a margin problem to its certified solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.data import TokenData
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Blocks, Geometry, Group, Lp, Nuclear, Schatten, check_norm, is_own, parse_geometry
from attsvm.progress import Tell, progress_bar
from attsvm.svm._active import MOST_ROWS, solve_active
from attsvm.svm._certify import Answer, certify, match_scales, share
from attsvm.svm._conic import solve_blocks
from attsvm.svm._exact import power_of_two, shrunk, two_product
from attsvm.svm._large import solve_large
from attsvm.svm._linear import solve_linear
from attsvm.svm._lp import solve_lp
from attsvm.svm._matched import matched
from attsvm.svm._memory import enough_memory, keep_freed_memory, numbers_per_instance
from attsvm.svm._nuclear import solve_nuclear
from attsvm.svm._pivots import solve_pivots, suits_pivots
from attsvm.svm._problem import MarginProblem, UnformedProblem, att_svm, check_problem, double_rows, head_svm, is_large
from attsvm.svm._result import MaxMargin, Status
from attsvm.svm._rows import Iterates, Rows, System
from attsvm.svm._smooth import solve_smooth
from attsvm.svm._stretch import solve_stretched

_CANCELLED = 1e-8
"""Where A'λ has cancelled to this fraction of its terms, a proof of infeasibility is tried; it may fail."""

_AT_ALL = 1e-15
"""The same for instances where that failed: they may have a solution of very small margin."""

_TINY_MARGIN = 1e-4
"""Where A'λ has cancelled to this for p = 2, the margin is so small that other coordinates are worth their price."""

_NEARLY_ONE = 1.05
"""Below this p, and above 1/(p − 1), the problem is nearly one of ℓ1 or ℓ∞."""

_CAREFUL_NUMBERS = 2**24
"""Entries of dense rows and their triangles, of all instances that are tried again together."""

_CHUNK_BYTES = {"cpu": 8e6, "cuda": 4e9}
"""Working set of a chunk of instances: what a CPU keeps in its cache, a good part of a GPU's memory."""


def solve(
    problem: MarginProblem,
    geometry: Geometry | str = "l2",
    *,
    tol: float = 1e-9,
    max_iterations: int = 200,
    progress: bool = False,
) -> MaxMargin:
    """Solve every instance of `problem` in the given norm, certified to the relative gap `tol`.

    The arithmetic is float64 on the problem's device. A gap ε determines W to about √ε: use tol=1e-12 if the direction
    matters to six digits. Certificates hold in real arithmetic, see `MaxMargin`. If the margin is γ times the length of
    the rows, rounding W alone costs about 1e-15/γ of it: below γ = 1e-6 do not ask for less.

    An instance that does not converge in `max_iterations` is tried again, more carefully, from the solution for p = 2.
    Infeasible instances and instances that do not converge are returned in the same batch with their `status`; they do
    not disturb the others. An instance gets the same status alone and in any batch, and norms that agree to `tol`,
    since both brackets hold the optimal norm; the last bits may differ, because libraries sum in another order.

    Instances of more than 10,000 rows, or fewer with thousands of unknowns, are solved one by one over a working set of
    rows; `max_iterations` then counts its rounds, and Ctrl-C returns the best bracket so far. `progress` shows a bar.
    """
    check_problem(problem)
    geometry = parse_geometry(geometry)
    geometry.require("dual_norm", to="solve margin problems")
    check_norm(geometry, problem.shape, torch.empty(0, dtype=torch.float64, device=problem.device), smooth=True)
    if not 1e-13 <= as_real("tol", tol, least=0) < 1:
        raise AttsvmError(f"tol must be between 1e-13 and 1, but got {tol}.")
    max_iterations = as_count("max_iterations", max_iterations)
    if is_large(problem.rows, *problem.shape) and _by_working_set(problem):
        with torch.no_grad():
            small = partial(_solve_small, geometry=geometry, max_iterations=max_iterations)
            return solve_large(problem, geometry, tol, max_iterations, progress, small)
    with progress_bar(progress, 0, problem.B, f"{problem.B} instances") as tell:
        return _solve_small(problem, tol, geometry, max_iterations, tell)


def _by_working_set(problem: MarginProblem) -> bool:
    """Whether margins are asked for, not interpolation: only then W may be scaled."""
    if isinstance(problem, UnformedProblem):
        return True
    tied = problem.present & problem.equality
    return not bool((tied & (problem.b != 0)).any())


def _solve_small(
    problem: MarginProblem, tol: float, geometry: Geometry, max_iterations: int, tell: Tell | None = None
) -> MaxMargin:
    """All instances together, with all their rows."""
    keep_freed_memory()
    _, Q, R, d = problem.A.shape
    wide = 3 * d * problem.shape[1] < Q * R
    numbers = numbers_per_instance(Q, R, d, problem.shape[1], geometry, wide)
    with torch.no_grad(), enough_memory(problem.rows, numbers, problem.A.device):
        system, row_norm, scale, impossible = prepare(problem, geometry)
        answer = _without_iterating(system, impossible)
        left = (answer.status == Status.NOT_CONVERGED).nonzero()[:, 0]
        rows = system.rows
        in_use = (rows.d * rows.e) ** 2 if wide else max(rows.N**2, rows.Q * rows.N * rows.d, 1)
        if not isinstance(geometry, Lp | Nuclear | Group):
            D = min(rows.d, rows.N) * min(rows.e, rows.Q)
            in_use = max(in_use, 3 * D**2, rows.N * D)  # several matrices at a time
        chunk = max(1, int(_CHUNK_BYTES.get(scale.device.type, 4e9) / (8 * in_use)))
        # Chunks of equal size: a small last one costs as many steps as a large one.
        for index in left.tensor_split(math.ceil(len(left) / chunk)) if len(left) else ():
            part = system.take(index)
            run = _run(part.independent().eased(), geometry, tol, max_iterations, _CANCELLED)
            found = certify(part, geometry, run, tol)
            again = (found.status == Status.NOT_CONVERGED).nonzero()[:, 0]
            if len(again):
                some = found.take(again)
                _try_again(some, part.take(again), geometry, tol, max_iterations)
                match_scales(some, part.take(again), geometry, tol)
                found.put(again, some)
            answer.put(index, found)
            if tell is not None:
                tell(int(index[-1]) + 1)
        if is_own(geometry):
            _check_dual(system, geometry, answer)
        shares = torch.maximum(share(system, answer.lam), 1e-8 * system.b)
        support = system.inequality & (rows.apply(answer.W) - system.b <= shares)

        # Back to original units, by powers of two: rows were divided by their norms, and b by the scale of W.
        shape, infeasible = problem.b.shape, answer.status == Status.INFEASIBLE
        lam = answer.lam * torch.where(infeasible, 1 / scale, scale)[:, None] / row_norm
        return MaxMargin(
            problem=problem,
            geometry=geometry,
            W=answer.W * scale[:, None, None],
            multipliers=lam.reshape(shape),
            lower=answer.lower * scale,
            upper=answer.upper * scale,
            violation=_largest(answer.violation * row_norm) * scale,
            support=support.reshape(shape),
            codes=answer.status,
            iterations=answer.iterations,
        )


def margin_efficiency(W: Any, solution: MaxMargin) -> Tensor:
    """The margin of W/‖W‖ over the largest one, (B,): see `MaxMargin.efficiency`."""
    if not isinstance(solution, MaxMargin):
        raise AttsvmError(f"solution must be a MaxMargin, such as solve returns, but got {describe(solution)}.")
    return solution.efficiency(W)


def token_margin(data: TokenData, tokens: Any | None = None, geometry: Geometry | str = "l2") -> Tensor:
    """1/‖W_mm‖ (B,) of the attention SVM for these tokens (the optimal ones by default), 0 if infeasible."""
    return solve(att_svm(data, tokens), geometry).margin


def label_margin(data: TokenData, tokens: Any | None = None, geometry: Geometry | str = "l2") -> Tensor:
    """1/‖v_mm‖ (B,) of the SVM that separates these tokens by their labels, 0 if infeasible."""
    return solve(head_svm(data, tokens), geometry).margin


def prepare(problem: MarginProblem, geometry: Geometry) -> tuple[System, Tensor, Tensor, Tensor]:
    """The scaled system, what its rows (B, N) and W (B,) were divided by, and the rows (B, N) that no W can satisfy
    because they are zero.

    All divisors are powers of two, so the system is the problem without any rounding, underflow aside (`shrunk`)."""
    double = double_rows(problem)
    A, Z, b = double.A, double.Z, problem.b.to(torch.float64)
    B, Q, R, d = A.shape
    inequality, equality = problem.present & ~problem.equality, problem.present & problem.equality
    mixed = inequality.flatten(1).any(1) & (equality & (b != 0)).flatten(1).any(1)
    if bool(mixed.any()):
        raise AttsvmError(
            "equality rows beside inequalities must have b = 0, because their margin scales with W; "
            f"instance {int(mixed.nonzero()[0])} has another right-hand side."
        )
    A, b = torch.where(problem.present[..., None], A, 0.0), torch.where(problem.present, b, 0.0)
    norm = geometry.dual_norm if isinstance(geometry, Lp) else Lp(2.0).norm
    norm_A, norm_Z = norm(A[..., None]), norm(Z[..., None])
    zero = ((norm_A == 0) | (norm_Z == 0)[..., None]).flatten(1)
    norm_A, norm_Z = power_of_two(norm_A), power_of_two(norm_Z)
    A, Z = shrunk(A, norm_A[..., None]), shrunk(Z, norm_Z[..., None])
    low = None
    if double.A_low is not None and bool(double.A_low.any()):
        low = shrunk(torch.where(problem.present[..., None], double.A_low, 0.0), norm_A[..., None])
    if problem.shape[1] == 1 and (low is None or bool((Z.abs() == 1).all())):
        # A scalar z joins its row, and all rows form one group.
        A, error = two_product(A, Z[:, :, None, :])
        low = error if low is None else low * Z[:, :, None, :]
        A, low, Z = A.reshape(B, 1, Q * R, d), low.reshape(B, 1, Q * R, d), Z.new_ones(B, 1, 1)
    b, inequality, equality = b.flatten(1), inequality.flatten(1), equality.flatten(1)
    row_norm = (norm_A * norm_Z[..., None]).flatten(1)
    asked, impossible = b / row_norm, zero & (b != 0)
    possible = (asked.abs() > 1e-150) & (asked.abs() < 1e150) | (b == 0)
    if not bool(((row_norm > 0) & row_norm.isfinite() & possible | zero).all()):
        raise AttsvmError("the rows ⟨a ⊗ z, W⟩/b must have norms between 1e-150 and 1e150: rescale A, Z or b.")
    scale = power_of_two(asked.masked_fill(zero, 0.0).abs().sum(1))
    system = System(
        rows=Rows(A, Z, low),
        b=torch.where(zero, 0.0, asked / scale[:, None]),
        inequality=inequality & ~zero,
        equality=equality & ~zero,
    )
    # A zero row has no norm to divide by: with this one its multiplier of 1 becomes the Farkas vector 1/b.
    row_norm = torch.where(impossible, b / scale[:, None], row_norm)
    return system, row_norm, scale, impossible


def _check_dual(system: System, geometry: Geometry, answer: Answer) -> None:
    """Refuse a user's dual norm whose bound a feasible W refutes."""
    refuted = answer.lower > (1 + 1e-6) * answer.upper
    if bool((refuted & ~system.equality.any(1)).any()):  # a W that violates equalities may be shorter
        raise AttsvmError(
            f"geometry {geometry.name}: dual_norm must be max ⟨G, W⟩ over norm(W) ≤ 1, but a feasible W is shorter "
            "than the bound from it: correct dual_norm."
        )


def _largest(x: Tensor) -> Tensor:
    return x.amax(1) if x.shape[1] else x.new_zeros(len(x))


def _without_iterating(system: System, impossible: Tensor) -> Answer:
    """W = 0 where nothing is asked, infeasible where a zero row asks for something, the others still open."""
    b, rows = system.b, system.rows
    stuck = impossible.any(1)
    trivial = ~stuck & ~(b != 0).any(1)
    status = torch.full(stuck.shape, int(Status.NOT_CONVERGED), device=b.device)
    status = status.masked_fill(trivial, int(Status.SOLVED)).masked_fill(stuck, int(Status.INFEASIBLE))
    first = impossible & (impossible.cumsum(1) == 1)
    return Answer(
        W=b.new_full((rows.B, rows.d, rows.e), math.nan).masked_fill(trivial[:, None, None], 0.0),
        lam=first.to(b.dtype),
        lower=b.new_zeros(rows.B).masked_fill(stuck, math.inf),
        upper=b.new_full((rows.B,), math.inf).masked_fill(trivial, 0.0),
        violation=torch.zeros_like(b),
        status=status,
        iterations=torch.zeros_like(status),
    )


def _run(
    system: System, geometry: Geometry, tol: float, max_iterations: int, cancelled: float, again: bool = False
) -> Iterates:
    """The method for this norm, or `again` another one, where there is one."""
    rows = system.rows
    # Rounding outward takes a little of the tolerance, and so does making W exact on the equalities.
    tol = max(tol / (4 if bool(system.equality.any()) else 1.05), 1e-13)
    blocks = geometry.blocks(rows.d, rows.e)
    nuclear = isinstance(geometry, Nuclear) or geometry == Schatten(1)
    if nuclear and not again:
        return solve_nuclear(system, tol, max_iterations, cancelled)
    if blocks is not None and blocks.index[0].numel() == 1 and blocks.weight is None and not again:  # ℓ1 or ℓ∞
        return solve_linear(system, blocks.kind == "max", tol, max_iterations, cancelled)
    if nuclear or blocks is not None:
        blocks = blocks or Blocks.whole(rows.d, rows.e, "sum")
        return solve_blocks(system, geometry, blocks, tol, max_iterations, cancelled, again)
    if isinstance(geometry, Lp):
        if geometry.p != 2 or not suits_pivots(system):
            return solve_lp(system, geometry.p, tol, max_iterations, cancelled)
        run, done = solve_pivots(system, tol)
        left = (~done).nonzero()[:, 0]
        if len(left):
            run.put(left, solve_lp(system.take(left), 2.0, tol, max_iterations, cancelled))
        return run
    # Where a dual norm bends without bound, its norm does not.
    free = isinstance(geometry, Schatten) and geometry.p > 2
    return solve_smooth(system, geometry, tol, max_iterations, cancelled, free != again)


def _try_again(answer: Answer, system: System, geometry: Geometry, tol: float, max_iterations: int) -> None:
    """Improve the answers for instances that are nearly infeasible, or too hard from the ordinary start."""
    rows = system.rows
    numbers = rows.N * (rows.N + rows.d * rows.e)
    step = max(1, int(_CAREFUL_NUMBERS / max(1, numbers)))
    careful = 4 * max(numbers, (rows.d * rows.e) ** 2) <= _CAREFUL_NUMBERS
    for index in torch.arange(rows.B, device=rows.A.device).split(step):
        some = answer.take(index)
        _rescue(some, system.take(index), geometry, tol, max_iterations, careful)
        answer.put(index, some)


def _rescue(answer: Answer, system: System, geometry: Geometry, tol: float, max_iterations: int, careful: bool) -> None:
    """The multipliers for p = 2 show which rows nearly contradict each other, and so which coordinates suit them.
    Instances that stay open start from the solution for p = 2."""
    rows = system.rows
    blocks = geometry.blocks(rows.d, rows.e)
    bends = geometry.smooth if isinstance(geometry, Lp) else blocks is None
    eased = system.eased()
    first = solve_lp(eased, 2.0, tol, max_iterations, _AT_ALL, careful=careful)

    def attempt(method: Callable[[System, Iterates, Answer], Iterates], suits: Tensor | bool = True) -> None:
        """Improve what is still open and suits a method, which is given the solution for p = 2 and the answer."""
        left = ((answer.status == Status.NOT_CONVERGED) & suits).nonzero()[:, 0]
        if len(left):
            part, rest = system.take(left), answer.take(left)
            rest.improve(certify(part, geometry, method(eased.take(left), first.take(left), rest), tol), tol)
            answer.put(left, rest)

    def stretched(part: System, first: Iterates, _: Answer) -> Iterates:
        return solve_stretched(part, geometry, first.lam, tol, max_iterations, bends)

    def other(part: System, run: Iterates, _: Answer) -> Iterates:
        if not isinstance(geometry, Lp) or not geometry.smooth:
            return _run(part, geometry, tol, max_iterations, _AT_ALL, again=True)
        run = Iterates(run.W, run.lam, torch.zeros_like(run.iterations))
        for p in _ladder(geometry.p):  # each exponent starts from the one before
            last, at = run.iterations, (_inside(part, run.lam), run.W)
            goal = tol if p == geometry.p else 1e-3
            run = solve_lp(part, p, goal, max_iterations, _AT_ALL, at, careful)
            run.iterations += last
        return run

    answer.improve(certify(system, geometry, first, tol), tol)
    length = torch.linalg.vector_norm(rows.adjoint(first.lam), dim=(1, 2))
    tiny = system.cancelled(first.lam, length, _TINY_MARGIN) | ~answer.upper.isfinite()
    fits = ~system.equality.any(1) & careful
    attempt(stretched, fits & tiny)
    if isinstance(geometry, Lp | Schatten) and geometry.smooth:
        # The solution of ℓ1 or ℓ∞ is off by a factor D^(p − 1) or D^(1/p) at most.
        if geometry.p < _NEARLY_ONE:
            attempt(lambda part, *_: _run(part, type(geometry)(1), tol, max_iterations, _AT_ALL))
        if geometry.p > 1 / (_NEARLY_ONE - 1):
            attempt(lambda part, *_: _run(part, type(geometry)(math.inf), tol, max_iterations, _AT_ALL))
    if geometry != Lp(2):
        attempt(other)
    attempt(stretched, fits & ~tiny & bends)  # a subgradient is of no use where the margin is not tiny
    if careful and blocks is not None and blocks.kind == "max":
        attempt(lambda part, _, rest: matched(part, blocks, rest.W, rest.lam), answer.upper.isfinite())
    if rows.N <= MOST_ROWS:  # no W fits yet: an active set finds one, or the proof that there is none, in any norm
        attempt(lambda part, *_: solve_active(part), ~answer.fits(tol))


def _ladder(p: float) -> list[float]:
    """Exponents on the way from 2 to p, of which p or p − 1 halves or doubles; p twice, since a new start may help."""
    steps = [p, p]
    while not 1.5 <= steps[0] <= 4:
        steps.insert(0, steps[0] / 2 if p > 2 else 1 + 2 * (steps[0] - 1))
    return steps


def _inside(system: System, lam: Tensor) -> Tensor:
    """Positive multipliers near λ, so near that A'λ stays as small as it is; b'λ = 1."""
    equal = system.equal_multipliers()
    value = (system.b * lam).sum(1, keepdim=True)
    lam = lam / value
    size, other = (torch.linalg.vector_norm(system.rows.adjoint(x), dim=(1, 2)) for x in (lam, equal))
    mix = (0.3 * size / other).clamp_max(0.1)[:, None]
    mixed = (1 - mix) * lam + mix * equal
    return torch.where((value > 0) & mixed.isfinite().all(1, keepdim=True), mixed, equal)
