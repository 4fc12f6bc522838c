"""Dense models cut by size without retraining: which optimizer's weights survive it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attsvm.experiments._checks import Check
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments.sparse.rows import CORPORA, OURS, POWERPROP, REMARK, curves, from_rows, leads, read, share_axis

METHODS = ("AdamW", "Muon", "powerprop, alpha = 2", POWERPROP, *OURS)
SHARES = (0.0, 0.5, 0.7, 0.8, 0.9)
BARS = {0.7: 0.1}
"""So much lower than AdamW's the loss should be, by share of zeros."""


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    share = params["sparsity"]
    value = "test" if share == 0 else f"one_shot_{round(100 * share)}"
    found = read({**params, "sparsity": 0.0}, CORPORA[params["model"]], trials, device, data, value=value)
    return {**found, **{name: np.full(len(trials), share) for name in ("zeros", "tuned_zeros")}}


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, len(CORPORA), (13, 4.2))
    for ax, model in zip(axes[0], CORPORA):
        curves(ax, rows.where(model=model), METHODS)
        share_axis(ax, model)
        ax.set_ylabel("test loss, nats")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    return [check for model in CORPORA for check in leads(rows, model, (*OURS, POWERPROP), BARS, model=model)]


EXPERIMENT = from_rows(
    id="sparse-cut",
    title="Dense models cut by size without retraining",
    statement="Without retraining, a model that MirrorAdam trained bears a larger cut than AdamW's.",
    grid={"model": list(CORPORA), "method": list(METHODS), "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    remark=f"{REMARK} Every method has the rate that "
    "is best for its dense model; one threshold of |w| for all matrices.",
)
