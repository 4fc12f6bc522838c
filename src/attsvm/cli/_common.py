"""What several commands share."""

import sys
from typing import Annotated

import typer
from rich.console import Console

Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]


def console() -> Console:
    """Standard output, wide where no terminal sets its width."""
    return Console(width=None if sys.stdout.isatty() else 110, highlight=False)
