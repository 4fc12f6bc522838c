"""The loss of softmax attention and its gradient, exact however far the softmax has saturated.

All tensors have the trial last. With a = X W z, m the top token, δ_t = a_t − a_m and u_t the scores x_tᵀ∇(Y h)(o)
at the attended o, the gradient of Y h(o) in W is Σ_{t≠m} s_t (u_t − u_m − D)(x_t − x_m) zᵀ with
D = Σ_{t≠m} s_t (u_t − u_m).
Only differences from the top token are summed, and the largest exponent of a trial is split off as its shift M. So the
direction of the gradient keeps its relative accuracy long after the softmax has saturated.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attsvm.objective._contract import contract
from attsvm.objective._lanes import Lanes, trial_first
from attsvm.objective._losses import Log, Loss

Blocks = dict[str, Tensor]
"""Trained matrices by name, trial last: W (d, e, B); K (d, m, B) and Q (e, m, B); v (d, 1, B)."""

FAR = {torch.float64: 300.0, torch.float32: 30.0}
"""Logarithm of a ratio that the dtype still represents, with room on both sides."""


class Attended(NamedTuple):
    """What the model sees: all (n, K, T, B), without the token axis where it is reduced (kept as 1)."""

    is_top: Tensor
    """Is this the token of largest logit (the first of equals)?"""
    delta: Tensor
    """Logit minus top logit, −∞ for the top token itself and for masked ones."""
    E: Tensor
    """Σ_{t≠m} e^δ: the top token has weight 1/(1 + E)."""
    weight: Tensor
    """Softmax weights of the others, 0 for the top token."""
    o: Tensor | None
    """Attended token (n, K, d, B); a fixed linear head does not need it."""
    delta_u: Tensor
    """Scores minus the score of the top token."""
    D: Tensor
    """Σ_{t≠m} s_t (u_t − u_m)."""
    f: Tensor
    """Signed output Y h(o)."""
    ties: bool
    """May a token have the score of the top token?"""


class Gradient(NamedTuple):
    """A gradient e^shift · G, with G of the order of 1 and shift (B,)."""

    G: Tensor
    shift: Tensor


def combined(blocks: Blocks) -> Tensor:
    """W, or K Qᵀ (d, e, B)."""
    if "W" in blocks:
        return blocks["W"]
    return contract("dmB,emB->deB", blocks["K"], blocks["Q"], small=True)


def attend(lanes: Lanes, blocks: Blocks) -> Attended:
    """Softmax attention of these weights, exact however far it has saturated."""
    a = logits(lanes, blocks)
    if lanes.hidden is not None:
        a = a.masked_fill(lanes.hidden, -torch.inf)
    top = a.amax(2, keepdim=True)
    # The first of equals, by number: at W = 0 all logits are equal. (The least of integers is slow to find.)
    number = torch.arange(a.shape[2], dtype=a.dtype, device=a.device)[:, None]
    is_top = number == torch.where(a == top, number, a.shape[2]).amin(2, keepdim=True)
    delta = (a - top).masked_fill(is_top, -torch.inf)
    weight = torch.exp(delta)
    E = weight.sum(2, keepdim=True)
    weight = weight / (1 + E)

    o = None
    if lanes.scores is None:
        o = contract("ntdB,nktB->nkdB", lanes.X, weight + is_top / (1 + E), lanes.small)
    u, f = _scores(lanes, blocks, o)
    u_top = torch.where(is_top, u, 0.0).sum(2, keepdim=True)
    delta_u = u - u_top
    D = (weight * delta_u).sum(2, keepdim=True)
    return Attended(is_top, delta, E, weight, o, delta_u, D, u_top + D if f is None else f, lanes.ties)


def losses(at: Attended, loss: Loss) -> Tensor:
    """ℓ(f) of every query, (n, K, B)."""
    return (-_log_output(at) if isinstance(loss, Log) else loss.value(at.f))[:, :, 0]


def pulls(at: Attended, loss: Loss, log_weight: Tensor | None = None) -> Gradient:
    """−∂ℓ(f)/∂a = e^shift · G of every query, G (n, K, T, B): the pull on every logit; pulls sum to 0 over tokens.

    Samples count with weight e^log_weight (n, 1, 1, B), if that is given.
    """
    log_slope, slope = _slope(at, loss, log_weight)
    exponent = at.delta + log_slope
    shift = exponent.amax((0, 1, 2))
    factor = at.delta_u - at.D
    tiny = (factor.detach().abs() < math.exp(-FAR[factor.dtype])) & ~at.is_top
    if torch.compiler.is_compiling() or bool(tiny.any()):
        exponent, shift, factor = _with_size(at, exponent, shift, factor)
    shift = torch.where(shift == -torch.inf, 0.0, shift)  # no query has a second token
    pull = torch.exp(exponent - shift) * factor
    pull = pull * (slope / (1 + at.E))
    # Σ_{t≠m} c_t (x_t − x_m): the top token gets minus the sum of the others' coefficients.
    return Gradient(torch.where(at.is_top, -pull.sum(2, keepdim=True), pull), shift)


def _with_size(at: Attended, exponent: Tensor, shift: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same terms e^exponent · factor and their shift, for trials in which all terms would underflow.

    Where scores are equal, the factor u_t − u_m − D is −D, itself as small as a weight, or below the smallest number.
    If that makes all terms of a trial so small, its size joins the exponent.
    """
    size, sign = torch.log(factor.detach().abs()), factor.sign()
    if at.ties:
        D, D_shift = _scaled_D(at)
        tied = at.delta_u == 0
        size = torch.where(tied, (torch.log(D.abs()) + D_shift).detach(), size)
        sign = torch.where(tied, -D.sign(), sign)
    largest = (exponent + size).amax((0, 1, 2))
    far = (largest < shift - FAR[factor.dtype]) & (largest > -torch.inf)
    exponent = exponent + torch.where(far, size, 0.0)
    return exponent, torch.where(far, largest, shift), torch.where(far, sign, factor)


