"""Lemma 6: between 2 and τ tokens."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, Philox

from attsvm.data import orthonormal
from attsvm.errors import AttsvmError
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import SERIES, Figure, bars, finish, new_figure
from attsvm.experiments.catalog.svm_fig9 import trained_columns

CANDIDATES = 64


def run(params: Params, trials: range, device: str) -> Columns:
    tau = params["τ"]
    chosen, lam = [], []
    for trial in trials:
        candidates = range(trial * CANDIDATES, (trial + 1) * CANDIDATES)
        data = orthonormal(1, 10, 10, trials=candidates, seed=0)
        scores = -np.sort(-data.scores()[:, 0, 0].numpy(), axis=1)
        gaps = scores[:, :-1] - scores[:, 1:]
        low, high = gaps[:, 0], tau * gaps[:, tau - 1] / 2
        fits = (high > low).nonzero()[0]
        if not len(fits):
            raise AttsvmError(f"τ = {tau} must be possible, but none of {CANDIDATES} draws meets (8).")
        k = fits[0]
        chosen.append(candidates[k])
        lam.append(Generator(Philox(key=[1, trial])).uniform(low[k], high[k]))
    columns = trained_columns(orthonormal(1, 10, 10, trials=chosen, seed=0), np.array(lam), device)
    return columns | {"lambda": np.array(lam), "candidate": np.array(chosen)}


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10.5, 3.5))
    taus = rows.values("τ")
    for look, tau in zip(SERIES, taus):
        cell = rows.where(τ=tau)
        axes[0][0].scatter(cell["lambda"], cell["selected"] + 0.08 * SERIES.index(look), s=10, color=look.colour,
                           marker=look.marker, alpha=0.6, label=f"τ = {tau}")  # fmt: skip
    axes[0][0].set(xlabel="λ", ylabel="number of selected tokens", title="(a) against λ")
    means = [rows.where(τ=tau)["selected"].mean() for tau in taus]
    spread = [rows.where(τ=tau)["selected"].std() for tau in taus]
    axes[0][1].errorbar(taus, means, spread, marker="o", capsize=3, label="mean and standard deviation")
    axes[0][1].plot(taus, taus, color="black", ls=":", label="τ")
    axes[0][1].set(xlabel="τ", ylabel="number of selected tokens", title="(b) against τ", ylim=(0, None))
    counts = list(range(1, 11))
    shares = {f"τ = {t}": [100 * float((rows.where(τ=t)["selected"] == k).mean()) for k in counts] for t in taus}
    bars(axes[0][2], counts, shares, len(rows.where(τ=taus[0])), "% of trials")
    axes[0][2].set(xlabel="number of selected tokens", title="(c) distribution")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    means, exact = {}, {}
    for tau in rows.values("τ"):
        cell = rows.where(τ=tau)
        selected, best = cell["selected"], cell["best"]
        means[tau], exact[tau] = float(selected.mean()), float(best.mean())
        paper = "the optimum has at least 2 and at most τ nonzero entries (Lemma 6)"
        bounds = f"exact optimum: {best.min()} to {best.max()}; trained: {selected.min()} to {selected.max()}"
        fine = best.min() >= 2 and best.max() <= tau
        found.append(Check(f"τ = {tau}: the exact optimum selects 2 to τ tokens", paper, bounds, fine))
        over = float((selected <= tau).mean())
        found.append(
            Check(
                f"τ = {tau}: at most τ tokens above 1e-3 after training",
                "the number of selected tokens remains within the limit of τ (Figure 12c)",
                f"{over:.1%} of the trials",
                over >= 0.97,
                "a weight that goes to 0 may still be above 1e-3",
            )
        )
    ours = ", ".join(f"τ = {tau}: {mean:.2f}" for tau, mean in means.items())
    grows = list(means.values()) == sorted(means.values())
    found.append(Check("more tokens with larger τ", "a positive correlation among τ, λ and the number", ours, grows))
    return found


EXPERIMENT = Experiment(
    id="svm-fig12",
    title="Concave head: at most τ tokens",
    paper="TF-as-SVM, Figure 12 and Lemma 6",
    statement="If τ γ_gap(τ)/2 > λ > γ_gap(1), the optimal softmax map has at least 2 and at most τ nonzero entries; "
    "100 random pairs (λ, X) for each τ = 3, 5, 7, 9.",
    grid={"τ": [3, 5, 7, 9]},
    run=run,
    figure=figure,
    checks=checks,
    trials=100,
    quick=30,
    cost=lambda params: 0.03,
    remark="λ is uniform in the interval that the lemma allows. The exact optimum is computed beside the trained one.",
)
