"""A batched interior-point method for norms whose unit ball is a product of spectral balls, and for their duals.

Cut W into blocks W_g. The largest of their spectral norms is a norm of kind "max": the spectral norm (one block), ℓ∞
(a block per entry), ℓ2,∞ (a block per row or column). The sum of their nuclear norms is of kind "sum": nuclear, ℓ1,
ℓ2,1; it is the dual of the former. Both lead to one problem in some unknowns y,

    minimise c'y  subject to  S_g(y) = (τ₀ + τ'y)I + [[0, (Jy)_g], [(Jy)_gᵀ, 0]] ⪰ 0,   l(y) = L'y ≥ 0,   E'y = e:

max   y = (W, ν), maximise ν with ‖W_g‖ ≤ 1, AW − νb ≥ 0 (= 0 on equalities); W/ν is feasible for the margin problem;
sum   y = (λ, t), minimise t with ‖(A'λ)_g‖ ≤ t, λ ≥ 0 on inequalities, b'λ = 1; 1/t bounds the optimal norm from below.

The multipliers X_g ⪰ 0, x ≥ 0, η of the three kinds of constraints give the other half of the pair: λ = (x, η) and
A'λ = −2X₁₂ for "max", W = −2X₁₂ for "sum". The central path is X_g S_g = μI, x l = μ. The Newton step is the HKM
direction with Mehrotra's corrector, as for the nuclear norm alone: with Y = S⁻¹ and Θ = x/l

    (H + LΘL') dy = a(R) + L r − c + Eη⁺,   E'dy = e − E'y,   H_ij = ⟨∂_iS, X ∂_jS Y⟩,   a_i(R) = ⟨∂_iS, R⟩,

R = σμY − sym(dX' dS' Y), r = (σμ − dx' dl')/l; primes mark the predictor's steps.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import cholesky_ex

from attsvm.geometry import Blocks, Geometry
from attsvm.svm._conic_step import Problem, State, cholesky, cone, newton_step
from attsvm.svm._nuclear import reduce_columns
from attsvm.svm._rows import Iterates, Rows, System
from attsvm.svm._second import has_vectors, solve_groups
from attsvm.svm._wide import is_wide

_NEAR = 1e-5
"""Gap, as a part of the value, from which points are looked at closely."""

PATIENCE = 25
"""Iterations without progress after which an instance is taken to be at the limits of its arithmetic."""


def solve_blocks(
    system: System,
    geometry: Geometry,
    blocks: Blocks,
    tol: float,
    max_iterations: int,
    cancelled: float,
    again: bool = False,
) -> Iterates:
    """As `solve_lp`, for a norm made of blocks. Blocks that are vectors use second-order cones unless there are many
    more rows than unknowns, for which semidefinite ones are cheaper; `again` the other ones."""
    system, blocks, left, right = _reduced(system, blocks)
    if has_vectors(blocks) and is_wide(system) == again:
        out = solve_groups(system, blocks, tol, max_iterations, cancelled)
    else:
        out = _iterate(system, geometry, blocks, tol, max_iterations, cancelled)
    out.W = left @ out.W @ right.mT
    return out


def _reduced(system: System, blocks: Blocks) -> tuple[System, Blocks, Tensor, Tensor]:
    """The problem in bases of the spans of the a and of the z, where a norm that does not see rotations is least."""
    rows = system.rows
    numbers = torch.arange(rows.d * rows.e).reshape(rows.d, rows.e)
    index = blocks.index.cpu()
    of_rows, of_columns, whole = (
        blocks.weight is None and index.shape == x.shape and bool((index == x).all())
        for x in (numbers[..., None], numbers.T[..., None], numbers[None])
    )
    A, Z = rows.A.flatten(1, 2), rows.Z
    left, right = (torch.eye(n, dtype=A.dtype, device=A.device) for n in (rows.d, rows.e))
    if whole or of_columns:
        A, left = reduce_columns(A)
    if whole or of_rows:
        Z, right = reduce_columns(Z)
    d, e = A.shape[2], Z.shape[2]
    if (d, e) != (rows.d, rows.e):
        system = replace(system, rows=Rows(A.reshape(rows.B, rows.Q, rows.R, d), Z))
        numbers = torch.arange(d * e).reshape(d, e)
        index = numbers[None] if whole else (numbers if of_rows else numbers.T)[..., None]
    return system, replace(blocks, index=index.to(A.device)), left, right


def _iterate(
    system: System, geometry: Geometry, blocks: Blocks, tol: float, max_iterations: int, cancelled: float
) -> Iterates:
    rows = system.rows
    G, k, h = blocks.index.shape
    weight = blocks.weights(rows.A)  # weighted norms are plain ones of weighted blocks
    dense = (blocks.cut(rows.dense()) / weight).flatten(2)
    real = blocks.index.flatten() >= 0
    shape, largest = (G, k, h), blocks.kind == "max"
    problem, state = _largest(system, dense, shape, real) if largest else _sum_of(system, dense, shape)
    out = Iterates.first(rows, system.equal_multipliers())
    best = torch.full_like(system.b[:, :1].sum(1), torch.inf)
    idle, lowest = torch.zeros_like(state.index), best.clone()

    def record(state: State, problem: Problem, system: System) -> Tensor:
        """The relative gaps of these points; the best of each instance is kept."""
        W, lam = _answer(blocks, problem, state)
        W = blocks.joined(W / weight, rows.d, rows.e)
        AW, dual = system.rows.apply(W), geometry.dual_norm(system.rows.adjoint(lam))
        relative, _ = system.gap(geometry.norm(W), dual, AW, system.margin(AW), lam, cancelled)
        better = (relative <= best[state.index]) & lam.isfinite().all(1)
        at = state.index[better]
        out.W[at], out.lam[at], best[at] = W[better], lam[better], relative[better]
        return relative

    for iteration in range(max_iterations + 1):
        gap = (state.X * state.S).sum((1, 2, 3)) + (state.x * state.slack).sum(1)
        idle = torch.where(gap < 0.9 * lowest, 0, idle + 1)
        lowest = torch.minimum(lowest, gap)
        out.iterations[state.index] = iteration
        going = ~state.failed & gap.isfinite() & (idle < PATIENCE) & (iteration < max_iterations)
        # Singular values are only computed where they may matter: near the end, and where A'λ may have cancelled.
        lam = (state.x if largest else state.y[:, :-1]).abs()
        length = torch.linalg.vector_norm(system.rows.adjoint(lam * system.inequality), dim=(1, 2))
        near = gap < _NEAR * (problem.c * state.y).sum(1).abs()
        near |= ~system.inequality.any(1) | system.cancelled(lam, length, 1e-4) | (idle > 0)
        some = (near | ~going).nonzero()[:, 0]
        active = going
        if len(some) == len(gap):
            active = going & (record(state, problem, system) > tol)
        elif len(some):
            relative = record(state.take(some), problem.take(some), system.take(some))
            active = going.index_put((some,), going[some] & (relative > tol))
        if not bool(active.any()):
            break
        if not bool(active.all()):
            keep = active.nonzero()[:, 0]
            state, problem, system, gap = state.take(keep), problem.take(keep), system.take(keep), gap[keep]
            idle, lowest = idle[keep], lowest[keep]
        state = newton_step(problem, state, gap)
    return out


def _largest(system: System, dense: Tensor, shape: tuple[int, int, int], real: Tensor) -> tuple[Problem, State]:
    """Unknowns (W, ν), from W = 0 and a ν at which all rows have slack; what fills up smaller blocks is not unknown."""
    b, ineq, equal = system.b, system.inequality, system.equality
    G, k, h = shape
    J = None
    if not bool(real.all()):
        J = torch.eye(len(real), dtype=b.dtype, device=b.device)[real]
        J = torch.nn.functional.pad(J, (0, 0, 0, 1)).expand(len(b), -1, -1)
    with_b = torch.cat((dense[..., real], -b[..., None]), 2)
    most = int(equal.sum(1).amax()) if len(b) else 0
    order = torch.argsort(equal.int(), dim=1, descending=True, stable=True)[:, :most]
    E = with_b.gather(1, order[..., None].expand(-1, -1, with_b.shape[2])) * equal.gather(1, order)[..., None]
    c = torch.zeros_like(with_b[:, 0])
    c[:, -1] = -1
    problem = Problem(
        J=J,
        L=(with_b * ineq[..., None]).mT,
        E=E.mT,
        e=torch.zeros_like(E[:, :, 0]),
        c=c,
        tau=torch.zeros_like(c),
        tau_0=1.0,
        there=ineq,
        equal=equal.gather(1, order),
        order=order,
        shape=shape,
    )
    # Multipliers of equal share and an X that goes with them, and a ν of the same complementarity.
    lam = system.balanced_multipliers()
    U = (lam[:, None] @ dense)[:, 0].unflatten(1, shape)
    size = 0.6 * torch.linalg.matrix_norm(U).amax(1) + 1e-2 * lam.abs().sum(1) / G
    y = torch.zeros_like(c)
    y[:, -1] = -size * ineq.sum(1)
    X = size[:, None, None, None] * torch.eye(k + h, dtype=b.dtype, device=b.device).expand(len(b), G, -1, -1)
    X[..., :k, k:] = -U / 2
    X[..., k:, :k] = -U.mT / 2
    return problem, _start(problem, y, X, lam * ineq, lam.gather(1, order) * problem.equal)


def _sum_of(system: System, dense: Tensor, shape: tuple[int, int, int]) -> tuple[Problem, State]:
    """Unknowns (λ, t), from equal multipliers and a t that is large enough."""
    b, ineq, equal = system.b, system.inequality, system.equality
    G, k, h = shape
    N = b.shape[1]
    there = ineq | equal
    pad = torch.nn.functional.pad
    eye = torch.eye(N, dtype=b.dtype, device=b.device)
    tau = torch.zeros(len(b), N + 1, dtype=b.dtype, device=b.device)
    tau[:, -1] = 1.0
    # Multipliers of rows that are not there are tied to zero by no constraint: they do not occur.
    problem = Problem(
        J=pad(dense * there[..., None], (0, 0, 0, 1)),
        L=pad(eye * ineq[:, None].to(b.dtype), (0, 0, 0, 1)),
        E=pad(b, (0, 1))[..., None],
        e=torch.ones_like(b[:, :1]),
        c=tau,
        tau=tau,
        tau_0=0.0,
        there=ineq,
        equal=torch.ones_like(b[:, :1], dtype=torch.bool),
        order=torch.zeros_like(b[:, :0], dtype=torch.long),
        shape=shape,
    )
    lam = system.equal_multipliers()
    U = (lam[:, None] @ dense)[:, 0].unflatten(1, shape)
    t = 1.1 * torch.linalg.matrix_norm(U).amax(1) + 1e-2 * lam.abs().sum(1)
    X = torch.eye(k + h, dtype=b.dtype, device=b.device).expand(len(b), G, -1, -1) / (G * (k + h))
    nu = 0.1 * t * ineq.sum(1) / (G * (k + h))
    return problem, _start(problem, torch.cat((lam, t[:, None]), 1), X, system.first_slacks(nu))


def _start(problem: Problem, y: Tensor, X: Tensor, x: Tensor, eta: Tensor | None = None) -> State:
    S = cone(problem, y)
    slack = (y[:, None] @ problem.L)[:, 0]
    return State(
        index=torch.arange(len(y), device=y.device),
        y=y,
        X=X.clone(),
        S=S,
        x=x,
        slack=slack,
        eta=torch.zeros_like(problem.e) if eta is None else eta,
        L_X=cholesky(X)[0],
        L_S=cholesky(S)[0],
        failed=torch.zeros(len(y), dtype=torch.bool, device=y.device),
    )


def _answer(blocks: Blocks, problem: Problem, state: State) -> tuple[Tensor, Tensor]:
    """W in blocks and λ (B, N) of the present point."""
    k = problem.shape[1]
    if blocks.kind == "max":
        lam = state.x * problem.there
        lam = lam.scatter_add(1, problem.order, state.eta * problem.equal)
        nu = state.y[:, -1]
        gap = (state.X * state.S).sum((1, 2, 3)) + (state.x * state.slack).sum(1)
        if bool((gap < 1e-6 * nu).any()):
            lam = _matched(problem, lam, -2 * state.X[:, :, :k, k:])
        return problem.off(state.y), lam
    return -2 * state.X[:, :, :k, k:], state.y[:, :-1]


def _matched(problem: Problem, lam: Tensor, U: Tensor) -> Tensor:
    """Multipliers near λ with A'λ = U, in proportion to their size: rows at the margin have lost digits of theirs."""
    equal = torch.zeros_like(lam).scatter_add(1, problem.order, problem.equal.to(lam.dtype)) > 0
    weight = torch.where(equal, lam.abs().amax(1, keepdim=True), lam.abs())
    A = problem.L.mT[:, :, :-1].scatter_add(
        1, problem.order[..., None].expand(-1, -1, problem.L.shape[1] - 1), problem.E.mT[..., :-1]
    )
    R = weight[..., None] * A
    G = R @ R.mT
    diagonal = G.diagonal(dim1=1, dim2=2)
    diagonal += 1e-15 * diagonal.amax(1, keepdim=True) + 1e-300
    L, info = cholesky_ex(G)

    def left(x: Tensor) -> Tensor:
        return problem.on(U)[:, :-1] - (x[:, None] @ A)[:, 0]

    new = lam
    for _ in range(2):
        new = new + weight * torch.cholesky_solve(R @ left(new)[..., None], L)[..., 0]
        new = torch.where(problem.there, new.clamp_min(0), new)
    closer = left(new).abs().sum(1) < left(lam).abs().sum(1)
    fine = (info == 0) & new.isfinite().all(1) & closer
    return torch.where(fine[:, None], new, lam)
