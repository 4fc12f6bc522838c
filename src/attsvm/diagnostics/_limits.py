"""What theory says about the limit of a run: which margin, how well that is known, and what may prevent it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

from attsvm.data import LinearHead
from attsvm.dynamics import Adam, Growing, Lion, MirrorDescent, Muon, Rule, Steepest, Trajectory, limit_of
from attsvm.geometry import Frobenius, Geometry, Lp, Nuclear
from attsvm.named import is_users
from attsvm.objective import Logistic

FORGOTTEN = 30.0
"""Forgetting times after which Adam's second moment no longer shows in the direction (map-adam)."""
ROUNDING = 1e-9
"""Relative error of 1/(1 − β): a momentum of 0.95 is as long as an epoch of 20 steps."""


class Evidence(StrEnum):
    """How well a limit is known."""

    ATTENTION = "proved for attention"
    LINEAR = "proved for linear models only"
    CONJECTURED = "conjectured"
    NONE = "no direction predicted"


@dataclass(frozen=True)
class Limit:
    """The norm whose margin a run should maximise, how well that is known, and why; `caution` says what may keep this
    run from it."""

    geometry: Geometry
    evidence: Evidence
    why: str
    caution: str = ""

    def __str__(self) -> str:
        return f"{self.geometry.name} margin, {self.evidence}: {self.why}" + (
            f"; {self.caution}" if self.caution else ""
        )


def predicted_limit(run: Trajectory, norm_mm: Tensor) -> Limit:
    """What theory says about a run; `norm_mm` (B,) are the norms of the SVM solutions in the run's geometry."""
    limit = _limit(run, norm_mm)
    if not run.settings.get("mixed"):
        return limit
    changed = "the run changed its step size, loss, batches or ridge on the way, and only the last are judged"
    return replace(limit, caution="; ".join(filter(None, (limit.caution, changed))))


def _limit(run: Trajectory, norm_mm: Tensor) -> Limit:
    geometry, settings, rule = run.geometry, run.settings, run.rule
    decay = getattr(rule, "decay", 0.0)
    if decay > 0:
        why = f"decay keeps ‖W‖ ≤ {1 / decay:g}; W ends at a KKT point of the loss on that ball (map-decay)"
        return Limit(geometry, Evidence.NONE, why)
    if settings.get("ridge"):
        turns = Nuclear() if run.parameterization == "KQ" else Frobenius()  # the penalty is that of the blocks
        why = (
            "the penalty keeps W finite: it ends at a stationary point, whatever the rule; as ridge → 0 that turns to "
            f"the {turns.name} solution (map-decay)"
        )
        return Limit(geometry, Evidence.NONE, why)
    if settings.get("heads"):
        why = "every head goes to the nuclear solution of its own tokens, not W as a whole (heads-kq)"
        return Limit(geometry, Evidence.NONE, why)
    if not run.rule_known:
        return Limit(geometry, Evidence.NONE, "the optimizer is not known, and the norm was chosen")
    if run.parameterization == "KQ":
        plain = isinstance(rule, MirrorDescent | Steepest) and rule.geometry == Frobenius()
        if not plain or _momentum(rule):
            why = "nothing is known of (K, Q) under this rule; the norm is the one of gradient descent"
            return Limit(geometry, Evidence.NONE, why)
    predicted = Nuclear() if run.parameterization == "KQ" else limit_of(rule)
    if predicted != geometry and not (isinstance(predicted, Nuclear) and isinstance(geometry, Nuclear)):
        why = f"the norm was chosen; theory predicts {_name(predicted)} for this rule"
        return Limit(geometry, Evidence.NONE, why)
    if run.mini_batches is not None:
        return _of_batches(run, run.mini_batches["size"])
    if run.parameterization == "KQ":
        why = f"(K, Q) by gradient descent; {_of_path(run, 'TF-as-SVM Theorem 2')}"
        return Limit(geometry, Evidence.CONJECTURED, why)
    if run.parameterization == "joint":
        why = f"W and v together; {_of_path(run, 'mirror-descent Theorem 5')}"
        return Limit(geometry, Evidence.CONJECTURED, why)
    evidence, why = _of_rule(rule)
    missing = _unproved(run)
    if evidence is Evidence.ATTENTION and missing:
        why = f"the proofs need {missing} (TF-as-SVM Theorem 7, mirror-descent Theorem 4)"
        evidence = Evidence.CONJECTURED
    return Limit(geometry, evidence, why, caution(run, norm_mm))


