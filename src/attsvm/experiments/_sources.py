"""Data sets that experiments need: where they are, and what they contain."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Experiment


@dataclass(frozen=True)
class Source:
    """A data set: `path` is a file or folder, `digest` names its content wherever it lies."""

    path: str
    digest: str


def open_sources(given: Sequence[str], experiments: Collection[Experiment]) -> dict[str, Source]:
    """NAME=PLACE, as typed, where some experiment needs NAME; PLACE is a path or a Hugging Face data set."""
    known = sorted({name for experiment in experiments for name in experiment.needs + experiment.accepts})
    places: dict[str, str] = {}
    for text in given:
        name, _, place = text.partition("=")
        if name not in known or not place:
            wanted = f"a name among {', '.join(known)}" if known else "a name, but no experiment needs data"
            raise AttsvmError(f"--data must be NAME=PATH with {wanted}, but got {text!r}.")
        if name in places:
            raise AttsvmError(f"--data must name every data set once, but {name} is given twice.")
        places[name] = place
    return {name: _source(name, place) for name, place in places.items()}


def with_data(
    experiments: Sequence[Experiment], sources: Mapping[str, Source], named: Collection[str]
) -> tuple[list[Experiment], list[str]]:
    """The experiments whose data is there, and a sentence for each that is left out; one that was `named` must run."""
    ready, left_out = [], []
    for experiment in experiments:
        missing = [name for name in experiment.needs if name not in sources]
        if not missing:
            ready.append(experiment)
            continue
        hint = " ".join(f"--data {name}=PATH" for name in missing)
        if experiment.id in named:
            raise AttsvmError(f"{experiment.id} needs data: give {hint}.")
        left_out.append(f"{experiment.id} is left out: it needs {hint}")
    return ready, left_out


def content_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of the files in a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(inner for inner in path.rglob("*") if inner.is_file())
    lines = [f"{inner.relative_to(path).as_posix()} {content_digest(inner)}" for inner in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _source(name: str, place: str) -> Source:
    path = Path(place)
    if not path.exists():
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
            raise AttsvmError(f"--data {name} must be a file, a folder or a Hugging Face data set, but got {place}.")
        path = _downloaded(name, place)
    try:
        return Source(str(path.resolve()), content_digest(path))
    except OSError as error:
        raise AttsvmError(f"--data {name}={place} cannot be read: {error.strerror}.") from error


def _downloaded(name: str, repository: str) -> Path:
    """The parquet files of a data set on the Hugging Face hub, in its cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise AttsvmError(
            f"--data {name} must be a path, but there is no {repository}; a Hugging Face name needs huggingface_hub."
        ) from error
    try:
        # Every data set has a branch of that name, whatever format its owner chose.
        return Path(snapshot_download(repository, repo_type="dataset", revision="refs/convert/parquet"))
    except Exception as error:  # no network, no such name, no access: many classes, one meaning
        raise AttsvmError(
            f"--data {name}: {repository} is not a path and cannot be fetched as a Hugging Face data set "
            f"({type(error).__name__})."
        ) from error
