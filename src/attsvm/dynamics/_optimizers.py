"""Rules other than mirror descent: steepest descent in any norm, momentum, Adam and its kin, Lion, Muon.

Moments are kept in the gradient's own logarithmic scale. A gradient e^s G joins a moment e^m M at the scale
m′ = max(s, m + log β): both factors are then at most 1, so nothing overflows, and nothing that matters underflows,
however far the softmax has saturated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from attsvm.dynamics._polar import largest_singular_value, polar
from attsvm.dynamics._rules import Rule, State, computed_once, dual_norm
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Frobenius, Geometry, Group, Lp, Nuclear, Spectral, parse_geometry
from attsvm.objective import Gradient, trial_first, trial_last


@dataclass(frozen=True)
class _OnWeights(Rule):
    """A rule whose state holds the weights: W ← (1 − η·decay) W − η·direction."""

    decay: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < math.inf:
            raise AttsvmError(f"decay must be at least 0, but got {self.decay}.")

    def start(self, W: Tensor) -> State:
        return {"W": W}

    def weights(self, state: State) -> Tensor:
        return state["W"]

    def moved(self, state: State, direction: Tensor, eta: Tensor) -> Tensor:
        W = state["W"] if self.decay == 0 else (1 - eta * self.decay) * state["W"]
        return W - computed_once(eta) * direction


@dataclass(frozen=True)
class Steepest(_OnWeights):
    """W ← W − η D, D of norm 1 with ⟨G, D⟩ = ‖G‖_*: gradient descent in ℓ2, sign descent in ℓ∞, spectral descent.

    Without `normalize` D is as long as the gradient, ‖∇L‖_*. With momentum β > 0 the gradient is M ← β M + ∇L, with
    `nesterov` β M + ∇L of the new M. A norm without a unique D takes one of them: a coordinate in ℓ1, a matrix of rank
    one in nuclear.
    """

    geometry: Geometry = Frobenius()  # noqa: RUF009, a frozen object
    normalize: bool = True
    momentum: float = 0.0
    nesterov: bool = False

    name: ClassVar[str] = "steepest"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("momentum", self.momentum)
        object.__setattr__(self, "geometry", parse_geometry(self.geometry))
        self.geometry.require("dual_norm", to="be descended in")
        if self.nesterov and not self.momentum:
            raise AttsvmError("nesterov needs a momentum above 0.")

    def start(self, W: Tensor) -> State:
        return {"W": W} | (_moment(W, "M") if self.momentum else {})

    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        new: State = {}
        if self.momentum:
            new = _joined(state, "M", self.momentum, 1.0, gradient)
            gradient = _seen(new, gradient, self.momentum) if self.nesterov else Gradient(new["M"], new["M_shift"])
        direction = unit_step(self.geometry, gradient.G)
        if not self.normalize:
            direction = direction * (dual_norm(self.geometry, gradient.G) * torch.exp(gradient.shift))
        return {"W": self.moved(state, direction, eta), **new}

    def size(self, state: State) -> Tensor:
        if self.geometry == Spectral():
            return largest_singular_value(state["W"])
        return self.geometry.norm(trial_first(state["W"]))

    def limit(self) -> Geometry:
        return self.geometry


@dataclass(frozen=True)
class Adam(_OnWeights):
    """W ← W − η m̂/(√v̂ + ε) with bias-corrected moments; `decay` is AdamW's. ε may be 0."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 0.0

    name: ClassVar[str] = "adam"
    corrected: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)
        if not 0 <= self.eps < math.inf:
            raise AttsvmError(f"eps must be at least 0, but got {self.eps}.")

    def start(self, W: Tensor) -> State:
        return {"W": W, "count": torch.zeros_like(W[0, 0])} | _moment(W, "M") | _moment(W, "V")

    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        count = state["count"] + 1
        m = _joined(state, "M", self.beta1, 1 - self.beta1, gradient)
        v = _joined(state, "V", self.beta2, 1 - self.beta2, Gradient(gradient.G.square(), 2 * gradient.shift))
        top, root, low = m["M"], v["V"].sqrt(), v["V_shift"] / 2
        if self.corrected:
            top = top / computed_once(1 - self.beta1**count)
            root = root / computed_once((1 - self.beta2**count).sqrt())
        # m̂/(√v̂ + ε) in the scale of the larger term of the denominator.
        scale = low if self.eps == 0 else low.clamp(min=math.log(self.eps))
        below = root * torch.exp(low - scale)
        if self.eps:
            below = below + self.eps * torch.exp(-scale)
        ratio = torch.where(below > 0, top / torch.where(below > 0, below, 1.0), 0.0)
        direction = ratio * torch.exp(m["M_shift"] - scale)
        return {"W": self.moved(state, direction, eta), "count": count, **m, **v}

    def limit(self) -> Geometry:
        return Lp(math.inf) if self.eps == 0 else Frobenius()


@dataclass(frozen=True)
class RMSprop(Adam):
    """W ← W − η g/(√v + ε), v the running mean of g²."""

    beta1: float = 0.0
    beta2: float = 0.9

    name: ClassVar[str] = "rmsprop"
    corrected: ClassVar[bool] = False


