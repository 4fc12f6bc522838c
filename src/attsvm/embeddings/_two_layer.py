"""The two-layer model (36): self-attention with skip connection and layer norm, then the model (1).

Equal tokens of a sequence have equal rows all the way, so the model runs on the distinct ones, with the logarithm of
their counts added to the logits of both softmaxes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, softplus

from attsvm.embeddings._one_layer import Embeddings
from attsvm.embeddings._sequences import Sequences


def two_layer_output(data: Sequences, at: Embeddings) -> Tensor:
    """f (n,); differentiable. `data` should be `merged`."""
    ids, log_count = _padded(data)
    X = embedding(ids, at.E)
    inner = torch.softmax(X @ X.mT + log_count[:, None], -1)
    X = layer_norm(torch.baddbmm(X, inner, X), X.shape[-1:])
    logit, score = (X @ torch.stack([at.p, at.v], 1)).unbind(-1)
    return (torch.softmax(logit + log_count, -1) * score).sum(-1)


def two_layer_loss(data: Sequences, at: Embeddings) -> Tensor:
    """The mean logistic loss; differentiable."""
    return softplus(-data.Y * two_layer_output(data, at)).mean()


def _padded(data: Sequences) -> tuple[Tensor, Tensor]:
    """Token numbers (n, M) and the logarithms of their counts, −∞ where a sequence has ended."""
    entries = data.offsets.diff()
    longest = int(entries.max())
    place = torch.arange(longest, device=entries.device)
    there = place < entries[:, None]
    entry = (data.offsets[:-1, None] + place).clamp_max(len(data.ids) - 1)
    log_count = torch.where(there, data.count[entry].log(), -torch.inf)
    return torch.where(there, data.ids[entry], 0), log_count
