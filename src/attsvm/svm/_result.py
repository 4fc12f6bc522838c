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
    """The bracket of the optimal norm is within the tolerance, in real arithmetic."""
    INFEASIBLE = 1
    """Proved: no W satisfies the rows. The multipliers are, but for their rounding, a Farkas vector."""
    NOT_CONVERGED = 2
    """The iterations ran out, or float64 cannot hold a better W; the bracket is still certified."""


@dataclass(frozen=True, eq=False)
class MaxMargin:
    """The solutions of B instances of a margin problem.

    W (B, d, e) has margin 1 or a little more (NaN where none was found). `multipliers` (B, Q, R) belong to min ½‖W‖²:
    ‖A'λ‖_* = ‖W‖, for the Frobenius norm W = A'λ; of an infeasible instance they are the Farkas vector, b'λ = 1
    and A'λ = 0 but for their rounding. `support` (B, Q, R) marks the rows at the margin.

    What is certain, for the real numbers that the float64 numbers are (and for tokens, not for their rounded
    differences): every inequality ⟨a ⊗ z, W⟩ ≥ b holds; every equality holds to `violation` (B,), which is 0 where
    there are none; ‖W‖ ≤ `upper`; and no feasible W has a norm below `lower`, by the multipliers. So without equalities
    `lower` ≤ optimal norm ≤ `upper`; with equalities `upper` is the norm of a W that is off by the violation.
    An infeasible instance is proved to be so. All rounding of the certificates is accounted for.
    """

    problem: MarginProblem
    geometry: Geometry
    W: Tensor
    multipliers: Tensor
    lower: Tensor
    upper: Tensor
    violation: Tensor
    support: Tensor
    status: Tensor
    iterations: Tensor

    @property
    def norm(self) -> Tensor:
        """‖W‖ (B,), rounded up; infinite where no W was found."""
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
