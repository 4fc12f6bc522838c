"""Loss and accuracy on a split, and the table of epochs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.files import atomic_path
from attsvm.transformer._data import Images, MiniBatch, Texts

BATCH = 250


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: Texts | Images,
    *,
    bf16: bool = False,
    mine: Callable[[MiniBatch], MiniBatch] = lambda batch: batch,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> dict[str, float]:
    """Loss and accuracy, and the accuracies of the even and of the odd rows: one half can choose what the other tells.
    Of a language model they are those of a token.

    mine, total: the rows of this process, and the sum over all processes, where there are several.
    """
    training = model.training
    model.eval()
    device = split.labels.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for whole in split.batches(BATCH):
        batch = mine(whole)
        if not len(batch.rows):
            continue
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores, labels, rows = split.answers(batch, model(*split.take(batch)))
        scores, odd = scores.float(), (rows % 2).bool()
        right = scores.argmax(-1) == labels
        loss = F.cross_entropy(scores, labels, reduction="sum")
        sums += torch.stack([loss, (right & ~odd).sum(), (right & odd).sum()])
    model.train(training)
    counts = split.counts
    n_even, n_odd = int(counts[::2].sum()), int(counts[1::2].sum())
    loss, even, odd = total(sums).tolist()
    return {
        "test_loss": loss / (n_even + n_odd),
        "test_accuracy": (even + odd) / (n_even + n_odd),
        "test_accuracy_even": even / max(1, n_even),
        "test_accuracy_odd": odd / max(1, n_odd),
    }


def best_epoch(history: list[dict[str, float]]) -> dict[str, float] | None:
    """The row of the largest test accuracy, the first of equals; without a finite loss an epoch does not count."""
    rows = [row for row in history if math.isfinite(row["test_loss"])]
    return max(rows, key=lambda row: row["test_accuracy"], default=None)


def write_metrics(folder: Path, history: list[dict[str, float]]) -> Path:
    """One row per epoch, as metrics.parquet, or as metrics.jsonl where pyarrow is not installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        path = folder / "metrics.jsonl"
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in history))
        return path
    path = folder / "metrics.parquet"
    with atomic_path(path) as temporary:
        parquet.write_table(pa.Table.from_pylist(history), temporary)
    return path
