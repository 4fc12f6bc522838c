"""Regularization paths: the best weights of every norm, on their way to the max-margin direction."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, as_real, check_real
from attsvm.data import LinearHead, TokenData
from attsvm.diagnostics import direction_error
from attsvm.dynamics import block_names, block_shapes, geometries
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry, Lp
from attsvm.objective import as_loss, check_loss
from attsvm.paths._branches import Cone, Solver, global_branch, local_branch
from attsvm.progress import progress_bar
from attsvm.svm import MaxMargin, att_svm, head_svm, solve
from attsvm.tolerances import CERTIFIED, CHOICES, SHARP


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Minimisers in balls of R radii for B trials.

    radii, head_radii (R,)   bounds of W (for (K, Q): ‖K‖² + ‖Q‖² ≤ 2R) and of v
    W (R, B, d, e)           with v (R, B, d) of a joint path, factors K (R, B, d, m) and Q (R, B, e, m), else None
    loss (R, B)              the training loss
    stationarity (R, B)      on the sphere ‖θ − g‖_* of the mirror variable θ and the negative gradient g, both scaled
                             to dual norm 1 (the larger one of W and v); inside the ball, where the gradient is zero,
                             what is left of it relative to its terms. Exact at any radius.
    converged (R, B)         stationarity ≤ tol
    interior (R, B)          is the constraint on W (or v) not active?
    distance (R, B)          of W from the direction of `limit`: directional Bregman divergence for ℓp (1 − correlation
                             for p = 2), 1 − correlation for the nuclear norm; NaN where the SVM has no solution
    head_distance (R, B)     the same for v and `head_limit`
    inside_cone (R, B)       of a local path: W ∈ cone_ε(α)
    limit, head_limit        the max-margin solutions that separate `tokens` (B, n, K)
    """

    data: TokenData
    geometry: Geometry
    parameterization: str
    radii: Tensor
    head_radii: Tensor | None
    W: Tensor
    v: Tensor | None
    factors: tuple[Tensor, Tensor] | None
    loss: Tensor
    stationarity: Tensor
    converged: Tensor
    interior: Tensor
    distance: Tensor
    head_distance: Tensor | None
    inside_cone: Tensor | None
    limit: MaxMargin
    head_limit: MaxMargin | None
    tokens: Tensor

    def plot(self, ax: Any = None) -> Any:
        """Draw the distance to the limit over the radius, median and band over trials; returns matplotlib axes."""
        from attsvm.plots import draw_curves

        curves = {"W": self.distance} | ({} if self.head_distance is None else {"v": self.head_distance})
        title = f"{self.parameterization} path to the {self.geometry.name} SVM, {self.data.B} trials"
        return draw_curves(ax, self.radii, curves, xlabel="radius", ylabel="distance", log=True, title=title)

    def __len__(self) -> int:
        return len(self.radii)

    def __repr__(self) -> str:
        return (
            f"RegularizationPath({self.parameterization} of {self.data.B} trials in {self.geometry.name}, {len(self)} "
            f"radii {self.radii[0]:g} to {self.radii[-1]:g}, {self.converged.double().mean():.1%} converged)"
        )


