"""What solving returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_float, as_trials
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, read_arrays, write_arrays
from attsvm.frames import frame
from attsvm.geometry import Geometry
from attsvm.named import facts_of, from_facts
from attsvm.pages import html_table
from attsvm.schema import Array, Schema
from attsvm.svm._problem import MarginProblem


class Status(IntEnum):
    """How an instance ended; prints as words."""

    SOLVED = 0
    """The bracket of the optimal norm is within the tolerance, in real arithmetic."""
    INFEASIBLE = 1
    """Proved: no W satisfies the rows. The multipliers are, but for their rounding, a Farkas vector."""
    NOT_CONVERGED = 2
    """The iterations ran out, or float64 cannot hold a better W; the bracket is still certified."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    __repr__ = __str__


SCHEMA = Schema(
    format="attsvm-solution/3",
    what="solutions of margin problems",
    arrays={
        "A": Array("real", "B Q R d"),
        "A_low": Array("real", "B Q R d", optional=True),
        "Z": Array("real", "B Q e"),
        "b": Array("real", "B Q R"),
        "equality": Array("bool", "B Q R"),
        "present": Array("bool", "B Q R"),
        "token": Array("whole", "B Q R", optional=True, least=0),
        "W": Array("real", "B d e", finite=False),
        "multipliers": Array("real", "B Q R", finite=False),
        "lower": Array("real", "B", finite=False),
        "upper": Array("real", "B", finite=False),
        "violation": Array("real", "B", finite=False),
        "support": Array("bool", "B Q R"),
        "status": Array("whole", "B", least=0, most=2),
        "iterations": Array("whole", "B", least=0),
        # for readers without attsvm
        "norm": Array("real", "B", optional=True, finite=False),
        "margin": Array("real", "B", optional=True, finite=False),
        "support_tokens": Array("bool", "B n K T", optional=True),
        "tokens": Array("whole", "B n K", optional=True, least=0),
    },
    facts={"geometry": dict, "layout": (None, [int])},
)


