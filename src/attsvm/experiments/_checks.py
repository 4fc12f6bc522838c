"""Checks: named statements computed from the rows, beside what the paper or the claim says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """`name` says what must hold, `paper` what the paper or the claim says about it, `ours` what was found.

    `why` explains a failure that is the paper's; other checks hold the evidence. An `extra` check is one of those, or
    states something that the paper does not. Extra checks are counted separately.
    """

    name: str
    paper: str
    ours: str
    passed: bool
    note: str = ""
    why: str = ""
    extra: bool = False

    def __post_init__(self) -> None:
        # json and templates do not take numpy's booleans for booleans
        object.__setattr__(self, "passed", bool(self.passed))


def at_most(
    name: str,
    value: float,
    bound: float,
    paper: str = "",
    note: str = "",
    why: str = "",
    *,
    unit: str = "",
    extra: bool = False,
) -> Check:
    """value ≤ bound, both in this unit; a value that is not a number fails."""
    ours = f"{number(value)}{unit} (≤ {number(bound)}{unit})"
    return Check(name, paper, ours, value <= bound, note, why, extra)


def at_least(
    name: str,
    value: float,
    bound: float,
    paper: str = "",
    note: str = "",
    why: str = "",
    *,
    unit: str = "",
    extra: bool = False,
) -> Check:
    """value ≥ bound, both in this unit; a value that is not a number fails."""
    ours = f"{number(value)}{unit} (≥ {number(bound)}{unit})"
    return Check(name, paper, ours, value >= bound, note, why, extra)


def margin_checks(what: str, shares: Mapping[str, float], norm: str, bar: float) -> list[Check]:
    """Of the largest margins in several norms this one has a share of at least the bar, the others have less."""
    best = max((other for other in shares if other != norm), key=shares.__getitem__)
    words = f"{what}: largest median share of another norm's margin ({best})"
    return [
        at_least(f"{what}: median share of the {norm} margin", shares[norm], bar, f"goes to the {norm} margin"),
        at_most(words, shares[best], shares[norm], "stays away from the other margins"),
    ]


def number(value: float) -> str:
    """A short number; one close to 1 keeps all its nines."""
    if 0.99 < value < 1:
        return f"1 − {1 - value:.1e}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def fine(checks: list[Check]) -> bool:
    """Has every check passed, or failed for a given reason?"""
    return all(check.passed or check.why for check in checks)


def verdict_line(checks: list[Check]) -> str:
    """One line for a table of contents; checks of the claim and extra ones are counted separately."""
    stated, extra = ([check for check in checks if check.extra == kind] for kind in (False, True))
    if not checks:
        return "no checks"
    failed = [check for check in checks if not check.passed and not check.why]
    explained = [check for check in checks if not check.passed and check.why]
    if not failed and not explained:
        groups = ((stated, "check"), (extra, "extra check"))
        parts = [f"{len(some)} {word}{'s' * (len(some) > 1)}" for some, word in groups if some]
        return f"{'all ' * (len(checks) > 1)}{' and '.join(parts)} passed"

    def counted(passed: bool) -> str:
        numbers = [(sum(check.passed == passed for check in some), len(some)) for some in (stated, extra)]
        more = f" and {numbers[1][0]} of {numbers[1][1]} extra" if extra else ""
        return f"{numbers[0][0]} of {numbers[0][1]} checks{more}"

    names = "; ".join(check.name for check in failed + explained)
    return f"{counted(False)} failed: {names}" if failed else f"{counted(True)} passed; explained: {names}"
