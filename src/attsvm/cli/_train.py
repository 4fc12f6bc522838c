"""`attsvm train`: train, judge, draw; an interrupted or killed run resumes where it was."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from attsvm.cli import INCOMPLETE
from attsvm.cli._common import DataFile, Device, RunFolder, console, resumable
from attsvm.cli._verdict import TRAJECTORY, all_well, draw_run, print_verdict, write_verdict
from attsvm.errors import AttsvmError
from attsvm.identity import run_folder

Parameterization = Literal["W", "KQ", "joint"]
LossName = Literal["logistic", "exponential", "correlation", "log"]


def train_command(
    data: DataFile,
    out: RunFolder,
    steps: Annotated[int, typer.Option(min=1, help="Steps to take in all.")],
    geometry: Annotated[
        str | None,
        typer.Option(
            help="l and a number p > 1 (ℓp mirror descent), or nuclear; l2 if not given. With --rule: the norm "
            "of the limit, what theory predicts if not given."
        ),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="Another way to step: gd, sign, spectral, adam, rmsprop, lion or muon.")
    ] = None,
    parameterization: Annotated[Parameterization, typer.Option(help="What is trained.")] = "W",
    normalize: Annotated[
        bool, typer.Option("--normalize/--plain", help="Steps of unit dual norm, or plain ones.")
    ] = True,
    lr: Annotated[float, typer.Option(min=0, help="Step size η.")] = 0.1,
    growing: Annotated[
        float, typer.Option(min=0, help="Step size max(η, G·‖θ‖/k) that grows with the weights; 4 is a good G, 0 off.")
    ] = 0.0,
    loss: Annotated[
        LossName,
        typer.Option(
            metavar="NAME",
            help="logistic, exponential or correlation; log, which is for data of classes and next tokens.",
        ),
    ] = "logistic",
    init_scale: Annotated[
        float | None, typer.Option(min=0, help="Gaussian start of this scale; without it 0 (0.1 for KQ).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a Gaussian start; 0 if not given.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width m of K and Q.")] = None,
    ridge: Annotated[
        float, typer.Option(min=0, help="Penalty r·(‖K‖² + ‖Q‖²) or r·‖W‖²; 1e-100 takes (K, Q) to its limit.")
    ] = 0.0,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train attention on every trial, then say which limit is predicted and whether it was reached."""
    from attsvm.checks import as_device
    from attsvm.data import load
    from attsvm.diagnostics import verdict
    from attsvm.dynamics import Gaussian, Growing, train

    if init_scale is None and parameterization == "KQ":
        init_scale = 0.1
    if seed is not None and init_scale is None:
        raise AttsvmError("--seed is for a Gaussian start, but this run starts at 0: give --init-scale too.")
    loaded = load(data).to(device=as_device(device))
    with resumable(out), run_folder(out, "train"):
        trajectory = train(
            loaded,
            geometry,
            parameterization,
            steps=steps,
            lr=Growing(lr, growing) if growing else lr,
            normalize=normalize,
            rule=rule,
            loss=loss,
            init=None if init_scale is None else Gaussian(init_scale, seed or 0),
            m=width,
            ridge=ridge,
            checkpoint=out / TRAJECTORY,
            progress=not quiet,
        )
        judged = verdict(trajectory)
        write_verdict(judged, out)
        pictures = draw_run(trajectory, judged, out)
    print_verdict(judged)
    for path in (out / TRAJECTORY, out / "verdict.json", *pictures):
        console().print(f"wrote {path}")
    if not all_well(judged):
        raise typer.Exit(INCOMPLETE)
