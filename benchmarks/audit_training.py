"""Does training go towards the SVMs of its own selections? A small GPT, audited on held-out windows along its training.

    python benchmarks/audit_training.py tokens/wikitext-2.npz --optimizer adamw --out rows.jsonl

The file is one of `benchmarks/sparse/corpora.py`: streams of word pieces. All but the most frequent pieces become one.
Every line of the result is a head at a step: loss, and the flat row of the audit.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from attsvm.auditing import audit
from attsvm.models import GPT
from attsvm.optim import MirrorAdam, param_groups

STEPS = (0, 10, 30, 100, 200, 400, 800, 1600, 3200, 6400)
LENGTH = 64


def optimizers(model: GPT, name: str, lr: float) -> list[torch.optim.Optimizer]:
    """Matrices of the layers with the named optimizer, embeddings and norms with AdamW."""
    matrices = [weight for key, weight in model.named_parameters() if weight.ndim == 2 and key.startswith("blocks")]
    others = [weight for weight in model.parameters() if all(weight is not other for other in matrices)]
    rest = torch.optim.AdamW(others, lr=2e-3, weight_decay=0.01)
    if name == "adamw":
        return [torch.optim.AdamW(matrices, lr=lr, weight_decay=0.01), rest]
    if name == "muon":
        return [torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), rest]
    p = float(name.removeprefix("mirror-adam-"))
    kept = {id(weight) for weight in matrices}
    groups = [
        group | {"params": [weight for weight in group["params"] if id(weight) in kept]}
        for group in param_groups(model, p=p)
    ]
    return [MirrorAdam([group for group in groups if group["params"]], lr=lr, weight_decay=0.01), rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--optimizer", default="adamw", help="adamw, muon or mirror-adam-1.1")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    streams = np.load(asked.tokens)
    train, held = (streams[split].astype(np.int64) for split in ("train", "validation"))
    counts = np.bincount(train, minlength=1 << 16)
    number = np.zeros(1 << 16, np.int64)
    number[np.argsort(-counts, kind="stable")[: asked.vocabulary - 1]] = np.arange(1, asked.vocabulary)
    windows = torch.from_numpy(number[held])[: 64 * LENGTH].view(-1, LENGTH)
    train = torch.from_numpy(number[train])
    torch.manual_seed(asked.seed)
    model = GPT(vocabulary=asked.vocabulary, length=LENGTH, width=64, layers=2, heads=4)
    steppers = optimizers(model, asked.optimizer, asked.lr)
    draw = torch.Generator().manual_seed(asked.seed)
    start = time.perf_counter()

    def look(step: int) -> None:
        model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(model(windows)[:, :-1].flatten(0, 1), windows[:, 1:].flatten())
        found = audit(model, None, [row.tolist() for row in windows], queries=64, competitors=8)
        with asked.out.open("a") as out:
            for row in found.rows():
                facts: dict[str, Any] = {"optimizer": asked.optimizer, "lr": asked.lr, "step": step}
                out.write(json.dumps(facts | {"loss": float(loss)} | row) + "\n")
        print(f"{step} {float(loss):.3f} {time.perf_counter() - start:.0f} s", flush=True)
        model.train()

    for step in range(asked.steps + 1):
        if step in STEPS:
            look(step)
        at = torch.randint(len(train) - LENGTH, (32,), generator=draw)[:, None] + torch.arange(LENGTH)
        batch = train[at]
        loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        warm = min(1.0, (step + 1) / (0.1 * asked.steps))
        rates = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] *= warm
            stepper.step()
            stepper.zero_grad()
        for stepper, own in zip(steppers, rates):
            for group, rate in zip(stepper.param_groups, own):
                group["lr"] = rate


if __name__ == "__main__":
    main()
