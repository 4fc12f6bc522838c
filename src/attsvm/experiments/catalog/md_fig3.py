"""The optimal tokens have the largest label margin."""

from __future__ import annotations

from itertools import product

import numpy as np

from attsvm.data import example1
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._arrays import array
from attsvm.experiments._draw import BLUE, ORANGE, SKY, Figure, new_figure
from attsvm.svm import head_svm, solve
from attsvm.tolerances import SHARP

CHOICES = list(product((0, 1), repeat=2))


def run(params: Params, trials: range, device: str) -> Columns:
    data = example1().to(device)
    solutions = [solve(head_svm(data, list(tokens)), f"l{params['p']}", tol=SHARP) for tokens in CHOICES]
    return {
        "tokens": np.array([CHOICES]),
        "margin": np.stack([array(solution.margin) for solution in solutions], 1),
        "v": np.stack([array(solution.W[..., 0]) for solution in solutions], 1),
    }


def figure(rows: Rows) -> Figure:
    X = example1().X[0].numpy()
    figure, axes = new_figure(2, 4, (10, 5.9))
    for row, p in zip(axes, rows.values("p")):
        cell = rows.where(p=p)
        for ax, tokens, margin, v in zip(row, CHOICES, cell["margin"][0], cell["v"][0]):
            grid = np.linspace(-6, 6, 241)
            value = v[0] * grid[None, :] + v[1] * grid[:, None]
            ax.contourf(grid, grid, value, levels=[-1, 1], colors=[SKY], alpha=0.35)
            ax.contour(grid, grid, value, levels=[0], colors="black", linewidths=1)
            for i, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "s"))):
                ax.scatter(*X[i].T, s=35, marker=marker, color=colour, zorder=3)
                ax.scatter(*X[i, tokens[i]], s=130, marker="*", color=colour, edgecolor="black", lw=0.7, zorder=4)
            ax.set(xlim=(-6, 6), ylim=(-6, 6), aspect="equal", xticks=(-5, 0, 5), yticks=(-5, 0, 5))
            ax.label_outer()
            ax.set_title(f"$p = {p}$, tokens {tokens[0] + 1} and {tokens[1] + 1}\nlabel margin {margin:.3g}")
        row[0].set_ylabel("second coordinate")
    for ax in axes[-1]:
        ax.set_xlabel("first coordinate")
    figure.suptitle("Label margin (shaded) by the chosen tokens (stars); ● label +1, ■ label −1")
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for p in rows.values("p"):
        margin = rows.where(p=p)["margin"][0]
        ours = ", ".join(f"{tuple(k + 1 for k in tokens)}: {m:.3g}" for tokens, m in zip(CHOICES, margin))
        paper = "X_11 and X_21 give the largest class margin; with other tokens it decreases"
        found.append(Check(f"p = {p}: the first tokens have the largest margin", paper, ours, margin.argmax() == 0))
        ratio = float(np.delete(margin, 0).max() / margin[0])
        found.append(at_most(f"p = {p}: largest other margin over that of the first tokens", ratio, 0.5, paper))
    return found


EXPERIMENT = Experiment(
    id="md-fig3",
    title="Example 1, label margin by chosen tokens",
    paper="mirror-descent, Figure 3",
    statement="The label margin of ℓp-SVM is largest for the optimal tokens X_11 and X_21, and decreases as other "
    "tokens are chosen.",
    grid={"p": [2, 3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
)
