"""The `attsvm` command."""

import signal
import sys

from attsvm.errors import AttsvmError

INCOMPLETE = 3
"""Exit status of a run that finished and wrote its results, but not all instances have a solution."""

INTERRUPTED = 130


def main() -> None:
    """Run the command line; wrong input ends with one sentence on standard error and exit status 1."""
    try:
        from attsvm.cli._app import app
    except ImportError as error:
        sys.exit(f"The attsvm command needs {error.name}: pip install 'attsvm[cli]'.")
    try:
        app()
    except AttsvmError as error:
        sys.exit(f"Error: {error}")
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into exit status 130
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        print("Interrupted; no file was left half written.", file=sys.stderr)
        sys.exit(INTERRUPTED)
