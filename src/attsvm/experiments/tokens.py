"""What the figures of trained-embeddings show of every token, and the runs on reviews. Needs torch and numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from attsvm.embeddings import (
    AdamWPlan,
    Embeddings,
    Sequences,
    initial_embeddings,
    occurrences,
    paper_reviews,
    posterior_difference,
    signed_frequency,
    train_embeddings,
)
from attsvm.experiments._experiment import Columns, Params
from attsvm.experiments.rank_correlation import spearman, spearman_interval

SEEN = 50
"""Correlations are over the tokens that appear at least so often."""


def trained_tokens(data: Sequences, d: int, model: str, schedule: AdamWPlan, trial: int, device: str) -> dict[str, Any]:
    """Train all parameters, and measure: one row of columns."""
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    drawn = initial_embeddings(data.size, d, seed=1, trial=trial)
    start = Embeddings(*(tensor.float().to(device) for tensor in drawn))
    posterior, seen = posterior_difference(data).numpy(), occurrences(data).numpy()
    often = seen >= SEEN

    def measured(at: Embeddings) -> tuple[np.ndarray, np.ndarray]:
        return (at.E @ at.p).cpu().numpy(), (at.E @ at.v).cpu().numpy()

    def correlations(at: Embeddings) -> tuple[float, float]:
        p, v = measured(at)
        return spearman(p[often], np.abs(posterior[often])), spearman(v[often], posterior[often])

    epochs = sorted({epoch for epoch in (1, 2, 5, 10, 20, 50, 100, 200, 500) if epoch < schedule.epochs})
    course: list[tuple[float, float]] = []

    def report(epoch: int, at: Embeddings) -> None:
        if epoch + 1 in epochs:
            course.append(correlations(at))

    fitted = train_embeddings(data, start, model, schedule, seed=trial, report=report)
    course.append(correlations(fitted.at))
    p, v = measured(fitted.at)
    return {
        "p": p,
        "v": v,
        "posterior": posterior,
        "seen": seen,
        "loss": fitted.losses.cpu().numpy(),
        "course_epochs": np.array([*epochs, schedule.epochs]),
        "course_p": np.array([pair[0] for pair in course]),
        "course_v": np.array([pair[1] for pair in course]),
        "interval_p": np.array(spearman_interval(p[often], np.abs(posterior[often]))),
        "interval_v": np.array(spearman_interval(v[often], posterior[often])),
        "one_step_v": spearman(signed_frequency(data).numpy()[often], posterior[often]),
        "sampling_v": _sampling_limit(posterior[often], seen[often]),
        "sequences": data.n,
    }


def _sampling_limit(posterior: np.ndarray, seen: np.ndarray) -> float:
    """The correlation between the posterior differences of two samples of this size: no model can have much more."""
    stream = np.random.default_rng(0)
    again = 2 * stream.binomial(seen.astype(np.int64), ((1 + posterior) / 2).clip(0, 1)) / seen - 1
    return spearman(again, posterior)


def stacked(rows: list[dict[str, Any]]) -> Columns:
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}


def run_reviews(params: Params, trials: range, device: str, sources: Mapping[str, str]) -> Columns:
    """A model trained on reviews with the schedule of Appendix E; its milestones are at 1/5 and 2/5 of the epochs."""
    reviews = paper_reviews(params["data"], sources[params["data"]], sources.get("bert"))
    epochs = params["epochs"]
    schedule = AdamWPlan(epochs=epochs, milestones=(epochs // 5, 2 * epochs // 5))
    data = reviews.sequences
    return stacked([trained_tokens(data, params["d"], params["model"], schedule, trial, device) for trial in trials])
