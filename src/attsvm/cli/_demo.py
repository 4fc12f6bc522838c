"""`attsvm demo`: generate, solve in four geometries, draw."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from attsvm.data import example1, save, sphere
from attsvm.geometry import parse_geometry
from attsvm.svm import att_svm, solve

GEOMETRIES = ("l1.1", "l2", "l3", "nuclear")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the data.")] = Path("demo"),
    trials: Annotated[int, typer.Option(min=1, help="Random problems to solve in each geometry.")] = 200,
) -> None:
    """Solve built-in problems in four geometries and draw what each of them separates."""
    from attsvm.plots import save_figure, separation_figure, support_figure

    out.mkdir(parents=True, exist_ok=True)
    data = sphere(6, 8, 10, trials=trials, seed=0)
    tokens = data.optimal_tokens()
    save(data, out / "data.npz")
    table = Table(title=f"{trials} random problems: 6 sequences of 8 tokens in 10 dimensions", title_justify="left")
    for name in ("norm", "solved", "median margin", "largest gap", "support tokens", "ms a problem"):
        table.add_column(name, justify="right")
    solutions = []
    for name in GEOMETRIES:
        start = time.perf_counter()
        solution = solve(att_svm(data, tokens), parse_geometry(name))
        elapsed = time.perf_counter() - start
        solutions.append(solution)
        table.add_row(
            name,
            f"{int(solution.solved.sum())}/{trials}",
            f"{solution.margin.median().item():.4f}",
            f"{solution.gap[solution.solved].max().item():.1e}",
            f"{solution.support.sum().item() / trials:.1f}",
            f"{1e3 * elapsed / trials:.2f}",
        )
    console = Console()
    console.print(table)
    figure = support_figure(data, tokens, solutions, "The same tokens selected, four norms minimised")
    save_figure(figure, out / "support_tokens.png", out / "support_tokens.svg")

    plane = example1()
    planar = [solve(att_svm(plane), name, tol=1e-12) for name in GEOMETRIES]
    figure = separation_figure(plane, planar, "Example 1 of the mirror-descent paper")
    save_figure(figure, out / "example1.png", out / "example1.svg")
    for name in ("support_tokens.png", "example1.png", "data.npz"):
        console.print(f"wrote {out / name}", highlight=False)
