"""What the weights of a trained transformer look like, what survives pruning, and where its [CLS] looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.checks import as_share
from attsvm.errors import AttsvmError
from attsvm.transformer._data import Images, Texts
from attsvm.transformer._evaluate import evaluate
from attsvm.transformer._pivotal import Probes

LARGE = 0.06
"""The paper's Figure 8 shows weights of at least this size."""
EDGES = np.concatenate([[0.0], np.logspace(-8, 2, 101)])
"""Bins of the histograms of |w|: ten per decade."""
LARGE_EDGES = np.linspace(LARGE, 1.06, 51)
SHARES = (0.5, 0.8, 0.9, 0.95)


def attention_weights(model: nn.Module) -> dict[str, list[Tensor]]:
    """The query, key and value matrices of every layer."""
    blocks: Any = getattr(model, "blocks", None)
    if blocks is None:
        raise AttsvmError("attention weights are those of TextTransformer and ViT; this model has no blocks.")
    parts = [block.qkv.weight.chunk(3) for block in blocks]
    return {name: [part[k] for part in parts] for k, name in enumerate(("query", "key", "value"))}


def gini(sizes: np.ndarray) -> float:
    """Gini coefficient of numbers ≥ 0: 0 if all are equal, towards 1 if a few hold everything."""
    sizes = np.sort(np.asarray(sizes, dtype=np.float64))
    n, total = len(sizes), sizes.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ sizes / (n * total)) if total > 0 else 0.0


def weight_summary(model: nn.Module) -> dict[str, Any]:
    """For query, key and value: how many weights, how many of at least 0.06, largest, Gini coefficient, histograms."""
    found: dict[str, Any] = {}
    for name, matrices in attention_weights(model).items():
        sizes = torch.cat([matrix.detach().flatten() for matrix in matrices]).abs().float().cpu().numpy()
        found[name] = {
            "number": len(sizes),
            "large": int((sizes >= LARGE).sum()),
            "largest": float(sizes.max()),
            "gini": gini(sizes),
            "histogram": np.histogram(sizes, EDGES)[0].tolist(),
            "large_histogram": np.histogram(sizes, LARGE_EDGES)[0].tolist(),
        }
    return found


@contextmanager
def pruned(model: nn.Module, share: float) -> Iterator[None]:
    """Inside the block, the smallest `share` of all query, key and value weights is 0; afterwards all is as before."""
    as_share("share", share)
    matrices = [matrix for of_kind in attention_weights(model).values() for matrix in of_kind]
    kept = [matrix.detach().clone() for matrix in matrices]
    sizes = torch.cat([matrix.flatten() for matrix in kept]).abs()
    number = round(share * len(sizes))
    order = sizes.argsort(stable=True)  # by count, not by threshold: of equal weights some may have to stay
    keep = torch.ones(len(sizes), dtype=torch.bool, device=sizes.device)
    keep[order[:number]] = False
    with torch.no_grad():
        for matrix, mask in zip(matrices, keep.split([matrix.numel() for matrix in matrices])):
            matrix.mul_(mask.view_as(matrix))
        try:
            yield
        finally:
            for matrix, before in zip(matrices, kept):
                matrix.copy_(before)


def pruning_curve(
    model: nn.Module, split: Texts | Images, shares: Sequence[float] = SHARES, *, bf16: bool = False
) -> dict[str, float]:
    """Accuracy with the smallest share of the attention weights set to 0, without training again."""
    found = {}
    for share in (0.0, *shares):
        with pruned(model, share):
            found[f"{share:g}"] = evaluate(model, split, bf16=bf16)["test_accuracy"]
    return found


@torch.no_grad()
def class_attention(model: Any, probes: Probes) -> dict[str, Any]:
    """What [CLS] attends to in the last layer, mean over heads; and how likely every review is taken for a good one."""
    device = next(model.parameters()).device
    model.eval()
    most, longest = int(probes.tokens.max()), int(probes.lengths.max())
    words, positions = len(model.words.weight), len(model.positions.weight)
    if most >= words:
        raise AttsvmError(
            f"the reviews have tokens up to number {most}, but the model knows {words} tokens: name the tokenizer that "
            "it was trained with."
        )
    if longest > positions:
        raise AttsvmError(
            f"the reviews have up to {longest} tokens, but the model was trained with length {positions}: train one "
            f"with length {longest} or more."
        )
    logits, maps = model.attention(probes.tokens.to(device), probes.lengths.to(device))
    if not logits.isfinite().all():
        raise AttsvmError("the model's outputs are not finite: its run diverged, and there is no attention to show.")
    weights = maps[-1].mean(1)[:, 0].double().cpu()
    lengths = probes.lengths.tolist()
    return {
        "attention": [row[:n].tolist() for row, n in zip(weights, lengths)],
        "spans": [row[:n].tolist() for row, n in zip(probes.spans, lengths)],
        "pivotal": (weights * probes.pivotal).sum(1).tolist(),
        "positive": logits.double().softmax(-1)[:, 1].cpu().tolist(),
    }
