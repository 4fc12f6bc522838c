"""Weight decay: decoupled decay ends on the ball of the rule's norm, coupled decay at an ℓ2 point whatever the rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import sphere
from attsvm.dynamics import Adam, Decaying, Lion, Muon, Steepest, train
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._arrays import array, margin_share
from attsvm.experiments._draw import Figure, heat_map, new_figure
from attsvm.geometry import Lp, Spectral, parse_geometry
from attsvm.objective import scaled_gradient

NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "spectral": "spectral"}


class Setting(NamedTuple):
    rule: Any
    norm: str
    coupled: bool = False


RULES = {
    "GD": Setting(Steepest(), "l2"),
    "sign": Setting(Steepest(Lp(math.inf)), "linf"),
    "AdamW (0.9, 0.99)": Setting(Adam(beta2=0.99), "linf"),
    "AdamW (0.9, 0.999)": Setting(Adam(), "linf"),
    "Lion": Setting(Lion(), "linf"),
    "spectral": Setting(Steepest(Spectral()), "spectral"),
    "Muon": Setting(Muon(), "spectral"),
    "Adam + L2": Setting(Adam(), "l2", coupled=True),
    "sign + L2": Setting(Steepest(Lp(math.inf)), "l2", coupled=True),
}
"""Rule, and the norm of the bounded problem that it should solve."""
STEPS = 20_000
UNIT_MARGIN = 2.3
"""1/‖W_mm‖_∞ of these problems, as map-adam finds it."""
DECAYS = [0.3, 0.1, 0.03]
RIDGE = 0.01
"""Coupled decay is a penalty r‖W‖_F² with r this times λ."""


def run(params: Params, trials: range, device: str) -> Columns:
    rule, norm, coupled = RULES[params["rule"]]
    steps, decay = params["steps"], params["decay"]
    data = sphere(6, 8, 10, trials=trials, seed=0).to(device)
    options: dict[str, Any] = {"steps": steps, "record": ("norm",), "at": [steps], "compile": steps >= STEPS}
    if coupled:
        result = train(data, rule=rule, lr=Decaying(0.1, 0.75), ridge=RIDGE * decay, **options)
    else:
        # W is a mean of unit steps times 1/λ, in which the first ones, of a young memory, fade.
        result = train(data, rule=replace(rule, decay=decay), lr=Decaying(1 / decay, 0.75), **options)
    W = result.W
    G, _ = scaled_gradient(data, W)
    columns: dict[str, np.ndarray] = {"share_of_radius": array(parse_geometry(norm).norm(W) * decay)}
    for name in NORMS:
        geometry = parse_geometry(name)
        # ⟨−∇L, W⟩ = ‖∇L‖_* ‖W‖ says that W minimises the linear part of L on its ball.
        aligned = -(G * W).sum((1, 2)) / (geometry.dual_norm(G) * geometry.norm(W))
        columns[f"residual_{name}"] = array(1 - aligned)
    columns["efficiency"] = array(margin_share(data, result.tokens, W, norm))
    return columns


def _forgets(rows: Rows, rule: str, decay: float) -> bool:
    """Does the second moment forget the first gradients in half of the steps?

    At the radius 1/λ gradients are smaller by e^(−margin), and their squares reach the memory after
    2·margin/(1 − β2) steps.
    """
    setting = RULES[rule]
    if setting.coupled or not isinstance(setting.rule, Adam):
        return True
    return 2 * UNIT_MARGIN / decay / (1 - setting.rule.beta2) <= rows.values("steps")[0] / 2


def _median(rows: Rows, rule: str, decay: float, column: str) -> float:
    return float(np.nanmedian(rows.where(rule=rule, decay=decay)[column]))


def figure(rows: Rows) -> Figure:
    rules, decays = rows.values("rule"), rows.values("decay")
    figure, axes = new_figure(1, len(decays), (3.6 * len(decays) + 1.5, 0.4 * len(rules) + 1.4))
    for ax, decay in zip(axes[0], decays):
        table = np.array([[_median(rows, rule, decay, f"residual_{norm}") for norm in NORMS] for rule in rules])
        words = [[f"{residual:.1g}" for residual in row] for row in table]
        bold = [[RULES[rule].norm == norm for norm in NORMS] for rule in rules]
        shown = np.log10(np.maximum(table, 1e-6))
        names, dark = rules if decay == decays[0] else [], ~(table < 3e-3)
        heat_map(ax, shown, words, dark, bold, list(NORMS.values()), names, cmap="viridis_r", vmin=-5, vmax=0)
        ax.set(xlabel="norm of the ball", title=f"decay {decay:g}")
    figure.colorbar(axes[0][0].images[0], ax=axes[0], label="log₁₀ of the KKT residual")
    return figure


def checks(rows: Rows) -> list[Check]:
    found = []
    for rule in rows.values("rule"):
        norm, decays = RULES[rule].norm, [decay for decay in rows.values("decay") if _forgets(rows, rule, decay)]
        if not decays:
            words = f"{rule}: median KKT residual in {NORMS[norm]} at the least decay"
            residual = _median(rows, rule, min(rows.values("decay")), f"residual_{norm}")
            found.append(at_least(words, residual, 0.1, "not there before it forgets its first gradients"))
            continue
        worst = max(_median(rows, rule, decay, f"residual_{norm}") for decay in decays)
        words = f"{rule}: largest median KKT residual in {NORMS[norm]}"
        found.append(at_most(words, worst, 0.02, "a KKT point of the bounded problem"))
        others = [
            _median(rows, rule, decay, f"residual_{other}") for decay in decays for other in NORMS if other != norm
        ]
        words = f"{rule}: least median KKT residual in another norm"
        found.append(at_least(words, min(others), 0.1, "of no other ball"))
        if not RULES[rule].coupled:
            shares = [_median(rows, rule, decay, "share_of_radius") for decay in decays]
            words = f"{rule}: least median of ‖W‖ over 1/λ"
            found.append(at_least(words, min(shares), 0.95, "W ends on the sphere ‖W‖ = 1/λ"))
    return found


EXPERIMENT = Experiment(
    id="map-decay",
    title="Weight decay bounds the norm that the optimizer descends in",
    statement="With decoupled decay λ a rule ends at a KKT point of min L subject to ‖W‖ ≤ 1/λ in its own norm: ℓ∞ for "
    "sign descent, AdamW and Lion, spectral for Muon. AdamW gets there once its second moment has forgotten the first "
    "gradients. Coupled decay (Adam + L2) ends at a stationary point of L + r‖W‖_F², an ℓ2 point, whatever the rule. "
    "Known for AdamW and Lion in general; measured for attention here.",
    grid={"rule": list(RULES), "decay": DECAYS, "steps": [STEPS]},
    run=run,
    figure=figure,
    checks=checks,
    trials=32,
    quick=8,
    quick_grid={"steps": [3000]},
    cost=lambda params: (1.2e-5 if RULES[params["rule"]].norm == "spectral" else 4e-6) * 5 * params["steps"] / 3,
    remark="Random problems with n = 6, T = 8, d = 10. The KKT residual is 1 − ⟨−∇L, W⟩/(‖∇L‖_* ‖W‖): it is 0 where W "
    "minimises the linear part of the loss on the ball through W.",
)
