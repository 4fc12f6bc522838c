"""`attsvm solve`: the attention SVM of a data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from attsvm.cli import INCOMPLETE
from attsvm.cli._common import AsJson, DataFile, Device, check_file, console
from attsvm.errors import AttsvmError
from attsvm.files import checked_path, is_file

if TYPE_CHECKING:
    from torch import Tensor

    from attsvm.data import TokenData
    from attsvm.svm import MaxMargin

NAMED = 3
"""Infeasible trials whose reason is printed."""


def solve_command(
    data: DataFile,
    norm: Annotated[
        str,
        typer.Option(
            help="Norm that is minimised: l1.5, or l and another p ≥ 1; linf, fro, nuclear, spectral, schatten1.5, "
            "group:rows, group:columns."
        ),
    ] = "l2",
    tokens: Annotated[
        str,
        typer.Option(
            help="Selected tokens: 'optimal' (highest score); numbers such as 0,2,1, one per query in the order of "
            "the sequences; a .npy file, (n, K) or (trials, n, K); or a text file of numbers, a line per sequence."
        ),
    ] = "optimal",
    tol: Annotated[float, typer.Option(help="Relative gap to certify.")] = 1e-9,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write the solutions here, .safetensors or .npz.")] = None,
    as_json: AsJson = False,
    rows: Annotated[int, typer.Option(min=0, help="Trials to print in the table.")] = 20,
) -> None:
    """Solve the max-margin problem that separates the selected tokens from all others."""
    from attsvm.checks import as_device
    from attsvm.data import load
    from attsvm.geometry import parse_geometry
    from attsvm.svm import att_svm, solve

    geometry = parse_geometry(norm)
    check_file(out)
    if out is not None:
        checked_path(out)
        if out.resolve() == data.resolve():
            raise AttsvmError(f"--out must not be {data}, the data themselves: name another file.")
    loaded = load(data).to(device=as_device(device))
    chosen = _read_tokens(tokens, loaded)
    solution = solve(att_svm(loaded, chosen), geometry, tol=tol)
    if out is not None:
        solution.save(out, chosen)
    if as_json:
        typer.echo(json.dumps(_as_json(solution, chosen, tol), indent=1, allow_nan=False))
    else:
        _print(solution, chosen, rows)
        if out is not None:
            console().print(f"written to {out}")
    _warn(solution)


def _read_tokens(text: str, data: TokenData) -> Tensor:
    if text == "optimal":
        return data.optimal_tokens()
    path = Path(text)
    wrong = f"--tokens must be 'optimal', numbers such as 0,2,1, or a file of numbers, but got {text!r}."
    try:
        if path.suffix == ".npy":
            return data.check_tokens(np.load(path, allow_pickle=False))
        if is_file(path):
            wrong = f"--tokens {path} must have whole numbers, as many in every line."
            text = path.read_text()
        lines = np.array([[int(part) for part in line.replace(",", " ").split()] for line in text.split("\n") if line])
    except AttsvmError:
        raise
    except (OSError, ValueError) as error:
        raise AttsvmError(wrong) from error
    if len(lines) != 1:
        return data.check_tokens(lines.astype(np.int64))
    numbers = lines[0]
    if len(numbers) != data.n * data.K:
        raise AttsvmError(f"--tokens must have n·K = {data.n * data.K} numbers, one per query, but got {len(numbers)}.")
    return data.check_tokens(numbers.reshape(data.n, data.K))


def _as_json(solution: MaxMargin, tokens: Tensor, tol: float) -> dict[str, Any]:
    return {
        "norm": solution.geometry.name,
        "tol": tol,
        "trials": [
            {
                "trial": b,
                "status": str(solution.status[b]),
                **{name: _finite(getattr(solution, name)[b]) for name in ("norm", "margin", "gap", "lower", "upper")},
                "iterations": int(solution.iterations[b]),
                "tokens": tokens[b].tolist(),
                "support_tokens": _support(solution, b),
            }
            for b in range(len(solution))
        ],
    }


def _finite(value: Tensor) -> float | None:
    """JSON has no infinity: None stands for it."""
    return value.item() if bool(value.isfinite()) else None


def _support(solution: MaxMargin, b: int) -> list[list[list[int]]]:
    """For every sequence and query the numbers of the support tokens."""
    return [[row.nonzero()[:, 0].tolist() for row in sample] for sample in solution.support_tokens[b]]


def _print(solution: MaxMargin, tokens: Tensor, rows: int) -> None:
    table = Table(title=f"max-margin problem, norm {solution.geometry.name}", title_justify="left")
    for name in ("trial", "status", "norm", "margin", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("selected ← support tokens, by sequence", overflow="fold")
    for b in range(min(rows, len(solution))):
        pairs = zip(tokens[b].flatten().tolist(), [s for sample in _support(solution, b) for s in sample])
        feasible = solution.norm[b].isfinite()
        table.add_row(
            str(b),
            str(solution.status[b]),
            f"{solution.norm[b].item():.6g}" if feasible else "–",
            f"{solution.margin[b].item():.6g}",
            f"{solution.gap[b].item():.1e}" if feasible else "–",
            "  ".join(f"{token}←{','.join(map(str, s)) or '–'}" for token, s in pairs) if feasible else "",
        )
    output = console()
    output.print(table)
    if len(solution) > rows:
        output.print(f"… and {len(solution) - rows} more trials")
    output.print(repr(solution))


def _warn(solution: MaxMargin) -> None:
    infeasible, open_ = int(solution.infeasible.sum()), int(solution.open.sum())
    if infeasible:
        for b in solution.infeasible.nonzero()[:NAMED, 0].tolist():
            for reason in solution.problem.why(b)[:1]:
                typer.echo(f"trial {b}: {reason}", err=True)
        typer.echo(
            f"{infeasible} of {len(solution)} trials are infeasible: no W separates the selected tokens; choose "
            "other tokens or a larger dimension (d ≥ max(T − 1, n) always suffices for random data).",
            err=True,
        )
    if open_:
        typer.echo(
            f"{open_} of {len(solution)} trials did not reach the gap; their brackets are still certified; "
            "try a larger --tol.",
            err=True,
        )
    if infeasible or open_:
        raise typer.Exit(INCOMPLETE)
