"""How wide K and Q must be for K Qᵀ to meet the nuclear solution."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import misalignment, numerical_rank
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array, as_in_paper
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.svm import att_svm, solve

STEPS, D = 2000, 20


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(params["n"], params["T"], D, trials=trials, seed=0).to(device)
    result = train(data, "l2", steps=STEPS, m=params["m"], record=(), **as_in_paper("KQ"))
    solution = solve(att_svm(data, result.tokens), "nuclear")
    return {
        "misalignment": array(misalignment(solution.W, result.W)),
        "rank": array(numerical_rank(solution.W.nan_to_num())),
        "solved": array(solution.solved),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.6))
    ms = rows.values("m")
    for ax, name, other in zip(axes[0], ("T", "n"), ("n", "T")):
        for look, size in zip(SERIES, rows.where(**{other: 5}).values(name)):
            cells = rows.where(**{name: size, other: 5})
            values = np.stack([cells.where(m=m)["misalignment"] for m in ms], 1)
            band(ax, np.array(ms), values, look, f"{name} = {size}", spread="quantiles", markers=True)
        ax.set(yscale="log", xlabel="m", ylabel="1 − corr(KQᵀ, nuclear)", title=f"{other} = 5, d = {D}")
    figure.suptitle("Median, and band from 10% to 90% of the trials")
    return finish(figure)


def _medians(rows: Rows, n: int, T: int) -> dict[int, float]:
    cells = rows.where(n=n, T=T)
    return {m: float(np.nanmedian(cells.where(m=m)["misalignment"])) for m in cells.values("m")}


def checks(rows: Rows) -> list[Check]:
    found = []
    paper = "KQᵀ converges towards the nuclear solution as long as m ≳ n"
    sizes = list(dict.fromkeys((params["n"], params["T"]) for params, _ in rows))
    for n, T in sizes:
        medians = _medians(rows, n, T)
        wide = [m for m in medians if m >= min(n, 10)]
        worst = max(medians[m] for m in wide)
        found.append(at_most(f"n = {n}, T = {T}: median 1 − corr for m ≥ {min(n, 10)}", worst, 0.02, paper))
        ours = f"{medians[1]:.2g} at m = 1, {worst:.2g} for m ≥ {min(n, 10)}"
        found.append(Check(f"n = {n}, T = {T}: m = 1 is far off", paper, ours, medians[1] > 5 * worst))
    last = max(n for n, _ in sizes)
    few, many = _medians(rows, 5, 5)[5], _medians(rows, last, 5)[5]
    ours = f"n = 5: {few:.2g}, n = {last}: {many:.2g}"
    found.append(Check("at m = 5 a larger n is further off", "a larger n necessitates a larger m", ours, many > few))
    return found


EXPERIMENT = Experiment(
    id="svm-fig10",
    title="The width of K and Q",
    paper="TF-as-SVM, Figure 10",
    statement="With d = 20 and m = 1 … 10, KQᵀ aligns with the nuclear solution once m ≳ n: a larger n needs a "
    "larger m, T matters little.",
    grid={"n": [5, 10, 15], "T": [5, 10, 15], "m": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]},
    quick_grid={"n": [5, 15], "T": [5, 15], "m": [1, 5, 10]},
    only=lambda params: params["n"] == 5 or params["T"] == 5,
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=10,
    cost=lambda params: 0.02 + 2e-4 * params["n"] * params["T"],
    remark="The nuclear solutions here have rank well below n (see svm-fig4), so m need not reach n.",
)
