"""A batched interior-point method for the nuclear norm.

**The pair that is solved.** With M(λ) = A'λ = Σ_c λ_c a_c z_cᵀ and ‖·‖ the spectral norm,

    (D)  minimise t  subject to  ‖M(λ)‖ ≤ t,  b'λ = 1,  λ_c ≥ 0 on inequality rows;
    (P)  maximise ν  subject to  AW = ν b + s,  s ≥ 0 (= 0 on equalities),  ‖W‖_* ≤ 1.

W/ν is feasible, 1/t bounds the optimal norm from below, and (D) always has a solution: where no W is feasible, t goes
to 0 and λ becomes a Farkas vector. ‖M‖ ≤ t says S = [[tI, M], [Mᵀ, tI]] = tI + Σ λ_c E_c ⪰ 0, with
E_c = u_c v_cᵀ + v_c u_cᵀ, u_c = (a_c, 0), v_c = (0, z_c). A multiplier X ⪰ 0 of it makes the Lagrangian
t − ⟨X, S⟩ − s'λ − ν(b'λ − 1) stationary where tr X = 1 and ⟨E_c, X⟩ + s_c + ν b_c = 0: this is (P) for W = −2X₁₂,
because ⟨E_c, X⟩ = 2 a_cᵀX₁₂z_c. The gap t − ν is ⟨X, S⟩ + s'λ, and the central path is XS = μI, s_c λ_c = μ.

**The Newton system** (HKM direction, Y = S⁻¹). Linearise X = σμY and s_c = σμ/λ_c; primes mark the predictor's steps:

    dX = −X + R − sym(X dS Y),  R = σμY − sym(dX' dS' Y);     ds = −s + r − (s/λ)dλ,  r = (σμ − dλ' ds')/λ;
    dS = dt I + Σ dλ_c E_c.

Put into the stationarity conditions at X + dX, s + ds, ν⁺ this leaves for dλ, dt, ν⁺

    (H + diag(s/λ)) dλ + g dt − b ν⁺ = ⟨E_c, R⟩ + r,     g'dλ + tr(XY) dt = tr R − 1,     b'dλ = 1 − b'λ,

with g_c = ⟨E_c, XY⟩ and H_ck = tr(E_c X E_k Y). The four products of u and v in that trace are entries of Gram blocks:
with X_ee = (u_cᵀXu_k), X_ef = (u_cᵀXv_k), X_ff = (v_cᵀXv_k), likewise for Y, and ∘ the entrywise product,

    H = X_ee∘Y_ff + X_ff∘Y_ee + X_ef∘Y_efᵀ + X_efᵀ∘Y_ef.

**Step lengths.** X + α dX ⪰ 0 while −α λ_min(L⁻¹ dX L⁻ᵀ) ≤ 1, X = LLᵀ. Squaring the shifted matrix a few times (in
float32: it only finds a direction) gives the lowest eigenvector, its Rayleigh quotient minus the residual the step. The
Cholesky factors of the new X and S, needed anyway, prove the step; it is shortened where they do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.linalg import cholesky_ex, matrix_norm, solve_triangular, vector_norm

from attsvm.svm._rows import Batch, Iterates, Rows, System
from attsvm.svm._wide import Solver, is_wide, wide_solver


@dataclass
class _State(Batch):
    """The variables of the instances still running; XS holds X and S (k, 2, p, p), L their Cholesky factors."""

    index: Tensor
    XS: Tensor
    L: Tensor
    lam: Tensor
    t: Tensor
    s: Tensor
    nu: Tensor
    failed: Tensor


def solve_nuclear(system: System, tol: float, max_iterations: int, cancelled: float) -> Iterates:
    """As `solve_lp`, in bases of the spans of the a_c and of the z_c, where the optimal W lies."""
    rows = system.rows
    # Rows that repeat others say nothing new, and make the Newton matrix singular.
    unique = first_of_equals(system)
    A, basis_A = reduce_columns((rows.A * unique.reshape(rows.B, rows.Q, rows.R, 1)).flatten(1, 2))
    Z, basis_Z = reduce_columns(rows.Z)
    small = System(
        rows=Rows(A.reshape(rows.B, rows.Q, rows.R, -1), Z),
        b=system.b * unique,
        inequality=system.inequality & unique,
        equality=system.equality & unique,
    )
    out = _iterate(small, _starting_point(small), tol, max_iterations, cancelled)
    out.W = basis_A @ out.W @ basis_Z.mT
    return out


def first_of_equals(system: System) -> Tensor:
    """False (B, N) for every row that repeats an earlier one of its kind."""
    rows, b, inequality = system.rows, system.b, system.inequality
    z = rows.Z[:, :, None].expand(-1, -1, rows.R, -1)
    content = torch.cat((rows.A, z), -1).flatten(1, 2)
    content = torch.cat((content, b[..., None], inequality[..., None]), -1)
    # Equal rows have equal projections on any direction; sorting these brings the candidates together.
    direction = torch.cos(torch.arange(1.0, content.shape[-1] + 1, dtype=b.dtype, device=b.device))
    key, order = (content @ direction).sort(dim=1, stable=True)
    same = key[:, 1:] == key[:, :-1]
    unique = torch.ones_like(order, dtype=torch.bool)
    if bool(same.any()):
        content = content.gather(1, order[..., None].expand(content.shape))
        same &= (content[:, 1:] == content[:, :-1]).all(-1)
        unique.scatter_(1, order[:, 1:], ~same)
    return unique


def reduce_columns(V: Tensor) -> tuple[Tensor, Tensor]:
    """V = small · basisᵀ with orthonormal columns of basis, as many as the largest rank in the batch needs."""
    rows, columns = V.shape[-2:]
    basis = torch.eye(columns, dtype=V.dtype, device=V.device).expand(len(V), -1, -1)
    if rows < columns:
        basis, R = torch.linalg.qr(V.mT)
        V = R.mT.contiguous()
    core = torch.linalg.qr(V, mode="r")[1] if rows > columns else V
    sizes = torch.linalg.svdvals(core)
    rank = int((sizes > 1e-14 * sizes[:, :1]).sum(1).amax().clamp_min(1))
    if rank < V.shape[2]:
        turn = torch.linalg.svd(V, full_matrices=False)[2][:, :rank].mT
        V, basis = V @ turn, basis @ turn
    return V, basis


def _block(t: Tensor, M: Tensor) -> Tensor:
    """[[tI, M], [Mᵀ, tI]]."""
    d = M.shape[1]
    S = t[:, None, None] * torch.eye(sum(M.shape[1:]), dtype=M.dtype, device=M.device)
    S[:, :d, d:] = M
    S[:, d:, :d] = M.mT
    return S


def _trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)


def symmetric(M: Tensor) -> Tensor:
    return 0.5 * (M + M.mT)


def _starting_point(system: System) -> _State:
    """W = 0 and equal multipliers: strictly feasible, and nearly central."""
    rows, b, lam = system.rows, system.b, system.equal_multipliers()
    count, p = system.inequality.sum(1), rows.d + rows.e
    M = rows.adjoint(lam)
    t = 1.05 * matrix_norm(M) + 1e-2 * lam.abs().sum(1)
    nu = -0.1 * t * count / p
    X = torch.eye(p, dtype=b.dtype, device=b.device).expand(rows.B, p, p) / p
    XS = torch.stack((X, _block(t, M)), 1)
    return _State(
        index=torch.arange(rows.B, device=b.device),
        XS=XS,
        L=cholesky_ex(XS)[0],
        lam=lam,
        t=t,
        s=system.first_slacks(-nu),
        nu=nu,
        failed=torch.zeros_like(count, dtype=torch.bool),
    )


def lowest_eigenvalue(P: Tensor, squarings: int) -> Tensor:
    """The lowest eigenvalue of each symmetric P (…, p, p), or a little less."""
    Q = -P.float() / matrix_norm(P).clamp_min(1e-30)[..., None, None].float()
    Q.diagonal(dim1=-2, dim2=-1).add_(1.0)  # now Q ⪰ 0, and the lowest eigenvector of P is its highest
    for k in range(squarings):
        if k % 2 == 0:
            Q = Q / _trace(Q)[..., None, None]
        Q = Q @ Q
    column = Q.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    v = Q.gather(-1, column.expand(*Q.shape[:-1], 1)).to(P.dtype)
    v = v / vector_norm(v, dim=-2, keepdim=True)
    Pv = P @ v
    value = (v * Pv).sum(-2, keepdim=True)
    return (value - vector_norm(Pv - value * v, dim=-2, keepdim=True))[..., 0, 0]


def _schur_matrix(rows: Rows, X: Tensor, Y: Tensor, H: Tensor, T: Tensor) -> Tensor:
    """H of the module's text, in the buffers H and T (fresh memory would cost more than the arithmetic)."""
    k, Q, R, d = rows.A.shape
    A, Z = rows.A.reshape(k, rows.N, d), rows.Z
    AX, AY = A @ X[:, :d], A @ Y[:, :d]
    X_ef, Y_ef = AX[..., d:] @ Z.mT, AY[..., d:] @ Z.mT
    X_ff, Y_ff = Z @ X[:, d:, d:] @ Z.mT, Z @ Y[:, d:, d:] @ Z.mT
    H5, T5 = H.view(k, Q, R, Q, R), T.view(k, Q, R, Q, R)
    torch.bmm(AX[..., :d], A.mT, out=H)
    torch.bmm(AY[..., :d], A.mT, out=T)
    H5.mul_(Y_ff.view(k, Q, 1, Q, 1)).addcmul_(T5, X_ff.view(k, Q, 1, Q, 1))
    torch.mul(X_ef.view(k, Q, R, Q, 1), Y_ef.view(k, Q, R, Q).permute(0, 3, 1, 2)[:, :, None], out=T5)
    return H.add_(T).add_(T.mT)


