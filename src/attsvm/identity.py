"""Which run a folder holds: its kind, and whether the run that is wanted now is the same one."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm.errors import AttsvmError
from attsvm.files import PathLike, clear_leftovers, locked_folder

KINDS = {
    "train": "trajectory.safetensors",
    "transformer fit": "checkpoint.safetensors",
    "text fit": "model.json",
    "reproduce": "*/plan.json",
}
"""The file by which a folder of every kind is known."""

_LONGEST = 80
"""Characters of a setting in a sentence."""


def kind_of(folder: PathLike) -> str | None:
    """The kind of run that a folder holds, if it holds one."""
    return next((kind for kind, mark in KINDS.items() if glob.glob(mark, root_dir=folder)), None)


def check_kind(folder: PathLike, kind: str) -> None:
    """Refuse a folder that holds a run of another kind."""
    theirs = kind_of(folder)
    if theirs not in (None, kind):
        raise AttsvmError(f"{folder} holds a run of attsvm {theirs}, not of attsvm {kind}: choose another folder.")


@contextmanager
def run_folder(path: PathLike, kind: str) -> Iterator[Path]:
    """The folder of a run, made if needed, for this process alone and for this kind of run."""
    check_kind(path, kind)
    with locked_folder(path) as folder:
        clear_leftovers(folder)
        yield folder


def check_same_run(place: PathLike, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings, and name the first that differs with both values.

    Both are plain data: numbers, strings, None, lists, dictionaries. Settings inside dictionaries are named with dots.
    """
    theirs, ours = flat(stored), flat(wanted)
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if theirs.get(name) != ours.get(name):
            if any(_is_digest(side.get(name)) for side in (theirs, ours)):
                difference = f"with other {name}"
            else:
                difference = f"with {name} {_word(theirs.get(name))}, not {_word(ours.get(name))}"
            raise AttsvmError(f"{place} holds another run, {difference}: choose another folder, or remove this one.")


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings inside dictionaries named with dots, tuples as the lists that a file makes of them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def _word(value: Any) -> str:
    text = "none" if value is None else str(value) or repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{12,}", value) is not None
