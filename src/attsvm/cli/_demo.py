"""`attsvm demo`: train in three geometries, solve the SVMs, compare; and the pictures of the solutions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from attsvm.cli._common import console
from attsvm.data import TokenData, example1, save, sphere
from attsvm.diagnostics import direction_error
from attsvm.dynamics import Trajectory, train
from attsvm.svm import MaxMargin, att_svm, solve

STEPS = {"l1.75": 1500, "l2": 2000, "l3": 20000}
"""Geometries and steps of Figure 4 of the mirror-descent paper."""
SHOWN = ("l1.1", "l2", "l3", "nuclear")
"""Geometries in the pictures of single solutions."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the data.")] = Path("demo"),
    trials: Annotated[int, typer.Option(min=1, help="Random problems to train on and to solve.")] = 50,
) -> None:
    """Train attention with three optimizers on built-in data, and see each go to its own max-margin solution."""
    from attsvm.plots import direction_figure, save_figure, separation_figure, support_figure

    out.mkdir(parents=True, exist_ok=True)
    output = console()
    data = sphere(6, 8, 10, trials=trials, seed=0)
    save(data, out / "data.npz")
    output.print(f"{trials} random problems: 6 sequences of 8 tokens in 10 dimensions", highlight=False)

    runs = _train(data)
    table = Table("trained by", *(f"distance to {name} SVM" for name in STEPS), "SVMs solved in")
    panels = {}
    for name, run in runs.items():
        start = time.perf_counter()
        solutions = {other: solve(att_svm(data, run.tokens), other, tol=1e-12) for other in STEPS}
        elapsed = time.perf_counter() - start
        errors = {f"to {other} SVM": _errors(run, solutions[other]) for other in STEPS}
        panels[f"trained in {name}"] = (run.steps, errors)
        medians = [f"{error[-1].median().item():.1e}" for error in errors.values()]
        table.add_row(f"{name}, {STEPS[name]} steps", *medians, f"{1e3 * elapsed:.0f} ms")
    output.print(table)
    title = "Each optimizer goes to the max-margin solution of its own norm"
    ylabel = "directional Bregman divergence"
    save_figure(direction_figure(panels, ylabel, title), out / "training.png", out / "training.svg")

    tokens = data.optimal_tokens()
    solutions = [solve(att_svm(data[:1], tokens[:1]), name) for name in SHOWN]
    figure = support_figure(data, tokens, solutions, "The same tokens selected, four norms minimised")
    save_figure(figure, out / "support_tokens.png", out / "support_tokens.svg")
    plane = example1()
    planar = [solve(att_svm(plane), name, tol=1e-12) for name in SHOWN]
    figure = separation_figure(plane, planar, "Example 1 of the mirror-descent paper")
    save_figure(figure, out / "example1.png", out / "example1.svg")
    for name in ("training.png", "support_tokens.png", "example1.png", "data.npz"):
        output.print(f"wrote {out / name}", highlight=False)


def _train(data: TokenData) -> dict[str, Trajectory]:
    runs = {}
    with Progress(transient=True) as progress:
        task = progress.add_task("training", total=sum(STEPS.values()))
        for name, steps in STEPS.items():
            runs[name] = train(data, name, steps=steps, lr=0.1, record=("W",))
            progress.advance(task, steps)
    return runs


def _errors(run: Trajectory, solution: MaxMargin) -> Tensor:
    """Distance of every recorded W to the solution, in the solution's own geometry (R, B)."""
    return direction_error(solution.W, run.records["W"], solution.geometry)
