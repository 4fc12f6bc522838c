"""The nuclear norm, with the spectral hyperbolic entropy as its potential."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry._base import Geometry, rounding, scale
from attsvm.geometry._lp import Lp
from attsvm.geometry._phi import phi2_minus, phi2_plus


@dataclass(frozen=True)
class Nuclear(Geometry):
    """‖W‖ = Σσ_i, dual norm σ₁, and ψ_β(W) = Σ σ_i asinh(σ_i/β) − √(σ_i² + β²) + β.

    The nuclear norm itself gives no potential: it is neither strictly convex nor smooth, and the mirror map of its
    square is set-valued and cannot be inverted. The spectral hyperbolic entropy ψ_β is smooth and strictly convex, ∇ψ =
    U asinh(σ/β) Vᵀ inverts to U β sinh(σ) Vᵀ, and ψ_β / log(2/β) → ‖W‖ as β → 0. It is also the potential behind
    gradient flow on factors, W = K Qᵀ: the flow conserves KᵀK − QᵀQ, and where that is 2βI and the singular vectors
    stay put, W follows the mirror flow of ψ_β, at twice the speed. So β has the size of the squared initialisation, and
    small nearly balanced factors mean small β.

    `beta` is small against the singular values of interest and large against rounding. Directions have
    Σσ_i = 1, so singular values that matter are ≥ 1/rank, some 1e-2 to 1e-3; those of a rank-deficient
    direction are zero up to 1e-7 in single precision. The default 1e-4 lies between: noise stays in the
    quadratic part σ²/2β of ψ_β, signal in its linear part.

    Computed in double precision whatever the dtype of W: a single-precision SVD does not see σ_i < 1e-7 σ₁.
    `potential`, `mirror`, `inverse`, `conjugate` and `bregman` have exact gradients at repeated and zero
    singular values too; autograd through `dual_unit` = u₁v₁ᵀ needs distinct ones.
    """

    beta: float = 1e-4

    def __post_init__(self) -> None:
        if not (isinstance(self.beta, Real) and 0 < self.beta < inf):
            raise AttsvmError(
                f"Nuclear needs a number beta with 0 < beta < inf, but beta is {self.beta!r}: take e.g. 1e-4."
            )
        object.__setattr__(self, "beta", float(self.beta))

    @property
    def name(self) -> str:
        return "nuclear"

    def norm(self, W: Tensor) -> Tensor:
        return of_singular_values(W, lambda s: s.sum(-1))

    def dual_norm(self, G: Tensor) -> Tensor:
        return of_singular_values(G, lambda s: s[..., 0])

    def strictly_convex(self, d: int, e: int) -> bool:
        return min(d, e) == 1

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        return schatten_bound(W, error, 1.0)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        return schatten_bound(G, error, inf)

    def dual_unit(self, G: Tensor) -> Tensor:
        U, s, Vh = svd(G)
        top = U[..., :, :1] @ Vh[..., :1, :]
        return torch.where(s[..., :1, None] == 0, torch.zeros_like(top), top).to(G.dtype)

    def mirror(self, W: Tensor) -> Tensor:
        return _SpectralMap.apply(W, _Asinh(self.beta))

    def inverse(self, theta: Tensor) -> Tensor:
        return _SpectralMap.apply(theta, _Sinh(self.beta))

    def _potential(self, W: Tensor) -> Tensor:
        s = svd(W)[1]
        x = s / self.beta
        # √(σ² + β²) − β = σ x/(1 + √(1 + x²)) with x = σ/β
        return (s * (_asinh(x) - x / (1 + _hypot(x, 1.0)))).sum(-1).to(W.dtype)

    def _conjugate(self, theta: Tensor) -> Tensor:
        s = svd(theta)[1]
        # β(cosh σ − 1) = 2β sinh²(σ/2)
        return ((2 * self.beta) ** 0.5 * torch.sinh(s / 2)).square().sum(-1).to(theta.dtype)

    def _bregman(self, W: Tensor, V: Tensor) -> Tensor:
        """A sum over pairs of singular vectors of (entry of E = W − V between them)² · d(σ, τ)/(σ − τ)² ≥ 0.

        With the dilations [[0, W], [Wᵀ, 0]] = Σ λ_i x_i x_iᵀ and [[0, V], [Vᵀ, 0]] = Σ μ_j y_j y_jᵀ the
        divergence is ½ Σ_ij (x_i·y_j)² d(λ_i, μ_j), d the scalar one. Near equality that still subtracts what
        is almost equal, but (λ_i − μ_j)(x_i·y_j) = x_iᵀ [[0, E], [Eᵀ, 0]] y_j, where the difference is exact.
        Here λ = ±σ with x = (u, ±v)/√2, and λ = 0 for the left null vectors of a tall matrix. The relative
        error is about eps·(1 + σ₁/β), as much as rounding W and V alone brings about.
        """
        dtype = W.dtype
        if W.shape[-2] < W.shape[-1]:
            W, V = W.mT, V.mT
        W, V = W.double(), V.double()
        E = W - V
        U, s, Xh = svd(W)
        P, t, Yh = svd(V)
        X, Y = Xh.mT, Yh.mT
        a, b = U.mT @ P, Xh @ Y
        rows, columns = s[..., :, None], t[..., None, :]

        # Entries of E in the two bases. Taken from E itself they keep its relative accuracy when W and V are
        # close; built from singular values and overlaps, they do not drown small singular values in the
        # rounding of a large E. The first is the better one up to this distance.
        largest = torch.maximum(s[..., :1], t[..., :1])[..., None]
        distance = E.square().sum((-2, -1), keepdim=True).sqrt() / largest
        near = distance**4 <= self.beta / (self.beta + largest)
        uEy, xEp = U.mT @ E @ Y, Xh @ E.mT @ P
        left = torch.where(near, uEy, rows * b - a * columns)
        right = torch.where(near, xEp, rows * a - b * columns)
        null_V = torch.where(near, E @ Y - U @ uEy, (U @ a - P) * columns)
        null_W = torch.where(near, E @ X - P @ xEp.mT, (U - P @ a.mT) * s[..., None, :])

        s, t = s[..., None, :], columns
        zero = torch.zeros_like(s)
        same = self._divided(rows, columns) * ((left + right) / 2).square()
        opposite = self._divided(rows, -columns) * ((left - right) / 2).square()
        null = self._divided(zero, t) * null_V.square() + self._divided(s, zero) * null_W.square()
        return ((same + opposite).sum((-2, -1)) + null.sum((-2, -1)) / 2).to(dtype)

    def _divided(self, a: Tensor, b: Tensor) -> Tensor:
        """d(a, b)/(a − b)² for the scalar divergence d of x asinh(x/β) − √(x² + β²), a ≥ 0, b of any sign.

        With a = β sinh α, b = β sinh γ and τ = α − γ: d = ½β[e^(−α) g(τ) + e^α g(−τ)], g(x) = e^x − 1 − x.
        """
        slope = _Asinh(self.beta).slope(a, b)
        tau = slope * (a - b)
        falls = a >= b
        plus = torch.where(falls, self._exp(-b), self._exp(b))
        minus = torch.where(falls, self._exp(a), self._exp(-a))
        return slope.square() * (plus * phi2_plus(tau.abs()) + minus * phi2_minus(tau.abs())) / 2

    def _exp(self, x: Tensor) -> Tensor:
        """β exp(asinh(x/β)) = x + √(x² + β²)."""
        sum_ = x.abs() + _hypot(x, self.beta)
        return torch.where(x >= 0, sum_, self.beta * (self.beta / sum_))

    def _hessian(self, V: Tensor, U: Tensor) -> Tensor:
        return _SpectralDerivative.apply(V, U, _Asinh(self.beta))


class _OddFunction(Protocol):
    """An increasing odd f, applied to singular values: W = UσVᵀ ↦ U f(σ) Vᵀ."""

    def value(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """f(s), s ≥ 0 in falling order, as factors `(..., k)` and `(..., 1)` that are both within range."""
        ...

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        """(f(a) − f(b))/(a − b) for a ≥ 0 and b of any sign; f′(a) for a = b."""
        ...


@dataclass(frozen=True)
class _Asinh:
    """f(s) = asinh(s/β)."""

    beta: float

    def value(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return _asinh(s / self.beta), torch.ones_like(s[..., :1])

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        # Same sign: asinh x − asinh y = asinh(z) with z = (x² − y²)/(x√(1 + y²) + y√(1 + x²)).
        denominator = a * _hypot(b, self.beta) + b * _hypot(a, self.beta)
        ratio = torch.where((b >= 0) & (denominator > 0), (a + b) / denominator, 1 / self.beta)
        z = (ratio * (a - b)).abs()
        together = ratio * torch.where(z > 0, _asinh(z) / z, 1.0)
        apart = (_asinh(a / self.beta) + _asinh(b.abs() / self.beta)) / (a - b)
        return torch.where(b >= 0, together, torch.where(a > b, apart, 1 / self.beta))


@dataclass(frozen=True)
class _Sinh:
    """f(s) = β sinh(s)."""

    beta: float

    def value(self, s: Tensor) -> tuple[Tensor, Tensor]:
        largest = torch.finfo(s.dtype).max
        excess = (s[..., :1] - (log(largest) - max(0.0, log(self.beta)) - 1)).clamp(min=0)
        sinh = -torch.exp(s - excess) * torch.expm1(-2 * s) / 2
        return self.beta * sinh, torch.exp(excess).clamp(max=largest)

    def slope(self, a: Tensor, b: Tensor) -> Tensor:
        half = (a - b) / 2
        return self.beta * torch.cosh((a + b) / 2) * torch.where(half != 0, torch.sinh(half) / half, 1.0)


class _SpectralMap(torch.autograd.Function):
    """U f(σ) Vᵀ. Its derivative has divided differences of f, so equal singular values do no harm."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, f: _OddFunction) -> Tensor:
        ctx.save_for_backward(W)
        ctx.f = f
        U, s, Vh = svd(W)
        # The common factor waits until after the product, where ∞·0 and ∞ − ∞ could meet.
        values, common = f.value(s)
        return ((U * values[..., None, :]) @ Vh * common[..., None]).to(W.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (W,) = ctx.saved_tensors
        return _SpectralDerivative.apply(W, grads[0], ctx.f), None


class _SpectralDerivative(torch.autograd.Function):
    """The derivative of W ↦ U f(σ) Vᵀ in the direction E: a self-adjoint map of E."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, E: Tensor, f: _OddFunction) -> Tensor:
        U, s, Vh = svd(W)
        D, V = E.double(), Vh.mT
        M = U.mT @ D @ V
        a, b = s[..., :, None], s[..., None, :]
        inner = f.slope(a, b) * (M + M.mT) / 2 + f.slope(a, -b) * (M - M.mT) / 2
        ratio = f.slope(s, torch.zeros_like(s))[..., None, :]
        left = (D @ V - U @ M) * ratio  # outside the column space of U
        right = (D.mT @ U - V @ M.mT) * ratio  # outside the row space of V
        return ((U @ inner + left) @ Vh + U @ right.mT).to(E.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AttsvmError("Nuclear differentiates its mirror maps once: ask for no second derivative of them.")


def svd(W: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    finite = W.isfinite().flatten(-2).all(-1)[..., None, None]  # one bad matrix must not stop the others
    U, s, Vh = torch.linalg.svd(torch.where(finite, W, 0.0).double(), full_matrices=full_matrices)
    return torch.where(finite, U, torch.nan), torch.where(finite[..., 0], s, torch.nan), Vh


def schatten_bound(W: Tensor, error: Tensor | None, p: float) -> Tensor:
    """What the ℓp norm of the singular values does not exceed for any V with |V − W| ≤ error, in real arithmetic.

    It does not trust the decomposition W ≈ U diag(s) Vᵀ: ‖U diag(s) Vᵀ‖ ≤ ‖U‖‖s‖_p‖V‖ with spectral norms of U and V
    that follow from UᵀU − I, and what the product leaves of W adds its Frobenius norm, times √rank for p < 2.
    """
    U, s, Vh = svd(W)
    rank = s.shape[-1]
    slack = rounding(W) + 2 * rank * 2.0**-53
    eye = torch.eye(rank, dtype=s.dtype, device=s.device)
    skew = [(M.mT @ M - eye).square().sum((-2, -1)).sqrt() + slack * rank for M in (U, Vh.mT)]
    size = (U.abs() * s[..., None, :]) @ Vh.abs()
    left = ((U * s[..., None, :]) @ Vh - W).abs() + slack * size + (0.0 if error is None else error)
    norm = Lp(p).norm(s[..., None])  # scaled: of s < 1 a large power underflows
    whole = (1 + skew[0]).sqrt() * (1 + skew[1]).sqrt() * norm
    return (whole + max(1.0, rank ** (1 / p - 0.5)) * left.square().sum((-2, -1)).sqrt()) * (1 + slack)


def of_singular_values(W: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """A norm in terms of the singular values; scaled, so nothing overflows and W = 0 has gradient 0."""
    s = scale(W.double())
    nonzero = W.detach().count_nonzero((-2, -1)) > 0
    finite = W.isfinite().flatten(-2).all(-1)  # one bad matrix must not stop the others
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], W / s, 0.0))
    return torch.where(finite, reduce(values) * s[..., 0, 0] * nonzero, torch.nan).to(W.dtype)


def _asinh(x: Tensor) -> Tensor:
    """asinh for x ≥ 0, accurate from the smallest to the largest double."""
    return torch.log1p(x + x * (x / (1 + _hypot(x, 1.0))))


def _hypot(x: Tensor, y: float) -> Tensor:
    return torch.hypot(x, torch.full_like(x, y))
