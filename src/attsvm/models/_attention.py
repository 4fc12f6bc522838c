"""Softmax attention, fused, or spelled out where the weights are asked for."""

import math

import torch.nn.functional as F
from torch import Tensor


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


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads·d) → (batch, heads, tokens, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, tokens, d) → (batch, tokens, heads·d)"""
    return x.transpose(1, 2).flatten(2)