@dataclass(frozen=True)
class Lion(_OnWeights):
    """W ← W − η sign(β1 M + (1 − β1) g), then M ← β2 M + (1 − β2) g."""

    beta1: float = 0.9
    beta2: float = 0.99

    name: ClassVar[str] = "lion"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)

    def start(self, W: Tensor) -> State:
        return {"W": W} | _moment(W, "M")

    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        ahead = _joined(state, "M", self.beta1, 1 - self.beta1, gradient)["M"]
        new = _joined(state, "M", self.beta2, 1 - self.beta2, gradient)
        return {"W": self.moved(state, ahead.sign(), eta), **new}

    def limit(self) -> Geometry:
        return Lp(math.inf)


@dataclass(frozen=True)
class Muon(_OnWeights):
    """W ← W − η U Vᵀ of the momentum M = U S Vᵀ: exactly, or by `newton_schulz` steps of the usual quintic."""

    momentum: float = 0.95
    nesterov: bool = True
    newton_schulz: int = 0

    name: ClassVar[str] = "muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_beta("momentum", self.momentum)
        if self.newton_schulz < 0:
            raise AttsvmError(f"newton_schulz must be a number of steps, 0 for exact, but got {self.newton_schulz}.")

    def start(self, W: Tensor) -> State:
        return {"W": W} | _moment(W, "M")

    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        new = _joined(state, "M", self.momentum, 1.0, gradient)
        M = _seen(new, gradient, self.momentum).G if self.nesterov else new["M"]
        return {"W": self.moved(state, polar(M, self.newton_schulz), eta), **new}

    def limit(self) -> Geometry:
        return Spectral()


def unit_step(geometry: Geometry, G: Tensor) -> Tensor:
    """The direction of norm 1 along which G rises most, trial last; 0 for G = 0."""
    if isinstance(geometry, Lp) and geometry.p == math.inf:
        return G.sign()
    if isinstance(geometry, Lp) and 1 < geometry.p <= 2:
        size = dual_norm(geometry, G)
        return geometry.inverse(G / torch.where(size > 0, size, 1.0))
    if isinstance(geometry, Lp) and geometry.p > 2:
        D = geometry.inverse(G)
        size = dual_norm(geometry.dual, D)
        return D / torch.where(size > 0, size, 1.0)
    if geometry == Spectral() or isinstance(geometry, Nuclear):
        return polar(G, rank_one=isinstance(geometry, Nuclear))
    if isinstance(geometry, Group) and isinstance(geometry.groups, str):
        return _of_lines(G, 1 if geometry.groups == "rows" else 0, geometry.largest)
    return trial_last(geometry.dual_unit(trial_first(G)))


def _of_lines(G: Tensor, axis: int, every: bool) -> Tensor:
    """`Group.dual_unit` for rows (axis 1) or columns (axis 0), in the layout of the step: every line at length 1, or
    the first of the longest ones alone."""
    size = G.abs().amax(axis, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    length = size * (G / size).square().sum(axis, keepdim=True).sqrt()
    unit = torch.where(length > 0, 1 / length, 0.0)
    if not every:
        count = G.shape[1 - axis]
        number = torch.arange(count, device=G.device).reshape((-1, 1, 1) if axis else (1, -1, 1))
        longest = torch.where(length == length.amax(1 - axis, keepdim=True), number, count)
        unit = torch.where(number == longest.amin(1 - axis, keepdim=True), unit, 0.0)
    return unit * G


def _moment(W: Tensor, name: str) -> State:
    """A moment that is 0, at a scale far below any gradient's."""
    return {name: torch.zeros_like(W), f"{name}_shift": torch.full_like(W[0, 0], -torch.inf)}


def _joined(state: State, name: str, beta: float, share: float, gradient: Gradient) -> State:
    """beta·moment + share·gradient at a common scale."""
    old = state[f"{name}_shift"] + (math.log(beta) if beta > 0 else -math.inf)
    new = gradient.shift + math.log(share)
    shift = torch.maximum(old, new)
    M = torch.exp(old - shift) * state[name] + torch.exp(new - shift) * gradient.G
    return {name: M, f"{name}_shift": shift}


def _seen(new: State, gradient: Gradient, beta: float) -> Gradient:
    """Nesterov's β M + g, M the new momentum."""
    ahead = _joined(new, "M", beta, 1.0, gradient)
    return Gradient(ahead["M"], ahead["M_shift"])


def _check_beta(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise AttsvmError(f"{name} must be at least 0 and below 1, but got {beta}.")


RULES: dict[str, Rule] = {
    "gd": Steepest(),
    "sign": Steepest(geometry=Lp(math.inf)),
    "spectral": Steepest(geometry=Spectral()),
    "adam": Adam(),
    "rmsprop": RMSprop(),
    "lion": Lion(),
    "muon": Muon(),
}
"""Rules by name, at their usual settings."""


def as_rule(rule: Rule | str) -> Rule:
    """A rule, or the one of this name."""
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if not isinstance(rule, Rule):
        raise AttsvmError(f"rule must be a Rule or one of {', '.join(RULES)}, but got {describe(rule)}.")
    return rule
