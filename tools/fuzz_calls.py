"""Call every command with arguments that make no sense, and with damaged files, in this process. Prints one table.

python tools/fuzz_calls.py [--calls 400] [--seed 0]

A call may succeed, or end with a status and one sentence, or with the usage message of a mistyped option. A traceback
is a failure, and so is the file that text in an argument or file would make if anything ran it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from fuzz_files import CANARY, Evil, was_run

import attsvm
from attsvm.cli import main as attsvm_main

SECONDS = 8
"""Longer calls are stopped: they are work, not errors."""

ODD = (
    *("", " ", "-1", "0", "1", "2", "1e400", "nan", "-inf", "1.5", "99999999999999999999", "x", "None", "[]", "{}"),
    *("../..", "/dev/null", "/", ".", "~", "\x1b[31m", "\u202e", "a" * 300, "l2", "nuclear", "cpu", "cuda:9", "\udcff"),
    f"__import__('pathlib').Path('{CANARY}').touch()",
    f"$(touch {CANARY})",
    f"os:system('touch {CANARY}')",
)


@dataclass(frozen=True)
class Option:
    name: str
    flag: bool
    needed: bool
    plausible: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    path: tuple[str, ...]
    options: tuple[Option, ...]
    arguments: int


def commands() -> list[Command]:
    """Every command as typed, with the options that it says it has."""
    import typer

    from attsvm.cli._app import app

    found = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(inner, (*path, name))
            return
        options = []
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name not in ("help", "open_page"):
                default = parameter.default
                numeric = isinstance(default, int | float) or getattr(parameter, "min", None) is not None
                plausible = ("1", "2", "3") if numeric else (default,) if isinstance(default, str) else ()
                options.append(Option(parameter.opts[0], bool(parameter.is_flag), parameter.required, plausible))
        count = sum(parameter.param_type_name == "argument" for parameter in command.params)
        found.append(Command(path, tuple(options), count))

    walk(typer.main.get_command(app), ())
    return found


def make_files(folder: Path) -> list[str]:
    """Good files, damaged ones, and some that would like to be run."""
    attsvm.save(attsvm.sphere(2, 3, 2, trials=2), folder / "data.npz")
    attsvm.train(attsvm.sphere(2, 3, 2, trials=2), "l2", steps=3).save(folder / "trajectory.safetensors")
    (folder / "texts.csv").write_text("text,label\n" + "good one,1\nbad two,0\n" * 6)
    good = [path for path in folder.iterdir() if path.is_file()]
    chance = random.Random(0)
    for path in good:
        content = path.read_bytes()
        at = chance.randrange(len(content))
        (folder / f"cut-{path.name}").write_bytes(content[:at])
        (folder / f"hit-{path.name}").write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    evil = pickle.dumps(Evil())
    for ending in ("npz", "safetensors", "parquet", "json", "csv", "pt", "py.txt"):
        (folder / f"evil.{ending}").write_bytes(evil)
    np.save(folder / "objects.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez(folder / "objects.npz", X=np.array([Evil()], dtype=object))
    torch.save(Evil(), folder / "torch.npz")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "folder" / "data_batch_1").write_bytes(evil)
    (folder / "folder" / "model.json").write_text('{"class": "os.system"}')
    (folder / "folder" / "job.json").write_text(f'{{"run": "os:system", "args": ["touch {CANARY}"]}}')
    return [path.name for path in sorted(folder.iterdir())]


class Late(BaseException):
    """A call takes too long."""


def _late(number: int, frame: FrameType | None) -> None:
    raise Late


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(arguments: list[str]) -> tuple[str, str]:
    """What came out, and the words."""
    said = io.StringIO()
    argv, out, err, terminal = sys.argv, sys.stdout, sys.stderr, os.dup(1)
    try:
        sys.argv = ["attsvm", *arguments]
        with limited(SECONDS), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            attsvm_main()
    except SystemExit as end:
        words = end.code if isinstance(end.code, str) else said.getvalue()
        if isinstance(end.code, str) and (len(words.splitlines()) > 1 or "allow_pickle" in words):
            return "odd sentence", words
        return {0: "done", None: "done", 2: "usage", 3: "incomplete"}.get(end.code, "refused"), words
    except Late:
        return "stopped", ""
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        sys.argv, sys.stdout, sys.stderr = argv, out, err
        os.dup2(terminal, 1)  # a command that finds its standard output closed leaves it
        os.close(terminal)
    return "done", said.getvalue()


def fuzz(calls: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """By command: how often what came out; the failures in words."""
    chance = random.Random(seed)
    counts, failures = dict[str, Counter[str]](), list[str]()
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            files = make_files(Path(name))
            known = commands()
            for number in range(calls):
                command = known[number % len(known)]
                arguments = list(command.path)
                arguments += [chance.choice(files if chance.random() < 0.8 else ODD) for _ in range(command.arguments)]
                some = chance.sample(command.options, min(len(command.options), chance.randrange(4)))
                for option in dict.fromkeys((*(one for one in command.options if one.needed), *some)):
                    arguments.append(option.name)
                    if option.name == "--out" and chance.random() < 0.8:
                        arguments.append(f"out-{number}")
                    elif not option.flag:
                        sensible = option.plausible if option.plausible and chance.random() < 0.8 else (*ODD, *files)
                        arguments.append(chance.choice(sensible))
                result, words = call([argument.replace("\0", "") for argument in arguments])
                result = "execution" if was_run() else result
                counts.setdefault(" ".join(command.path), Counter())[result] += 1
                if result in ("traceback", "odd sentence", "execution"):
                    failures.append(f"attsvm {' '.join(map(repr, arguments))}: {result} {words}")
        finally:
            os.chdir(home)
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts, failures = fuzz(options.calls, options.seed)
    columns = ("done", "incomplete", "refused", "usage", "stopped", "traceback", "odd sentence", "execution")
    print(f"{'command':22}" + "".join(f"{name:>13}" for name in columns))
    for name, count in counts.items():
        print(f"{name:22}" + "".join(f"{count[column]:13}" for column in columns))
    print("\n".join(line[-1500:] for line in failures[:20]))
    print(f"{options.calls} calls, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
