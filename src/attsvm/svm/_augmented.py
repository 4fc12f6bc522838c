"""Least Frobenius norm over a working set of rows, warm-started: augmented Lagrangians and semismooth Newton steps.

For multipliers λ and a penalty σ the function of W

    ½‖W‖² + σ/2 Σ_c max(0, b_c − ⟨f_c, W⟩ + λ_c/σ)²        (without the max on equalities)

is minimised; there W = F'λ⁺ with λ⁺ = max(0, λ + σ(b − FW)), the next multipliers. Newton's matrix is I + σF_S'F_S for
the rows S inside the max. While σ is small, conjugate gradients solve it with products of rows alone; later a factor of
the Gram matrix of S, perhaps of an earlier S and in float32, is their preconditioner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import solve_triangular

_NEWTON_STEPS = 60
_FORCING = 0.1
"""Fraction of the residual at which conjugate gradients stop."""

_LARGEST_FACTOR = 9000
"""Rows of a Gram matrix that is factored at all."""

_STALE = 25
"""Steps with the factor of an earlier S, before a new one is made."""

_LIGHT_ROWS = 2500
"""Rows from which a factor is made in float32, as long as that serves."""

_SINGLE = 2**20
"""Entries of rows from which directions are found in float32."""

_LARGEST_DENSE = 2**25
"""Entries of rows that are written out."""


@dataclass
class Products:
    """What rows f_c = a_c ⊗ z_c do to W and to multipliers."""

    A: Tensor
    Z: Tensor

    def apply(self, W: Tensor) -> Tensor:
        """FW (M,)."""
        return torch.einsum("md,md->m", self.Z @ W.mT, self.A)

    def adjoint(self, lam: Tensor) -> Tensor:
        """F'λ (d, e)."""
        return (self.A * lam[:, None]).mT @ self.Z


@dataclass
class WorkingRows(Products):
    """Rows f_c = a_c ⊗ z_c of norm about 1, divided by powers of two (`scale`) as b was; and where they come from."""

    A_low: Tensor
    b: Tensor
    equality: Tensor
    scale: Tensor
    code: Tensor

    def take(self, index: Tensor) -> WorkingRows:
        return WorkingRows(**{name: x[index] for name, x in vars(self).items()})

    def join(self, other: WorkingRows) -> WorkingRows:
        return WorkingRows(**{name: torch.cat((x, getattr(other, name))) for name, x in vars(self).items()})

    def __len__(self) -> int:
        return len(self.b)


class Augmented:
    """State shared by the rounds: W, the penalty, and the last factor."""

    def __init__(self, W: Tensor) -> None:
        self.W = W
        self.sigma = 10.0
        self.steps = 0  # that the last minimisation took
        # Directions need few digits: float32, as long as it serves. On a GPU it would save little, and its products may
        # have no more than ten bits there (TF32).
        self._light = not W.is_cuda
        self._factor: _RowFactor | _UnknownFactor | None = None

    @property
    def at_minimum(self) -> bool:
        return self.steps < _NEWTON_STEPS

    def minimise(self, rows: WorkingRows, lam: Tensor, accuracy: float) -> Tensor:
        """Move W to the minimiser, up to a gradient of `accuracy` of W; the next multipliers. Those of a W on its way
        there would be wild: then they stay, and the next round goes on."""
        sigma = self.sigma
        FW = rows.apply(self.W)
        for self.steps in range(_NEWTON_STEPS):
            r = rows.b - FW + lam / sigma
            inside = (r > 0) | rows.equality
            pull = torch.where(inside, r, 0.0)
            gradient = self.W - sigma * rows.adjoint(pull)
            size = torch.linalg.vector_norm(gradient)
            if bool(size <= accuracy * torch.linalg.vector_norm(self.W)):
                return sigma * pull
            dW = size * self._direction(rows.take(inside.nonzero()[:, 0]), -gradient / size)
            dF = rows.apply(dW)
            length = _longest_descent(self.W, dW, r, dF, rows.equality, sigma)
            self.W, FW = self.W + length * dW, FW + length * dF
        self.steps = _NEWTON_STEPS
        return lam

    def _direction(self, active: WorkingRows, right: Tensor) -> Tensor:
        """(I + σF_S'F_S)⁻¹ right, to a small fraction of it."""
        k, (d, e) = len(active), right.shape
        D = d * e
        single = k * D > _SINGLE and self.sigma < 1e6 and self._light
        rows = Products(active.A.float(), active.Z.float()) if single else active
        right = right.to(rows.A.dtype)
        by_rows, by_unknowns = k**3 / 3 + 2 * k * k * (d + e), D**3 / 3 + 2 * k * D * D
        of_rows = by_rows <= by_unknowns or k * D > _LARGEST_DENSE
        # As many products of rows as a factor costs: after that it is worth making one. Products with vectors take
        # longer per operation than factors do; and on a GPU every product waits for the one before it.
        share = 0.0 if right.is_cuda else min(1.0, e / 8)
        budget = 20 + int(share * min(by_rows, by_unknowns) / (4 * k * D + 1))
        hopeless = of_rows and k > _LARGEST_FACTOR
        if hopeless or (self._factor is not None and not self._factor.turn_to(active)):
            self._factor = None if hopeless else self._factored(active, of_rows)
        first = (500 if hopeless else budget) if self._factor is None else _STALE
        x, done = self._conjugate_gradients(rows, right, torch.zeros_like(right), first)
        if not (done or hopeless):
            self._factor = self._factored(active, of_rows)
            x, done = self._conjugate_gradients(rows, right, x, _STALE if self._light else budget)
        if self._light and not (done or hopeless):
            self._light = False
            self._factor = self._factored(active, of_rows)
            x, _ = self._conjugate_gradients(active, right.double(), x.double(), budget)
        return x.double()

    def _conjugate_gradients(self, rows: Products, right: Tensor, x: Tensor, budget: int) -> tuple[Tensor, bool]:
        def times(V: Tensor) -> Tensor:
            return V + self.sigma * rows.adjoint(rows.apply(V))

        def precondition(V: Tensor) -> Tensor:
            return V if self._factor is None else self._factor.solve(V)

        left = right - times(x) if bool(x.any()) else right.clone()
        goal = _FORCING**2 * float(right.square().sum())
        y = precondition(left)
        p, rho = y, (left * y).sum()
        for _ in range(budget):
            if float(left.square().sum()) <= goal:
                return x, True
            Hp = times(p)
            length = rho / (p * Hp).sum()
            x, left = x + length * p, left - length * Hp
            y = precondition(left)
            rho, before = (left * y).sum(), rho
            p = y + (rho / before) * p
        return x, False

    def _factored(self, active: WorkingRows, of_rows: bool) -> _RowFactor | _UnknownFactor | None:
        factor = _RowFactor(active, self.sigma, self._light) if of_rows else _UnknownFactor(active, self.sigma)
        return factor if factor.exists else None


