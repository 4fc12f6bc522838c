"""What an experiment is: a small declarative object, one file each in `catalog/`."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._version import __version__
from attsvm.checks import as_count
from attsvm.errors import AttsvmError
from attsvm.experiments._checks import Check
from attsvm.plots import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Params = Mapping[str, Any]
"""One cell of the grid, values that JSON can hold."""
Columns = Mapping[str, np.ndarray]
"""What a batch of trials gives: arrays whose first axis is the trial."""


class Rows:
    """The rows of an experiment, cell by cell: `rows.where(d=4)["corr"]` joins the trials of the cells with d = 4."""

    def __init__(self, cells: Sequence[tuple[Params, Columns]]) -> None:
        self.cells = list(cells)

    def where(self, **params: Any) -> Rows:
        """The cells with these parameters; there must be one."""
        chosen = [cell for cell in self.cells if all(cell[0].get(name) == value for name, value in params.items())]
        if not chosen:
            raise AttsvmError(f"rows must have a cell with {params}, but none has.")
        return Rows(chosen)

    def values(self, name: str) -> list[Any]:
        """The values of a parameter in the order of the grid."""
        return list({json.dumps(params[name]): params[name] for params, _ in self.cells if name in params}.values())

    def __getitem__(self, column: str) -> np.ndarray:
        return np.concatenate([columns[column] for _, columns in self.cells])

    def __iter__(self) -> Iterator[tuple[Params, Columns]]:
        return iter(self.cells)

    def __len__(self) -> int:
        return sum(len(next(iter(columns.values()))) for _, columns in self.cells)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim, such as a figure or theorem of a paper, and how to see whether it holds.

    id, title      "svm-fig7", and a short name
    statement      the claim: what should hold
    paper          where it is: "TF-as-SVM, Figure 7"; empty if the claim is your own
    grid           parameters by name; every combination is a cell, unless `only` refuses it
    run            (params, trials, device) → columns of these trials; a trial's numbers may depend on its own number
                   only, never on the other trials. Where the experiment needs data, a fourth argument holds the path
                   of every data set by name. Functions of a file are found again by worker processes; those of a
                   notebook run in its own process.
    figure         rows → matplotlib figure, for a paper in its layout; `draw` calls it in the common style
    checks         rows → the statements that must hold
    trials, quick  trials per cell, in full and with --quick
    times          how many times as many trials a cell has, where some need more
    batch          trials per batch; `trials` if not given. The cuts are the same whatever runs them; so is rounding.
    quick_grid     grid entries that --quick replaces
    cost           rough seconds per trial: for the time left, and to start long batches first
    needs          names of the data sets that it needs, such as "imdb"
    accepts        names of data sets that it uses if they are given
    rows_of        id of the experiment whose rows these are, where two figures show the same runs
    checkpoints    `run` takes a keyword `work`, None or a folder of this batch alone: what it keeps there outlives a
                   kill, and is removed when the batch is done
    version        raise it when `run` changes: old rows then no longer count
    remark         where we differ from the paper, and why
    """

    id: str
    title: str
    statement: str
    paper: str = ""
    grid: Mapping[str, Sequence[Any]]
    run: Callable[..., Columns]
    figure: Callable[[Rows], Figure]
    checks: Callable[[Rows], list[Check]]
    trials: int
    quick: int
    batch: int | None = None
    quick_grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    only: Callable[[Params], bool] | None = None
    times: Callable[[Params], int] | None = None
    cost: Callable[[Params], float] | None = None
    needs: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()
    rows_of: str = ""
    checkpoints: bool = False
    version: int = 1
    remark: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", self.id):
            raise AttsvmError(f"id must be letters, digits and hyphens, since it names a folder, but got {self.id!r}.")
        for name, value in (("trials", self.trials), ("quick", self.quick), ("batch", self.batch_size)):
            as_count(name, value)
        for name, values in [*self.grid.items(), *self.quick_grid.items()]:
            if name in ("trial", "seconds"):
                raise AttsvmError(f"the grid of {self.id} has {name!r}, which is a column of every table: rename it.")
            try:
                json.dumps(list(values))
            except TypeError as error:
                raise AttsvmError(
                    f"the values of {name!r} in the grid of {self.id} must be plain numbers, texts or lists: {error}."
                ) from error

    def draw(self, rows: Rows) -> Figure:
        """The figure of these rows, in the common style."""
        return styled(self.figure)(rows)

    @property
    def batch_size(self) -> int:
        return self.trials if self.batch is None else self.batch

    def cells(self, quick: bool) -> list[Params]:
        """All combinations of the grid, each once."""
        grid = dict(self.grid) | (dict(self.quick_grid) if quick else {})
        cells = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
        kept = [cell for cell in cells if self.only is None or self.only(cell)]
        return list({json.dumps(cell): cell for cell in kept}.values())

    def data(self, given: Mapping[str, str]) -> dict[str, str]:
        """The given data sets that this experiment uses, by name: those it needs, and those it accepts if they are
        there."""
        wanted = {name: given.get(name, "") for name in self.needs}
        return wanted | {name: given[name] for name in self.accepts if name in given}

    def batches(self, quick: bool, device: str = "cpu", digests: Mapping[str, str] | None = None) -> list[Batch]:
        """The work, cut at fixed places. `digests` says what the data sets contain, by name; others are ignored."""
        data = self.data(digests or {})
        found = []
        for cell in self.cells(quick):
            trials = (self.quick if quick else self.trials) * (self.times(cell) if self.times else 1)
            for start in range(0, trials, self.batch_size):
                stop = min(start + self.batch_size, trials)
                found.append(Batch(self, cell, trials, start, stop, device.partition(":")[0], data))
        if not found:
            raise AttsvmError(f"{self.id} has no trial: grid, only or times leave none.")
        return found


@dataclass(frozen=True)
class Batch:
    """Trials start..stop − 1 of a cell of `trials` trials."""

    experiment: Experiment
    params: Params
    trials: int
    start: int
    stop: int
    device: str = "cpu"
    data: Mapping[str, str] = field(default_factory=dict)
    """Digests of the data sets by name."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that the numbers depend on, except which trials these are."""
        identity = {
            "experiment": self.experiment.rows_of or self.experiment.id,
            "experiment_version": self.experiment.version,
            "attsvm": __version__,
            "params": dict(self.params),
            "trials": self.trials,
            "batch": self.experiment.batch_size,
            "device": self.device,
        }
        return identity | {"data": dict(self.data)} if self.data else identity

    @property
    def path(self) -> str:
        """The file, relative to the folder of the runs: rows of another identity are never in the same folder."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.identity['experiment']}/{digest}/trials-{self.start:05d}-{self.stop - 1:05d}.parquet"

    @property
    def cost(self) -> float:
        each = self.experiment.cost(self.params) if self.experiment.cost else 0.01
        return each * (self.stop - self.start)