def _iterate(system: System, x: _State, tol: float, max_iterations: int, cancelled: float) -> Iterates:
    rows, N = system.rows, system.rows.N
    out = Iterates.first(rows, x.lam.clone())
    buffers = None if is_wide(system) else tuple(system.b.new_empty(rows.B, N, N) for _ in range(3))
    best = torch.full_like(x.t, torch.inf)
    for iteration in range(max_iterations + 1):
        gap = x.XS.prod(1).sum((1, 2)) + (x.lam * x.s).sum(1)
        finished = x.failed | (gap < 1e-4 * tol * x.t) | (iteration == max_iterations)
        # Singular values are only computed for instances that may be done: t and ν bound the norm for free.
        near = ((x.nu > 0) & (x.t - x.nu <= 10 * tol * x.nu)) | system.cancelled(x.lam, x.t / 2, cancelled)
        if bool((finished | near).any()):
            some = (finished | near).nonzero()[:, 0]
            settled = _record(system.take(some), x.take(some), out, best, tol, iteration, cancelled)
            keep = (~finished).index_put((some,), ~(settled | finished[some])).nonzero()[:, 0]
            if len(keep) == 0:
                break
            if len(keep) < len(gap):
                system, x, gap = system.take(keep), x.take(keep), gap[keep]
        x = _newton_step(system, x, gap, None if buffers is None else tuple(buffer[: len(gap)] for buffer in buffers))
    return out


