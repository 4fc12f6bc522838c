"""What a step of each method costs: time and memory of a GPT that is being pruned to 90%.

    python benchmarks/sparse/cost.py [--corpus imdb]

prints a table in Markdown. One process alone, on a GPU compiled with bf16 autocast, on a CPU eager on one thread, with
random tokens. The time of a step is the mean over the third quarter of the steps, which begins after the first masks,
when all kernels are compiled; memory is the most that was allocated on a GPU, and what the optimizer keeps for the
matrices.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from attsvm.experiments.sparse.methods import Family, start_model
from attsvm.experiments.sparse.samples import SHAPES, Corpus
from attsvm.experiments.sparse.training import Run, loss_of, pruning_of

METHODS = {
    "AdamW": ("adamw", {}),
    "MirrorAdam p = 1.1": ("mirror", {"p": 1.1}),
    "MirrorAdam p = 1.25": ("mirror", {"p": 1.25}),
    "MirrorAdam p = 1.5": ("mirror", {"p": 1.5}),
    "powerprop, alpha = 10": ("powerprop", {"alpha": 10.0}),
    "powerprop, alpha = 2": ("powerprop", {"alpha": 2.0}),
    "Muon": ("muon", {}),
    "MirrorMuon p = 1.5": ("mirror-muon", {"p": 1.5, "head_lr": 1e-3}),
    "RigL": ("rigl", {}),
    "L1-proximal AdamW": ("mirror", {"p": 2.0, "l1": 0.1}),
    "AdaBreg": ("adabreg", {"l1": 0.1}),
    "pAdam": ("padam", {"q": 0.8, "decay": 0.01}),
}
PENALTIES = ("L1-proximal AdamW", "AdaBreg", "pAdam")  # they are not pruned
TOTAL = 400


def kept_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in states if isinstance(value, torch.Tensor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", choices=["imdb", "wikitext-2", "wikitext-characters"], default="imdb")
    shape = SHAPES[parser.parse_args().corpus]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    stream = np.random.default_rng(0).integers(shape.vocabulary, size=400 * shape.batch * shape.length)
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "random.npz", train=stream.astype(np.int32))
        corpus = Corpus(Path(folder) / "random.npz", device)
    losses = torch.compile(loss_of) if device == "cuda" else loss_of
    model = start_model(shape, Family("adamw", 1e-3, 0, tied=False)).to(device)
    print("| | ms per step | × AdamW | GB at most | bytes of state per entry |", "|---|---|---|---|---|", sep="\n")
    base = 0.0
    for name, (method, options) in METHODS.items():
        family = Family(method, 1e-3, 0, tied=False, init="torch", options=options)
        model.load_state_dict(start_model(shape, family).state_dict())
        run = Run(family, corpus, shape, losses, model, TOTAL, fused=True)
        pruning = pruning_of(run, 0.0 if name in PENALTIES else 0.9)
        first, last = TOTAL // 2, 3 * TOTAL // 4  # the first masks come `every` steps after a fifth
        run.advance(first, pruning)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = run.seconds
        run.advance(last, pruning)
        time = 1e3 * (run.seconds - before) / (last - first)
        base = base or time
        most = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
        entries = sum(w.numel() for group in run.optimizers[0].param_groups for w in group["params"])
        state = kept_bytes(run.optimizers[0]) / entries
        print(f"| {name} | {time:.2f} | {time / base:.2f} | {most:.2f} | {state:.1f} |", flush=True)


if __name__ == "__main__":
    main()
