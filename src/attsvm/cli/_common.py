"""What several commands share."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from attsvm.errors import AttsvmError
from attsvm.files import is_there
from attsvm.identity import kind_of
from attsvm.interrupts import Interrupted

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")]
DataFile = Annotated[Path, typer.Argument(help="Token data, .npz or .safetensors.", show_default=False)]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]
RunFolder = Annotated[Path, typer.Option(help="Folder for the run; a run that is there already is resumed.")]


def console() -> Console:
    """Standard output, wide where no terminal sets its width."""
    return Console(width=None if sys.stdout.isatty() else 110, highlight=False)


def check_folder(out: Path) -> None:
    """Say before the work, not after it, that nothing can be written."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if is_there(path))
    if not there.is_dir():
        raise AttsvmError(f"--out {out} cannot be made: {there} is not a folder.")
    if not os.access(there, os.W_OK):
        raise AttsvmError(f"--out {out} cannot be made: no permission to write in {there}.")


def check_file(out: Path | None, option: str = "--out") -> None:
    """The same of a file."""
    if out is None:
        return
    folder = Path(os.path.realpath(out)).parent
    for wrong, why in (
        (out.is_dir(), "it is a folder"),
        (not folder.is_dir(), f"there is no folder {folder}"),
        (not os.access(folder, os.W_OK), f"no permission to write in {folder}"),
    ):
        if wrong:
            raise AttsvmError(f"{option} {out} cannot be written: {why}.")


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Who interrupts this block reads that the run is kept, if it is."""
    try:
        yield
    except Interrupted as end:
        if kind_of(out):
            end.kept = f"the same command resumes the run in {out}"
        raise
