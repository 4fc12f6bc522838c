"""Small objects that a file holds by name: losses, schedules, starts, geometries and heads, users' own included.

A file is data: it holds the kind of an object and its plain parameters, and never says where its code is. Reading
looks the kind up among the classes that are defined in this process.
"""

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from attsvm.errors import AttsvmError

T = TypeVar("T")


def kind_of(cls: type) -> str:
    """The name of a class in files: its own `name` if that is a string, else that of the class."""
    name = vars(cls).get("name")
    return name if isinstance(name, str) else cls.__name__


def is_users(thing: Any) -> bool:
    """Whether the class of an object is not the library's."""
    return not type(thing).__module__.startswith("attsvm.")


def _subclasses(base: type[T]) -> list[type[T]]:
    return [found for cls in base.__subclasses__() for found in (cls, *_subclasses(cls))]


def kinds(base: type[T]) -> dict[str, type[T]]:
    """All subclasses by kind; a class that was defined again replaces the earlier one."""
    return {kind_of(cls): cls for cls in _subclasses(base)}


def facts_of(thing: Any) -> dict[str, Any]:
    """The kind of an object and its fields, if it is a dataclass; objects in its fields likewise. Functions are left
    out, since a file cannot hold them, and so are private fields, which follow from the others."""
    held = {field.name: getattr(thing, field.name) for field in fields(thing)} if is_dataclass(thing) else {}
    plain = {name: _plain(value) for name, value in held.items() if not name.startswith("_")}
    return {"kind": kind_of(type(thing)), **{name: value for name, value in plain.items() if not callable(value)}}


def _plain(value: Any) -> Any:
    """A value of a field as a file holds it."""
    if isinstance(value, tuple | list):
        return [_plain(x) for x in value]
    if isinstance(value, np.generic):
        return value.item()
    return facts_of(value) if is_dataclass(value) else value


def from_facts(base: type[T], what: str, facts: Any, part: type | None = None) -> T:
    """The object that `facts_of` described; `what` is the option by which a user gives one of their own.

    Objects in its fields are of the class `part`.
    """
    if not isinstance(facts, dict) or not isinstance(facts.get("kind"), str):
        raise AttsvmError(f"{what} must be described by its kind and its parameters, but got {facts!r:.60}.")
    kind = facts["kind"]
    cls = kinds(base).get(kind)
    if cls is None:
        raise AttsvmError(
            f"the {what} {kind!r} is not defined here: import the module that defines it first, or pass {what}=…."
        )
    places = {f"{c.__module__}.{c.__qualname__}" for c in _subclasses(base) if kind_of(c) == kind}
    if len(places) > 1:
        raise AttsvmError(
            f"the {what} {kind!r} may be any of {', '.join(sorted(places))}: pass the one that is meant as {what}=…."
        )
    given = {name: value for name, value in facts.items() if name != "kind"}
    if is_dataclass(cls) and any(field.name == "function" for field in fields(cls)):
        raise AttsvmError(f"the {what} is a function, {given.get('name', '')}, that no file holds: pass {what}=….")
    if part is not None:
        given = {name: from_facts(part, name, x) if isinstance(x, dict) else x for name, x in given.items()}
    try:
        return cls(**given)
    except TypeError as error:
        raise AttsvmError(f"the {what} {kind!r} must have other parameters: {error}.") from error