def forgetting_time(beta2: float, eta: float, norm_mm: Tensor) -> Tensor:
    """Steps until Adam's second moment v has forgotten the start, given ‖W_mm‖_∞ and a constant step η.

    At the full step η the margin grows by ηγ per step, γ = 1/‖W_mm‖_∞, and the squared gradient falls by e^(−2ηγ). If
    that is faster than the memory's β2, old gradients fill v and shorten the step to a share c with
    ηγc = −½ log β2: the gradient then falls as fast as the memory. New gradients still add a share (1 − β2)c² of v per
    step. So after 1/((1 − β2)c²) steps v consists of them. A heuristic, which map-adam tests.
    """
    share = (-math.log(beta2) / 2 / eta * norm_mm).clamp(max=1.0)
    return 1 / ((1 - beta2) * share.square())


def outliving(momentum: float, eta: float, norm_mm: Tensor) -> Tensor:
    """ηγ/(−log β): above 1 gradients fall faster than the momentum forgets them, and it leads past the margin.

    Steps of constant size η raise the margin by ηγ each, γ = 1/‖W_mm‖.
    """
    return eta / norm_mm / -math.log(momentum)


def caution(run: Trajectory, norm_mm: Tensor) -> str:
    """What may keep the run from its limit, in words; empty if nothing is known to."""
    rule, eta = run.rule, run.constant_lr
    grows = any(rate["kind"] == Growing.name for rate in run.settings["lr"].values())
    if grows and run.normalized and limit_of(rule) == Lp(math.inf):
        return "steps that grow with W oscillate under rules like sign descent: take constant or shrinking ones"
    if grows and run.normalized and _momentum(rule):
        return "gradients fall faster than momentum forgets them where steps grow with W: take constant ones"
    known = norm_mm[norm_mm.isfinite() & (norm_mm > 0)]
    if not len(known) or not eta:
        return ""
    if isinstance(rule, Adam) and rule.eps == 0 and rule.beta2 > 0:
        time = forgetting_time(rule.beta2, eta, known).median().item()
        age = run.state.step / time
        if age < FORGOTTEN:
            return (
                f"β2 = {rule.beta2:g} at this step size needs about {FORGOTTEN * time:.1g} steps for its second "
                f"moment to forget the first gradients (this run: {age:.2g} of {FORGOTTEN:.0f} forgetting times)"
            )
        return ""
    momentum = _momentum(rule)
    if momentum and run.normalized:
        excess = outliving(momentum, eta, known).median().item()
        if excess > 1:
            return (
                f"gradients fall {excess:.2g} times as fast as the momentum forgets them: take lr below "
                f"{eta / excess:.2g}"
            )
    return ""


def _of_batches(run: Trajectory, size: int) -> Limit:
    rule, geometry = run.rule, run.geometry
    if not run.normalized and isinstance(rule, MirrorDescent | Steepest):
        why = "plain steps on mini-batches keep the limit of the whole gradient (map-batch)"
        linear = geometry == Frobenius() and run.parameterization == "W"
        return Limit(geometry, Evidence.LINEAR if linear else Evidence.CONJECTURED, why)
    if momentum := _momentum(rule):
        epoch, memory = run.data.n / size, 1 / (1 - momentum)
        if memory < epoch * (1 - ROUNDING):
            why = f"momentum shorter than an epoch: it lasts 1/(1 − β) = {memory:.3g} steps, an epoch {epoch:.3g}"
            return Limit(geometry, Evidence.NONE, why)
        why = "momentum over an epoch, before the normalisation, restores the limit of the whole gradient (map-batch)"
        return Limit(geometry, Evidence.CONJECTURED, why)
    why = "normalised steps on mini-batches weigh all samples alike and leave this margin (map-batch)"
    return Limit(geometry, Evidence.NONE, why)


