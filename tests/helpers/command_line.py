"""The `attsvm` command as a user types it, or a script, in a process of its own.

Every process is forked from one that has imported what the commands use already, so that a call takes some hundredths
of a second and not the two seconds in which torch is loaded. From there it is an ordinary process: its own folder,
environment, output and exit status; it can be killed.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


class Command:
    """A command that has been started."""

    def __init__(self, *arguments: str | Path, cwd: Path, script: str | Path | None = None) -> None:
        self._printed = tempfile.TemporaryDirectory()
        self._paths = [str(Path(self._printed.name, name)) for name in ("stdout", "stderr")]
        self.arguments = [str(argument) for argument in arguments]
        request = {"arguments": self.arguments, "cwd": str(cwd), "paths": self._paths}
        self.pid = _ask(request if script is None else request | {"script": str(script)})

    def end(self, number: int | None = None) -> subprocess.CompletedProcess[str]:
        """What it printed and how it ended, after a signal if one is given."""
        if number is not None:
            os.kill(self.pid, number)
        status = _ask({"wait": self.pid})
        out, err = (Path(path).read_text() for path in self._paths)
        self._printed.cleanup()
        return subprocess.CompletedProcess(self.arguments, status, out, err)


def run(*arguments: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = Command(*arguments, cwd=cwd).end()
    if check:
        assert result.returncode == 0, result.stderr
    return result


def run_script(script: str | Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A file of Python, or its text."""
    if isinstance(script, Path):
        return Command(*arguments, cwd=cwd, script=script).end()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script)
        return Command(*arguments, cwd=cwd, script=path).end()


@functools.cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", __file__]
    environment = os.environ | ENVIRONMENT
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_close, server)
    return server


def _close(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


def _ask(request: dict[str, object]) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def _serve() -> dict[str, Any] | None:
    """Answer requests until their end; in a process that has been forked, return what it is to do."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            return request
        print(answer, flush=True)
    return None


if __name__ == "__main__":
    for name in (
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "matplotlib.pyplot",
        "typer.rich_utils",
        "safetensors.torch",
        "attsvm.cli._app",  # torch and all commands with it
        "attsvm.svm",
        "attsvm.diagnostics",
        "attsvm.plots",
        "attsvm.text._classifier",
    ):
        importlib.import_module(name)
    from attsvm.cli import main
    from attsvm.objective import _contract

    _contract._kernels()  # compiled once for all
    gc.collect()
    gc.freeze()  # what is loaded is never looked at again, so that its memory stays shared
    request = _serve()
    if request is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate((os.devnull, *request["paths"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        os.chdir(request["cwd"])
        script = request.get("script")
        sys.argv = [script or "attsvm", *request["arguments"]]
        status = 0
        try:
            if script is None:
                main()
            else:
                sys.path.insert(0, str(Path(script).parent))
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            status = 1
        # To take all of torch apart would copy it, and take a second.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
