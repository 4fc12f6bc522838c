"""Lemmas as property checks: on random data, how much of what a lemma allows is used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from attsvm.data import TokenData
from attsvm.dynamics import Gaussian
from attsvm.experiments._checks import Check, at_most
from attsvm.experiments._draw import SERIES, Figure, finish, new_figure
from attsvm.experiments._experiment import Rows
from attsvm.geometry import Lp

ROUNDING = 1e-9
"""By how much a ratio may exceed 1."""


def at_unit_size(data: TokenData, W: Tensor, geometry: Lp) -> tuple[TokenData, Tensor]:
    """The same logits from W with ‖θ‖_* = 1 and longer queries, so that one step size suits every trial's W."""
    size = geometry.dual_norm(geometry.mirror(W)) ** (1 / (geometry.p - 1))
    return replace(data, Z=data.Z * size[:, None, None, None]), W / size[:, None, None]


def draw(seed: int, data: TokenData) -> Tensor:
    """Standard normal matrices (B, d, d), each trial by its own stream."""
    return Gaussian(1.0, seed=seed).draw(data.trials, {"W": (data.d, data.d)})["W"].to(data.X)


def inner(A: Tensor, B: Tensor) -> Tensor:
    """⟨A, B⟩ of every trial, (B,)."""
    return (A * B).sum((1, 2))


def ratio_figure(rows: Rows, by: str, title: str) -> Figure:
    """Left side over right side of every lemma, at most 1: from 5% to 95% of the trials, and the largest."""
    names = [name for name in dict.fromkeys(n for _, cell in rows for n in cell) if name.startswith("ratio: ")]
    figure, axes = new_figure(1, 1, (7.5, 0.45 * len(names) + 1.4))
    ax = axes[0][0]
    values = rows.values(by)
    for k, (look, value) in enumerate(zip(SERIES, values)):
        cell = rows.where(**{by: value})
        for row, name in enumerate(names):
            low, high, most = np.nanquantile(cell[name], (0.05, 0.95, 1.0))
            y = row + 0.7 * (k - (len(values) - 1) / 2) / max(len(values), 2)
            ax.plot([low, high], [y, y], color=look.colour, lw=2)
            ax.plot(most, y, look.marker, color=look.colour, ms=4, label=f"{by} = {value}" if row == 0 else None)
    ax.axvline(1, color="black", lw=0.8)
    ax.set(yticks=range(len(names)), yticklabels=[name.removeprefix("ratio: ") for name in names])
    ax.set(xlabel="left side over right side (lines 5% to 95% of the trials, markers the largest)", title=title)
    ax.invert_yaxis()
    return finish(figure, legend="outside" if len(values) > 1 else False)


def ratio_checks(rows: Rows, by: str, paper: dict[str, str]) -> list[Check]:
    """Every lemma's largest ratio over all cells is at most 1."""
    found = []
    for name, says in paper.items():
        values = np.concatenate([cell[f"ratio: {name}"] for _, cell in rows if f"ratio: {name}" in cell])
        most = float(np.nanmax(values))
        note = f"{np.isfinite(values).sum()} cases, by {by}"
        found.append(at_most(f"{name}: largest left side over right side", most, 1 + ROUNDING, says, note))
    return found
