"""Time of one optimizer step: MirrorDescent and MirrorAdam against torch's own and against the plain formula.

    python benchmarks/bench_optim.py [--device cuda] [--json FILE] [--sweep] [--cases CASE ...] [--threads 2]

On CUDA: 268M float32 parameters in 16 tensors and 1,000 small tensors, in CUDA-event time, with the bandwidth on the
bytes that must move and its share of a measured copy. On the CPU: the foreach and the fused forms, on one thread in
process time (on more in wall-clock time), and the multiple of AdamW's; steps alone, and in the training of a small
model, which leaves little in the cache.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attsvm.optim import MirrorAdam, MirrorDescent

LARGE = [(4096, 4096)] * 16
SMALL = [(1000 + 8 * (i % 7),) for i in range(1000)]
# A decoder of 4 layers and width 256 with 2,000 tokens: 3.7M parameters in 52 tensors.
LAYER = [
    (256,),
    (256,),
    (768, 256),
    (768,),
    (256, 256),
    (256,),
    (256,),
    (256,),
    (1024, 256),
    (1024,),
    (256, 1024),
    (256,),
]
DECODER = [(2000, 256), (256, 256), *LAYER * 4, (256,), (256,)]
CPU_CASES: dict[str, list[tuple[int, ...]]] = {
    "16x1M": [(1024, 1024)] * 16,
    "200x256": [(256,)] * 200,
    "200x4k": [(4096,)] * 200,
    "200x16k": [(16384,)] * 200,
    "decoder": DECODER,
}
TRAINING = "training"


class Plain(torch.optim.Optimizer):
    """Mirror descent as in public code: sign, abs and pow of the weights, nothing kept between steps."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, p: float) -> None:
        super().__init__(params, {"lr": lr, "p": p})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            lr, p = group["lr"], group["p"]
            for w in group["params"]:
                update = torch.sign(w) * torch.abs(w) ** (p - 1) - lr * w.grad
                w.copy_(torch.sign(update) * torch.abs(update) ** (1 / (p - 1)))


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# name, bytes a float32 parameter that must move, optimizer
CUDA_CASES: list[tuple[str, int, Make]] = [
    ("MirrorDescent p=1.1", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1)),
    ("MirrorDescent p=1.5", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.5)),
    ("MirrorDescent p=1.75", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.75)),
    ("MirrorDescent p=1.4", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.4)),
    ("MirrorDescent p=3", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=3)),
    ("MirrorDescent p=2", 12, lambda ps: MirrorDescent(ps, lr=1e-6, p=2)),
    ("MirrorDescent p=1.1 momentum", 24, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, momentum=0.9)),
    ("MirrorDescent p=1.1 normalised", 20, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, normalize="tensor")),
    ("MirrorDescent p=1.1 foreach", 16, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, foreach=True)),
    ("plain sign/abs/pow p=1.1", 16, lambda ps: Plain(ps, lr=1e-6, p=1.1)),
    ("torch SGD fused", 12, lambda ps: torch.optim.SGD(ps, lr=1e-6, fused=True)),
    ("MirrorAdam p=1.1", 32, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1)),
    ("MirrorAdam p=1.75", 32, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.75)),
    ("MirrorAdam p=2", 28, lambda ps: MirrorAdam(ps, lr=1e-6, p=2)),
    ("MirrorAdam p=1.1 foreach", 32, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1, foreach=True)),
    ("torch AdamW fused", 28, lambda ps: torch.optim.AdamW(ps, lr=1e-6, fused=True)),
]
CPU_OPTIMIZERS: list[tuple[str, Make]] = [
    ("torch AdamW foreach", lambda ps: torch.optim.AdamW(ps, lr=1e-6, foreach=True)),
    ("MirrorDescent p=1.1 foreach", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, foreach=True)),
    ("MirrorDescent p=1.5 foreach", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.5, foreach=True)),
    ("MirrorDescent p=1.75 foreach", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.75, foreach=True)),
    ("MirrorDescent p=2 foreach", lambda ps: MirrorDescent(ps, lr=1e-6, p=2, foreach=True)),
    ("MirrorDescent p=3 foreach", lambda ps: MirrorDescent(ps, lr=1e-6, p=3, foreach=True)),
    ("MirrorDescent p=1.1 fused", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, fused=True)),
    ("MirrorDescent p=1.5 fused", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.5, fused=True)),
    ("MirrorDescent p=1.75 fused", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.75, fused=True)),
    ("MirrorDescent p=1.1 single", lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1, foreach=False)),
    ("MirrorAdam p=1.1 foreach", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1, foreach=True)),
    ("MirrorAdam p=1.5 foreach", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.5, foreach=True)),
    ("MirrorAdam p=1.75 foreach", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.75, foreach=True)),
    ("MirrorAdam p=2 foreach", lambda ps: MirrorAdam(ps, lr=1e-6, p=2, foreach=True)),
    ("MirrorAdam p=3 foreach", lambda ps: MirrorAdam(ps, lr=1e-6, p=3, foreach=True)),
    ("MirrorAdam p=1.1 fused", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1, fused=True)),
    ("MirrorAdam p=1.5 fused", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.5, fused=True)),
    ("MirrorAdam p=1.75 fused", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.75, fused=True)),
    ("MirrorAdam p=2 fused", lambda ps: MirrorAdam(ps, lr=1e-6, p=2, fused=True)),
    ("MirrorAdam p=3 fused", lambda ps: MirrorAdam(ps, lr=1e-6, p=3, fused=True)),
    ("MirrorAdam p=1.1 fused, no θ", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1, fused=True, keep_mirror=False)),
    ("MirrorAdam p=1.1 single", lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1, foreach=False)),
    ("torch AdamW fused", lambda ps: torch.optim.AdamW(ps, lr=1e-6, fused=True)),
    ("torch AdamW single", lambda ps: torch.optim.AdamW(ps, lr=1e-6, foreach=False)),
    ("plain sign/abs/pow p=1.1", lambda ps: Plain(ps, lr=1e-6, p=1.1)),
]


