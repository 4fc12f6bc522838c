"""Next tokens by self-attention with tied embeddings: the Graph-SVM and its finite part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import next_token_data, trial_streams
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Growing, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.experiments._parts import finite_component
from attsvm.svm import graph_finite_part, graph_svm, solve

ORDERED, FREE = "ordered", "free"
SAMPLES, TOKENS, VOCABULARY = 20, 4, 6
RECORDED = [round(10 ** (j / 2)) for j in range(2, 10)]


def draw(kind: str, trials: range, samples: int = SAMPLES) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal embeddings, sequences of distinct tokens, and labels: the first of an order that belongs to the last
    token, or any token."""
    E, sequences, labels = [], [], []
    for stream in trial_streams(0, list(trials)):
        E.append(np.linalg.qr(stream.standard_normal((VOCABULARY, VOCABULARY)))[0])
        tokens = stream.permuted(np.tile(np.arange(VOCABULARY), (samples, 1)), axis=1)[:, :TOKENS]
        order = stream.permuted(np.tile(np.arange(VOCABULARY), (VOCABULARY, 1)), axis=1)
        first = order[tokens[:, -1:], tokens].argmin(1)
        any_one = stream.integers(0, TOKENS, samples)
        sequences.append(tokens)
        labels.append(tokens[np.arange(samples), first if kind == ORDERED else any_one])
    return tuple(torch.from_numpy(np.array(x)) for x in (E, sequences, labels))  # type: ignore[return-value]


def run(params: Params, trials: range, device: str) -> Columns:
    kind, steps = params["labels"], params["horizon"]
    E, sequences, labels = draw(kind, trials)
    data = next_token_data(E, sequences, labels).to(device)
    ordered = kind == ORDERED
    # Without ties normalised steps get far; with them the finite part needs plain steps.
    method: dict[str, Any] = {"rule": Steepest(normalize=ordered), "lr": Growing() if ordered else 10.0}
    at = [k for k in RECORDED if k < steps]
    result = train(data, **method, steps=steps, loss="log", record=("W", "norm"), at=at)
    W = result.records["W"].cpu()
    problems = [graph_svm(E[b], sequences[b], labels[b]) for b in range(len(trials))]
    solutions = [solve(problem, "l2") for problem in problems]
    W_svm = torch.cat([solution.W for solution in solutions])
    W_fin = torch.stack([graph_finite_part(E[b], sequences[b], labels[b]) for b in range(len(trials))])
    inside = torch.cat([finite_component(problem, W[:, b : b + 1]) for b, problem in enumerate(problems)], 1)
    ties = torch.tensor([bool((problem.equality & problem.present).any()) for problem in problems])
    free = torch.tensor([bool((~problem.equality & problem.present).any()) for problem in problems])
    size = torch.linalg.matrix_norm(W_fin)
    off = torch.linalg.matrix_norm(inside - W_fin) / torch.where(size > 0, size, 1.0)
    turned = torch.stack([misalignment(w, W_svm) for w in W - inside])
    added = (W - inside)[-1] - (W - inside)[-3]
    return {
        "steps": steps_of(result.steps, trials),
        "solved": array(torch.cat([solution.solved for solution in solutions])),
        "tied": array(ties),
        "growing": array(free),
        "finite_error": curves(off),
        "direction_error": curves(turned),
        "added_error": array(misalignment(added, W_svm)),
        "norm": curves(result.records["norm"]),
    }


def _good(cell: Rows) -> np.ndarray:
    """Trials whose SVM is solved and asks for something."""
    return cell["solved"].astype(bool) & cell["growing"].astype(bool)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.6))
    for k, kind in enumerate(rows.values("labels")):
        cell = rows.where(labels=kind)
        good, label = _good(cell), f"labels {kind}"
        band(axes[0][0], cell["steps"][0], cell["direction_error"][good], SERIES[k], label, spread="quantiles")
        tied = cell["tied"].astype(bool)
        if tied.any():
            band(axes[0][1], cell["steps"][0], cell["finite_error"][tied], SERIES[k], label, spread="quantiles")
    axes[0][0].set(xscale="log", yscale="log", xlabel="step", ylabel="1 − correlation", title="growing part, Graph-SVM")
    axes[0][1].set(xscale="log", yscale="log", xlabel="step", ylabel="relative error", title="finite part")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    cell = rows.where(labels=ORDERED)
    good = _good(cell)
    words = "ordered labels: median 1 − correlation of W with the Graph-SVM at the end"
    found = [at_most(words, float(np.median(cell["direction_error"][good, -1])), 0.01, "goes to the Graph-SVM")]
    cell = rows.where(labels=FREE)
    good, tied = _good(cell), cell["tied"].astype(bool)
    words = "free labels: share of trials with cycles"
    found.append(at_least(words, float(tied.mean()), 0.9, "tokens of one component stay tied"))
    words = "free labels: median relative error of the finite part at the end"
    found.append(at_most(words, float(np.median(cell["finite_error"][tied, -1])), 0.05, "W_fin"))
    if good.any():
        words = "free labels: median 1 − correlation of what the last steps added with the Graph-SVM"
        found.append(at_most(words, float(np.median(cell["added_error"][good])), 0.05, "grows along the Graph-SVM"))
    return found


EXPERIMENT = Experiment(
    id="ntp-graph",
    title="Self-attention predicts next tokens by a graph",
    statement="One layer of self-attention with tied embeddings learns to predict next tokens by log loss: for every "
    "last token the labels make a graph. W grows along the Graph-SVM, which puts a token above those that it beats; "
    "tokens that beat each other in a cycle stay tied, at the finite part W_fin. Without cycles W goes to the SVM "
    "alone. Proved in the paper on the mechanics of next-token prediction; measured here.",
    grid={"labels": [ORDERED, FREE], "horizon": [30_000]},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    quick_grid={"horizon": [3000]},
    cost=lambda params: params["horizon"] * 3e-5,
    remark=f"{SAMPLES} sequences of {TOKENS} distinct tokens out of {VOCABULARY}, with random orthonormal embeddings.",
)
