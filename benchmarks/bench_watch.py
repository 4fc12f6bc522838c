"""What it costs that a step on a CPU notices edited weights: its time with this watch over the time without it.

    OMP_NUM_THREADS=1 python benchmarks/bench_watch.py [--forms fused] [--cases decoder] [--p 1.75] [--rounds 25]

Process time of one thread, the best of some rounds. One optimizer takes all steps, so that both kinds find the same
memory. The first steps of a round are not timed: what the other kind left they compare as a whole, and that empties the
caches.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from bench_optim import CPU_CASES, parameters

from attsvm.optim import MirrorAdam, MirrorDescent, _native
from attsvm.optim._edits import Watch

UNTIMED, TIMED = 12, 4  # steps of either kind in a row


class Blind(Watch):
    """A watch that sees nothing."""

    def take_back(self, weight: Any, theta: Any, by_kernel: Any) -> bool:
        return False

    def sums(self, theta: Any) -> torch.Tensor:
        return theta.new_empty(0)

    def before(self, parts: Any, weight: Any, p: Any) -> None: ...

    def after(self, parts: Any, weight: Any) -> None: ...


@contextmanager
def unwatched(optimizer: MirrorAdam | MirrorDescent) -> Iterator[None]:
    watch, compiled = optimizer._watch, _native._compiled
    optimizer._watch = Blind()
    _native._compiled = lambda macros: compiled((*macros, "-DWATCH=0"))
    watch.__init__()  # a weight that is still lent would be copied by the step
    try:
        yield
    finally:
        optimizer._watch = watch
        _native._compiled = compiled


def price(optimizer: MirrorAdam | MirrorDescent, rounds: int) -> tuple[float, float]:
    """Seconds of a step with the watch and without it."""
    best = [float("inf")] * 2
    for _ in range(rounds):
        for k, kind in enumerate((nullcontext(), unwatched(optimizer))):
            with kind:
                for step in range(UNTIMED + TIMED):
                    start = time.process_time()
                    optimizer.step()
                    if step >= UNTIMED:
                        best[k] = min(best[k], time.process_time() - start)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=["fused", "foreach"], default=["fused", "foreach"])
    parser.add_argument("--cases", nargs="+", choices=CPU_CASES, default=[*CPU_CASES])
    parser.add_argument("--p", nargs="+", type=float, default=[1.1, 1.5, 1.75, 3.0])
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, ms with and without the watch, and their ratio")
    for form in options.forms:
        for make in (MirrorAdam, MirrorDescent):
            for case in options.cases:
                for p in options.p:
                    choice: dict[str, Any] = {form: True}
                    optimizer = make(parameters(CPU_CASES[case], "cpu"), lr=1e-6, p=p, **choice)
                    watched, plain = price(optimizer, options.rounds)
                    times = f"{watched * 1e3:8.2f}{plain * 1e3:8.2f}{watched / plain:7.3f}"
                    print(f"{form:8} {make.__name__:14} {case:8} p = {p:<5g}{times}", flush=True)


if __name__ == "__main__":
    main()
