"""Checks: named statements computed from the rows, beside what the paper says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """`name` says what must hold, `paper` what the paper says of it, `ours` what came out."""

    name: str
    paper: str
    ours: str
    passed: bool
    note: str = ""

    def __post_init__(self) -> None:
        # numpy's booleans are no booleans to json and to templates
        object.__setattr__(self, "passed", bool(self.passed))


def at_most(name: str, value: float, bound: float, paper: str, note: str = "") -> Check:
    """value ≤ bound; a value that is not a number fails."""
    return Check(name, paper, f"{number(value)} (bar {number(bound)})", value <= bound, note)


def at_least(name: str, value: float, bound: float, paper: str, note: str = "") -> Check:
    """value ≥ bound; a value that is not a number fails."""
    return Check(name, paper, f"{number(value)} (bar {number(bound)})", value >= bound, note)


def number(value: float) -> str:
    """Short, and close to 1 with all its nines."""
    if 0.99 < value < 1:
        return f"1 − {1 - value:.1e}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def verdict_line(checks: list[Check]) -> str:
    """One line for a table of contents."""
    failed = [check.name for check in checks if not check.passed]
    if not failed:
        return f"all {len(checks)} checks passed"
    return f"{len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}"
