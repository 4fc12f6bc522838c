"""A start that meets the condition of the local theorems."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_real
from attsvm.data import LinearHead, TokenData
from attsvm.diagnostics import constants, directional_bregman, is_locally_optimal, radius
from attsvm.dynamics import Gaussian
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry, Lp, parse_geometry
from attsvm.svm import att_svm, solve

BISECTIONS = 60
EDGE = 0.999
"""A lean of 1 stays this far inside the cone: rounding would put the edge itself on either side."""


def cone_start(
    data: TokenData,
    tokens: Any = None,
    geometry: Geometry | str = "l2",
    *,
    lean: float = 0.5,
    lr: float = 0.0,
    loss: Any = "logistic",
    seed: int = 0,
) -> dict[str, Tensor]:
    """W(0) in the cone C_{p,μ₀/3,R} of locally optimal tokens, for `train(…, init=cone_start(…))`.

    From there Theorems 2 to 4 of mirror-descent apply, and Theorem 7 of TF-as-SVM with p = 2. W(0) has the norm R of
    `radius`. It leans to a random side, with one stream per trial as in `Gaussian`, until its directional Bregman
    divergence to the solution is `lean` (0 to 1) times μ₀/3. `tokens` are the optimal ones by default. R is at least
    10⁵ times ‖W_mm‖, so steps that are not normalised no longer move W in float64.
    """
    if not isinstance(data, TokenData):
        raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")
    if not isinstance(data.head, LinearHead):
        name = "none" if data.head is None else data.head.name
        raise AttsvmError(f"head must be linear, as the local theorems ask, to have a cone, but it is {name}.")
    geometry = parse_geometry(geometry)
    if not isinstance(geometry, Lp):
        raise AttsvmError(f"geometry must be an ℓp norm to have a cone, but got {geometry.name}.")
    lean = as_real("lean", lean, least=0)
    if lean > 1:
        raise AttsvmError(f"lean must be at most 1, the edge of the cone, but got {lean}.")
    tokens = data.optimal_tokens() if tokens is None else data.check_tokens(tokens)
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    local = is_locally_optimal(data, tokens, solution)
    if not bool(local.all()):
        trial = int((~local).int().argmax())
        raise AttsvmError(f"tokens must be locally optimal to have a cone, but those of trial {trial} are not.")
    c = constants(data, tokens, solution)
    R = radius(data, c, solution, loss, as_real("lr", lr, least=0))
    if not bool((R.isfinite() & (solution.norm > 0)).all()):
        raise AttsvmError("data must have a token to separate in every trial to have a cone, but some have none.")
    noise = Gaussian(1.0, seed).draw(data.trials, {"W": (data.d, data.e)})["W"].to(data.X)
    center, side = geometry.unit(solution.W), geometry.unit(noise)
    # The divergence grows with the lean: bisect for its share of μ₀/3, staying below.
    low, high = torch.zeros_like(R), torch.ones_like(R)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = directional_bregman(center, center + middle[:, None, None] * side, geometry) <= EDGE * lean * c.mu0 / 3
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return {"W": 1.0001 * R[:, None, None] * geometry.unit(center + low[:, None, None] * side)}
