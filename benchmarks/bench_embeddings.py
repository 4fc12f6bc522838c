"""A gradient of the one-layer model: two numbers per token against gathered embeddings and autograd.

    python benchmarks/bench_embeddings.py

A batch of 128 sequences of 50 to 500 tokens, whose frequencies fall like 1/rank as words' do, from a vocabulary of
7,000; float32, one thread; CPU times are process times, the best of some repeats, both in the same run.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding, softplus
from torch.nn.utils.rnn import pad_sequence

from attsvm.embeddings import Embeddings, Sequences, gradients, initial_embeddings

SIZE, BATCH, REPEATS = 7000, 128, 5


def made_up() -> Sequences:
    stream = np.random.default_rng(0)
    lengths = stream.integers(50, 501, size=BATCH)
    frequency = 1 / np.arange(1, SIZE + 1)
    ids = stream.choice(SIZE, size=lengths.sum(), p=frequency / frequency.sum())
    return Sequences.of(ids, np.concatenate([[0], np.cumsum(lengths)]), stream.choice([1, -1], size=BATCH), SIZE)


def gathered(ids: Tensor, absent: Tensor, Y: Tensor, at: Embeddings) -> list[Tensor]:
    """The gradient as one writes it down: all embeddings of the batch (n, T, d), padded, and autograd."""
    leaves = [tensor.detach().requires_grad_() for tensor in at]
    X = embedding(ids, leaves[0])
    q = torch.softmax((X @ leaves[1]).masked_fill(absent, -torch.inf), -1)
    f = (q[..., None] * X).sum(1) @ leaves[2]
    return list(torch.autograd.grad(softplus(-Y * f).mean(), leaves))


def best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    data = made_up()
    short = data.merged().to("cpu", torch.float32)
    parts = list(torch.split(data.ids, data.offsets.diff().tolist()))
    padded = pad_sequence(parts, batch_first=True, padding_value=-1)
    ids, absent, Y = padded.clamp_min(0), padded < 0, data.Y.float()
    print("| d | two numbers per token | gathered | ratio | largest relative difference |\n|---|---|---|---|---|")
    for d in (64, 256, 1024):
        at = Embeddings(*(tensor.float() for tensor in initial_embeddings(SIZE, d)))
        ours, theirs = gradients(short, at)[1], gathered(ids, absent, Y, at)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs))
        fast = best(lambda at=at: gradients(short, at))
        slow = best(lambda at=at: gathered(ids, absent, Y, at))
        print(f"| {d} | {1e3 * fast:.1f} ms | {1e3 * slow:.0f} ms | {slow / fast:.0f}× | {error:.0e} |")


if __name__ == "__main__":
    main()
