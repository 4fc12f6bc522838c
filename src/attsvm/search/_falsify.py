"""Look for a small counter-example to a conjecture about training."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real, check_returned
from attsvm.data import LinearHead, TokenData
from attsvm.dynamics import Trajectory
from attsvm.errors import AttsvmError, describe
from attsvm.search._descent import Descent
from attsvm.search._shrink import Instance, shrink

TIE = 1e-12
"""Logits that differ by less, relative to the largest, are equal."""


@dataclass(frozen=True)
class Counterexample:
    """One trial on which the hypotheses hold and the conclusion fails.

    `slack` is the conclusion's value in float64; `confirmed` holds its values with `digits` digits, after the same
    steps and far later on the curve of the run. The search trained `looked_at` instances until it hit one of slack
    `found`, which was shrunk.
    """

    data: TokenData
    slack: float
    confirmed: tuple[float, float]
    digits: int
    looked_at: int
    found: float
    seconds: float

    def __repr__(self) -> str:
        X, v = self.data.X[0].tolist(), self.data.head.v[0].tolist() if isinstance(self.data.head, LinearHead) else None
        return (
            f"Counterexample(X={X}, Z={self.data.Z[0].tolist()}, v={v}; slack {self.confirmed[0]:.4g}, then "
            f"{self.confirmed[1]:.4g}, with {self.digits} digits; found after {self.looked_at} instances in "
            f"{self.seconds:.0f} s)"
        )


def falsify(
    conclusion: Callable[[Trajectory], Tensor],
    given: Callable[[TokenData], Tensor],
    descent: Descent,
    *,
    n: int,
    T: int = 2,
    d: int = 2,
    e: int = 1,
    free: tuple[str, ...] = ("X", "v"),
    entries: int = 4,
    batch: int = 512,
    rounds: int = 100,
    digits: int = 50,
    seed: int = 0,
    seconds: float | None = None,
) -> Counterexample | None:
    """Search for data on which `given` holds and, after the descent, `conclusion` fails; None if nothing is found.

    `conclusion(run)` and `given(data)` return (B,) booleans, or numbers that are positive where the statement holds.
    Numbers guide the search: every round trains `batch` instances that obey `given`, half of them fresh, half changes
    of those with the least slack so far. A violation is shrunk: sequences, tokens and coordinates are dropped, entries
    set to 0 or made smaller, as long as it stays a violation. The result is confirmed with `digits` digits: the
    conclusion fails after the same steps and, by as much, far later on the curve of the run, where logits are ten times
    as large (`Descent.follow`). That is evidence about the limit, not a proof. Where the two largest logits of a query
    are equal, the run decides nothing. None without a warning means that some instances were tested.

    n, T, d, e   sizes to search in: sequences, tokens, width of tokens and of queries
    entries      fresh numbers are integers up to this in absolute value; with 0 Gaussian, and rounded in the end
    free         which of X, Z and v vary; a Z that does not is 1
    rounds, seconds   when to give up
    """
    n, T, d, e = as_count("n", n), as_count("T", T), as_count("d", d), as_count("e", e)
    batch, rounds = as_count("batch", batch, least=2), as_count("rounds", rounds)
    entries, digits = as_count("entries", entries, least=0), as_count("digits", digits, least=16)
    if not free or not set(free) <= {"X", "Z", "v"}:
        raise AttsvmError(f"free must name some of X, Z and v, but got {describe(free)}.")
    limit = None if seconds is None else as_real("seconds", seconds, least=0)
    if not isinstance(descent, Descent):
        raise AttsvmError(f"descent must be a Descent, but got {describe(descent)}.")
    descent.check_replayable()
    generator = torch.Generator().manual_seed(as_count("seed", seed, least=0, most=2**63 - 1))
    started, drawn, looked_at, judged = time.monotonic(), 0, 0, 0
    best, best_slack = None, torch.empty(0, dtype=torch.float64)

    def slack_of(instances: Instance) -> Tensor:
        """The conclusion's slack; +∞ where `given` fails or a run diverged. Where it is negative, the slack far later
        counts, so that a temporary violation is none, and so does +∞ where no token of a query leads."""
        data = instances.data()
        found = torch.full((len(instances),), torch.inf, dtype=torch.float64)
        holds = _number("given", given(data), len(instances)) > 0
        if bool(holds.any()):
            run = descent.run(data[holds])
            found[holds] = _slack(conclusion, run)
            hits = found <= 0
            if bool(hits.any()):
                ended = hits[holds]
                run = replace(run, data=run.data[ended], W=run.W[ended], tokens=run.tokens[ended])
                followed = descent.follow(run)
                later = _slack(conclusion, followed)
                later = torch.where(later <= found[hits], later, later.abs())
                found[hits] = torch.where(_decided(run) & _decided(followed), later, torch.inf)
        return found

    for _ in range(rounds):
        if limit is not None and time.monotonic() - started > limit:
            break
        fresh = Instance.draw(batch, n, T, d, e, free, entries, generator)
        trial = fresh if best is None else Instance.cat([fresh[: batch // 2], best.mutated(free, entries, generator)])
        drawn += len(trial)
        trial = trial[_number("given", given(trial.data()), len(trial)) > 0]
        looked_at += len(trial)
        if not len(trial):
            continue
        values = slack_of(trial)
        judged += int(values.isfinite().sum())
        hits = values <= 0
        if bool(hits.any()):
            first = int(values.argmin())
            hit = trial[first : first + 1]
            for instance in (shrink(hit, lambda instances: slack_of(instances) <= 0, free), hit):
                data = instance.data()
                confirmed = _confirmed(conclusion, descent, data, digits)
                if confirmed is not None:
                    return Counterexample(
                        data=data,
                        slack=float(slack_of(instance)[0]),
                        confirmed=confirmed,
                        digits=digits,
                        looked_at=looked_at,
                        found=float(values[first]),
                        seconds=time.monotonic() - started,
                    )
        pool = trial if best is None else Instance.cat([best, trial])
        pool_slack = values if best is None else torch.cat([best_slack, values])
        keep = pool_slack.argsort()[: batch // 2]
        best, best_slack = pool[keep], pool_slack[keep]
    if drawn and not judged:
        why = "the conclusion was decided on none of them" if looked_at else "given holds on none of them"
        warnings.warn(f"nothing was tested: of {drawn} instances {why}.", stacklevel=2)
    return None


def _confirmed(
    conclusion: Callable[[Trajectory], Tensor], descent: Descent, data: TokenData, digits: int
) -> tuple[float, float] | None:
    """The slack after the steps and far later; None unless it is negative both times and not on its way up."""
    found = [float(_slack(conclusion, run)) if decided else math.inf for run, decided in descent.replay(data, digits)]
    return (found[0], found[1]) if found[1] <= found[0] <= 0 else None


def _decided(run: Trajectory) -> Tensor:
    """Whether one token of every query leads, by more than rounding; (B,)."""
    logits = run.data.logits(run.W)
    first, at = logits.max(-1, keepdim=True)
    lead = (first - logits.scatter(-1, at, -torch.inf)).amin(-1)
    return (lead > TIE * logits.abs().amax(-1)).flatten(1).all(1)


def _slack(conclusion: Callable[[Trajectory], Tensor], run: Trajectory) -> Tensor:
    return _number("conclusion", conclusion(run), len(run)).nan_to_num(nan=torch.inf)


def _number(name: str, value: Tensor, trials: int) -> Tensor:
    """Booleans as ±1."""
    x = check_returned(f"{name}, a value for each trial,", value, (trials,))
    return torch.where(x, 1.0, -1.0).double() if x.dtype == torch.bool else x.double()
