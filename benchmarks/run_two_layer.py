"""The two-layer model of trained-embeddings at the paper's width, on prepared reviews.

    python benchmarks/run_two_layer.py reviews.npz --d 2048 --epochs 25 --lr 6.25e-4 --device cuda --out two-layer.npz

reviews.npz is what `paper_reviews("imdb", "imdb.parquet", "tokenizer.json").save` wrote. Prints a row of the table in
results/embeddings.md; --out keeps all numbers. Needs torch and numpy only. The default learning rate is the paper's
0.01 at d = 128 and falls like 1/d: a step of AdamW then moves the output equally far at every d.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from attsvm.embeddings import AdamWPlan, Reviews
from attsvm.experiments.tokens import trained_tokens
from attsvm.files import write_arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reviews", type=Path)
    parser.add_argument("--d", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lr = 0.01 * 128 / given.d if given.lr is None else given.lr
    milestones = (given.epochs // 5, 2 * given.epochs // 5)
    schedule = AdamWPlan(epochs=given.epochs, lr=lr, milestones=milestones)
    start = time.perf_counter()
    data = Reviews.load(given.reviews).sequences
    row = trained_tokens(data, given.d, "two-layer", schedule, given.seed, given.device)
    seconds = time.perf_counter() - start
    values = [
        f"{row[f'course_{c}'][-1]:.2f} ({row[f'interval_{c}'][0]:.2f} to {row[f'interval_{c}'][1]:.2f})" for c in "vp"
    ]
    print(
        f"| two layers | {given.reviews.stem} | {given.d} | {lr:g} | {given.epochs} | {seconds:.0f} s "
        f"| {row['loss'][-1]:.2g} | {values[0]} | {values[1]} |"
    )
    by_epoch = zip(row["course_epochs"], row["course_v"], row["course_p"])
    print("; ".join(f"{epoch} epochs: {v:.2f}, {p:.2f}" for epoch, v, p in by_epoch))
    if given.out is not None:
        write_arrays(given.out, {name: torch.as_tensor(value) for name, value in row.items()}, {})


if __name__ == "__main__":
    main()
