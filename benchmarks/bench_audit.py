"""The audit of a model of BERT-base size with random weights against its plain forward pass: time and memory.

python benchmarks/bench_audit.py --texts 1000 --tokens 512 --device cuda
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import torch

from attsvm.auditing import audit


def host() -> float:
    """Most memory of the process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(device: str, of_host: float, work: Callable[[], Any]) -> tuple[float, str]:
    """Seconds, and the most memory above what there was: of the host above `of_host`."""
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated() if on_cuda else 0, time.perf_counter()
    work()
    if on_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    memory = f"{host() - of_host:5.2f} GB"
    if on_cuda:
        memory += f", {(torch.cuda.max_memory_allocated() - before) / 2**30:5.2f} GB of the GPU"
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    asked = parser.parse_args()
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertModel

    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval().to(asked.device, getattr(torch, asked.dtype))
    texts = torch.randint(1000, 30000, (asked.texts, asked.tokens))
    rows = [row.tolist() for row in texts]

    def plain(part: torch.Tensor) -> None:
        with torch.no_grad():
            for batch in part.to(asked.device).split(asked.batch):
                model(input_ids=batch, attention_mask=torch.ones_like(batch))

    def tell(reached: float, words: str | None = None, more: str = "") -> None:
        if words is None:  # a batch is done
            ends.append(time.perf_counter())

    def streamed() -> None:
        audit(model, None, rows, batch=asked.batch, norms=[], tell=tell)

    ends: list[float] = []
    if asked.device != "cpu":  # where much starts only once, also in memory
        plain(texts[: 2 * asked.batch])
        audit(model, None, rows[: asked.batch], batch=asked.batch, norms=[])
    base = host()
    print(
        f"{asked.texts} texts of {asked.tokens} tokens, batches of {asked.batch}, {asked.dtype}, {asked.device}, "
        f"{asked.threads} threads, load {os.getloadavg()[0]:.0f}"
    )
    before, memory = timed(asked.device, base, lambda: plain(texts))
    print(f"plain forward pass  {before:8.2f} s  {memory} above the model", flush=True)
    start = time.perf_counter()
    seconds, memory = timed(asked.device, base, streamed)
    solved = start + seconds - ends[-1]
    print(f"audit, streaming    {seconds - solved:8.2f} s  {memory} above the model", flush=True)
    after, _ = timed(asked.device, base, lambda: plain(texts))
    print(f"plain forward pass  {after:8.2f} s")
    print(f"ratio {2 * (seconds - solved) / (before + after):.2f}; margin problems of all heads in l2: {solved:.1f} s")


if __name__ == "__main__":
    main()
