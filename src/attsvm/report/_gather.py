"""What the page says about every experiment, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.errors import AttsvmError, describe
from attsvm.experiments import CATALOG, Check, Experiment, Rows, fine, read_provenance, read_stored, verdict_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Section:
    """An experiment in the page. Without all of its batches it has no figure and no checks yet."""

    experiment: Experiment
    quick: bool
    done: int
    batches: int
    seconds: float
    finished: str
    provenance: dict[str, Any]
    machines: list[str]
    paths: list[Path]
    figure: Figure | None
    checks: list[Check]
    trials: list[int]
    """Of every cell."""

    @property
    def complete(self) -> bool:
        return self.done == self.batches

    @property
    def passed(self) -> bool:
        return self.complete and all(check.passed for check in self.checks)

    @property
    def explained(self) -> bool:
        """Has nothing failed except where the paper errs?"""
        return self.complete and not self.passed and fine(self.checks)

    @property
    def caption(self) -> str:
        """How many trials the figure shows."""
        least, most = min(self.trials), max(self.trials)
        each = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        cells = f" in each of {len(self.trials)} cells" if len(self.trials) > 1 else ""
        return f"{each} trial{'s' if most > 1 else ''}{cells}"

    @property
    def grid(self) -> dict[str, list[Any]]:
        """The values of the parameters in its cells."""
        cells = Rows([(cell, {}) for cell in self.experiment.cells(self.quick)])
        return {name: cells.values(name) for name in self.experiment.grid}

    @property
    def verdict(self) -> str:
        return verdict_line(self.checks) if self.complete else f"unfinished: {self.done} of {self.batches} batches"


def gather(runs: Path, own: Sequence[Experiment] = ()) -> list[Section]:
    """The experiments that have a plan in this folder, in the order of the catalog, and then your own."""
    if not runs.is_dir():
        raise AttsvmError(f"runs must be a folder that attsvm reproduce filled, but {runs} is not a folder.")
    for experiment in own:
        if not (runs / experiment.id).is_dir():
            raise AttsvmError(f"{runs} has no rows of {experiment.id}: run it first.")
    known = [*CATALOG.values(), *own]
    sections = [section for experiment in known if (section := _section(runs, experiment)) is not None]
    if not sections:
        others = ", ".join(strangers(runs, own))
        hint = f": name the file of {others}, too" if others else ""
        raise AttsvmError(f"runs must be a folder of attsvm reproduce, but {runs} has no known experiment{hint}.")
    return sections


def strangers(runs: Path, own: Sequence[Experiment] = ()) -> list[str]:
    """Ids of experiments in this folder that are neither in the catalog nor given: a page needs their files."""
    known = CATALOG.keys() | {experiment.id for experiment in own}
    return sorted(plan.parent.name for plan in runs.glob("*/plan.json") if plan.parent.name not in known)


def _section(runs: Path, experiment: Experiment) -> Section | None:
    stored = read_stored(runs, experiment)
    if stored is None:
        return None
    known = [read_provenance(path) for path in stored.paths]
    rows = stored.rows() if stored.complete else None
    first = dict(known[0][0]) if known else {}
    drawn = experiment.draw(rows) if rows is not None else None
    if rows is not None and not hasattr(drawn, "savefig"):
        raise AttsvmError(f"figure of {experiment.id} must return a matplotlib figure, but got {describe(drawn)}.")
    return Section(
        experiment=experiment,
        quick=stored.quick,
        done=len(stored.paths),
        batches=len(stored.batches),
        seconds=sum(timing["seconds"] for _, timing in known),
        finished=max((timing["finished"] for _, timing in known), default=""),
        provenance=first,
        machines=sorted({f"{where.get('processor')}, {where.get('system')}" for where, _ in known}),
        paths=stored.paths,
        figure=drawn,
        checks=experiment.checks(rows) if rows is not None else [],
        trials=[batch.trials for batch in stored.batches if batch.start == 0],
    )
