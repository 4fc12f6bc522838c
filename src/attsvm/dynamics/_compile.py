"""The training step, compiled where that pays and a compiler is available."""

import shutil
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attsvm.data import FunctionHead, Head, TokenData
from attsvm.dynamics._step import Method, States, step
from attsvm.objective import Lanes, Loss, is_small

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


class Call(NamedTuple):
    """A call of compiled code."""

    code: Callable[..., Sequence[Tensor]]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


class Stepper:
    """The step function: compiled until compiling fails, then the eager one.

    `key` names what it is compiled for: shapes, rule, device.
    """

    def __init__(self, compiled: bool, key: Hashable) -> None:
        self.compiled, self.key = compiled, key
        self.works = False

    def __call__(self, *args: Any) -> States:
        return self.traced(*args)[0]

    def traced(self, *args: Any) -> tuple[States, list[Call]]:
        """The states after a step, and the calls of compiled code that made them."""
        if not self.compiled:
            return step(*args), []
        if self.works:
            return _compiled_step(self.key)(*args)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own
                result = _compiled_step(self.key)(*args)
        except Exception as error:  # the compiler stack raises almost anything when a tool is missing
            warnings.warn(f"the step could not be compiled and runs eagerly: {error}", stacklevel=2)
            self.compiled = False
            return step(*args), []
        self.works = True
        return result

    def repeated(self) -> Step:
        """The step, for many calls that differ in numbers only, not in shapes or in what is None.

        The compiler's own function looks at every call whether its code fits. That takes longer than a step of few
        trials. So the first two calls are made by it (the second one gets the states that a step returns), and all
        others go to the code that it called.
        """
        return _Repeated(self) if self.compiled else step


class _Repeated:
    """What `Stepper.repeated` returns."""

    def __init__(self, stepper: Stepper) -> None:
        self.function: Step = self._first
        self.stepper = stepper

    def __call__(self, *args: Any) -> States:
        return self.function(*args)

    def _first(self, *args: Any) -> States:
        self.function = self._second
        return self.stepper(*args)

    def _second(self, *args: Any) -> States:
        states, calls = self.stepper.traced(*args)
        self.function = _direct(args, states, calls) or self.stepper
        return states


def _direct(args: Any, states: States, calls: list[Call]) -> Step | None:
    """The step as one call of compiled code, if that is what it is."""
    if len(calls) != 1:
        return None
    (code, inputs, outputs), given = calls[0], [id(x) for x in _tensors(*args)]
    made = {id(x): i for i, x in enumerate(outputs)}
    found = [x for state in states.values() for x in state.values()]
    if any(given.count(id(x)) != 1 for x in inputs) or not all(id(x) in made for x in found):
        return None
    taken = [given.index(id(x)) for x in inputs]
    places = [(name, [(key, made[id(x)]) for key, x in state.items()]) for name, state in states.items()]

    def direct(*args: Any) -> States:
        tensors = _tensors(*args)
        outputs = code(*[tensors[i] for i in taken])
        return {name: {key: outputs[i] for key, i in state} for name, state in places}

    return direct


def _tensors(lanes: Lanes, method: Method, states: States, *rates: Any) -> list[Tensor | None]:
    """All tensors among the arguments of a step."""
    found = [lanes.X, lanes.Z, lanes.Y, lanes.hidden, lanes.scores]
    if lanes.head is not None:
        found.extend(lanes.head.tensors().values())
    for state in states.values():
        found.extend(state.values())
    for rate in rates:
        found.extend(rate.values() if isinstance(rate, dict) else (rate,))
    return found


@lru_cache(maxsize=256)
def _compiled_step(key: Hashable) -> Callable[..., tuple[States, list[Call]]]:
    # torch keeps a few compiled versions per code object and then stops compiling it, so every shape gets a copy.
    copy = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__)
    calls: list[Call] = []

    def backend(graph: Any, example: Any) -> Callable[..., Sequence[Tensor]]:
        from torch._dynamo import lookup_backend  # it takes a second to load

        code: Callable[..., Sequence[Tensor]] = lookup_backend("inductor")(graph, example)

        def called(*inputs: Tensor) -> Sequence[Tensor]:
            calls.append(Call(code, inputs, outputs := code(*inputs)))
            return outputs

        return called

    function = torch.compile(copy, dynamic=False, backend=backend)

    def traced(*args: Any) -> tuple[States, list[Call]]:
        calls.clear()
        states, made = function(*args), calls.copy()
        calls.clear()
        return states, made

    return traced
