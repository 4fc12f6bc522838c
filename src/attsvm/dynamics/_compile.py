"""The training step, compiled where that pays and a compiler is available."""

import shutil
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from attsvm.data import FunctionHead, Head, TokenData
from attsvm.dynamics._step import Method, States, step
from attsvm.objective import Loss, is_small

WORTHWHILE = 25_000
"""From this many steps on, a compiled step makes up for the seconds that compiling takes. The number of trials does not
matter: eager and compiled arithmetic differ in the last bits, and a trial must end in the same place alone and in a
batch."""

Step = Callable[..., States]


def wants_compiled(data: TokenData, method: Method, steps: int) -> bool:
    """Is a run of this many steps worth compiling, and can it be compiled?"""
    compiler = data.device.type != "cpu" or any(map(shutil.which, ("g++", "clang++")))
    return bool(compiler) and is_small(data) and steps >= WORTHWHILE and _in_closed_form(data.head, method.loss)


def _in_closed_form(head: Head | None, loss: Loss) -> bool:
    """Do head and loss define their derivatives? Automatic ones are not compiled."""
    own_slope = type(loss).slope is not Loss.slope
    return own_slope and (head is None or type(head).dh is not Head.dh) and not isinstance(head, FunctionHead)


class Stepper:
    """The step function: compiled until compiling fails, then the eager one.

    `key` names what it is compiled for: shapes, rule, device.
    """

    def __init__(self, compiled: bool, key: Hashable) -> None:
        self.compiled, self.key = compiled, key
        self.function: Step | None = None if compiled else step

    def __call__(self, *args: Any) -> States:
        return self._first(*args) if self.function is None else self.function(*args)

    def unguarded(self) -> AbstractContextManager[Any]:
        """In it, calls like the first one skip the checks that their arguments still are like the first one's."""
        compiled = self.compiled and self.function is not None
        return torch.compiler.set_stance(skip_guard_eval_unsafe=True) if compiled else nullcontext()

    def _first(self, *args: Any) -> States:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own
                function = _compiled_step(self.key)
                result = function(*args)
        except Exception as error:  # the compiler stack raises almost anything when a tool is missing
            warnings.warn(f"the step could not be compiled and runs eagerly: {error}", stacklevel=2)
            self.compiled, function = False, step
            result = step(*args)
        self.function = function
        return result


@lru_cache(maxsize=256)
def _compiled_step(key: Hashable) -> Step:
    # torch keeps a few compiled versions per code object and then stops compiling it, so every shape gets a copy.
    copy = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__)
    return torch.compile(copy, dynamic=False)
