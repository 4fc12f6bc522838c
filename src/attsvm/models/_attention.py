"""Softmax attention, fused, or spelled out where the weights are asked for; of sequences of one length or of many."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attsvm.checks import as_count
from attsvm.errors import AttsvmError


class Places(NamedTuple):
    """Where the tokens of sequences that lie one behind another belong."""

    offsets: Tensor
    """(batch + 1,) int32: sequence i is tokens[offsets[i] : offsets[i + 1]]"""
    sequence: Tensor
    """(tokens,) the sequence of every token, and its"""
    position: Tensor
    """(tokens,) place in it"""
    longest: int
    """no sequence has more tokens"""
    flash: bool = False
    """the device has FlashAttention for sequences that lie so"""

    @staticmethod
    def of(lengths: Tensor, longest: int, total: int) -> Places:
        """`total` is the sum of the lengths, which the device need not be asked for."""
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        sequence = torch.repeat_interleave(lengths, output_size=total)
        position = torch.arange(total, device=lengths.device) - offsets[sequence]
        flash = (
            lengths.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(lengths.device)[0] >= 8
        )
        return Places(offsets.int(), sequence, position, longest, flash)


def attend_within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Places,
    *,
    first: bool = False,
    dropout: float = 0.0,
    maps: list[Tensor] | None = None,
) -> Tensor:
    """softmax(q kᵀ/√d) v inside every sequence, for (tokens, heads, d); with `first` q has one row per sequence.

    `maps`, if given, receives the softmax (batch, heads, longest or 1, longest).
    """
    batch, d = len(places.offsets) - 1, k.shape[-1]
    if maps is None and places.flash and k.dtype in (torch.bfloat16, torch.float16) and d % 8 == 0 and d <= 256:
        # F.scaled_dot_product_attention has no fast kernel for a mask with dropout; this one needs no mask.
        of_queries = torch.arange(batch + 1, dtype=torch.int32, device=k.device) if first else places.offsets
        most = 1 if first else places.longest
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, of_queries, places.offsets, most, places.longest, dropout, False, False
        )
        return found[0]

    def padded(x: Tensor) -> Tensor:
        empty = x.new_zeros(batch, places.longest, *x.shape[1:])
        return empty.index_put((places.sequence, places.position), x).transpose(1, 2)

    lengths = places.offsets.diff()
    may_attend = torch.arange(places.longest, device=k.device) < lengths[:, None]
    queries = q[:, :, None] if first else padded(q)
    y = attend(queries, padded(k), padded(v), may_attend[:, None, None], maps, dropout=dropout).transpose(1, 2)
    return y[:, 0] if first else y[places.sequence, places.position]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    may_attend: Tensor | None,
    maps: list[Tensor] | None = None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q kᵀ/√d) v for (batch, heads, tokens, d); `maps`, if given, receives the softmax.

    may_attend: booleans that broadcast to (batch, heads, queries, keys); None is all of them.
    dropout: of the softmax weights.
    """
    if maps is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=may_attend, dropout_p=dropout)
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if may_attend is not None:
        logits = logits.masked_fill(~may_attend, -math.inf)
    weights = logits.softmax(-1)
    maps.append(weights)
    return F.dropout(weights, dropout).to(v.dtype) @ v


def check_heads(width: int, heads: int) -> None:
    """Refuse a width that heads cannot share."""
    if as_count("width", width) % as_count("heads", heads):
        raise AttsvmError(f"width must be a multiple of heads, {heads}, but got {width}.")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads·d) → (batch, heads, tokens, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, tokens, d) → (batch, tokens, heads·d)"""
    return x.transpose(1, 2).flatten(2)
