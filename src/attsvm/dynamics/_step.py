"""One training step, written once for every model, head, loss and rule."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.dynamics._rules import Rule, State, computed_once
from attsvm.objective import Blocks, Gradient, Lanes, Loss, gradients

States = dict[str, State]
"""The state of every trained block, by the block's name."""


@dataclass(frozen=True)
class Method:
    """How a run trains: rule and loss, whether step sizes depend on norms, r of r·(‖W‖_F² or ‖K‖_F² + ‖Q‖_F²), and
    the number of heads whose factors are trained."""

    rule: Rule
    loss: Loss
    growing: bool
    ridge: float = 0.0
    heads: int = 1


def parameters(rule: Rule, states: States) -> Blocks:
    """The weights of every block."""
    return {name: computed_once(rule.weights(state)) for name, state in states.items()}


def step(
    lanes: Lanes, method: Method, states: States, floor: Blocks, ratio: Blocks, log_weight: Tensor | None = None
) -> States:
    """The states after one step of every block, with η = max(floor, ratio·size), samples weighed by e^log_weight."""
    new = {}
    rule = method.rule
    blocks = parameters(rule, states)
    for name, (G, shift) in gradients(lanes, method.loss, blocks, log_weight).items():
        mean = Gradient(G, shift - math.log(lanes.X.shape[0]))  # over samples
        if name == "Q" and method.heads > 1:
            mean = Gradient(mean.G * own_head(G, method.heads)[..., None], mean.shift)
        eta = floor[name]
        if method.growing:
            eta = torch.maximum(eta, ratio[name] * rule.size(states[name]))
        new[name] = rule.step(states[name], _ridged(mean, blocks[name], method.ridge), eta)
    return new


def own_head(Q: Tensor, heads: int) -> Tensor:
    """Where Q (H·e, H·m, …) of several heads is trained: in the blocks that take a head's query to its own factors."""
    row, column = (torch.arange(size, device=Q.device) // (size // heads) for size in Q.shape[:2])
    return (row[:, None] == column).to(Q.dtype)


def _ridged(gradient: Gradient, block: Tensor, r: float) -> Gradient:
    """The gradient with that of r‖block‖_F², added in logarithms, since it may be as far below 1 as that of the
    loss."""
    if r == 0:
        return gradient
    log_r = math.log(2 * r)
    shift = gradient.shift.clamp(min=log_r)
    return Gradient(torch.exp(gradient.shift - shift) * gradient.G + torch.exp(log_r - shift) * block, shift)
