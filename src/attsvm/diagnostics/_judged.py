"""A run prepared for judgement: float64, without trials that are not finite; and SVMs solved sharply."""

from dataclasses import replace

import torch
from torch import Tensor

from attsvm.data import LinearHead
from attsvm.dynamics import MirrorDescent, Steepest, Trajectory
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry
from attsvm.svm import MarginProblem, MaxMargin, Status, solve
from attsvm.tolerances import CERTIFIED, SHARP


def judged(run: Trajectory) -> tuple[Trajectory, Tensor]:
    """The run in float64 on one device, W = 0 in trials that are not finite, and which are (B,).

    In a joint run the data have the trained head: scores are those of v. Steepest descent by plain ℓ2 steps is gradient
    descent, and judged as such.
    """
    if not isinstance(run, Trajectory):
        raise AttsvmError(f"run must be a Trajectory, such as train returns, but got {describe(run)}.")
    data = run.data.to(dtype=torch.float64)
    W = run.W.to(data.X)
    finite = W.isfinite().flatten(1).all(1)
    v = None
    if run.v is not None:
        v = run.v.to(data.X)
        finite = finite & v.isfinite().all(1)
        v = torch.where(finite[:, None], v, 0.0)
        data = replace(data, head=LinearHead(v[:, None]))
    tokens = torch.where(finite[:, None, None], run.tokens.to(data.device), data.mask.int().argmax(-1))
    records = {name: x.to(data.X) if x.is_floating_point() else x.to(data.device) for name, x in run.records.items()}
    if "W" in records:
        known = records["W"].isfinite().all(-1).all(-1)[..., None, None]
        records["W"] = torch.where(known, records["W"], 0.0)
    plain = run.rule == Steepest(normalize=False)
    ready = replace(
        run,
        data=data,
        rule=MirrorDescent(normalize=False) if plain else run.rule,
        steps=run.steps.to(data.device),
        records=records,
        W=torch.where(finite[:, None, None], W, 0.0),
        v=v,
        tokens=data.check_tokens(tokens),
    )
    return ready, finite


def solve_sharply(problem: MarginProblem, geometry: Geometry) -> MaxMargin:
    """The solution to a gap of 1e-12, or of 1e-9 where rounding allows no more."""
    solution = solve(problem, geometry, tol=SHARP)
    good_enough = solution.open & (solution.gap <= CERTIFIED)
    return replace(solution, codes=torch.where(good_enough, int(Status.SOLVED), solution.codes))
