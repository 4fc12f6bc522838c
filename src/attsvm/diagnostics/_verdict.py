"""The meeting of a trajectory and the SVM it should converge to."""

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.data import LinearHead
from attsvm.diagnostics._landscape import step_convexity
from attsvm.diagnostics._measures import (
    direction_error,
    directional_bregman,
    margin_ratio,
    misalignment,
    numerical_rank,
)
from attsvm.diagnostics._path import Path, TrajectoryLike, solve_sharply
from attsvm.diagnostics._predictions import best_combination
from attsvm.diagnostics._rates import fit_rate
from attsvm.diagnostics._report import HeadVerdict, Verdict
from attsvm.diagnostics._selection import is_globally_optimal, is_locally_optimal, selected_sets
from attsvm.diagnostics._signatures import Signature, diagnose, loss_rises, norm_stands_still, oscillates
from attsvm.diagnostics._theorems import Facts, theorem_conditions
from attsvm.geometry import Lp
from attsvm.svm import MaxMargin, att_svm, finite_part, gen_svm, head_svm

REACHED = 1e-2
"""Direction error up to which a limit counts as reached: a correlation of 0.99, which TF-as-SVM (Section 6) calls a
strong prediction. For p = 2 the directional Bregman divergence is the same number, 1 − correlation."""

STEPS_CHECKED = 16
"""Recorded steps, at most, on which the convexity of ψ − ηL is checked."""


@torch.no_grad()
def verdict(trajectory: TrajectoryLike, *, tol: float = REACHED, samples: int = 0, seed: int = 0) -> Verdict:
    """Judge a run: which limit is predicted, is it reached, under which theorem, how fast, and if not, why.

    The predicted limit is the max-margin solution, in the norm of the trajectory's geometry, for the tokens selected
    at the end; for a head that is not linear, whose attention may compose several tokens, (Gen-SVM) for the selected
    sets. The direction error is the directional Bregman divergence for ℓp, 1 − correlation for the nuclear norm; a
    trial has reached its limit if it is at most `tol` and the tokens are locally optimal (in joint runs, if v is also
    within `tol` of the ℓp-SVM of these tokens). Where several tokens are composed, W keeps a finite part: there the
    error is 1 − correlation with W_fin + γ W_mm, and the sets have to be decided.

    Records make it sharper: "norm" and "loss" tell a standing norm and too large a step, "W" gives rates,
    oscillations, and whether the cones of the theorems were entered. `samples` > 0 also looks into Assumption D and
    Assumption B of the joint theorem, with so many random cases a trial (see `assumption_d`, `assumption_b_joint`).
    """
    tol, samples = as_real("tol", tol, least=0), as_count("samples", samples, least=0)
    path = Path.of(trajectory)
    data, geometry, W, tokens = path.data, path.geometry, path.W, path.tokens

    solution, composite, decided, svmeq = _predicted(path)
    W_mm = torch.where(solution.solved[:, None, None], solution.W, 0.0)
    known = solution.solved & path.finite
    error = torch.where(composite, svmeq, _known(direction_error(W_mm, W, geometry), known))
    local = is_locally_optimal(data, tokens, solution) & ~composite
    head = _judge_head(path) if path.v is not None else None

    steps, recorded = path.recorded_W
    errors = _known(direction_error(W_mm, recorded, geometry), known)
    rate = fit_rate(steps, errors, geometry.p if isinstance(geometry, Lp) else None)
    convexity = _convexity(path)

    reached = (error <= tol) & (local | composite & decided)
    if head is not None:
        reached = reached & (head.bregman <= tol)
    facts = Facts(path, solution, _optimal(path, solution), local, convexity)
    # Near a minimum normalised steps are always too long: there the standing norm is the cause.
    jumped = (convexity > 1).any(0) & (not path.normalize)
    signature = diagnose(
        {
            Signature.NOT_FINITE: ~path.finite,
            Signature.INFEASIBLE: ~solution.solved,
            Signature.REACHED: reached,
            Signature.NORM_NOT_GROWING: norm_stands_still(path, solution.norm) & ~jumped,
            Signature.STEP_TOO_LARGE: loss_rises(path) | (convexity[-1:] > 1).any(0) | jumped,
            Signature.NOT_LOCALLY_OPTIMAL: ~local & ~composite,
            Signature.OSCILLATING: oscillates(steps, errors),
        }
    )
    return Verdict(
        parameterization=path.parameterization,
        geometry=geometry,
        normalize=path.normalize,
        steps=int(steps[-1]),
        tol=tol,
        tokens=tokens,
        composite=composite,
        decided=decided,
        finite=path.finite,
        status=solution.status,
        W_mm=solution.W,
        norm_mm=solution.norm,
        globally_optimal=is_globally_optimal(data, tokens),
        locally_optimal=local,
        error=error,
        misalignment=_known(misalignment(W_mm, W), known),
        bregman=_known(directional_bregman(W_mm, W, geometry), known),
        svmeq_misalignment=svmeq,
        margin_ratio=_known(margin_ratio(data, tokens, W, geometry, solution), path.finite & ~composite),
        norm=_known(geometry.norm(W), path.finite),
        rank=numerical_rank(W),
        reached=reached,
        head=head,
        conditions=theorem_conditions(facts, samples, seed),
        rate=rate,
        step_convexity=convexity.amax(0) if len(convexity) else torch.full_like(error, torch.nan),
        signature=signature,
    )


