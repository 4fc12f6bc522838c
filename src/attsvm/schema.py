"""What a file must hold, declared: names, dtypes, shapes, ranges of arrays, and shapes of JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError, describe

_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "real": ("float32 or float64", ("f4", "f8")),
    "whole": ("whole numbers", ("i1", "i2", "i4", "i8", "u1", "u2", "u4")),
    "bool": ("boolean", ("b1",)),
}
NUMBER = "number"
"""In a JSON shape: a number that may be infinite or undefined, as those of a run that diverged."""


@dataclass(frozen=True)
class Array:
    """An array of a file.

    kind      "real" (finite float32 or float64), "whole", "bool", or several: "real bool"
    axes      names of the axes, "B n T d": equal names have equal sizes in all arrays of a file. "n+1" is one more
              than n, a number is itself, "..." is any rest. None: any shape.
    optional  may be missing
    least     least and largest entry
    finite    refuse infinite and undefined numbers
    """

    kind: str
    axes: str | None = None
    optional: bool = False
    least: float | None = None
    most: float | None = None
    finite: bool = True

    def check(self, name: str, array: np.ndarray, sizes: dict[str, int]) -> None:
        words, allowed = zip(*(_KINDS[kind] for kind in self.kind.split()))
        if array.dtype.str[1:] not in sum(allowed, ()) or not array.dtype.isnative:
            raise AttsvmError(f"{name} must be {' or '.join(words)}, but got dtype {array.dtype}.")
        if self.axes is not None:
            self._bind(name, array, sizes)
        if array.dtype.kind == "f" and self.finite and not np.isfinite(array).all():
            raise AttsvmError(f"{name} must be finite, but it contains nan or inf.")
        if array.size and self.least is not None and array.min() < self.least:
            raise AttsvmError(f"{name} must be at least {self.least:g}, but it contains {array.min():g}.")
        if array.size and self.most is not None and array.max() > self.most:
            raise AttsvmError(f"{name} must be at most {self.most:g}, but it contains {array.max():g}.")

    def _bind(self, name: str, array: np.ndarray, sizes: dict[str, int]) -> None:
        symbols = (self.axes or "").split()
        rest = symbols[-1:] == ["..."]
        symbols = symbols[:-1] if rest else symbols
        shape = array.shape[: len(symbols)] if rest else array.shape
        known = dict(sizes)
        for symbol, size in zip(symbols, shape):
            base, _, more = symbol.partition("+")
            known.setdefault(base, size - int(more or 0))
        if len(shape) != len(symbols) or any(_size(s, known) != size for s, size in zip(symbols, shape)):
            expected = ", ".join(symbol if (n := _size(symbol, sizes)) is None else str(n) for symbol in symbols)
            raise AttsvmError(
                f"{name} must have shape ({expected}{', …' if rest else ''}), but got shape {array.shape}."
            )
        sizes.update(known)


def _size(symbol: str, sizes: Mapping[str, int]) -> int | None:
    base, _, more = symbol.partition("+")
    size = int(base) if base.isdigit() else sizes.get(base)
    return None if size is None else size + int(more or 0)


@dataclass(frozen=True)
class Schema:
    """A format of array files.

    format   its name, "attsvm-data/1"; the number rises when old readers cannot read the new files
    what     in words: "token data"
    arrays   by name; "records.*" stands for all names that begin with "records."
    facts    shapes of the facts by name (see `check_json`); a "?" behind a name makes it optional
    former   earlier names of the same format
    """

    format: str
    what: str
    arrays: Mapping[str, Array]
    facts: Mapping[str, Any] = field(default_factory=dict)
    former: tuple[str, ...] = ()

    def check(
        self, path: Path, arrays: dict[str, np.ndarray], strings: Mapping[str, str]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and decoded facts, if they are what this format says."""
        found = strings.get("format", "")
        if found not in (self.format, *self.former):
            if found.rpartition("/")[0] == self.format.rpartition("/")[0]:
                raise AttsvmError(f"{path} has format {found}, but this version of attsvm reads {self.format}.")
            raise AttsvmError(f"{path} must hold {self.what} ({self.format}), but it does not.")
        try:
            self.check_arrays(arrays)
            return arrays, self._facts(strings)
        except AttsvmError as error:
            raise AttsvmError(f"{path}: {error}") from error

    def check_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Names, dtypes, shapes and ranges; the sizes of the named axes."""
        missing = [
            name
            for name, array in self.arrays.items()
            if not array.optional and not name.endswith("*") and name not in arrays
        ]
        if missing:
            raise AttsvmError(f"the array {missing[0]} is missing: the file has only {', '.join(arrays) or 'nothing'}.")
        sizes: dict[str, int] = {}
        for name in [*(name for name in self.arrays if name in arrays), *sorted(arrays.keys() - self.arrays.keys())]:
            array = self.arrays.get(name) or self._pattern(name)
            if array is None:
                raise AttsvmError(f"arrays must be {', '.join(sorted(self.arrays))}, but got also {name}.")
            array.check(name, arrays[name], sizes)
        return sizes

    def _pattern(self, name: str) -> Array | None:
        return next((a for key, a in self.arrays.items() if key.endswith("*") and name.startswith(key[:-1])), None)

    def _facts(self, strings: Mapping[str, str]) -> dict[str, Any]:
        facts: dict[str, Any] = {"format": self.format}
        for key, shape in self.facts.items():
            name = key.removesuffix("?")
            if name in strings:
                plain = shape is str or isinstance(shape, frozenset)
                facts[name] = strings[name] if plain else _parsed(name, strings[name])
                check_json(name, facts[name], shape)
            elif name == key:
                raise AttsvmError(f"{name} is missing.")
        return facts


def check_json(name: str, value: Any, shape: Any) -> None:
    """Refuse a value of another shape.

    A shape is a type (str, int, bool, float, list, dict; float takes whole numbers too, and must be finite; object is
    anything), NUMBER, None, a frozenset of the values allowed, a tuple of alternatives, [shape] for a list of such,
    {str: shape} for any names, or {"name": shape, "other?": shape} for an object with these names; it may have others
    where the shape has "..." for them.
    """
    if not _fits(name, value, shape):
        raise AttsvmError(f"{name} must be {_words(shape)}, but got {describe(value)}.")


def _fits(name: str, value: Any, shape: Any) -> bool:
    if isinstance(shape, tuple):
        return any(_quietly_fits(name, value, alternative) for alternative in shape)
    if shape is object:
        return True
    if shape is None:
        return value is None
    if isinstance(shape, frozenset):
        return isinstance(value, str | int | float) and value in shape
    if shape == NUMBER or shape is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (shape is not float or -math.inf < value < math.inf)
    if isinstance(shape, type):
        return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    if isinstance(shape, list):
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_json(f"{name}[{index}]", item, shape[0])
        return isinstance(value, list)
    if not isinstance(value, dict):
        return False
    if str in shape:
        for key, item in value.items():
            check_json(f"{name}.{key}", item, shape[str])
        return True
    names = {key.removesuffix("?"): key for key in shape if key != "..."}
    missing = [key for key, given in names.items() if key == given and key not in value]
    if missing:
        raise AttsvmError(f"{name} must have {missing[0]}, but it has only {', '.join(map(str, value)) or 'nothing'}.")
    unknown = [key for key in value if key not in names]
    if unknown and "..." not in shape:
        raise AttsvmError(f"{name} must have {', '.join(names)} alone, but it has also {unknown[0]}.")
    for key, item in value.items():
        check_json(f"{name}.{key}", item, shape[names.get(key, "...")])
    return True


def _quietly_fits(name: str, value: Any, shape: Any) -> bool:
    try:
        return _fits(name, value, shape)
    except AttsvmError:
        return False


def _words(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(_words(alternative) for alternative in shape)
    if isinstance(shape, frozenset):
        return f"one of {', '.join(map(str, sorted(shape, key=str)))}"
    if isinstance(shape, list):
        return "a list"
    if isinstance(shape, dict):
        return "an object"
    plain = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}
    plain |= {list: "a list", dict: "an object", None: "nothing", NUMBER: "a number"}
    return plain[shape]


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AttsvmError(f"{name} must be JSON, but it is not.") from error
