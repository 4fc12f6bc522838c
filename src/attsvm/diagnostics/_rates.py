"""How fast a divergence falls along a run, and what the theorems promise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.errors import AttsvmError

WINDOW = 0.5
"""The fit uses the recorded steps in the last half of the run, on the scale of log k. The beginning shows how the
tokens were chosen, not how the direction settles."""
FIRST_STEP = 16
"""Steps below this are never fitted: log log k must be positive and move slowly."""
RESOLVED = 1e-12
"""Divergences below are rounding, and so are not fitted: the solution itself is known to a gap of 1e-12."""
MIN_POINTS = 4
"""A slope through fewer points is not reported."""

PRINTED = "Theorem 4, (6)"
PROVED = "Appendix F, (32), and the later version"


@dataclass(frozen=True, eq=False)
class Rate:
    """Least-squares slopes of log D(k), one (B,) each; NaN where fewer than 4 positive values are in the window.

    power       against log k: D ~ k^power, what normalised runs show
    log_power   against log log k: D ~ (log k)^log_power, what unnormalised runs should show
    excess      by text of the theorem: slope of log(D/rate) against log log k, at most 0 where D falls as promised
    points      number of values fitted
    """

    power: Tensor
    log_power: Tensor
    excess: dict[str, Tensor]
    points: Tensor


def theorem_rate(p: float, k: Tensor) -> dict[str, Tensor]:
    """The rates of Theorem 4 of mirror-descent at steps k ≥ 3, in both texts, which differ for p < 2.

    (6) prints log log k/(log k)^(p−1) for p < 2; its proof, (32c), and the later version give 1/(log k)^(p−1).
    """
    if not p > 1:
        raise AttsvmError(f"p must be above 1, but got {p}.")
    log_k = k.double().log()
    if p > 2:
        rate = log_k.log() / log_k
    elif p == 2:
        rate = log_k.log().square() / log_k
    else:
        return {PRINTED: log_k.log() / log_k ** (p - 1), PROVED: 1 / log_k ** (p - 1)}
    return {PRINTED: rate, PROVED: rate}


def fit_rate(steps: Tensor, divergence: Tensor, p: float | None = None) -> Rate:
    """Fit the decay of a divergence (R, B) recorded at steps (R,); compare with Theorem 4 if p is given."""
    if divergence.ndim != 2 or steps.shape != divergence.shape[:1]:
        raise AttsvmError(
            f"steps must have shape (R,) and divergence (R, B), but got {tuple(steps.shape)} and "
            f"{tuple(divergence.shape)}."
        )
    k = steps.to(divergence.device).double()
    last = k.max().clamp(min=1) if len(k) else k.new_ones(())
    window = (k >= FIRST_STEP) & (k >= last**WINDOW)
    usable = window[:, None] & (divergence > RESOLVED) & divergence.isfinite()
    k = k.clamp(min=FIRST_STEP)
    log_D = torch.where(usable, divergence, 1.0).log()
    points = usable.sum(0)
    enough = points >= MIN_POINTS

    def slope(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(enough, _slope(x[:, None], y, usable), torch.nan)

    rates = {} if p is None else theorem_rate(p, k)
    log_k = k.log()
    return Rate(
        power=slope(log_k, log_D),
        log_power=slope(log_k.log(), log_D),
        excess={text: slope(log_k.log(), log_D - rate.log()[:, None]) for text, rate in rates.items()},
        points=points,
    )


def _slope(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Least-squares slope of y (R, B) over x (R, 1) on the entries where weight is True."""
    count = weight.sum(0).clamp(min=1)
    x_mean, y_mean = (weight * x).sum(0) / count, (weight * y).sum(0) / count
    dx = weight * (x - x_mean)
    return (dx * (y - y_mean)).sum(0) / dx.square().sum(0)
