"""A margin problem as the solvers take it: a linear map in its rank-one structure, right-hand sides, kinds of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.linalg import solve_triangular

_DEPENDENT = 1e-10
"""Length of a row of norm 1 beside others, below which it follows from them."""

_LEAST_ASKED = 1e-14
"""What rounding W can do to a row of norm 1: less cannot be asked for."""


def cholesky_solve(L: Tensor, right: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ of columns, without the copy of L that torch.cholesky_solve makes."""
    return solve_triangular(L.mT, solve_triangular(L, right, upper=False), upper=True)


def factored(H: Tensor, ridge: Tensor | float, level: float, growth: Sequence[float]) -> Tensor:
    """L with LLᵀ = H + diag(ridge) and, since rows may depend on each other, a little more; H is overwritten.

    That is `level` of the largest diagonal entry, and where L does not exist then, each factor of `growth` times as
    much."""
    diagonal = H.diagonal(dim1=1, dim2=2)
    regular = level * diagonal.amax(1, keepdim=True)
    diagonal += ridge + regular
    L, info = torch.linalg.cholesky_ex(H)
    for factor in growth:
        if not bool(info.any()):
            break
        regular = factor * regular
        diagonal += (info > 0)[:, None] * regular
        L, info = torch.linalg.cholesky_ex(H)
    return L


def grown(M: Tensor, shares: Sequence[float]) -> Tensor:
    """L with LLᵀ = M; where there is none, the diagonal of M grows by these shares of itself, one after the other."""
    diagonal = M.diagonal(dim1=1, dim2=2)
    L, info = torch.linalg.cholesky_ex(M)
    for share in shares:
        if not bool(info.any()):
            break
        diagonal.mul_(1 + share * (info > 0)[:, None])
        L, info = torch.linalg.cholesky_ex(M)
    return L


