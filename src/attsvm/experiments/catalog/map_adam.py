"""Where Adam maximises the ℓ∞ margin and where it does not: memory, step size, ε and horizon."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData, sphere
from attsvm.diagnostics import forgetting_time
from attsvm.dynamics import Adam, Decaying, Lion, Rule, Trajectory, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, margin_share, share_columns
from attsvm.experiments._draw import SERIES, Figure, band, finish, new_figure
from attsvm.geometry import Mahalanobis


class Setting(NamedTuple):
    rule: Rule
    eta: float | Decaying
    steps: int


def _adam(beta2: float, eta: float, steps: int = 10**5, beta1: float = 0.9, eps: float = 0.0) -> tuple[str, Setting]:
    name = f"Adam ({beta1:g}, {beta2:g}), η = {eta:g}" + (f", ε = {eps:g}" if eps else "")
    return name, Setting(Adam(beta1, beta2, eps), eta, steps)


MEMORY = dict(
    [
        _adam(0.95, 0.02, 10**6),
        _adam(0.95, 0.2),
        _adam(0.99, 0.002),
        _adam(0.99, 0.02),
        _adam(0.99, 0.2),
        _adam(0.999, 0.002, 10**6),
        _adam(0.999, 0.02, 10**6),
        _adam(0.999, 0.2),
    ]
)
"""Adam without ε: memory against step size."""
FIRST = dict([_adam(0.99, 0.02, beta1=0.0), _adam(0.99, 0.02, beta1=0.99)])
FLOORED = dict(
    [
        _adam(0.95, 0.02, eps=1e-2),
        _adam(0.95, 0.02, eps=1e-4),
        _adam(0.95, 0.02, eps=1e-8),
    ]
)
"""Adam with ε, at a memory that without ε forgets in time."""
SHRINKING = {"Adam (0.9, 0.999), η = 0.02/√k": Setting(Adam(), Decaying(0.02, 0.5), 10**5)}
"""The steps of the proofs for linear models: in the end they are short enough for any memory."""
LION = {f"Lion (0.9, 0.99), η = {eta:g}": Setting(Lion(), eta, 10**5) for eta in (0.002, 0.02)}
SETTINGS: dict[str, Setting] = MEMORY | FIRST | FLOORED | SHRINKING | LION
RECORDED = [round(10 ** (j / 4)) for j in range(10, 25)]
"""300, 600, 1,000, … 10⁶ steps."""
SETTLED = 60.0
"""Up to this length of the path, η times the step, tokens are still being selected."""
YOUNG, OLD = 0.1, 30.0
"""Below and above these many forgetting times Adam has its old preconditioner, or the ℓ∞ margin."""


def run(params: Params, trials: range, device: str) -> Columns:
    rule, eta, steps = SETTINGS[params["setting"]]
    steps = min(steps, params["horizon"])
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    at = [k for k in RECORDED if k <= steps]
    result = train(data, rule=rule, lr=eta, steps=steps, record=("W",), at=at)
    columns = share_columns(result, ("linf", "l2"))
    if isinstance(rule, Adam):
        columns["efficiency_memory"] = array(_preconditioned(data, result))
    return columns


def _preconditioned(data: TokenData, result: Trajectory) -> Tensor:
    """The share of the margin in the norm √(Σ √v W²), in which Adam descends while v stands still."""
    shares = []
    for b in range(len(result)):
        root = result.state.blocks["W"]["V"][b].sqrt()
        root = root / root.max()
        geometry = Mahalanobis(root.clamp(min=1e-9))
        shares.append(margin_share(data[b], result.tokens[b : b + 1], result.W[b : b + 1], geometry))
    return torch.cat(shares)


def _medians(rows: Rows, setting: str, column: str) -> np.ndarray:
    return np.nanmedian(rows.where(setting=setting)[column], axis=0)


def _ages(rows: Rows, setting: str) -> np.ndarray:
    """The recorded steps over the forgetting time, median over trials."""
    rule, eta, _ = SETTINGS[setting]
    assert isinstance(rule, Adam)
    assert isinstance(eta, float)
    norms = torch.from_numpy(rows.where(setting=setting)["norm_linf"])
    time = forgetting_time(rule.beta2, eta, norms).nanmedian().item()
    return rows.where(setting=setting)["steps"][0] / time


def _settled(rows: Rows, setting: str) -> np.ndarray:
    """At which recorded steps the tokens are selected."""
    eta = SETTINGS[setting].eta
    assert isinstance(eta, float)
    return eta * rows.where(setting=setting)["steps"][0] >= SETTLED


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 3, (12.5, 3.8))
    steps, collapse, floored = axes[0]
    shown = [name for name in MEMORY if name in rows.values("setting")]
    for k, name in enumerate(shown):
        look = SERIES[k % len(SERIES)]
        marked = k >= len(SERIES)
        band(
            steps, rows.where(setting=name)["steps"][0], rows.where(setting=name)["efficiency_linf"], look, name,
            spread="quantiles", markers=marked,
        )  # fmt: skip
        late = _settled(rows, name)
        collapse.plot(
            _ages(rows, name)[late], _medians(rows, name, "efficiency_linf")[late], color=look.colour, ls=look.line,
            lw=1.4, marker=look.marker if marked else None, ms=4,
        )  # fmt: skip
    for k, name in enumerate(name for name in FLOORED if name in rows.values("setting")):
        look, at = SERIES[k], rows.where(setting=name)["steps"][0]
        band(floored, at, rows.where(setting=name)["efficiency_linf"], look, name.split(", ")[-1], spread="quantiles")
        floored.plot(at, _medians(rows, name, "efficiency_l2"), color=look.colour, lw=1, marker="o", ms=3)
    steps.set(xscale="log", ylim=(0, 1.02), xlabel="step", ylabel="share of the ℓ∞ margin", title="Adam, ε = 0")
    collapse.set(
        xscale="log",
        ylim=(0, 1.02),
        xlabel="step over forgetting time",
        title="the same once settled, by forgetting time",
    )
    floored.set(xscale="log", ylim=(0, 1.02), xlabel="step", title="ε > 0: ℓ2 (dots) ends above ℓ∞ (bands)")
    floored.legend(frameon=False, fontsize=8, loc="lower right")
    return finish(figure, legend="outside")


def checks(rows: Rows) -> list[Check]:
    found = []
    here = rows.values("setting")
    young, old, gaps = [], [], []
    grid = np.logspace(-2, 2, 41)
    curves_at = []
    for name in (name for name in MEMORY if name in here):
        age, share = _ages(rows, name), _medians(rows, name, "efficiency_linf")
        settled = _settled(rows, name)
        if not settled.any():
            continue
        young += share[settled & (age < YOUNG)].tolist()
        old += share[settled & (age > OLD)].tolist()
        inside = np.interp(np.log(grid), np.log(age[settled]), share[settled], left=np.nan, right=np.nan)
        curves_at.append(inside)
    together = np.array(curves_at)
    shared = np.isfinite(together).sum(0) >= 2 if curves_at else np.zeros(0, dtype=bool)
    if shared.any():
        gaps = (np.nanmax(together[:, shared], 0) - np.nanmin(together[:, shared], 0)).tolist()
    if young:
        words = f"Adam, ε = 0, before {YOUNG} forgetting times: largest median share of the ℓ∞ margin"
        found.append(at_most(words, max(young), 0.6, "not ℓ∞ while v remembers the start"))
    if old:
        words = f"Adam, ε = 0, after {OLD:.0f} forgetting times: least median share of the ℓ∞ margin"
        found.append(at_least(words, min(old), 0.9, "ℓ∞ once v has forgotten the start"))
    if gaps:
        words = "Adam, ε = 0: median gap between settings of one age, of shares of the ℓ∞ margin"
        found.append(at_most(words, float(np.median(gaps)), 0.1, "the forgetting time explains β2, η and the horizon"))
    frozen = [name for name in MEMORY if name in here and _ages(rows, name)[-1] < YOUNG]
    for name in frozen:
        memory, linf = _medians(rows, name, "efficiency_memory"), _medians(rows, name, "efficiency_linf")[-1]
        words = f"{name}: median share of the margin in the norm of its old v, less that of ℓ∞"
        found.append(at_least(words, float(memory - linf), 0.3, "gradient descent with a fixed preconditioner"))
    for name in (name for name in FLOORED if name in here):
        share = {norm: _medians(rows, name, f"efficiency_{norm}") for norm in ("linf", "l2")}
        words = f"{name}: median share of the ℓ2 margin at the end, less that of ℓ∞"
        found.append(at_least(words, float(share["l2"][-1] - share["linf"][-1]), 0.1, "gradient descent in the end"))
    for name in (name for name in SHRINKING if name in here):
        words = f"{name}: median share of the ℓ∞ margin at the end, less that at a constant step of 0.02"
        constant = "Adam (0.9, 0.999), η = 0.02"
        same = np.isin(rows.where(setting=constant)["steps"][0], rows.where(setting=name)["steps"][0])
        share = _medians(rows, name, "efficiency_linf")[-1] - _medians(rows, constant, "efficiency_linf")[same][-1]
        found.append(at_least(words, float(share), 0.2, "shrinking steps give any memory the time to forget"))
    small, large = (_medians(rows, name, "efficiency_linf")[-1] for name in LION)
    words = "Lion: share of the ℓ∞ margin that a step of 0.002 gains over one of 0.02"
    found.append(at_least(words, float(small - large), 0.3, "its momentum must forget faster than gradients fall"))
    return found


EXPERIMENT = Experiment(
    id="map-adam",
    title="Adam's margin is a matter of memory",
    statement="Adam without ε maximises the ℓ∞ margin of attention, but only after it has forgotten its first "
    "gradients: after about 1/((1 − β2)c²) steps, c = −½ log β2 · ‖W_mm‖_∞/η (at most 1). Before that it is gradient "
    "descent with a preconditioner from the first steps. With ε > 0 the ℓ∞ phase ends once gradients fall below ε, "
    "and it ends as plain gradient descent. Lion needs ηγ < −log β2 for the same reason. The limit without ε is proved "
    "for linear models; the forgetting time is ours.",
    grid={"setting": list(SETTINGS), "horizon": [10**6]},
    run=run,
    figure=figure,
    checks=checks,
    trials=32,
    quick=8,
    quick_grid={"horizon": [20_000]},
    cost=lambda params: min(SETTINGS[params["setting"]].steps, params["horizon"]) * 4e-6,
    remark="Random problems with n = 6, T = 8, d = 10; the SVMs are those of the tokens that each run selected. A "
    "step of Adam at c = 1 is a step of sign descent.",
)
