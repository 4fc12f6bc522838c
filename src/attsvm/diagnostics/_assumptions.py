"""The papers' assumptions as checks: whether they hold, trial by trial, and by how much.

Assumptions A to E are those of TF-as-SVM; D, and B of the joint theorem, are in `_combinatorial`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_count
from attsvm.data import TokenData
from attsvm.diagnostics._measures import margins
from attsvm.diagnostics._selection import has_unique_optimum, low_high, score_bounds
from attsvm.objective import as_loss, gradient
from attsvm.svm import MaxMargin

MEAN_MARGIN = 1.1
"""Mean margin of the non-optimal tokens below which TF-as-SVM (Figure 5) lets B.1 count as satisfied."""


@dataclass(frozen=True, eq=False)
class Condition:
    """An assumption: does it hold (B,), the quantity behind it (B,), and how it was established.

    `samples` is None for an exact check. Otherwise it is the number of cases tried per trial, and True means that none
    of them was a counter-example.
    """

    name: str
    holds: Tensor
    value: Tensor
    meaning: str
    samples: int | None = None

    def __repr__(self) -> str:
        how = "exact" if self.samples is None else f"{self.samples} samples"
        return f"Condition({self.name}: holds in {int(self.holds.sum())} of {len(self.holds)} trials, {how})"


def assumption_a(loss: Any) -> bool:
    """Assumption A, ℓ′ bounded and Lipschitz on bounded intervals: all three losses of the papers obey it.

    Your own loss says so by `bounded_slopes`. The constants M₀ and M₁ are `loss_constants`.
    """
    return as_loss(loss).bounded_slopes


def assumption_b1(data: TokenData, solution: MaxMargin, *, as_in_paper: bool = False) -> Condition:
    """B.1: the optimal tokens are unique and all other tokens are support tokens of their SVM, `solution`.

    With `as_in_paper` the mean margin below 1.1 decides, as in Figure 5.
    """
    others = data.mask.scatter(-1, data.optimal_tokens()[..., None], False)
    W = torch.where(solution.solved[:, None, None], solution.W, 0.0)
    total = margins(data, data.optimal_tokens(), W).masked_fill(~others, 0.0).sum((1, 2, 3))
    count = others.sum((1, 2, 3))
    mean = torch.where(solution.solved, total / count.clamp(min=1), torch.nan)
    mean = torch.where(count > 0, mean, 1.0)
    tight = mean < MEAN_MARGIN if as_in_paper else (solution.support_tokens | ~others).flatten(1).all(1)
    holds = tight & solution.solved & has_unique_optimum(data)
    return Condition("B.1", holds, mean, "mean margin of the non-optimal tokens (1: all are support tokens)")


def assumption_b2(data: TokenData) -> Condition:
    """B.2: the optimal tokens are unique and in each query all other tokens have the same score, up to rounding."""
    others = data.mask.scatter(-1, data.optimal_tokens()[..., None], False)

    def spread(low: Tensor, high: Tensor) -> Tensor:
        highest, lowest = low.masked_fill(~others, -torch.inf).amax(-1), high.masked_fill(~others, torch.inf).amin(-1)
        return torch.where(others.any(-1), highest - lowest, 0.0).amax((1, 2))

    scores = data.scores()
    holds = (spread(*score_bounds(data)) <= 0) & has_unique_optimum(data)
    return Condition("B.2", holds, spread(scores, scores), "largest difference of two non-optimal scores of a query")


def assumption_c(data: TokenData, loss: Any = "logistic") -> Condition:
    """C: the first gradient step from W = 0 separates, (x_t − x_opt)ᵀ ∇L(0) z > 0 for all non-optimal tokens.

    The value is NaN where ∇L(0) is not finite.
    """
    G = gradient(data, data.X.new_zeros(data.B, data.d, data.e), loss)
    finite = G.isfinite().flatten(1).all(1)
    smallest = margins(data, data.optimal_tokens(), -torch.where(finite[:, None, None], G, 0.0)).amin((1, 2, 3))
    smallest = torch.where(finite, smallest, torch.nan)
    return Condition("C", smallest > 0, smallest, "smallest (x_t − x_opt)ᵀ ∇L(0) z")


def assumption_e(data: TokenData, tokens: Any, *, samples: int = 4096, seed: int = 0) -> Condition:
    """E: mixtures x(s) of α and low-score tokens obey Y h(x(s)) ≤ γ_α − c(1 − s_α) for some c > 0.

    The value is the largest such c, over all queries, +∞ where no query has a low-score token. It is exact where Y h
    is convex (the worst mixtures are the tokens themselves, c = γ_α − max γ_t, (87)) or concave (the worst ones are
    near α, c = −max ∂Y h(x_α)(x_t − x_α)): linear and quadratic heads, ReLU heads with output weights of one sign.
    Otherwise `samples` random mixtures per query are tried, and c is an upper bound.
    """
    tokens = data.check_tokens(tokens)
    low, _ = low_high(data, tokens)
    scores = data.scores()
    alpha = scores.gather(-1, tokens[..., None])
    convex = (alpha - scores).masked_fill(~low, torch.inf).amin(-1)

    head = data.head
    assert head is not None  # data.scores() has one
    index = tokens[..., None].expand(-1, -1, -1, data.d)
    x_alpha = data.X.gather(2, index)
    slope = data.Y[..., None] * head.grad(x_alpha[:, :, :, None])[:, :, :, 0]
    rise = torch.einsum("bntd,bnkd->bnkt", data.X, slope) - (slope * x_alpha).sum(-1, keepdim=True)
    concave = (-rise).masked_fill(~low, torch.inf).amin(-1)

    bend = data.Y * head.bend().to(data.Y)[:, None, :]  # NaN where it has no sign, or an unknown one
    c = torch.where(bend > 0, convex, torch.where(bend < 0, concave, torch.minimum(convex, concave)))
    unsigned = bend.isnan()
    if bool(unsigned.any()):
        drawn = _sampled_c(data, tokens, low, as_count("samples", samples), seed)
        c = torch.where(unsigned, torch.minimum(c, drawn), c)
    value = c.amin((1, 2))
    used = samples if bool(unsigned.any()) else None
    return Condition("E", value > 0, value, "largest c with Y h(x(s)) ≤ γ_α − c(1 − s_α)", used)


def _sampled_c(data: TokenData, tokens: Tensor, low: Tensor, samples: int, seed: int) -> Tensor:
    """Smallest (γ_α − Y h(x(s)))/(1 − s_α) over random mixtures, (B, n, K)."""
    assert data.head is not None
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(samples, data.T, dtype=torch.float64).exponential_(generator=generator).to(data.X)
    share = torch.rand(samples, generator=generator, dtype=torch.float64).to(data.X)[:, None]  # 1 − s_α
    alpha = data.scores().gather(-1, tokens[..., None])
    smallest = torch.full_like(alpha[..., 0], torch.inf)
    x_alpha = data.X.gather(2, tokens[..., None].expand(-1, -1, -1, data.d))
    block = max(1, 2**20 // max(1, data.B * data.n * data.K * data.d))
    for w, r in zip(weight.split(block), share.split(block)):
        s = low[..., None, :] * w  # (B, n, K, M, T)
        s = s / s.sum(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        mixed = torch.einsum("bnkmt,bntd->bnkmd", s, data.X)
        x = (1 - r) * x_alpha[..., None, :] + r * mixed
        ratio = (alpha - data.Y[..., None] * data.head.value(x)) / r[:, 0]
        smallest = torch.minimum(smallest, ratio.amin(-1))
    return torch.where(low.any(-1), smallest, torch.inf)