class Rows:
    """W ↦ ⟨a_c ⊗ z_c, W⟩ for rows grouped by query: `A (B, Q, R, d)`, `Z (B, Q, e)`, N = Q·R rows.

    All R rows of a group share their z, so no d·e numbers are ever stored for a row, and the Gram matrix
    costs N²d instead of N²de operations. The exact rows are a_c + `A_low`, which only certificates look at.
    """

    def __init__(self, A: Tensor, Z: Tensor, A_low: Tensor | None = None) -> None:
        self.A, self.Z, self.A_low = A, Z, A_low
        self.B, self.Q, self.R, self.d = A.shape
        self.e = Z.shape[-1]
        self.N = self.Q * self.R
        self._zz: Tensor | None = None  # z_i ∘ z_j for all pairs of groups, once they are needed

    def apply(self, W: Tensor) -> Tensor:
        """AW: the value of every row, (B, d, e) → (B, N)."""
        V = self.Z @ W.mT
        return (self.A @ V[..., None]).reshape(self.B, self.N)

    def adjoint(self, lam: Tensor) -> Tensor:
        """A'λ = Σ_c λ_c a_c z_cᵀ, (B, N) → (B, d, e)."""
        V = lam.reshape(self.B, self.Q, 1, self.R) @ self.A
        return V[:, :, 0].mT @ self.Z

    def dense(self, index: Tensor | None = None) -> Tensor:
        """The rows as vectors, (B, N, d·e), or those named by an index (B, k)."""
        A, Z = self.A.flatten(1, 2), self.Z
        if index is None:
            index = torch.arange(self.N, device=A.device).expand(self.B, -1)
        else:
            A = A.gather(1, index[..., None].expand(-1, -1, self.d))
        Z = Z.gather(1, (index // max(1, self.R))[..., None].expand(-1, -1, self.e))
        return (A[..., :, None] * Z[..., None, :]).flatten(2)

    def gram(self, E: Tensor | None = None) -> Tensor:
        """A diag(E) A' for entrywise weights E (B, d, e), (B, N, N); A A' without weights.

        For two groups i, j the weights collapse to one vector g_ij = Σ_l z_il z_jl E_·l of length d, and the
        block is A_i diag(g_ij) A_jᵀ.
        """
        if E is None:  # the products of the a and of the z, without an array of Q·N·d numbers
            flat = self.A.flatten(1, 2)
            gram = (flat @ flat.mT).reshape(self.B, self.Q, self.R, self.Q, self.R)
            gram *= (self.Z @ self.Z.mT)[:, :, None, :, None]
            return gram.reshape(self.B, self.N, self.N)
        if self._zz is None:
            Z = self.Z
            self._zz = (Z[:, :, None, :] * Z[:, None, :, :]).reshape(self.B, self.Q * self.Q, self.e)
        return self.mixed((self._zz @ E.mT).reshape(self.B, self.Q, self.Q, self.d))

    def mixed(self, inner: Tensor) -> Tensor:
        """A_i diag(inner_ij) A_jᵀ for all pairs of groups, given inner (B, Q, Q, d); (B, N, N)."""
        weighted = self.A[:, None] * inner[:, :, :, None, :]
        blocks = self.A @ weighted.reshape(self.B, self.Q, self.N, self.d).mT
        return blocks.reshape(self.B, self.N, self.N)

    def normal(self, weight: Tensor) -> Tensor:
        """A' diag(weight) A for weights of the rows (B, N), (B, d·e, d·e)."""
        B, Q, d, e = self.B, self.Q, self.d, self.e
        aa = (self.A * weight.reshape(B, Q, self.R, 1)).mT @ self.A
        zz = self.Z[:, :, :, None] * self.Z[:, :, None, :]
        M = aa.reshape(B, Q, d * d).mT @ zz.reshape(B, Q, e * e)
        return M.reshape(B, d, d, e, e).transpose(2, 3).reshape(B, d * e, d * e)

    def take(self, index: Tensor) -> Rows:
        """The instances named by `index`."""
        rows = Rows(self.A[index], self.Z[index], None if self.A_low is None else self.A_low[index])
        rows._zz = None if self._zz is None else self._zz[index]
        return rows

    def project(self, W: Tensor, b: Tensor, tight: Tensor, apply: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The nearest W with AW = b on the tight rows; refined, because the rows may depend on each other.

        `apply` is a way to compute AW that is better than the plain one."""
        keep = tight.to(b.dtype)
        wide = self.d * self.e < self.N
        G = self.normal(keep) if wide else self.gram() * keep[:, :, None] * keep[:, None, :]
        L = factored(G, 1e-300 if wide else 1 - keep, 1e-14, (1e3,))
        for _ in range(3):
            residual = ((apply or self.apply)(W) - b) * keep
            if wide:  # least squares: the rows may be more than W has entries
                step = cholesky_solve(L, self.adjoint(residual).flatten(1)[..., None])
                W = W - step.reshape(W.shape)
            else:
                W = W - self.adjoint(cholesky_solve(L, residual[..., None])[..., 0])
        return W


@dataclass
class Batch:
    """Tensors with an entry for every instance."""

    def take(self, index: Tensor) -> Self:
        """The instances named by `index`."""
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    def put(self, index: Tensor, part: Self) -> None:
        """Replace the instances named by `index`."""
        for f in fields(self):
            getattr(self, f.name)[index] = getattr(part, f.name)


@dataclass
class Iterates(Batch):
    """What a solver found: λ certifies from below, W from above, both unscaled."""

    W: Tensor
    lam: Tensor
    iterations: Tensor

    @classmethod
    def first(cls, rows: Rows, lam: Tensor) -> Self:
        """W = 0 and these multipliers, before any iteration."""
        return cls(lam.new_zeros(rows.B, rows.d, rows.e), lam, torch.zeros(rows.B, dtype=torch.long, device=lam.device))


@dataclass
class System:
    """Rows of dual norm about 1, Σ|b| about 1: for rows of equal norm equal multipliers are a good start.

    Both were divided by powers of two, so these are still the rows that were given, without any rounding.

    A row that is neither an inequality nor an equality is absent: its a and b are zero.
    """

    rows: Rows
    b: Tensor
    inequality: Tensor
    equality: Tensor

    def take(self, index: Tensor) -> System:
        """The instances named by `index`."""
        return System(self.rows.take(index), self.b[index], self.inequality[index], self.equality[index])

    def independent(self) -> System:
        """Without the equalities that follow from others, in instances of equalities alone.

        Rounding lets dependent equalities contradict each other by a hair, and multipliers then grow without bound."""
        kept = self.equality.clone()
        only = (self.equality.any(1) & ~self.inequality.any(1)).nonzero()[:, 0]
        if not len(only):
            return self
        rows = self.rows.take(only)
        F = rows.dense() * self.equality[only][..., None]
        basis, each = torch.zeros_like(kept[only]), torch.arange(len(only), device=kept.device)
        for _ in range(min(rows.N, rows.d * rows.e)):  # the row that is longest beside those before it
            size, longest = torch.linalg.vector_norm(F, dim=2).max(1)
            new = F[each, longest, None] / size.clamp_min(_DEPENDENT)[:, None, None]
            basis[each, longest] |= size > _DEPENDENT
            F = F - (F @ new.mT) @ new
        kept[only] = basis
        there = (kept | self.inequality).to(self.b.dtype)
        A = self.rows.A * there.reshape(*self.rows.A.shape[:3], 1)
        low = None if self.rows.A_low is None else self.rows.A_low * there.reshape(*A.shape[:3], 1)
        return System(Rows(A, self.rows.Z, low), self.b * there, self.inequality, kept)

    def eased(self) -> System:
        """With b at least what rounding leaves of a row: it hardly costs norm, and many decades of b spoil methods."""
        b = torch.where(self.inequality, self.b.clamp_min(_LEAST_ASKED), self.b)
        return System(self.rows, b, self.inequality, self.equality)

    def equal_multipliers(self) -> Tensor:
        """A start with b'λ = 1: equal on inequalities, or the shortest λ where there are only equalities."""
        total = (self.b * self.inequality).sum(1, keepdim=True)
        shortest = self.b / self.b.square().sum(1, keepdim=True)
        return torch.where(total > 0, self.inequality / total, shortest)

    def first_slacks(self, nu: Tensor) -> Tensor:
        """Slacks ν·b of W = 0 (B, N), but none so small that its row starts at the boundary."""
        return self.inequality * torch.maximum(self.b, 0.1 * self.b.amax(1, keepdim=True)) * nu[:, None]

    def balanced_multipliers(self) -> Tensor:
        """As `equal_multipliers`, but with equal shares λ_c b_c of the inequalities, whose b may differ by many
        decades."""
        least = 1e-10 * self.b.amax(1, keepdim=True)
        share = torch.where(self.inequality, 1 / torch.maximum(self.b, least), 0.0)
        share = share / (share * self.b).sum(1, keepdim=True)
        return torch.where(self.inequality.any(1, keepdim=True), share, self.equal_multipliers())

    def least_margin(self, AW: Tensor) -> Tensor:
        """The smallest AW/b of the inequalities, (B,); infinite where there are none."""
        return (AW / self.b).where(self.inequality, torch.inf).amin(1)

    def margin(self, AW: Tensor) -> Tensor:
        """`least_margin`, or where there are only equalities what AW is of b by least squares."""
        interpolated = (self.b * AW).sum(1) / self.b.square().sum(1)
        return torch.where(self.inequality.any(1), self.least_margin(AW), interpolated)

    def gap(
        self, W_norm: Tensor, U_norm: Tensor, AW: Tensor, margin: Tensor, lam: Tensor, cancelled: float
    ) -> tuple[Tensor, Tensor]:
        """The relative gap between ‖W‖ over its margin and the lower bound b'λ/‖U‖, U = A'λ, and that bound; (B,) each.

        What W leaves of the equalities counts. The gap is infinite where W does not separate, and 0 where A'λ has
        cancelled to that level."""
        lower = (self.b * lam).sum(1) / U_norm
        off = ((AW - margin[:, None] * self.b) * self.equality).abs().sum(1) * lam.abs().amax(1)
        gap = (W_norm / margin - lower).abs() / lower + off / margin
        gap = torch.where((margin > 0) & gap.isfinite(), gap, torch.inf)
        return torch.where(self.cancelled(lam, U_norm, cancelled), 0.0, gap), lower

    def cancelled(self, lam: Tensor, dual_norm: Tensor, level: float) -> Tensor:
        """Whether the terms of A'λ cancel to this level, (B,): then λ is close to a Farkas vector, if there is one."""
        size = lam.abs().sum(1)
        return (dual_norm <= level * size) & (size > 0)
