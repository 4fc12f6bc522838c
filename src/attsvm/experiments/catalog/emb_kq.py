"""The model with W_KQ: the same as the model with p, step by step and in its limit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics import misalignment
from attsvm.embeddings import Embeddings, Sequences, descend, initial_embeddings, single_important, slopes
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, curves, limit
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.objective import scaled_gradient

N, T, IMPORTANT, IRRELEVANT, D = 8, 4, 2, 5, 64
FIRST = 50.0
"""η₀ of the first step, which writes the importance of the tokens into their embeddings."""
ALONE, BOTH = "W_KQ trained, p fixed", "W_KQ and p trained"
STEPS, LR = 300, 0.1
"""Steps with all embeddings trained."""
FAR, STRIDE = 4000, 3e-3
"""Steps with fixed embeddings, normalised, of this share of ‖(p, W_KQ)‖: they follow the flow to large norms."""
AT = sorted({round(FAR ** (k / 30)) for k in range(31)})


class KeyQuery(NamedTuple):
    """f(X) = softmax(pᵀ W_KQ E_Xᵀ) E_X v: attention sees W_KQ and p through q = W_KQᵀ p alone."""

    E: Tensor
    W: Tensor
    p: Tensor
    v: Tensor

    @property
    def q(self) -> Tensor:
        return self.W.mT @ self.p


def _gradient(data: Sequences, at: KeyQuery) -> KeyQuery:
    """Of the mean logistic loss: with g = ∂L/∂q it is p gᵀ in W_KQ and W_KQ g in p."""
    found = slopes(data, at.E @ at.q, at.E @ at.v)
    g = found.A @ at.E
    E = torch.outer(found.A, at.q).addr_(found.U, at.v)
    return KeyQuery(E, torch.outer(at.p, g), at.W @ g, torch.zeros_like(at.v))


def _start(trial: int) -> tuple[Sequences, Embeddings, KeyQuery]:
    """Data, the model with p, and the one with W_KQ that has the same q = p and ‖p‖ = 1 in its own place."""
    data = single_important(N, T, IMPORTANT, IRRELEVANT, trial=trial, even=trial % 2 == 0).merged()
    plain = initial_embeddings(data.size, D, seed=1, trial=trial)
    stream = np.random.default_rng([5, trial])
    p, W = (torch.from_numpy(stream.standard_normal(shape)) for shape in ((D,), (D, D)))
    p, W = p / p.norm(), W / D**0.5
    return data, plain, KeyQuery(plain.E, W + torch.outer(p, plain.p - W.mT @ p), p, plain.v)


def _alone(trial: int) -> list[float]:
    """Steps on E and W_KQ against steps on E and p: difference of q and of E, and of W_KQ from its reconstruction."""
    data, plain, at = _start(trial)
    W0, q0, p = at.W, at.q, at.p
    worst = [0.0, 0.0, 0.0]
    for _ in range(STEPS):
        slope = _gradient(data, at)
        at = at._replace(E=at.E - LR * slope.E, W=at.W - LR * slope.W)
        plain, _ = descend(data, plain, lr=LR)
        rebuilt = W0 + torch.outer(p, plain.p - q0)
        pairs = ((at.q, plain.p), (at.E, plain.E), (at.W, rebuilt))
        worst = [max(old, ((a - b).norm() / b.norm()).item()) for old, (a, b) in zip(worst, pairs)]
    return worst


def _both(trials: range) -> Columns:
    """With embeddings fixed after the first step: 1 − corr of q, and of the p of the plain model, with the max-margin
    solution at the steps AT; whether q selects the important tokens alone; how far ppᵀ − WWᵀ moved."""
    starts = [_start(trial) for trial in trials]
    firsts = [descend(data, plain, lr=FIRST)[0] for data, plain, _ in starts]
    rows = [
        single_important(N, T, IMPORTANT, IRRELEVANT, trial=trial, even=trial % 2 == 0).ids.reshape(N, -1)
        for trial in trials
    ]
    X = torch.stack([first.E[row] for first, row in zip(firsts, rows)])
    Y, v = torch.stack([data.Y for data, _, _ in starts]), torch.stack([first.v for first in firsts])
    cls = TokenData.cls(X, Y, head=v[:, None])
    solution = limit(cls, torch.zeros(cls.B, N, 1, dtype=torch.long), "l2").W
    W, p = 0.1 * torch.stack([at.W for _, _, at in starts]), torch.stack([at.p for _, _, at in starts])[..., None]
    alone = torch.stack([first.p for first in firsts])[..., None]
    balance, found, other = p @ p.mT - W @ W.mT, [], []
    for k in range(1, FAR + 1):
        g = scaled_gradient(cls, W.mT @ p)[0]
        step_W, step_p = p @ g.mT, W @ g
        size = STRIDE * ((_squares(W) + _squares(p)) / (_squares(step_W) + _squares(step_p))).sqrt()
        W, p = W - size * step_W, p - size * step_p
        h = scaled_gradient(cls, alone)[0]
        alone = alone - STRIDE * (_squares(alone) / _squares(h)).sqrt() * h
        if k in AT:
            found.append(misalignment(solution, W.mT @ p))
            other.append(misalignment(solution, alone))
    moved = (_squares(p @ p.mT - W @ W.mT - balance).sqrt() / _squares(p))[:, 0, 0]
    return {
        "steps": np.tile(AT, (len(trials), 1)),
        "misalignment": curves(torch.stack(found)),
        "of p": curves(torch.stack(other)),
        "selects": array((cls.logits(W.mT @ p).argmax(-1) == 0).flatten(1).all(1)),
        "balance": array(moved),
    }


def _squares(x: Tensor) -> Tensor:
    """(B, 1, 1)."""
    return x.square().sum((1, 2), keepdim=True)


def run(params: Params, trials: range, device: str) -> Columns:
    if params["case"] == ALONE:
        worst = np.array([_alone(trial) for trial in trials])
        return {"q": worst[:, 0], "E": worst[:, 1], "W": worst[:, 2]}
    return _both(trials)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 1, (6.0, 3.6))
    cell, ax = rows.where(case=BOTH), axes[0][0]
    for look, column, label in zip(SERIES, ("misalignment", "of p"), ("q = W_KQᵀ p, both trained", "the model with p")):
        band(ax, cell["steps"][0], cell[column], look, label, spread="quantiles")
    ax.set(xscale="log", yscale="log", xlabel="iteration", ylabel="1 − correlation with the max-margin solution")
    ax.set(title=f"median of {len(cell)} trials, band from 10% to 90%")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    alone, both = rows.where(case=ALONE), rows.where(case=BOTH)
    same = "pᵀW_KQ plays the same role as p"
    rebuild = "W_KQ can be reconstructed from p in each gradient update"
    return [
        at_most(f"p fixed: largest relative difference of q, {STEPS} steps", float(alone["q"].max()), 1e-10, same),
        at_most("p fixed: largest relative difference of the embeddings", float(alone["E"].max()), 1e-10, same),
        at_most(
            "p fixed: largest relative difference of W_KQ from W_KQ(0) + p(q − q(0))ᵀ",
            float(alone["W"].max()),
            1e-10,
            rebuild,
        ),
        at_least(
            "both trained: share that selects the important tokens alone", float(both["selects"].mean()), 1.0, same
        ),
        at_most(
            "both trained: largest 1 − corr of q with the max-margin solution",
            float(both["misalignment"][:, -1].max()),
            1e-3,
            same,
            "½(‖p‖² + ‖W‖²) under Wᵀp = q is least at ‖q‖, so that the limit is the same ℓ2 solution",
        ),
        at_most(
            "both trained: largest change of ppᵀ − WWᵀ over ‖p‖²",
            float(both["balance"].max()),
            0.02,
            note="the flow keeps it; what is left comes from steps of finite length",
            extra=True,
        ),
    ]


EXPERIMENT = Experiment(
    id="emb-kq",
    title="W_KQ in place of p",
    paper="trained-embeddings, Section 2",
    statement="“Since pᵀW_KQ plays the same role as p and one can easily reconstruct W_KQ from p in each gradient "
    "update”, the model without W_KQ is studied.",
    grid={"case": [ALONE, BOTH]},
    run=run,
    figure=figure,
    checks=checks,
    trials=20,
    quick=3,
    cost=lambda params: 0.4,
    remark="Data of Assumption 4: eight sequences of four tokens, d = 64. With p fixed, ‖p‖ = 1, and W_KQ trained "
    "in its place (E too) the equality is exact. With both trained it is one of the limit: E is fixed after a first "
    "step of η₀ = 50, as in Theorem 5.",
)
