"""Next-token prediction with several next tokens per context: the NTP-SVM and the finite part."""

from __future__ import annotations

import numpy as np
import torch

from attsvm.data import class_data, trial_streams
from attsvm.diagnostics import misalignment
from attsvm.dynamics import Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, steps_of
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.experiments._parts import finite_component
from attsvm.svm import ntp_finite_part, ntp_svm, solve

CONTEXTS, VOCABULARY = 5, 8
COUNTS = (3, 2, 1)
"""How often each of a context's three next tokens was seen."""
RECORDED = [round(10 ** (j / 2)) for j in range(2, 10)]


def run(params: Params, trials: range, device: str) -> Columns:
    d, steps = params["d"], params["horizon"]
    streams = trial_streams(0, list(trials))
    H = torch.from_numpy(np.array([stream.standard_normal((CONTEXTS, d)) for stream in streams]))
    H = (H / torch.linalg.vector_norm(H, dim=-1, keepdim=True)).to(device)
    order = np.array([stream.permuted(np.tile(np.arange(VOCABULARY), (CONTEXTS, 1)), axis=1) for stream in streams])
    labels = torch.from_numpy(np.repeat(order[..., : len(COUNTS)], COUNTS, axis=-1)).to(device)  # (B, m, 6)
    share = torch.full(labels.shape, 1 / sum(COUNTS), dtype=H.dtype, device=device)
    p = torch.zeros(*labels.shape[:2], VOCABULARY, dtype=H.dtype, device=device).scatter_add(2, labels, share)
    data = class_data(H.repeat_interleave(sum(COUNTS), 1), labels.flatten(1), VOCABULARY)
    at = [k for k in RECORDED if k < steps]
    result = train(data, rule=Steepest(normalize=False), lr=5.0, steps=steps, loss="log", record=("W", "norm"), at=at)
    problem = ntp_svm(H, p > 0)
    growing, finite = solve(problem, "l2"), solve(ntp_finite_part(H, p), "l2")
    W = result.records["W"]
    inside = finite_component(problem, W)
    off = torch.linalg.matrix_norm(inside - finite.W) / finite.norm
    turned = torch.stack([misalignment(w, growing.W) for w in W - inside])
    # What the last factor of ten of the steps added.
    added = (W - inside)[-1] - (W - inside)[-3]
    return {
        "steps": steps_of(result.steps, trials),
        "feasible": array(growing.solved & finite.solved),
        "finite_error": curves(off),
        "direction_error": curves(turned),
        "added_error": array(misalignment(added, growing.W)),
        "norm": curves(result.records["norm"]),
        "slope": array(torch.linalg.matrix_norm(added) / growing.norm),
    }


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.6))
    for k, d in enumerate(rows.values("d")):
        cell = rows.where(d=d)
        band(axes[0][0], cell["steps"][0], cell["finite_error"], SERIES[k], f"d = {d}", spread="quantiles")
        band(axes[0][1], cell["steps"][0], cell["direction_error"], SERIES[k], f"d = {d}", spread="quantiles")
    axes[0][0].set(xscale="log", yscale="log", xlabel="step", ylabel="relative error", title="finite part")
    axes[0][1].set(xscale="log", yscale="log", xlabel="step", ylabel="1 − correlation", title="growing part, NTP-SVM")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    for d in rows.values("d"):
        cell = rows.where(d=d)
        good = cell["feasible"].astype(bool)
        words = f"d = {d}: median relative error of the finite part at the end"
        found.append(at_most(words, float(np.median(cell["finite_error"][good, -1])), 0.01, "log-odds of the data"))
        words = f"d = {d}: median 1 − correlation of the growing part with the NTP-SVM, start of the records over end"
        ratio = np.median(cell["direction_error"][good, 0]) / np.median(cell["direction_error"][good, -1])
        found.append(at_least(words, float(ratio), 3.0, "turns to the NTP-SVM"))
        words = f"d = {d}: median 1 − correlation of what the last steps added with the NTP-SVM"
        found.append(at_most(words, float(np.median(cell["added_error"][good])), 0.01, "grows along the NTP-SVM"))
    return found


EXPERIMENT = Experiment(
    id="ntp-svm",
    title="Next tokens: a finite part and the NTP-SVM",
    statement="Gradient descent on next-token prediction, where a context has several next tokens, makes W ≈ W_fin + R "
    "W_mm: on the differences of next tokens W converges to the log-odds of the data, and the rest grows along the "
    "NTP-SVM, which keeps the next tokens' logits equal and all others 1 below. Proved for linear models in the papers "
    "on next-token prediction; measured here.",
    grid={"d": [6, 10], "horizon": [30_000]},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    quick_grid={"horizon": [3000]},
    cost=lambda params: params["horizon"] * 3e-5,
    remark=f"{CONTEXTS} random contexts, {VOCABULARY} tokens; the three next tokens of a context were seen "
    f"{', '.join(map(str, COUNTS))} times.",
)
