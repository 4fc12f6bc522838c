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

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from attsvm.geometry import Blocks, Geometry
from attsvm.svm._nuclear import lowest_eigenvalue, metric, reduce_columns, symmetric
from attsvm.svm._rows import Iterates, Rows, System, cholesky_solve
from attsvm.svm._second import has_vectors, solve_groups
from attsvm.svm._wide import is_wide

_NEAR = 1e-5
"""Gap, as a part of the value, from which points are looked at closely."""

PATIENCE = 25
"""Iterations without progress after which an instance is taken to be at the limits of its arithmetic."""


@dataclass
class _Problem:
    """The data of the problem above: J (B, m, n) or None for the first n unknowns themselves, n = G·k·h.

    For "max" J leaves out what fills up smaller blocks."""

    J: Tensor | None
    L: Tensor
    E: Tensor
    e: Tensor
    c: Tensor
    tau: Tensor
    tau_0: float
    there: Tensor  # inequalities that are there
    equal: Tensor  # equalities that are there
    order: Tensor  # the rows that E'y = e are, for "max"
    shape: tuple[int, int, int]

    def take(self, index: Tensor) -> _Problem:
        tensors = {f.name: x[index] for f in fields(self) if isinstance(x := getattr(self, f.name), Tensor)}
        return replace(self, **tensors)

    def off(self, y: Tensor) -> Tensor:
        """(Jy)_g, (B, G, k, h)."""
        G, k, h = self.shape
        x = y[:, : G * k * h] if self.J is None else (y[:, None] @ self.J)[:, 0]
        return x.unflatten(1, (G, k, h))

    def on(self, V: Tensor) -> Tensor:
        """J'V (B, m) for V (B, G, k, h)."""
        flat = V.flatten(1)
        if self.J is not None:
            return (self.J @ flat[..., None])[..., 0]
        return torch.nn.functional.pad(flat, (0, self.c.shape[1] - flat.shape[1]))


@dataclass
class _State:
    index: Tensor
    y: Tensor
    X: Tensor
    S: Tensor
    x: Tensor
    slack: Tensor
    eta: Tensor
    L_X: Tensor
    L_S: Tensor
    failed: Tensor

    def take(self, index: Tensor) -> _State:
        return _State(*(getattr(self, f.name)[index] for f in fields(self)))


def solve_blocks(
    system: System,
    geometry: Geometry,
    blocks: Blocks,
    tol: float,
    max_iterations: int,
    cancelled: float,
    semidefinite: bool = False,
) -> Iterates:
    """As `solve_lp`, for a norm made of blocks. Blocks that are vectors use second-order cones unless `semidefinite`,
    which is slower but more robust where rows nearly contradict each other."""
    system, blocks, left, right = _reduced(system, blocks)
    if has_vectors(blocks) and not semidefinite and not is_wide(system):
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
        blocks = replace(blocks, index=index)
    return system, blocks, left, right


def _iterate(
    system: System, geometry: Geometry, blocks: Blocks, tol: float, max_iterations: int, cancelled: float
) -> Iterates:
    rows = system.rows
    D = rows.d * rows.e
    index = blocks.index.to(rows.A.device)
    G, k, h = index.shape
    dense = torch.nn.functional.pad(rows.dense(), (0, 1))[..., index.flatten().where(index.flatten() >= 0, D)]
    # Weighted norms are plain ones of weighted blocks.
    weight = torch.ones(len(index), dtype=torch.float64) if blocks.weight is None else blocks.weight
    weight = weight.to(rows.A.device)[:, None, None].expand(index.shape)
    dense = dense / weight.flatten()
    problem, state = (_largest if blocks.kind == "max" else _sum_of)(system, dense, (G, k, h), index.flatten() >= 0)
    out = Iterates(
        W=rows.A.new_zeros(rows.B, rows.d, rows.e),
        lam=system.equal_multipliers(),
        iterations=torch.zeros_like(state.index),
    )
    best = torch.full_like(system.b[:, :1].sum(1), torch.inf)
    idle, lowest = torch.zeros_like(state.index), best.clone()

    def record(state: _State, problem: _Problem, system: System) -> Tensor:
        """The relative gaps of these points; the best of each instance is kept."""
        W, lam = _answer(blocks, problem, state)
        W = _unblocked(W / weight, index, rows.d, rows.e)
        lower = (system.b * lam).sum(1) / (dual := geometry.dual_norm(system.rows.adjoint(lam)))
        AW = system.rows.apply(W)
        margin = torch.where(system.inequality.any(1), system.least_margin(AW), _interpolated(system, AW))
        left = ((AW - margin[:, None] * system.b) * system.equality).abs().sum(1) * lam.abs().amax(1) / margin
        relative = (geometry.norm(W) / margin - lower).abs() / lower + left
        relative = torch.where((margin > 0) & relative.isfinite(), relative, torch.inf)
        relative = torch.where(system.cancelled(lam, dual, cancelled), 0.0, relative)
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
        lam = (state.x if blocks.kind == "max" else state.y[:, :-1]).abs()
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
        state = _newton_step(problem, state, gap)
    return out


