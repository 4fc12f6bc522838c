"""Speed of a training step of the papers' text transformer, alone and shared by several processes.

    python benchmarks/run_transformers.py speed --imdb imdb.npz
    python benchmarks/run_transformers.py share --imdb imdb.npz --slots 6

imdb.npz is made by `attsvm transformer tokens`. The runs behind docs/transformers.md are experiments of
`attsvm reproduce`: md-table1, md-fig8, md-fig9 and md-vit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from attsvm.models import TextTransformer
from attsvm.optim import MirrorDescent
from attsvm.transformer import MiniBatch, Texts, load_data, synthetic_sentiment

RESULTS = Path(__file__).parent / "results" / "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["speed", "share"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--imdb", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="built-in data and small models: a rehearsal on the CPU")
    options = parser.parse_args()
    {"speed": speed, "share": share}[options.command](options)


def speed(options: argparse.Namespace) -> None:
    """A step of size 3 at batch 100 and 512 tokens, plain and fast; and an epoch with and without length grouping."""
    device = torch.device(options.device)
    train, padded, sizes = texts_of(options, device)
    full = padded.batches(100, torch.Generator().manual_seed(0))
    found: dict[str, Any] = {"processor": name_of(device), "torch": torch.__version__}
    fast = "packed, bf16, compile"
    steps = {
        "eager float32, softmax spelled out": make_step(sizes, device, plain=True),
        "eager float32, SDPA": make_step(sizes, device),
        "packed, bf16": make_step(sizes, device, bf16=True),
        fast: make_step(sizes, device, bf16=True, compiled=not options.tiny),
    }
    for n, (name, step) in enumerate(steps.items()):
        found[name] = 1e3 * timed(lambda step=step: step(padded, full[0]), device, 3 if n == 0 else 10, 10)
        print(f"{name:40} {found[name]:8.2f} ms per step", flush=True)
    for name, texts in (("packed", train), ("padded to 512", padded)):
        found[f"epoch, {name}"] = timed(epoch_of(steps[fast], texts), device, 1, 2)
        print(f"{'epoch, ' + name:40} {found[f'epoch, {name}']:8.3f} s", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "speed.json").write_text(json.dumps(found, indent=1) + "\n")


def share(options: argparse.Namespace) -> None:
    """The same epochs in --slots processes that share the device: their time over the number of processes."""
    found: dict[str, Any] = {"processor": name_of(torch.device(options.device)), "torch": torch.__version__}
    context = mp.get_context("spawn")
    barrier = context.Barrier(options.slots + 1, timeout=600)
    workers = [context.Process(target=share_epochs, args=(options, barrier)) for _ in range(options.slots)]
    for worker in workers:
        worker.start()
    for name in ("packed", "padded to 512"):
        barrier.wait()
        begun = time.perf_counter()
        barrier.wait()
        label = f"epoch, {name}, {options.slots} processes"
        found[label] = (time.perf_counter() - begun) / options.slots
        print(f"{label:40} {found[label]:8.3f} s", flush=True)
    for worker in workers:
        worker.join()
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "share.json").write_text(json.dumps(found, indent=1) + "\n")


def texts_of(options: argparse.Namespace, device: torch.device) -> tuple[Texts, Texts, dict[str, Any]]:
    """The reviews; the same as if padding were text, which is what a batch costs that is padded; the model's sizes."""
    data = (synthetic_sentiment() if options.tiny else load_data(options.imdb)).to(device)
    train = data.train
    assert isinstance(train, Texts)
    length = 24 if options.tiny else 512
    sizes = {"vocabulary": data.vocabulary, "length": length} | ({"width": 24, "hidden": 24} if options.tiny else {})
    return train, replace(train, lengths=torch.full_like(train.lengths, length)), sizes


def share_epochs(options: argparse.Namespace, barrier: Any) -> None:
    """Both epochs, each between two waits for the other processes."""
    torch.set_num_threads(1)
    device = torch.device(options.device)
    train, padded, sizes = texts_of(options, device)
    step = make_step(sizes, device, bf16=True, compiled=not options.tiny)
    epochs = [epoch_of(step, texts) for texts in (train, padded)]
    for epoch in epochs:
        epoch()
    wait(device)
    for epoch in epochs:
        barrier.wait()
        epoch()
        wait(device)
        barrier.wait()


def epoch_of(step: Callable[[Texts, MiniBatch], None], texts: Texts) -> Callable[[], None]:
    batches = texts.batches(100, torch.Generator().manual_seed(0))

    def epoch() -> None:
        for batch in batches:
            step(texts, batch)

    return epoch


def make_step(
    sizes: dict[str, Any],
    device: torch.device,
    *,
    bf16: bool = False,
    compiled: bool = False,
    plain: bool = False,
) -> Callable[[Texts, MiniBatch], None]:
    torch.manual_seed(0)
    model = TextTransformer(**sizes).to(device)
    optimizer = MirrorDescent(model.parameters(), lr=1e-6, p=1.1)
    forward: Any = torch.compile(model, dynamic=True) if compiled else model

    def step(texts: Texts, batch: MiniBatch) -> None:
        labels = texts.labels[batch.rows]
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            if plain:
                logits = model.attention(texts.tokens[batch.rows], texts.lengths[batch.rows])[0]
            else:
                logits = forward(*texts.take(batch))
        optimizer.zero_grad()
        F.cross_entropy(logits.float(), labels, reduction="sum").backward()
        optimizer.step()

    return step


def timed(call: Callable[[], None], device: torch.device, warm: int, times: int) -> float:
    """Seconds per call."""
    for _ in range(warm):
        call()
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - start) / times


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
