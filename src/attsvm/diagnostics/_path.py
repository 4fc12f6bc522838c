"""A trajectory seen by the diagnostics: float64, with NaN trials put aside, and the few facts the checks need."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from attsvm.checks import describe
from attsvm.data import LinearHead, TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry
from attsvm.svm import MarginProblem, MaxMargin, Status, solve

SHARP, CERTIFIED = 1e-12, 1e-9
"""SVMs are solved to the relative gap 1e-12, because W is known to the root of the gap only; where rounding keeps
one from that, a gap of 1e-9 counts as solved."""


class TrajectoryLike(Protocol):
    """What a verdict needs of a `Trajectory`."""

    @property
    def data(self) -> TokenData: ...
    @property
    def geometry(self) -> Geometry: ...
    @property
    def parameterization(self) -> str: ...
    @property
    def steps(self) -> Tensor: ...
    @property
    def records(self) -> dict[str, Tensor]: ...
    @property
    def W(self) -> Tensor: ...
    @property
    def tokens(self) -> Tensor: ...
    @property
    def v(self) -> Tensor | None: ...
    @property
    def settings(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Path:
    """The run: `W` (B, d, e) is the last one, 0 in trials that are not `finite` (B,)."""

    data: TokenData
    geometry: Geometry
    parameterization: str
    steps: Tensor
    records: dict[str, Tensor]
    W: Tensor
    v: Tensor | None
    tokens: Tensor
    finite: Tensor
    settings: dict[str, Any]

    @classmethod
    def of(cls, run: TrajectoryLike) -> "Path":
        if not isinstance(getattr(run, "data", None), TokenData):
            raise AttsvmError(f"trajectory must be a run, such as train returns, but got {describe(run)}.")
        data = run.data.to(dtype=torch.float64)
        if run.parameterization not in ("W", "KQ", "joint"):
            raise AttsvmError(f"parameterization must be W, KQ or joint, but got {run.parameterization!r}.")
        W = run.W.to(data.X)
        if W.shape != (data.B, data.d, data.e):
            raise AttsvmError(f"W must have shape {(data.B, data.d, data.e)}, but got {tuple(W.shape)}.")
        finite = W.isfinite().flatten(1).all(1)
        v = None
        if run.parameterization == "joint":
            if run.v is None:
                raise AttsvmError("v must be given for a joint run, but it is None.")
            v = run.v.to(data.X)
            finite = finite & v.isfinite().all(1)
            v = torch.where(finite[:, None], v, 0.0)
            data = replace(data, head=LinearHead(v[:, None]))  # scores are those of the trained head
        elif data.head is None:
            raise AttsvmError("data must have a head to be judged, but it is None.")
        tokens = torch.where(finite[:, None, None], run.tokens.to(data.device), data.mask.int().argmax(-1))
        return cls(
            data=data,
            geometry=run.geometry,
            parameterization=run.parameterization,
            steps=run.steps.to(data.device),
            records={
                name: x.to(data.X) if x.is_floating_point() else x.to(data.device) for name, x in run.records.items()
            },
            W=torch.where(finite[:, None, None], W, 0.0),
            v=v,
            tokens=data.check_tokens(tokens),
            finite=finite,
            settings=dict(run.settings),
        )

    @property
    def loss(self) -> str:
        return self.settings.get("loss", "logistic")

    @property
    def normalize(self) -> bool:
        return bool(self.settings.get("normalize", True))

    @cached_property
    def lr(self) -> float | None:
        """The step size if it is one constant number."""
        text = str(self.settings.get("lr", "")).removeprefix("Constant(eta=").removesuffix(")")
        try:
            return float(text)
        except ValueError:
            return None

    @cached_property
    def recorded_W(self) -> tuple[Tensor, Tensor]:
        """Steps (R,) and W (R, B, d, e) where it is known: at the records if they have it, else at the end."""
        W = self.records.get("W")
        if W is None or not len(self.steps):
            last = self.steps[-1:] if len(self.steps) else torch.zeros(1, dtype=torch.long, device=self.W.device)
            return last, self.W[None]
        return self.steps, torch.where(W.isfinite().all(-1).all(-1)[..., None, None], W, 0.0)

    @cached_property
    def recorded_norm(self) -> Tensor | None:
        """‖W‖ (R, B) at the recorded steps, if it is known."""
        if "norm" in self.records:
            return self.records["norm"]
        if "W" in self.records:
            return self.geometry.norm(self.recorded_W[1])
        return None

    @property
    def starts_at_zero(self) -> Tensor:
        """Is W(0) = 0? (B,); from the records at step 0, else from the settings."""
        norm = self.recorded_norm
        if norm is not None and len(self.steps) and int(self.steps[0]) == 0:
            return norm[0] == 0
        return torch.full_like(self.finite, str(self.settings.get("init")).strip("'\"") == "zero")


def solve_sharply(problem: MarginProblem, geometry: Geometry) -> MaxMargin:
    """The solution to a gap of 1e-12, or of 1e-9 where rounding allows no more."""
    solution = solve(problem, geometry, tol=SHARP)
    good_enough = (solution.status == Status.NOT_CONVERGED) & (solution.gap <= CERTIFIED)
    return replace(solution, status=torch.where(good_enough, int(Status.SOLVED), solution.status))
