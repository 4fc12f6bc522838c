"""A batched interior-point method for sums and maxima of Euclidean norms of groups: second-order cones.

Group norms are norms made of blocks, see `_conic`, whose blocks are vectors. Then a second-order cone says as much as
the semidefinite one there, and the Newton system has the size of the rows, as for ℓ1 and ℓ∞ in `_linear`:

sum   minimise t with S_g = (t, U_g), U = A'λ;   multipliers X_g = (p_g, Y_g), W = −Y, Σ p_g = 1, AW = νb + s;
max   maximise ν with S_g = (1, W_g), AW = νb + s;   multipliers X_g = (p_g, Y_g), A'λ = −Y.

All S_g and X_g are kept inside their cones, b'λ = 1, and λ, s positive. With the scaling of Nesterov and Todd, the
symmetric matrix Ω_g with Ω_g S_g = Ω_g⁻¹X_g = ℓ_g, steps are taken in the coordinates of ℓ, where dX and dS are
D_X = Ω⁻¹dX and D_S = ΩdS. In the Jordan algebra of the cone

    D_X + D_S = ℓ \\ (σμe − D_X'∘D_S') − ℓ,    Ω = uu' − ηJ,  Ω² = η²(2ww' − J),  J = diag(1, −1, …, −1);

primes mark the predictor's steps, whose D_X' + D_S' = −ℓ. What is left is a matrix A K A' + diag(s/λ) with
K = η²(I + 2w₁w₁') per group for "sum" and its inverse for "max", and a border of b and (for "sum") of what belongs
to t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.geometry import Blocks
from attsvm.svm._rows import Batch, Iterates, Rows, System, cholesky_solve, factored

PATIENCE = 20

_NEAR = 1e-8
"""Gap from which the solutions of the Newton system are refined."""


class _Groups:
    """The rows, with W in groups (B, G, h)."""

    def __init__(self, rows: Rows, blocks: Blocks) -> None:
        self.rows = rows
        numbers = torch.arange(rows.d * rows.e).reshape(rows.d, rows.e)
        index = blocks.index.flatten(1).cpu()
        plain = blocks.weight is None
        self.by_rows, self.by_columns = (
            plain and index.shape == x.shape and bool((index == x).all()) for x in (numbers, numbers.T)
        )
        self.shape = tuple(index.shape)
        self.blocks, self.weight = blocks, blocks.weights(rows.A)[..., 0]
        self.F: Tensor | None = None
        if not (self.by_rows or self.by_columns):
            self.F = self.cut(rows.dense().unflatten(2, (rows.d, rows.e)))

    def take(self, index: Tensor) -> _Groups:
        new = object.__new__(_Groups)
        new.__dict__.update(self.__dict__, rows=self.rows.take(index), F=None if self.F is None else self.F[index])
        return new

    def cut(self, U: Tensor) -> Tensor:
        """U (…, d, e) in groups, over their weights."""
        if self.by_rows or self.by_columns:
            return U if self.by_rows else U.mT
        return self.blocks.cut(U.flatten(-2)).flatten(-2) / self.weight

    def joined(self, V: Tensor) -> Tensor:
        """The W (B, d, e) whose groups, times their weights, are V."""
        if self.by_rows or self.by_columns:
            return V if self.by_rows else V.mT
        return self.blocks.joined(V / self.weight, self.rows.d, self.rows.e)

    def apply(self, V: Tensor) -> Tensor:
        if self.F is None:
            return self.rows.apply(self.joined(V))
        return (self.F.flatten(2) @ V.flatten(1)[..., None])[..., 0]

    def adjoint(self, lam: Tensor) -> Tensor:
        if self.F is None:
            return self.cut(self.rows.adjoint(lam))
        return (lam[:, None] @ self.F.flatten(2))[:, 0].unflatten(1, self.shape)

    def gram(self, theta: Tensor, w: Tensor, share: Tensor) -> Tensor:
        """A K A' for K = θI + share·ww' per group: (B, G), (B, G, h), (B, G)."""
        rows = self.rows
        if self.by_rows:  # rows of two queries meet in one number per group
            along = rows.Z @ w.mT
            inner = (rows.Z @ rows.Z.mT)[..., None] * theta[:, None, None]
            return rows.mixed(inner + (share[:, None] * along)[:, :, None] * along[:, None])
        if self.by_columns:
            along = ((rows.A @ w.mT[:, None]) * rows.Z[:, :, None]).flatten(1, 2)
            H = rows.gram(theta[:, None].expand(-1, rows.d, -1))
        else:
            assert self.F is not None
            along = (self.F * w[:, None]).sum(3)
            H = (self.F * theta[:, None, :, None]).flatten(2) @ self.F.flatten(2).mT
        return H.baddbmm_(along * share[:, None], along.mT)


class _Scaling:
    """Ω of every cone, from X and S (B, G, 1 + h)."""

    def __init__(self, X: Tensor, S: Tensor) -> None:
        self.J = -torch.ones_like(X[0, 0])
        self.J[0] = 1.0
        X_root, S_root = _root(X), _root(S)
        X, S = X / X_root, S / S_root
        gamma = ((1 + _inner(X, S)) / 2).sqrt()
        self.w = (X + self.J * S) / (2 * gamma)
        self.eta = (X_root / S_root).sqrt()
        self.u = _halved(self.w) * self.eta.sqrt()
        self._minus = -self.eta * self.J
        # ℓ, without the digits that are lost in ΩS.
        X_head, S_head = X[..., :1], S[..., :1]
        unit = ((gamma + X_head) * S + (gamma + S_head) * X) / (X_head + S_head + 2 * gamma)
        unit[..., :1] = gamma
        self.size = (X_root * S_root).sqrt()  # √(ℓ₀² − |ℓ₁|²)
        self.ell = self.size * unit
        self._to_e = self.J * _halved(unit)

    def times(self, v: Tensor) -> Tensor:
        """Ωv."""
        return torch.addcmul(self._minus * v, self.u, _inner(self.u, v))

    def divided(self, v: Tensor) -> Tensor:
        """ℓ \\ v, the y with ℓ∘y = v."""
        head = _inner(self.J * self.ell, v) / self.size.square()
        y = (v - head * self.ell) / self.ell[..., :1]
        y[..., :1] = head
        return y

    def reach(self, D: Tensor) -> tuple[Tensor, Tensor]:
        """ℓ + aD is inside its cone while a(p − q) < 1: p and q, (B, G)."""
        D = torch.addcmul(-self.J * D, self._to_e, _inner(self._to_e, D)) / self.size
        return torch.linalg.vector_norm(D[..., 1:], dim=2), D[..., 0]


def _inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(2, keepdim=True)


def _root(x: Tensor) -> Tensor:
    """√(x₀² − |x₁|²)."""
    head, length = x[..., :1], torch.linalg.vector_norm(x[..., 1:], dim=2, keepdim=True)
    return ((head - length) * (head + length)).sqrt()


def _halved(w: Tensor) -> Tensor:
    """(w + e)/√(1 + w₀): the u for which uu' − J maps e to w."""
    u = w.clone()
    u[..., 0] += 1
    return u / u[..., :1].sqrt()


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x∘y in the Jordan algebra of the cone."""
    xy = torch.addcmul(x[..., :1] * y, y[..., :1], x)
    xy[..., :1] = _inner(x, y)
    return xy


@dataclass
class _State(Batch):
    lam: Tensor
    s: Tensor
    nu: Tensor
    t: Tensor
    S: Tensor
    X: Tensor


def has_vectors(blocks: Blocks) -> bool:
    """Whether all blocks are vectors, and some of more than one entry."""
    return min(blocks.index.shape[1:]) == 1 < max(blocks.index.shape[1:])


def solve_groups(system: System, blocks: Blocks, tol: float, max_iterations: int, cancelled: float) -> Iterates:
    """As `solve_lp`, for norms whose blocks are vectors."""
    rows, b = system.rows, system.b
    groups, largest = _Groups(rows, blocks), blocks.kind == "max"
    out = Iterates.first(rows, system.equal_multipliers())
    index = torch.arange(rows.B, device=b.device)
    best = b.new_full((rows.B,), torch.inf)
    idle, lowest = torch.zeros_like(index), best.clone()
    x = _start(system, groups, largest)
    for iteration in range(max_iterations + 1):
        V, U = (x.S[..., 1:], groups.adjoint(x.lam)) if largest else (-x.X[..., 1:], x.S[..., 1:])
        AW = groups.apply(V)
        gap = _gap(system, largest, V, U, AW, x.lam, cancelled)
        improved = gap <= best[index]
        at = index[improved]
        out.W[at], out.lam[at], best[at] = groups.joined(V)[improved], x.lam[improved], gap[improved]
        out.iterations[index] = iteration
        mu = (x.lam * x.s).sum(1) + (x.X * x.S).sum((1, 2))
        idle = torch.where(mu < 0.9 * lowest, 0, idle + 1)
        lowest = torch.minimum(lowest, mu)
        active = (gap > tol) & (idle < PATIENCE) & mu.isfinite()
        if iteration == max_iterations or not bool(active.any()):
            break
        if not bool(active.all()):
            keep = active.nonzero()[:, 0]
            index, system, groups, x = index[keep], system.take(keep), groups.take(keep), x.take(keep)
            idle, lowest, AW, U, mu = (y[keep] for y in (idle, lowest, AW, U, mu))
        x = _newton_step(system, groups, x, AW, U, mu, largest, bool((best[index] < _NEAR).any()))
    return out


def _gap(system: System, largest: bool, V: Tensor, U: Tensor, AW: Tensor, lam: Tensor, cancelled: float) -> Tensor:
    """The relative gap between ‖W‖ over the margin of W and b'λ/‖A'λ‖, from their groups; 0 where A'λ has cancelled."""
    norm, dual = (torch.linalg.vector_norm(x, dim=2) for x in (V, U))
    norm, dual = (norm.amax(1), dual.sum(1)) if largest else (norm.sum(1), dual.amax(1))
    gap, _ = system.gap(norm, dual, AW, system.margin(AW), lam, cancelled)
    return torch.where(lam.isfinite().all(1) & norm.isfinite(), gap, torch.nan)