@torch.no_grad()
def regularization_path(
    data: TokenData,
    geometry: Geometry | str | float = "l2",
    parameterization: str = "W",
    *,
    radii: Sequence[float],
    loss: Any = "logistic",
    tokens: Any | None = None,
    cone_epsilon: float | None = None,
    m: int | None = None,
    head_radius: float | Callable[[float], float] = math.sqrt,
    steps_per_radius: int = 100,
    tol: float = 1e-9,
    progress: bool = False,
) -> RegularizationPath:
    """Minimise the loss of every trial under ‖W‖ ≤ R, for ascending radii R.

    "W" is W-RP and ℓp-AttRP; "KQ" is KQ-RP, ‖K‖_F² + ‖Q‖_F² ≤ 2R, whose limit is nuclear; "joint" is ℓp-JointRP with
    ‖v‖ ≤ r(R) in place of the data's head.

    The global path (tokens=None) consists of global minimisers, which no method certifies. This one follows two
    branches of stationary points: up from the best direction at W = 0, and down from the SVM of the optimal tokens at
    the largest radius. At each radius it takes the better one, by the loss, and by the gradient where losses tie; or a
    descent from the smaller ball's minimiser where that is better still. For a joint path the optimal tokens are those
    of largest label margin that some W can select, found among all choices if these are at most 4096.

    Given `tokens` α, the path is the local one, down from R·W_mm(α)/‖W_mm(α)‖ at the largest radius. After a radius at
    which it was outside cone_ε(α), it starts there again: no minimiser inside the cone was found.

    A ReLU head has kinks, where a minimiser need not be stationary. A trial that ends at one does not converge.

    cone_epsilon      ε of cone_ε(α), (86) of TF-as-SVM; half of what W_mm(α) attains if not given
    m                 width of K and Q, min(d, e) if not given
    head_radius       r as a function of R, or r/R. If r/R does not vanish, W reaches the SVM only if every sample is a
                      support vector of the label SVM, as Assumption B of the joint theorem asks; otherwise a sample
                      with a larger label margin needs less attention. With r = √R, W reaches it in any case.
    steps_per_radius  Newton steps at most (for a joint path rounds of them, v and W in turn)
    tol               stationarity to reach
    """
    names = block_names(data, parameterization)
    limit_geometry, ball = geometries(geometry, parameterization)
    if not isinstance(ball, Lp) or not ball.smooth:
        raise AttsvmError(
            f"geometry must be an ℓp norm, 1 < p < inf, unless (K, Q) is trained, but got {limit_geometry!r}."
        )
    data = data.to(dtype=torch.float64)
    loss = as_loss(loss)
    check_loss(loss, data, trains_head="v" in names)
    joint, local = "v" in names, tokens is not None
    bounds = {"W": _radii(radii)}
    if joint:
        bounds["v"] = _head_radii(head_radius, bounds["W"])
    elif head_radius is not math.sqrt:
        raise AttsvmError("head_radius is the bound of v: give it with parameterization joint only.")
    if cone_epsilon is not None:
        cone_epsilon = as_real("cone_epsilon", cone_epsilon, least=0)
        if not local or joint:
            raise AttsvmError("cone_epsilon belongs to a local path: give tokens, and train W or (K, Q).")
    solver = Solver(
        data=data,
        loss=loss,
        ball=ball,
        shapes=block_shapes(data, names, m),
        tol=as_real("tol", tol, least=0),
        steps=as_count("steps_per_radius", steps_per_radius),
    )

    if local:
        alpha = data.check_tokens(tokens)
    else:
        alpha = _largest_label_margin(data, limit_geometry) if joint else data.optimal_tokens()
    limits = {"W": solve(att_svm(data, alpha), limit_geometry, tol=SHARP)}
    if joint:
        limits["v"] = solve(head_svm(data, alpha), limit_geometry, tol=SHARP)
    far = {name: limit.W for name, limit in limits.items()}
    cone = Cone.around(data, alpha, far["W"], cone_epsilon) if local and not joint else None

    total = len(bounds["W"]) * (1 if local else 2)
    with progress_bar(progress, 0, total) as report:
        rows = local_branch(solver, bounds, far, cone, report) if local else global_branch(solver, bounds, far, report)
    path = {name: torch.stack([row.blocks[name] for row in rows]) for name in rows[0].blocks}
    distance = {name: torch.stack([_distance(limit, block) for block in path[name]]) for name, limit in limits.items()}
    stationarity = torch.stack([row.stationarity for row in rows])
    return RegularizationPath(
        data=data,
        geometry=limit_geometry,
        parameterization=parameterization,
        radii=torch.tensor(bounds["W"], dtype=torch.float64),
        head_radii=torch.tensor(bounds["v"], dtype=torch.float64) if joint else None,
        W=path["W"],
        v=path["v"][..., 0] if joint else None,
        factors=(path["K"], path["Q"]) if "K" in path else None,
        loss=torch.stack([row.loss for row in rows]),
        stationarity=stationarity,
        converged=stationarity <= solver.tol,
        interior=torch.stack([row.interior for row in rows]),
        distance=distance["W"],
        head_distance=distance.get("v"),
        inside_cone=torch.stack([cone.contains(W) for W in path["W"]]) if cone is not None else None,
        limit=limits["W"],
        head_limit=limits.get("v"),
        tokens=alpha,
    )


