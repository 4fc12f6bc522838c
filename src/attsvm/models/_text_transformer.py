"""The text classifier of the mirror-descent paper: a post-norm transformer without biases that reads off [CLS]."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.checks import as_count, as_share
from attsvm.errors import AttsvmError
from attsvm.models._attention import Places, attend_within, check_heads


class TextTransformer(nn.Module):
    r"""Classify token sequences by the last representation of their first token.

    .. math::
       x^0_t = E_{s_t} + P_t, \qquad
       \tilde x^l = \mathrm{norm}(x^{l-1} + \mathrm{dropout}(\mathrm{attention}(x^{l-1}))), \qquad
       x^l = \mathrm{norm}(\tilde x^l + \mathrm{dropout}(W_2\, \mathrm{gelu}(W_1 \tilde x^l))), \qquad
       \mathrm{logits} = W x^L_1

    With two classes the head has one row, z = ⟨w, x⟩, and the logits are (0, z): their cross-entropy is the binary
    one of z. Weights start as torch's modules make them. Of the last layer only the first token is computed: nothing
    else is read. Padding is not computed and cannot change a logit.

    Args:
        vocabulary: number of tokens.
        length: longest sequence, in tokens.
        width, hidden: of a token's representation, and inside the feed-forward part.
        layers: number of layers.
        heads: attention heads per layer; as many as layers if not given, as in the paper.
        dropout: of every sub-layer's output, and of the attention weights.
        classes: number of logits.

    Example:
        >>> import torch
        >>> model = TextTransformer(vocabulary=100, length=16, width=32, hidden=64, layers=2)
        >>> tokens, lengths = torch.randint(100, (4, 16)), torch.tensor([16, 3, 9, 12])
        >>> model(tokens, lengths).shape
        torch.Size([4, 2])
        >>> logits, maps = model.attention(tokens, lengths)
        >>> len(maps), maps[-1].shape  # one per layer: (batch, heads, queries, keys)
        (2, torch.Size([4, 2, 16, 16]))
    """

    def __init__(
        self,
        *,
        vocabulary: int = 30522,
        length: int = 512,
        width: int = 384,
        hidden: int = 1536,
        layers: int = 3,
        heads: int | None = None,
        dropout: float = 0.2,
        classes: int = 2,
    ) -> None:
        super().__init__()
        layers, hidden = as_count("layers", layers), as_count("hidden", hidden)
        heads, dropout = layers if heads is None else heads, as_share("dropout", dropout)
        check_heads(width, heads)
        self.words = nn.Embedding(as_count("vocabulary", vocabulary), width)
        self.positions = nn.Embedding(as_count("length", length), width)
        self.blocks = nn.ModuleList(_Block(width, hidden, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, 1 if as_count("classes", classes) == 2 else classes, bias=False)

    def forward(self, tokens: Tensor, lengths: Tensor | Places) -> Tensor:
        """Logits (batch, classes) of tokens (batch, T), T at most `length`; what comes after a length is ignored.

        Or of tokens that lie one behind another, (Σ lengths,), and their places: nothing is computed for padding then.
        """
        x, places = self._embed(tokens, lengths)
        for block in self.blocks[:-1]:
            x = block(x, places)
        return self._logits(self.blocks[-1](x, places, first=True))

    def attention(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the softmax weights (batch, heads, T, T) of every layer: rows are queries, columns keys."""
        maps: list[Tensor] = []
        x, places = self._embed(tokens, lengths)
        for block in self.blocks:
            x = block(x, places, maps=maps)
        return self._logits(x[places.offsets[:-1]]), maps

    def _embed(self, tokens: Tensor, lengths: Tensor | Places) -> tuple[Tensor, Places]:
        if isinstance(lengths, Tensor):
            if bool(((lengths < 1) | (lengths > tokens.shape[1])).any()):
                raise AttsvmError(f"lengths must be from 1 to {tokens.shape[1]}, the width of tokens.")
            places = Places.of(lengths, tokens.shape[1], int(lengths.sum()))
            tokens = tokens[places.sequence, places.position]
        else:
            places = lengths
        return self.words(tokens) + self.positions(places.position), places

    def _logits(self, x: Tensor) -> Tensor:
        z = self.head(x)
        return F.pad(z, (1, 0)) if z.shape[-1] == 1 else z


class _Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.expand = nn.Linear(width, hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)
        self.norm = nn.LayerNorm(width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, places: Places, first: bool = False, maps: list[Tensor] | None = None) -> Tensor:
        """The next representation of all tokens, (tokens, width), or of the first of every sequence."""
        if first:
            width, inputs = x.shape[-1], x
            x = x[places.offsets[:-1]]
            q = F.linear(x, self.qkv.weight[:width])
            k, v = F.linear(inputs, self.qkv.weight[width:]).chunk(2, -1)
        else:
            q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v))
        dropout = self.dropout.p if self.training else 0.0
        y = self.out(attend_within(q, k, v, places, first=first, dropout=dropout, maps=maps).flatten(1))
        # Under autocast norms give float32: between the layers the precision of the matrix products is enough.
        dtype = y.dtype
        x = self.attention_norm(x.to(dtype) + self.dropout(y)).to(dtype)
        y = self.contract(F.gelu(self.expand(x)))
        return self.norm(x + self.dropout(y)).to(dtype)
