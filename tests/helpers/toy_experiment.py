"""A small experiment for the tests of the framework: real training, in a fraction of a second a batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attsvm.data import sphere
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._arrays import curves


def run(params: Params, trials: range, device: str) -> Columns:
    time.sleep(params.get("sleep", 0.0))
    data = sphere(2, 3, params["d"], trials=trials).to(device)
    result = train(data, "l2", steps=50, record=("norm", "top_weight"))
    return {
        "norm": curves(result.records["norm"]),
        "top_weight": curves(result.records["top_weight"]),
        "tokens": result.tokens[:, :, 0].numpy(),
        "name": np.array([f"trial {trial}" for trial in trials]),
    }


def count(params: Params, trials: range, device: str, sources: Mapping[str, str]) -> Columns:
    """The words of the file that is called words, at once; here, where a worker imports little."""
    length = len(Path(sources["words"]).read_text().split())
    return {"norm": np.full((len(trials), 2), [0, length])}


def figure(rows: Rows):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot(rows.where(d=2)["norm"].T)
    return figure


def checks(rows: Rows) -> list[Check]:
    return [Check("norms grow", "they do", "yes", (rows["norm"][:, -1] > rows["norm"][:, 0]).all())]


def make(**changes) -> Experiment:
    settings = {
        "id": "toy",
        "title": "a toy",
        "paper": "none",
        "statement": "norms grow",
        "grid": {"d": [2, 3]},
        "run": run,
        "figure": figure,
        "checks": checks,
        "trials": 12,
        "quick": 4,
        "batch": 5,
    }
    return Experiment(**(settings | changes))
