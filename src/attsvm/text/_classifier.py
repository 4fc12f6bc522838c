"""A scikit-learn classifier of texts that shows its words."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
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
from attsvm.text._attention import Problem, Step, probabilities
from attsvm.text._explain import Explanations, Words, explain, two_sided
from attsvm.text._model_files import load_model, save_model
from attsvm.text._selection import Chooser, Labelled, hold_out, problem_settings
from attsvm.text._tokenizers import WordTokenizer, checked_texts, without_spaces

_CHUNK = 20_000
"""Texts predicted at a time, to bound the memory."""

_FORM = ("ngrams", "min_texts", "characters", "importance", "rarity")

Report = Callable[[str, int], None]


class AttentionTextClassifier(ClassifierMixin, BaseEstimator):
    """Softmax attention over the words of a text, with two numbers per word: its importance and its direction.

    The score of a text is the mean of the directions of its words, weighted by attention, plus a bias; so it is the sum
    of the contributions that :meth:`explain` shows. The page on texts, docs/text.md, has the formulas.

    Args:
        ngrams: 1 for words, 2 for words and pairs of neighbours, … None chooses 1 or 2.
        min_texts: leave out what stands in fewer texts. None chooses 1 or 2.
        penalty: λ of the ℓp penalty of the directions. None chooses it by early stopping: the regularization path is
            followed from strong to weak penalties until the loss on a held-out part rises, and the model of the best
            one is fitted to all texts.
        importance: size of log-attention that the penalty allows for; small makes all words alike, large lets few
            words take all attention. None chooses 0.5, 0.25 or 0.1.
        rarity: ρ, how much more the direction of a frequent word costs: 0 for no more, 1 for in proportion to the
            texts that have it. None chooses 0.5, 0.25 or 0.
        characters: longest part of a word that is a column of its own, with the ends of the word counted; 0 for none.
            4 helps where words are misspelt, inflected or new.
        p: the geometry of both penalties, 1 < p < ∞; near 1 few words carry the model.
        class_weight: None, "balanced" or a dictionary from label to weight.
        validation_fraction: size of the held-out part. None is a tenth; with fewer than 10,000 texts it is all of them,
            in five parts one after the other.
        max_iter, tol: of L-BFGS, for each penalty: iterations, and relative decrease of the loss at which to stop.
        tokenizer: a `WordTokenizer` or `WordPieceTokenizer`; None is `WordTokenizer()`.
        random_state: decides which texts are held out.
        verbose: say on standard error what is being done.

    What is None is chosen by the loss on the held-out texts. Above 500,000 tokens this is the penalty alone, because
    every choice multiplies the time of the fit: there None is 1, 2, 0.5 and 0.5 for ngrams, min_texts, importance and
    rarity. With a given penalty, and below about 50 texts, nothing is chosen: there None is 1, 1, 0.5 and 0.5, and 0.1
    for the penalty.

    Attributes:
        classes_: the labels.
        words_: importance and direction of every word.
        penalty_: the penalty taken.
        path_: held-out loss and accuracy of the penalties tried.
        chosen_: the ngrams, min_texts, importance, rarity and characters of the model.
        n_iter_: iterations of the last fit.

    >>> model = AttentionTextClassifier().fit(["a superb film", "a dull film"] * 8, ["good", "bad"] * 8)
    >>> print(model.predict(["superb acting"])[0])
    good
    """

    classes_: np.ndarray
    text_column_: str | None = None  # of the table that `attsvm text fit` read

    def __init__(
        self,
        ngrams: int | None = None,
        min_texts: int | None = None,
        penalty: float | None = None,
        importance: float | None = None,
        rarity: float | None = None,
        characters: int = 0,
        p: float = 2.0,
        class_weight: Any = None,
        validation_fraction: float | None = None,
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
        self.rarity = rarity
        self.characters = characters
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
        return self._fit(X, y, sample_weight, _print if self.verbose else lambda *_: None)

    def _fit(self, X: Any, y: Any, sample_weight: Any, report: Report) -> AttentionTextClassifier:
        p = self._checked()
        texts = checked_texts(X, "X")
        labels = _checked_labels(y, len(texts))
        own = _checked_weight(sample_weight, len(texts))
        weight = own * _class_weight(self.class_weight, labels, own)
        here = weight > 0  # a text of weight 0 is absent
        texts = [text for text, is_here in zip(texts, here) if is_here]
        labels, own, weight = labels[here], own[here], weight[here]
        classes, place = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise AttsvmError(f"y must have at least two classes, but it has 1 class: {classes.tolist()}.")
        report("tokenize", 0)
        tokenizer = self.tokenizer if self.tokenizer is not None else WordTokenizer()
        if type(tokenizer) is WordTokenizer and without_spaces(texts):
            warnings.warn(
                "these texts put no spaces between words, so whole sentences count as words: give a "
                "WordPieceTokenizer (attsvm text fit has --word-pieces).",
                stacklevel=3,
            )
        target = place[:, None] == np.arange(len(classes)) if len(classes) > 2 else place[:, None] == 1
        data = Labelled(tokenizer(texts), target.astype(np.float64), weight, np.ceil(own))

        random = check_random_state(self.random_state)
        held_out = hold_out(texts, place, data.times, self.validation_fraction, random)
        limits: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol}
        given = {name: getattr(self, name) for name in _FORM}
        chosen = Chooser(data, held_out, p=p, report=report, **limits).choose(given, self.penalty)
        problem = Problem(chosen.x, data.target, weight, **problem_settings(chosen.form, p))
        problem.set_penalty(chosen.penalty)
        self.attention_, self.n_iter_, converged = problem.minimize(
            chosen.start or problem.start(), **limits, report=lambda k: report("final fit", k)
        )
        if not converged:
            warnings.warn(
                f"max_iter = {self.max_iter} iterations were not enough: raise max_iter, or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.penalty_: float = chosen.penalty
        self.chosen_: dict[str, Any] = asdict(chosen.form)
        self.path_: list[Step] = chosen.path
        self.classes_, self.features_, self.tokenizer_ = classes, chosen.features, tokenizer
        self.texts_ = np.bincount(chosen.x.indices, minlength=len(chosen.features)).astype(np.int32)
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
        words = Words(self.features_.names(), model.a, two_sided(model.b), self.texts_, self.classes_)
        order = np.argsort(-np.abs(words.influence()).max(1), kind="stable")
        return Words(
            [words.word[s] for s in order], model.a[order], words.direction[order], self.texts_[order], self.classes_
        )

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder: model.json and model.safetensors."""
        check_is_fitted(self)
        save_model(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> AttentionTextClassifier:
        """The model that `save` wrote."""
        return load_model(cls, Path(folder))

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        texts = checked_texts(X, "X")
        chunks = (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))
        parts = [self.attention_.scores(self.features_.matrix(self.tokenizer_(chunk))) for chunk in chunks]
        return np.concatenate(parts) if parts else np.empty((0, self.attention_.b.shape[1]))

    def _checked(self) -> float:
        """Refuse wrong settings; p."""
        if self.ngrams is not None:
            as_count("ngrams", self.ngrams, most=8)
        if as_count("characters", self.characters, least=0, most=8) in (1, 2):
            raise AttsvmError(f"characters must be 0 (no parts of words) or 3 to 8, but got {self.characters}.")
        as_count("max_iter", self.max_iter)
        as_real("tol", self.tol, least=0)
        if self.min_texts is not None:
            as_count("min_texts", self.min_texts)
        if self.penalty is not None and as_real("penalty", self.penalty, least=0) == 0:
            raise AttsvmError("penalty must be positive: without it rare words take over.")
        if self.rarity is not None and as_real("rarity", self.rarity, least=0) > 1:
            raise AttsvmError(f"rarity must lie between 0 and 1, but got {self.rarity}.")
        if self.importance is not None and as_real("importance", self.importance, least=0) == 0:
            raise AttsvmError("importance must be positive; 0.01 makes all words nearly alike.")
        fraction = self.validation_fraction
        if fraction is not None and not 0 < as_real("validation_fraction", fraction, least=0) < 1:
            raise AttsvmError(f"validation_fraction must lie between 0 and 1, but got {fraction}.")
        if self.tokenizer is not None and not isinstance(self.tokenizer, WordTokenizer):
            raise AttsvmError(f"tokenizer must be a WordTokenizer, but got {type(self.tokenizer).__name__}.")
        geometry = Lp(self.p)
        geometry.check_smooth()
        return geometry.p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _checked_labels(y: Any, count: int) -> np.ndarray:
    if y is None:
        raise AttsvmError("y must be the labels of the texts, but got None: requires y to be passed.")
    _refuse_mixed(y)
    labels = column_or_1d(y, warn=True)
    if len(labels) != count:
        raise AttsvmError(f"X and y must have the same length, but there are {count} texts and {len(labels)} labels.")
    if not count:
        raise AttsvmError("X must have at least one text per class, but it is empty.")
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


