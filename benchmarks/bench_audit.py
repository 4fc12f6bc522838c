"""The audit of a model of BERT-base size with random weights against its plain forward pass: time and memory.

python benchmarks/bench_audit.py --texts 1000 --tokens 512
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import torch

from attsvm.auditing import audit


def peak() -> float:
    """Most memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    asked = parser.parse_args()
    from transformers import BertConfig, BertModel  # pyright: ignore[reportPrivateImportUsage]

    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    texts = torch.randint(1000, 30000, (asked.texts, asked.tokens))
    before = peak()
    start = time.perf_counter()
    with torch.no_grad():
        for part in texts.split(asked.batch):
            model(input_ids=part, attention_mask=torch.ones_like(part))
    plain = time.perf_counter() - start
    print(f"plain forward pass  {plain:8.1f} s  {peak() - before:5.2f} GB above the model", flush=True)
    ends: list[float] = []
    start = time.perf_counter()
    done = audit(
        model,
        None,
        [row.tolist() for row in texts],
        batch=asked.batch,
        norms=[],
        tell=lambda *_: ends.append(time.perf_counter()),
    )
    streamed, solved = ends[-1] - start, time.perf_counter() - ends[-1]
    print(f"audit, streaming    {streamed:8.1f} s  {peak() - before:5.2f} GB above the model")
    print(f"ratio {streamed / plain:.2f}; the margin problems of {len(done.heads)} heads in l2 took {solved:.1f} s")
    print(f"{asked.texts} texts of {asked.tokens} tokens, batches of {asked.batch}, {asked.threads} threads")


if __name__ == "__main__":
    main()
