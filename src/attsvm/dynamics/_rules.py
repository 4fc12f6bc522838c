"""Rules: how a block of weights moves along its exact gradient.

A rule acts on one block of every trial, (rows, columns, B) with the trial last. Numbers per trial are (B,). Gradients
come as e^shift · G with G of the order of 1, so a rule sees their direction however small they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attsvm.geometry import Frobenius, Geometry, Lp, parse_geometry
from attsvm.objective import Gradient, contract, trial_first, trial_last

State = dict[str, Tensor]
"""What a rule keeps of a block, by name: tensors with the trial last."""


class Rule(ABC):
    """How a block moves. `train` needs `start`, `weights` and `step`; `limit` tells `verdict` what to compare with.

    A block is (rows, columns, B), with the trial last, and so are the tensors of a state, which is a dict.
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self, W: Tensor) -> State:
        """The state at the weights W."""

    @abstractmethod
    def weights(self, state: State) -> Tensor:
        """The weights of a state."""

    @abstractmethod
    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        """The state after a step of size eta (B,) or ()."""

    def size(self, state: State) -> Tensor:
        """The norm (B,) in proportion to which `Growing` steps grow."""
        return dual_norm(Frobenius(), self.weights(state))

    def limit(self) -> Geometry | None:
        """The norm whose max-margin direction W should reach; None if nothing is predicted."""
        return None


@dataclass(frozen=True)
class MirrorDescent(Rule):
    """θ ← θ − η G/‖G‖_*, or θ − η ∇L if not `normalize`; W = ∇ψ*(θ). In ℓ2 it is gradient descent.

    The mirror variable θ = ∇ψ(W) is the state. That takes one power per step, and a zero weight can move again.
    """

    geometry: Geometry = Frobenius()  # noqa: RUF009, a frozen object
    normalize: bool = True

    name: ClassVar[str] = "mirror"

    def __post_init__(self) -> None:
        object.__setattr__(self, "geometry", parse_geometry(self.geometry))

    def start(self, W: Tensor) -> State:
        return {"theta": trial_last(self.geometry.mirror(trial_first(W)))}

    def weights(self, state: State) -> Tensor:
        theta = state["theta"]
        if self.geometry == Frobenius():
            return theta
        if isinstance(self.geometry, Lp):
            return self.geometry.inverse(theta)  # entrywise, so in any layout
        return trial_last(self.geometry.inverse(trial_first(theta)))

    def step(self, state: State, gradient: Gradient, eta: Tensor) -> State:
        G, shift = gradient
        if self.normalize:
            size = dual_norm(self.geometry, G)
            eta = eta / torch.where(size > 0, size, 1.0)  # a zero gradient is a zero step
        else:
            eta = eta * torch.exp(shift)
        return {"theta": state["theta"] - computed_once(eta) * G}

    def size(self, state: State) -> Tensor:
        return dual_norm(self.geometry, state["theta"])

    def limit(self) -> Geometry:
        return self.geometry


def limit_of(rule: Rule) -> Geometry | None:
    """`rule.limit()`, which a user may give by name."""
    limit: Any = rule.limit()
    return None if limit is None else parse_geometry(limit)


def dual_norm(geometry: Geometry, G: Tensor) -> Tensor:
    """‖G‖_* (B,) of matrices with the trial last."""
    if not isinstance(geometry, Lp):
        return geometry.dual_norm(trial_first(G))
    size = G.abs()
    largest = size.amax((0, 1))
    ratio = size / torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    if geometry.q == 2:
        return largest * contract("deB,deB->B", ratio, ratio, small=True).sqrt()
    # x^q as exp(q log x) costs half as much as a power. Relative to the largest entry it loses nothing: where log x is
    # large enough to spoil digits of the term, the term itself is small.
    return largest * torch.exp(geometry.q * torch.log(ratio)).sum((0, 1)) ** (1 / geometry.q)


def computed_once(x: Tensor) -> Tensor:
    """x itself. To the compiler it is a view of memory, so it computes x once and not at every use."""
    return x.as_strided(x.shape, x.stride())
