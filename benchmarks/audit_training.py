"""Does training go towards the SVMs of its own selections? A small transformer, audited on held-out texts as it trains.

    python benchmarks/audit_training.py tokens/wikitext-2.npz --optimizer adamw --out rows.jsonl
    python benchmarks/audit_training.py imdb.npz --optimizer muon --out rows.jsonl

The first file is one of `benchmarks/sparse/corpora.py`, streams of word pieces: a GPT predicts the next piece. All but
the most frequent pieces become one. The second is one of `attsvm transformer tokens`: a TextTransformer classifies.
Every line of the result is a head at a step: loss, and the flat row of the audit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.auditing import audit
from attsvm.models import GPT, TextTransformer
from attsvm.optim import MirrorAdam, param_groups
from attsvm.transformer import Texts, load_data

STEPS = (0, 25, 50, 100, 200, 400, 800, 1600, 3200)
HELD_OUT = 64
"""Texts that are audited."""


@dataclass(frozen=True)
class Task:
    model: nn.Module
    loss: Callable[[Tensor], Tensor]
    """of the training texts with these numbers"""
    count: int
    held_loss: Callable[[], Tensor]
    texts: list[list[int]]


def language(streams: Any, vocabulary: int = 4096, length: int = 64) -> Task:
    train, held = (streams[split].astype(np.int64) for split in ("train", "validation"))
    counts = np.bincount(train, minlength=1 << 16)
    number = np.zeros(1 << 16, np.int64)
    number[np.argsort(-counts, kind="stable")[: vocabulary - 1]] = np.arange(1, vocabulary)
    windows = torch.from_numpy(number[held])[: HELD_OUT * length].view(-1, length)
    stream = torch.from_numpy(number[train])
    model = GPT(vocabulary=vocabulary, length=length, width=64, layers=2, heads=4)

    def loss(batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    def of(rows: Tensor) -> Tensor:
        return loss(stream[rows[:, None] + torch.arange(length)])

    return Task(model, of, len(stream) - length, lambda: loss(windows), windows.tolist())


def classify(path: Path) -> Task:
    data = load_data(path, length=128)
    train, held = data.train, data.test
    assert isinstance(train, Texts)
    assert isinstance(held, Texts)
    model = TextTransformer(
        vocabulary=data.vocabulary, length=128, width=64, hidden=128, layers=2, heads=4, dropout=0.0
    )

    def loss(split: Texts, rows: Tensor) -> Tensor:
        lengths = split.lengths[rows]
        tokens = split.tokens[rows][:, : int(lengths.max())].long()
        return F.cross_entropy(model(tokens, lengths), split.labels[rows])

    some = torch.arange(len(held))
    texts = [row[:n].tolist() for row, n in zip(held.tokens[:HELD_OUT], held.lengths[:HELD_OUT].tolist())]
    return Task(model, lambda rows: loss(train, rows), len(train), lambda: loss(held, some), texts)


def optimizers(model: nn.Module, name: str, lr: float) -> list[torch.optim.Optimizer]:
    """Matrices of the layers with the named optimizer, embeddings and norms with AdamW."""
    matrices = [weight for key, weight in model.named_parameters() if weight.ndim == 2 and key.startswith("blocks")]
    kept = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in kept]
    rest = torch.optim.AdamW(others, lr=2e-3, weight_decay=0.01)
    if name == "adamw":
        return [torch.optim.AdamW(matrices, lr=lr, weight_decay=0.01), rest]
    if name == "muon":
        return [torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), rest]
    groups = [
        group | {"params": [weight for weight in group["params"] if id(weight) in kept]}
        for group in param_groups(model, p=float(name.removeprefix("mirror-adam-")))
    ]
    return [MirrorAdam([group for group in groups if group["params"]], lr=lr, weight_decay=0.01), rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--optimizer", default="adamw", help="adamw, muon or mirror-adam-1.1")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    streams = np.load(asked.tokens)
    task = language(streams) if "validation" in streams else classify(asked.tokens)
    model = task.model
    steppers = optimizers(model, asked.optimizer, asked.lr)
    warmup = [
        torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: min(1.0, (step + 1) / (0.1 * asked.steps)))
        for stepper in steppers
    ]
    draw = torch.Generator().manual_seed(asked.seed)
    start = time.perf_counter()

    def look(step: int) -> None:
        model.eval()
        with torch.no_grad():
            loss = float(task.held_loss())
        with asked.out.open("a") as out:
            for selects in (0.0, 0.5):  # all queries, or those that put half of their attention on one token
                found = audit(model, None, task.texts, selects=selects)
                facts: dict[str, Any] = {"optimizer": asked.optimizer, "lr": asked.lr, "step": step, "loss": loss}
                for row in found.rows():
                    out.write(json.dumps(facts | {"selects": selects} | row) + "\n")
        print(f"{step} {loss:.3f} {time.perf_counter() - start:.0f} s", flush=True)
        model.train()

    for step in range(asked.steps + 1):
        if step in STEPS:
            look(step)
        task.loss(torch.randint(task.count, (asked.batch,), generator=draw)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper, warm in zip(steppers, warmup):
            stepper.step()
            stepper.zero_grad()
            warm.step()


if __name__ == "__main__":
    main()