def _known(value: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, value, torch.nan)


def _predicted(path: Path) -> tuple[MaxMargin, Tensor, Tensor, Tensor]:
    """The predicted SVM; trials that compose several tokens, and whether their sets are decided; 1 − corr(W, W_svmeq).

    A linear head selects one token of a query in the limit, and a second weight above the threshold says only that
    the run is young. Other heads may select several.
    """
    data, geometry, W = path.data, path.geometry, path.W
    nothing = torch.zeros_like(path.finite)
    if isinstance(data.head, LinearHead):
        solution = solve_sharply(att_svm(data, path.tokens), geometry)
        return solution, nothing, ~nothing, torch.full(nothing.shape, torch.nan, dtype=W.dtype, device=W.device)
    weights = data.attention(W)
    sets = selected_sets(weights, allowed=data.mask)
    solution = solve_sharply(gen_svm(data, sets.selected), geometry)
    finite = solve_sharply(finite_part(data, weights, sets.selected), geometry)
    best, _ = best_combination(W, finite.W, solution.W)
    composite = (sets.selected.sum(-1) > 1).flatten(1).any(1) & path.finite
    return solution, composite, sets.decided, _known(misalignment(best, W), path.finite)


def _judge_head(path: Path) -> HeadVerdict:
    """v against the ℓp-SVM that separates the selected tokens by their labels."""
    assert path.v is not None
    solution = solve_sharply(head_svm(path.data, path.tokens), path.geometry)
    v, v_mm = path.v[..., None], torch.where(solution.solved[:, None, None], solution.W, 0.0)
    known = solution.solved & path.finite
    return HeadVerdict(
        status=solution.status,
        norm_mm=solution.norm,
        misalignment=_known(misalignment(v_mm, v), known),
        bregman=_known(directional_bregman(v_mm, v, path.geometry), known),
        norm=_known(path.geometry.norm(v), path.finite),
    )


def _optimal(path: Path, solution: MaxMargin) -> MaxMargin:
    """The SVM of the optimal tokens, which as a rule is that of the selected ones."""
    optimal = path.data.optimal_tokens()
    same = bool((optimal == path.tokens).all()) and isinstance(path.data.head, LinearHead)
    return solution if same else solve_sharply(att_svm(path.data, optimal), path.geometry)


def _convexity(path: Path) -> Tensor:
    """`step_convexity` (≤ 16, B) at recorded W of a run on W with one constant step size; empty for other runs.

    In joint runs the head moves as well, and only the last one is known: the check is made there.
    """
    _, W = path.recorded_W
    if path.parameterization == "KQ" or not isinstance(path.geometry, Lp) or path.lr is None:
        return path.W.new_zeros(0, len(path.finite))
    if path.parameterization == "joint":
        W = W[-1:]
    # Equally spaced among the records, the last one in any case.
    W = W[torch.linspace(len(W) - 1, 0, min(len(W), STEPS_CHECKED)).round().long().flip(0)]
    ratios = [step_convexity(path.data, path.geometry, w, path.lr, path.normalize, path.loss) for w in W]
    return torch.stack(ratios)
