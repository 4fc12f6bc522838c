"""Where gradient descent goes: to the global, a local or no local SVM solution, as d grows."""

from __future__ import annotations

import numpy as np

from attsvm.data import sphere
from attsvm.diagnostics import assumption_b1, is_globally_optimal, is_locally_optimal, misalignment
from attsvm.dynamics import train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, as_in_paper
from attsvm.experiments._draw import Axes, Figure, bars, finish, new_figure
from attsvm.svm import att_svm, solve

STEPS = 2000


def run(params: Params, trials: range, device: str) -> Columns:
    data = sphere(5, 5, params["d"], trials=trials, seed=0, min_score_gap=0.1).to(device)
    result = train(data, "l2", steps=STEPS, record=(), **as_in_paper(params["trained"]))
    chosen, best = (solve(att_svm(data, tokens), result.geometry) for tokens in (result.tokens, data.optimal_tokens()))
    b1 = assumption_b1(data, best, as_in_paper=True)
    return {
        "is_global": array(is_globally_optimal(data, result.tokens)),
        "is_local": array(is_locally_optimal(data, result.tokens, chosen)),
        "misalignment": array(misalignment(chosen.W, result.W)),
        "b1": array(b1.holds),
        "mean_margin": array(b1.value),
    }


def shares(cell: Rows) -> dict[str, float]:
    """Percentages of the trials. A global choice counts as local, as in the paper."""
    local = cell["is_local"] | cell["is_global"]
    kinds = {"global": cell["is_global"], "local (with global)": local, "not local": ~local}
    return {name: 100 * float(np.mean(kind)) for name, kind in kinds.items()}


def draw(ax: Axes, rows: Rows, with_b1: bool) -> None:
    by_d = {d: shares(rows.where(d=d)) for d in rows.values("d")}
    heights = {name: [by_d[d][name] for d in by_d] for name in ("global", "local (with global)", "not local")}
    if with_b1:
        heights["Assumption B.1"] = [100 * float(rows.where(d=d)["b1"].mean()) for d in by_d]
    bars(ax, list(by_d), heights, len(rows.where(d=next(iter(by_d)))), "% of trials")
    ax.set(xlabel="d", ylim=(0, 105))


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (11, 3.8))
    for ax, trained, title in zip(axes[0], ("W", "KQ"), ("(a) training W", "(b) training (K, Q)")):
        draw(ax, rows.where(trained=trained), with_b1=True)
        ax.set_title(title)
    return finish(figure, legend="outside")


def convergence_checks(rows: Rows, trained: str, title: str) -> list[Check]:
    cells = rows.where(trained=trained)
    share = {d: shares(cells.where(d=d)) for d in cells.values("d")}
    last, first = max(share), min(share)
    known = np.nan_to_num(cells.where(d=last)["misalignment"], nan=1.0)
    grows = f"{share[first]['global']:.0f}% at d = {first}, {share[last]['global']:.0f}% at d = {last}"
    paper = "the percentage of global convergence approaches 100% as d grows"
    return [
        at_least(f"{title}: % global at d = {last}", share[last]["global"], 95.0, paper),
        Check(f"{title}: global share grows with d", paper, grows, share[last]["global"] > share[first]["global"] + 20),
        at_least(f"{title}: % local or global at d = {last}", share[last]["local (with global)"], 99.0, "→ 100%"),
        at_least(
            f"{title}: median correlation with the SVM solution, d = {last}",
            float(1 - np.median(known)), 0.99, "directions converge to the SVM solution",
        ),
    ]  # fmt: skip


def checks(rows: Rows) -> list[Check]:
    found = []
    for trained, title in (("W", "W"), ("KQ", "(K, Q)")):
        found += convergence_checks(rows, trained, title)
        cells = rows.where(trained=trained)
        held = {d: 100 * float(cells.where(d=d)["b1"].mean()) for d in cells.values("d")}
        last, first = max(held), min(held)
        ours = ", ".join(f"d = {d}: {share:.0f}%" for d, share in held.items())
        paper = "B.1 (mean margin below 1.1) holds with higher probability as d grows"
        found.append(Check(f"{title}: B.1 holds more often as d grows", paper, ours, held[last] > held[first] + 50))
    return found


EXPERIMENT = Experiment(
    id="svm-fig5",
    title="Global and local convergence, W and (K, Q)",
    paper="TF-as-SVM, Figure 5",
    statement="As d grows, the share of global convergence approaches 100% and Assumption B.1 holds with higher "
    "probability (n = T = 5, score gap ≥ 0.1, 500 trials for each d).",
    grid={"trained": ["W", "KQ"], "d": [2, 4, 6, 8, 10, 15, 20]},
    quick_grid={"d": [2, 6, 20]},
    run=run,
    figure=figure,
    checks=checks,
    trials=500,
    quick=40,
    cost=lambda params: 0.01 * (1 + params["d"] / 10),
)
