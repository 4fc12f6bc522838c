"""All places where training can end, and how often it ends there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, as_real
from attsvm.data import TokenData
from attsvm.diagnostics import is_globally_optimal, is_locally_optimal
from attsvm.dynamics import Gaussian, train
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry, parse_geometry
from attsvm.svm import att_svm, solve
from attsvm.tolerances import CHOICES

BLOCK = 2048
"""SVMs solved at once."""
LR, STRIDE = 0.05, 0.02
"""The normalised step: at least LR, and this share of the size of the start."""
PATIENCE = 10
"""How many times as many steps a run gets whose tokens are not locally optimal after the first ones."""


@dataclass(frozen=True, eq=False)
class Basins:
    """The C token choices of B problems, and where the S·`starts` runs of each problem ended.

    choices (C, n, K)    tokens, the same list for all problems
    feasible, locally_optimal, globally_optimal (B, C)   what the choice is
    margin (B, C)        of its SVM, 0 where it is infeasible
    scales (S,)          standard deviations of the Gaussian starts
    share (S, B, C)      share of the runs from this scale that end at this choice
    """

    choices: Tensor
    feasible: Tensor
    locally_optimal: Tensor
    globally_optimal: Tensor
    margin: Tensor
    scales: Tensor
    share: Tensor
    starts: int

    @property
    def elsewhere(self) -> Tensor:
        """Share of the runs that end at tokens that are not locally optimal, (S, B); these tokens are not final."""
        return (self.share * ~self.locally_optimal).sum(-1)

    def plot(self, trials: int = 4) -> Any:
        """The atlas as a matplotlib figure: a panel for each of the first problems, shares of the choices by scale."""
        from attsvm.search._figure import basins_figure

        return basins_figure(self, trials)

    def table(self, trial: int = 0) -> list[dict[str, Any]]:
        """The locally optimal choices of a problem, most frequently reached first."""
        rows = [
            {
                "tokens": self.choices[c].tolist(),
                "globally optimal": bool(self.globally_optimal[trial, c]),
                "margin": self.margin[trial, c].item(),
                "share": dict(zip(self.scales.tolist(), self.share[:, trial, c].tolist())),
            }
            for c in self.locally_optimal[trial].nonzero()[:, 0].tolist()
        ]
        return sorted(rows, key=lambda row: -sum(row["share"].values()))

    def __len__(self) -> int:
        return len(self.feasible)

    def __repr__(self) -> str:
        if not len(self):
            return "Basins(0 problems)"
        local = self.locally_optimal.sum(1)
        right = (self.share * self.globally_optimal).sum(-1).mean(1)
        by_scale = ", ".join(f"{s:g}: {100 * x:.0f}%" for s, x in zip(self.scales.tolist(), right.tolist()))
        return (
            f"Basins({len(self)} problems, {local.min().item()} to {local.max().item()} locally optimal choices of "
            f"{len(self.choices)}; optimal tokens reached from scale {by_scale})"
        )


def basins(
    data: TokenData,
    geometry: Geometry | str = "l2",
    *,
    scales: Sequence[float] = (0.01, 0.1, 1.0, 10.0),
    starts: int = 100,
    steps: int = 500,
    seed: int = 0,
) -> Basins:
    """The atlas of small problems: every locally optimal token choice, and how likely training ends there.

    For each scale, `starts` Gaussian starts per problem are trained by normalised steps of 0.05, or 2% of the start's
    size if that is more: short enough to follow the gradient, long enough to leave the start behind. If its tokens are
    not locally optimal after `steps`, a run has not ended, and continues for ten times as many. The choices are all
    T^(nK) (at most 4096), masked tokens left out; a choice is locally optimal if its SVM is feasible and every selected
    token has a higher score than its support tokens. A problem's number in `data.trials` determines its starts.
    """
    if not isinstance(data, TokenData):
        raise AttsvmError(f"data must be TokenData, but got {describe(data)}.")
    geometry = parse_geometry(geometry)
    starts, steps = as_count("starts", starts), as_count("steps", steps)
    given = as_float("scales", scales).flatten().tolist()
    if not given:
        raise AttsvmError("scales must have a value, but there is none.")
    spread = torch.tensor([as_real("scales", scale, least=0) for scale in given], dtype=torch.float64)
    queries = data.n * data.K
    if data.T**queries > CHOICES:
        raise AttsvmError(f"data must have at most {CHOICES} token choices, T^(nK), but they have {data.T}^{queries}.")
    digits = torch.tensor(list(itertools.product(range(data.T), repeat=queries)))
    choices = digits.reshape(-1, data.n, data.K).to(data.device)
    C = len(choices)
    allowed = (
        data.mask[:, None].expand(-1, C, -1, -1, -1).gather(-1, choices[None, ..., None].expand(data.B, -1, -1, -1, -1))
    )
    allowed = allowed.flatten(2).all(-1)
    feasible, local, best = (torch.zeros(data.B, C, dtype=torch.bool, device=data.device) for _ in range(3))
    margin = torch.zeros(data.B, C, dtype=torch.float64, device=data.device)
    for block in allowed.nonzero().split(BLOCK):
        b, c = block.unbind(1)
        some, tokens = data[b], choices[c]
        solution = solve(att_svm(some, tokens), geometry, tol=1e-10)
        feasible[b, c], margin[b, c] = solution.solved, torch.where(solution.solved, solution.margin, 0.0)
        local[b, c] = is_locally_optimal(some, tokens, solution)
        best[b, c] = is_globally_optimal(some, tokens)

    weights = data.T ** torch.arange(queries - 1, -1, -1, device=data.device)
    owner = torch.arange(data.B, device=data.device).repeat_interleave(starts)
    repeated = data[owner]
    share = data.X.new_zeros(len(spread), data.B, C)
    shape = {"W": (data.d, data.e)}
    numbers = (starts * data.trials[:, None] + torch.arange(starts)).flatten()
    for k, scale in enumerate(spread.tolist()):
        start = Gaussian(scale, seed + k).draw(numbers, shape)
        typical = Gaussian(scale).draw(torch.zeros(1, dtype=torch.long), shape)["W"]
        lr = max(LR, STRIDE * geometry.dual_norm(geometry.mirror(typical)).item())
        run = train(repeated, geometry, steps=steps, lr=lr, init=start, record=(), compile=False)
        number = (run.tokens.flatten(1) * weights).sum(1)
        open_ends = (~local[owner, number]).nonzero()[:, 0]
        if len(open_ends):
            more = train(
                repeated[open_ends],
                geometry,
                steps=PATIENCE * steps,
                lr=lr,
                init={"W": run.W[open_ends]},
                record=(),
                compile=False,
            )
            number[open_ends] = (more.tokens.flatten(1) * weights).sum(1)
        number = number.reshape(data.B, starts)
        share[k].scatter_add_(1, number, torch.ones_like(number, dtype=share.dtype))
    return Basins(choices, feasible, local, best, margin, spread, share / starts, starts)
