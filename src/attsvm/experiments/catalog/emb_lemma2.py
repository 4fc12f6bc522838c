"""One step of gradient descent writes the importance of every token into its embedding."""

from __future__ import annotations

import math

import numpy as np
import torch

from attsvm.embeddings import KLevel, Sequences, descend, initial_embeddings, signed_frequency, single_important
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_most
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure

SIZE, N, T, FAILURE = 50, 40, 12, 0.05
"""|S|, sequences, their length, and δ."""
LEAST = max(256.0, (2 * math.log(SIZE**2 / FAILURE)) ** 2)
"""The d that the proof asks for: 468."""
DATA = ("random labels", "K-level model", "Assumption 4")


def _sequences(kind: str, trial: int) -> Sequences:
    if kind == "Assumption 4":
        return single_important(N, T, 10, SIZE - 20, trial=trial, even=False)
    if kind == "K-level model":
        return KLevel(sizes=(4, 8), levels=(0.3, 0.05), irrelevant=SIZE - 24, share=0.3).sample(N, T, trial=trial)
    stream = np.random.default_rng([1, trial])
    ids = stream.integers(SIZE, size=N * T)
    return Sequences.of(ids, np.arange(N + 1) * T, stream.choice([1, -1], size=N), SIZE)


def run(params: Params, trials: range, device: str) -> Columns:
    d, eta = params["d"], params["eta0"]
    errors, tokens, vectors = [], [], []
    for trial in trials:
        data = _sequences(params["data"], trial)
        start = initial_embeddings(SIZE, d, seed=1, trial=trial, reduced=True)
        end, _ = descend(data, start, lr=eta)
        alpha = signed_frequency(data)
        tokens.append((end.E - start.E - eta / 2 * alpha[:, None] * start.v).norm(dim=1).max())
        vectors.append((end.p - start.p).norm())
        errors.append((end.E - start.E).norm(dim=1).max())
    columns = {"err_s": tokens, "err_p": vectors, "move": errors}
    return {name: torch.stack(values).numpy() for name, values in columns.items()}


def _ratio(cell: Rows, d: float, eta: float) -> np.ndarray:
    """Error over the bound (6)."""
    return np.maximum(cell["err_s"], cell["err_p"]) / (11 * eta * d**-0.25)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (10, 3.2))
    dimensions = rows.values("d")
    eta = rows.values("eta0")[0]
    for ax, kind in zip(axes[0], DATA):
        cells = [rows.where(data=kind, d=d, eta0=eta) for d in dimensions]
        for look, column, label in zip(SERIES, ("err_s", "err_p"), ("largest ‖err_s‖ / η₀", "‖err_p‖ / η₀")):
            values = np.stack([cell[column] / eta for cell in cells], 1)
            band(ax, np.array(dimensions), values, look, label, spread="quantiles", markers=True)
        ax.plot(dimensions, [11 * d**-0.25 for d in dimensions], "k-", lw=1, label="bound 11 d^(−1/4)")
        ax.set(xscale="log", yscale="log", xlabel="d", title=kind)
    axes[0][0].set_ylabel("error of one step")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for kind in DATA:
        cells = [
            (d, eta, rows.where(data=kind, d=d, eta0=eta)) for d in rows.values("d") for eta in rows.values("eta0")
        ]
        ratios = np.concatenate([_ratio(cell, d, eta) for d, eta, cell in cells])
        paper = f"(6): with probability 1 − δ = {1 - FAILURE:g} at most 1, for d ≥ {LEAST:.0f}"
        name = f"{kind}: largest error over its bound"
        found.append(at_most(name, float(ratios.max()), 1.0, paper, f"{len(ratios)} trials"))
    dimensions, eta = rows.values("d"), rows.values("eta0")[0]
    medians = [float(np.median(rows.where(d=d, eta0=eta)["err_s"])) for d in dimensions]
    slope = float(np.polyfit(np.log(dimensions), np.log(medians), 1)[0])
    note = "the error falls faster than the bound: the inner products of (14) are of the order d^(−1/2)"
    found.append(at_most("exponent of d in the error", slope, -0.25, "−1/4", note))
    return found


EXPERIMENT = Experiment(
    id="emb-lemma2",
    title="One step of gradient descent",
    paper="trained-embeddings, Lemma 2",
    statement="After one step from Gaussian embeddings, E_s has moved by η₀/2 · α_s v and p not at all, up to errors "
    "of at most 11 η₀ d^(−1/4) with probability 1 − δ, for any data and d ≥ polylog(|S|, 1/δ).",
    grid={"data": list(DATA), "d": [512, 4096, 32768, 2**20, 2**30], "eta0": [0.1, 10.0, 1000.0]},
    run=run,
    figure=figure,
    checks=checks,
    trials=200,
    quick=10,
    batch=100,
    cost=lambda params: 0.002,
    remark="|S| = 50, 40 sequences of 12 tokens, δ = 0.05; the proof's condition is d ≥ max(256, (2 log(|S|²/δ))²) = "
    f"{LEAST:.0f}. Only inner products matter, so vectors are drawn in |S| + 2 coordinates with the distribution they "
    "have in dimension d. The error is proportional to η₀, as it is for any single step.",
)
