"""A batched interior-point method for sums and maxima of Euclidean norms of groups: second-order cones.

Group norms are norms made of blocks, see `_conic`, whose blocks are vectors. Then a second-order cone says as much as
the semidefinite one there, and the Newton system has the size of the rows, as for ℓ1 and ℓ∞ in `_linear`:

sum   minimise t with S_g = (t, U_g), U = A'λ;   multipliers X_g = (p_g, Y_g), W = −Y, Σ p_g = 1, AW = νb + s;
max   maximise ν with S_g = (1, W_g), AW = νb + s;   multipliers X_g = (p_g, Y_g), A'λ = −Y.

All S_g and X_g are kept inside their cones, b'λ = 1, and λ, s positive. With the scaling of Nesterov and Todd, the
symmetric matrix Ω_g with Ω_g S_g = Ω_g⁻¹X_g = ℓ_g, a step is dX = R − Ω²dS, where in the Jordan algebra of the cone

    R = Ω(ℓ \\ (σμe − ℓ∘ℓ − Ω⁻¹dX'∘ΩdS')),    Ω² = η²(2ww' − J),  J = diag(1, −1, …, −1);

primes mark the predictor's steps. What is left is a matrix A K A' + diag(s/λ) with K = η²(I + 2w₁w₁') per group for
"sum" and its inverse for "max", and a border of b and (for "sum") of what belongs to t.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from attsvm.geometry import Blocks
from attsvm.svm._rows import Iterates, Rows, System, cholesky_solve

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
        self.index = index.to(rows.A.device)
        weight = torch.ones(len(index), dtype=rows.A.dtype) if blocks.weight is None else blocks.weight
        self.weight = weight.to(rows.A.device)[:, None]
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
        return pad(U.flatten(-2), (0, 1))[..., self.index] / self.weight

    def joined(self, V: Tensor) -> Tensor:
        """The W (B, d, e) whose groups, times their weights, are V."""
        if self.by_rows or self.by_columns:
            return V if self.by_rows else V.mT
        d, e = self.rows.d, self.rows.e
        flat = V.new_zeros(len(V), d * e + 1)
        flat[:, self.index.flatten().where(self.index.flatten() >= 0, d * e)] = (V / self.weight).flatten(1)
        return flat[:, :-1].unflatten(1, (d, e))

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


@dataclass
class _Vectors:
    """A vector (x₀, x₁) in every cone: (B, G) and (B, G, h)."""

    head: Tensor
    tail: Tensor

    def take(self, index: Tensor) -> _Vectors:
        return _Vectors(self.head[index], self.tail[index])

    def moved(self, a: Tensor, d: _Vectors) -> _Vectors:
        return _Vectors(self.head + a[:, None] * d.head, self.tail + a[:, None, None] * d.tail)

    def inner(self, y: _Vectors) -> Tensor:
        """x'y of every cone, (B, G)."""
        return self.head * y.head + (self.tail * y.tail).sum(2)

    def root(self) -> Tensor:
        """√(x₀² − |x₁|²)."""
        length = torch.linalg.vector_norm(self.tail, dim=2)
        return ((self.head - length) * (self.head + length)).sqrt()

    def over(self, size: Tensor) -> _Vectors:
        return _Vectors(self.head / size, self.tail / size[..., None])


@dataclass
class _Scaling:
    eta: Tensor
    w: _Vectors

    @classmethod
    def between(cls, x: _Vectors, s: _Vectors) -> _Scaling:
        x_root, s_root = x.root(), s.root()
        x, s = x.over(x_root), s.over(s_root)
        gamma = ((1 + x.inner(s)) / 2).sqrt()
        w = _Vectors((x.head + s.head) / (2 * gamma), (x.tail - s.tail) / (2 * gamma)[..., None])
        return cls((x_root / s_root).sqrt(), w)

    def times(self, v: _Vectors) -> _Vectors:
        """Ωv."""
        along = (self.w.tail * v.tail).sum(2)
        head = self.w.head * v.head + along
        tail = v.tail + self.w.tail * (v.head + along / (1 + self.w.head))[..., None]
        return _Vectors(self.eta * head, self.eta[..., None] * tail)

    def undone(self, v: _Vectors) -> _Vectors:
        """Ω⁻¹v."""
        along = (self.w.tail * v.tail).sum(2)
        head = self.w.head * v.head - along
        tail = v.tail + self.w.tail * (along / (1 + self.w.head) - v.head)[..., None]
        return _Vectors(head / self.eta, tail / self.eta[..., None])


