"""Does the margin of a rule depend on where it starts? The tokens do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.data import sphere
from attsvm.dynamics import Adam, Gaussian, Growing, Rule, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, margin_share
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.geometry import Lp, Spectral

RULES: dict[str, tuple[Rule, Any, int]] = {
    "GD": (Steepest(), Growing(), 3000),
    "sign": (Steepest(Lp(math.inf)), 0.02, 20_000),
    "Adam (0.9, 0.95)": (Adam(beta2=0.95), 0.02, 60_000),
    "spectral": (Steepest(Spectral()), 0.05, 20_000),
    "spectral, growing steps": (Steepest(Spectral()), Growing(0.1, 1.0), 10_000),
}
"""Rule, step size, steps."""
GROWING = "spectral, growing steps"
SCALES = [0.0, 0.1, 1.0, 3.0]


def run(params: Params, trials: range, device: str) -> Columns:
    rule, lr, steps = RULES[params["rule"]]
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    start = Gaussian(params["scale"]) if params["scale"] else "zero"
    options: dict[str, Any] = {"steps": steps, "record": ("norm",), "at": [steps], "compile": steps >= 10_000}
    result = train(data, rule=rule, lr=lr, init=start, **options)
    return {
        "efficiency": array(margin_share(data, result.tokens, result.W, result.geometry)),
        "optimal": array((result.tokens == data.optimal_tokens()).double().mean((1, 2))),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.5))
    scales = rows.values("scale")
    for k, rule in enumerate(rows.values("rule")):
        style = SERIES[k].style | {"label": rule}
        cells = [rows.where(rule=rule, scale=scale) for scale in scales]
        axes[0][0].plot(range(len(scales)), [np.nanmedian(cell["efficiency"]) for cell in cells], **style)
        axes[0][1].plot(range(len(scales)), [100 * cell["optimal"].mean() for cell in cells], **style)
    axes[0][0].set(ylabel="share of the margin (median)", title="margin in the rule's norm", ylim=(0, 1.02))
    axes[0][1].set(ylabel="% of queries", title="queries that select their best token", ylim=(0, 102))
    for ax in axes[0]:
        ax.set(xlabel="scale of the start", xticks=range(len(scales)), xticklabels=[f"{scale:g}" for scale in scales])
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in (rule for rule in rows.values("rule") if rule != GROWING):
        shares = [float(np.nanmedian(rows.where(rule=rule, scale=scale)["efficiency"])) for scale in SCALES]
        words = f"{rule}: least median share of its margin over all starts"
        found.append(at_least(words, min(shares), 0.95, "the margin of the selected tokens, from every start"))
    shares = [float(np.nanmedian(rows.where(rule=GROWING, scale=scale)["efficiency"])) for scale in SCALES]
    words = f"{GROWING}: median share of the margin from zero"
    found.append(at_least(words, shares[0], 0.98, "small steps at first: the margin is reached"))
    words = f"{GROWING}: median share of the margin from the largest start"
    found.append(at_most(words, shares[-1], 0.95, "steps in proportion to a large start stop short of the margin"))
    first, last = (rows.where(scale=scale)["optimal"].mean() for scale in (SCALES[0], SCALES[-1]))
    words = "share of queries that select their best token: start at zero, less start of scale 3"
    found.append(at_least(words, float(first - last), 0.02, "the start decides about tokens"))
    return found


EXPERIMENT = Experiment(
    id="map-init",
    title="The start chooses tokens, the optimizer chooses the margin",
    statement="From any start each rule reaches the margin of its norm, for the tokens that it selects. Which tokens "
    "these are depends on the start: a large one makes queries keep tokens that are only locally optimal. Steps that "
    "grow in proportion to ‖W‖ are the exception in the spectral norm: from a large start they raise margins by "
    "several nats per step, so the gradient sees the hardest sample alone, and W stops short of the margin.",
    grid={"rule": list(RULES), "scale": SCALES},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    cost=lambda params: 0.15,
    version=2,
    remark="Random problems with n = 6, T = 8, d = 10; W(0) has independent normal entries.",
)
