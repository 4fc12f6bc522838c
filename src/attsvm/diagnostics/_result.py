"""What a verdict holds, in tensors, plain numbers and one line."""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.diagnostics._limits import Limit
from attsvm.diagnostics._measures import by_margin, has_divergence
from attsvm.diagnostics._rates import Rate
from attsvm.diagnostics._signatures import ADVICE, Signature
from attsvm.diagnostics._theorems import Conditions, applicability
from attsvm.frames import frame, text_table
from attsvm.geometry import Frobenius, Geometry
from attsvm.pages import html_table
from attsvm.svm import Status


@dataclass(frozen=True, eq=False)
class HeadVerdict:
    """The head v of a joint run against the ℓp-SVM of the selected tokens; (B,) each."""

    status: list[Status]
    norm_mm: Tensor
    misalignment: Tensor
    error: Tensor
    norm: Tensor


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict on B trials; tensors (B,) unless said otherwise, NaN where a number is not known.

    prediction           what theory says about the rule's limit: `Limit`
    efficiency           by norm, the limit's first: margin of W over the largest possible, at equal norm
    geometry             norm of the predicted limit
    steps, tol           last step of the run; direction error up to which the limit counts as reached
    tokens (B, n, K)     selected at the end, and the ones of the prediction
    composite, decided   attention composes several tokens of a query (nonlinear heads: then the prediction is the SVM
                         of the selected sets); no softmax weight is between "masked" and "selected"
    finite               no NaN or ∞ in the final weights
    status, W_mm, norm_mm   the predicted SVM: `Status`, solution (B, d, e), its norm
    globally_optimal, locally_optimal   of the tokens, by their scores (in joint runs by the trained v)
    error                the direction error that `reached` is about: bregman for ℓp, misalignment for the nuclear
                         norm, svmeq_misalignment in composite trials; where the SVM has no rows 0, but NaN in
                         composite trials
    misalignment, bregman   1 − correlation, and directional Bregman divergence, of W and W_mm
    svmeq_misalignment   1 − correlation with W_fin + γ W_mm (nonlinear heads only)
    margin_ratio         margin of W/‖W‖ over the largest possible
    norm, rank           of the final W
    reached              error within tol, for ℓp misalignment too, and tokens locally optimal (or composite and
                         decided)
    head                 of joint runs
    conditions           by theorem and condition, whether it holds
    at, errors (R, B)    recorded steps (R,) and direction errors to W_mm there
    rate                 decay of the direction error over the recorded W
    step_convexity       largest η D_L/D_ψ of the recorded steps; ψ − ηL was convex enough where it is ≤ 1
    signature            `Signature`
    """

    prediction: Limit
    efficiency: dict[str, Tensor]
    parameterization: str
    geometry: Geometry
    normalize: bool
    steps: int
    tol: float
    tokens: Tensor
    composite: Tensor
    decided: Tensor
    finite: Tensor
    status: list[Status]
    W_mm: Tensor
    norm_mm: Tensor
    globally_optimal: Tensor
    locally_optimal: Tensor
    error: Tensor
    misalignment: Tensor
    bregman: Tensor
    svmeq_misalignment: Tensor
    margin_ratio: Tensor
    norm: Tensor
    rank: Tensor
    reached: Tensor
    head: HeadVerdict | None
    conditions: Conditions
    at: Tensor
    errors: Tensor
    rate: Rate
    step_convexity: Tensor
    signature: Tensor

    @property
    def limit(self) -> str:
        """The predicted limit in words."""
        name = f"{self.geometry.name} max-margin solution of the selected tokens"
        return name if self.head is None else f"{name}, and the {self.geometry.name} SVM of their labels for v"

    @property
    def error_name(self) -> str:
        if by_margin(self.geometry):
            return "1 - margin ratio"
        return "directional Bregman divergence" if has_divergence(self.geometry) else "1 - correlation"

    @property
    def theorems(self) -> dict[str, Tensor]:
        """By theorem: do all of its conditions hold? (B,)"""
        return {name: torch.stack(list(parts.values())).all(0) for name, parts in self.conditions.items()}

    def __len__(self) -> int:
        return len(self.reached)

    def summary(self) -> dict[str, Any]:
        """Plain numbers and strings about the whole batch; medians are over trials with a known value."""
        signatures = Counter(Signature(s).label for s in self.signature.tolist())
        found = [s for s in Signature if s.label in signatures]
        result = {
            "trials": len(self),
            "parameterization": self.parameterization,
            "limit": self.limit,
            "theory": {
                "evidence": str(self.prediction.evidence),
                "why": self.prediction.why,
                "caution": self.prediction.caution,
            },
            "steps": self.steps,
            "normalized steps": self.normalize,
            "reached": int(self.reached.sum()),
            "direction error": self.error_name,
            "tolerance": self.tol,
            "median direction error": _median(self.error),
            "largest direction error": _largest(self.error),
            "median misalignment": _median(self.misalignment),
            "median directional Bregman divergence": _median(self.bregman),
            "median margin ratio": _median(self.margin_ratio),
            "median margin efficiency": {norm: _median(share) for norm, share in self.efficiency.items()},
            "median norm": _median(self.norm),
            "feasible": int(self.norm_mm.isfinite().sum()),
            "globally optimal": int(self.globally_optimal.sum()),
            "locally optimal": int(self.locally_optimal.sum()),
            "composing several tokens": int(self.composite.sum()),
            "signatures": {s.label: signatures[s.label] for s in found},
            "advice": {s.label: ADVICE[s] for s in found},
            "theorems": {name: int(holds.sum()) for name, holds in self.theorems.items()},
            "conditions": {
                name: {part: int(holds.sum()) for part, holds in parts.items()}
                for name, parts in self.conditions.items()
            },
            "rate": {
                "median power of k": _median(self.rate.power),
                "median power of log k": _median(self.rate.log_power),
                "median excess over the theorem's rate": {
                    text: _median(excess) for text, excess in self.rate.excess.items()
                },
            },
        }
        if self.head is not None:
            result["head"] = {
                "feasible": int(self.head.norm_mm.isfinite().sum()),
                "median misalignment": _median(self.head.misalignment),
                "median directional Bregman divergence": _median(self.head.error),
            }
        if bool(self.composite.any()):
            result["median misalignment with W_svmeq"] = _median(self.svmeq_misalignment)
        return result

    def rows(self) -> list[dict[str, Any]]:
        """One dict of plain numbers and strings per trial."""
        numbers = {
            "error": self.error,
            "misalignment": self.misalignment,
            "bregman": self.bregman,
            "margin_ratio": self.margin_ratio,
            "norm": self.norm,
            "norm_mm": self.norm_mm,
            "rank": self.rank,
            "globally_optimal": self.globally_optimal,
            "locally_optimal": self.locally_optimal,
            "composite": self.composite,
            "svmeq_misalignment": self.svmeq_misalignment,
            "reached": self.reached,
            "rate_power": self.rate.power,
            "rate_log_power": self.rate.log_power,
            "step_convexity": self.step_convexity,
        }
        if self.head is not None:
            numbers |= {"v_misalignment": self.head.misalignment, "v_error": self.head.error}
        columns = {name: [_plain(x) for x in tensor.tolist()] for name, tensor in numbers.items()}
        theorems = {name: holds.tolist() for name, holds in self.theorems.items()}
        tokens, signature = self.tokens.tolist(), self.signature.tolist()
        return [
            {
                "trial": b,
                "tokens": tokens[b],
                "svm": str(self.status[b]),
                **{name: column[b] for name, column in columns.items()},
                "signature": Signature(signature[b]).label,
                "theorems": [name for name, holds in theorems.items() if holds[b]],
            }
            for b in range(len(self))
        ]

    def table(self) -> list[tuple[str, str]]:
        """The verdict in words: what is predicted, what was reached, under which theorem, and what to do."""
        summary, trials = self.summary(), len(self)
        both = has_divergence(self.geometry) and self.geometry != Frobenius()  # in ℓ2 they are the same
        measure = self.error_name + " and 1 - correlation" * both
        rows = [
            ("predicted limit", summary["limit"]),
            ("theory", str(self.prediction)),
            ("reached", f"{summary['reached']} of {trials} ({measure} ≤ {self.tol:g})"),
        ]
        rows += [(key, _number(summary[key])) for key in _NUMBERS]
        if len(self.efficiency) > 1:
            shares = (f"{norm} {_number(share)}" for norm, share in summary["median margin efficiency"].items())
            rows.append(("median share of the largest margin", ", ".join(shares)))
        rows += [(f"tokens {key}", f"{summary[key]} of {trials}") for key in _COUNTS]
        power = summary["rate"]["median power of k"]
        rows.append(("rate", _number(power, "error ~ k^{:.2f} over the last half (in log k)")))
        if self.head is not None:
            rows.append(("v: median direction error", _number(_median(self.head.error))))
        rows += applicability(self.conditions).items()
        for signature, count in summary["signatures"].items():
            if signature != Signature.REACHED.label:
                rows.append((signature, f"{count} of {trials}: {summary['advice'][signature]}"))
        return rows

    @property
    def title(self) -> str:
        return f"Verdict on {len(self)} trial{'s' * (len(self) != 1)} after {self.steps} step{'s' * (self.steps != 1)}"

    def __str__(self) -> str:
        return text_table(self.title, self.table())

    def _repr_html_(self) -> str:
        return html_table(self.table(), caption=self.title)

    def plot(self, ax: Any = None) -> Any:
        """Draw the direction error over the recorded steps with the tolerance; returns matplotlib axes."""
        from attsvm.plots import draw_curves

        title = f"{self.parameterization} → {self.geometry.name} SVM: {int(self.reached.sum())} of {len(self)} reached"
        ax = draw_curves(ax, self.at, {"": self.errors}, xlabel="step", ylabel=self.error_name, log=True, title=title)
        ax.axhline(self.tol, color="grey", ls=":", lw=1)
        return ax

    def to_dataframe(self) -> Any:
        """One row per trial: a pandas data frame if pandas is installed, else a pyarrow table."""
        rows = self.rows()
        return frame({name: [row[name] for row in rows] for name in rows[0]} if rows else {"trial": []})

    def to_json(self, indent: int | None = 2) -> str:
        """Summary and trials as JSON, null where a number is not known or not finite."""
        return json.dumps({"summary": self.summary(), "trials": self.rows()}, indent=indent, allow_nan=False)

    def __repr__(self) -> str:
        median = _median(self.error)
        error = "unknown" if median is None else f"{median:.2g}"
        counts = Counter(Signature(s).label for s in self.signature.tolist() if s != Signature.REACHED)
        rest = "".join(f", {number} {label}" for label, number in counts.most_common())
        return (
            f"Verdict({self.parameterization} → {self.geometry.name} SVM: {int(self.reached.sum())} of {len(self)} "
            f"trials reached{rest}; median {self.error_name} {error} after {self.steps} steps)"
        )


_NUMBERS = ("median direction error", "largest direction error", "median margin ratio", "median norm")
_COUNTS = ("feasible", "globally optimal", "locally optimal")


def _number(value: float | None, words: str = "{:.3g}") -> str:
    return "–" if value is None else words.format(value)


def _plain(x: float | int | bool) -> float | int | bool | None:
    return x if not isinstance(x, float) or math.isfinite(x) else None


def _median(x: Tensor) -> float | None:
    known = x[x.isfinite()]
    return known.median().item() if len(known) else None


def _largest(x: Tensor) -> float | None:
    known = x[x.isfinite()]
    return known.max().item() if len(known) else None
