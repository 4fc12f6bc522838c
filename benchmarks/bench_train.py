"""Trial-steps per second: `attsvm.dynamics.train` against a plain PyTorch loop over trials.

    python benchmarks/bench_train.py [--trials 500] [--json FILE] [--device cuda]
    python benchmarks/bench_train.py --rules [--steps 200]    every rule against gradient descent

The plain loop is what a researcher writes: a module, autograd, an optimizer, one trial after the other. Both run in
float64 on one thread; CPU times are process times, the best of some repeats, taken in turns in the same run.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from attsvm import LinearHead, Lp, TokenData, sphere
from attsvm.dynamics import Adam, Gaussian, Lion, Muon, RMSprop, Steepest, train
from attsvm.geometry import Group, Nuclear, Spectral

CASES = [("W", 1.75), ("W", 2.0), ("W", 3.0), ("KQ", 2.0), ("joint", 1.75), ("joint", 2.0), ("joint", 3.0)]
BLOCKS = {
    "W": {"W": (10, 10)},
    "KQ": {"K": (10, 10), "Q": (10, 10)},
    "joint": {"W": (10, 10), "v": (10, 1)},
}
BARS = {"W": 150, "KQ": 100, "joint": 100}


class Attention(nn.Module):
    """One layer of attention for one trial, as in the papers' code."""

    def __init__(self, d: int, parameterization: str, v: Tensor) -> None:
        super().__init__()
        start = lambda *shape: nn.Parameter(0.1 * torch.randn(*shape, dtype=torch.float64))  # noqa: E731
        self.factored = parameterization == "KQ"
        if self.factored:
            self.K, self.Q = start(d, d), start(d, d)
        else:
            self.W = start(d, d)
        if parameterization == "joint":
            self.v = start(d)
        else:
            self.register_buffer("v", v)

    def forward(self, X: Tensor, z: Tensor) -> Tensor:
        W = self.K @ self.Q.T if self.factored else self.W
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", X, W, z), dim=-1)
        return torch.einsum("nt,ntd->nd", attention, X) @ self.v


class Mirror(torch.optim.Optimizer):
    """Normalised ℓp mirror descent, as in the mirror-descent paper's code; p = 2 is normalised gradient descent."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, p: float) -> None:
        super().__init__(parameters, {"lr": lr, "p": p})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            p = group["p"]
            for w in group["params"]:
                g = w.grad / (torch.norm(w.grad, p / (p - 1)) + 2.2e-16)
                if p == 2:
                    w -= group["lr"] * g
                else:
                    theta = torch.sign(w) * torch.abs(w) ** (p - 1) - group["lr"] * g
                    w.copy_(torch.sign(theta) * torch.abs(theta) ** (1 / (p - 1)))


def plain(data: TokenData, parameterization: str, p: float, steps: int, lr: float = 0.1) -> None:
    """One trial after the other; the history of loss and weights is kept, as the papers' figures need it."""
    assert isinstance(data.head, LinearHead)
    for b in range(data.B):
        X, z, y = data.X[b], data.Z[b, :, 0], data.Y[b, :, 0]
        model = Attention(data.d, parameterization, data.head.v[b, 0])
        optimizer = Mirror(model.parameters(), lr, p)
        history = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = softplus(-y * model(X, z)).mean()
            loss.backward()
            optimizer.step()
            history.append((loss.item(), [w.detach().clone() for w in model.parameters()]))


def ours(data: TokenData, name: str, p: float, start: dict[str, Tensor], steps: int, compiled: bool) -> None:
    train(data, Lp(p), name, steps=steps, init=start, record=["loss"], compile=compiled)
    if data.device.type == "cuda":
        torch.cuda.synchronize()


def rate(run: Callable[..., None], *args: Any, trial_steps: int, clock: Callable[[], float]) -> float:
    """Trial-steps per second, the best of three: other work on the machine only ever slows a run down."""
    seconds = []
    for _ in range(3):
        begin = clock()
        run(*args)
        seconds.append(clock() - begin)
    return trial_steps / min(seconds)


