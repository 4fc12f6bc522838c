"""The runs of real transformers behind docs/transformers.md: what is missing, computing it, and speed.

    python benchmarks/run_transformers.py list
    python benchmarks/run_transformers.py run --imdb imdb.npz --probes probes.npz --cifar10 cifar10.npz --slots 6
    python benchmarks/run_transformers.py speed --imdb imdb.npz
    python benchmarks/run_transformers.py share --imdb imdb.npz --slots 6

The .npz files are made by `attsvm transformer tokens`, `encode_probes(…).save` and `save_data`. `run` shares one device
among several processes, stops after --seconds, Ctrl-C or SIGTERM with a checkpoint of what is unfinished in --work, and
goes on from there when it is called again. Finished pieces are JSON files in --results. Needs torch, numpy and
safetensors only.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from attsvm.models import TextTransformer
from attsvm.optim import MirrorDescent
from attsvm.transformer import Data, Progress, Texts, load_data, load_probes, synthetic_sentiment, tiny_images
from attsvm.transformer._data import Batch
from attsvm.transformer._pieces import Piece, missing, plan, read_piece, run_piece, write_piece

RESULTS = Path(__file__).parent / "results" / "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "run", "speed", "share"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/transformers"))
    parser.add_argument("--imdb", type=Path)
    parser.add_argument("--probes", type=Path)
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--memory", type=float, default=1.0, help="part of the device's memory that a process may take")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of training; measuring takes some more")
    parser.add_argument("--only", nargs="+", default=[""], help="regular expressions on names, in this order")
    parser.add_argument("--tiny", action="store_true", help="built-in data and small models: a rehearsal on the CPU")
    options = parser.parse_args()
    start = time.time()
    {"list": list_pieces, "run": run, "speed": speed, "share": share}[options.command](options, start)


def pieces(options: argparse.Namespace) -> list[Piece]:
    chosen = {piece.name: piece for only in options.only for piece in plan() if re.search(only, piece.name)}
    return [tiny(piece) if options.tiny else piece for piece in chosen.values()]


def tiny(piece: Piece) -> Piece:
    sizes = {"width": 24, "hidden": 24, "layers": 2} | ({"length": 32} if piece.data == "imdb" else {"heads": 2})
    return replace(piece, settings=replace(piece.settings, sizes=sizes, compile=False, epochs=3, batch=32))


def list_pieces(options: argparse.Namespace, start: float) -> None:
    for piece in pieces(options):
        found = read_piece(options.results, piece) or read_piece(options.results, piece, unfinished=True)
        if found is None:
            print(f"{'missing':>8}  {piece.name}")
            continue
        history = found["history"]
        accuracy, epochs = history["test_accuracy"], len(history["epoch"])
        print(f"{epochs:>8}  {piece.name}: best {max(accuracy):.4f}, last {accuracy[-1]:.4f} ({found['stopped']})")


def run(options: argparse.Namespace, start: float) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    places = {"imdb": options.imdb, "cifar10": options.cifar10}
    ready = [piece for piece in pieces(options) if options.tiny or places[piece.data] is not None]
    context = mp.get_context("spawn")
    queue = context.Queue()
    for piece in missing(options.results, ready):
        queue.put(piece)
    deadline = start + options.seconds
    workers = [context.Process(target=work, args=(n, options, queue, deadline)) for n in range(options.slots)]
    for worker in workers:
        worker.start()

    def stop(number: int, frame: Any) -> None:
        nonlocal deadline
        deadline = min(deadline, time.time())
        for worker in workers:
            worker.terminate()  # asks: see work

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    for worker in workers:
        while worker.is_alive() and time.time() < deadline + 60:
            worker.join(1.0)
        if worker.is_alive():
            print(f"worker {worker.pid} did not end in time", flush=True)
            worker.kill()


def work(number: int, options: argparse.Namespace, queue: Any, deadline: float) -> None:
    """Take pieces from the queue until it is empty or time is up."""
    torch.set_num_threads(1)
    if options.device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(options.memory)
    asked_to_stop = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: asked_to_stop.set())

    def stop() -> bool:
        return asked_to_stop.is_set() or time.time() > deadline

    loaded: dict[str, Data] = {}
    probes = None if options.probes is None or options.tiny else load_probes(options.probes)
    while not stop():
        try:
            piece: Piece = queue.get(timeout=2.0)
        except Empty:
            return
        if piece.data not in loaded:
            loaded[piece.data] = open_data(options, piece.data)
        log = Log(number, piece.name)
        result = run_piece(
            piece,
            loaded[piece.data],
            probes=probes,
            device=options.device,
            work=options.work,
            stop=stop,
            report=log,
        )
        if result is not None:
            write_piece(options.results, result)
        log.end("not begun" if result is None else result["stopped"])
        torch.compiler.reset()


def open_data(options: argparse.Namespace, name: str) -> Data:
    if options.tiny:
        return synthetic_sentiment() if name == "imdb" else tiny_images()
    return load_data(getattr(options, name))


class Log:
    """A line an epoch, and steps a second over the whole sitting."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name, self.epochs, self.steps, self.first = number, name, -1, 0, 0.0
        self.begun = time.time()

    def __call__(self, progress: Progress) -> None:
        if self.steps == 0:
            self.epochs, self.first = len(progress.history), time.time()
        self.steps += 1
        if len(progress.history) > self.epochs:
            self.epochs = len(progress.history)
            row = progress.history[-1]
            self.say(f"{row['epoch']:3d} {row['train_accuracy']:.4f} {row['test_accuracy']:.4f} {row['seconds']:.2f}s")

    def end(self, how: str) -> None:
        rate = self.steps / max(1e-9, time.time() - self.first)
        self.say(f"{how}: {self.steps} steps, {rate:.1f} a second, {self.first - self.begun:.1f}s to the first")

    def say(self, text: str) -> None:
        print(f"[{self.number}] {self.name} {text}", flush=True)


def speed(options: argparse.Namespace, start: float) -> None:
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
        print(f"{name:40} {found[name]:8.2f} ms a step", flush=True)
    for name, texts in (("packed", train), ("padded to 512", padded)):
        found[f"epoch, {name}"] = timed(epoch_of(steps[fast], texts), device, 1, 2)
        print(f"{'epoch, ' + name:40} {found[f'epoch, {name}']:8.3f} s", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "speed.json").write_text(json.dumps(found, indent=1) + "\n")


def share(options: argparse.Namespace, start: float) -> None:
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


def epoch_of(step: Callable[[Texts, Batch], None], texts: Texts) -> Callable[[], None]:
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
) -> Callable[[Texts, Batch], None]:
    torch.manual_seed(0)
    model = TextTransformer(**sizes).to(device)
    optimizer = MirrorDescent(model.parameters(), lr=1e-6, p=1.1)
    forward: Any = torch.compile(model, dynamic=True) if compiled else model

    def step(texts: Texts, batch: Batch) -> None:
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
    """Seconds a call."""
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
