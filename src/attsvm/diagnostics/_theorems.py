"""The theorems that apply to a kind of run, and which of their conditions the run meets.

The conditions listed are those under which a theorem is true. They are not always the printed ones; where they differ,
docs/papers.md has the counter-example and the proof.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attsvm.data import LinearHead
from attsvm.diagnostics._assumptions import assumption_b1, assumption_b2, assumption_c, assumption_e
from attsvm.diagnostics._combinatorial import assumption_b_joint, assumption_d
from attsvm.diagnostics._cones import in_C, in_C_mu
from attsvm.diagnostics._constants import constants, excess_loss, lipschitz_constant, loss_barrier, radius
from attsvm.diagnostics._selection import has_unique_optimum
from attsvm.dynamics import MirrorDescent, Trajectory
from attsvm.geometry import Frobenius, Lp
from attsvm.objective import Logistic, gradient
from attsvm.svm import MaxMargin

Conditions = dict[str, dict[str, Tensor]]
"""By theorem, by condition: does it hold (B,)?"""

FEASIBLE = "TF-as-SVM Theorem 8 (every SVM feasible)"
RP = "TF-as-SVM Theorem 2 (regularization path)"
NORM = "TF-as-SVM Theorem 3 (norm diverges)"
SCORES = "TF-as-SVM Theorem 4 (global direction)"
FIRST_STEP = "TF-as-SVM Theorem 6 (global direction)"
BARRIER = "loss below the barrier, the proof of Theorem 6 (global direction)"
LOCAL = "TF-as-SVM Theorem 7 (local direction)"
CONJECTURE = "TF-as-SVM Section 5.2 (conjectured global direction)"
LP_RP = "mirror-descent Theorem 1 (regularization path)"
LP_LOCAL = "mirror-descent Theorems 2 to 4 (local direction and rate)"
JOINT_RP = "mirror-descent Theorem 5 (joint regularization path)"


@dataclass(frozen=True, eq=False)
class Facts:
    """What the conditions are read off: the run, the SVM of its selected tokens, that of the optimal tokens, whether
    the selected ones are locally optimal (B,), and `step_convexity` (R, B) at recorded W."""

    run: Trajectory
    solution: MaxMargin
    optimal: MaxMargin
    local: Tensor
    convexity: Tensor

    def everywhere(self, holds: bool) -> Tensor:
        """A condition that is the same for all trials."""
        return torch.full_like(self.local, holds)

    @cached_property
    def is_linear(self) -> bool:
        return isinstance(self.run.data.head, LinearHead)

    @cached_property
    def loss_and_head(self) -> dict[str, Tensor]:
        return {"linear head": self.everywhere(self.is_linear)} | self.loss

    @cached_property
    def loss(self) -> dict[str, Tensor]:
        return {"Assumption A": self.everywhere(self.run.loss.bounded_slopes)}

    @cached_property
    def unique(self) -> dict[str, Tensor]:
        return {"unique optimal tokens": has_unique_optimum(self.run.data)}

    @cached_property
    def feasible(self) -> dict[str, Tensor]:
        """Where no query has a second token, W stays where it is and has no direction."""
        return {"optimal SVM feasible": self.optimal.solved, "a query with a second token": self.optimal.norm > 0}

    @cached_property
    def plain_step(self) -> dict[str, Tensor]:
        """What the theorems on descent ask of the rule: one constant step, along the gradient of the loss itself."""
        run, rule = self.run, self.run.rule
        mirror = type(rule) is MirrorDescent  # a user's subclass may step otherwise
        plain = mirror and not run.normalized and (run.constant_lr or 0) > 0
        plain = plain and run.mini_batches is None and run.settings.get("ridge") == 0
        return {
            "mirror descent in the norm of the limit": self.everywhere(mirror and rule.geometry == run.geometry),
            "plain steps of one size": self.everywhere(plain),
        }

    @cached_property
    def lr(self) -> float:
        return math.inf if self.run.constant_lr is None else self.run.constant_lr


def applicability(conditions: Conditions) -> dict[str, str]:
    """By theorem, in words: "applies", "does not apply: …" with the conditions that fail, or in how many trials."""
    found = {}
    for name, parts in conditions.items():
        holds = torch.stack(list(parts.values()))
        trials, applies = holds.shape[1], int(holds.all(0).sum())
        failed = {part: int((~here).sum()) for part, here in parts.items()}
        if not trials:
            found[name] = "says nothing of 0 trials"
        elif applies == trials:
            found[name] = "applies"
        elif applies == 0:
            # A condition that fails everywhere is reason enough; otherwise all that fail somewhere are named.
            everywhere = [part for part, count in failed.items() if count == trials]
            reasons = everywhere or [
                f"{part} (in {count} of {trials} trials)" for part, count in failed.items() if count
            ]
            found[name] = f"does not apply: not {', not '.join(reasons)}"
        else:
            reasons = [f"not {part} in {count}" for part, count in failed.items() if count]
            found[name] = f"applies in {applies} of {trials} trials: {', '.join(reasons)}"
    return found


def theorem_conditions(facts: Facts, samples: int, seed: int) -> Conditions:
    """The conditions of every theorem about this kind of run.

    Assumption D and Assumption B of the joint theorem are checked only with `samples` > 0; otherwise their theorems are
    left out. Theorem 5 of TF-as-SVM, on almost equal scores, is left out too: it needs one query, as
    Theorem 4 does, and names no bound that could be checked.
    """
    run = facts.run
    data, geometry = run.data, run.geometry
    # "Almost all data" of the theorem: these ranks are what its proof uses.
    differences = data.X[:, :, 1:] - data.X[:, :, :1]
    independent = torch.linalg.matrix_rank(differences).eq(data.T - 1).all(1) if data.T > 1 else facts.everywhere(True)
    result: Conditions = {
        FEASIBLE: {
            "token differences independent (d ≥ T − 1)": independent,
            "queries independent (e ≥ nK)": torch.linalg.matrix_rank(data.Z.flatten(1, 2)) == data.n * data.K,
        }
    }
    if run.loss.couples:  # the theorems are about a loss for every query
        return result
    is_lp = isinstance(geometry, Lp) and geometry.smooth
    if run.parameterization == "joint":
        return result | (_joint(facts, samples, seed) if samples and is_lp else {})
    paths = facts.loss | facts.unique | facts.feasible
    paths |= {"Assumption E": assumption_e(data, data.optimal_tokens()).holds}
    if run.parameterization == "KQ" and run.settings.get("heads"):
        return result  # the theorem is about one K and one Q
    if run.parameterization == "KQ":
        width = run.settings.get("m")
        wide = width is None or width >= min(data.n * data.K, data.d, data.e)
        return result | {RP: paths | {"m ≥ min(nK, d, e)": facts.everywhere(wide)}}
    if is_lp:
        cone, cone_mu = _in_cones(facts)
        result |= {LP_RP: paths, LP_LOCAL: _mirror_descent(facts, cone)}
        if geometry == Frobenius():
            result |= {RP: paths} | _gradient_descent(facts, cone_mu, samples, seed)
    return result


def _joint(facts: Facts, samples: int, seed: int) -> Conditions:
    run = facts.run
    check = assumption_b_joint(run.data, run.tokens, run.geometry, samples=samples, seed=seed)
    return {
        JOINT_RP: {
            "logistic loss": facts.everywhere(run.loss == Logistic()),
            "SVM feasible": facts.solution.solved,
            "Assumption B (joint)": check.holds,
        }
    }


def _mirror_descent(facts: Facts, cone: Tensor) -> dict[str, Tensor]:
    # If the step is not known, its convexity cannot be checked either.
    convex = (facts.convexity <= 1).all(0) & (len(facts.convexity) > 0)
    return (
        facts.loss_and_head
        | {"tokens locally optimal": facts.local, "W in the cone C_{p,μ,R}": cone}
        | facts.plain_step
        | {"ψ − ηL convex on recorded steps": convex}
    )


def _gradient_descent(facts: Facts, cone: Tensor, samples: int, seed: int) -> Conditions:
    run, optimal, given = facts.run, facts.optimal, facts.loss_and_head
    data = run.data
    L_W = lipschitz_constant(data, run.loss) if facts.is_linear else torch.full_like(optimal.norm, math.inf)
    small = facts.plain_step | {"η ≤ 1/L_W": facts.lr * L_W <= 1}
    b1, b2 = assumption_b1(data, optimal).holds, assumption_b2(data).holds
    one_query = {"one query (n·K = 1)": facts.everywhere(data.n * data.K == 1)}
    crossed, crossed_first = _below_barrier(facts)
    first_step = {
        "Assumption C": assumption_c(data, run.loss).holds,
        "W(0) = 0": run.starts_at_zero,
        "first step large enough (L(W(1)) below the barrier)": crossed_first,
    }
    below = {"L(W) below the barrier at a recorded step": crossed}
    result = {
        NORM: given | {"Assumption B": b1 | b2} | facts.feasible | small,
        SCORES: given | {"Assumption B.2": b2} | one_query | facts.feasible | small,
        FIRST_STEP: given | facts.unique | facts.feasible | first_step | small,
        BARRIER: given | facts.unique | facts.feasible | below | small,
        LOCAL: given | {"tokens locally optimal": facts.local, "W in the cone C_{μ,R}": cone} | small,
    }
    if samples:
        d = assumption_d(data, run.geometry, samples=samples, seed=seed).holds
        conjectured = {"Assumption B.1": b1, "Assumption D": d}
        result[CONJECTURE] = given | facts.unique | facts.feasible | conjectured | facts.plain_step
    return result


def _below_barrier(facts: Facts) -> tuple[Tensor, Tensor]:
    """Was the loss below `loss_barrier` at a recorded step, and is it after one step from W = 0? (B,) each."""
    run = facts.run
    data, loss = run.data, run.loss
    if not facts.is_linear or not math.isfinite(facts.lr):
        return facts.everywhere(False), facts.everywhere(False)
    barrier = loss_barrier(data, loss)
    _, recorded = run.recorded_W
    crossed = torch.stack([excess_loss(data, W, loss) < barrier for W in recorded]).any(0)
    first = -facts.lr * gradient(data, torch.zeros_like(run.W), loss)
    finite = first.isfinite().flatten(1).all(1)
    return crossed, finite & (excess_loss(data, torch.where(finite[:, None, None], first, 0.0), loss) < barrier)


def _in_cones(facts: Facts) -> tuple[Tensor, Tensor]:
    """Was W ever, at a recorded step, in C_{p,μ₀/3,R} and in C_{μ,R}? (B,) each; the theorems apply from then on.

    TF-as-SVM gives no R for Theorem 7: that of mirror-descent is taken, whose argument is the same at p = 2.
    """
    run, solution = facts.run, facts.solution
    if not facts.is_linear:
        return facts.everywhere(False), facts.everywhere(False)
    c = constants(run.data, run.tokens, solution)
    R = radius(run.data, c, solution, run.loss, facts.lr)
    _, W = run.recorded_W
    W = W[(run.geometry.norm(W) >= R).any(1)]  # usually none is left
    W_mm = torch.where(solution.solved[:, None, None], solution.W, 0.0)
    cone = in_C(W, W_mm, c.mu0 / 3, R, run.geometry)
    return cone.any(0), in_C_mu(W, W_mm, c.mu, R).any(0)
