"""A scikit-learn classifier of texts that shows its words."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from attsvm.checks import as_count, as_real
from attsvm.errors import AttsvmError
from attsvm.geometry import Lp
from attsvm.text._attention import Problem, Step, follow_path, probabilities
from attsvm.text._explain import Explanations, Words, explain, two_sided
from attsvm.text._features import learn_features
from attsvm.text._tokenizers import WordTokenizer, checked_texts

_CHUNK = 20_000
"""Texts predicted at a time, to bound the memory."""
_FEW = 10
"""With fewer held-out texts than this the path is not followed: its verdict would be chance."""
_PENALTY_OF_FEW = 0.1

Report = Callable[[str, int], None]


class AttentionTextClassifier(ClassifierMixin, BaseEstimator):
    """Softmax attention over the words of a text, with two numbers a word: its importance and its direction.

    The score of a text is the mean of the directions of its words, weighted by attention, plus a bias; so it is the sum
    of the contributions that :meth:`explain` shows. See the module `attsvm.text._attention` for the formulas.

    Args:
        ngrams: 1 for words, 2 for words and pairs of neighbours, …
        min_texts: leave out what stands in fewer texts; None is 1 below 1,000 texts and 2 from there on.
        penalty: λ of the ℓp penalty of the directions. None chooses it by early stopping: the regularization path is
            followed from strong to weak penalties until the loss on a held-out part rises, and the model of the best
            one is fitted to all texts.
        importance: size of log-attention that the penalty allows for; small makes all words alike, large lets few
            words take all attention.
        p: the geometry of both penalties, 1 < p < ∞; near 1 few words carry the model.
        class_weight: None, "balanced" or a dictionary from label to weight.
        validation_fraction: size of the held-out part.
        max_iter, tol: of L-BFGS, for each penalty: iterations, and relative decrease of the loss at which to stop.
        tokenizer: a `WordTokenizer` or `WordPieceTokenizer`; None is `WordTokenizer()`.
        random_state: decides which texts are held out.
        verbose: say on standard error what is being done.

    Attributes:
        classes_: the labels.
        words_: importance and direction of every word.
        penalty_, path_: the penalty taken, and the held-out loss and accuracy of the penalties tried.
        n_iter_: iterations of the last fit.

    >>> model = AttentionTextClassifier().fit(["a superb film", "a dull film"] * 8, ["good", "bad"] * 8)
    >>> print(model.predict(["superb acting"])[0])
    good
    """

    classes_: np.ndarray
    text_column_: str | None = None  # of the table that `attsvm text fit` read

    def __init__(
        self,
        ngrams: int = 1,
        min_texts: int | None = None,
        penalty: float | None = None,
        importance: float = 0.5,
        p: float = 2.0,
        class_weight: Any = None,
        validation_fraction: float = 0.1,
        max_iter: int = 200,
        tol: float = 1e-5,
        tokenizer: WordTokenizer | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.ngrams = ngrams
        self.min_texts = min_texts
        self.penalty = penalty
        self.importance = importance
        self.p = p
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.max_iter = max_iter
        self.tol = tol
        self.tokenizer = tokenizer
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AttentionTextClassifier:
        """Fit to texts `X` and their labels `y`."""
        return self._fit(X, y, sample_weight, _print if self.verbose else _silent)

    def _fit(self, X: Any, y: Any, sample_weight: Any, report: Report) -> AttentionTextClassifier:
        settings = self._checked()
        texts = checked_texts(X, "X")
        labels = _checked_labels(y, len(texts))
        classes, place = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise AttsvmError(f"y must have at least two classes, but it has 1 class: {classes.tolist()}.")
        weight = _checked_weight(sample_weight, self.class_weight, labels)
        report("tokenize", 0)
        tokenizer = self.tokenizer if self.tokenizer is not None else WordTokenizer()
        least = (1 if len(texts) < 1000 else 2) if self.min_texts is None else self.min_texts
        features, x = learn_features(tokenizer(texts), self.ngrams, least)
        target = place[:, None] == np.arange(len(classes)) if len(classes) > 2 else place[:, None] == 1
        target = target.astype(np.float64)

        penalty, path, start = self.penalty, [], None
        if penalty is None:
            held_out = _hold_out(place, self.validation_fraction, check_random_state(self.random_state))
            penalty = _PENALTY_OF_FEW
            if held_out.sum() >= _FEW and weight[held_out].sum() > 0 and weight[~held_out].sum() > 0:
                kept, judge = (
                    Problem(x[part], target[part], weight[part], **settings) for part in (~held_out, held_out)
                )
                path, start = follow_path(kept, judge, self.max_iter, self.tol, report)
                penalty = min(path, key=lambda step: step.loss).penalty
        problem = Problem(x, target, weight, **settings)
        problem.set_penalty(penalty)
        self.attention_, self.n_iter_, converged = problem.minimize(
            start or problem.start(), self.max_iter, self.tol, lambda k: report("final fit", k)
        )
        if not converged:
            warnings.warn(
                f"max_iter = {self.max_iter} iterations were not enough: raise max_iter, or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.penalty_: float = penalty
        self.path_: list[Step] = path
        self.classes_, self.features_, self.tokenizer_ = classes, features, tokenizer
        self.texts_ = np.bincount(x.indices, minlength=len(features)).astype(np.int32)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """(texts,) log odds of `classes_[1]` for two classes, else (texts, classes) logits."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """(texts, classes)"""
        return probabilities(self._scores(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each text. A text without a known word gets what the bias says."""
        probability = self.predict_proba(X)
        return self.classes_[probability.argmax(1)]

    def explain(self, X: Any, label: Any = None) -> Explanations:
        """Why each text gets its class, or how it stands with `label`: words, attention, contributions."""
        check_is_fitted(self)
        return explain(self, checked_texts(X, "X"), label)

    @property
    def words_(self) -> Words:
        check_is_fitted(self)
        model = self.attention_
        words = Words(self._names, model.a, two_sided(model.b), self.texts_, self.classes_)
        order = np.argsort(-np.abs(words.influence()).max(1), kind="stable")
        return Words(
            [words.word[s] for s in order], model.a[order], words.direction[order], self.texts_[order], self.classes_
        )

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder: model.json and model.safetensors."""
        from attsvm.text._model_files import save_model

        check_is_fitted(self)
        save_model(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> AttentionTextClassifier:
        """The model that `save` wrote."""
        from attsvm.text._model_files import load_model

        return load_model(cls, Path(folder))

    @property
    def _names(self) -> list[str]:
        return self.features_.names()

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        texts = checked_texts(X, "X")
        parts = [self.attention_.scores(self._matrix(chunk)) for chunk in _chunks(texts)]
        return np.concatenate(parts) if parts else np.empty((0, self.attention_.b.shape[1]))

    def _matrix(self, texts: list[str]) -> Any:
        return self.features_.matrix(self.tokenizer_(texts))

    def _checked(self) -> dict[str, float]:
        """Refuse wrong settings; those of the problem."""
        as_count("ngrams", self.ngrams, most=8)
        as_count("max_iter", self.max_iter)
        as_real("tol", self.tol, least=0)
        if self.min_texts is not None:
            as_count("min_texts", self.min_texts)
        if self.penalty is not None and as_real("penalty", self.penalty, least=0) == 0:
            raise AttsvmError("penalty must be positive: without it rare words take over.")
        if as_real("importance", self.importance, least=0) == 0:
            raise AttsvmError("importance must be positive; 0.01 makes all words nearly alike.")
        if not 0 < as_real("validation_fraction", self.validation_fraction, least=0) < 1:
            raise AttsvmError(f"validation_fraction must lie between 0 and 1, but got {self.validation_fraction}.")
        if self.tokenizer is not None and not isinstance(self.tokenizer, WordTokenizer):
            raise AttsvmError(f"tokenizer must be a WordTokenizer, but got {type(self.tokenizer).__name__}.")
        return {"p": Lp(self.p).p, "sigma": float(self.importance)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    return (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))


def _checked_labels(y: Any, count: int) -> np.ndarray:
    if y is None:
        raise AttsvmError("y must be the labels of the texts, but got None: requires y to be passed.")
    labels = column_or_1d(y, warn=True)
    if len(labels) != count:
        raise AttsvmError(f"X and y must have the same length, but there are {count} texts and {len(labels)} labels.")
    if not count:
        raise AttsvmError("X must have at least one text a class, but it is empty.")
    missing = [place for place, label in enumerate(labels) if label is None or label != label]
    if missing:
        raise AttsvmError(f"y must have a label for every text, but label {missing[0]} is missing.")
    if labels.dtype == object and len({type(label) for label in labels}) == 1:
        labels = np.array(labels.tolist())
    try:
        check_classification_targets(labels)
    except ValueError as error:
        raise AttsvmError(" ".join(str(error).split())) from error
    return labels


def _checked_weight(sample_weight: Any, class_weight: Any, labels: np.ndarray) -> np.ndarray:
    weight = compute_sample_weight(class_weight, labels).astype(np.float64)
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise AttsvmError(
            f"class_weight must be numbers of at least 0, not all of them zero, but got {class_weight!r}."
        )
    if sample_weight is not None:
        given = np.asarray(sample_weight, dtype=np.float64)
        if given.shape != weight.shape or not np.isfinite(given).all() or (given < 0).any() or not given.any():
            raise AttsvmError(f"sample_weight must be {len(labels)} numbers of at least 0, not all of them zero.")
        weight = weight * given
    return weight


def _hold_out(place: np.ndarray, fraction: float, random: np.random.RandomState) -> np.ndarray:
    """(texts,) bool: that part of each class, but never all of it."""
    held_out = np.zeros(len(place), dtype=bool)
    for k in range(place.max() + 1):
        members = random.permutation(np.flatnonzero(place == k))
        held_out[members[: min(round(fraction * len(members)), len(members) - 1)]] = True
    return held_out


def _silent(stage: str, iteration: int) -> None:
    pass


def _print(stage: str, iteration: int) -> None:
    if iteration % 10 == 0 or iteration == 1:
        print(f"{stage}: iteration {iteration}" if iteration else stage, file=sys.stderr)
