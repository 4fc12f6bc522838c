"""A trajectory against the SVM that it should converge to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.data import LinearHead
from attsvm.diagnostics._judged import judged, solve_sharply
from attsvm.diagnostics._limits import predicted_limit
from attsvm.diagnostics._measures import (
    by_margin,
    direction_error,
    directional_bregman,
    has_divergence,
    margin_ratio,
    misalignment,
    numerical_rank,
)
from attsvm.diagnostics._predictions import best_combination
from attsvm.diagnostics._rates import fit_rate
from attsvm.diagnostics._result import HeadVerdict, Verdict
from attsvm.diagnostics._selection import is_globally_optimal, is_locally_optimal, selected_sets
from attsvm.diagnostics._signatures import Signature, diagnose, loss_rises, norm_stands_still, oscillates
from attsvm.diagnostics._theorems import Facts, theorem_conditions
from attsvm.dynamics import MirrorDescent, Trajectory
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, parse_geometry
from attsvm.objective import step_convexity
from attsvm.svm import MaxMargin, att_svm, finite_part, gen_svm, head_svm, solve
from attsvm.tolerances import REACHED

STEPS_CHECKED = 16
"""Recorded steps, at most, on which the convexity of ψ − ηL is checked."""


@torch.no_grad()
def verdict(
    run: Trajectory,
    *,
    tol: float = REACHED,
    samples: int = 0,
    seed: int = 0,
    norms: Sequence[Geometry | str | float] | None = None,
) -> Verdict:
    """Judge a run: which limit is predicted, is it reached, under which theorem, how fast, and if not, why.

    The predicted limit is the max-margin solution, in the norm of the run's geometry, for the tokens selected at the
    end. With a head that is not linear, attention may compose several tokens: then it is (Gen-SVM) for the selected
    sets.

    The direction error is the directional Bregman divergence for ℓp with 1 < p < ∞, and 1 − correlation for the nuclear
    norm. For norms whose optimum need not be unique (ℓ1, ℓ∞, spectral, groups) it is 1 − margin ratio. It is 0 where
    the SVM asks nothing, as no query has a second token. A trial has reached its limit if the error is at most `tol`
    and the tokens are locally optimal. Where the error is a divergence, 1 − correlation must be at most `tol`, too: for
    p near 1 or large the divergence hardly sees most directions. In joint runs v must also be within `tol` of the
    ℓp-SVM of these tokens, by both. Where several tokens are composed, W keeps a finite part. There the error is 1 −
    correlation with W_fin + γ W_mm, and the sets must be decided; where they leave no token out, it is NaN, since every
    W would do.

    Records make the verdict sharper. "norm" and "loss" reveal a norm that stops growing and steps that are too large.
    "W" gives rates, oscillations, and whether the cones of the theorems were entered. `samples` > 0 also checks
    Assumption D and Assumption B of the joint theorem on that many random cases per trial (`assumption_d`,
    `assumption_b_joint`).

    `limit` says what theory knows about the rule's limit. `efficiency` gives the margin as a share of the largest
    possible, in the predicted norm and in the norms given here (by default ℓ2, ℓ∞ and spectral for rules other than
    mirror descent).
    """
    tol, samples = as_real("tol", tol, least=0), as_count("samples", samples, least=0)
    run, finite = judged(run)
    data, geometry, W, tokens = run.data, run.geometry, run.W, run.tokens
    if data.head is None:
        raise AttsvmError("data must have a head to be judged, but it is None.")
    geometry.require("dual_norm", to="be judged by")

    solution, composite, decided, svmeq = _predicted(run, finite)
    W_mm = torch.where(solution.solved[:, None, None], solution.W, 0.0)
    # Where several tokens are selected and none is left out, W_fin reproduces any W, and nothing is predicted.
    known = solution.solved & finite & ~(composite & (solution.norm == 0))
    error = _known(torch.where(composite, svmeq, _error(run, solution, W_mm, W)), known)
    local = is_locally_optimal(data, tokens, solution) & ~composite
    head = _judge_head(run, finite) if run.v is not None else None

    steps, recorded = run.recorded_W
    errors = _known(torch.stack([_error(run, solution, W_mm, at) for at in recorded]), known)
    rate = fit_rate(steps, errors, getattr(geometry, "p", None) if has_divergence(geometry) else None)
    convexity = _convexity(run)

    misaligned = _known(torch.where(solution.norm == 0, 0.0, misalignment(W_mm, W)), known)
    aligned = (misaligned <= tol) | by_margin(geometry)
    reached = (error <= tol) & (local & aligned | composite & decided)
    if head is not None:
        reached = reached & (head.error <= tol) & (head.misalignment <= tol)
    facts = Facts(run, solution, _optimal(run, solution), local, convexity)
    # Near a minimum normalised steps are always too long: there the cause is the norm that stands still.
    jumped = (convexity > 1).any(0) & (not run.normalized)
    # For p < 2 they are so far out, too, where ψ is nearly flat, and yet they reach the limit.
    long = (convexity[-1:] > 1).any(0) & (not run.normalized or getattr(geometry, "p", 2) >= 2)
    signature = diagnose(
        {
            Signature.NOT_FINITE: ~finite,
            Signature.INFEASIBLE: solution.infeasible,
            Signature.NOT_SOLVED: solution.open,
            Signature.REACHED: reached,
            Signature.NORM_NOT_GROWING: norm_stands_still(run, solution.norm) & ~jumped,
            Signature.STEP_TOO_LARGE: loss_rises(run) | long | jumped,
            Signature.NOT_LOCALLY_OPTIMAL: ~local & ~composite,
            Signature.OSCILLATING: oscillates(steps, errors),
        }
    )
    ratio = _known(margin_ratio(data, tokens, W, geometry, solution), finite & ~composite)
    if norms is None:
        norms = () if isinstance(run.rule, MirrorDescent) and run.rule_known else ("l2", "linf", "spectral")
    shares = {geometry: ratio}
    for other in map(parse_geometry, norms):
        if other not in shares:
            theirs = solve(solution.problem, other)
            shares[other] = _known(margin_ratio(data, tokens, W, other, theirs), finite & ~composite)
    efficiency: dict[str, Tensor] = {}
    for other, share in shares.items():  # norms with parameters may have one name
        number = 1 + sum(name.partition(" #")[0] == other.name for name in efficiency)
        efficiency[other.name if number == 1 else f"{other.name} #{number}"] = share
    return Verdict(
        prediction=predicted_limit(run, solution.norm),
        efficiency=efficiency,
        parameterization=run.parameterization,
        geometry=geometry,
        normalize=run.normalized,
        steps=int(steps[-1]),
        tol=tol,
        tokens=tokens,
        composite=composite,
        decided=decided,
        finite=finite,
        status=solution.status,
        W_mm=solution.W,
        norm_mm=solution.norm,
        globally_optimal=is_globally_optimal(data, tokens),
        locally_optimal=local,
        error=error,
        misalignment=misaligned,
        bregman=_known(directional_bregman(W_mm, W, geometry), known) if geometry.has("mirror") else error * torch.nan,
        svmeq_misalignment=svmeq,
        margin_ratio=ratio,
        norm=_known(geometry.norm(W), finite),
        rank=numerical_rank(W),
        reached=reached,
        head=head,
        conditions=theorem_conditions(facts, samples, seed),
        at=steps,
        errors=errors,
        rate=rate,
        step_convexity=convexity.amax(0) if len(convexity) else torch.full_like(error, torch.nan),
        signature=signature,
    )


def _error(run: Trajectory, solution: MaxMargin, W_mm: Tensor, W: Tensor) -> Tensor:
    """How far W is from its limit (B,): by direction, or by margin where the limit need not be one direction.

    It is 0 where the SVM has no rows: every W solves it, and W_mm = 0 has no direction.
    """
    if by_margin(run.geometry):
        return 1 - margin_ratio(run.data, run.tokens, W, run.geometry, solution)
    return torch.where(solution.norm == 0, 0.0, direction_error(W_mm, W, run.geometry))


def _known(value: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, value, torch.nan)


def _predicted(run: Trajectory, finite: Tensor) -> tuple[MaxMargin, Tensor, Tensor, Tensor]:
    """The predicted SVM; trials that compose several tokens, and whether their sets are decided; 1 − corr(W, W_svmeq).

    A linear head selects one token per query in the limit; a second weight above the threshold only says that the run
    is young. Other heads may select several.
    """
    data, geometry, W = run.data, run.geometry, run.W
    nothing = torch.zeros_like(finite)
    if isinstance(data.head, LinearHead):
        solution = solve_sharply(att_svm(data, run.tokens), geometry)
        return solution, nothing, ~nothing, torch.full(nothing.shape, torch.nan, dtype=W.dtype, device=W.device)
    weights = data.attention(W)
    sets = selected_sets(weights, allowed=data.mask)
    solution = solve_sharply(gen_svm(data, sets.selected), geometry)
    part = solve_sharply(finite_part(data, weights, sets.selected), geometry)
    best, _ = best_combination(W, part.W, solution.W)
    composite = (sets.selected.sum(-1) > 1).flatten(1).any(1) & finite
    return solution, composite, sets.decided, _known(misalignment(best, W), finite)


def _judge_head(run: Trajectory, finite: Tensor) -> HeadVerdict:
    """v against the ℓp-SVM that separates the selected tokens by their labels."""
    assert run.v is not None
    solution = solve_sharply(head_svm(run.data, run.tokens), run.geometry)
    v, v_mm = run.v[..., None], torch.where(solution.solved[:, None, None], solution.W, 0.0)
    known = solution.solved & finite
    return HeadVerdict(
        status=solution.status,
        norm_mm=solution.norm,
        misalignment=_known(misalignment(v_mm, v), known),
        error=_known(direction_error(v_mm, v, run.geometry), known),
        norm=_known(run.geometry.norm(v), finite),
    )


def _optimal(run: Trajectory, solution: MaxMargin) -> MaxMargin:
    """The SVM of the optimal tokens, which usually is that of the selected ones."""
    optimal = run.data.optimal_tokens()
    same = bool((optimal == run.tokens).all()) and isinstance(run.data.head, LinearHead)
    return solution if same else solve_sharply(att_svm(run.data, optimal), run.geometry)


def _convexity(run: Trajectory) -> Tensor:
    """`step_convexity` (≤ 16, B) at recorded W of mirror descent on W with one constant step size; else empty.

    In joint runs the head moves as well, and only its last value is known: the check is made there.
    """
    _, W = run.recorded_W
    lr, rule = run.constant_lr, run.rule
    if type(rule) is not MirrorDescent or not has_divergence(rule.geometry):
        return run.W.new_zeros(0, len(run))
    if lr is None or run.parameterization == "KQ" or run.loss.couples:
        return run.W.new_zeros(0, len(run))
    if run.parameterization == "joint":
        W = W[-1:]
    # Equally spaced among the records, the last one in any case.
    W = W[torch.linspace(len(W) - 1, 0, min(len(W), STEPS_CHECKED)).round().long().flip(0)]
    return torch.stack([step_convexity(run.data, rule.geometry, w, lr, run.normalized, run.loss) for w in W])
