"""Several heads: each goes to the SVM of the tokens that it selects; when do heads become equal?"""

from __future__ import annotations

import numpy as np
import torch

from attsvm.data import of_heads, several_heads, sphere, trial_streams
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Gaussian, Growing, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, limit
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.objective import Added

OWN, SHARED = "own v", "one v for all"
SCALES = [0.0, 0.1, 0.3, 1.0, 3.0]


def run(params: Params, trials: range, device: str) -> Columns:
    H = params["heads"]
    single = sphere(4, 6, 8, trials=trials, seed=0)
    assert single.head is not None
    v = single.head.tensors()["v"].expand(-1, H, -1)
    if params["v"] == OWN:
        drawn = np.array([stream.standard_normal((H, 8)) for stream in trial_streams(1, list(trials))])
        v = torch.from_numpy(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))
    data = several_heads(single, v).to(device)
    start = Gaussian(params["scale"]) if params["scale"] else "zero"
    options = {"steps": 1500, "lr": Growing(), "init": start, "record": ("norm",), "at": [1500]}
    result = train(data, rule=Steepest(), loss=Added(), **options)
    solution = limit(data, result.tokens, "l2")
    W, W_mm = of_heads(result.W, H), of_heads(torch.where(solution.solved[:, None, None], solution.W, torch.nan), H)
    size = torch.linalg.matrix_norm(W) / torch.linalg.matrix_norm(W_mm)
    first = W[:, :1].expand_as(W)
    return {
        "solved": array(solution.solved),
        "error": array(misalignment(W, W_mm)),
        "spread": array(size.amax(1) / size.amin(1)),
        "same_tokens": array((result.tokens == result.tokens[..., :1]).all(-1).all(-1)),
        "difference": array(misalignment(W, first).amax(1)),
        "optimal": array((result.tokens == data.optimal_tokens()).double().mean((1, 2))),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (12, 3.5))
    scales = rows.values("scale")
    k = 0
    for kind in rows.values("v"):
        for H in rows.values("heads"):
            cells = [rows.where(v=kind, heads=H, scale=scale) for scale in scales]
            style = SERIES[k].style | {"ms": 4.5, "label": f"{H} heads, {kind}"}
            axes[0][0].plot(range(len(scales)), [np.nanmedian(cell["error"]) for cell in cells], **style)
            axes[0][1].plot(range(len(scales)), [100 * cell["same_tokens"].mean() for cell in cells], **style)
            axes[0][2].plot(range(len(scales)), [np.median(cell["difference"]) for cell in cells], **style)
            k += 1
    axes[0][0].set(yscale="log", ylabel="1 − correlation (median)", title="a head and the SVM of its own tokens")
    axes[0][1].set(ylabel="% of trials", title="all heads select the same tokens")
    axes[0][2].set(ylabel="largest 1 − correlation (median)", title="how different heads are")
    axes[0][2].set_yscale("symlog", linthresh=1e-5)
    for ax in axes[0]:
        ax.set(xlabel="scale of the start", xticks=range(len(scales)), xticklabels=[f"{scale:g}" for scale in scales])
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    small = [scale for scale in rows.values("scale") if scale <= 1]
    near = [rows.where(scale=scale, heads=H) for scale in small for H in rows.values("heads")]
    error = float(np.nanquantile(np.concatenate([cell["error"].ravel() for cell in near]), 0.9))
    spread = float(np.nanquantile(np.concatenate([cell["spread"] for cell in near]), 0.9))
    words = "90% of heads: 1 − correlation with the SVM of their own tokens"
    found = [at_most(words, error, 0.01, "each head goes to its own SVM")]
    words = "90% of trials: ratio of the largest to the smallest ‖W_h‖/‖W_mm,h‖"
    found.append(at_most(words, spread, 1.05, "heads grow in proportion to the norms of their SVMs"))
    zero = rows.where(v=SHARED, scale=0.0)
    words = "one v, start at zero: largest difference between heads"
    found.append(at_most(words, float(zero["difference"].max()), 1e-12, "equal heads stay equal"))
    alike = rows.where(v=SHARED, scale=0.3)
    chosen = alike["same_tokens"].astype(bool)
    words = "one v, start of scale 0.3, same tokens: median difference between heads"
    found.append(
        at_most(words, float(np.median(alike["difference"][chosen])), 1e-3, "heads of equal tokens turn equal")
    )
    words = "one v, start of scale 0.3, other tokens: least difference between heads"
    if (~chosen).any():
        found.append(at_least(words, float(alike["difference"][~chosen].min()), 0.01, "the others stay different"))
    most = rows.where(v=SHARED, scale=small[1])["same_tokens"].mean()
    least = rows.where(v=SHARED, scale=rows.values("scale")[-1])["same_tokens"].mean()
    words = "one v: share of trials whose heads agree, smallest random start less largest"
    found.append(at_least(words, float(most - least), 0.2, "a larger start keeps heads apart"))
    return found


EXPERIMENT = Experiment(
    id="heads-svm",
    title="Every head goes to the SVM of its own tokens",
    statement="Several heads whose outputs are added, each with its own W, trained together by gradient descent: every "
    "head converges in direction to the attention SVM of the tokens that it selects, and the norms of the heads grow "
    "in proportion to those of their SVMs. Heads with one v become equal if they select the same tokens, which a small "
    "start makes them do; a large start keeps them apart. Not proved; measured here.",
    grid={"v": [OWN, SHARED], "heads": [2, 4], "scale": SCALES},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=16,
    quick_grid={"heads": [2]},
    cost=lambda params: 0.1 * params["heads"],
    remark="n = 4, T = 6, d = 8. The loss is the logistic loss of the sum of the heads' outputs. The heads are queries "
    "of one wide W, so margins, SVMs and gradients are those of one layer, exact at any norm.",
)