def metric(X: Tensor, Y: Tensor, d: int) -> Tensor:
    """The K (k, d·e, d·e) with H = A K A': tr(E_F X E_G Y) as a form in F and G."""
    e = X.shape[1] - d

    def outer(a: Tensor, b: Tensor) -> Tensor:
        """Σ of the products of two pairs of matrices, entry by entry."""
        return a.flatten(2).mT @ b.flatten(2)

    corner = torch.stack((X[:, :d, :d], Y[:, :d, :d]), 1)
    other = torch.stack((Y[:, d:, d:], X[:, d:, d:]), 1)
    K = outer(corner, other).view(-1, d, d, e, e).transpose(2, 3)  # X_ik Y_jl + Y_ik X_jl at (i, j), (k, l)
    cross = torch.stack((X[:, :d, d:], Y[:, :d, d:]), 1)
    T = outer(cross, cross.flip(1)).view(-1, d, e, d, e)  # X_il Y_kj + Y_il X_kj at (i, l), (k, j)
    return (K + T.permute(0, 1, 4, 3, 2)).reshape(-1, d * e, d * e)


def _wide_solver(system: System, X: Tensor, Y: Tensor, ratio: Tensor) -> Solver:
    """The solution of (H + diag(ratio)) x = y on the side of the unknowns, refined."""
    rows = system.rows
    K = metric(X, Y, rows.d)
    shifted = K.clone()
    shifted.diagonal(dim1=1, dim2=2).mul_(1 + 1e-14)
    base = wide_solver(system, ratio, torch.cholesky_inverse(cholesky_ex(shifted)[0]))

    def times(x: Tensor) -> Tensor:
        AKA = rows.apply((K @ rows.adjoint(x).flatten(1)[..., None]).reshape(-1, rows.d, rows.e))
        return (AKA + ratio * x) * (system.inequality | system.equality)

    def solve(y: Tensor) -> Tensor:
        x = base(y)
        for _ in range(3):
            left = y - torch.stack([times(column) for column in x.unbind(-1)], -1)
            x = x + base(left)
        return x

    return solve


