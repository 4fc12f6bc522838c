"""Entrywise ℓp norms, 1 ≤ p ≤ ∞."""

from dataclasses import dataclass
from math import inf
from numbers import Real

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry._base import MATRIX_AXES, Paired, rounding, scale
from attsvm.geometry._blocks import Blocks
from attsvm.geometry._phi import phi2_minus, phi2_plus


class Powers(Paired):
    """A norm of p-th powers."""

    p: float

    @property
    def smooth(self) -> bool:
        """1 < p < ∞: there is a mirror map."""
        return 1 < self.p < inf

    def has(self, *methods: str) -> bool:
        return super().has(*methods) and (self.smooth or not {"mirror", "inverse"} & set(methods))

    def gradient(self, W: Tensor) -> Tensor:
        return self.norm(W)[..., None, None] * self.dual.dual_unit(W)


@dataclass(frozen=True, repr=False)
class Lp(Powers):
    """‖W‖_p = (Σ|W_ij|^p)^(1/p) with ψ = ‖W‖_p^p / p; the dual norm is ‖·‖_q, 1/p + 1/q = 1.

    Values are ±inf or 0 only where the true value leaves the range of the dtype. Where a power |w|^a with
    a < 1 has infinite slope, at w = 0, autograd through `mirror`, `inverse` and `dual_unit` reports 0.

    ℓ1 and ℓ∞ have no mirror map: they are neither strictly convex nor smooth. `dual_unit` is a subgradient there.
    """

    p: float

    def __post_init__(self) -> None:
        if not (isinstance(self.p, Real) and 1 <= self.p <= inf):
            raise AttsvmError(f"Lp needs a number p with 1 ≤ p ≤ inf, but p is {self.p!r}: choose e.g. p = 1.1 or 3.")
        object.__setattr__(self, "p", float(self.p))

    def __repr__(self) -> str:
        return f"Lp({self.name[1:]})"

    @property
    def name(self) -> str:
        return "l" + repr(self.p).removesuffix(".0")

    @property
    def q(self) -> float:
        """The conjugate exponent p/(p − 1)."""
        return inf if self.p == 1 else 1.0 if self.p == inf else self.p / (self.p - 1)

    def strictly_convex(self, d: int, e: int) -> bool:
        return self.smooth or d * e == 1

    def blocks(self, d: int, e: int) -> Blocks | None:
        return None if self.smooth else Blocks.entries(d, e, "sum" if self.p == 1 else "max")

    @property
    def dual(self) -> "Lp":
        return Lp(self.q)

    def norm(self, W: Tensor) -> Tensor:
        if self.p == inf:
            return W.abs().amax(MATRIX_AXES)
        s = scale(W)
        total = (W / s).abs().pow(self.p).sum(-1).sum(-1)  # one axis at a time: its rounding grows by d + e
        # Only W = 0 sums to less than 1. A 1 under the root, taken off again, gives it the gradient 0 there.
        zero = (total == 0).to(total.dtype)
        return ((total + zero).pow(1 / self.p) - zero) * s[..., 0, 0]

    def norm_bound(self, W: Tensor, error: Tensor | None = None) -> Tensor:
        # The norm grows with the size of each entry.
        norm = self.norm(W)
        return (norm if error is None else norm + self.norm(error)) * (1 + rounding(W))

    def dual_unit(self, G: Tensor) -> Tensor:
        if self.p == inf:
            return G.sign()
        if self.p == 1:  # all on the first entry of the largest size
            flat = G.flatten(-2)
            at = flat.abs().argmax(-1, keepdim=True)
            return torch.zeros_like(flat).scatter(-1, at, flat.gather(-1, at).sign()).reshape(G.shape)
        # sign(G)|G|^(q−1), normalised. Normalise on the side where the power is ≥ 1: small entries that
        # underflow there underflow in the result too.
        return self.unit(self.inverse(G)) if self.p >= 2 else self.inverse(self.dual.unit(G))

    def hessian(self, W: Tensor) -> Tensor:
        # (p − 1)|u|^(p−2) on the diagonal and (2 − p)gg', with u = W/‖W‖ and g = sign(u)|u|^(p−1).
        u, g = self.unit(W).flatten(1), self.dual.dual_unit(W).flatten(1)
        if not self.smooth:
            return g[:, :, None] * g[:, None]
        size = u.abs() if self.p >= 2 else u.abs().clamp_min(1e-150)  # 0^(p−2) is infinite
        H = (2 - self.p) * g[:, :, None] * g[:, None]
        H.diagonal(dim1=1, dim2=2).add_((self.p - 1) * size ** (self.p - 2))
        return H

    def mirror(self, W: Tensor) -> Tensor:
        self.check_smooth()
        return _signed_power(W, self.p - 1)

    def inverse(self, theta: Tensor) -> Tensor:
        self.check_smooth()
        return _signed_power(theta, 1 / (self.p - 1))

    def check_smooth(self) -> None:
        """Refuse p = 1 and ∞, which have no mirror map."""
        if not self.smooth:
            near = "l1.1" if self.p == 1 else "l10"
            raise AttsvmError(f"{self.name} has no mirror map: take 1 < p < inf, for example {near}.")

    def _potential(self, W: Tensor) -> Tensor:
        self.check_smooth()
        # In two halves: |w|^p may overflow where |w|^p / p does not.
        half = W.abs().pow(self.p / 2)
        return (half / self.p * half).sum(MATRIX_AXES)

    def _conjugate(self, theta: Tensor) -> Tensor:
        return self.dual._potential(theta)

    def _bregman(self, W: Tensor, V: Tensor) -> Tensor:
        self.check_smooth()
        p, k = self.p, self.p - 1
        w, v = W.abs(), V.abs()
        big, small = torch.maximum(w, v), torch.minimum(w, v)
        big = torch.where(big > 0, big, torch.ones_like(big))
        grows = w >= v
        y = _log_ratio(big, small)
        r, r_k = torch.exp(-y), torch.exp(-k * y)  # small/big and its power k, which may outlive it

        # All in units of big^p / p. Opposite signs (or a zero): |w|^p + k|v|^p + p|v|^k|w|, all positive.
        apart = torch.where(grows, 1 + k * r * r_k + p * r_k, r * r_k + k + p * r)
        # Same sign: |v|^k |w| [g(kL) + k g(−L)] with L = log(w/v), g(x) = e^x − 1 − x, all positive again.
        growing = k * k * phi2_plus(k * y) + k * r_k * phi2_minus(y)
        shrinking = k * k * r * phi2_minus(k * y) + k * phi2_plus(y)
        together = y.square() * torch.where(grows, growing, shrinking)

        same_sign = W.sign() * V.sign() > 0
        d = torch.where(same_sign, together, apart) / p
        # big^p in two halves, and finite, so that equal entries give 0 however large they are.
        half = torch.maximum(w, v).pow(p / 2).clamp(max=torch.finfo(w.dtype).max)
        return (half * d * half).sum(MATRIX_AXES)

    def _hessian(self, V: Tensor, U: Tensor) -> Tensor:
        curvature = (self.p - 1) * V.abs().pow(self.p - 2)
        return torch.where(U == 0, torch.zeros_like(U), curvature * U)


def Frobenius() -> Lp:
    """The Euclidean geometry Lp(2): ψ = ½‖W‖_F², and the mirror map is the identity."""
    return Lp(2)


def _signed_power(x: Tensor, a: float) -> Tensor:
    """sign(x)|x|^a."""
    if a == 1:
        return x.clone()
    # |0| is replaced by 1 (and sign(0) = 0 restores it) so that the slope at 0 is 0, not 0·∞.
    return x.sign() * torch.where(x == 0, torch.ones_like(x), x.abs()).pow(a)


def _log_ratio(big: Tensor, small: Tensor) -> Tensor:
    """log(big/small) for big ≥ small ≥ 0, to full relative accuracy; ∞ for small = 0."""
    gap = (big - small) / big  # exact difference when they are close
    # Roots first: 1e-30/1e30 underflows in single precision.
    far = -2 * torch.log(small.sqrt() / big.sqrt())
    return torch.where(gap < 0.5, -torch.log1p(-gap), far)
