"""Norms of the singular values: Schatten-p, with the spectral norm as p = ∞."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry._base import MATRIX_AXES
from attsvm.geometry._blocks import Blocks
from attsvm.geometry._lp import Lp, Powers
from attsvm.geometry._nuclear import of_singular_values, schatten_bound, svd


@dataclass(frozen=True, repr=False)
class Schatten(Powers):
    """The ℓp norm of the singular values; the dual norm is Schatten-q. p = 1 nuclear, 2 Frobenius, ∞ spectral.

    For 1 < p < ∞ the potential is ψ = Σσ_i^p/p, with mirror map U σ^(p−1) Vᵀ. For p = 1 and ∞ there is none; `Nuclear`
    has one that comes close to the nuclear norm. `dual_unit` is a subgradient where the dual norm is not smooth.
    """

    p: float

    def __post_init__(self) -> None:
        if not (isinstance(self.p, Real) and 1 <= self.p <= inf):
            raise AttsvmError(f"Schatten needs a number p with 1 ≤ p ≤ inf, but p is {self.p!r}.")
        object.__setattr__(self, "p", float(self.p))

    def __repr__(self) -> str:
        return "Spectral()" if self.p == inf else f"Schatten({self.name[8:]})"

    @property
    def name(self) -> str:
        return "spectral" if self.p == inf else "schatten" + repr(self.p).removesuffix(".0")

    @property
    def dual(self) -> "Schatten":
        return Schatten(Lp(self.p).q)

    def strictly_convex(self, d: int, e: int) -> bool:
        return self.smooth or min(d, e) == 1

    def blocks(self, d: int, e: int) -> Blocks | None:
        return None if self.smooth else Blocks.whole(d, e, "sum" if self.p == 1 else "max")

    def norm(self, W: Tensor) -> Tensor:
        return of_singular_values(W, lambda s: Lp(self.p).norm(s[..., None]))

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        return schatten_bound(W, error, self.p)

    def dual_unit(self, G: Tensor) -> Tensor:
        if self.p == inf:
            # Of singular values that are rounding the vectors are arbitrary: without them U Vᵀ is a dual unit as well.
            noise = 8 * max(G.shape[-2:]) * torch.finfo(G.dtype).eps
            return self._of_values(G, lambda s: (s > noise * s[..., :1]).to(s.dtype))
        return self._of_values(G, lambda s: Lp(self.p).dual_unit(s[..., None])[..., 0])

    def hessian(self, W: Tensor) -> Tensor:
        return _half_square_hessian(W, self.p if min(W.shape[1:]) > 1 else 2.0)  # of a vector all are ℓ2

    def mirror(self, W: Tensor) -> Tensor:
        self.check_smooth()
        return self._of_values(W, lambda s: s ** (self.p - 1))

    def inverse(self, theta: Tensor) -> Tensor:
        self.check_smooth()
        return self._of_values(theta, lambda s: s ** (1 / (self.p - 1)))

    def _potential(self, W: Tensor) -> Tensor:
        self.check_smooth()
        return Lp(self.p)._potential(svd(W)[1][..., None]).to(W.dtype)

    def _conjugate(self, theta: Tensor) -> Tensor:
        return self.dual._potential(theta)

    def _bregman(self, W: Tensor, V: Tensor) -> Tensor:
        """Far apart by its definition, since quadrature is coarse where singular values pass 0; nearby without
        cancellation."""
        parts = self._potential(W), self._potential(V), (self.mirror(V) * (W - V)).sum(MATRIX_AXES)
        far, size = parts[0] - parts[1] - parts[2], parts[0] + parts[1] + parts[2].abs()
        near = far <= 1e-4 * size
        return torch.where(near, super()._bregman(W, V), far) if bool(near.any()) else far

    def check_smooth(self) -> None:
        """Refuse p = 1 and ∞, which have no mirror map."""
        if not self.smooth:
            instead = "Nuclear() has one" if self.p == 1 else "take Schatten(p) with p < inf"
            raise AttsvmError(f"{self.name} has no mirror map: {instead}.")

    @staticmethod
    def _of_values(W: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """U f(σ) Vᵀ."""
        U, s, Vh = svd(W)
        return ((U * f(s)[..., None, :]) @ Vh).to(W.dtype)


def _half_square_hessian(W: Tensor, p: float) -> Tensor:
    """The Hessian (B, D, D) of ½(Σσ^p)^(2/p), in the basis of the singular vectors made of 2 × 2 blocks.

    With f = ½‖σ‖_p², a change E in that basis has the second derivative Σ f_ij E_ii E_jj + Σ_{i<j} α_ij ((E_ij + E_ji)²
    + β_ij (E_ij − E_ji)²)/2 with α = (f_i − f_j)/(σ_i − σ_j) and β = (f_i + f_j)/(σ_i + σ_j); outside of the smaller
    side it is f_i/σ_i.
    """
    B, d, e = W.shape
    k = min(d, e)
    U, s, Vh = svd(W, full_matrices=True)
    s = s.clamp_min(1e-12 * s[:, :1].clamp_min(1e-300))
    norm = Lp(p).norm(s[..., None])[:, None]
    unit = s / norm
    slope = norm * unit ** (p - 1)  # f_i
    bend = (p - 1) * unit ** (p - 2)
    a, b = s[:, :, None], s[:, None]
    apart = (a - b).abs() > 1e-6 * (a + b)
    alpha = torch.where(apart, (slope[:, :, None] - slope[:, None]) / (a - b), (bend[:, :, None] + bend[:, None]) / 2)
    beta = (slope[:, :, None] + slope[:, None]) / (a + b)
    # Weights of E_ij with itself and with E_ji.
    own = torch.zeros(B, d, e, dtype=W.dtype, device=W.device)
    ratio = slope / s
    own[:] = ratio[:, None] if d > e else ratio[:, :, None] if e > d else 0.0
    own[:, :k, :k] = (alpha + beta) / 2
    own.diagonal(dim1=1, dim2=2).copy_(bend)
    H = torch.diag_embed(own.flatten(1)).reshape(B, d, e, d, e)
    i, j = torch.triu_indices(k, k, 1, device=W.device)
    cross = ((alpha - beta) / 2)[:, i, j]
    H[:, i, j, j, i] = cross
    H[:, j, i, i, j] = cross
    c = torch.arange(k, device=W.device)
    root = unit ** (p - 1)
    H[:, c[:, None], c[:, None], c, c] += (2 - p) * root[:, :, None] * root[:, None]
    # Back to the entries: W = U Σ Vᵀ on both sides.
    H = torch.einsum("bai,bijkl->bajkl", U, H)
    H = torch.einsum("bjc,bajkl->backl", Vh, H)
    H = torch.einsum("bmk,backl->bacml", U, H)
    return torch.einsum("bln,bacml->bacmn", Vh, H).reshape(B, d * e, d * e)


def Spectral() -> Schatten:
    """The spectral norm, the largest singular value."""
    return Schatten(inf)