def _interpolated(system: System, AW: Tensor) -> Tensor:
    return (system.b * AW).sum(1) / system.b.square().sum(1)


def _unblocked(V: Tensor, index: Tensor, d: int, e: int) -> Tensor:
    """Blocks (B, G, k, h) as a matrix (B, d, e)."""
    flat = V.new_zeros(len(V), d * e + 1)
    flat[:, index.flatten().where(index.flatten() >= 0, d * e)] = V.flatten(1)
    return flat[:, :-1].unflatten(1, (d, e))


def _largest(system: System, dense: Tensor, shape: tuple[int, int, int], real: Tensor) -> tuple[_Problem, _State]:
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
    problem = _Problem(
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


def _sum_of(system: System, dense: Tensor, shape: tuple[int, int, int], real: Tensor) -> tuple[_Problem, _State]:
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
    problem = _Problem(
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
    return problem, _start(problem, torch.cat((lam, t[:, None]), 1), X, ineq * b * nu[:, None])


def _start(problem: _Problem, y: Tensor, X: Tensor, x: Tensor, eta: Tensor | None = None) -> _State:
    S = _cone(problem, y)
    slack = (y[:, None] @ problem.L)[:, 0]
    return _State(
        index=torch.arange(len(y), device=y.device),
        y=y,
        X=X.clone(),
        S=S,
        x=x,
        slack=slack,
        eta=torch.zeros_like(problem.e) if eta is None else eta,
        L_X=_cholesky(X)[0],
        L_S=_cholesky(S)[0],
        failed=torch.zeros(len(y), dtype=torch.bool, device=y.device),
    )


def _answer(blocks: Blocks, problem: _Problem, state: _State) -> tuple[Tensor, Tensor]:
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


# Blocks of one entry have 2 × 2 cones: what the libraries do one by one for those is written out for all of them.


def _mm(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for square matrices."""
    if A.shape[-1] != 2:
        return A @ B
    return A[..., :, :1] * B[..., :1, :] + A[..., :, 1:] * B[..., 1:, :]


def _cholesky(S: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of every S (B, G, p, p), and whether any of an instance does not exist (B,)."""
    if S.shape[-1] != 2:
        L, info = cholesky_ex(S)
        return L, (info != 0).any(1)
    a, b, c = S[..., 0, 0], S[..., 1, 0], S[..., 1, 1]
    root = a.sqrt()
    side = b / root
    square = c - side * side
    L = torch.stack((root, torch.zeros_like(a), side, square.sqrt()), -1).reshape(S.shape)
    return L, ~((a > 0) & (square > 0)).all(1)


def _inverse_of_factor(L: Tensor) -> Tensor:
    if L.shape[-1] != 2:
        return solve_triangular(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device), upper=False)
    a, c = 1 / L[..., 0, 0], 1 / L[..., 1, 1]
    return torch.stack((a, torch.zeros_like(a), -L[..., 1, 0] * a * c, c), -1).reshape(L.shape)


def _lowest(P: Tensor, squarings: int) -> Tensor:
    """The lowest eigenvalue of each P, or a little less, (B, G)."""
    if P.shape[-1] != 2:
        return lowest_eigenvalue(P, squarings)
    half, off = (P[..., 0, 0] - P[..., 1, 1]) / 2, (P[..., 0, 1] + P[..., 1, 0]) / 2
    return (P[..., 0, 0] + P[..., 1, 1]) / 2 - torch.hypot(half, off)


def _matched(problem: _Problem, lam: Tensor, U: Tensor) -> Tensor:
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


def _cone(problem: _Problem, y: Tensor, constant: float = 1.0) -> Tensor:
    """S_g(y), or its linear part for constant = 0."""
    V = problem.off(y)
    G, k, h = problem.shape
    diagonal = constant * problem.tau_0 + (problem.tau * y).sum(1)
    S = diagonal[:, None, None, None] * torch.eye(k + h, dtype=y.dtype, device=y.device).expand(len(y), G, -1, -1)
    S[..., :k, k:] = V
    S[..., k:, :k] = V.mT
    return S


def _newton_step(problem: _Problem, s: _State, gap: Tensor) -> _State:
    G, k, h = problem.shape
    p, there = k + h, problem.there
    X, S, x, slack = s.X, s.S, s.x, s.slack
    mu = gap / (G * p + there.sum(1))
    inverse_X, inverse_S = (_inverse_of_factor(L) for L in (s.L_X, s.L_S))
    Y = _mm(inverse_S.mT, inverse_S)
    inverse = torch.where(there, 1 / slack, 0.0)
    theta = x * inverse
    positive = torch.where(there, x, 1.0)

    M, K = _matrix(problem, X, Y, theta)
    # Without inequalities nothing but the equalities holds ν: a multiple of EE' does no harm where E'dy is given.
    lone = ~there.any(1)
    rho = torch.where(lone, M.diagonal(dim1=1, dim2=2).mean(1), 0.0)[:, None]
    if bool(lone.any()):
        M = M + rho[..., None] * (problem.E @ problem.E.mT)
    diagonal = M.diagonal(dim1=1, dim2=2)
    diagonal += torch.where(diagonal > 0, 1e-15 * diagonal, 1.0)
    F, info = cholesky_ex(M)
    for extra in (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8, 1e-6):
        if not bool(info.any()):
            break
        diagonal.mul_(1 + extra * (info != 0)[:, None])
        F, info = cholesky_ex(M)
    tied = problem.E.shape[2] > 0
    ME = cholesky_solve(F, problem.E) if tied else problem.E
    EME = problem.E.mT @ ME
    ties = EME.diagonal(dim1=1, dim2=2)
    ties += ~problem.equal + 1e-15 * ties.amax(1, keepdim=True) if tied else 0.0
    L_E = cholesky_ex(EME)[0]
    short = problem.e - (s.y[:, None] @ problem.E)[:, 0]
    near = gap < 1e-4 * (problem.c * s.y).sum(1).abs()
    refinements = 1 if bool(near.any()) else 0

    def a(R: Tensor) -> Tensor:
        """⟨∂_iS, R⟩."""
        traces = R.diagonal(dim1=-2, dim2=-1).sum((1, 2))
        return problem.tau * traces[:, None] + problem.on(2 * R[..., :k, k:])

    def solve(right: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
        """dy and η for (H + LΘL')dy − Eη = right, E'dy = short, refined near the end."""

        def once(right: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
            if tied:
                right = right + rho * (problem.E @ short[..., None])[..., 0]
            y0 = cholesky_solve(F, right[..., None])
            if not tied:
                return y0[..., 0], short
            eta = torch.cholesky_solve(short[..., None] - problem.E.mT @ y0, L_E)
            return (y0 + ME @ eta)[..., 0], eta[..., 0] * problem.equal

        dy, eta = once(right, short)
        for _ in range(refinements):
            back = right - _times(problem, X, Y, K, theta, dy) + (problem.E @ eta[..., None])[..., 0]
            more, eta_more = once(back, short - (dy[:, None] @ problem.E)[:, 0])
            dy, eta = dy + more, eta + eta_more
        return dy, eta

    def steps(dX: Tensor, dS: Tensor, dx: Tensor, dl: Tensor, squarings: int) -> Tensor:
        """The lengths to the boundary for (X, x) and (S, l)."""
        linear = torch.stack(((dx / positive * there).amin(1), (dl * inverse).amin(1)), 1)
        low = [
            _lowest(_mm(_mm(inverse, d), inverse.mT), squarings).amin(1)
            for inverse, d in ((inverse_X, dX), (inverse_S, dS))
        ]
        return -1.0 / torch.minimum(torch.stack(low, 1), linear).clamp_max(-1e-8)

    def rest(dy: Tensor, R: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dS, dl = _cone(problem, dy, 0.0), (dy[:, None] @ problem.L)[:, 0]
        return R - X - symmetric(_mm(_mm(X, dS), Y)), dS, r - x - theta * dl, dl

    dy, _ = solve(-problem.c, short)
    dX, dS, dx, dl = rest(dy, torch.zeros_like(X), torch.zeros_like(x))
    alpha = steps(dX, dS, dx, dl, 4).clamp_max(1.0)
    a0, a1 = alpha[:, 0], alpha[:, 1]
    left = ((X + a0[:, None, None, None] * dX) * (S + a1[:, None, None, None] * dS)).sum((1, 2, 3))
    left = left + ((x + a0[:, None] * dx) * (slack + a1[:, None] * dl)).sum(1)
    target = mu * (left / gap).clamp(1e-5, 1.0) ** 1.5
    fraction = 0.9 + 0.095 * alpha.amin(1, keepdim=True)

    R = target[:, None, None, None] * Y - symmetric(_mm(_mm(dX, dS), Y))
    r = (target[:, None] - dx * dl) * inverse
    dy, eta = solve(a(R) + (problem.L @ r[..., None])[..., 0] - problem.c, short)
    dX, dS, dx, dl = rest(dy, R, r)
    alpha = (fraction * steps(dX, dS, dx, dl, 6)).clamp_max(1.0)

    def moved(alpha: Tensor) -> tuple[_State, Tensor]:
        a0, a1 = alpha[:, :1], alpha[:, 1:]
        y = s.y + a1 * dy
        new_X, new_S = X + a0[..., None, None] * dX, _cone(problem, y)
        L_X, bad_X = _cholesky(new_X)
        L_S, bad_S = _cholesky(new_S)
        # Of "max" the slack is a difference of W and ν, of "sum" it is λ itself: follow the unknowns exactly.
        new_slack = (y[:, None] @ problem.L)[:, 0]
        bad = bad_X | bad_S | ((new_slack <= 0) & there).any(1)
        new = replace(
            s, y=y, X=new_X, S=new_S, x=x + a0 * dx, slack=new_slack, eta=s.eta + a0 * (eta - s.eta), L_X=L_X, L_S=L_S
        )
        return new, bad

    new, bad = moved(alpha)
    for _ in range(8):
        if not bool(bad.any()):
            break
        alpha = torch.where(bad[:, None], 0.8 * alpha, alpha)
        new, bad = moved(alpha)
    good = ~bad & new.y.isfinite().all(1) & new.x.isfinite().all(1) & (alpha.amin(1) > 1e-6)
    new.failed = ~good
    if not bool(good.all()):
        for name in ("y", "X", "S", "x", "slack", "eta", "L_X", "L_S"):
            getattr(new, name)[~good] = getattr(s, name)[~good]
    return new


def _matrix(problem: _Problem, X: Tensor, Y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """H + LΘL' (B, m, m), and the metric of every block."""
    G, k, h = problem.shape
    n = G * k * h
    K = metric(X.flatten(0, 1), Y.flatten(0, 1), k).unflatten(0, X.shape[:2])  # (B, G, kh, kh)
    M = (problem.L * theta[:, None]) @ problem.L.mT
    if problem.J is None:
        view = M[:, :n, :n].unflatten(1, (G, k * h)).unflatten(3, (G, k * h))
        view.diagonal(dim1=1, dim2=3).add_(K.permute(0, 2, 3, 1))
        return M, K
    J = problem.J.unflatten(2, (G, k * h))
    JK = problem.J * K[:, None, :, 0, 0] if k * h == 1 else (J.transpose(1, 2) @ K).transpose(1, 2).flatten(2)
    M = M + JK @ problem.J.mT
    XY = _mm(X, Y)
    g = problem.on(XY[..., :k, k:] + XY[..., k:, :k].mT)
    trace = XY.diagonal(dim1=-2, dim2=-1).sum((1, 2))
    tau = problem.tau
    M = (
        M
        + trace[:, None, None] * tau[:, :, None] * tau[:, None]
        + tau[:, :, None] * g[:, None]
        + g[..., None] * tau[:, None]
    )
    return M, K


def _times(problem: _Problem, X: Tensor, Y: Tensor, K: Tensor, theta: Tensor, dy: Tensor) -> Tensor:
    """(H + LΘL')dy, without the matrix."""
    k = problem.shape[1]
    XSY = symmetric(_mm(_mm(X, _cone(problem, dy, 0.0)), Y))
    traces = XSY.diagonal(dim1=-2, dim2=-1).sum((1, 2))
    slack = theta * (dy[:, None] @ problem.L)[:, 0]
    return problem.tau * traces[:, None] + problem.on(2 * XSY[..., :k, k:]) + (problem.L @ slack[..., None])[..., 0]