def _narrow_solver(system: System, X: Tensor, Y: Tensor, ratio: Tensor, buffers: tuple[Tensor, ...]) -> Solver:
    """The solution of (H + diag(ratio)) x = y on the side of the rows."""
    H, T, F = buffers
    _schur_matrix(system.rows, X, Y, H, T)
    diagonal = H.diagonal(dim1=1, dim2=2)
    diagonal.mul_(1 + 1e-15).add_(ratio + ~(system.inequality | system.equality))
    F, info = cholesky_ex(H, out=(F.mT, torch.empty(len(H), dtype=torch.int32, device=H.device)))
    for extra in (1e-14, 1e-12, 1e-10, 1e-8):  # dependent rows; refinement makes good for the shift
        if not bool(info.any()):
            break
        shift = diagonal + 0.1 * system.equality * diagonal.amax(1, keepdim=True)
        diagonal.add_((extra * (info != 0))[:, None] * shift)
        F, info = cholesky_ex(H)

    def solve(rhs: Tensor) -> Tensor:
        return solve_triangular(F.mT, solve_triangular(F, rhs, upper=False), upper=True)

    return solve


def _newton_step(system: System, x: _State, gap: Tensor, buffers: tuple[Tensor, ...] | None) -> _State:
    rows, b, inequality = system.rows, system.b, system.inequality
    d, p, X, lam, s = rows.d, rows.d + rows.e, x.XS[:, 0], x.lam, x.s
    eye = torch.eye(p, dtype=b.dtype, device=b.device)
    mu = gap / (p + inequality.sum(1))

    # The Newton matrix, its factor, and the two solves for the border.
    inverse_L = solve_triangular(x.L, eye, upper=False)
    Y = inverse_L[:, 1].mT @ inverse_L[:, 1]
    inverse = (1.0 / lam).where(inequality, 0.0)
    ratio, positive_s = s * inverse, s.where(inequality, 1.0)
    wide = buffers is None
    solve = _wide_solver(system, X, Y, ratio) if wide else _narrow_solver(system, X, Y, ratio, buffers)

    XY = X @ Y
    g = rows.apply(XY[:, :d, d:] + XY[:, d:, :d].mT)
    to_g, to_b = solve(torch.stack((g, b), -1)).unbind(-1)
    gg, gb, bb = _trace(XY) - (g * to_g).sum(1), (g * to_b).sum(1), (b * to_b).sum(1)
    short, zero = 1.0 - (b * lam).sum(1), torch.zeros_like(gap)

    def newton(rhs: Tensor | None, of_trace: Tensor, of_b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dλ, dS, dt, ν⁺ for the three right-hand sides (None: zero)."""
        to_rhs = torch.zeros_like(lam) if rhs is None else solve(rhs[..., None])[..., 0]
        r1, r2 = of_trace - (g * to_rhs).sum(1), of_b - (b * to_rhs).sum(1)
        det = gg * bb + gb * gb
        dt, nu = (r1 * bb - r2 * gb) / det, (gg * r2 + gb * r1) / det
        dlam = to_rhs - to_g * dt[:, None] + to_b * nu[:, None]
        return dlam, _block(dt, rows.adjoint(dlam)), dt, nu

    def boundary(dXS: Tensor, ds: Tensor, dlam: Tensor, squarings: int) -> Tensor:
        """The step lengths to the boundary for (X, s) and (S, λ)."""
        linear = torch.stack(((ds / positive_s).amin(1), (dlam * inverse).amin(1)), 1)
        lowest = lowest_eigenvalue(inverse_L @ dXS @ inverse_L.mT, squarings)
        return -1.0 / torch.minimum(lowest, linear).clamp_max(-1e-8)

    # Predictor: how far would the gap fall without centring?
    dlam, dS, _, _ = newton(None, zero - 1.0, short)
    dX, ds = -X - symmetric(X @ dS @ Y), -s - ratio * dlam
    dXS = torch.stack((dX, dS), 1)
    a = boundary(dXS, ds, dlam, 4).clamp_max(1.0)
    left = (x.XS + a[..., None, None] * dXS).prod(1).sum((1, 2))
    left = left + ((lam + a[:, 1:] * dlam) * (s + a[:, :1] * ds)).sum(1)
    target = mu * (left / gap).clamp(1e-5, 1.0) ** 1.5
    fraction = 0.9 + 0.095 * a.amin(1, keepdim=True)

    # Corrector, with iterative refinement near the end: what is still missing in (P)?
    second = target[:, None, None] * Y - symmetric(dX @ dS @ Y)
    r = (target[:, None] - dlam * ds) * inverse
    dlam, dS, dt, nu = newton(2.0 * rows.apply(second[:, :d, d:]) + r, _trace(second) - 1.0, short)
    dX, ds = second - X - symmetric(X @ dS @ Y), r - s - ratio * dlam
    for _ in range(sum(bool((gap < level * x.t).any()) for level in (1e-6, 1e-8))):
        new = X + dX
        missing = 2.0 * rows.apply(new[:, :d, d:]) + s + ds + b * nu[:, None]
        e_lam, e_S, e_t, e_nu = newton(missing, _trace(new) - 1.0, zero)
        dlam, dS, dt, nu = dlam + e_lam, dS + e_S, dt + e_t, nu + e_nu
        dX, ds = dX - symmetric(X @ e_S @ Y), ds - ratio * e_lam
    a = (fraction * boundary(torch.stack((dX, dS), 1), ds, dlam, 6)).clamp_max(1.0)

    # The step, shortened where a Cholesky factor does not exist; an instance that cannot move keeps its last point.
    def moved(a: Tensor) -> tuple[_State, Tensor]:
        new_lam, new_t = lam + a[:, 1:] * dlam, x.t + a[:, 1] * dt
        XS = torch.stack((X + a[:, 0, None, None] * dX, _block(new_t, rows.adjoint(new_lam))), 1)
        L, info = cholesky_ex(XS)
        new_nu = x.nu + a[:, 0] * (nu - x.nu)
        return replace(x, XS=XS, L=L, lam=new_lam, t=new_t, s=s + a[:, :1] * ds, nu=new_nu), info

    new, info = moved(a)
    for _ in range(7):
        if not bool(info.any()):
            break
        a = torch.where(info != 0, 0.8 * a, a)
        new, info = moved(a)
    good = (info == 0).all(1) & (_trace(new.L).sum(1) + new.lam.sum(1)).isfinite() & (a.amin(1) > 1e-6)
    new.failed = ~good
    if not bool(good.all()):
        for name in ("XS", "L", "lam", "t", "s", "nu"):
            getattr(new, name)[~good] = getattr(x, name)[~good]
    return new


def _record(
    system: System, x: _State, out: Iterates, best: Tensor, tol: float, iteration: int, cancelled: float
) -> Tensor:
    """Certify the present points, keep the best of each instance, and say which are settled."""
    rows, b, d = system.rows, system.b, system.rows.d
    W = -2.0 * x.XS[:, 0, :d, d:]
    if bool(system.equality.any()):
        W = rows.project(W, x.nu[:, None] * b, system.equality)
    margin = torch.where(system.inequality.any(1), system.least_margin(rows.apply(W)), x.nu)
    dual = matrix_norm(x.XS[:, 1, :d, d:], 2)
    lower = (b * x.lam).sum(1) / dual
    gap = (matrix_norm(W.nan_to_num(), "nuc") / margin - lower).abs() / lower
    gap = torch.where((margin > 0) & gap.isfinite(), gap, torch.inf)
    gap = torch.where(system.cancelled(x.lam, dual, cancelled), 0.0, gap)
    better = gap <= best[x.index]
    at = x.index[better]
    out.W[at], out.lam[at], best[at] = W[better], x.lam[better], gap[better]
    out.iterations[x.index] = iteration
    return gap <= tol
