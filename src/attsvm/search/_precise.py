"""Gradient descent in arithmetic of any precision, or on intervals that contain the true numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch

from attsvm.data import LinearHead, TokenData
from attsvm.errors import AttsvmError


class PreciseDescent:
    """Plain gradient descent on one trial with a linear head, from W = 0 unless told otherwise.

    All numbers come from the context `ctx`: an `mpmath.MPContext` for many digits, an `MPIntervalContext` for
    intervals that are sure to hold the true ones. The data are taken as the floats that they are; give the step size
    as a string or a Fraction to have it exactly.
    """

    def __init__(self, data: TokenData, loss: str, ctx: Any, W: Any = None) -> None:
        if data.B != 1 or not isinstance(data.head, LinearHead):
            raise AttsvmError(f"data must be one trial with a linear head for many digits, but got {data!r}.")
        self.ctx, self.n = ctx, data.n
        self.slope = _slope(loss, ctx)
        v = data.head.v[0].expand(data.K, data.d).tolist()
        self.queries = []
        for i in range(data.n):
            for k in range(data.K):
                rows = [self._exact(x) for x, seen in zip(data.X[0, i], data.mask[0, i, k].tolist()) if seen]
                sign, head = self._number(data.Y[0, i, k].item()), [self._number(x) for x in v[k]]
                scores = [sign * _dot(head, x) for x in rows]
                self.queries.append((rows, self._exact(data.Z[0, i, k]), scores))
        zero = torch.zeros(data.d, data.e, dtype=torch.float64)
        self.W = [self._exact(row) for row in (zero if W is None else torch.as_tensor(W, dtype=torch.float64))]

    def _exact(self, x: torch.Tensor) -> list[Any]:
        return [self._number(number) for number in x.tolist()]

    def _number(self, x: Any) -> Any:
        if isinstance(x, Fraction):
            return self.ctx.mpf(x.numerator) / x.denominator
        return self.ctx.mpf(x)

    def logits(self) -> list[list[Any]]:
        """x_tᵀ W z for the tokens that each query sees."""
        found = []
        for rows, z, _ in self.queries:
            Wz = [_dot(row, z) for row in self.W]
            found.append([_dot(x, Wz) for x in rows])
        return found

    def step(self, lr: Any) -> None:
        """W ← W − lr ∇L(W)."""
        ctx = self.ctx
        scale = self._number(lr) / self.n
        moves = [[ctx.mpf(0) for _ in row] for row in self.W]
        for (rows, z, scores), logits in zip(self.queries, self.logits()):
            # Differences from the first token: an interval softmax with the same number above and below is wide.
            weights = [ctx.exp(a - logits[0]) for a in logits]
            total = sum(weights[1:], weights[0])
            s = [w / total for w in weights]
            mean = _dot(s, scores)
            outer = self.slope(mean)
            # −∇L = −ℓ′ Σ_t s_t (γ_t − mean) x_t zᵀ, where the weights of the x_t add up to 0: take x_1 off all of them.
            for t in range(1, len(rows)):
                c = scale * outer * s[t] * _lead(scores, s, t)
                for d, (x, first) in enumerate(zip(rows[t], rows[0])):
                    for e, number in enumerate(z):
                        moves[d][e] += c * (x - first) * number
        self.W = [[w + move for w, move in zip(row, line)] for row, line in zip(self.W, moves)]

    def run(self, lr: Any, steps: int) -> Iterator[int]:
        """Take the steps one by one; `lr` is a number, or a function of the step 1, 2, …"""
        for k in range(1, steps + 1):
            self.step(lr(k) if callable(lr) else lr)
            yield k

    def tokens(self) -> list[int | None]:
        """The token of surely largest logit of each query, counted among those that it sees; None where it is open."""
        found = []
        for logits in self.logits():
            sure = [t for t, a in enumerate(logits) if all(a > b for r, b in enumerate(logits) if r != t)]
            found.append(sure[0] if sure else None)
        return found


def _lead(scores: list[Any], s: list[Any], t: int) -> Any:
    """γ_t − Σ s γ = Σ_r s_r (γ_t − γ_r), term by term so that nothing cancels."""
    terms = [s[r] * (scores[t] - scores[r]) for r in range(len(s)) if r != t]
    return sum(terms[1:], terms[0])


def _dot(a: list[Any], b: list[Any]) -> Any:
    terms = [x * y for x, y in zip(a, b)]
    return sum(terms[1:], terms[0])


def _slope(loss: str, ctx: Any) -> Callable[[Any], Any]:
    """−ℓ′."""
    slopes: dict[str, Callable[[Any], Any]] = {
        "correlation": lambda f: ctx.mpf(1),
        "logistic": lambda f: 1 / (1 + ctx.exp(f)),
        "exponential": lambda f: ctx.exp(-f),
    }
    if loss not in slopes:
        raise AttsvmError(f"loss must be one of {', '.join(slopes)} for many digits, but got {loss!r}.")
    return slopes[loss]
