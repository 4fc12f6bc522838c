"""The run that a conjecture is about: a batch in float64, or one trial in many digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.data import TokenData
from attsvm.dynamics import Trajectory, train
from attsvm.errors import AttsvmError
from attsvm.geometry import Lp, parse_geometry
from attsvm.search._precise import PreciseDescent, check_precise

FOLLOWED, STRIDE = 1000, 0.01
"""Steps along the curve of a run, and their length relative to θ at their start."""


@dataclass(frozen=True)
class Descent:
    """ℓp mirror descent on W from 0: `lr` is one step size for all, or a function of the data that gives one per trial.

    Scaling a trial's queries gives it its own step size: with queries c times as long, c = η^(1/p), or η^(1/(p−1))
    where steps are normalised, the logits move under step 1 as they did under step η.
    """

    steps: int
    lr: float | Callable[[TokenData], Tensor] = 0.1
    loss: str = "logistic"
    geometry: str = "l2"
    normalize: bool = False

    def __post_init__(self) -> None:
        as_count("steps", self.steps, least=0)
        if not callable(self.lr) and not as_real("lr", self.lr, least=0) > 0:
            raise AttsvmError("lr must be above 0, but it is 0.")

    @property
    def norm(self) -> Lp:
        geometry = parse_geometry(self.geometry)
        if not isinstance(geometry, Lp):
            raise AttsvmError(f"geometry must be an ℓp norm here, but got {geometry.name}.")
        return geometry

    def check_replayable(self) -> None:
        """Refuse a norm or a loss that many digits do not know."""
        self.norm.check_smooth()
        check_precise(self.loss)

    def step_sizes(self, data: TokenData) -> Tensor:
        """η (B,)."""
        if callable(self.lr):
            sizes = torch.as_tensor(self.lr(data)).to(data.X).expand(data.B)
            wrong = sizes[~(sizes.isfinite() & (sizes > 0))]
            if len(wrong):
                raise AttsvmError(
                    f"lr must be above 0 and finite for all instances, but it is {wrong[0]:g} for one: "
                    "let given leave such instances out."
                )
            return sizes
        return data.X.new_full((data.B,), self.lr)

    def run(self, data: TokenData) -> Trajectory:
        """All trials at once, W recorded at log-spaced steps; the trajectory's data have scaled queries, see above."""
        p = self.norm.p
        power = 1 / (p - 1) if self.normalize else 1 / p
        scale = self.step_sizes(data) ** power
        scaled = replace(data, Z=data.Z * scale[:, None, None, None])
        return train(
            scaled,
            self.norm,
            steps=self.steps,
            lr=1.0,
            normalize=self.normalize,
            loss=self.loss,
            record=("W",),
            compile=False,
        )

    def follow(self, run: Trajectory) -> Trajectory:
        """Where the curve of a run goes far later: normalised steps of 1% of the current length of θ.

        Small steps follow the curve of the gradient flow, whatever their lengths. These steps make the logits ten times
        as large, for which a descent with a vanishing gradient would need exponentially many.
        """
        geometry = self.norm
        size = geometry.dual_norm(geometry.mirror(run.W))
        size = torch.where(size > 0, size, 1.0) ** (1 / (geometry.p - 1))
        data = replace(run.data, Z=run.data.Z * size[:, None, None, None])
        W = run.W / size[:, None, None]
        return train(data, geometry, steps=FOLLOWED, lr=STRIDE, loss=self.loss, init={"W": W}, record=(), compile=False)

    def replay(self, data: TokenData, digits: int) -> Iterator[tuple[Trajectory, bool]]:
        """One trial with this many digits: W after the steps, and after following its curve as `follow` does, rounded
        to float64; and whether one token of every query surely leads."""
        from mpmath import MPContext

        ctx = MPContext()
        ctx.dps = digits
        precise = PreciseDescent(data, self.loss, ctx, p=self.norm.p, normalize=self.normalize)
        start = train(data, self.norm, steps=0, loss=self.loss, record=(), compile=False)
        for _ in precise.run(self.step_sizes(data).item(), self.steps):
            pass
        yield self._rounded(precise, start)
        precise.normalize = True
        size = self.norm.dual_norm(self.norm.mirror(precise.float_W())).item()
        for _ in precise.run(STRIDE * size, FOLLOWED):
            pass
        yield self._rounded(precise, start)

    def _rounded(self, precise: PreciseDescent, start: Trajectory) -> tuple[Trajectory, bool]:
        data, tokens = start.data, precise.tokens()
        index = torch.tensor([0 if t is None else t for t in tokens]).reshape(1, data.n, data.K, 1)
        seen = data.mask.int().cumsum(-1) == index + 1  # tokens count among those that the query sees
        return replace(start, W=precise.float_W(), tokens=seen.int().argmax(-1)), None not in tokens
