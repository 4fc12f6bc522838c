"""The vision transformer of the mirror-descent paper's CIFAR-10 runs: pre-norm, class token, learned positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.checks import as_count, as_share
from attsvm.errors import AttsvmError
from attsvm.models._attention import attend, check_heads, join_heads, split_heads


class ViT(nn.Module):
    r"""Classify images by the last representation of a class token put before their patches.

    .. math::
       \tilde x^l = x^{l-1} + \mathrm{dropout}(\mathrm{attention}(\mathrm{norm}(x^{l-1}))), \qquad
       x^l = \tilde x^l + \mathrm{dropout}(\mathrm{mlp}(\mathrm{norm}(\tilde x^l))), \qquad
       \mathrm{logits} = W\, \mathrm{norm}(x^L_1) + b

    Queries, keys and values have no biases, the other linear maps have; the activation is GELU. Of the last layer only
    the class token is computed: nothing else is read.

    Args:
        size: height and width of the images.
        patch: height and width of a patch.
        width, hidden: of a token's representation, and inside the MLP.
        layers, heads: number of layers, and of attention heads in each.
        dropout: after the embedding, every sub-layer, and inside the MLP.
        classes: number of logits.
        channels: of the images.

    Example:
        >>> model = ViT(size=8, patch=4, width=32, hidden=32, layers=2, heads=4)
        >>> model(torch.randn(5, 3, 8, 8)).shape
        torch.Size([5, 10])
        >>> logits, maps = model.attention(torch.randn(5, 3, 8, 8))
        >>> maps[-1].shape  # (batch, heads, queries, keys): the class token and four patches
        torch.Size([5, 4, 5, 5])
    """

    def __init__(
        self,
        *,
        size: int = 48,
        patch: int = 4,
        width: int = 512,
        hidden: int = 512,
        layers: int = 6,
        heads: int = 8,
        dropout: float = 0.1,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if as_count("size", size) % as_count("patch", patch):
            raise AttsvmError(f"size must be a multiple of patch, {patch}, but got {size}.")
        layers, hidden = as_count("layers", layers), as_count("hidden", hidden)
        dropout = as_share("dropout", dropout)
        check_heads(width, heads)
        self.size, self.patch = size, patch
        self.embed = nn.Linear(as_count("channels", channels) * patch**2, width)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, hidden, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, as_count("classes", classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, size, size)."""
        x = self._embed(images)
        for block in self.blocks[:-1]:
            x = block(x)
        return self.head(self.norm(self.blocks[-1](x, queries=1)[:, 0]))

    def attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the softmax weights (batch, heads, T, T) of every layer: rows are queries, columns keys."""
        maps: list[Tensor] = []
        x = self._embed(images)
        for block in self.blocks:
            x = block(x, maps=maps)
        return self.head(self.norm(x[:, 0])), maps

    def _embed(self, images: Tensor) -> Tensor:
        n = self.patch
        patches = images.unfold(2, n, n).unfold(3, n, n)  # (batch, channels, rows, columns, n, n)
        x = self.embed(patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1).to(x.dtype), x], 1)
        return self.dropout(x + self.positions.to(x.dtype))


class _Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, queries: int | None = None, maps: list[Tensor] | None = None) -> Tensor:
        """The next representation of the first `queries` tokens, or of all."""
        y = self.attention_norm(x)
        if queries is None:
            q, k, v = self.qkv(y).chunk(3, -1)
        else:
            width = x.shape[-1]
            q = F.linear(y[:, :queries], self.qkv.weight[:width])
            k, v = F.linear(y, self.qkv.weight[width:]).chunk(2, -1)
        q, k, v = (split_heads(part, self.heads) for part in (q, k, v))
        x = x[:, :queries] + self.dropout(self.out(join_heads(attend(q, k, v, None, maps))))
        y = self.dropout(F.gelu(self.expand(self.norm(x))))
        return x + self.dropout(self.contract(y))
