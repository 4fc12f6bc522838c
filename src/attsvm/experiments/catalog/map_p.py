"""Which norm generalises: sparse, dense, low-rank, flat and orthogonal truths; and a choice from the data alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData, sphere, trial_streams
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array
from attsvm.experiments._draw import Figure, heat_map, new_figure
from attsvm.svm import att_svm, solve

NORMS = {"l1": "ℓ1", "l1.5": "ℓ1.5", "l2": "ℓ2", "linf": "ℓ∞", "nuclear": "nuclear", "spectral": "spectral"}
SUITED = {"sparse": "l1", "dense": "l2", "low rank": "nuclear", "flat": "linf", "orthogonal": "spectral"}
"""The norm whose unit ball has a truth of this kind at a corner, or none (dense)."""
HELD_OUT = ("three rows", "rank 2", "sparse and low rank")
"""Truths on which nothing was chosen."""
SAMPLES, TOKENS, D, TEST, FOLDS = 36, 5, 8, 400, 4


def _truth(kind: str, stream: Any) -> np.ndarray:
    """The W that decides which token a query selects."""
    G = stream.standard_normal((D, D))
    if kind == "sparse":
        return G * (stream.permutation(D * D).reshape(D, D) < 5)
    if kind == "low rank":
        return np.outer(G[0], G[1])
    if kind == "flat":
        return np.sign(G)
    if kind == "orthogonal":
        return np.linalg.qr(G)[0]
    if kind == "three rows":
        return G * (stream.permutation(D) < 3)[:, None]
    if kind == "rank 2":
        return np.outer(G[0], G[1]) + np.outer(G[2], G[3])
    if kind == "sparse and low rank":
        return 0.5 * np.outer(G[0], G[1]) + 2 * G * (stream.permutation(D * D).reshape(D, D) < 3)
    return G


def _wrong(data: TokenData, tokens: Tensor, W: Tensor) -> Tensor:
    """The share of queries whose token W does not select, (B,)."""
    return (data.logits(W).argmax(-1) != tokens).double().mean((1, 2))


def _wrong_pairs(data: TokenData, tokens: Tensor, W: Tensor) -> Tensor:
    """The share of other tokens that W does not put below the query's token, (B,): less noisy than `_wrong`."""
    a = data.logits(W)
    others = torch.arange(a.shape[-1], device=a.device) != tokens[..., None]
    return ((a >= a.gather(-1, tokens[..., None])) & others).double().sum((1, 2, 3)) / others.sum((1, 2, 3))


def run(params: Params, trials: range, device: str) -> Columns:
    numbers = list(trials)
    W_true = torch.from_numpy(np.array([_truth(params["truth"], stream) for stream in trial_streams(7, numbers)]))
    seen, test = (sphere(n, TOKENS, D, trials=trials, seed=seed).to(device) for n, seed in ((SAMPLES, 1), (TEST, 2)))
    W_true = W_true.to(device)
    tokens, tokens_test = (data.logits(W_true).argmax(-1) for data in (seen, test))
    columns: dict[str, np.ndarray] = {}
    for norm in NORMS:
        solution = solve(att_svm(seen, tokens), norm)
        columns[f"test_{norm}"] = array(_wrong(test, tokens_test, torch.nan_to_num(solution.W)))
        columns[f"margin_{norm}"] = array(1 / solution.norm)
        folds, pairs = [], []
        for fold in range(FOLDS):
            held = torch.arange(SAMPLES, device=device) % FOLDS == fold
            part = solve(att_svm(_some(seen, ~held), tokens[:, ~held]), norm)
            left, W = _some(seen, held), torch.nan_to_num(part.W)
            folds.append(_wrong(left, tokens[:, held], W))
            pairs.append(_wrong_pairs(left, tokens[:, held], W))
        columns[f"fold_{norm}"] = array(torch.stack(folds).mean(0))
        columns[f"pairs_{norm}"] = array(torch.stack(pairs).mean(0))
    return columns


def _some(data: TokenData, samples: Tensor) -> TokenData:
    X, Z, Y, mask = (x[:, samples] for x in (data.X, data.Z, data.Y, data.mask))
    return TokenData(X, Z, Y, mask, trials=data.trials)


def _errors(rows: Rows, truth: str) -> np.ndarray:
    """Test errors (trials, norms)."""
    return np.stack([rows.where(truth=truth)[f"test_{norm}"] for norm in NORMS], 1)


