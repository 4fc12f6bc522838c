"""The attention model of texts, and its fit.

A text is a bag of columns s (words, n-grams) with damped counts x_s. Column s has an importance a_s and a direction b_s
(one per class; a single one for two classes), and every text holds the ⟨cls⟩ token of weight c and direction 0:

    attention_s = x_s e^{a_s} / Z,   Z = c + Σ_s x_s e^{a_s},   score = bias + Σ_s attention_s b_s.

c is a quarter of the mean of Σ_s x_s, so that a text of few words attends to ⟨cls⟩ and its score is small.

In the trained-embeddings paper a_s = p·E_s and b_s = v·E_s: the model depends on the embeddings through these alone.
The fit minimises, over n texts of mean length T,

    Σ_i w_i loss(score_i, y_i) + Σ_s |a_s/σ|^p / p + λ Σ_s (r_s |b_s|²/T)^{p/2} / p,   r_s = (texts with s / texts)^ρ,

r scaled to mean 1 over the tokens. A mean of T directions is of order |b|/√T, hence the T. With ρ = 0 the common words
cost as much as the others: good for questions, where "how" and "who" tell most. With ρ = 1/2 they cost more: good for
topics and opinions, where they tell little. With ρ = 1 rare words would be free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PATH = tuple(3.0**k for k in range(1, -9, -1))
"""Penalties λ, from strong to weak"""
_MEMORY = 8
_ROUND = 1e-2
"""|x|^p is (x² + ε²)^{p/2}, ε this part of its unit: no infinite curvature at 0 for p < 2."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The numbers of the model; two classes have one output, which speaks for the second."""

    a: np.ndarray
    """(columns,)"""
    b: np.ndarray
    """(columns, outputs)"""
    bias: np.ndarray
    """(outputs,)"""
    cls: float
    """c, the weight of the ⟨cls⟩ token"""

    def scores(self, x: csr_matrix) -> np.ndarray:
        """(texts, outputs)"""
        sums = x @ self.stacked(np.float64)
        return sums[:, 1:] / (self.cls + sums[:, :1]) + self.bias

    def stacked(self, dtype: type[np.floating]) -> np.ndarray:
        """(columns, 1 + outputs) e^a and e^a b"""
        weight = np.exp(self.a)[:, None]
        return np.hstack([weight, weight * self.b]).astype(dtype)

    def attention(self, x: csr_matrix) -> csr_matrix:
        """(texts, columns) what each column of a text is attended to; what is missing to 1 is on ⟨cls⟩"""
        weights = x.astype(np.float64)
        weights.data *= np.exp(self.a)[x.indices]
        total = self.cls + np.asarray(weights.sum(1)).ravel()
        weights.data /= np.repeat(total, np.diff(x.indptr))
        return weights  # pyright: ignore[reportReturnType]


