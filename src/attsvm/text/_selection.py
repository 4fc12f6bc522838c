"""What is chosen on held-out texts beside the penalty: which columns there are, and how they are penalised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.text._attention import PATH, Attention, Problem, Step, follow_path
from attsvm.text._features import Features, learn_features
from attsvm.text._tokens import Tokens

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_FEW = 10
"""With fewer held-out texts than this nothing is chosen: the verdict would be chance."""
_PENALTY_OF_FEW = 0.1
_PART = 0.1
"""Of the texts, to hold out"""
_ENOUGH = 1000
"""Where the part has fewer texts than this, all texts are held out, in `_FOLDS` parts one after the other."""
_FOLDS = 5
_LOOSE = 10
"""Where many forms are compared, their fits stop this much earlier than the last one."""
_CHEAP = 500_000
"""With more tokens than this the penalty alone is chosen: other choices would multiply the time of a long fit."""


@dataclass(frozen=True)
class Form:
    """A form of the model: the columns, and the penalties of their two numbers."""

    ngrams: int
    min_texts: int
    characters: int
    importance: float
    rarity: float


@dataclass(frozen=True, eq=False)
class Labelled:
    """Tokens of texts with what is to be fitted to them."""

    tokens: Tokens
    target: np.ndarray
    """(texts, outputs) in 0..1"""
    weight: np.ndarray
    """(texts,) of the loss"""
    times: np.ndarray
    """(texts,) how many texts each one counts for"""

    def columns(self, form: Form) -> tuple[Features, csr_matrix]:
        return learn_features(self.tokens, form.ngrams, form.min_texts, form.characters, self.times)


@dataclass(frozen=True, eq=False)
class Choice:
    """The best form, its columns, and where to start its fit."""

    form: Form
    features: Features
    x: csr_matrix
    penalty: float
    path: list[Step]
    start: Attention | None = None

    @property
    def loss(self) -> float:
        return min(step.loss for step in self.path)


class Chooser:
    """Compares forms by their loss on held-out texts."""

    def __init__(
        self,
        data: Labelled,
        held_out: Sequence[np.ndarray],
        *,
        p: float,
        max_iter: int,
        tol: float,
        report: Callable[[str, int], None],
    ) -> None:
        self.data, self.held_out, self.p = data, held_out, p
        self.max_iter, self.tol, self.report = max_iter, tol, report
        self._columns: dict[Form, tuple[Features, csr_matrix]] = {}

    def choose(self, given: dict[str, Any], penalty: float | None) -> Choice:
        """The best form with these settings, where those that are None are free.

        The free ones are varied in turn from a plain form, and a change is kept if it lowers the held-out loss. With a
        penalty, or without held-out texts, the plain form is taken.
        """
        cheap = len(self.data.tokens.ids) * ((given["ngrams"] or 1) + given["characters"]) <= _CHEAP
        plain = {"ngrams": 1, "min_texts": 1 if cheap else 2, "importance": 0.5, "rarity": 0.5}
        free = [name for name, value in given.items() if value is None]
        form = Form(**given | {name: plain[name] for name in free})
        if penalty is not None or not self.held_out:
            penalty = _PENALTY_OF_FEW if penalty is None else penalty
            return Choice(form, *self.data.columns(form), penalty, [])
        if not cheap:
            return self.judge(form, PATH, self.tol)
        tol = _LOOSE * self.tol
        best = self.judge(form, PATH, tol)
        for changes in _CHANGES:
            for change in changes:
                other = replace(best.form, **{name: value for name, value in change.items() if name in free})
                if other == best.form:
                    break
                try:  # the best penalty of a form is near that of another
                    rival = self.judge(other, [penalty for penalty in PATH if penalty < 4 * best.penalty], tol)
                except AttsvmError:  # no word stands in so many texts
                    break
                if rival.loss >= best.loss:
                    break
                best = rival
        return best

    def judge(self, form: Form, penalties: Sequence[float], tol: float) -> Choice:
        """Follow the path of a form."""
        features, x = self._learned(form)
        trials = [self._trial(x, form, away) for away in self.held_out]
        self.report(", ".join(f"{name} {value}" for name, value in asdict(form).items() if value), 0)
        path, start = follow_path(trials, penalties, self.max_iter, tol, self.report)
        return Choice(form, features, x, min(path, key=lambda step: step.loss).penalty, path, start)

    def _learned(self, form: Form) -> tuple[Features, csr_matrix]:
        key = replace(form, importance=0.0, rarity=0.0)
        if key not in self._columns:
            self._columns = {key: self.data.columns(form)}  # the last one alone: they are large
        return self._columns[key]

    def _trial(self, x: csr_matrix, form: Form, away: np.ndarray) -> tuple[Problem, Problem]:
        """The problem of the texts that stay, and that of the held-out ones; what only these have is unknown."""
        times = self.data.times[~away]
        matrix: Any = x
        parts: list[Any] = [matrix[~away], matrix[away]]
        rows = np.repeat(times, np.diff(parts[0].indptr))
        known = np.bincount(parts[0].indices, rows, minlength=parts[0].shape[1]) >= form.min_texts
        for part in parts:
            part.data *= known[part.indices]
            part.eliminate_zeros()
        kept, judge = (
            Problem(part, self.data.target[chosen], self.data.weight[chosen], **problem_settings(form, self.p))
            for part, chosen in zip(parts, (~away, away))
        )
        return kept, judge


_CHANGES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"importance": 0.25, "rarity": 0.25}, {"importance": 0.1, "rarity": 0.0}),
    ({"ngrams": 2},),
    ({"min_texts": 2},),
)
"""One after the other; in each the next is tried if the one before it was better"""


def problem_settings(form: Form, p: float) -> dict[str, float]:
    return {"p": p, "sigma": form.importance, "rho": form.rarity}


def hold_out(
    texts: Sequence[str], place: np.ndarray, times: np.ndarray, fraction: float | None, random: np.random.RandomState
) -> list[np.ndarray]:
    """(texts,) bool: parts of each class, one after the other, none of them all of a class.

    A fraction asks for one part of that size. Equal texts of a class are held out together, so that none is both fitted
    to and judged by. No part has fewer than `_FEW` texts; with few texts there is no part.
    """
    members: list[dict[str, list[int]]] = [{} for _ in range(place.max() + 1)]
    for i, (text, k) in enumerate(zip(texts, place)):
        members[k].setdefault(text, []).append(i)
    trials = _FOLDS if fraction is None and _PART * sum(map(len, members)) < _ENOUGH else 1
    fraction = (_PART if trials == 1 else 1 / trials) if fraction is None else fraction
    parts = np.zeros((trials, len(texts)), dtype=bool)
    for distinct in members:
        keys = sorted(distinct)  # whatever the order of the texts
        order = random.permutation(len(keys))
        size = min(round(fraction * len(keys)), len(keys) - 1)
        for trial, part in enumerate(parts):
            for key in order[trial * size : (trial + 1) * size]:
                part[distinct[keys[key]]] = True
    return [part for part in parts if times[part].sum() >= _FEW]
