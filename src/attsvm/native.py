"""Kernels in C++, compiled for this machine when they are first needed."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from attsvm.errors import AttsvmError

FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-shared", "-fPIC")


@cache
def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def compiled(source: Path, *options: str) -> ctypes.CDLL:
    """The library that the compiler makes of a source file.

    Every process compiles its own, in a second or less, into a folder that nobody else can write to.
    """
    command = [compiler() or "c++", *FLAGS, *options, str(source)]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "kernel.so")
        for own in (["-march=native"], []):  # not every compiler knows the machine
            done = subprocess.run([*command, *own, "-o", library], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return ctypes.CDLL(library)
    raise AttsvmError(f"{source.name} needs a C++ compiler, but {command[0]} failed: {done.stderr.strip()[-300:]}")
