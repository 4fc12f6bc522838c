"""Mehrotra's predictor-corrector step, for every method whose unknowns are λ, the slacks s and the margin t."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attsvm.svm._rows import System

_TINY = 1e-300


def mean_complementarity(system: System, lam: Tensor, s: Tensor) -> Tensor:
    """Mean of λs over the inequalities, (B,)."""
    return (lam * s).sum(1) / system.inequality.sum(1).clamp_min(1)


def predictor_corrector(
    system: System, lam: Tensor, s: Tensor, shift: Tensor, solve: Callable[[Tensor], Tensor], stalled: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dλ, ds, dt and how far to go (B,), where (A C A' + diag(s/λ)) dλ = target − shift + b dt, b'(λ + dλ) = 1 and
    ds = target − (s/λ)dλ; `solve` solves with that matrix for columns (B, N, k)."""
    b, ineq = system.b, system.inequality
    positive = torch.where(ineq, lam, 1.0)
    ratio = s / positive
    short = 1 - (b * lam).sum(1)
    mu = mean_complementarity(system, lam, s)

    def complete(Hr: Tensor, Hb: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt = (short - (b * Hr).sum(1)) / (b * Hb).sum(1)
        dlam = Hr + dt[:, None] * Hb
        return dlam, target - ratio * dlam, dt

    def longest_step(dlam: Tensor, ds: Tensor) -> Tensor:
        shrink = torch.maximum(-dlam / positive, -ds / torch.where(ineq, s, 1.0)) * ineq
        return 1 / shrink.amax(1).clamp_min(1.0)

    # Predictor: aim at complementarity zero.
    target = -s
    Hr, Hb = solve(torch.stack((target - shift, b), -1)).unbind(-1)
    dlam, ds, dt = complete(Hr, Hb, target)
    step = longest_step(dlam, ds)[:, None]
    affine = mean_complementarity(system, lam + step * dlam, s + step * ds)
    sigma = (affine / mu.clamp_min(_TINY)).clamp(0, 1) ** 3
    # Corrector: aim at σμ, with the second-order term unless the instance stalls.
    sigma = torch.where(stalled, sigma.clamp_min(0.3), sigma)
    second = torch.where(stalled[:, None], 0.0, dlam * ds)
    target = ineq * (((sigma * mu)[:, None] - second) / positive) - s
    dlam, ds, dt = complete(solve((target - shift)[..., None])[..., 0], Hb, target)
    # Without inequalities there is no boundary to stay away from.
    share = torch.where(stalled, 0.7, torch.where(ineq.any(1), 0.99, 1.0))
    return dlam, ds, dt, share * longest_step(dlam, ds)