@dataclass(frozen=True, eq=False)
class MaxMargin:
    """The solutions of B instances of a margin problem.

    W (B, d, e) has margin 1 or a little more (NaN where none was found). `multipliers` (B, Q, R) belong to min ½‖W‖²:
    ‖A'λ‖_* = ‖W‖, for the Frobenius norm W = A'λ; for an infeasible instance they are the Farkas vector, b'λ = 1 and
    A'λ = 0 up to rounding. `support` (B, Q, R) marks the rows at the margin.

    What is certain, in real arithmetic for the given float64 numbers (and for tokens, not for their rounded
    differences): every inequality ⟨a ⊗ z, W⟩ ≥ b holds; every equality holds to `violation` (B,), 0 where there are
    none; ‖W‖ ≤ `upper`; and no feasible W has a norm below `lower`, by the multipliers. So without equalities `lower` ≤
    optimal norm ≤ `upper`; with equalities `upper` is the norm of a W that is off by the violation. "Infeasible" is a
    proof. All rounding of the certificates is accounted for.
    """

    problem: MarginProblem
    geometry: Geometry
    W: Tensor
    multipliers: Tensor
    lower: Tensor
    upper: Tensor
    violation: Tensor
    support: Tensor
    codes: Tensor
    iterations: Tensor

    @property
    def status(self) -> list[Status]:
        """How every instance ended, in words; `codes` (B,) are the same as numbers."""
        return [Status(code) for code in self.codes.tolist()]

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
        return self.codes == Status.SOLVED

    @property
    def infeasible(self) -> Tensor:
        return self.codes == Status.INFEASIBLE

    @property
    def open(self) -> Tensor:
        """Neither solved nor infeasible (B,): only the bracket is known."""
        return self.codes == Status.NOT_CONVERGED

    @property
    def unique(self) -> Tensor:
        """Where the solution is certainly the only one (B,): the norm is strictly convex, or, in ℓ1 and ℓ∞, the
        solution is a vertex with strict complementarity, rounding accounted for.

        False means not known: in ℓ1, ℓ∞, nuclear, spectral and group norms solutions may form a face. Compare margins
        there, by `efficiency`, rather than directions.
        """
        from attsvm.svm._unique import certainly_unique

        strictly = self.norm.isfinite() & self.geometry.strictly_convex(*self.problem.shape)
        return strictly if bool(strictly.any()) else certainly_unique(self)

    def efficiency(self, W: Any) -> Tensor:
        """Margin efficiency of W (B, d, e) or (d, e): the margin of W/‖W‖ over the largest one, (B,).

        1 for any solution; 0 or less where W does not separate; NaN where the problem is infeasible or W is not finite.
        Equality rows are ignored. The value is right to the gap, and at most 1 in exact arithmetic, because `lower`
        stands for the norm.
        """
        W = self.for_each("W", W)
        least = self.problem.least_margin(W)
        norm = self.geometry.norm(W)
        value = torch.where(norm == 0, 0.0, least / norm) * self.lower
        value = torch.where(self.upper > 0, value, 1.0)  # where nothing is asked
        return torch.where(self.norm.isfinite(), value, torch.nan)

    def for_each(self, name: str, W: Any) -> Tensor:
        """A matrix (B, d, e) for every instance, from one each or from one (d, e) for all."""
        W, (d, e) = as_float(name, W, like=self.W), self.problem.shape
        if tuple(W.shape) not in ((d, e), (len(self), d, e)):
            raise AttsvmError(
                f"{name} must have shape (d, e) = {(d, e)} or (B, d, e) = {(len(self), d, e)}, "
                f"but got {tuple(W.shape)}."
            )
        return W.expand(len(self), d, e)

    @property
    def support_tokens(self) -> Tensor:
        """The support tokens 𝒯 of every query, boolean (B, n, K, T); only for problems over tokens."""
        problem = self.problem.formed()
        if problem.token is None or problem.layout is None:
            raise AttsvmError("support_tokens needs a problem over tokens; use `support` for your own rows.")
        n, K, T = problem.layout
        tight = torch.zeros(len(self), n * K, T, dtype=torch.bool, device=self.W.device)
        return tight.scatter_(-1, problem.token, self.support).reshape(-1, n, K, T)

    def save(self, path: PathLike, tokens: Tensor | None = None) -> None:
        """Write problem and solution to a .npz or .safetensors file, whole or not at all, with the selected tokens."""
        problem = self.problem.formed()
        arrays = {name: getattr(self, name) for name in _OWN} | {"status": self.codes}
        arrays |= {name: x for name in _PROBLEM if (x := getattr(problem, name)) is not None}
        arrays |= {"norm": self.norm, "margin": self.margin}
        if problem.token is not None:
            arrays["support_tokens"] = self.support_tokens
        if tokens is not None:
            arrays["tokens"] = tokens
        layout = None if problem.layout is None else list(problem.layout)
        write_arrays(path, arrays, {"format": SCHEMA.format, "geometry": facts_of(self.geometry), "layout": layout})

    @classmethod
    def load(cls, path: PathLike, *, geometry: Geometry | None = None) -> MaxMargin:
        """Read what `save` wrote; your own geometry is found by name if its class is defined, or can be given here."""
        arrays, facts = read_arrays(path, SCHEMA)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        try:
            layout = facts["layout"] and tuple(facts["layout"])
            problem = MarginProblem(**{name: tensors.get(name) for name in _PROBLEM}, layout=layout)  # type: ignore[arg-type]
            geometry = geometry or from_facts(Geometry, "geometry", facts["geometry"])
            own = {name: tensors[name] for name in _OWN}
            solved = tensors["status"] == Status.SOLVED
            if not bool(own["W"][solved].isfinite().all() and own["upper"][solved].isfinite().all()):
                raise AttsvmError("W must be finite where the status is solved, but it is not.")
            return cls(problem=problem, geometry=geometry, codes=tensors["status"], **own)
        except AttsvmError as error:
            raise AttsvmError(f"{path}: {error}") from error

    def plot(self, trial: int = 0, ax: Any = None) -> Any:
        """Draw W of an instance, entry by entry; returns matplotlib axes."""
        from attsvm.plots import draw_matrix

        if not 0 <= trial < len(self):
            raise AttsvmError(f"trial must be in 0..{len(self) - 1}, but got {trial}.")
        if not bool(self.norm[trial].isfinite()):
            raise AttsvmError(f"W must be known to be drawn, but instance {trial} is {self.status[trial]}.")
        count, name = int(self.support[trial].sum()), self.geometry.name
        title = f"{name} max-margin W: norm {self.norm[trial]:.4g}, {count} support rows"
        return draw_matrix(ax, self.W[trial], title)

    def rows(self) -> list[dict[str, Any]]:
        """Plain numbers and words, one row per instance."""
        names = ("norm", "margin", "lower", "upper", "gap", "violation", "iterations")
        columns = {name: getattr(self, name).tolist() for name in names}
        counts = self.support.flatten(1).sum(1).tolist()
        return [
            {"instance": b, "status": str(status)} | {name: columns[name][b] for name in names} | {"support": counts[b]}
            for b, status in enumerate(self.status)
        ]

    def to_dataframe(self) -> Any:
        """One row per instance: a pandas data frame if pandas is installed, else a pyarrow table."""
        rows = self.rows()
        return frame({name: [row[name] for row in rows] for name in rows[0]} if rows else {"instance": []})

    def _repr_html_(self) -> str:
        rows = [[row["instance"], row["status"], *(f"{row[name]:.6g}" for name in _SHOWN)] for row in self.rows()[:20]]
        more = f", {len(self)} instances" + (", the first 20" if len(self) > 20 else "")
        return html_table(rows, ("instance", "status", *_SHOWN), f"MaxMargin in {self.geometry.name}{more}")

    def __getitem__(self, trials: Any) -> MaxMargin:
        """Some of the instances, by number, slice, list or boolean mask; the first axis stays."""
        index = as_trials(trials, len(self), "instances").to(self.W.device)
        problem = self.problem.formed()
        picked = {name: None if (x := getattr(problem, name)) is None else x[index] for name in _PROBLEM}
        own = {name: getattr(self, name)[index] for name in ("codes", *_OWN)}
        return replace(self, problem=replace(problem, **picked), **own)

    def __iter__(self) -> Iterator[MaxMargin]:
        return (self[b] for b in range(len(self)))

    def __len__(self) -> int:
        return len(self.W)

    def __repr__(self) -> str:
        counts = ", ".join(f"{int((self.codes == s).sum())} {s}" for s in Status if bool((self.codes == s).any()))
        text = f"MaxMargin({self.geometry.name}, {len(self)} instances: {counts or 'none'}"
        if bool(self.solved.any()):
            norm, gap = self.norm[self.solved], self.gap[self.solved]
            text += f"; norm {norm.median().item():.6g} (median), gap ≤ {gap.max().item():.1e}"
        return text + ")"


_PROBLEM = ("A", "Z", "b", "equality", "present", "token", "A_low")
_OWN = ("W", "multipliers", "lower", "upper", "violation", "support", "iterations")
_SHOWN = ("norm", "margin", "gap", "iterations", "support")
