"""One learning rate for models of every width and start: short runs over three decades of rates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows
from attsvm.experiments.sparse_rows import SOURCE, kept_rows, method_of
from attsvm.experiments.transformers import nothing_yet

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
METHODS = ("AdamW", "MirrorAdam p = 1.5", "MirrorAdam p = 1.1")
WIDTHS = {f"width {width}": (width, 1.0) for width in (128, 256, 512, 1024)}
STARTS = {"start × 0.1": (256, 0.1), "start × 1": (256, 1.0), "start × 10": (256, 10.0)}
NEAR = 0.1
"""A rate serves a model if its loss is within so many nats of the best rate's."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    """Test loss at every rate; nan where the run is not there or broke down."""
    width, scale = {**WIDTHS, **STARTS}[params["model"]]
    rows = [row for row in kept_rows(data[SOURCE]) if row["note"] == "lr" and method_of(row) == params["method"]]
    found = {row["lr"]: row["test"] for row in rows if (row["width"], row["scale"]) == (width, scale)}
    rates = [RATES[trial] for trial in trials]
    return {"lr": np.array(rates), "test": np.array([found.get(rate, np.nan) for rate in rates])}


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(2, len(METHODS), (11, 6.4))
    best, worst = np.nanmin(rows["test"]), np.log(4096)
    for models, line in zip((WIDTHS, STARTS), axes):
        for ax, method in zip(line, METHODS):
            for model, look in zip(models, SERIES):
                part = rows.where(method=method, model=model)
                losses = np.where(part["test"] < worst, part["test"], np.nan)
                ax.plot(part["lr"], losses, color=look.colour, ls=look.line, marker=look.marker, label=model)
            ax.set(xscale="log", xlabel="lr", title=method, ylim=(best - 0.1, worst))
        line[0].set_ylabel("test loss, nats per byte pair")
    return finish(figure, [ax for line in axes for ax in line])


def serving(rows: Rows, method: str, models: Mapping[str, tuple[int, float]]) -> list[float]:
    """The rates that serve all of these models."""
    losses = np.stack([rows.where(method=method, model=model)["test"] for model in models])
    near = losses <= np.nanmin(losses, 1, keepdims=True) + NEAR
    return [rate for rate, all_ in zip(RATES, near.all(0)) if all_]


def checks(rows: Rows) -> list[Check]:
    made = []
    for method in METHODS:
        for what, models in (("widths 128 to 1024", WIDTHS), ("starts × 0.1 to × 10", STARTS)):
            if all(np.isfinite(rows.where(method=method, model=model)["test"]).any() for model in models):
                rates = serving(rows, method, models)
                found = ", ".join(f"{rate:g}" for rate in rates) or "none"
                name = f"{method}: one rate is within {NEAR} nats of the best for {what}"
                made.append(Check(name, "", found, bool(rates)))
    return made


EXPERIMENT = Experiment(
    id="sparse-rates",
    title="One learning rate for all widths and starts",
    statement="One rate of MirrorAdam near p = 1 serves matrices of every size.",
    grid={"method": list(METHODS), "model": [*WIDTHS, *STARTS]},
    run=run,
    figure=figure,
    checks=checks,
    trials=len(RATES),
    quick=len(RATES),
    batch=len(RATES),
    needs=(SOURCE,),
    cost=lambda params: 0.01,
    remark="183 steps on WikiText-2, one seed, kept as rows of benchmarks/sparse; warm-up and cosine as always, AdamW "
    "at 2e-3 on embedding and norms.",
)