@dataclass
class _State:
    lam: Tensor
    s: Tensor
    nu: Tensor
    t: Tensor
    S: _Vectors
    X: _Vectors

    def take(self, index: Tensor) -> _State:
        parts = {}
        for f in fields(self):
            x = getattr(self, f.name)
            parts[f.name] = x.take(index) if isinstance(x, _Vectors) else x[index]
        return _State(**parts)


def has_vectors(blocks: Blocks) -> bool:
    """Whether all blocks are vectors, and some of more than one entry."""
    return min(blocks.index.shape[1:]) == 1 < max(blocks.index.shape[1:])


def solve_groups(system: System, blocks: Blocks, tol: float, max_iterations: int, cancelled: float) -> Iterates:
    """As `solve_lp`, for norms whose blocks are vectors."""
    rows, b = system.rows, system.b
    groups, largest = _Groups(rows, blocks), blocks.kind == "max"
    out = Iterates(
        W=b.new_zeros(rows.B, rows.d, rows.e),
        lam=system.equal_multipliers(),
        iterations=torch.zeros(rows.B, dtype=torch.long, device=b.device),
    )
    index = torch.arange(rows.B, device=b.device)
    best = b.new_full((rows.B,), torch.inf)
    idle, lowest = torch.zeros_like(index), best.clone()
    x = _start(system, groups, largest)
    for iteration in range(max_iterations + 1):
        V, U = (x.S.tail, groups.adjoint(x.lam)) if largest else (-x.X.tail, x.S.tail)
        gap = _gap(system, groups, largest, V, U, x.lam, cancelled)
        improved = gap <= best[index]
        at = index[improved]
        out.W[at], out.lam[at], best[at] = groups.joined(V)[improved], x.lam[improved], gap[improved]
        out.iterations[index] = iteration
        mu = (x.lam * x.s).sum(1) + x.X.inner(x.S).sum(1)
        idle = torch.where(mu < 0.9 * lowest, 0, idle + 1)
        lowest = torch.minimum(lowest, mu)
        active = (gap > tol) & (idle < PATIENCE) & mu.isfinite()
        if iteration == max_iterations or not bool(active.any()):
            break
        if not bool(active.all()):
            keep = active.nonzero()[:, 0]
            index, system, groups, x = index[keep], system.take(keep), groups.take(keep), x.take(keep)
            idle, lowest = idle[keep], lowest[keep]
        x = _newton_step(system, groups, x, largest, 1 if bool((best[index] < _NEAR).any()) else 0)
    return out


def _gap(system: System, groups: _Groups, largest: bool, V: Tensor, U: Tensor, lam: Tensor, cancelled: float) -> Tensor:
    """The relative gap between ‖W‖ over the margin of W and b'λ/‖A'λ‖, from their groups; 0 where A'λ has cancelled."""
    b, ineq = system.b, system.inequality
    norm, dual = (torch.linalg.vector_norm(x, dim=2) for x in (V, U))
    norm, dual = (norm.amax(1), dual.sum(1)) if largest else (norm.sum(1), dual.amax(1))
    AW = groups.apply(V)
    margin = torch.where(ineq.any(1), system.least_margin(AW), (b * AW).sum(1) / b.square().sum(1))
    lower = (b * lam).sum(1) / dual
    off = ((AW - margin[:, None] * b) * system.equality).abs().sum(1) * lam.abs().amax(1)
    gap = (norm / margin - lower).abs() / lower + off / margin
    gap = torch.where((margin > 0) & gap.isfinite(), gap, torch.inf)
    gap = torch.where(system.cancelled(lam, dual, cancelled), 0.0, gap)
    return torch.where(lam.isfinite().all(1) & norm.isfinite(), gap, torch.nan)


