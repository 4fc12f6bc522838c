"""Checks: named statements computed from the rows, beside what the paper or the claim says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """`name` says what must hold, `paper` what the paper or the claim says of it, `ours` what came out.

    `why` explains a failure for which the paper is to blame; other checks hold the evidence.
    """

    name: str
    paper: str
    ours: str
    passed: bool
    note: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        # json and templates do not take numpy's booleans for booleans
        object.__setattr__(self, "passed", bool(self.passed))


def at_most(name: str, value: float, bound: float, paper: str = "", note: str = "", why: str = "") -> Check:
    """value ≤ bound; a value that is not a number fails."""
    return Check(name, paper, f"{number(value)} (bar {number(bound)})", value <= bound, note, why)


def at_least(name: str, value: float, bound: float, paper: str = "", note: str = "", why: str = "") -> Check:
    """value ≥ bound; a value that is not a number fails."""
    return Check(name, paper, f"{number(value)} (bar {number(bound)})", value >= bound, note, why)


def number(value: float) -> str:
    """A short number; one close to 1 keeps all its nines."""
    if 0.99 < value < 1:
        return f"1 − {1 - value:.1e}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def fine(checks: list[Check]) -> bool:
    """Has every check passed, or failed for a reason that is given?"""
    return all(check.passed or check.why for check in checks)


def verdict_line(checks: list[Check]) -> str:
    """One line for a table of contents."""
    failed = [check.name for check in checks if not check.passed and not check.why]
    explained = [check.name for check in checks if not check.passed and check.why]
    if failed:
        return f"{len(failed) + len(explained)} of {len(checks)} checks failed: {'; '.join(failed + explained)}"
    if explained:
        return f"{len(checks) - len(explained)} of {len(checks)} checks passed; explained: {'; '.join(explained)}"
    return f"all {len(checks)} checks passed"