def _chosen(rows: Rows, truth: str, by: str = "pairs") -> np.ndarray:
    """The test error (trials,) of the norm with the least error in cross-validation, of pairs or of queries ("fold");
    ties go to the mean over them."""
    cell = rows.where(truth=truth)
    folds = np.stack([cell[f"{by}_{norm}"] for norm in NORMS], 1)
    best = folds <= folds.min(1, keepdims=True) + 1e-12
    return (_errors(rows, truth) * best).sum(1) / best.sum(1)


def figure(rows: Rows) -> Figure:
    truths = rows.values("truth")
    table = np.array([[*_errors(rows, truth).mean(0), _chosen(rows, truth).mean()] for truth in truths])
    figure, axes = new_figure(1, 1, (8, 0.42 * len(truths) + 1.6))
    ax = axes[0][0]
    words = [[f"{100 * error:.1f}" for error in row] for row in table]
    bold = [[SUITED.get(truth) == norm for norm in (*NORMS, "chosen")] for truth in truths]
    dark = ~(table < 0.5 * (table.max() + table.min()))
    labels = [f"{truth} (held out)" if truth in HELD_OUT else truth for truth in truths]
    picture = heat_map(ax, 100 * table, words, dark, bold, [*NORMS.values(), "by folds"], labels, cmap="viridis_r")
    ax.set(xlabel="norm of the margin", title="% of test queries that select a wrong token")
    figure.colorbar(picture, ax=ax, label="test error in %")
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    norms = list(NORMS)
    for truth in (truth for truth in rows.values("truth") if truth in SUITED):
        errors = _errors(rows, truth).mean(0)
        suited = errors[norms.index(SUITED[truth])]
        words = f"{truth}: test error of the {NORMS[SUITED[truth]]} margin, less the least of the other norms"
        others = min(error for norm, error in zip(norms, errors) if norm != SUITED[truth])
        found.append(at_most(words, float(suited - others), 0.01, "the norm that suits the truth is best, or nearly"))
    everywhere = np.array([_errors(rows, truth).mean(0) for truth in rows.values("truth")])
    spread = float((everywhere[:, norms.index("l2")] - everywhere.min(1)).max())
    words = "largest loss of test error by always taking ℓ2"
    found.append(at_least(words, spread, 0.05, "the norm matters"))
    for kind, truths in (("known truths", SUITED), ("held-out truths", HELD_OUT)):
        here = [truth for truth in truths if truth in rows.values("truth")]
        loss = [float(_chosen(rows, truth).mean() - _errors(rows, truth).mean(0).min()) for truth in here]
        words = f"{kind}: largest mean test error of the norm chosen by folds, above the best norm's"
        found.append(at_most(words, max(loss), 0.04, "cross-validation of tokens finds it from the data"))
    known = rows.values("truth")
    mean = {by: float(np.mean([_chosen(rows, truth, by).mean() for truth in known])) for by in ("fold", "pairs")}
    words = "mean test error of the norm chosen by whole queries, less that by pairs of tokens"
    found.append(at_least(words, mean["fold"] - mean["pairs"], 0.0, "pairs are less noisy", extra=True))
    return found


EXPERIMENT = Experiment(
    id="map-p",
    title="Which margin generalises depends on the truth",
    statement="Queries select tokens by an unknown W. The max-margin solution in the norm that suits it errs least on "
    "new queries: ℓ1 (coordinate or mirror descent, p near 1) for a sparse W, nuclear (factors K, Q) for low rank, ℓ∞ "
    "(sign, Adam) for entries of equal size, spectral (Muon) for an orthogonal W, ℓ2 for a dense one. "
    "Cross-validation chooses the norm from the data alone, by the share of other tokens that held-out queries put "
    "above their own, also for truths that it was not tried on.",
    grid={"truth": [*SUITED, *HELD_OUT]},
    run=run,
    figure=figure,
    checks=checks,
    trials=48,
    quick=4,
    version=2,
    cost=lambda params: 1.0,
    remark=f"{SAMPLES} samples of {TOKENS} tokens in {D} dimensions to learn from, {TEST} to test; the limits come "
    "from the solver, since map-rules shows that the optimizers reach them. Bold: the norm that suits the truth.",
)
