"""`attsvm train`: train, judge, draw; a killed run goes on where it was."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attsvm.checks import as_device
from attsvm.cli import INCOMPLETE
from attsvm.cli._common import console
from attsvm.cli._verdict import TRAJECTORY, draw_run, judge, print_verdict, write_verdict
from attsvm.data import TokenData, load
from attsvm.dynamics import Gaussian, Growing, Trajectory, train
from attsvm.dynamics._compile import wants_compiled
from attsvm.dynamics._record import plan
from attsvm.errors import AttsvmError
from attsvm.files import clear_leftovers, make_folder

CHECKPOINT_SECONDS = 15.0
"""How much work a killed run may lose."""
RECORDED_BYTES = 5e8
"""W is recorded (for the direction error along the run) while all its copies take no more than this."""


class Parameterization(StrEnum):
    W = "W"
    KQ = "KQ"
    joint = "joint"


class LossName(StrEnum):
    logistic = "logistic"
    exponential = "exponential"
    correlation = "correlation"


def train_command(
    data: Annotated[Path, typer.Argument(help="Token data, .npz or .safetensors.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the run; a run that is there already goes on.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps to take in all.")],
    geometry: Annotated[str, typer.Option(help="l and a number p > 1 (ℓp mirror descent), or nuclear.")] = "l2",
    parameterization: Annotated[Parameterization, typer.Option(help="What is trained.")] = Parameterization.W,
    normalize: Annotated[
        bool, typer.Option("--normalize/--plain", help="Steps of unit dual norm, or plain ones.")
    ] = True,
    lr: Annotated[float, typer.Option(min=0, help="Step size η.")] = 0.1,
    growing: Annotated[
        float, typer.Option(min=0, help="Step size max(η, G·‖θ‖/k) that grows with the weights; 4 is a good G, 0 off.")
    ] = 0.0,
    loss: Annotated[LossName, typer.Option(help="Loss.")] = LossName.logistic,
    init_scale: Annotated[
        float | None, typer.Option(min=0, help="Gaussian start of this scale; without it 0 (0.1 for KQ).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a Gaussian start; 0 if not given.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width m of K and Q.")] = None,
    ridge: Annotated[
        float, typer.Option(min=0, help="Penalty r·(‖K‖² + ‖Q‖²) or r·‖W‖²; 1e-100 brings (K, Q) to its limit.")
    ] = 0.0,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train attention on every trial, then say which limit it went to and whether it got there."""
    if init_scale is None and parameterization is Parameterization.KQ:
        init_scale = 0.1
    if seed is not None and init_scale is None:
        raise AttsvmError("--seed is that of a Gaussian start, and this one is 0: give --init-scale too.")
    loaded = load(data).to(device=as_device(device))
    options: dict[str, Any] = {
        "geometry": geometry,
        "parameterization": parameterization.value,
        "lr": Growing(lr, growing) if growing else lr,
        "normalize": normalize,
        "loss": loss.value,
        "init": None if init_scale is None else Gaussian(init_scale, seed or 0),
        "m": width,
        "ridge": ridge,
        "record": _record(loaded, steps),
    }
    try:
        trajectory = _run(loaded, out, steps, options, progress=not quiet)
    except KeyboardInterrupt:
        if (out / TRAJECTORY).is_file():
            typer.echo(f"The run is kept in {out}: the same command goes on from there.", err=True)
        raise
    judged = judge(trajectory)
    write_verdict(judged, out)
    pictures = draw_run(trajectory, judged, out)
    print_verdict(judged)
    for path in (out / TRAJECTORY, out / "verdict.json", *pictures):
        console().print(f"wrote {path}", highlight=False)
    if not bool(judged.finite.all()):
        raise typer.Exit(INCOMPLETE)


def _record(data: TokenData, steps: int) -> tuple[str, ...]:
    size = 8 * data.B * data.d * data.e * len(plan("log", 0, steps))
    return ("loss", "norm", "top_weight", "log_rest", "tokens", *(("W",) if size <= RECORDED_BYTES else ()))


def _run(data: TokenData, out: Path, steps: int, options: dict[str, Any], progress: bool) -> Trajectory:
    """Train in pieces of some seconds, and save after each: the steps do not depend on how they are cut."""
    clear_leftovers(make_folder(out) / TRAJECTORY)
    trajectory = _earlier(data, out, steps, options)
    compiled = wants_compiled(data, steps) if trajectory is None else trajectory.state.compiled
    done, piece = (0, 200) if trajectory is None else (trajectory.state.step, 200)
    bar = _Bar(progress, done, steps)
    with bar:
        while trajectory is None or done < steps:
            start = time.monotonic()
            target = min(steps, done + piece)
            trajectory = train(data, steps=target, resume=trajectory, compile=compiled, **options)
            compiled = trajectory.state.compiled
            elapsed = time.monotonic() - start
            done = target
            bar.update(done)
            piece = max(1, int(piece * min(10.0, CHECKPOINT_SECONDS / max(elapsed, 1e-3))))
            trajectory.save(out / TRAJECTORY)
    return trajectory


def _earlier(data: TokenData, out: Path, steps: int, options: dict[str, Any]) -> Trajectory | None:
    """The run that is in the folder already, if it is the beginning of this one."""
    path = out / TRAJECTORY
    if not path.is_file():
        return None
    earlier = Trajectory.load(path)
    # A run of no steps has the settings that this one would have, in the words of the trajectory.
    wanted = train(data, steps=0, at=1, **options)
    mine, theirs = (dict(x.settings, steps=None) for x in (wanted, earlier))
    same = (
        mine == theirs
        and (wanted.parameterization, wanted.geometry) == (earlier.parameterization, earlier.geometry)
        and wanted.data.equals(earlier.data)
    )
    if not same:
        raise AttsvmError(f"{out} holds another run (other data or options): choose another --out or remove it.")
    if earlier.state.step > steps:
        raise AttsvmError(f"{out} holds {earlier.state.step} steps of this run already: --steps must be at least that.")
    return earlier


class _Bar:
    """A progress bar with an ETA over the whole run, whatever its pieces."""

    def __init__(self, wanted: bool, first: int, last: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not wanted)
        self.task = self.progress.add_task("train", total=last, completed=first)

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, step: int) -> None:
        self.progress.update(self.task, completed=step)
