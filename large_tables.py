"""Large tensors by the table against launches of their own: ms per step on CUDA, and whether both take the same steps.

PYTHONPATH=src python3 large_tables.py
"""

import gc
import itertools
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, _tables, _triton

BEGAN = time.perf_counter()
BUDGET = 85.0
NEVER = 1 << 62

ONE_LAYER = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,), (3072, 768), (3072,)]
GPT2 = [(50257, 768), (1024, 768), *[*ONE_LAYER, (768, 3072), (768,)] * 12, (768,), (768,)]
CASES: dict[str, list[tuple[int, ...]]] = {
    "24 x 1M": [(1024, 1024)] * 24,
    "16 x 16.8M": [(4096, 4096)] * 16,
    "1000 small": [(1000 + 8 * (i % 7),) for i in range(1000)],
    "GPT-2": GPT2,
    "GPT-2 + bias of 10": [*GPT2, (10, 768), (10,)],
}
# LARGE, ALIGN, SPLIT
VARIANTS: dict[str, tuple[int, bool, int]] = {
    "i own": (1 << 20, False, NEVER),
    "ii table": (NEVER, False, NEVER),
    "iii aligned": (NEVER, True, 0),
    "iii no split": (NEVER, True, NEVER),  # differs where tensors are mixed
}
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
F32, BF16 = torch.float32, torch.bfloat16
OPTIMIZERS: dict[str, tuple[torch.dtype, Make]] = {
    "Adam 1.1": (F32, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1)),
    "Adam 1.5": (F32, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.5)),
    "Descent 1.1": (F32, lambda ps: MirrorDescent(ps, lr=1e-6, p=1.1)),
    "Adam 1.1 bf16": (BF16, lambda ps: MirrorAdam(ps, lr=1e-6, p=1.1)),
}
ADAMW: Make = lambda ps: torch.optim.AdamW(ps, lr=1e-6, fused=True)  # noqa: E731


def say(*words: Any, sep: str = " ") -> None:
    print(*words, sep=sep, flush=True)


@contextmanager
def guarded(name: str):
    try:
        yield
    except Exception:
        say(f"FAILED {name}:", *traceback.format_exc().strip().splitlines()[-4:], sep="\n    ")
    gc.collect()
    torch.cuda.empty_cache()


def use(variant: str) -> None:
    _triton.LARGE, _triton.ALIGN, _tables.SPLIT = VARIANTS[variant]
    _tables._table.cache_clear()
    _tables._set_aside.clear()


def left() -> float:
    return BUDGET - (time.perf_counter() - BEGAN)


def milliseconds(work: Callable[[], Any], repeats: int, inner: int = 5) -> float:
    """Median time of one call, `inner` calls queued together."""
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
        times.append(start.elapsed_time(end) / inner)
    return statistics.median(times)


def parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[nn.Parameter]:
    params = [nn.Parameter((0.02 * torch.randn(s, device="cuda")).to(dtype)) for s in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def with_fresh(optimizer: Any, params: list[nn.Parameter], sets: int) -> Callable[[], None]:
    grads = [[torch.randn_like(p) for p in params] for _ in range(sets)]
    turns = itertools.count()

    def work() -> None:
        for p, g in zip(params, grads[next(turns) % sets]):
            p.grad = g
        optimizer.step()

    return work


def time_case(case: str) -> None:
    shapes = CASES[case]
    entries = sum(torch.Size(s).numel() for s in shapes)
    mixed, missed = "bias" in case, case in ("24 x 1M", "1000 small")
    repeats = 6 if entries > 1e8 else 12
    variants = [v for v in VARIANTS if mixed or v != "iii no split"]
    say(f"\n{case}: {len(shapes)} tensors, {entries / 1e6:.1f}M; ms: same gradients / 2 sets / 70 sets {left():.0f}s")
    rows = [("AdamW fused", F32, ADAMW, [""]), ("AdamW fused bf16", BF16, ADAMW, [""])]
    rows += [(name, dtype, make, variants) for name, (dtype, make) in OPTIMIZERS.items()]
    for name, dtype, make, used in rows[0:3:2] if mixed else rows:
        if left() < 0:
            say("  out of time:", name)
            continue
        with guarded(f"{case} {name}"):
            params = parameters(shapes, dtype)
            optimizer = make(params)
            found: dict[str, list[float]] = {}
            work_2 = with_fresh(optimizer, params, 2)
            kept = [p.grad for p in params]
            for v in used:
                if v:
                    use(v)
                for p, g in zip(params, kept):
                    p.grad = g
                found[v] = [milliseconds(optimizer.step, repeats), milliseconds(work_2, repeats)]
            if missed and name in ("Adam 1.1", "AdamW fused"):
                work_70 = with_fresh(optimizer, params, 70)
                for v in used:
                    if v:
                        use(v)
                    found[v].append(milliseconds(work_70, 15, inner=10))
            text = "  ".join(f"{v} {'/'.join(f'{t:.3f}' for t in ts)}" for v, ts in found.items())
            say(f"  {name:16} {text}")
            del params, optimizer, work_2, kept


def step_host() -> None:
    """Time of the host alone for one step, without waiting for the device."""
    say(f"\nhost ms of a step of Adam 1.1, same gradients / addresses never seen {left():.0f}s")
    for case in ("24 x 1M", "1000 small"):
        params = parameters(CASES[case], F32)
        optimizer = OPTIMIZERS["Adam 1.1"][1](params)
        work_70 = with_fresh(optimizer, params, 70)
        for v in list(VARIANTS)[:3]:
            use(v)
            times = []
            for work in (optimizer.step, work_70):
                work()
                ts = []
                for _ in range(20):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    work()
                    ts.append(1e3 * (time.perf_counter() - start))
                times.append(statistics.median(ts))
            say(f"  {case:12} {v:12} {times[0]:.3f}/{times[1]:.3f}")


def sweep() -> None:
    """Other block sizes for the aligned table and for own launches."""
    say(f"\n16 x 16.8M, other blocks (block/warps), ms: i own | iii aligned {left():.0f}s")
    before = _triton.BLOCK, _triton.WARPS
    for name in ("Adam 1.1",):
        dtype, make = OPTIMIZERS[name]
        params = parameters(CASES["16 x 16.8M"], dtype)
        optimizer = make(params)
        for block, warps in [(512, 4), (1024, 4), (1024, 8), (2048, 8)]:
            if left() < 0:
                break
            _triton.BLOCK, _triton.WARPS = block, warps
            times = []
            for v in ("i own", "iii aligned"):
                use(v)
                times.append(milliseconds(optimizer.step, 6))
            say(f"  {name:12} {block}/{warps}: {times[0]:.3f} | {times[1]:.3f}")
        _triton.BLOCK, _triton.WARPS = before


def start(dtype: torch.dtype) -> list[nn.Parameter]:
    """Large, odd, small and unaligned tensors."""
    generator = torch.Generator("cuda").manual_seed(0)

    shapes = [(1024, 1024), (1_000_003, 1), (2048, 2048), (64, 64), (10,), ((1 << 20) + 16,)]

    def draw(size: Any) -> torch.Tensor:
        return (0.1 * torch.randn(size, generator=generator, device="cuda")).to(dtype)

    params = [nn.Parameter(draw(n)) for n in shapes]
    return [*params, nn.Parameter(draw((1 << 20) + 1)[1:].detach()), nn.Parameter(draw(2001)[1:].detach())]


def trained(variant: str, make: Make, dtype: torch.dtype, masks: str) -> list[torch.Tensor]:
    use(variant)
    params = start(dtype)
    optimizer: Any = make(params)
    pruning = None
    if masks == "set":
        for p in params[::2]:
            optimizer.set_mask(p, (torch.arange(p.numel(), device="cuda") % 3 > 0).view(p.shape))
    elif masks == "gradual":
        pruning = GradualPruning(optimizer, 0.5, 5, start=0.0, end=0.8, every=1, params=params)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(5):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, device="cuda").to(dtype)
        optimizer.step()
        if pruning is not None:
            pruning.step()
    kept = [t for p in params for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
    return [t.detach().clone() for t in (*params, *kept)]


def compare(what: str, first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    unequal = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if not torch.equal(a, b)]
    for i in unequal[:4]:
        a, b = first[i].double(), second[i].double()
        say(f"  UNEQUAL {what}: tensor {i} of {a.numel()}, {int((a != b).sum())} entries, {(a - b).abs().max():.2e}")
    return not unequal


def check_steps() -> None:
    say(f"\nsteps: weights and states of (ii), (iii), (iii no split) against (i), bitwise {left():.0f}s")
    good = total = 0
    for kind, p, masks, dtype, more in [
        (MirrorAdam, 1.1, "", F32, {}),
        (MirrorAdam, 1.5, "set", F32, {}),
        (MirrorAdam, 1.4, "", F32, {}),
        (MirrorAdam, 1.1, "gradual", F32, {}),
        (MirrorAdam, 1.1, "", BF16, {}),
        (MirrorDescent, 1.1, "set", F32, {}),
        (MirrorDescent, 1.5, "", F32, {"momentum": 0.9, "normalize": "tensor"}),
    ]:
        name = f"{kind.__name__} p={p} {masks} {dtype} {more}"
        with guarded(name):
            make: Make = lambda ps: kind(ps, lr=1e-3, p=p, fused=True, **more)  # noqa: B023, E731
            expected = trained("i own", make, dtype, masks)
            for variant in list(VARIANTS)[1:]:
                total += 1
                good += compare(f"{name} {variant}", expected, trained(variant, make, dtype, masks))
    say(f"  {good} of {total} equal")


def captured(variant: str, replayed: bool, before: int, kind: Any) -> list[torch.Tensor]:
    """Three steps, replayed from a graph or not, after `before` others."""
    use(variant)
    params = start(F32)
    optimizer = kind(params, lr=torch.tensor(1e-3, device="cuda"), p=1.1, fused=True, capturable=True)
    generator = torch.Generator("cuda").manual_seed(2)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(before):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    if not replayed:
        for _ in range(3):
            optimizer.step()
    else:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for p in params:
                assert p.grad is not None
                p.grad = p.grad.clone()  # another address, of the graph's own memory
            optimizer.step()
        _tables._table.cache_clear()
        _tables._blocks.cache_clear()
        gc.collect()
        junk = [torch.full((1 << 20,), -1, device="cuda") for _ in range(50)]  # where freed tables would lie
        del junk
        for _ in range(3):
            graph.replay()
    torch.cuda.synchronize()
    return [p.detach().clone() for p in params]


def check_graphs() -> None:
    say(f"\ngraphs: replays against steps of (i), bitwise {left():.0f}s")
    good = total = 0
    for kind in (MirrorAdam, MirrorDescent):
        with guarded(f"graph {kind.__name__}"):
            expected = captured("i own", False, 2, kind)
            for variant in VARIANTS:
                for replayed in (False, True):
                    total += 1
                    with guarded(f"graph {variant} {replayed}"):
                        found = captured(variant, replayed, 2, kind)
                        good += compare(f"{kind.__name__} {variant} replayed={replayed}", expected, found)
    say(f"  {good} of {total} equal")
    with guarded("two graphs after one step"):
        use("iii aligned")
        params = start(F32)
        optimizer = MirrorAdam(params, lr=1e-3, p=1.1, fused=True, capturable=True)
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        for graph in graphs:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                optimizer.step()
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        say("  a second capture without a step before it:", all(bool(p.isfinite().all()) for p in params))


def main() -> None:
    import triton

    say(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    torch.cuda.synchronize()
    for case in CASES:
        with guarded(case):
            time_case(case)
    for part in (check_steps, check_graphs, step_host, sweep):
        if left() < 0 and part in (step_host, sweep):
            say("out of time:", part.__name__)
            continue
        with guarded(part.__name__):
            part()
    say(f"\n{time.perf_counter() - BEGAN:.0f} seconds")


if __name__ == "__main__":
    main()