RULES = {
    "gd": (Steepest(), 0.5),
    "momentum": (Steepest(momentum=0.9), 0.5),
    "sign": (Steepest(Lp(math.inf)), 0.5),
    "l3 steepest": (Steepest(Lp(3)), 0.5),
    "l1 steepest": (Steepest(Lp(1)), 0.5),
    "rmsprop": (RMSprop(), 0.5),
    "adam": (Adam(), 0.5),
    "adam, batch 3": (Adam(), 0.5),
    "lion": (Lion(), 0.5),
    "spectral": (Steepest(Spectral()), 0.25),
    "nuclear": (Steepest(Nuclear()), 0.25),
    "group": (Steepest(Group("rows")), 0.5),
    "muon": (Muon(), 0.25),
    "muon, Newton-Schulz": (Muon(newton_schulz=5), 0.25),
}
"""Rules, and the least share of gradient descent's speed."""


def by_rule(trials: int, steps: int, device: str, clock: Callable[[], float]) -> None:
    """Trial-steps per second of every rule, and as a share of gradient descent's."""
    data = sphere(6, 8, 10, trials=trials).to(device)
    first: dict[bool, float] = {}
    print(f"{trials} trials, n, T, d = 6, 8, 10; float64 on {device}; trial-steps per second, and as a share of gd's")
    print(f"{'':22}{'eager':>12}{'share':>8}{'compiled':>12}{'share':>8}{'bar':>6}")
    for name, (rule, bar) in RULES.items():
        cells = ""
        for compiled in (False, True):
            options: dict[str, Any] = {"rule": rule, "record": ["norm"], "lr": 0.02, "compile": compiled}
            options |= {"batch": 3} if "batch" in name else {}

            def run(count: int, options: dict[str, Any] = options) -> None:
                train(data, steps=count, at=[count], **options)
                if data.device.type == "cuda":
                    torch.cuda.synchronize()

            run(5)  # compiles
            speed = rate(run, steps, trial_steps=trials * steps, clock=clock)
            share = speed / first.setdefault(compiled, speed)
            cells += f"{speed:12,.0f}{share:8.2f}"
        print(f"{name:22}{cells}{bar:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[500])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rules", action="store_true", help="every rule against gradient descent")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # A GPU works while the process waits for it: wall time there.
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    if options.rules:
        by_rule(options.trials[0], options.steps, options.device, clock)
        return
    rows = []
    print(f"n, T, d = 6, 8, 10; float64 on {options.device}; trial-steps per second, and times the plain loop's")
    print(f"{'':6}{'p':>5}{'trials':>9}{'plain':>9}{'eager':>13}{'times':>7}{'compiled':>13}{'times':>7}{'bar':>5}")
    sample = sphere(6, 8, 10, trials=3)
    for trials in options.trials:
        data = sphere(6, 8, 10, trials=trials).to(options.device)
        for name, p in CASES:
            row: dict[str, Any] = {"parameterization": name, "p": p, "trials": trials, "device": options.device}
            row["plain"] = rate(plain, sample, name, p, 150, trial_steps=450, clock=time.process_time)
            start = Gaussian(0.1).draw(data.trials, BLOCKS[name])
            start = {block: x.flatten(1) if block == "v" else x for block, x in start.items()}
            for kind in ("eager", "compiled"):
                args = (data, name, p, start)
                ours(*args, 5, kind == "compiled")  # compiles
                total = trials * options.steps
                row[kind] = rate(ours, *args, options.steps, kind == "compiled", trial_steps=total, clock=clock)
            rows.append(row)
            eager, compiled = row["eager"], row["compiled"]
            print(
                f"{name:6}{p:5g}{trials:9,}{row['plain']:9,.0f}{eager:13,.0f}{eager / row['plain']:7,.0f}"
                f"{compiled:13,.0f}{compiled / row['plain']:7,.0f}{BARS[name]:5}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"sizes": {"n": 6, "T": 8, "d": 10}, "bars": BARS, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
