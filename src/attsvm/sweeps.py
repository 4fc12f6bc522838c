"""Grids of training runs, one table back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from attsvm.data import TokenData
from attsvm.diagnostics import verdict
from attsvm.dynamics import train
from attsvm.errors import AttsvmError, describe
from attsvm.frames import frame
from attsvm.progress import progress_bar

NOT_A_GRID = ("record", "at")
"""Options of `train` that are lists themselves."""


def sweep(data: TokenData | Callable[..., TokenData], *, tol: float = 1e-2, progress: bool = False, **grid: Any) -> Any:
    """Train and judge every combination of options; returns a table (pandas or pyarrow) with one row per run.

    Options are those of `train`; one that is a list or a tuple is an axis of the grid. If `data` is a function that
    makes data, its own parameters may be swept too:

        sweep(lambda d: attsvm.sphere(6, 8, d, trials=50), d=[5, 10, 20], geometry=["l1.5", "l2"], steps=2000)

    A row holds the options of its run; the shares of trials that reached their limit, and that have globally and
    locally optimal tokens; and the medians of direction error, margin ratio, norm and rate (the power of the step).
    """
    if not isinstance(data, TokenData) and not callable(data):
        raise AttsvmError(f"data must be TokenData or a function that makes them, but got {describe(data)}.")
    own = {} if isinstance(data, TokenData) else dict(inspect.signature(data).parameters)
    makes = [name for name, parameter in own.items() if name in grid or parameter.default is parameter.empty]
    options = inspect.signature(train).parameters
    unknown = [name for name in grid if name not in makes and name not in options]
    if unknown:
        raise AttsvmError(f"{unknown[0]} must be an option of train or a parameter of data, but it is neither.")
    missing = [name for name in makes if name not in grid]
    if missing:
        raise AttsvmError(f"data needs {missing[0]}: give it a value, or a list of values to sweep.")
    if "steps" not in grid:
        raise AttsvmError("steps must be given: how many to train for, or a list of numbers to sweep.")
    axes = {name: x for name, x in grid.items() if isinstance(x, list | tuple) and name not in NOT_A_GRID}
    if any(not values for values in axes.values()):
        raise AttsvmError("every axis of a sweep must have a value, but one is empty.")
    fixed = {name: x for name, x in grid.items() if name not in axes}
    cells = [dict(zip(axes, values)) for values in product(*axes.values())]
    shown = [dict(zip(axes, values)) for values in product(*map(_shown, axes.values()))]
    rows: list[dict[str, Any]] = []
    with progress_bar(progress, 0, len(cells)) as report:
        for number, (cell, names) in enumerate(zip(cells, shown), start=1):
            chosen = fixed | cell
            some = data if isinstance(data, TokenData) else data(**{name: chosen[name] for name in makes})
            row = _row(some, chosen, makes, tol)
            if hidden := sorted(names.keys() & row.keys() - {"trials"}):
                raise AttsvmError(f"{hidden[0]} is a column of the results: give the parameter of data another name.")
            rows.append(names | row)
            report(number)
    return frame({name: [row[name] for row in rows] for name in rows[0]})


def _row(data: TokenData, options: dict[str, Any], makes: list[str], tol: float) -> dict[str, Any]:
    run = train(data, **{name: x for name, x in options.items() if name not in makes})
    judged = verdict(run, tol=tol)
    summary, trials = judged.summary(), max(1, len(judged))
    return {
        "trials": len(judged),
        "limit": judged.geometry.name,
        "reached": summary["reached"] / trials,
        "globally optimal": summary["globally optimal"] / trials,
        "locally optimal": summary["locally optimal"] / trials,
        "direction error": summary["median direction error"],
        "margin ratio": summary["median margin ratio"],
        "norm": summary["median norm"],
        "rate": summary["rate"]["median power of k"],
    }


def _shown(values: Sequence[Any]) -> list[Any]:
    """The values of an axis as a column shows them, of one type: objects by name, in full where names are equal, and
    numbered where that is equal, too."""
    names = [_plain(x) for x in values]
    names = [_in_full(x) if isinstance(name, str) and names.count(name) > 1 else name for x, name in zip(values, names)]
    names = [
        f"{name} #{number}" if isinstance(name, str) and names.count(name) > 1 else name
        for number, name in enumerate(names, start=1)
    ]
    return names if len({type(name) for name in names}) == 1 else [str(name) for name in names]


def _plain(x: Any) -> Any:
    if isinstance(x, str | int | float | bool | None):
        return x
    return getattr(x, "name", None) or getattr(x, "__name__", None) or str(x)


def _in_full(x: Any) -> str:
    """What says more than a name; a function has no more to say."""
    return getattr(x, "__name__", None) or str(x)