def _start(system: System, groups: _Groups, largest: bool) -> _State:
    """Equal multipliers, W = 0, and the rest in balance."""
    b, ineq, G = system.b, system.inequality, groups.shape[0]
    lam = system.equal_multipliers()
    U = groups.adjoint(lam)
    size = torch.linalg.vector_norm(U, dim=2)
    ones, zero = torch.ones_like(size), torch.zeros_like(U)
    if largest:
        extra = 0.5 * size.mean(1) + 1e-2 * lam.abs().sum(1) / G
        nu = -extra * ineq.sum(1)
        S, X = _Vectors(ones, zero), _Vectors(size + extra[:, None], -U)
        return _State(lam, ineq * b * -nu[:, None], nu, torch.ones_like(nu), S, X)
    t = 1.2 * size.amax(1) + 1e-2 * lam.abs().sum(1)
    nu = -0.15 * t * ineq.sum(1) / G
    S, X = _Vectors(t[:, None] * ones, U), _Vectors(ones / G, zero)
    return _State(lam, ineq * b * -nu[:, None], nu, t, S, X)


def _newton_step(system: System, groups: _Groups, x: _State, largest: bool, refinements: int) -> _State:
    b, ineq, G = system.b, system.inequality, groups.shape[0]
    count = ineq.sum(1) + G
    mu = ((x.lam * x.s).sum(1) + x.X.inner(x.S).sum(1)) / count
    lam_pos, s_pos = torch.where(ineq, x.lam, 1.0), torch.where(ineq, x.s, 1.0)
    ratio = x.s / lam_pos
    ridge = ratio + ~(ineq | system.equality)
    omega = _Scaling.between(x.X, x.S)
    w0, w1 = omega.w.head, omega.w.tail
    square = omega.eta.square()
    long = w1.square().sum(2)
    # K per group, θ(I + κ w₁w₁').
    theta = 1 / square if largest else square
    kappa = -2 / (1 + 2 * long) if largest else torch.full_like(long, 2.0)

    def curved(V: Tensor) -> Tensor:
        return theta[..., None] * (V + (kappa * (w1 * V).sum(2))[..., None] * w1)

    H = groups.gram(theta, w1, theta * kappa)
    diagonal = H.diagonal(dim1=1, dim2=2)
    regular = 1e-15 * diagonal.amax(1, keepdim=True)
    diagonal += ridge + regular
    L, info = torch.linalg.cholesky_ex(H)
    for _ in range(3):
        if not bool(info.any()):
            break
        diagonal += (info > 0)[:, None] * 1e2 * regular
        regular = 1e2 * regular
        L, info = torch.linalg.cholesky_ex(H)

    def solve(y: Tensor) -> Tensor:
        z = cholesky_solve(L, y)
        for _ in range(refinements):
            back = [groups.apply(curved(groups.adjoint(c))) + ridge * c for c in z.unbind(-1)]
            z = z + cholesky_solve(L, y - torch.stack(back, -1))
        return z

    W = x.S.tail if largest else -x.X.tail
    residual = groups.apply(W) - x.nu[:, None] * b - x.s * ineq
    short = 1 - (b * x.lam).sum(1)
    off = x.X.tail + groups.adjoint(x.lam) if largest else x.X.tail  # only "max" has to bring Y to −A'λ

    def right_side(r: Tensor, R: _Vectors) -> Tensor:
        return r - residual + groups.apply(-curved(R.tail + off) if largest else R.tail)

    # The border: b for ν, and for "sum" A·lean for t.
    lean = (2 * square * w0)[..., None] * w1
    trace = (square * (2 * w0.square() - 1)).sum(1)
    minus_x = _Vectors(-x.X.head, -x.X.tail)
    if largest:
        to_b, affine_z = solve(torch.stack((b, right_side(-x.s, minus_x)), -1)).unbind(-1)
        Ah = to_h = torch.zeros_like(b)
        hh = torch.ones_like(mu)
    else:
        Ah = groups.apply(lean)
        to_b, to_h = solve(torch.stack((b, Ah), -1)).unbind(-1)
        affine_z = x.nu[:, None] * to_b  # the right-hand side is νb
        hh = trace - (Ah * to_h).sum(1)
    hb, bb = (Ah * to_b).sum(1), (b * to_b).sum(1)

    def direction(z: Tensor, r: Tensor, R: _Vectors) -> tuple[Tensor, Tensor, Tensor, Tensor, _Vectors, _Vectors]:
        """Steps of λ, s, ν, t, S and X."""
        of_t = torch.zeros_like(mu) if largest else R.head.sum(1) - (1 - x.X.head.sum(1))
        r1, r2 = of_t - (Ah * z).sum(1), short - (b * z).sum(1)
        det = hh * bb + hb * hb
        dt, dnu = (r1 * bb - r2 * hb) / det, (hh * r2 + hb * r1) / det
        if largest:
            dt = torch.zeros_like(dt)
        dlam = z - to_h * dt[:, None] + to_b * dnu[:, None]
        dU = groups.adjoint(dlam)
        tail = curved(R.tail + off + dU) if largest else dU
        dS = _Vectors(dt[:, None].expand_as(w0), tail)
        # Ω²dS = η²(2w(w'dS) − JdS)
        along = 2 * omega.w.inner(dS)
        head = R.head - square * (along * w0 - dS.head)
        dX = _Vectors(head, R.tail - square[..., None] * (along[..., None] * w1 + tail))
        return dlam, (r - ratio * dlam) * ineq, dnu, dt, dS, dX

    x_root, s_root = x.X.root(), x.S.root()
    unit_X, unit_S = x.X.over(x_root), x.S.over(s_root)

    def shrink(unit: _Vectors, root: Tensor, d: _Vectors) -> Tensor:
        """1 over the longest step inside the cones, (B,)."""
        d = d.over(root)
        along = unit.head * d.head - (unit.tail * d.tail).sum(2)
        across = d.tail - ((along + d.head) / (1 + unit.head))[..., None] * unit.tail
        return (torch.linalg.vector_norm(across, dim=2) - along).amax(1)

    def steps(dlam: Tensor, ds: Tensor, dS: _Vectors, dX: _Vectors) -> tuple[Tensor, Tensor]:
        """The longest steps of (λ and what it makes) and of (W and what it makes)."""
        of_lam, of_s = (-dlam / lam_pos * ineq).amax(1), (-ds / s_pos * ineq).amax(1)
        of_S, of_X = shrink(unit_S, s_root, dS), shrink(unit_X, x_root, dX)
        dual, primal = (of_X, of_S) if largest else (of_S, of_X)
        return 1 / torch.maximum(of_lam, dual).clamp_min(1.0), 1 / torch.maximum(of_s, primal).clamp_min(1.0)

    dlam, ds, _, _, dS, dX = direction(affine_z, -x.s, minus_x)
    a, c = steps(dlam, ds, dS, dX)
    of_S, of_X = (c, a) if largest else (a, c)
    left = ((x.lam + a[:, None] * dlam) * (x.s + c[:, None] * ds)).sum(1)
    left = (left + x.X.moved(of_X, dX).inner(x.S.moved(of_S, dS)).sum(1)) / count
    target = mu * (left / mu).clamp(1e-6, 1.0) ** 1.5
    fraction = 0.9 + 0.099 * torch.minimum(a, c)  # where the predictor went far, the boundary is no danger

    ell, first, second = omega.times(x.S), omega.undone(dX), omega.times(dS)
    want = _Vectors(
        target[:, None] - first.inner(second),
        -(first.head[..., None] * second.tail + second.head[..., None] * first.tail),
    )
    head = (ell.head * want.head - (ell.tail * want.tail).sum(2)) / ell.root().square()
    y = omega.times(_Vectors(head, (want.tail - head[..., None] * ell.tail) / ell.head[..., None]))
    R = _Vectors(y.head - x.X.head, y.tail - x.X.tail)
    r = (target[:, None] - dlam * ds) / lam_pos * ineq - x.s
    dlam, ds, dnu, dt, dS, dX = direction(solve(right_side(r, R)[..., None])[..., 0], r, R)
    a, c = (fraction * step for step in steps(dlam, ds, dS, dX))
    of_S, of_X = (c, a) if largest else (a, c)
    return _State(
        x.lam + a[:, None] * dlam,
        x.s + c[:, None] * ds,
        x.nu + c * dnu,
        x.t + a * dt,
        x.S.moved(of_S, dS),
        x.X.moved(of_X, dX),
    )
