"""What the page says of every experiment, computed from its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.errors import AttsvmError
from attsvm.experiments import CATALOG, Check, Experiment, fine, verdict_line
from attsvm.experiments._store import read_provenance, read_stored

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

    @property
    def complete(self) -> bool:
        return self.done == self.batches

    @property
    def passed(self) -> bool:
        return self.complete and all(check.passed for check in self.checks)

    @property
    def explained(self) -> bool:
        """Has nothing failed but where the paper errs?"""
        return self.complete and not self.passed and fine(self.checks)

    @property
    def verdict(self) -> str:
        return verdict_line(self.checks) if self.complete else f"unfinished: {self.done} of {self.batches} batches"


def gather(runs: Path) -> list[Section]:
    """The experiments that have a plan in this folder, in the order of the catalog."""
    if not runs.is_dir():
        raise AttsvmError(f"runs must be a folder that attsvm reproduce filled, but {runs} is not a folder.")
    sections = [section for experiment in CATALOG.values() if (section := _section(runs, experiment)) is not None]
    if not sections:
        raise AttsvmError(f"runs must be a folder that attsvm reproduce filled, but {runs} has no experiment.")
    return sections


def _section(runs: Path, experiment: Experiment) -> Section | None:
    stored = read_stored(runs, experiment)
    if stored is None:
        return None
    known = [read_provenance(path) for path in stored.paths]
    rows = stored.rows() if stored.complete else None
    first = dict(known[0][0]) if known else {}
    return Section(
        experiment=experiment,
        quick=stored.quick,
        done=len(stored.paths),
        batches=len(stored.batches),
        seconds=sum(timing["seconds"] for _, timing in known),
        finished=max((timing["finished"] for _, timing in known), default=""),
        provenance=first,
        machines=sorted({f"{where['processor']}, {where['system']}" for where, _ in known}),
        paths=stored.paths,
        figure=experiment.figure(rows) if rows is not None else None,
        checks=experiment.checks(rows) if rows is not None else [],
    )
