"""Which tokens attention selects, and what the scores say of them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attsvm.checks import as_float
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.svm import MaxMargin
from attsvm.tolerances import MASKED, SELECTED


class SelectedSets(NamedTuple):
    """Boolean (B, n, K, T) each; every allowed token is in exactly one of them."""

    selected: Tensor
    masked: Tensor
    undecided: Tensor

    @property
    def decided(self) -> Tensor:
        """Trials (B,) without an undecided token: those that the paper keeps."""
        return ~self.undecided.flatten(1).any(1)


def selected_tokens(data: TokenData, W: Any) -> Tensor:
    """The token of largest logit (the first of equals), long (B, n, K)."""
    return data.logits(W).argmax(-1)


def selected_sets(
    weights: Any, selected: float = SELECTED, masked: float = MASKED, allowed: Tensor | None = None
) -> SelectedSets:
    """Tokens with softmax weight above `selected`, below `masked`, and in between; the heaviest is always selected.

    `allowed` (B, n, K, T) leaves out tokens that the attention mask hides, as `data.mask` does.
    """
    weights = as_float("weights", weights)
    if not 0 <= masked <= selected < 1:
        raise AttsvmError(f"thresholds must obey 0 ≤ masked ≤ selected < 1, but got {masked} and {selected}.")
    if weights.ndim != 4:
        raise AttsvmError(f"weights must have shape (B, n, K, T), but got {tuple(weights.shape)}.")
    seen = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed
    top = torch.zeros_like(seen).scatter_(-1, weights.masked_fill(~seen, -1).argmax(-1, keepdim=True), True)
    chosen = (weights > selected) & seen | top
    hidden = (weights < masked) & seen & ~chosen
    return SelectedSets(chosen, hidden, seen & ~chosen & ~hidden)


def score_bounds(data: TokenData) -> tuple[Tensor, Tensor]:
    """Between which numbers the scores in real arithmetic lie, (B, n, K, T) each; −inf where masked.

    Computed scores of tokens that tie may differ in their last bits. A rounding error counts as a change of x by d + 2
    units: for a linear head that is the bound (d + 2)·u·|v|ᵀ|x|.
    """
    scores, head, x = data.scores(), data.head, data.X[:, :, None]
    assert head is not None  # data.scores() has one
    size = (head.grad(x) * x).abs().nan_to_num(0.0).sum(-1) + head.value(x).abs()
    error = (data.d + 2) * torch.finfo(scores.dtype).eps / 2 * size
    return scores - error, scores + error


def low_high(data: TokenData, tokens: Any) -> tuple[Tensor, Tensor]:
    """low^α = {t: γ_t < γ_α} and high^α = {t ≠ α: γ_t ≥ γ_α} (Definition 5), boolean (B, n, K, T) each.

    Scores that rounding does not tell apart count as equal."""
    tokens = data.check_tokens(tokens)[..., None]
    least, most = score_bounds(data)
    low = (most < least.gather(-1, tokens)) & data.mask
    return low, (data.mask & ~low).scatter(-1, tokens, False)


def is_locally_optimal(data: TokenData, tokens: Any, solution: MaxMargin) -> Tensor:
    """Does α have a higher score than each of its support tokens? (B,)

    Definitions 2 and 4 of TF-as-SVM, 3 of mirror-descent; `solution` is the attention SVM of α, in the norm of the
    training. False where it is infeasible: then there is no direction to be optimal.
    """
    _, high = low_high(data, tokens)
    return ~(high & solution.support_tokens).flatten(1).any(1) & solution.solved


def is_globally_optimal(data: TokenData, tokens: Any) -> Tensor:
    """Is every α a token of highest score? (B,) Of several highest ones each counts, as in opt ∈ arg max."""
    tokens = data.check_tokens(tokens)[..., None]
    scores = data.scores()
    return (scores.gather(-1, tokens) >= scores.amax(-1, keepdim=True)).flatten(1).all(1)


def has_unique_optimum(data: TokenData) -> Tensor:
    """Has every query one token of strictly highest score, beyond rounding? (B,)"""
    _, high = low_high(data, data.optimal_tokens())
    return ~high.flatten(1).any(1)
