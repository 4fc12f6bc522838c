"""The Newton step of `_conic`: HKM direction, Mehrotra's corrector, and how far to go along it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular

from attsvm.svm._nuclear import lowest_eigenvalue, metric, symmetric
from attsvm.svm._rows import Batch, cholesky_solve, grown


@dataclass
class Problem:
    """The data of the problem of `_conic`: J (B, m, n) or None for the first n unknowns themselves, n = G·k·h.

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

    def take(self, index: Tensor) -> Problem:
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
class State(Batch):
    """A point of every instance: unknowns, multipliers, cones with their factors; those that `failed` go no further."""

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


def cone(problem: Problem, y: Tensor, constant: float = 1.0) -> Tensor:
    """S_g(y), or its linear part for constant = 0."""
    V = problem.off(y)
    G, k, h = problem.shape
    diagonal = constant * problem.tau_0 + (problem.tau * y).sum(1)
    S = diagonal[:, None, None, None] * torch.eye(k + h, dtype=y.dtype, device=y.device).expand(len(y), G, -1, -1)
    S[..., :k, k:] = V
    S[..., k:, :k] = V.mT
    return S


def newton_step(problem: Problem, s: State, gap: Tensor) -> State:
    """The state after one step, as far as it stays inside the cones; where no step does, the state before it."""
    G, k, h = problem.shape
    p, there = k + h, problem.there
    X, S, x, slack = s.X, s.S, s.x, s.slack
    mu = gap / (G * p + there.sum(1))
    inverse_X, inverse_S = (_inverse_of_factor(L) for L in (s.L_X, s.L_S))
    Y = _mm(inverse_S.mT, inverse_S)
    inverse = torch.where(there, 1 / slack, 0.0)
    theta = x * inverse
    positive = torch.where(there, x, 1.0)

    M = _matrix(problem, X, Y, theta)
    # Without inequalities nothing but the equalities holds ν: a multiple of EE' does no harm where E'dy is given.
    lone = ~there.any(1)
    rho = torch.where(lone, M.diagonal(dim1=1, dim2=2).mean(1), 0.0)[:, None]
    if bool(lone.any()):
        M = M + rho[..., None] * (problem.E @ problem.E.mT)
    diagonal = M.diagonal(dim1=1, dim2=2)
    diagonal += torch.where(diagonal > 0, 1e-15 * diagonal, 1.0)
    F = grown(M, (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-8, 1e-6))
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
            back = right - _times(problem, X, Y, theta, dy) + (problem.E @ eta[..., None])[..., 0]
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
        dS, dl = cone(problem, dy, 0.0), (dy[:, None] @ problem.L)[:, 0]
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

    def moved(alpha: Tensor) -> tuple[State, Tensor]:
        a0, a1 = alpha[:, :1], alpha[:, 1:]
        y = s.y + a1 * dy
        new_X, new_S = X + a0[..., None, None] * dX, cone(problem, y)
        L_X, bad_X = cholesky(new_X)
        L_S, bad_S = cholesky(new_S)
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


def _matrix(problem: Problem, X: Tensor, Y: Tensor, theta: Tensor) -> Tensor:
    """H + LΘL' (B, m, m)."""
    G, k, h = problem.shape
    n = G * k * h
    K = metric(X.flatten(0, 1), Y.flatten(0, 1), k).unflatten(0, X.shape[:2])  # (B, G, kh, kh)
    M = (problem.L * theta[:, None]) @ problem.L.mT
    if problem.J is None:
        view = M[:, :n, :n].unflatten(1, (G, k * h)).unflatten(3, (G, k * h))
        view.diagonal(dim1=1, dim2=3).add_(K.permute(0, 2, 3, 1))
        return M
    J = problem.J.unflatten(2, (G, k * h))
    JK = problem.J * K[:, None, :, 0, 0] if k * h == 1 else (J.transpose(1, 2) @ K).transpose(1, 2).flatten(2)
    M = M + JK @ problem.J.mT
    XY = _mm(X, Y)
    g = problem.on(XY[..., :k, k:] + XY[..., k:, :k].mT)
    trace = XY.diagonal(dim1=-2, dim2=-1).sum((1, 2))
    tau = problem.tau
    M = M + trace[:, None, None] * tau[:, :, None] * tau[:, None]
    return M + tau[:, :, None] * g[:, None] + g[..., None] * tau[:, None]


def _times(problem: Problem, X: Tensor, Y: Tensor, theta: Tensor, dy: Tensor) -> Tensor:
    """(H + LΘL')dy, without the matrix."""
    k = problem.shape[1]
    XSY = symmetric(_mm(_mm(X, cone(problem, dy, 0.0)), Y))
    traces = XSY.diagonal(dim1=-2, dim2=-1).sum((1, 2))
    slack = theta * (dy[:, None] @ problem.L)[:, 0]
    return problem.tau * traces[:, None] + problem.on(2 * XSY[..., :k, k:]) + (problem.L @ slack[..., None])[..., 0]


# Blocks of one entry have 2 × 2 cones: what the libraries do one by one for those is written out for all of them.


def _mm(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for square matrices."""
    if A.shape[-1] != 2:
        return A @ B
    return A[..., :, :1] * B[..., :1, :] + A[..., :, 1:] * B[..., 1:, :]


def cholesky(S: Tensor) -> tuple[Tensor, Tensor]:
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
