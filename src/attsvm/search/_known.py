"""Counter-examples to printed theorems, in small numbers; the proofs are in docs/papers.md."""

from fractions import Fraction
from typing import Any

import torch

from attsvm.checks import as_count
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.search._precise import PreciseDescent

KNOWN = {
    4: (((1, 0), (-2, 1)), (1.0, 2.1)),
    6: (((-4, 0, -4), (3, 2, -3), (-4, -2, 3)), (-4.0, 3.0, -3.0)),
}
"""By theorem of TF-as-SVM: token differences r_i = x_i1 − x_i2, and the head v."""


def counterexample(theorem: int) -> TokenData:
    """One trial on which Theorem 4 or 6 of TF-as-SVM, as printed, fails with the loss −x: T = 2, x_i2 = 0, z = 1.

    The first token is the optimal one of every sequence. Plain gradient descent from W = 0 selects the second one of
    the last sequence for good, with any step size (Theorem 4) or with those that the theorem allows (Theorem 6).
    """
    if as_count("theorem", theorem) not in KNOWN:
        raise AttsvmError(f"theorem must be one of {', '.join(map(str, KNOWN))} of TF-as-SVM, but got {theorem}.")
    rows, v = KNOWN[theorem]
    X = torch.tensor(rows, dtype=torch.float64)[:, None]
    X = torch.cat([X, torch.zeros_like(X)], 1)
    return TokenData.cross(X, torch.ones(len(rows), 1, dtype=torch.float64), head=torch.tensor(v, dtype=torch.float64))


def wrong_for_good(lr: Fraction, steps: int = 1000) -> bool:
    """Is it proved that on `counterexample(6)` this step size never selects the optimal token of the third sequence?

    Interval arithmetic follows the first `steps` steps. Then an induction takes over, from four facts about the logit
    differences a₁, a₂ and b = −a₃ that one step changes by η/3 times sums of φ(a) = σ(a)(1 − σ(a)), φ even:

        F = a₁ − 9a₂ + 8b    by 6φ(a₂) − 3φ(b)
        a₁ − a₂              by 896φ(a₁) − 66φ(a₂) + 29φ(b)
        a₂                   by 66φ(a₂) − 25φ(b)
        a₁                   by 896φ(a₁) + 4φ(b)

    While b > a₂ − log 2 > 0, φ(b) < 2φ(a₂): F and a₂ grow, and a₁ − a₂ grows only where φ(a₁) > φ(a₂)/112, so never
    beyond M = max(a₁ − a₂, log 112 + 2 log(1 + e^(−a₂))) + (η/3)·896 e^(−a₁), taken at the start of the induction. If
    F > M − 8 log 2 there, then 8(b − a₂) = F − (a₁ − a₂) > −8 log 2 at every later step, and the induction goes on.
    """
    from mpmath import MPIntervalContext

    ctx: Any = MPIntervalContext()
    ctx.dps = 30
    descent = PreciseDescent(counterexample(6), "correlation", ctx)
    for _ in descent.run(lr, steps):
        pass
    a1, a2, a3 = (right - wrong for right, wrong in descent.logits())
    eta = ctx.mpf(lr.numerator) / lr.denominator
    jump = eta / 3 * 896 * ctx.exp(-a1)
    F, log2 = a1 - 9 * a2 - 8 * a3, ctx.log(ctx.mpf(2))
    rest = ctx.log(ctx.mpf(112)) + 2 * ctx.log(1 + ctx.exp(-a2))
    holds = [F - (M + jump) + 8 * log2 > 0 for M in (a1 - a2, rest)]
    return all(bool(fact) for fact in (*holds, a2 - log2 > 0))
