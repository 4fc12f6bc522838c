"""Conclusions of conjectures, as numbers that guide the search."""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.diagnostics import is_locally_optimal
from attsvm.dynamics import Trajectory
from attsvm.svm import att_svm, solve

DEEPEST = 50.0
"""A setback beyond this tells the search nothing more."""


def optimal_tokens_lead(run: Trajectory) -> Tensor:
    """Does the run go to the optimal tokens? (B,) A run that does not counts only once its tokens are final.

    Where wrong tokens lead that are locally optimal, and so attract, this is the smallest lead of an optimal token in
    logits, which is negative. Elsewhere it is e^r, where r ≤ 1 is the lowest ratio of a lead to its highest value so
    far, over the recorded W. A lead that only grows has r = 1; one that falls back has a smaller r. So r guides a
    search to runs that turn round for good. The lead itself would not: a small one may just be slow.
    """
    data, opt = run.data, run.data.optimal_tokens()[..., None]

    def leads(W: Tensor) -> Tensor:
        logits = data.logits(W)
        return (logits.gather(-1, opt)[..., 0] - logits.scatter(-1, opt, -torch.inf).amax(-1)).flatten(1)

    now = leads(run.W).amin(1)
    final = is_locally_optimal(data, run.tokens, solve(att_svm(data, run.tokens), tol=1e-10))
    history = torch.stack([leads(W) for W in run.recorded_W[1]])  # (R, B, n·K)
    peak = history.cummax(0).values
    ratio = torch.where(peak > 0, history / peak, 1.0).amin((0, 2)).clamp(-DEEPEST, 1.0)
    return torch.where(final & (now < 0), now, ratio.exp())
