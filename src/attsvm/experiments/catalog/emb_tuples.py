"""Pairs of tokens that mean something only together: one layer cannot use them, two layers can."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attsvm.embeddings import (
    AdamWPlan,
    Sequences,
    initial_embeddings,
    signed_frequency,
    slopes,
    train_embeddings,
    two_layer_output,
)
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._draw import SERIES, Figure, dots, finish, new_figure
from attsvm.experiments.rank_correlation import spearman

LEVELS = (0.02, 0.1, 0.2, 0.3, 0.4)
"""δ of each group: the probability that a pair stands in a sequence of the other label."""
T, IRRELEVANT, D = 4, 10, 512
TRAIN, TEST = 500, 250
"""Drawn sequences; with their mirror images there are four times as many."""
PLAN = AdamWPlan(epochs=30, lr=0.003, milestones=(15,))
PAIR_SIGNS = np.array([1, -1, -1, 1])
MOST = float(np.mean([0.75 * (1 - delta) + 0.25 * delta for delta in LEVELS]))
"""The accuracy of a model that has three of the four pairs of every group right."""


def _draw(count: int, stream: np.random.Generator) -> tuple[Sequences, np.ndarray]:
    """Sequences with one pair (a_i, b_j) of a group and T − 2 irrelevant tokens, and the number of each one's pair.

    The label goes with the parity of (i, j), up to the noise δ of the group. Every sequence comes with its three mirror
    images, in which i and j, or the label and j, or both are flipped. So every token stands equally often in both
    labels: single tokens say nothing.
    """
    ids, Y, pairs = [], [], []
    for k in range(count):
        group = k % len(LEVELS)
        i, agrees = int(stream.integers(2)), stream.random() >= LEVELS[group]
        rest = stream.integers(IRRELEVANT, size=T - 2) + 4 * len(LEVELS)
        for y in (1, -1):
            same = (y == 1) == agrees
            for first in (i, 1 - i):
                second = first if same else 1 - first
                ids.append([4 * group + first, 4 * group + 2 + second, *rest])
                Y.append(y)
                pairs.append(4 * group + 2 * first + second)
    offsets = np.arange(len(ids) + 1) * T
    return Sequences.of(np.array(ids).reshape(-1), offsets, np.array(Y), 4 * len(LEVELS) + IRRELEVANT), np.array(pairs)


def _outputs(model: str, data: Sequences, at: Any) -> np.ndarray:
    data = data.merged()
    f = two_layer_output(data, at) if model == "two-layer" else slopes(data, at.E @ at.p, at.E @ at.v).f
    return f.numpy()


def run(params: Params, trials: range, device: str) -> Columns:
    model = params["model"]
    found: dict[str, list[Any]] = {name: [] for name in ("by pair", "accuracy", "single tokens", "loss")}
    for trial in trials:
        data, _ = _draw(TRAIN, np.random.default_rng([0, trial]))
        fresh, pairs = _draw(TEST, np.random.default_rng([1, trial]))
        start = initial_embeddings(data.size, D, seed=1, trial=trial)
        result = train_embeddings(data, start, model, PLAN, seed=trial)
        f = _outputs(model, fresh, result.at)
        found["by pair"].append([f[pairs == k].mean() for k in range(4 * len(LEVELS))])
        found["accuracy"].append(np.mean(np.sign(f) == fresh.Y.numpy()))
        found["single tokens"].append(torch.cat([signed_frequency(data), signed_frequency(fresh)]).abs().max().item())
        found["loss"].append(result.losses[-1].item())
    return {name: np.array(values) for name, values in found.items()}


def _posterior() -> np.ndarray:
    """P(y = 1) − P(y = −1) of every pair."""
    return np.concatenate([(1 - 2 * delta) * PAIR_SIGNS for delta in LEVELS])


def _whole_groups(cell: Rows) -> np.ndarray:
    """Share of the groups of every trial whose four pairs all have an output of the right sign and 0.2 in size."""
    right = cell["by pair"] * np.tile(PAIR_SIGNS, len(LEVELS)) > 0.2
    return right.reshape(len(right), len(LEVELS), 4).all(-1).mean(1)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.6))
    posterior = _posterior()
    for ax, model in zip(axes[0], rows.values("model")):
        cell = rows.where(model=model)
        values = cell["by pair"]
        jitter = np.random.default_rng(0).uniform(-0.012, 0.012, values.shape)
        dots(ax, (posterior + jitter).ravel(), values.ravel(), SERIES[0], f"{len(cell)} trials, 20 pairs each")
        delta = np.array(LEVELS)
        odds = np.log((1 - delta) / delta)
        ax.plot(np.r_[1 - 2 * delta, 2 * delta - 1], np.r_[odds, -odds], "k_", ms=14, label="log-odds of the pair")
        ax.set(xlabel="posterior difference of the pair", title=f"{model} model")
    axes[0][0].set_ylabel("mean output on fresh sequences with the pair")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    one, two = rows.where(model="one-layer"), rows.where(model="two-layer")
    learned = np.abs(two["by pair"]) > 0.2
    posterior = np.broadcast_to(_posterior(), learned.shape)
    ranks = spearman(two["by pair"][learned], posterior[learned])
    tuples = "later layers classify “based on the empirical statistics of the resulting k-tuples” (conjecture)"
    first = "the one-layer model uses first-order statistics"
    accuracy = f"{one['accuracy'].mean():.1%} and {two['accuracy'].mean():.1%} of fresh sequences"
    return [
        at_most("largest |α_s| of single tokens", float(rows["single tokens"].max()), 0.0, note="made so", extra=True),
        at_most(
            "one layer: largest share of groups with all four pairs right",
            float(_whole_groups(one).max()),
            0.0,
            first,
            "proved: the sign of f is that of A_i + B_j + C, which is never that of a parity",
        ),
        at_least(
            "two layers: smallest share over trials of groups with all four pairs right",
            float(_whole_groups(two).min()),
            1 / len(LEVELS),
            tuples,
            f"one group of five is what one layer never has; {_whole_groups(two).mean():.0%} on average, in the other "
            "groups training stops at two or three pairs",
            "a start from which training stops at two or three pairs in every group is no counter-example to what a "
            "deeper model can learn, but the conjecture does not hold from every start",
        ),
        Check(
            f"two layers are above {MOST:.1%}, the most that three pairs of four allow",
            tuples,
            accuracy,
            bool(two["accuracy"].mean() > MOST),
        ),
        at_least("two layers: rank correlation of output and posterior difference, pairs learned", ranks, 0.9, tuples),
    ]


EXPERIMENT = Experiment(
    id="emb-tuples",
    title="Pairs of tokens, one layer and two",
    paper="trained-embeddings, Section 6 (conjecture on k-tuples)",
    statement="“In deeper attention models …, the earlier layers … learn the causal structure between tokens, and "
    "later layers perform classification based on the empirical statistics of the resulting k-tuples.”",
    grid={"model": ["one-layer", "two-layer"]},
    run=run,
    figure=figure,
    checks=checks,
    trials=10,
    quick=2,
    batch=1,
    cost=lambda params: 6.0 if params["model"] == "two-layer" else 2.0,
    remark="Made data: five groups of 2 + 2 tokens, in which only the parity of a pair goes with the label, and ten "
    "irrelevant tokens; 2,000 sequences of four tokens, with mirror images, so that single tokens say nothing. The "
    "two-layer model (36) has one head and no positions: a pair is a set here. AdamW, d = 512, 30 epochs.",
)