def _refuse_mixed(y: Any) -> None:
    """numpy would make texts of all labels, and 1 and "1" one class."""
    if not isinstance(y, (list, tuple)) and str(getattr(y, "dtype", "")) != "object":
        return
    first: dict[str, Any] = {}
    for label in y:
        kind = "text" if isinstance(label, str) else "truth value" if isinstance(label, (bool, np.bool_)) else "number"
        if isinstance(label, (str, bool, np.bool_, int, float, np.number)) and label == label:
            first.setdefault(kind, label)
    if len(first) > 1:
        found = " and ".join(f"{label!r} (a {kind})" for kind, label in first.items())
        raise AttsvmError(f"y must have labels of one kind, but has {found}: make all of them texts, or all numbers.")


def _checked_weight(sample_weight: Any, count: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(count)
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (count,) or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise AttsvmError(f"sample_weight must be {count} numbers of at least 0, not all of them zero.")
    return weight


def _class_weight(class_weight: Any, labels: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """(texts,) the weight of the class of each"""
    if isinstance(class_weight, str) and class_weight == "balanced":  # two texts are as good as one of weight 2
        _, place = np.unique(labels, return_inverse=True)
        total = np.bincount(place, sample_weight)
        return (total.sum() / np.count_nonzero(total) / np.where(total > 0, total, 1))[place]
    weight = compute_sample_weight(class_weight, labels).astype(np.float64)
    if not np.isfinite(weight).all() or (weight < 0).any() or not (weight * sample_weight).any():
        raise AttsvmError(
            f"class_weight must be numbers of at least 0, not all of them zero, but got {class_weight!r}."
        )
    return weight


def _print(stage: str, iteration: int) -> None:
    if iteration % 10 == 0 or iteration == 1:
        print(f"{stage}: iteration {iteration}" if iteration else stage, file=sys.stderr)
