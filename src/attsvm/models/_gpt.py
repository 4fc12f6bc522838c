"""A language model: a pre-norm causal transformer without biases."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.checks import as_count, as_share
from attsvm.errors import AttsvmError
from attsvm.models._attention import attend, check_heads, join_heads, split_heads


class GPT(nn.Module):
    r"""Predict every next token from those before it.

    .. math::
       x^0_t = E_{s_t} + P_t, \qquad
       \tilde x^l = x^{l-1} + \mathrm{attention}(\mathrm{norm}(x^{l-1})), \qquad
       x^l = \tilde x^l + W_2\, \mathrm{gelu}(W_1\, \mathrm{norm}(\tilde x^l)), \qquad
       \mathrm{logits}_t = H\, \mathrm{norm}(x^L_t)

    Token t attends to the tokens up to t. The head H is the embedding E itself, or with ``tied=False`` a matrix of its
    own. Weights start as in GPT-2: normal with a deviation of 0.02, smaller by
    :math:`\sqrt{2L}` where a sub-layer writes into the residual stream; with ``start="linear"`` matrices start as those
    of ``nn.Linear``.

    Args:
        vocabulary: number of tokens.
        length: longest sequence, in tokens.
        width, hidden: of a token's representation, and inside the feed-forward part; hidden is 4·width if not given.
        layers, heads: number of layers, and of attention heads in each.
        dropout: of the embedding and of every sub-layer's output.
        tied: whether the head is the embedding.
        start: initial weights of the matrices, "gpt2" or "linear".

    Example:
        >>> model = GPT(vocabulary=100, length=16, width=32, layers=2, heads=4)
        >>> tokens = torch.randint(100, (4, 16))
        >>> model(tokens).shape
        torch.Size([4, 16, 100])
        >>> logits, maps = model.attention(tokens)
        >>> maps[-1].shape  # (batch, heads, queries, keys)
        torch.Size([4, 4, 16, 16])
    """

    def __init__(
        self,
        *,
        vocabulary: int = 30522,
        length: int = 256,
        width: int = 384,
        hidden: int | None = None,
        layers: int = 6,
        heads: int = 6,
        dropout: float = 0.0,
        tied: bool = True,
        start: str = "gpt2",
    ) -> None:
        super().__init__()
        if start not in ("gpt2", "linear"):
            raise AttsvmError(f"start must be gpt2 or linear, but got {start!r}.")
        layers, dropout = as_count("layers", layers), as_share("dropout", dropout)
        check_heads(width, heads)
        hidden = 4 * width if hidden is None else as_count("hidden", hidden)
        self.words = nn.Embedding(as_count("vocabulary", vocabulary), width)
        self.positions = nn.Embedding(as_count("length", length), width)
        blocks = [_Block(width, hidden, heads, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Embedding if start == "linear" else nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        for block in blocks if start == "gpt2" else ():
            for writes in (block.out, block.contract):
                nn.init.normal_(writes.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, T, vocabulary) of the token after each of tokens (batch, T), T at most `length`."""
        return self._logits(self.features(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        """The last representation (batch, T, width) of every token: what the head reads."""
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def attention(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the softmax weights (batch, heads, T, T) of every layer: rows are queries, columns keys."""
        maps: list[Tensor] = []
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x, maps)
        return self._logits(self.norm(x)), maps

    def _logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.words.weight) if self.head is None else self.head(features)

    def _embed(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.positions.num_embeddings:
            raise AttsvmError(
                f"sequences must have at most {self.positions.num_embeddings} tokens, but got {length}: cut them."
            )
        return self.dropout(self.words(tokens) + self.positions.weight[:length])


class _Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width, bias=False)
        self.expand = nn.Linear(width, hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
        if maps is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            length = x.shape[1]
            y = attend(q, k, v, torch.ones(length, length, dtype=torch.bool, device=x.device).tril(), maps)
        x = x + self.dropout(self.out(join_heads(y)))
        return x + self.dropout(self.contract(F.gelu(self.expand(self.norm(x)))))
