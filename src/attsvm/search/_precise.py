"""Descent in arithmetic of any precision, or on intervals that contain the true numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attsvm.data import LinearHead, TokenData
from attsvm.errors import AttsvmError, describe


class PreciseDescent:
    """ℓp mirror descent (p = 2: gradient descent) on one trial with a linear head, from W = 0 by default.

    All numbers come from the context `ctx`: an `mpmath.MPContext` for many digits, an `MPIntervalContext` for intervals
    that are sure to hold the true ones (p = 2, steps that are not normalised). The data are exact as floats; give the
    step size as a string or a Fraction to have it exactly.
    """

    def __init__(
        self, data: TokenData, loss: str, ctx: Any, W: Any = None, *, p: float = 2, normalize: bool = False
    ) -> None:
        if data.B != 1 or not isinstance(data.head, LinearHead):
            raise AttsvmError(f"data must be one trial with a linear head for many digits, but got {data!r}.")
        self.ctx, self.n, self.p, self.normalize = ctx, data.n, self._rational(ctx, p), normalize
        self.slope = partial(_SLOPES[check_precise(loss)], ctx)
        v = data.head.v[0].expand(data.K, data.d).tolist()
        self.queries = []
        for i in range(data.n):
            for k in range(data.K):
                rows = [self._exact(x) for x, seen in zip(data.X[0, i], data.mask[0, i, k].tolist()) if seen]
                sign, head = ctx.mpf(data.Y[0, i, k].item()), [ctx.mpf(x) for x in v[k]]
                scores = [sign * _dot(head, x) for x in rows]
                self.queries.append((rows, self._exact(data.Z[0, i, k]), scores))
        zero = torch.zeros(data.d, data.e, dtype=torch.float64)
        self.W = [self._exact(row) for row in (zero if W is None else torch.as_tensor(W, dtype=torch.float64))]
        self.theta = self._powers(self.W, self.p - 1)

    @staticmethod
    def _rational(ctx: Any, x: Any) -> Any:
        return ctx.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else ctx.mpf(x)

    def _exact(self, x: Tensor) -> list[Any]:
        return [self.ctx.mpf(number) for number in x.tolist()]

    def _powers(self, matrix: list[list[Any]], power: Any) -> list[list[Any]]:
        """sign(x)|x|^power, entry by entry: the mirror map for p − 1, its inverse for 1/(p − 1)."""
        if power == 1:
            return matrix
        return [[(1 if x >= 0 else -1) * abs(x) ** power for x in row] for row in matrix]

    def logits(self) -> list[list[Any]]:
        """x_tᵀ W z for the tokens that each query sees."""
        found = []
        for rows, z, _ in self.queries:
            Wz = [_dot(row, z) for row in self.W]
            found.append([_dot(x, Wz) for x in rows])
        return found

    def _descent_direction(self) -> list[list[Any]]:
        """−∇L(W)."""
        ctx = self.ctx
        moves = [[ctx.mpf(0) for _ in row] for row in self.W]
        for (rows, z, scores), logits in zip(self.queries, self.logits()):
            weights = [ctx.exp(a - logits[0]) for a in logits]
            total = _sum(weights)
            s = [w / total for w in weights]
            outer = self.slope(_dot(s, scores)) / self.n
            # −∇L = −ℓ′ Σ_t s_t (γ_t − γ̄) x_t zᵀ, where the weights of the x_t add up to 0: take x_1 off all of them.
            for t in range(1, len(rows)):
                # γ_t − γ̄ = Σ_r s_r (γ_t − γ_r), term by term so that nothing cancels
                lead = _sum([s[r] * (scores[t] - scores[r]) for r in range(len(s)) if r != t])
                c = outer * s[t] * lead
                for d, (x, first) in enumerate(zip(rows[t], rows[0])):
                    for e, number in enumerate(z):
                        moves[d][e] += c * (x - first) * number
        return moves

    def step(self, lr: Any) -> None:
        """θ ← θ − lr ∇L(W), over its dual norm if normalised; θ = ∇ψ(W)."""
        scale, moves = self._rational(self.ctx, lr), self._descent_direction()
        if self.normalize:
            q = self.p / (self.p - 1)
            size = _sum([abs(x) ** q for row in moves for x in row]) ** (1 / q)
            scale = scale / size if size > 0 else scale
        self.theta = [[w + scale * move for w, move in zip(row, line)] for row, line in zip(self.theta, moves)]
        self.W = self._powers(self.theta, 1 / (self.p - 1))

    def run(self, lr: Any, steps: int) -> Iterator[int]:
        """Take the steps one by one; `lr` is a number, or a function of the step 1, 2, …"""
        for k in range(1, steps + 1):
            self.step(lr(k) if callable(lr) else lr)
            yield k

    def tokens(self) -> list[int | None]:
        """The token whose logit is surely the largest of each query, counted among those that it sees; None where this
        is open."""
        found = []
        for logits in self.logits():
            sure = [t for t, a in enumerate(logits) if all(a > b for r, b in enumerate(logits) if r != t)]
            found.append(sure[0] if sure else None)
        return found

    def float_W(self) -> Tensor:
        """W rounded to float64, (1, d, e)."""
        return torch.tensor([[[float(x) for x in row] for row in self.W]], dtype=torch.float64)


def _sum(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0])


def _dot(a: list[Any], b: list[Any]) -> Any:
    return _sum([x * y for x, y in zip(a, b)])


_SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "correlation": lambda ctx, f: ctx.mpf(1),
    "logistic": lambda ctx, f: 1 / (1 + ctx.exp(f)),
    "exponential": lambda ctx, f: ctx.exp(-f),
}
"""−ℓ′ of the losses that many digits know."""


def check_precise(loss: Any) -> str:
    """Refuse a loss that many digits do not know."""
    if not isinstance(loss, str) or loss not in _SLOPES:
        raise AttsvmError(f"loss must be one of {', '.join(_SLOPES)} for many digits, but got {describe(loss)}.")
    return loss
