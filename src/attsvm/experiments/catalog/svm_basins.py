"""The atlas of basins: where training can end, and how often it does, by start and dimension."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.search import basins

SCALES = (0.0, 0.1, 1.0, 10.0)
N, T, STARTS = 3, 3, 25


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(N, T, params["d"], trials=trials, seed=0, min_score_gap=0.05).to(device)
    atlas = basins(data, scales=SCALES, starts=STARTS)
    wrong = atlas.locally_optimal & ~atlas.globally_optimal
    return {
        "local choices": array(atlas.locally_optimal.sum(1)),
        "right": array((atlas.share * atlas.globally_optimal).sum(-1).T.contiguous()),
        "local": array((atlas.share * wrong).sum(-1).T.contiguous()),
        "elsewhere": array(atlas.elsewhere.T.contiguous()),
        "feasible": array(atlas.feasible.all(1)),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.7))
    widths = rows.values("d")
    for look, k in zip(SERIES, range(len(SCALES))):
        share = [100 * rows.where(d=d)["right"][:, k].mean() for d in widths]
        axes[0][0].plot(widths, share, ms=4.5, label=f"scale {SCALES[k]:g}", **look.style)
    axes[0][0].set(
        xlabel="dimension d", ylabel="% of runs that end at the optimal tokens", ylim=(0, 104), xticks=widths
    )
    axes[0][0].set_title(f"{len(rows.where(d=widths[0]))} problems, {STARTS} starts for each scale")
    counts = [rows.where(d=d)["local choices"] for d in widths]
    most = max(int(count.max()) for count in counts)
    bottom = np.zeros(len(widths))
    greys = np.linspace(0.25, 0.9, most)
    for number in range(1, most + 1):
        height = np.array([100 * (count == number).mean() for count in counts])
        label = f"{number}" if height.any() else None
        axes[0][1].bar([str(d) for d in widths], height, 0.7, bottom, color=str(greys[number - 1]), label=label)
        bottom += height
    axes[0][1].set(
        xlabel="dimension d", ylabel="% of problems", ylim=(0, 104), title="number of locally optimal choices"
    )
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    widths = rows.values("d")
    low, high = rows.where(d=widths[0]), rows.where(d=widths[-1])
    paper = "larger d: fewer locally optimal directions, more global convergence (Sections 4 and 5)"
    many, few = low["local choices"].mean(), high["local choices"].mean()
    ours = f"{many:.2f} for d = {widths[0]}, {few:.2f} for d = {widths[-1]}"
    more = f"{low['right'].mean():.1%} for d = {widths[0]}, {high['right'].mean():.1%} for d = {widths[-1]}"
    return [
        Check("locally optimal choices become fewer with d (mean)", paper, ours, bool(few < many)),
        Check(
            "the optimal tokens are reached more often with d",
            paper,
            more,
            bool(high["right"].mean() > low["right"].mean()),
        ),
        at_least(
            "smallest number of locally optimal choices",
            float(rows["local choices"][rows["feasible"]].min()),
            1.0,
            "the optimal tokens are one",
            "problems in which all choices are feasible",
        ),
        at_most(
            "share of runs that end at no locally optimal choice",
            float(rows["elsewhere"].mean()),
            0.0,
            "GD converges to locally optimal directions (Section 5.1, Figure 5)",
            f"{len(rows) * len(SCALES) * STARTS:,} runs",
        ),
    ]


EXPERIMENT = Experiment(
    id="svm-basins",
    title="The atlas of basins",
    paper="TF-as-SVM, Sections 5.1 and 5.2",
    statement="GD ends at locally optimal tokens, which depend on the start; as d grows the optimal ones are left.",
    grid={"d": [2, 3, 4, 6, 9, 12]},
    quick_grid={"d": [2, 9]},
    run=run,
    figure=figure,
    checks=checks,
    trials=60,
    quick=10,
    version=2,
    cost=lambda params: 0.1,
    remark="n = T = 3: all 27 token choices of every problem are solved. Starts are Gaussian; steps are normalised, "
    "0.05 or 2% of the start, and go on for ten times as long where the tokens are not locally optimal after 500.",
)
