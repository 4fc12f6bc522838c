"""The `attsvm` command."""

import os
import signal
import sys
import warnings
from collections.abc import Callable

from attsvm.errors import AttsvmError
from attsvm.interrupts import Interrupted, interruptible

INCOMPLETE = 3
"""Exit status of a run that wrote its results, but not everything that was asked for."""


def main() -> None:
    """Run the command line; wrong input ends with one sentence on standard error and exit status 1."""
    if sys.stdout is None:  # closed by the caller: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    usual, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        with interruptible():
            _load()()
    except AttsvmError as error:
        sys.exit(f"Error: {error}")
    except OSError as error:  # files are read and written with sentences of their own: this is what is left
        _leave_stdout()
        place = f"{error.filename}: " if error.filename else "the output cannot be written: " if _is_full(error) else ""
        sys.exit(f"Error: {place}{error.strerror or error}.")
    except Interrupted as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        print(f"Interrupted; {end.kept}.", file=sys.stderr)
        sys.exit(end.status)
    except SystemExit:
        _flush()
        raise
    finally:
        warnings.formatwarning = usual


def _warning(message: Warning | str, *place: object) -> str:
    """Without the place in the code: who types a command has no use for it."""
    return f"Warning: {message}\n"


def _is_full(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ENOSPC, errno.EPIPE, errno.EBADF, errno.EIO)


def _flush() -> None:
    """What is printed is out before the exit status says that it is."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _leave_stdout()
        sys.exit(f"Error: the output cannot be written: {error.strerror}.")


def _leave_stdout() -> None:
    """Nothing more is tried on a standard output that takes nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _load() -> Callable[[], None]:
    try:
        from attsvm.cli._app import app
    except ImportError as error:
        sys.exit(f"The attsvm command needs {error.name}: pip install 'attsvm[cli]'.")
    return app
