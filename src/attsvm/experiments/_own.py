"""Your own experiments, in your own files: named on the command line, found again by worker processes."""

from __future__ import annotations

import re
import sys
import traceback
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Columns, Experiment
from attsvm.files import atomic_path, is_file, is_there, one_line


def load_experiments(path: str | Path) -> list[Experiment]:
    """The experiments that a Python file defines. It is run, as `python FILE` would.

    If the file defines EXPERIMENT, or a list EXPERIMENTS, these are taken; otherwise all experiments with a name.
    """
    if not is_file(path):
        raise AttsvmError(f"{path} must be a file that defines an experiment, but it is not a file.")
    place = Path(path).resolve()
    if place.suffix != ".py":
        raise AttsvmError(f"an experiment is a Python file: {path} must end in .py.")
    return [replace(experiment, run=_FileRun(str(place), id)) for id, experiment in _by_id(str(place)).items()]


def write_template(name: str, path: Path | None = None) -> Path:
    """Write a file with an experiment that runs as it is, for you to change."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,60}", name):
        raise AttsvmError(f"the name must consist of lower-case letters, digits and hyphens, but got {name!r}.")
    from attsvm.experiments.catalog import CATALOG  # which reads files of this kind

    if name in CATALOG:
        raise AttsvmError(f"the id {name} is taken, in the catalog: choose another one.")
    path = Path(f"{name.replace('-', '_')}.py") if path is None else path
    if path.suffix != ".py":
        raise AttsvmError(f"an experiment is a Python file: {path} must end in .py.")
    if is_there(path):
        raise AttsvmError(f"{path} is there already: choose another name, or --out.")
    text = files("attsvm.experiments").joinpath("template.py").read_text(encoding="utf-8")
    with atomic_path(path) as temporary:
        temporary.write_text(text.replace("FILE.py", path.name).replace("my-experiment", name), encoding="utf-8")
    return path


@dataclass(frozen=True)
class _FileRun:
    """`run` of an experiment by its file: a worker process, which cannot import the file by a name, opens it."""

    path: str
    id: str

    def __call__(self, *arguments: Any, **named: Any) -> Columns:
        return _by_id(self.path)[self.id].run(*arguments, **named)


def _by_id(path: str) -> dict[str, Experiment]:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise AttsvmError(f"{path} cannot be read: {one_line(error)}") from error
    return _loaded(path, source)


@cache
def _loaded(path: str, source: bytes) -> dict[str, Experiment]:
    """An edited file is another source: neither its time nor Python's bytecode of it is trusted."""
    name = f"attsvm_own_{Path(path).stem}"
    module = sys.modules[name] = ModuleType(name)  # where dataclasses look
    module.__file__ = path
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.insert(0, folder)  # the file may import its neighbours, now or when its functions run
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except AttsvmError:
        raise
    except Exception as error:  # whatever the file does
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f", line {lines[-1]}" if lines else ""
        raise AttsvmError(f"{path}{where} cannot be run: {type(error).__name__}: {error}.") from error
    said = getattr(module, "EXPERIMENTS", None) or [getattr(module, "EXPERIMENT", None)]
    found = [one for one in said if isinstance(one, Experiment)]
    found = found or [one for one in vars(module).values() if isinstance(one, Experiment)]
    if not found:
        raise AttsvmError(f"{path} must define an experiment, EXPERIMENT = attsvm.experiments.Experiment(…).")
    by_id: dict[str, Experiment] = {}
    for experiment in found:
        if by_id.setdefault(experiment.id, experiment) is not experiment:
            raise AttsvmError(f"{path} has two experiments with the id {experiment.id}: choose another one.")
    return by_id
