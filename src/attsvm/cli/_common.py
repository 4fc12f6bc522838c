"""What several commands share."""

import sys

from rich.console import Console


def console() -> Console:
    """Standard output, wide where no terminal sets its width."""
    return Console(width=None if sys.stdout.isatty() else 110)
