"""Branches of stationary points that a regularization path follows: up from W = 0, and down from the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics import separation
from attsvm.dynamics import Shapes
from attsvm.geometry import Lp
from attsvm.objective import Blocks, Lanes, Loss, attend, combined, gradients, losses, trial_first, trial_last
from attsvm.paths._sphere import TIED, Point, Value, from_inside, in_ball, point

Bounds = dict[str, list[float]]
Report = Callable[[float], None]

THIN = 1e-5
"""Singular values of a start K Qᵀ are at least this fraction of the largest; one that is 0 would have gradient 0."""
SAME = 1e-6
"""Difference of log slopes below which they are equal."""
INSIDE = 1 - 1e-9
"""Fraction of the radius below which the minimiser is inside the ball."""


@dataclass
class Row:
    """The minimiser of every trial at one radius.

    `log_slopes` (B, 1 or 2) are log ‖∇L‖_* in v and W; `vanished` is what is left of ∇L relative to its terms.
    """

    blocks: Blocks
    loss: Tensor
    log_slopes: Tensor
    stationarity: Tensor
    vanished: Tensor
    interior: Tensor

    def beats(self, other: Row) -> Tensor:
        """By the loss; where that ties or underflows by the slope in v, as large as the loss; then by that in W, as
        large as what attention to the other tokens adds to the loss."""
        margin = TIED * torch.maximum(self.loss.abs(), other.loss.abs())
        less = self.loss < other.loss - margin
        tied = (self.loss - other.loss).abs() <= margin
        for mine, theirs in zip(self.log_slopes.unbind(1), other.log_slopes.unbind(1)):
            less = less | (tied & (mine < theirs - SAME))
            tied = tied & ((mine - theirs).abs() <= SAME)
        return less

    def where(self, chosen: Tensor, other: Row) -> Row:
        """This one in the chosen trials, the other in the rest."""

        def pick(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

        mine, theirs = vars(self), vars(other)
        fields = {name: pick(mine[name], theirs[name]) for name in mine if name != "blocks"}
        return Row({name: pick(block, other.blocks[name]) for name, block in self.blocks.items()}, **fields)


def global_branch(solver: Solver, bounds: Bounds, far: Blocks, report: Report) -> list[Row]:
    """The better of two branches at every radius: up from W = 0, and down from the limit."""
    count = len(bounds["W"])
    up, start = [], solver.first({name: radii[0] for name, radii in bounds.items()}, far)
    for k in range(count):
        up.append(solver.solve(start, {name: radii[k] for name, radii in bounds.items()}))
        start = up[-1].blocks
        report(k + 1)
    start = {name: torch.where(block.isnan(), up[-1].blocks[name], block) for name, block in far.items()}
    rows = _down(solver, bounds, start, None, lambda k: report(count + k))
    for k, (row, other) in enumerate(zip(rows, up)):
        rows[k] = other.where(other.beats(row), row)
        lower = _lower(rows[k - 1], rows[k]) if k else torch.zeros_like(row.interior)
        if bool(lower.any()):  # the best point of a smaller ball is allowed here, too: a start
            below = solver.solve_inside(rows[k - 1], {name: radii[k] for name, radii in bounds.items()})
            rows[k] = below.where(lower, rows[k])
    return rows


def _lower(row: Row, other: Row) -> Tensor:
    return row.loss < other.loss - TIED * other.loss.abs()


def local_branch(solver: Solver, bounds: Bounds, far: Blocks, cone: Cone | None, report: Report) -> list[Row]:
    # Without a solution there is no limit. Such trials still get some start, for the sake of the others.
    far = {name: torch.nan_to_num(block, nan=1.0) for name, block in far.items()}
    return _down(solver, bounds, far, cone, report)


def _down(solver: Solver, bounds: Bounds, far: Blocks, cone: Cone | None, report: Report) -> list[Row]:
    """Rows in the order of the radii, found from the last to the first; outside the cone the start is the limit."""
    rows, start = [], far
    for k in reversed(range(len(bounds["W"]))):
        row = solver.solve(start, {name: radii[k] for name, radii in bounds.items()})
        start = row.blocks
        if cone is not None:
            inside = cone.contains(row.blocks["W"])[:, None, None]
            start = {"W": torch.where(inside, row.blocks["W"], far["W"])}
        rows.insert(0, row)
        report(len(rows))
    return rows


@dataclass(frozen=True)
class Solver:
    """From directions to minimisers in balls."""

    data: TokenData
    loss: Loss
    ball: Lp
    shapes: Shapes
    tol: float
    steps: int

    def first(self, bounds: dict[str, float], far: Blocks) -> Blocks:
        """The best directions from W = 0 (and v = 0); the limit where the gradient is zero there."""
        data = self.data
        zero = {"W": data.X.new_zeros(data.B, data.d, data.e)}
        start: Blocks = {}
        if "v" in self.shapes:
            v = data.X.new_zeros(data.B, data.d, 1)
            start["v"] = self._steepest("v", v, zero, far)
            zero["v"] = bounds["v"] * start["v"]
        W = zero.pop("W")
        return start | {"W": self._steepest("W", W, zero, far)}

    def _steepest(self, name: str, x: Tensor, fixed: Blocks, far: Blocks) -> Tensor:
        G = self._objective({name: (x.shape[1], x.shape[2])}, fixed).at(x.flatten(1)[..., None]).G
        # For (K, Q) the best direction is the first singular pair; −G itself is near enough for a start.
        G = -G.reshape(x.shape)
        steepest = G if "K" in self.shapes else self.ball.dual_unit(G)
        zero = (steepest == 0).flatten(1).all(1)[:, None, None]
        return torch.where(zero, torch.nan_to_num(far[name], nan=1.0), steepest)

    def solve(self, start: Blocks, bounds: dict[str, float]) -> Row:
        if "v" in self.shapes:
            return self._solve_joint(start, bounds)
        trained = {"W": start["W"]} if "W" in self.shapes else _thick(start["W"], self.shapes["K"][1])
        objective, radius = self._objective(self.shapes, {}), self._radius(bounds)
        return self._single(objective, self._minimise(objective, _joined(trained), radius), radius)

    def solve_inside(self, row: Row, bounds: dict[str, float]) -> Row:
        """From a point of a smaller ball. (For a joint path it is that point itself, stationary or not.)"""
        if "v" in self.shapes:
            return replace(row, stationarity=row.vanished, interior=torch.ones_like(row.interior))
        objective, radius = self._objective(self.shapes, {}), self._radius(bounds)
        x = _joined({name: row.blocks[name] for name in self.shapes})
        bound = x.new_full((len(x),), radius)
        end = from_inside(objective, self.ball, x, bound, self.tol / 2, self.steps)
        return self._single(objective, end, radius)

    def _radius(self, bounds: dict[str, float]) -> float:
        # ‖K‖² + ‖Q‖² ≤ 2R is a ball of radius √(2R).
        return bounds["W"] if "W" in self.shapes else math.sqrt(2 * bounds["W"])

    def _single(self, objective: _Objective, end: Point, radius: float) -> Row:
        blocks = objective.blocks(end.x)
        row = self._row({"W": (end, radius)}, {name: trial_first(block) for name, block in blocks.items()})
        row.blocks["W"] = trial_first(combined(blocks)).contiguous()
        return row

    def _solve_joint(self, start: Blocks, bounds: dict[str, float]) -> Row:
        """v and W in turn. Where W selects tokens it hardly matters to v, so a few rounds suffice for large radii."""
        W, v = bounds["W"] * self.ball.unit(start["W"]), start["v"]
        W_end, v_end = self._turn(W, v, bounds)
        for _ in range(self.steps - 1):
            if bool((v_end.error <= self.tol / 2).all()):
                break
            W_end, v_end = self._turn(W_end.x.reshape(W.shape), v_end.x, bounds)
        blocks = {"W": W_end.x.reshape(W.shape), "v": v_end.x}
        return self._row({"v": (v_end, bounds["v"]), "W": (W_end, bounds["W"])}, blocks)

    def _turn(self, W: Tensor, v: Tensor, bounds: dict[str, float]) -> tuple[Point, Point]:
        """The best v for W, then the best W for that v; and how good v is now."""
        v_shape, W_shape = {"v": self.shapes["v"]}, {"W": self.shapes["W"]}
        v_end = self._minimise(self._objective(v_shape, {"W": W}), v, bounds["v"])
        objective = self._objective(W_shape, {"v": v_end.x})
        W_end = self._minimise(objective, W.flatten(1)[..., None], bounds["W"])
        objective = self._objective(v_shape, {"W": W_end.x.reshape(W.shape)})
        return W_end, point(objective, self.ball, v_end.theta, v_end.radius)

    def _minimise(self, objective: _Objective, x: Tensor, radius: float) -> Point:
        bound = x.new_full((len(x),), radius)
        # On the sphere ‖θ − g‖ is at most twice the error.
        return in_ball(objective, self.ball, self.ball.mirror(self.ball.unit(x)), bound, self.tol / 2, self.steps)

    def _row(self, ends: dict[str, tuple[Point, float]], blocks: Blocks) -> Row:
        points = [end for end, _ in ends.values()]
        stationarity = [torch.minimum(self.ball.dual_norm(end.theta + end.G), end.vanished) for end in points]
        return Row(
            blocks=blocks,
            loss=points[0].loss,
            log_slopes=torch.stack([end.log_slope for end in points], 1),
            stationarity=torch.stack(stationarity).amax(0),
            vanished=torch.stack([end.vanished for end in points]).amax(0),
            interior=torch.stack([end.radius < INSIDE * bound for end, bound in ends.values()]).any(0),
        )

    def _objective(self, trained: Shapes, fixed: Blocks) -> _Objective:
        data = self.data
        longest, widest = data.X.norm(dim=-1).amax((1, 2)), data.Z.norm(dim=-1).amax((1, 2))
        if trained.keys() == {"v"}:
            magnitude = longest
        elif "v" in fixed:
            magnitude = longest.square() * widest * fixed["v"].flatten(1).norm(dim=1)
        else:
            scores = data.scores()
            low = scores.masked_fill(~data.mask, torch.inf).amin((1, 2, 3))
            magnitude = longest * widest * (scores.amax((1, 2, 3)) - low)
        lanes = Lanes.of(data, fixed_head="v" not in trained.keys() | fixed.keys())
        blocks = {name: trial_last(block) for name, block in fixed.items()}
        return _Objective(lanes, self.loss, trained, blocks, magnitude)


@dataclass(frozen=True)
class _Objective:
    """The training loss as a function of the trained blocks, laid out one after the other: x (B, N, 1).

    `magnitude` (B,) bounds the gradient in W (or v) without its shift.
    """

    lanes: Lanes
    loss: Loss
    trained: Shapes
    fixed: Blocks
    magnitude: Tensor

    def blocks(self, x: Tensor) -> Blocks:
        sizes = [rows * columns for rows, columns in self.trained.values()]
        parts = x[..., 0].T.split(sizes)
        return {name: part.reshape(*shape, -1) for (name, shape), part in zip(self.trained.items(), parts)}

    def at(self, x: Tensor) -> Value:
        G, shift = self._gradient(x)
        loss = losses(attend(self.lanes, self.blocks(x) | self.fixed), self.loss)
        # The gradient in K is G_W Q, that in Q is G_Wᵀ K.
        factor = x.flatten(1).norm(dim=1) if "K" in self.trained else 1.0
        return Value(G, shift, loss.sum(1).mean(0), self.magnitude * factor)

    def hessian(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            G, shift = self._gradient(x)
            G = G * torch.exp(shift - shift.detach())[:, None, None]

        # The Hessian is symmetric: the gradient of ⟨G(x), p⟩ is Hp.
        return lambda p: torch.autograd.grad(G, x, p, retain_graph=True)[0]

    def _gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = gradients(self.lanes, self.loss, self.blocks(x) | self.fixed)
        G = torch.cat([found[name].G.flatten(0, 1) for name in self.trained])
        return G.T[..., None], found[next(iter(self.trained))].shift

    def take(self, trials: Tensor) -> _Objective:
        lanes = self.lanes
        some: dict[str, Any] = {name: x[..., trials] for name, x in vars(lanes).items() if isinstance(x, Tensor)}
        head = None if lanes.head is None else lanes.head[trials]
        fixed = {name: block[..., trials] for name, block in self.fixed.items()}
        return replace(self, lanes=replace(lanes, **some, head=head), fixed=fixed, magnitude=self.magnitude[trials])


@dataclass(frozen=True)
class Cone:
    """cone_ε(α) of every trial."""

    data: TokenData
    tokens: Tensor
    epsilon: Tensor

    @classmethod
    def around(cls, data: TokenData, tokens: Tensor, W_mm: Tensor, epsilon: float | None) -> Cone:
        widest = separation(data, tokens, torch.nan_to_num(W_mm))
        return cls(data, tokens, widest / 2 if epsilon is None else torch.full_like(widest, epsilon))

    def contains(self, W: Tensor) -> Tensor:
        return separation(self.data, self.tokens, W) >= self.epsilon


def _joined(blocks: Blocks) -> Tensor:
    return torch.cat([block.flatten(1) for block in blocks.values()], 1)[..., None]


def _thick(W: Tensor, m: int) -> Blocks:
    """K = U√S and Q = V√S with K Qᵀ near W, of full rank."""
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    root = s.clamp_min(THIN * s[:, :1])[:, None, :m].sqrt()
    K, Q = U[..., :m] * root, Vh.mT[..., :m] * root
    pad = max(0, m - s.shape[1])
    return {"K": torch.nn.functional.pad(K, (0, pad)), "Q": torch.nn.functional.pad(Q, (0, pad))}