def _start(system: System, groups: _Groups, largest: bool) -> _State:
    """Equal multipliers, W = 0, and the rest in balance."""
    ineq, G = system.inequality, groups.shape[0]
    lam = system.equal_multipliers()
    U = groups.adjoint(lam)
    size = torch.linalg.vector_norm(U, dim=2)
    inside = lambda head, tail: torch.cat((head[..., None].expand(-1, G, 1), tail), 2)  # noqa: E731
    if largest:
        extra = 0.5 * size.mean(1) + 1e-2 * lam.abs().sum(1) / G
        nu = -extra * ineq.sum(1)
        S, X = inside(torch.ones_like(size), torch.zeros_like(U)), inside(size + extra[:, None], -U)
        return _State(lam, system.first_slacks(-nu), nu, torch.ones_like(nu), S, X)
    t = 1.2 * size.amax(1) + 1e-2 * lam.abs().sum(1)
    nu = -0.05 * t * ineq.sum(1) / G
    S, X = inside(t[:, None], U), inside(torch.ones_like(size) / G, torch.zeros_like(U))
    return _State(lam, system.first_slacks(-nu), nu, t, S, X)


def _newton_step(
    system: System, groups: _Groups, x: _State, AW: Tensor, U: Tensor, total: Tensor, largest: bool, refine: bool
) -> _State:
    """From x with these AW, A'λ and total complementarity to the next point."""
    b, ineq, G = system.b, system.inequality, groups.shape[0]
    count = ineq.sum(1) + G
    mu = total / count
    lam_pos, s_pos = torch.where(ineq, x.lam, 1.0), torch.where(ineq, x.s, 1.0)
    ratio = x.s / lam_pos
    ridge = ratio + ~(ineq | system.equality)
    omega = _Scaling(x.X, x.S)
    ell, w0, w1 = omega.ell, omega.w[..., :1], omega.w[..., 1:]
    square = omega.eta.square()
    # K per group, θ(I + κ w₁w₁').
    theta = 1 / square if largest else square
    kappa = -2 / (1 + 2 * w1.square().sum(2, keepdim=True)) if largest else torch.full_like(square, 2.0)

    def curved(V: Tensor) -> Tensor:
        return theta * torch.addcmul(V, kappa * _inner(w1, V), w1)

    H = groups.gram(theta[..., 0], w1, (theta * kappa)[..., 0])
    L = factored(H, ridge, 1e-15, (1e2, 1e2, 1e2))

    residual = AW - x.nu[:, None] * b - x.s * ineq
    short = 1 - (b * x.lam).sum(1)
    off = x.X[..., 1:] + U  # only "max" has to bring Y to −A'λ

    def right_side(r: Tensor, R: Tensor) -> Tensor:
        return r - residual + groups.apply(-curved(R[..., 1:] + off) if largest else R[..., 1:])

    # The border: H dλ + Ah dt − b dν = right, Ah'dλ + trace dt = of_t, b'dλ = of_b. Only "sum" has a t.
    Ah = torch.zeros_like(b) if largest else groups.apply(2 * square * w0 * w1)
    trace = torch.ones_like(mu) if largest else (square * (2 * w0.square() - 1)).sum((1, 2))
    affine = right_side(-x.s, -x.X) if largest else Ah
    to_b, other = cholesky_solve(L, torch.stack((b, affine), -1)).unbind(-1)
    to_h, affine_z = (Ah, other) if largest else (other, x.nu[:, None] * to_b)  # the right-hand side of "sum" is νb
    hh, hb, bb = trace - (Ah * to_h).sum(1), (Ah * to_b).sum(1), (b * to_b).sum(1)
    det = hh * bb + hb * hb

    def bordered(z: Tensor, of_t: Tensor, of_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dλ, dν and dt from H⁻¹right."""
        of_t, of_b = of_t - (Ah * z).sum(1), of_b - (b * z).sum(1)
        dt, dnu = (of_t * bb - of_b * hb) / det, (hh * of_b + hb * of_t) / det
        return z - to_h * dt[:, None] + to_b * dnu[:, None], dnu, dt

    def slack_step(dlam: Tensor, dt: Tensor, R: Tensor) -> Tensor:
        """dS."""
        dU = groups.adjoint(dlam)
        head = dt[:, None, None].expand(-1, G, 1)
        return torch.cat((head, curved(R[..., 1:] + off + dU) if largest else dU), 2)

    def steps(dlam: Tensor, ds: Tensor, of_S: Tensor, of_X: Tensor) -> tuple[Tensor, Tensor]:
        """The longest steps of (λ and what it makes) and of (W and what it makes)."""
        of_lam, of_s = (-dlam / lam_pos * ineq).amax(1), (-ds / s_pos * ineq).amax(1)
        dual, primal = (of_X, of_S) if largest else (of_S, of_X)
        dual, primal = torch.maximum(of_lam, dual.amax(1)), torch.maximum(of_s, primal.amax(1))
        return 1 / dual.clamp_min(1.0), 1 / primal.clamp_min(1.0)

    def of_cones(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The steps of S and X."""
        a, c = a[:, None, None], c[:, None, None]
        return (c, a) if largest else (a, c)

    dlam, _, dt = bordered(affine_z, torch.full_like(mu, 0.0 if largest else -1.0), short)
    ds = (-x.s - ratio * dlam) * ineq
    D_S = omega.times(slack_step(dlam, dt, -x.X))
    p, q = omega.reach(D_S)
    a, c = steps(dlam, ds, p - q, 1 + p + q)  # D_X = −ℓ − D_S
    of_S, of_X = of_cones(a, c)
    left = ((x.lam + a[:, None] * dlam) * (x.s + c[:, None] * ds)).sum(1)
    left = (left + (((1 - of_X) * ell - of_X * D_S) * (ell + of_S * D_S)).sum((1, 2))) / count
    target = mu * (left / mu).clamp(1e-6, 1.0) ** 1.5
    fraction = 0.9 + 0.099 * torch.minimum(a, c)  # where the predictor went far, the boundary is no danger

    want = _product(ell + D_S, D_S)
    want[..., 0] += target[:, None]
    y = omega.divided(want)
    R = omega.times(y) - x.X
    r = (target[:, None] - dlam * ds) / lam_pos * ineq - x.s
    right = right_side(r, R)
    of_t = torch.zeros_like(mu) if largest else (R + x.X)[..., 0].sum(1) - 1
    dlam, dnu, dt = bordered(cholesky_solve(L, right[..., None])[..., 0], of_t, short)
    if refine:
        left = right - groups.apply(curved(groups.adjoint(dlam))) - ridge * dlam - Ah * dt[:, None] + b * dnu[:, None]
        of_t, of_b = of_t - (Ah * dlam).sum(1) - trace * dt, short - (b * dlam).sum(1)
        more = bordered(cholesky_solve(L, left[..., None])[..., 0], of_t, of_b)
        dlam, dnu, dt = (y + z for y, z in zip((dlam, dnu, dt), more))
    ds = (r - ratio * dlam) * ineq
    dS = slack_step(dlam, dt, R)
    D_S = omega.times(dS)
    D_X = y - ell - D_S
    a, c = (fraction * step for step in steps(dlam, ds, *(p - q for p, q in map(omega.reach, (D_S, D_X)))))
    of_S, of_X = of_cones(a, c)
    return _State(
        x.lam + a[:, None] * dlam,
        x.s + c[:, None] * ds,
        x.nu + c * dnu,
        x.t + a * dt,
        x.S + of_S * dS,
        x.X + of_X * (R - omega.times(D_S)),
    )