class Problem:
    """The penalised loss of a matrix, labels (texts, outputs) in 0..1 and weights of the texts, in variables scaled so
    that its curvature is about 1 in each."""

    dtype: type[np.floating] = np.float32
    """Of the products with the matrix, which take most of the time"""

    def __init__(
        self, x: csr_matrix, y: np.ndarray, weight: np.ndarray, *, p: float, sigma: float, rho: float = 0.5
    ) -> None:
        self.x: Any = x.astype(self.dtype)
        self.xt = self.x.T.tocsr()
        self.columns: int = self.xt.shape[0]
        self.n = weight.sum()  # a text of weight 2 counts as two
        self.y, self.weight = y, weight[:, None] / self.n
        self.outputs, self.p, self.sigma = y.shape[1], p, sigma
        total = np.asarray(x.sum(1)).ravel()
        self.length = max(1.0, float(self.weight[:, 0] @ total))
        self.cls = self.length / 4
        cost = np.maximum(self._column_sums(0, self.weight[:, 0]), 1 / self.n) ** rho
        mass = self._column_sums(1, self.weight[:, 0])
        self.r = (cost / (cost @ mass / mass.sum() if mass.any() else 1) / self.length)[:, None]
        self.curvature = self._column_sums(2, self.weight[:, 0] / (self.cls + total) ** 2)[:, None] / 4
        # A direction that matters is a fraction of √T; it sets the curvature in a.
        self.scale_a = 1 / np.sqrt(1 / (self.n * sigma**2) + self.curvature * self.length / 16)
        self.set_penalty(1.0)

    def _column_sums(self, power: int, weight: np.ndarray) -> np.ndarray:
        """(columns,) Σ_i weight_i x_is^power over the texts that have s"""
        powers = self.xt.astype(np.float64)
        powers.data **= power
        return powers @ weight

    def set_penalty(self, penalty: float) -> None:
        """Take this λ, and scale b for it."""
        self.penalty = penalty
        self.scale_b = 1 / np.sqrt(self.curvature + penalty * self.r / self.n)

    def start(self) -> Attention:
        """No word says anything; the bias is that of the classes."""
        share = np.clip((self.weight * self.y).sum(0), 1e-12, 1)
        bias = np.log(share) if self.outputs > 1 else np.log(share) - np.log(np.maximum(1 - share, 1e-12))
        return Attention(np.zeros(self.columns), np.zeros((self.columns, self.outputs)), bias - _mean(bias), self.cls)

    def losses(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(texts, 1) the loss of each, and (texts, outputs) its gradient in the scores."""
        if self.outputs == 1:
            losses = np.logaddexp(0, scores) - self.y * scores
            excess = sigmoid(scores) - self.y
        else:
            shifted = scores - scores.max(1, keepdims=True)
            exponential = np.exp(shifted)
            total = exponential.sum(1, keepdims=True)
            losses = np.log(total) - (self.y * shifted).sum(1, keepdims=True)
            excess = exponential / total - self.y
        return losses, excess

    def right(self, scores: np.ndarray) -> np.ndarray:
        """(texts,) bool"""
        right = (scores > 0) == (self.y > 0.5) if self.outputs == 1 else scores.argmax(1) == self.y.argmax(1)
        return np.ravel(right)

    def objective(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The penalised mean loss and its gradient, in the scaled variables."""
        model = self.unflatten(flat)
        stacked = model.stacked(self.dtype)
        sums = self.x @ stacked
        z = self.cls + sums[:, :1]
        mean = sums[:, 1:] / z
        losses, excess = self.losses(mean + model.bias)
        value, g = float((self.weight * losses).sum()), self.weight * excess
        back = np.hstack([(g * mean).sum(1, keepdims=True), g]) / z
        sent = (self.xt @ (back * self.n).astype(self.dtype)) / self.n  # × n: far from the small end of float32
        weight = stacked[:, :1]
        grad_b = weight * sent[:, 1:]
        grad_a = (grad_b * model.b).sum(1, keepdims=True) - weight * sent[:, :1]
        cost_a, slope_a = self._power(model.a[:, None], 1 / self.sigma**2)
        cost_b, slope_b = self._power(model.b, self.r)
        value += (cost_a + self.penalty * cost_b) / self.n
        grad_a = (grad_a + slope_a / self.n) * self.scale_a
        grad_b = (grad_b + self.penalty * slope_b / self.n) * self.scale_b
        return value, np.concatenate([grad_a.ravel(), grad_b.ravel(), g.sum(0)])

    def _power(self, value: np.ndarray, unit: Any) -> tuple[float, np.ndarray]:
        """Σ (unit·value²)^{p/2}/p and its gradient."""
        if self.p == 2:
            slope = unit * value
            return float((slope * value).sum()) / 2, slope
        square = unit * value**2 + _ROUND**2
        power = square ** (self.p / 2 - 1)
        return float((square * power).sum()) / self.p, power * unit * value

    def flatten(self, model: Attention) -> np.ndarray:
        return np.concatenate([model.a / self.scale_a[:, 0], (model.b / self.scale_b).ravel(), model.bias])

    def unflatten(self, flat: np.ndarray) -> Attention:
        a, rest = flat[: self.columns], flat[self.columns :]
        b = rest[: -self.outputs].reshape(self.columns, self.outputs)
        return Attention(a * self.scale_a[:, 0], b * self.scale_b, rest[-self.outputs :], self.cls)

    def minimize(
        self, model: Attention, max_iter: int, tol: float, report: Callable[[int], None]
    ) -> tuple[Attention, int, bool]:
        """L-BFGS from `model`: the answer, iterations, has it converged?"""
        from scipy.optimize import minimize

        done = 0

        def count(_: np.ndarray) -> None:
            nonlocal done
            done += 1
            report(done)

        options = {"maxiter": max_iter, "maxcor": _MEMORY, "ftol": tol, "gtol": 0.0}
        result = minimize(
            self.objective, self.flatten(model), jac=True, method="L-BFGS-B", options=options, callback=count
        )
        found = self.unflatten(result.x)
        # Softmax does not see what all outputs share: without it a contribution is for one class and not for all.
        shared = found.b.mean(1, keepdims=True) if self.outputs > 1 else 0.0
        return Attention(found.a, found.b - shared, found.bias - _mean(found.bias), self.cls), done, done < max_iter


@dataclass(frozen=True)
class Step:
    """A penalty of the path, and how the model of it does on the held-out texts."""

    penalty: float
    loss: float
    accuracy: float


def follow_path(
    trials: list[tuple[Problem, Problem]],
    penalties: Iterable[float],
    max_iter: int,
    tol: float,
    report: Callable[[str, int], None],
) -> tuple[list[Step], Attention]:
    """From strong to weak penalties, each from the last answer, until the held-out loss rises.

    A trial is a problem and its held-out texts. The steps are means over the trials; the answer is the best of the
    first one.
    """
    steps: list[Step] = []
    models = [problem.start() for problem, _ in trials]
    best = models[0]
    weight = np.concatenate([held_out.n * held_out.weight[:, 0] for _, held_out in trials])
    for penalty in penalties:
        losses, right = [], []
        for trial, (problem, held_out) in enumerate(trials):
            problem.set_penalty(penalty)
            models[trial], _, _ = problem.minimize(
                models[trial], max_iter, tol, lambda k, penalty=penalty: report(f"penalty {penalty:.2g}", k)
            )
            scores = models[trial].scores(held_out.x)
            losses.append(held_out.losses(scores)[0][:, 0])
            right.append(held_out.right(scores))
        loss, accuracy = (np.average(np.concatenate(parts), weights=weight) for parts in (losses, right))
        steps.append(Step(penalty, float(loss), float(accuracy)))
        if loss > min(step.loss for step in steps):
            break
        best = models[0]
    return steps, best


def _mean(bias: np.ndarray) -> Any:
    return bias.mean() if len(bias) > 1 else 0.0


def sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """(texts, classes)"""
    if scores.shape[1] == 1:
        return np.hstack([sigmoid(-scores), sigmoid(scores)])
    exponential = np.exp(scores - scores.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)
