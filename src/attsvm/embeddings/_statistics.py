"""What the data say of every token: Section 2 and eq. (37) of trained-embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attsvm.embeddings._sequences import Sequences


def occurrences(data: Sequences) -> Tensor:
    """(|S|,) how often each token occurs in the data."""
    return data.count.new_zeros(data.size).index_add_(0, data.ids, data.count)


def signed_frequency(data: Sequences) -> Tensor:
    """α_s (3), (|S|,): the mean over sequences of y · (share of s in the sequence).

    In sequences of one length T this is the signed count over nT, exactly 0 where the counts balance.
    """
    lengths = data.lengths
    if bool((lengths == lengths[0]).all()):
        return _signed_count(data) / (data.n * lengths[0])  # whole numbers: no rounding before the division
    share = data.Y[data.row] * data.count / lengths[data.row]
    return share.new_zeros(data.size).index_add_(0, data.ids, share) / data.n


def posterior_difference(data: Sequences) -> Tensor:
    """(37), (|S|,): (count with label 1 − count with label −1)/count; NaN for a token that never occurs."""
    return _signed_count(data) / occurrences(data)


class TokenKinds(NamedTuple):
    """Definition 1, boolean (|S|,) each; a token that never occurs is of no kind."""

    positive: Tensor
    negative: Tensor
    irrelevant: Tensor
    completely_positive: Tensor
    completely_negative: Tensor


def token_kinds(data: Sequences) -> TokenKinds:
    """Which tokens are positive (α > 0), negative, irrelevant (α = 0), completely positive or negative."""
    alpha, seen, signed = signed_frequency(data), occurrences(data), _signed_count(data)
    there = seen > 0
    return TokenKinds(alpha > 0, alpha < 0, (alpha == 0) & there, (signed == seen) & there, (signed == -seen) & there)


class Assumption4(NamedTuple):
    """`holds`, and the one completely positive or negative token s*_X of every sequence (−1 where there is not one)."""

    holds: bool
    important: Tensor


def assumption_4(data: Sequences) -> Assumption4:
    """Has each sequence one completely positive or negative token, and only irrelevant ones beside it?"""
    data = data.merged()
    kinds = token_kinds(data)
    complete = (kinds.completely_positive | kinds.completely_negative)[data.ids]
    number = data.count.new_zeros(data.n).index_add_(0, data.row, torch.where(complete, data.count, 0.0))
    important = torch.full_like(data.Y, -1, dtype=torch.long)
    important[data.row[complete]] = data.ids[complete]
    important = torch.where(number == 1, important, -1)
    rest = bool(kinds.irrelevant[data.ids[~complete]].all())
    return Assumption4(rest and bool((number == 1).all()), important)


def _signed_count(data: Sequences) -> Tensor:
    return data.count.new_zeros(data.size).index_add_(0, data.ids, data.Y[data.row] * data.count)
