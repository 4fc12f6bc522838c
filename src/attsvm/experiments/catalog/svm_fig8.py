"""A ReLU head composes tokens; W_svmeq predicts the direction better than W_mm, and that than W_1token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from attsvm.data import MLPHead, TokenData, sphere
from attsvm.diagnostics import misalignment, predictions
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, curves, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, dots, finish, new_figure

STEPS = 2000
AT = [10, 20, 50, 100, 200, 350, 500, 750, 1000, 1250, 1500, 1750, 2000]
ACCEPTED = 500
COMPILED = 1000
"""Trials from which compiling the step pays, though the steps are few."""
SETTLED = 0.1
"""A sample with label −1 and h below this is, to a step of 0.1, where h = 0: its loss is smallest, its gradient 0."""
PREDICTED = {"svmeq": "W_svmeq", "mm": "W_mm", "1token": "W_1token"}
WHY = (
    "Where the attended token of a sample with label −1 has no positive entry, h = 0: its loss is smallest and its "
    "gradient exactly 0. GD drives most such samples there. From then on their constraints bind only from one side (W "
    "is pushed back where h > 0) and their masked tokens are not pushed down at all, while (Gen-SVM) counts them like "
    "the others. Without such samples, and with the better of the two predictions that do and do not count them, the "
    "correlation is above 0.99: see the checks beside. The paper does not mention these samples."
)


def run(params: Params, trials: range, device: str) -> Columns:
    drawn = sphere(3, 4, params["d"], trials=trials, seed=0)
    data = TokenData.cross(drawn.X, drawn.Z, drawn.Y, MLPHead.sum_relu(drawn.B, drawn.d)).to(device)
    result = train(data, "l2", steps=STEPS, record=("W",), at=AT, compile=True if len(trials) >= COMPILED else None)
    finite = result.W.isfinite().flatten(1).all(1)
    W = torch.where(finite[:, None, None], result.W, 1.0)
    predicted = predictions(data, W)
    weights = data.attention(W)
    # Accepted as in the paper: some label −1, and every softmax weight above 1e-3 or below 1e-6. A trial that selects
    # every token of every sequence has nothing to separate, W_mm = 0, and no direction to be predicted.
    separates = (predicted.W_mm.nan_to_num() != 0).flatten(1).any(1)
    accepted = predicted.sets.decided & (data.Y < 0).flatten(1).any(1) & separates & finite
    attended = torch.einsum("bnt,bntd->bnd", weights[:, :, 0], data.X)
    outputs = attended.relu().sum(-1).masked_fill(data.Y[..., 0] > 0, torch.inf)
    # A query that sees its top token alone has no constraints.
    alone = torch.nn.functional.one_hot(weights.argmax(-1), data.T).bool()
    others = predictions(replace(data, mask=alone | (outputs > SETTLED)[:, :, None, None]), W).W_svmeq
    columns: dict[str, np.ndarray] = {
        "accepted": array(accepted),
        "smallest_output": array(outputs.amin(1)),
        "steps": steps_of(result.steps, trials),
        "selected": array(predicted.sets.selected.sum(-1)[..., 0]),
        "masked_weight": array(torch.where(predicted.sets.masked, weights, 0.0).amax((1, 2, 3))),
    }
    for name, field in PREDICTED.items():
        error = misalignment(getattr(predicted, field), result.records["W"])
        columns[name] = curves(torch.where(accepted, error, torch.nan))
    nearer = torch.fmin(misalignment(others, result.W), misalignment(predicted.W_svmeq, result.W))
    columns["nearer"] = array(torch.where(accepted, nearer, torch.nan))
    return columns


def chosen(rows: Rows, d: int) -> dict[str, np.ndarray]:
    """The first 500 accepted trials of a dimension."""
    cell = rows.where(d=d)
    index = cell["accepted"].nonzero()[0][:ACCEPTED]
    found = {name: cell[name][index] for name in (*PREDICTED, "steps", "masked_weight", "selected", "nearer")}
    return found | {"settled": cell["smallest_output"][index] <= SETTLED}


def figure(rows: Rows) -> Figure:
    ds = rows.values("d")
    figure, axes = new_figure(2, len(ds), (2.9 * len(ds), 5.8))
    for k, d in enumerate(ds):
        cell = chosen(rows, d)
        top, bottom = axes[0][k], axes[1][k]
        for look, (name, field) in zip(SERIES, PREDICTED.items()):
            band(top, cell["steps"][0], cell[name], look, field, spread="quantiles")
        top.set(yscale="log", ylim=(1e-6, 2), xlabel="iteration", title=f"d = {d}, {len(cell['svmeq'])} trials")
        weight = np.maximum(cell["masked_weight"], 1e-60)
        for look, kind, label in (
            (SERIES[0], ~cell["settled"], "no sample with h ≈ 0"),
            (SERIES[1], cell["settled"], "a sample has h ≈ 0"),
        ):
            dots(bottom, weight[kind], np.maximum(cell["svmeq"][kind, -1], 1e-17), look, label)
        bottom.set(xscale="log", yscale="log", xlabel="largest weight of a masked token", ylim=(1e-7, 2))
    axes[0][0].set_ylabel("1 − corr (median, 10% to 90%)")
    axes[1][0].set_ylabel("1 − corr(W, W_svmeq)")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    paper = "W_1token is unsatisfactory, W_mm far better, W_svmeq best (Figure 8)"
    high = "average correlation exceeds 0.99 for larger d"
    for d in rows.values("d"):
        cell = chosen(rows, d)
        ends = {name: cell[name][:, -1] for name in PREDICTED}
        means = {name: float(np.nanmean(end)) for name, end in ends.items()}
        ours = ", ".join(f"{PREDICTED[name]} {mean:.3g}" for name, mean in means.items())
        note = f"means over {len(ends['mm'])} accepted of {len(rows.where(d=d))} trials"
        ordered = means["svmeq"] < means["mm"] < means["1token"]
        found.append(Check(f"d = {d}: mean misalignment W_svmeq < W_mm < W_1token", paper, ours, ordered, note))
        if d >= 8:
            settled = cell["settled"]
            live = float(1 - ends["svmeq"][~settled].mean()) if (~settled).any() else np.nan
            note = f"{int((~settled).sum())} trials in which no sample with label −1 has h below 0.1"
            found.append(at_least(f"d = {d}: mean correlation with W_svmeq, no sample settled", live, 0.99, high, note))
            nearer = float(1 - cell["nearer"].mean())
            name = f"d = {d}: mean correlation with the nearer of W_svmeq with and without the settled samples"
            found.append(at_least(name, nearer, 0.99, high, "all trials"))
            gone = float(1 - ends["svmeq"][settled].mean()) if settled.any() else np.nan
            note = f"in {int(settled.sum())} trials a sample with label −1 has h ≤ 0.1: mean {gone:.3f}; median of all "
            note += f"{1 - np.median(ends['svmeq']):.4f}"
            name = f"d = {d}: mean correlation with W_svmeq, all trials"
            found.append(at_least(name, 1 - means["svmeq"], 0.99, high, note, WHY))
    return found


EXPERIMENT = Experiment(
    id="svm-fig8",
    title="ReLU head: several tokens composed",
    paper="TF-as-SVM, Figure 8",
    statement="With h(x) = 1ᵀReLU(x), n = 3, T = 4, d = 4, 6, 8, 10 and 500 trials, W_svmeq = W_fin + γ W_mm "
    "predicts the trained W better than W_mm, and that better than W_1token; for larger d the mean correlation "
    "is above 0.99.",
    grid={"d": [4, 6, 8, 10]},
    quick_grid={"d": [4, 8]},
    run=run,
    figure=figure,
    checks=checks,
    trials=3200,
    quick=300,
    times=lambda params: {4: 1, 6: 2, 8: 4, 10: 12}[params["d"]],
    batch=1600,
    cost=lambda params: 0.005,
    remark="The paper's filter (no weight between 1e-6 and 1e-3, some label −1) accepts ever fewer trials as d "
    "grows, so as many are drawn as give about 500. Trials that select all tokens have W_mm = 0 and are left out.",
    version=2,
)
