"""What solving returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry
from attsvm.svm._problem import MarginProblem


class Status(IntEnum):
    """How an instance ended."""

    SOLVED = 0
    """The bracket of the optimal norm is within the tolerance."""
    INFEASIBLE = 1
    """A combination of the rows with b'λ = 1 cancels to 1e-8 of its terms: the multipliers are a Farkas vector."""
    NOT_CONVERGED = 2
    """The iterations ran out; the bracket is still certified."""


@dataclass(frozen=True, eq=False)
class MaxMargin:
    """The solutions of B instances of a margin problem.

    W (B, d, e) has margin exactly 1 (NaN where none was found). `multipliers` (B, Q, R) belong to min ½‖W‖²:
    ‖A'λ‖_* = ‖W‖, for the Frobenius norm W = A'λ; of an infeasible instance they are the Farkas vector, b'λ = 1
    and A'λ = 0. `lower` ≤ optimal norm ≤ `upper` is certified by the multipliers and by W. `support` (B, Q, R)
    marks the rows at the margin.
    """

    problem: MarginProblem
    geometry: Geometry
    W: Tensor
    multipliers: Tensor
    lower: Tensor
    upper: Tensor
    support: Tensor
    status: Tensor
    iterations: Tensor

    @property
    def norm(self) -> Tensor:
        """‖W‖ (B,), infinite where no W was found."""
        return self.upper

    @property
    def margin(self) -> Tensor:
        """The margin of W/‖W‖, 1/‖W‖ (B,); 0 where no W was found, infinite where nothing constrains W."""
        return 1 / self.upper

    @property
    def gap(self) -> Tensor:
        """(upper − lower)/lower (B,), 0 where both are 0."""
        gap = (self.upper - self.lower).clamp_min(0) / self.lower
        return torch.where(self.upper == 0, 0.0, gap)

    @property
    def solved(self) -> Tensor:
        return self.status == Status.SOLVED

    @property
    def infeasible(self) -> Tensor:
        return self.status == Status.INFEASIBLE

    @property
    def support_tokens(self) -> Tensor:
        """The support tokens 𝒯 of every query, boolean (B, n, K, T); only for problems over tokens."""
        problem = self.problem
        if problem.token is None or problem.layout is None:
            raise AttsvmError("support_tokens needs a problem over tokens; use `support` for own rows.")
        n, K, T = problem.layout
        tight = torch.zeros(len(self), n * K, T, dtype=torch.bool, device=self.W.device)
        return tight.scatter_(-1, problem.token, self.support).reshape(-1, n, K, T)

    def __len__(self) -> int:
        return len(self.W)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{int((self.status == s).sum())} {s.name.lower().replace('_', ' ')}"
            for s in Status
            if bool((self.status == s).any())
        )
        text = f"MaxMargin({self.geometry.name}, {len(self)} instances: {counts or 'none'}"
        if bool(self.solved.any()):
            norm, gap = self.norm[self.solved], self.gap[self.solved]
            text += f"; norm {norm.median().item():.6g} (median), gap ≤ {gap.max().item():.1e}"
        return text + ")"
