"""The data-dependent constants of the lemmas."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.data import LinearHead, TokenData
from attsvm.diagnostics._measures import margins
from attsvm.errors import AttsvmError
from attsvm.geometry import Lp
from attsvm.objective import as_loss, gradient
from attsvm.svm import MaxMargin


@dataclass(frozen=True, eq=False)
class Constants:
    """Appendix B.1 of mirror-descent and Lemma 13 of TF-as-SVM; (B,) each unless said otherwise.

    NaN where the SVM was not solved.
    """

    delta_prime: Tensor
    """δ′ = ½ min over non-support tokens of (margin − 1); +∞ where all tokens are support tokens."""
    delta: Tensor
    """δ = min(¼, δ′) (7b)."""
    A_prime: Tensor
    """A′ = ‖W_mm‖_p max ‖x_t zᵀ‖_q (8)."""
    A: Tensor
    """A = max(1, A′)."""
    mu0: Tensor
    """μ₀ (9): in S_{p,μ₀}(W_mm) every margin is within δ/2 of that of W_mm (Lemma 9)."""
    gamma_gap: Tensor
    """γ^gap = γ_α − max over support tokens γ_t (10), (B, n, K); +∞ where a query has no support token."""
    gamma_gap_bar: Tensor
    """γ̄^gap = γ_α − min over support tokens γ_t (10), (B, n, K); −∞ where a query has none."""
    Gamma: Tensor
    """Γ = largest difference of two scores of a query (11)."""
    mu: Tensor
    """μ of (67), TF-as-SVM, for the Frobenius norm: ⅛ (min(½, δ′)/(‖W_mm‖_F max ‖x_t zᵀ‖_F))²."""


def constants(data: TokenData, tokens: Any, solution: MaxMargin) -> Constants:
    """The constants for α and its attention SVM in an ℓp norm.

    (8) prints ‖x zᵀ‖ with the indices p − 1 and p/(p − 1); Hölder's inequality in Lemma 9 needs q = p/(p − 1) twice.
    For p < 2, (9) has the factor d^(2/p−1) of square matrices: it is (d·e)^(1/p−1/2) for W (d, e).
    (67) takes δ over queries with support tokens only, but uses it in (68) for all: δ′ here is over all.
    """
    geometry = solution.geometry
    if not isinstance(geometry, Lp):
        raise AttsvmError(f"solution must be in an ℓp norm to have these constants, but it is in {geometry.name}.")
    p, solved = geometry.p, solution.solved
    tokens = data.check_tokens(tokens)
    W_mm = torch.where(solved[:, None, None], solution.W, 0.0)  # data.logits takes finite W only
    support = solution.support_tokens
    others = data.mask.scatter(-1, tokens[..., None], False) & ~support
    excess = (margins(data, tokens, W_mm) - 1).masked_fill(~others, torch.inf)
    delta_prime = torch.where(solved, excess.amin((1, 2, 3)) / 2, torch.nan)
    delta = delta_prime.clamp(max=0.25)

    norm = torch.where(solved, solution.norm, torch.nan)
    A_prime = norm * _longest(data, geometry.q)
    A = A_prime.clamp(min=1)
    if p >= 2:
        mu0 = (delta / (8 * A)) ** p / p
    else:
        size = (data.d * data.e) ** (1 / p - 1 / 2)
        mu0 = (delta * (p - 1) / (4 * A * size)) ** 2 / p
    mu = (delta_prime.clamp(max=0.5) / (norm * _longest(data, 2))) ** 2 / 8

    scores = data.scores()
    alpha = scores.gather(-1, tokens[..., None])[..., 0]
    best = scores.masked_fill(~support, -torch.inf).amax(-1)
    worst = scores.masked_fill(~support, torch.inf).amin(-1)
    lowest = scores.masked_fill(~data.mask, torch.inf).amin(-1)
    return Constants(
        delta_prime=delta_prime,
        delta=delta,
        A_prime=A_prime,
        A=A,
        mu0=mu0,
        gamma_gap=alpha - best,
        gamma_gap_bar=alpha - worst,
        Gamma=(scores.amax(-1) - lowest).amax((1, 2)),
        mu=mu,
    )


def loss_constants(data: TokenData, loss: Any = "logistic") -> tuple[Tensor, Tensor]:
    """M₀ and M₁ of Assumption A, (B,) each: sup |ℓ″| and sup |ℓ′| between the lowest and the highest score."""
    ell = as_loss(loss)
    scores = data.scores()
    low = scores.masked_fill(~data.mask, torch.inf).amin((1, 2, 3))
    high = scores.amax((1, 2, 3))
    f = ell.most_bent(low, high)
    return (ell.bend(f) * ell.log_slope(f).exp()).abs(), ell.log_slopes(low, high)[1].exp()


def lipschitz_constant(data: TokenData, loss: Any = "logistic") -> Tensor:
    """L_W of Lemma 4, TF-as-SVM: mean over samples (sum over queries) of ‖v‖‖z‖²‖X‖³ (M₀‖v‖‖X‖ + 3M₁), (B,)."""
    if not isinstance(data.head, LinearHead):
        raise AttsvmError("head must be linear for the Lipschitz constant L_W of Lemma 4, but it is not.")
    M0, M1 = (M[:, None, None] for M in loss_constants(data, loss))
    v = torch.linalg.vector_norm(data.head.v, dim=-1)
    v = v[:, None] if v.ndim == 2 else v.mT  # (B, 1 or n, H)
    X = torch.linalg.matrix_norm(data.X, ord=2)[:, :, None]  # (B, n, 1)
    z = torch.linalg.vector_norm(data.Z, dim=-1)  # (B, n, K)
    return (v * z.square() * X**3 * (M0 * v * X + 3 * M1)).sum((1, 2)) / data.n


def loss_barrier(data: TokenData, loss: Any = "logistic") -> Tensor:
    """How small L(W) − L_* must be for gradient descent to end at the optimal tokens, (B,); 0 if they are not unique.

    Let S be the softmax weight that a query leaves to its other tokens, gap the lead of its best score over the second
    best, Γ that over the worst one. Where S ≥ κ = min(½, gap/Γ) this query alone costs ℓ(γ_opt − κ·gap) − ℓ(γ_opt).
    The smallest such cost, over n, is the barrier: a W below it has S < κ in every query, and so has every later W
    of a descent. There −∇L is a sum of the rows (x_opt − x_t) zᵀ with positive weights, which leads to W_mm (the
    proof is in docs/papers.md, under Theorem 6 of TF-as-SVM).
    """
    ell = as_loss(loss)
    scores = data.scores()
    best = scores.amax(-1)
    others = data.mask.scatter(-1, data.optimal_tokens()[..., None], False)
    gap = best - scores.masked_fill(~others, -torch.inf).amax(-1)
    spread = best - scores.masked_fill(~others, torch.inf).amin(-1)
    alone = ~others.any(-1)  # a query that sees one token costs nothing
    kappa = torch.where(alone, 0.0, gap / spread.clamp(min=torch.finfo(gap.dtype).tiny)).clamp(max=0.5)
    cost = ell.value(best - kappa * torch.where(alone, 0.0, gap)) - ell.value(best)
    return cost.masked_fill(alone, torch.inf).amin((1, 2)) / data.n


def excess_loss(data: TokenData, W: Tensor, loss: Any = "logistic") -> Tensor:
    """L(W) − L_* (B,), L_* the loss where every query attends to its optimal token alone; for a linear head."""
    ell = as_loss(loss)
    scores = data.scores()
    attended = (data.attention(W) * scores.masked_fill(~data.mask, 0.0)).sum(-1)
    return (ell.value(attended) - ell.value(scores.amax(-1))).sum((1, 2)) / data.n


def sufficient_first_step(data: TokenData, loss: Any = "logistic") -> Tensor:
    """η₀ (B,) such that one step from W = 0 takes the loss below its barrier; ∞ where Assumption C fails.

    That step gives every other token a logit at least η₀m below the optimal one's, m the smallest
    (x_opt − x_t)ᵀ(−∇L(0)) z. So L − L_* ≤ M₁ K (T − 1) Γ e^(−η₀m), Γ the largest difference of scores.
    """
    G = gradient(data, data.X.new_zeros(data.B, data.d, data.e), loss)
    slowest = margins(data, data.optimal_tokens(), -G).amin((1, 2, 3))
    scores = data.scores()
    spread = (scores.amax(-1) - scores.masked_fill(~data.mask, torch.inf).amin(-1)).amax((1, 2))
    _, M1 = loss_constants(data, loss)
    most = M1 * data.K * (data.T - 1) * spread
    needed = torch.log(most / loss_barrier(data, loss)).clamp(min=0) / slowest
    return torch.where(slowest > 0, needed, torch.inf)


def radius(data: TokenData, constants: Constants, solution: MaxMargin, loss: Any = "logistic", lr: float = 0) -> Tensor:
    """R (B,) such that W(0) ∈ C_{p,μ₀/3,R} starts Theorems 2 to 4 of mirror-descent, from their proofs.

    The largest of R_δ (Lemma 10), R_π for π = μ₀/3 (Lemma 11), the R_μ of Lemma 17 and e². The sum L̄ of slopes over
    the smallest one is taken at its worst over all W. In practice R is far beyond any run: the theorems say that
    there is a cone, not that it is wide.
    """
    geometry = solution.geometry
    assert isinstance(geometry, Lp)
    c, T = constants, data.T
    ell = as_loss(loss)
    scores = data.scores()
    lowest = scores.masked_fill(~data.mask, torch.inf).amin(-1)
    highest = scores.amax(-1)
    least, largest = (slope.exp() for slope in ell.log_slopes(lowest, highest))
    slopes = largest.sum((1, 2)) / least.amin((1, 2))
    gap = c.gamma_gap.amin((1, 2))
    gap_bar = c.gamma_gap_bar.amax((1, 2)).clamp(min=0)
    pi = c.mu0 / 3
    scale = 2 * c.Gamma * c.A * T**2 * (T + 1)
    R_delta = torch.log(scale * slopes / (gap * (1 - c.delta / 2))) / c.delta
    R_pi = torch.log((c.delta * gap_bar * T**2 / 2 + 3 * scale) * slopes / (pi * gap)) / torch.minimum(
        pi, 1.5 * c.delta
    )
    # L ranges between its values at the best and at the worst tokens.
    fall = (largest * (highest - lowest)).sum((1, 2)) / data.n
    R_mu = (3 * lr * fall / c.mu0) ** (1 / geometry.p)
    R = torch.maximum(torch.maximum(R_delta, R_pi) * solution.norm, R_mu).clamp(min=math.exp(2))
    return torch.where((gap > 0) & solution.solved, R, torch.nan)


def _longest(data: TokenData, q: float) -> Tensor:
    """max ‖x_t zᵀ‖_q = ‖x_t‖_q ‖z‖_q over queries and the tokens they see, (B,)."""
    x = Lp(q).norm(data.X[..., None])[:, :, None, :]
    z = Lp(q).norm(data.Z[..., None])[..., None]
    return (x * z).masked_fill(~data.mask, 0.0).amax((1, 2, 3))
