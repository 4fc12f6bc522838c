"""The `attsvm` command."""

import signal
import sys
from collections.abc import Callable

from attsvm.errors import AttsvmError

INCOMPLETE = 3
"""Exit status of a run that wrote its results, but not all that was asked for is there."""

INTERRUPTED = 130


def main() -> None:
    """Run the command line; wrong input ends with one sentence on standard error and exit status 1."""
    try:
        _load()()
    except AttsvmError as error:
        sys.exit(f"Error: {error}")
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into exit status 130
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        print("Interrupted; no file was left half written.", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _load() -> Callable[[], None]:
    try:
        from attsvm.cli._app import app
    except ImportError as error:
        sys.exit(f"The attsvm command needs {error.name}: pip install 'attsvm[cli]'.")
    return app
