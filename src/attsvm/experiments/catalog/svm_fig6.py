"""The optimal tokens are chosen ever more often as d grows, whatever n and T."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import is_globally_optimal
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, as_in_paper
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure

STEPS = 1000
SIZES = {"(a) T = 5": [(5, 5), (10, 5), (20, 5)], "(b) n = 5": [(5, 5), (5, 10), (5, 20)]}


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(params["n"], params["T"], params["d"], trials=trials, seed=0, min_score_gap=0.1).to(device)
    result = train(data, "l2", steps=STEPS, record=(), **as_in_paper(params["trained"]))
    return {
        "is_global": array(is_globally_optimal(data, result.tokens)),
        "optimal_share": array((result.tokens == data.optimal_tokens()).double().mean((1, 2))),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9.5, 3.8))
    for ax, (title, sizes) in zip(axes[0], SIZES.items()):
        for look, (n, T) in zip(SERIES, sizes):
            for trained, line in (("W", "-"), ("KQ", "--")):
                cells = rows.where(n=n, T=T, trained=trained)
                ds = cells.values("d")
                share = np.array([cells.where(d=d)["is_global"].mean() for d in ds])
                error = np.sqrt(share * (1 - share) / len(cells.where(d=ds[0])))
                label = f"{'n' if title.startswith('(a)') else 'T'} = {n if title.startswith('(a)') else T}"
                ax.plot(ds, share, color=look.colour, ls=line, marker=look.marker, ms=5,
                        mfc=look.colour if trained == "W" else "white",
                        label=f"{label}, {'W' if trained == 'W' else '(K, Q)'}")  # fmt: skip
                ax.fill_between(ds, share - error, share + error, color=look.colour, alpha=0.12, lw=0)
        ax.set(xlabel="d", ylabel="share of global convergence", ylim=(-0.02, 1.03), title=title)
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    last, first = max(rows.values("d")), min(rows.values("d"))
    for trained, title in (("W", "W"), ("KQ", "(K, Q)")):
        ends, rises = {}, []
        for n, T in dict.fromkeys(SIZES["(a) T = 5"] + SIZES["(b) n = 5"]):
            cells = rows.where(n=n, T=T, trained=trained)
            share = {d: float(cells.where(d=d)["is_global"].mean()) for d in cells.values("d")}
            ends[n, T] = share[last]
            rises.append(share[last] > share[first])
        (n, T), least = min(ends.items(), key=lambda item: item[1])
        paper = "probabilities of global convergence reach 100% with larger d"
        name = f"{title}: smallest share of global convergence at d = {last}"
        found.append(at_least(name, least, 0.9, paper, f"at n = {n}, T = {T}"))
        ours = f"in {sum(rises)} of {len(rises)} settings"
        found.append(Check(f"{title}: the share is larger at d = {last} than at d = {first}", paper, ours, all(rises)))
    return found


EXPERIMENT = Experiment(
    id="svm-fig6",
    title="Global convergence against d, for several n and T",
    paper="TF-as-SVM, Figure 6",
    statement="For W and (K, Q), the probability that the optimal tokens are chosen goes to 1 as d grows, for T = 5, "
    "n = 5, 10, 20 and n = 5, T = 5, 10, 20.",
    grid={"n": [5, 10, 20], "T": [5, 10, 20], "trained": ["W", "KQ"], "d": [5, 10, 20, 40, 80]},
    quick_grid={"d": [5, 40]},
    only=lambda params: params["n"] == 5 or params["T"] == 5,
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=10,
    cost=lambda params: 2e-6 * STEPS * params["n"] * params["d"] ** 2 / 1000,
    remark="The paper gives neither the number of trials nor the dimensions; these are ours.",
)