class _UnknownFactor:
    """A factor of I + σF_S'F_S, written out."""

    def __init__(self, active: WorkingRows, sigma: float) -> None:
        F = (active.A[:, :, None] * active.Z[:, None, :]).flatten(1)
        K = F.mT @ (sigma * F)
        K.diagonal().add_(1.0)
        self.L, info = torch.linalg.cholesky_ex(K)
        self.exists = not bool(info.any())

    def turn_to(self, active: WorkingRows) -> bool:
        return True

    def solve(self, V: Tensor) -> Tensor:
        y = solve_triangular(self.L, V.reshape(-1, 1).to(self.L.dtype), upper=False)
        return solve_triangular(self.L.mT, y, upper=True).reshape(V.shape).to(V.dtype)


class _RowFactor:
    """V ↦ V − F_S'(δ + F_SF_S')⁻¹F_SV, δ = 1/σ or more, by a factor for an earlier S and a border for what changed.

    With K₀ of the earlier S₀, rows A that came and R that went, the system is
    [K₀ E_R K₀_A; E_R' 0 0; K_A0 0 K_A](y₀, μ, y_A) = (r₀, 0, r_A): the multipliers of R are held at zero by μ.
    """

    def __init__(self, active: WorkingRows, sigma: float, light: bool) -> None:
        # The factor only steers: half the digits may do, twice as fast.
        self.dtype = torch.float32 if light and len(active) > _LIGHT_ROWS else torch.float64
        self.rows, self.code = self._light(active), active.code
        least = 1e-6 if self.dtype == torch.float32 else 1e-14
        self.delta = max(1 / sigma, least)
        K = self._gram(self.rows, self.rows)
        K.diagonal().add_(self.delta)
        self.L, info = torch.linalg.cholesky_ex(K)
        self.exists = not bool(info.any())
        self.came: Products | None = None

    def _light(self, rows: Products) -> Products:
        return Products(rows.A.to(self.dtype), rows.Z.to(self.dtype))

    @staticmethod
    def _gram(one: Products, two: Products) -> Tensor:
        return (one.A @ two.A.mT) * (one.Z @ two.Z.mT)

    def turn_to(self, active: WorkingRows) -> bool:
        """Border the factor for this S; false where so much has changed that a new one is better."""
        went = (~torch.isin(self.code, active.code)).nonzero()[:, 0]
        new = (~torch.isin(active.code, self.code)).nonzero()[:, 0]
        if len(went) + len(new) > 20 + len(self.code) // 12:
            return False
        if not len(went) + len(new):
            self.came = None
            return True
        came = self._light(active.take(new))
        E = torch.zeros(len(self.code), len(went), dtype=self.dtype, device=self.L.device)
        E[went, torch.arange(len(went), device=went.device)] = 1.0
        self.V = solve_triangular(self.L, torch.cat((E, self._gram(self.rows, came)), 1), upper=False)
        border = -(self.V.mT @ self.V)
        own = self._gram(came, came)
        own.diagonal().add_(self.delta)
        border[len(went) :, len(went) :] += own
        self.border = torch.linalg.lu_factor_ex(border.double())[:2]
        self.came, self.went = came, len(went)
        return True

    def solve(self, V: Tensor) -> Tensor:
        W = V.to(self.dtype)
        u = solve_triangular(self.L, self.rows.apply(W)[:, None], upper=False)
        if self.came is None:
            y = solve_triangular(self.L.mT, u, upper=True)[:, 0]
            return V - self.rows.adjoint(y).to(V.dtype)
        right = torch.cat((u.new_zeros(self.went), self.came.apply(W)))[:, None] - self.V.mT @ u
        t = torch.linalg.lu_solve(*self.border, right.double()).to(self.dtype)
        y = solve_triangular(self.L.mT, u - self.V @ t, upper=True)[:, 0]
        return V - (self.rows.adjoint(y) + self.came.adjoint(t[self.went :, 0])).to(V.dtype)


def _longest_descent(W: Tensor, dW: Tensor, r: Tensor, dF: Tensor, equality: Tensor, sigma: float) -> float:
    """Where along dW the function is least, at most 1; its slope grows along the line."""
    linear, square = (W * dW).sum(), dW.square().sum()

    def rises(length: float) -> bool:
        at = r - length * dF
        pull = torch.where(equality, at, at.clamp_min(0))
        return bool(linear + length * square - sigma * (pull * dF).sum() > 0)

    if not rises(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) else (middle, high)
        if high - low <= 1e-3 * high:
            break
    return (low + high) / 2