def _of_path(run: Trajectory, theorem: str) -> str:
    """What is known of the regularization path of factors, or of W and v."""
    if run.parameterization == "joint":
        met = {
            "an ℓp norm with 1 < p < ∞": isinstance(run.geometry, Lp) and run.geometry.smooth,
            "the logistic loss": run.loss == Logistic(),
        }
    else:
        met = {"Assumption A": run.loss.bounded_slopes, "a loss for every query": not run.loss.couples}
    missing = " and ".join(need for need, holds in met.items() if not holds)
    known = f"the proof for regularization paths needs {missing}" if missing else "proved for the regularization path"
    return f"{known} ({theorem})"


def _unproved(run: Trajectory) -> str:
    """What the theorems on descent ask for and this run lacks; where settings changed, steps are those of the last."""
    met = {
        "a linear head": isinstance(run.data.head, LinearHead),
        "Assumption A": run.loss.bounded_slopes,
        "a loss for every query": not run.loss.couples,
        "steps of one size": all(rate["kind"] in ("constant", "unknown") for rate in run.settings["lr"].values()),
    }
    return " and ".join(need for need, holds in met.items() if not holds)


def _of_rule(rule: Rule) -> tuple[Evidence, str]:
    if is_users(rule):
        return Evidence.CONJECTURED, "the rule says so"
    if isinstance(rule, MirrorDescent):
        if not isinstance(rule.geometry, Lp):
            return Evidence.CONJECTURED, "mirror descent with a potential other than that of ℓp"
        if not rule.normalize:
            why = "for small steps near a locally optimal direction (TF-as-SVM Theorem 7, mirror-descent Theorem 4)"
            return Evidence.ATTENTION, why
        return Evidence.LINEAR, "normalised mirror descent (map-rules)"
    if isinstance(rule, Steepest):
        if rule.geometry == Frobenius() and not rule.normalize and not rule.momentum:
            return Evidence.ATTENTION, "for small steps, near a locally optimal direction (TF-as-SVM Theorem 7)"
        kind = "steepest descent" + (" with momentum" if rule.momentum else "")
        return Evidence.LINEAR, f"{kind} in this norm (map-rules)"
    if isinstance(rule, Adam):
        if rule.beta1 > rule.beta2:
            unbounded = "; with β1 > √β2, as here, steps may grow without bound" * (rule.beta1 > math.sqrt(rule.beta2))
            return Evidence.CONJECTURED, "the proofs need β1 ≤ β2" + unbounded
        if rule.eps > 0:
            why = f"once gradients are below ε = {rule.eps:g} the step is that of gradient descent; until then the "
            return Evidence.LINEAR, why + "direction is that of ℓ∞ (map-adam)"
        return Evidence.LINEAR, "for decreasing steps and ε = 0 (map-adam)"
    if isinstance(rule, Muon):
        if rule.newton_schulz:
            return Evidence.CONJECTURED, "Newton–Schulz steps leave singular values near 1, and stop short (map-muon)"
        return Evidence.LINEAR, "steepest descent with momentum in this norm (map-muon)"
    return Evidence.CONJECTURED, "sign descent with momentum of two memories (map-adam)"  # Lion


def _momentum(rule: Rule) -> float:
    """β of the momentum that a rule normalises, 0 if there is none."""
    if isinstance(rule, Lion):
        return rule.beta2
    return rule.momentum if isinstance(rule, Steepest | Muon) else 0.0


def _name(geometry: Geometry | None) -> str:
    return "nothing" if geometry is None else f"the {geometry.name} margin"