def _scaled_D(at: Attended) -> tuple[Tensor, Tensor]:
    """D of every query as D · e^shift, exact where the weights in it underflow."""
    delta = at.delta.masked_fill(at.delta_u == 0, -torch.inf)
    shift = delta.amax(2, keepdim=True)
    shift = torch.where(shift == -torch.inf, 0.0, shift)
    return (torch.exp(delta - shift) * at.delta_u).sum(2, keepdim=True) / (1 + at.E), shift


def _log_output(at: Attended) -> Tensor:
    """log f, exact where f is a weight that underflows: then the top token has score 0, and f is D."""
    D, shift = _scaled_D(at)
    is_D = at.f == at.D
    # Both branches stay away from log 0, whose slope would spoil derivatives.
    return torch.where(is_D, torch.log(torch.where(is_D, D, 1.0)) + shift, torch.log(torch.where(is_D, 1.0, at.f)))


def gradients(lanes: Lanes, loss: Loss, blocks: Blocks, log_weight: Tensor | None = None) -> dict[str, Gradient]:
    """The gradient of the sum over samples (with weight e^log_weight, if given) and queries of ℓ(f), in every block."""
    at = attend(lanes, blocks)
    pull, shift = pulls(at, loss, log_weight)
    g = -contract("ntdB,nktB->nkdB", lanes.X, pull, lanes.small)
    result = {name: Gradient(G, shift) for name, G in _outer(lanes, blocks, g).items()}
    if at.o is not None and "v" in blocks:
        log_slope, slope = _slope(at, loss, log_weight)
        v_shift = log_slope.amax((0, 1, 2))
        weight = torch.exp(log_slope - v_shift) * slope * lanes.Y
        result["v"] = Gradient(-(weight * at.o).sum((0, 1))[:, None], v_shift)
    return result


def _slope(at: Attended, loss: Loss, log_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """−ℓ′(f) of every query, times the weight of its sample, as (log part, factor)."""
    log_part, factor = (-_log_output(at), torch.ones_like(at.f)) if isinstance(loss, Log) else loss.slope(at.f)
    return (log_part if log_weight is None else log_part + log_weight), factor


def logits(lanes: Lanes, blocks: Blocks) -> Tensor:
    """a = X W z (n, K, T, B), also of masked tokens."""
    return contract("ntdB,nkdB->nktB", lanes.X, _keys(lanes, blocks), lanes.small)


def _keys(lanes: Lanes, blocks: Blocks) -> Tensor:
    """W z (n, K, d, B)."""
    if "W" in blocks:
        return contract("deB,nkeB->nkdB", blocks["W"], lanes.Z, lanes.small)
    return contract("dmB,nkmB->nkdB", blocks["K"], _queries(lanes, blocks), lanes.small)


def _queries(lanes: Lanes, blocks: Blocks) -> Tensor:
    """Qᵀ z (n, K, m, B)."""
    return contract("emB,nkeB->nkmB", blocks["Q"], lanes.Z, lanes.small)


def _outer(lanes: Lanes, blocks: Blocks, g: Tensor) -> Blocks:
    """From the gradient in W z to that in the blocks: G = Σ g zᵀ in W, G Q in K, Gᵀ K in Q."""
    if "W" in blocks:
        return {"W": contract("nkdB,nkeB->deB", g, lanes.Z, lanes.small)}
    Kg = contract("dmB,nkdB->nkmB", blocks["K"], g, lanes.small)
    return {
        "K": contract("nkdB,nkmB->dmB", g, _queries(lanes, blocks), lanes.small),
        "Q": contract("nkeB,nkmB->emB", lanes.Z, Kg, lanes.small),
    }


def _scores(lanes: Lanes, blocks: Blocks, o: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """u_t = x_tᵀ∇(Y h)(o) (n, K, T, B) and, where the head is not linear, f = Y h(o)."""
    if lanes.scores is not None:
        return lanes.scores, None
    if "v" in blocks:
        return lanes.Y * contract("ntdB,dB->ntB", lanes.X, blocks["v"][:, 0], lanes.small)[:, None], None
    assert lanes.head is not None
    assert o is not None
    point = trial_first(o)[:, :, :, None]
    slope = lanes.head.grad(point)[:, :, :, 0].movedim(0, -1)
    u = lanes.Y * contract("ntdB,nkdB->nktB", lanes.X, slope, lanes.small)
    return u, lanes.Y * lanes.head.value(point).movedim(0, -1)