def parameters(shapes: list[tuple[int, ...]], device: str) -> list[nn.Parameter]:
    params = [nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def cuda_seconds(work: Callable[[], Any], repeats: int = 20, inner: int = 5) -> float:
    """Median time of one call, `inner` calls queued together so that launches overlap as in training."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / inner / 1000)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per second of the best of some large device copies, read and write counted."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(cuda_seconds(lambda: target.copy_(source)) for _ in range(3))


def cuda_table(shapes: list[tuple[int, ...]], bandwidth: float) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    print(f"\n{len(shapes)} tensors, {sum(map(_size, shapes)) / 1e6:.1f}M parameters")
    print(f"{'':32} {'ms':>8} {'TB/s':>6} {'of copy':>8} {'graph ms':>9}")
    for name, size, make in CUDA_CASES:
        params = parameters(shapes, "cuda")
        optimizer = make(params)
        seconds = cuda_seconds(optimizer.step)
        rate = size * sum(map(_size, shapes)) / seconds
        row = {"ms": 1e3 * seconds, "TB/s": rate / 1e12, "of_copy": rate / bandwidth}
        if "capturable" in optimizer.defaults and "foreach" not in name and len(shapes) > 100:
            row["graph_ms"] = 1e3 * graph_seconds(optimizer)
        table[name] = row
        print(
            f"{name:32} {row['ms']:8.3f} {row['TB/s']:6.2f} {row['of_copy']:7.0%} {row.get('graph_ms', 0):9.3f}",
            flush=True,
        )
        del params, optimizer
        torch.cuda.empty_cache()
    return table


def graph_seconds(optimizer: torch.optim.Optimizer) -> float:
    """The step replayed as a CUDA graph."""
    for group in optimizer.param_groups:
        group["capturable"] = True
    optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return cuda_seconds(graph.replay)


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def bars(table: dict[str, dict[str, float]]) -> dict[str, tuple[float, str, bool]]:
    time_of = {name: row["ms"] for name, row in table.items()}
    descent, adam, adamw = time_of["MirrorDescent p=1.1"], time_of["MirrorAdam p=1.1"], time_of["torch AdamW fused"]
    values = {
        "MirrorDescent, share of copy bandwidth": (table["MirrorDescent p=1.1"]["of_copy"], ">=", 0.85),
        "MirrorDescent / AdamW fused": (descent / adamw, "<=", 0.55),
        "plain formula / MirrorDescent": (time_of["plain sign/abs/pow p=1.1"] / descent, ">=", 6.0),
        "MirrorAdam, share of copy bandwidth": (table["MirrorAdam p=1.1"]["of_copy"], ">=", 0.85),
        "MirrorAdam / AdamW fused": (adam / adamw, "<=", 1.25),
    }
    print(f"\n{'bar':42} {'measured':>9} {'wanted':>8}")
    result = {}
    for name, (value, sign, limit) in values.items():
        met = value >= limit if sign == ">=" else value <= limit
        result[name] = (value, f"{sign} {limit}", met)
        print(f"{name:42} {value:9.3f} {sign} {limit:5} {'met' if met else 'MISSED'}")
    return result


def sweep() -> dict[str, list[float]]:
    """The large case for other block sizes of the kernels."""
    from attsvm.optim import _triton

    default, result = (_triton.BLOCK, _triton.WARPS), {}
    print(f"\nblock sizes (default {default}), ms")
    cases = {
        "MirrorDescent p=1.1": lambda ps: MirrorDescent(ps, lr=1e-6),
        "MirrorDescent p=1.5": lambda ps: MirrorDescent(ps, lr=1e-6, p=1.5),
        "MirrorDescent p=1.4": lambda ps: MirrorDescent(ps, lr=1e-6, p=1.4),
        "MirrorAdam p=1.1": lambda ps: MirrorAdam(ps, lr=1e-6),
    }
    print(f"{'':10}" + "".join(f"{name:>22}" for name in cases))
    for block, warps in [(256, 2), (512, 2), (512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 16), (4096, 16)]:
        _triton.BLOCK, _triton.WARPS = block, warps
        times = []
        for make in cases.values():
            optimizer = make(parameters(LARGE, "cuda"))
            times.append(1e3 * cuda_seconds(optimizer.step, repeats=8))
            del optimizer
            torch.cuda.empty_cache()
        result[f"{block}/{warps}"] = times
        print(f"{block:6} {warps:3}" + "".join(f"{time:22.3f}" for time in times), flush=True)
    _triton.BLOCK, _triton.WARPS = default
    return result


def _clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def cpu_table(shapes: list[tuple[int, ...]], rounds: int = 15) -> dict[str, float]:
    """ms per step: the best of some rounds, the optimizers in turns."""
    optimizers = {name: make(parameters(shapes, "cpu")) for name, make in CPU_OPTIMIZERS}
    for optimizer in optimizers.values():
        optimizer.step()
    times: dict[str, float] = dict.fromkeys(optimizers, float("inf"))
    for _ in range(rounds):
        for name, optimizer in optimizers.items():
            start = _clock()
            for _ in range(3):
                optimizer.step()
            times[name] = min(times[name], (_clock() - start) / 3 * 1e3)
    return times


def training_table(rounds: int = 15) -> dict[str, float]:
    """ms per step between passes of a model of 4.2M parameters: the best of some rounds, in turns."""
    runs = []
    for name, make in CPU_OPTIMIZERS:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(2000, 256), layers, nn.Linear(256, 2000))
        runs.append((name, model, make(list(model.parameters()))))
    words = torch.randint(2000, (8, 64))
    times: dict[str, float] = {name: float("inf") for name, *_ in runs}
    for k in range(rounds + 2):  # two to warm up
        for name, model, optimizer in runs:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
            start = _clock()
            optimizer.step()
            if k >= 2:
                times[name] = min(times[name], (_clock() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sweep", action="store_true", help="also try other block sizes of the kernels")
    cases = [*CPU_CASES, TRAINING]
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases, help="on the CPU (default all)")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default 1)")
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    if options.device == "cuda":
        bandwidth = copy_bandwidth()
        result |= {"name": torch.cuda.get_device_name(), "copy_TB/s": bandwidth / 1e12}
        print(f"{result['name']}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s")
        result["large"] = cuda_table(LARGE, bandwidth)
        result["bars"] = bars(result["large"])
        result["small"] = cuda_table(SMALL, bandwidth)
        if options.sweep:
            result["sweep"] = sweep()
    else:
        torch.set_num_threads(options.threads)
        print(f"CPU, {options.threads} threads, torch {torch.__version__}, ms per step")
        result["cpu"] = {
            case: training_table() if case == TRAINING else cpu_table(CPU_CASES[case]) for case in options.cases
        }
        print(f"{'':32}" + "".join(f"{case:>16}" for case in options.cases))
        for name, _ in CPU_OPTIMIZERS:
            pairs = ((table[name], table[name] / table[CPU_OPTIMIZERS[0][0]]) for table in result["cpu"].values())
            print(f"{name:32}" + "".join(f"{ms:10.2f} {times:4.2f}x" for ms, times in pairs))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
