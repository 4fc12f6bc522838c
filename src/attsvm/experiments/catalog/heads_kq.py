"""Factors K, Q of larger models: several heads, classes, next tokens, two layers go to nuclear margins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData, class_data, next_token_data, of_heads, several_heads, sphere, trial_streams
from attsvm.diagnostics import margin_ratio, numerical_rank
from attsvm.dynamics import Gaussian, Trajectory, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least
from attsvm.experiments._arrays import array, median
from attsvm.experiments._checks import margin_checks
from attsvm.experiments._draw import Figure, margin_map, new_figure
from attsvm.experiments._two_layers import TwoLayers, saturated
from attsvm.experiments.catalog.ntp_graph import ORDERED, draw
from attsvm.objective import Added
from attsvm.svm import att_svm, solve

HEADS, CLASSES, NEXT, LAYERS, MLP = "two heads", "classes", "next tokens", "two layers", "two layers, MLP"
NORMS = {"nuclear": "nuclear", "l2": "ℓ2", "spectral": "spectral"}
STEPS, RIDGE, ETA = 4000, 1e-60, 0.1
"""The penalty r(‖K‖² + ‖Q‖²) stops the growth where the loss is about r; without it margins converge like 1/log(step).
Steps shrink in the last half, or they would keep W from settling."""

Part = tuple[TokenData, Tensor, Tensor]
"""Data, tokens and W of one attention: a head, a layer."""


def _rate(k: int) -> float:
    return ETA * min(1.0, 2 - 2 * k / (STEPS + 1))


def _train(data: TokenData, **options: Any) -> Trajectory:
    common: dict[str, Any] = {"steps": STEPS, "lr": _rate, "ridge": RIDGE, "init": Gaussian(0.1), "record": ("norm",)}
    return train(data, "l2", "KQ", at=[STEPS], compile=False, **common, **options)


def _two_heads(trials: range, device: str) -> list[Part]:
    single = sphere(4, 6, 8, trials=trials, seed=0)
    drawn = np.array([stream.standard_normal((2, 8)) for stream in trial_streams(1, list(trials))])
    v = torch.from_numpy(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))
    result = _train(several_heads(single, v).to(device), loss=Added(), heads=2)
    W = of_heads(result.W, 2)
    return [(single.to(device), result.tokens[..., h : h + 1], W[:, h]) for h in range(2)]


def _classes(trials: range, device: str) -> list[Part]:
    streams = trial_streams(0, list(trials))
    H = torch.from_numpy(np.array([stream.standard_normal((12, 10)) for stream in streams]))
    labels = torch.from_numpy(np.array([stream.integers(0, 6, 12) for stream in streams]))
    data = class_data(H / torch.linalg.vector_norm(H, dim=-1, keepdim=True), labels, 6).to(device)
    result = _train(data, loss="log")
    return [(data, result.tokens, result.W)]


def _next_tokens(trials: range, device: str) -> list[Part]:
    """Every last token has an order of its own, and the first token of it in the sequence comes next."""
    data = next_token_data(*draw(ORDERED, trials, samples=12)).to(device)
    result = _train(data, loss="log")
    return [(data, result.tokens, result.W)]


def _two_layers(trials: range, device: str, mlp: bool) -> list[Part]:
    data = sphere(4, 5, 10, trials=trials, seed=0).to(device)
    d = data.d
    shapes = {"K1": (d, d), "Q1": (d, d), "K2": (d, d), "Q2": (d, d)}
    F = {name: block.to(data.X) for name, block in Gaussian(0.1).draw(data.trials, shapes).items()}
    model = TwoLayers.of(data, mlp)
    for k in range(1, STEPS + 1):
        products = [F[f"K{i}"] @ F[f"Q{i}"].mT for i in (1, 2)]
        new = {}
        for i, (G, shift) in enumerate(model.gradients(*products), start=1):
            # The penalty keeps gradients far above what float64 holds.
            G = G * torch.exp(shift)[:, None, None]
            K, Q = F[f"K{i}"], F[f"Q{i}"]
            for name, g in ((f"K{i}", G @ Q + 2 * RIDGE * K), (f"Q{i}", G.mT @ K + 2 * RIDGE * Q)):
                new[name] = F[name] - _rate(k) * g / torch.linalg.matrix_norm(g, keepdim=True)
        F = new
    W1, W2 = (F[f"K{i}"] @ F[f"Q{i}"].mT for i in (1, 2))
    (read, seen), (above, chosen) = model.attentions(W1, W2)
    return [(read, seen, W1), (above, chosen, W2)]


MODELS = {
    HEADS: _two_heads,
    CLASSES: _classes,
    NEXT: _next_tokens,
    LAYERS: lambda trials, device: _two_layers(trials, device, mlp=False),
    MLP: lambda trials, device: _two_layers(trials, device, mlp=True),
}
PARTS = {
    HEADS: ["head 1", "head 2"],
    CLASSES: ["classes"],
    NEXT: ["next tokens"],
    LAYERS: ["layer 1", "layer 2"],
    MLP: ["layer 1, MLP above", "layer 2, MLP below"],
}
"""The attentions of every model."""


def run(params: Params, trials: range, device: str) -> Columns:
    parts = MODELS[params["model"]](trials, device)
    columns: dict[str, list[Tensor]] = {}
    for data, tokens, W in parts:
        for norm in NORMS:
            solution = solve(att_svm(data, tokens), norm)
            share = margin_ratio(data, tokens, W, solution.geometry, solution)
            columns.setdefault(f"efficiency_{norm}", []).append(torch.where(solution.solved, share, torch.nan))
            if norm == "nuclear":
                columns.setdefault("rank_svm", []).append(numerical_rank(torch.nan_to_num(solution.W), 1e-3))
        columns.setdefault("rank", []).append(numerical_rank(W, 1e-3))
        columns.setdefault("saturated", []).append(saturated(data, W))
    return {name: array(torch.stack(values, 1)) for name, values in columns.items()}


def _parts(rows: Rows) -> dict[str, dict[str, np.ndarray]]:
    """The columns of every attention, by its name, of trials in which it saturates; the others have no direction."""
    found = {}
    for model in rows.values("model"):
        cell = rows.where(model=model)
        names = [f"efficiency_{norm}" for norm in NORMS] + ["rank", "rank_svm"]
        for j, part in enumerate(PARTS[model]):
            keep = cell["saturated"][:, j].astype(bool)
            found[part] = {name: cell[name][keep, j] for name in names} | {"saturated": keep}
    return found


def figure(rows: Rows) -> Figure:
    parts = _parts(rows)
    table = np.array([[median(part[f"efficiency_{norm}"]) for norm in NORMS] for part in parts.values()])
    figure, axes = new_figure(1, 1, (6, 0.45 * len(parts) + 1.4))
    labels = [f"{name}, rank {median(p['rank']):g} (SVM {median(p['rank_svm']):g})" for name, p in parts.items()]
    title = "K, Q by gradient descent: share of the largest margin"
    margin_map(axes[0][0], table, NORMS, ["nuclear"] * len(parts), labels, title)
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for name, part in _parts(rows).items():
        shares = {words: median(part[f"efficiency_{norm}"]) for norm, words in NORMS.items()}
        found += margin_checks(name, shares, NORMS["nuclear"], 0.95)
        if name == PARTS[MLP][0]:
            words = f"{name}: share of trials in which it does not saturate"
            mixed = "above an MLP a mean of tokens may serve better than any one of them"
            found.append(at_least(words, float(1 - part["saturated"].mean()), 0.2, mixed))
    return found


EXPERIMENT = Experiment(
    id="heads-kq",
    title="Factors of larger models go to nuclear margins",
    statement="Trained as W = K Qᵀ by gradient descent, every head of several heads, classes under cross-entropy, next "
    "tokens by self-attention and both of two layers go to the nuclear margin of their own tokens. With a ReLU MLP "
    "between the layers the second still does; the first does where it saturates, but in about half of the trials it "
    "keeps mixing tokens, since a mean of them serves better than any one. One layer is proved for the regularization "
    "path; the rest is measured here.",
    grid={"model": list(MODELS)},
    run=run,
    figure=figure,
    checks=checks,
    trials=64,
    quick=8,
    cost=lambda params: 0.3,
    remark=f"{STEPS} normalised steps with a penalty of 1e-60 (‖K‖² + ‖Q‖²). Ranks count singular values "
    "above a thousandth of the largest.",
)