def _distance(limit: MaxMargin, W: Tensor) -> Tensor:
    known = limit.gap <= CERTIFIED
    return torch.where(known, direction_error(torch.nan_to_num(limit.W), W, limit.geometry), torch.nan)


def _largest_label_margin(data: TokenData, geometry: Geometry) -> Tensor:
    """The tokens (B, n, K) of largest label margin over all choices that some W can select; over all, if there is none.

    Samples that do not support it may take any token; of these the one of largest score under the best v, where a W can
    select these tokens, too.
    """
    queries = data.n * data.K
    if data.T**queries > CHOICES:
        raise AttsvmError(
            f"tokens must be given for a joint path with more than {CHOICES} token choices, but these data have "
            f"{data.T}^{queries}."
        )
    digits = torch.arange(data.T**queries)[:, None] // data.T ** torch.arange(queries) % data.T
    choices = digits.reshape(-1, data.n, data.K).to(data.device)
    allowed = data.mask.int().argmax(-1)
    best = data.X.new_full((data.B,), -torch.inf)
    tokens = allowed
    for part in choices.split(max(1, CHOICES // max(1, data.B))):
        trials = torch.arange(data.B, device=data.device).repeat_interleave(len(part))
        alpha = part.repeat(data.B, 1, 1)
        seen = data.mask[trials].gather(-1, alpha[..., None])[..., 0]
        alpha = torch.where(seen, alpha, allowed[trials])
        margin = solve(head_svm(data[trials], alpha), geometry).margin
        # Any that can be selected comes before all that cannot.
        margin = torch.where(solve(att_svm(data[trials], alpha), geometry).solved, margin + 1, margin / (1 + margin))
        margin, index = margin.reshape(data.B, len(part)).max(1)
        winner = alpha[index + len(part) * torch.arange(data.B, device=data.device)]
        tokens = torch.where((margin > best)[:, None, None], winner, tokens)
        best = torch.maximum(best, margin)
    v = torch.nan_to_num(solve(head_svm(data, tokens), geometry, tol=SHARP).W)
    scored = replace(data, head=LinearHead(v.mT)).optimal_tokens()
    selectable = solve(att_svm(data, scored), geometry).solved | ~solve(att_svm(data, tokens), geometry).solved
    return torch.where(selectable[:, None, None], scored, tokens)


def _radii(radii: Sequence[float]) -> list[float]:
    grid = as_float("radii", radii)
    check_real("radii", grid)
    if grid.ndim != 1 or not len(grid) or bool((grid <= 0).any()) or bool((grid.diff() <= 0).any()):
        raise AttsvmError(f"radii must be positive and ascending, but got {describe(radii)}.")
    return grid.tolist()


def _head_radii(head_radius: float | Callable[[float], float], radii: list[float]) -> list[float]:
    if callable(head_radius):
        values = [head_radius(R) for R in radii]
    else:
        ratio = as_real("head_radius", head_radius, least=0)
        values = [ratio * R for R in radii]
    result = [as_real("head_radius", value, least=0) for value in values]
    if min(result) == 0:
        raise AttsvmError("head_radius must be positive at every radius, but it is 0 at one.")
    return result
