"""What went wrong in a run, and what to do about it."""

import math
from enum import IntEnum

import torch
from torch import Tensor

from attsvm.dynamics import Trajectory

NORM_GROWTH = 0.1
"""‖W‖ grows like ‖W_mm‖ log k, so by ‖W_mm‖ log 2 while k doubles. Less than this fraction of that …"""
NORM_STANDS = 1e-2
"""… and less than this fraction of ‖W‖ itself is called not growing."""
LOSS_RISE = 1e-9
"""A relative rise of the loss between records above this is more than rounding: the loss should fall (Lemma 14)."""
OSCILLATION = math.log(1.5)
"""The divergence oscillates if its rises in the last half of the run (in log k) multiply to more than 1.5 …"""
TURNS = 3
"""… and it turns at least this often."""


class Signature(IntEnum):
    """How a trial ended; the first that applies."""

    NOT_FINITE = 0
    INFEASIBLE = 1
    NOT_SOLVED = 2
    REACHED = 3
    NORM_NOT_GROWING = 4
    STEP_TOO_LARGE = 5
    NOT_LOCALLY_OPTIMAL = 6
    OSCILLATING = 7
    TOO_EARLY = 8

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


ADVICE = {
    Signature.NOT_FINITE: "The weights left the range of the numbers: take normalised steps, or a smaller lr.",
    Signature.INFEASIBLE: "No W separates the selected tokens: mask equal ones (data.without_repeats()), or look for "
    "ties or too small a dimension.",
    Signature.NOT_SOLVED: "The max-margin problem of the selected tokens is too hard for float64, so its direction is "
    "not known: take p further from 1 and from infinity, or look for margins that are tiny beside the tokens.",
    Signature.REACHED: "The direction is that of the predicted max-margin solution.",
    Signature.NORM_NOT_GROWING: "The norm has stopped growing, so there is no direction to converge to: start "
    "nearer to zero (a smaller init scale) or inside the cone of an SVM solution (init=Near(W)), with a smaller lr.",
    Signature.STEP_TOO_LARGE: "The loss rises, or ψ − ηL is not convex on the steps: take an lr ten times smaller.",
    Signature.NOT_LOCALLY_OPTIMAL: "The selected tokens are not locally optimal, so not final: take more steps.",
    Signature.OSCILLATING: "The divergence goes up and down: take an lr ten times smaller.",
    Signature.TOO_EARLY: (
        "The direction is still on its way: take more steps. Those of gradient and mirror descent may grow with the "
        "norm (lr=Growing(), --growing 4); (K, Q) may have a tiny ridge (1e-100)."
    ),
}


def norm_stands_still(run: Trajectory, norm_mm: Tensor) -> Tensor:
    """Has ‖W‖ grown too little over the last doubling of the steps? (B,); False where the records do not tell."""
    norm, steps = run.recorded_norm, run.steps
    if norm is None or len(steps) < 2 or int(steps[-1]) < 2:
        return torch.zeros(len(run), dtype=torch.bool, device=run.W.device)
    half = int((steps <= steps[-1] // 2).sum()) - 1
    if half < 0:
        return torch.zeros(len(run), dtype=torch.bool, device=run.W.device)
    grown = norm[-1] - norm[half]
    elapsed = torch.log(steps[-1] / steps[half].clamp(min=1))
    expected = NORM_GROWTH * norm_mm.nan_to_num(0, 0, 0) * elapsed
    return (grown < expected) & (grown < NORM_STANDS * norm[-1])


def loss_rises(run: Trajectory) -> Tensor:
    """Does the recorded loss rise in the last half of the run, on the scale of log k? (B,)"""
    loss = run.records.get("loss")
    if loss is None:
        return torch.zeros(len(run), dtype=torch.bool, device=run.W.device)
    loss = loss[_late(run.steps)]
    return (loss[1:] > loss[:-1] + LOSS_RISE * loss[:-1].abs()).any(0)


def oscillates(steps: Tensor, divergence: Tensor) -> Tensor:
    """Does the divergence (R, B) go up and down in the last half of the run, on the scale of log k? (B,)"""
    log_D = divergence[_late(steps)].clamp_min(torch.finfo(divergence.dtype).tiny).log()
    change = log_D.diff(dim=0)
    up = change.clamp(min=0).sum(0)
    turns = (change[1:] * change[:-1] < 0).sum(0)
    return (up > OSCILLATION) & (turns >= TURNS)


def diagnose(applies: dict[Signature, Tensor]) -> Tensor:
    """The first signature (B,) that applies, in the order of `Signature`; TOO_EARLY if none does."""
    result = torch.full_like(next(iter(applies.values())), int(Signature.TOO_EARLY), dtype=torch.long)
    for signature in sorted(applies, reverse=True):
        result = torch.where(applies[signature], int(signature), result)
    return result


def _late(steps: Tensor) -> Tensor:
    """The last half of the run on the scale of log k, boolean (R,)."""
    return steps.double() >= steps[-1:].double().sqrt()
