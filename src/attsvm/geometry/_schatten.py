"""Norms of the singular values: Schatten-p, with the spectral norm as p = ∞."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real

from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry._base import Geometry
from attsvm.geometry._blocks import Blocks
from attsvm.geometry._lp import Lp
from attsvm.geometry._nuclear import of_singular_values, schatten_bound, svd


@dataclass(frozen=True, repr=False)
class Schatten(Geometry):
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
        """The geometry of the dual norm."""
        return Schatten(Lp(self.p).q)

    @property
    def smooth(self) -> bool:
        """1 < p < ∞: there is a mirror map."""
        return 1 < self.p < inf

    def has(self, *methods: str) -> bool:
        return super().has(*methods) and (self.smooth or not {"mirror", "inverse"} & set(methods))

    def blocks(self, d: int, e: int) -> Blocks | None:
        return None if self.smooth else Blocks.whole(d, e, "sum" if self.p == 1 else "max")

    def norm(self, W: Tensor) -> Tensor:
        return of_singular_values(W, lambda s: Lp(self.p).norm(s[..., None]))

    def dual_norm(self, G: Tensor) -> Tensor:
        return self.dual.norm(G)

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        return schatten_bound(W, error, self.p)

    def dual_norm_bound(self, G: Tensor, error: Tensor | None = None) -> Tensor:
        return schatten_bound(G, error, self.dual.p)

    def dual_unit(self, G: Tensor) -> Tensor:
        return self._of_values(G, lambda s: Lp(self.p).dual_unit(s[..., None])[..., 0])

    def mirror(self, W: Tensor) -> Tensor:
        self._check_smooth()
        return self._of_values(W, lambda s: s ** (self.p - 1))

    def inverse(self, theta: Tensor) -> Tensor:
        self._check_smooth()
        return self._of_values(theta, lambda s: s ** (1 / (self.p - 1)))

    def _potential(self, W: Tensor) -> Tensor:
        self._check_smooth()
        return Lp(self.p)._potential(svd(W)[1][..., None]).to(W.dtype)

    def _conjugate(self, theta: Tensor) -> Tensor:
        return self.dual._potential(theta)

    def _check_smooth(self) -> None:
        if not self.smooth:
            instead = "Nuclear() has one" if self.p == 1 else "take Schatten(p) with p < inf"
            raise AttsvmError(f"{self.name} has no mirror map: {instead}.")

    @staticmethod
    def _of_values(W: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """U f(σ) Vᵀ."""
        U, s, Vh = svd(W)
        return ((U * f(s)[..., None, :]) @ Vh).to(W.dtype)


def Spectral() -> Schatten:
    """The spectral norm, the largest singular value."""
    return Schatten(inf)
