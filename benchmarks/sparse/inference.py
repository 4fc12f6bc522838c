"""Where zeros make a linear layer faster: `to_csr` on one CPU thread, 2:4 on a GPU, against the dense layer.

    python benchmarks/sparse/inference.py

prints tables in Markdown: the time of the dense layer over that of the sparse one, so above 1 the zeros pay.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.models import GPT
from attsvm.optim import prune, to_csr

SHAPES = ((1536, 384), (4096, 1024), (4096, 4096))  # outputs, inputs; the first is the benchmark's GPT
SHARES = (0.9, 0.95, 0.98, 0.99)


def seconds(run: Callable[[], Tensor], device: str, least: float = 0.2) -> float:
    """The time of a call: the median on a GPU, the best on a CPU, which others may use too. "graph" is a call inside a
    captured CUDA graph: without the time that the CPU takes to start it."""
    if device != "cpu":
        import triton.testing  # pyright: ignore[reportMissingImports]

        if device == "graph":
            return float(triton.testing.do_bench_cudagraph(run, rep=20, return_mode="median")) / 1e3
        return float(triton.testing.do_bench(run, rep=50, return_mode="median")) / 1e3
    for _ in range(3):
        run()
    times: list[float] = []
    while sum(times) < least or len(times) < 15:
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def sparse_weight(shape: tuple[int, int], share: float) -> Tensor:
    w = torch.randn(shape)
    return w * (w.abs() > w.abs().flatten().kthvalue(round(share * w.numel())).values)


@torch.inference_mode()
def csr_table(tokens: tuple[int, ...]) -> list[str]:
    lines = ["| layer | tokens | dense, ms | " + " | ".join(f"CSR, {s:.0%} zeros" for s in SHARES) + " |"]
    lines.append("|---" * (3 + len(SHARES)) + "|")
    for shape in SHAPES:
        for count in tokens:
            x, times = torch.randn(count, shape[1]), []
            dense = nn.Linear(shape[1], shape[0])
            base = seconds(partial(dense, x), "cpu")
            for share in SHARES:
                dense.weight.data.copy_(sparse_weight(shape, share))
                model = nn.Sequential(copy.deepcopy(dense))
                to_csr(model, share)
                torch.testing.assert_close(model(x), dense(x), rtol=1e-3, atol=1e-3)
                times.append(seconds(partial(model[0], x), "cpu"))
            ratios = " | ".join(f"{base / t:.2f}×" for t in times)
            lines.append(f"| {shape[1]} → {shape[0]} | {count} | {1e3 * base:.3f} | {ratios} |")
    return lines


@torch.inference_mode()
def model_table(tokens: tuple[int, ...], share: float = 0.95) -> list[str]:
    """The benchmark's GPT with random weights."""
    lines = ["| head | tokens | dense, ms | CSR, ms | |", "|---" * 5 + "|"]
    for head, tied in (("tied, dense", True), ("own, sparse", False)):
        dense = GPT(tied=tied).eval()
        prune(dense, share)
        model = copy.deepcopy(dense)
        to_csr(model, 0.9)  # one threshold for all leaves some with less
        for count in tokens:
            x = torch.randint(dense.words.num_embeddings, (1, count))
            torch.testing.assert_close(model(x), dense(x), rtol=1e-3, atol=1e-3)
            before, after = (seconds(partial(one, x), "cpu") for one in (dense, model))
            numbers = f"{1e3 * before:.1f} | {1e3 * after:.1f} | {before / after:.2f}×"
            lines.append(f"| {head} | {count} | {numbers} |")
    return lines


def two_of_four_table(tokens: tuple[int, ...]) -> list[str]:
    from torch.sparse import to_sparse_semi_structured

    lines = [
        "| layer | tokens | dense, ms | 2:4, ms | | dense in a graph, ms | 2:4 in a graph, ms | |",
        "|---" * 8 + "|",
    ]
    for shape in (*SHAPES, (16384, 8192)):
        w = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        fours = w.view(-1, 4)
        w = (fours * (fours.abs().argsort(1).argsort(1) >= 2)).view(shape)
        packed = to_sparse_semi_structured(w)
        for count in tokens:
            x = torch.randn(count, shape[1], device="cuda", dtype=torch.bfloat16)
            torch.testing.assert_close(F.linear(x, packed), F.linear(x, w), rtol=0.05, atol=1.0)
            numbers = []
            for how in ("cuda", "graph"):
                dense, sparse = (seconds(partial(F.linear, x, v), how) for v in (w, packed))
                numbers += [f"{1e3 * dense:.4f}", f"{1e3 * sparse:.4f}", f"{dense / sparse:.2f}×"]
            lines.append(f"| {shape[1]} → {shape[0]} | {count} | " + " | ".join(numbers) + " |")
    return lines


def main() -> None:
    warnings.filterwarnings("ignore", category=UserWarning)  # sparse tensors are in beta, it says
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        print("\n".join(two_of_four_table((64, 1024, 16384))), "\n", flush=True)
    print("\n".join(csr_table((1, 32, 256))), "\n")
    print("\n".join(model_table((1, 32, 256))))


if __name__ == "__main__":
    main()
