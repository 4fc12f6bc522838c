"""One learning rate for all sizes: loss against the rate at six widths and scales of the initial weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse.again import train_again
from attsvm.experiments.sparse.rows import AGAIN, REMARK, SOURCE, from_rows, kept_rows

METHODS = ("AdamW", "MirrorAdam p = 1.1", "MirrorAdam p = 1.5")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MODELS = {
    "width 128": (128, 1.0),
    "width 256": (256, 1.0),
    "width 512": (512, 1.0),
    "width 1024": (1024, 1.0),
    "width 256, start × 0.1": (256, 0.1),
    "width 256, start × 10": (256, 10.0),
}


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    width, scale = MODELS[params["model"]]
    wanted = {"name": params["method"], "note": "lr", "width": width, "scale": scale, "lr": params["lr"]}
    rows = [row for row in kept_rows(data[SOURCE]) if all(row.get(name) == value for name, value in wanted.items())]
    if AGAIN in data:
        rows = train_again(rows[0], 0.0, trials, data[AGAIN], device) if rows else []
    found = {row["seed"]: row["validation"] for row in rows}
    return {"loss": np.array([found.get(seed, np.nan) for seed in trials])}


def losses(rows: Rows, method: str) -> np.ndarray:
    """(seeds, models, rates); ∞ where a run broke down."""
    found = [[rows.where(method=method, model=model, lr=lr)["loss"] for lr in RATES] for model in MODELS]
    return np.moveaxis(np.nan_to_num(np.array(found), nan=np.inf), -1, 0)


def excess(found: np.ndarray) -> np.ndarray:
    """(seeds, rates): the largest loss above the best rate's of the same model and seed."""
    return (found - found.min(-1, keepdims=True)).max(-2)


def one_rate(found: np.ndarray) -> tuple[float, np.ndarray]:
    """The rate that loses least over all models and seeds, and what it loses in each seed."""
    over = excess(found)
    best = int(over.max(0).argmin())
    return RATES[best], over[:, best]


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, len(METHODS), (12, 4.6))
    for ax, method in zip(axes[0], METHODS):
        found = losses(rows, method).clip(max=8)
        for model, values, look in zip(MODELS, found.swapaxes(0, 1), (*SERIES, SERIES[0]._replace(colour="0.5"))):
            mean = values.mean(0)
            ax.fill_between(RATES, values.min(0), values.max(0), color=look.colour, alpha=0.2, lw=0)
            ax.plot(RATES, mean, label=model, lw=1.2, ms=4, **look.style)
            ax.plot(RATES[int(mean.argmin())], mean.min(), look.marker, color=look.colour, ms=10, mfc="none")
        ax.set(xscale="log", xlabel="learning rate", title=method, ylim=(4.7, 8.1))
    axes[0][0].set_ylabel("validation loss after one epoch (cut at 8)")
    figure.suptitle("mean and range of the seeds; ringed: the best rate of each model", fontsize=9)
    return finish(figure, legend="outside")


def checks(rows: Rows) -> list[Check]:
    made = {method: one_rate(losses(rows, method)) for method in METHODS}
    told = {m: f"{', '.join(f'{x:.2f}' for x in lost)} at {rate:g}" for m, (rate, lost) in made.items()}
    base = made["AdamW"][1]
    return [
        Check(f"one rate for six models: {m} loses less than AdamW", "", f"{told[m]}; AdamW {told['AdamW']}", ok)
        for m in METHODS[1:]
        for ok in [bool((made[m][1] < base).all())]
    ]


EXPERIMENT = from_rows(
    id="sparse-lr",
    title="One learning rate for six models: MirrorAdam against AdamW",
    statement="One rate of MirrorAdam serves widths from 128 to 1024 and initial weights from × 0.1 to × 10.",
    grid={"method": list(METHODS), "model": list(MODELS), "lr": list(RATES)},
    run=run,
    figure=figure,
    checks=checks,
    remark="A GPT of four layers on WikiText-2, one epoch, dense, three seeds; the rate of embeddings and norms is the "
    f"same for all. {REMARK}",
)
