"""The mirror map of ψ = ‖W‖_p^p / p entry by entry, θ = sign(w)|w|^(p−1) and w = sign(θ)|θ|^(1/(p−1))."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Up to here x^n by multiplication errs by less than 1e-6 in float32 and is faster than `pow`.
LARGEST_WHOLE_EXPONENT = 12
# From 1 to here x·2^(log2(x)·(a − 1)) is as accurate as `pow`, and twice as fast on a CPU.
LARGEST_BY_LOGARITHM = 1.34
# From here on a rounding of θ is so much larger in the weight that it is kept: see `settle`.
LEAST_KEPT_EXPONENT = 3

Scratch = tuple[Tensor | None, ...]
NO_SCRATCH: Scratch = (None, None)


class L1(NamedTuple):
    """A soft threshold in every step."""

    strength: float  # the threshold over lr
    of_weight: bool  # of the weight, not of its mirror variable


class Step(NamedTuple):
    """What a group's arithmetic is told, apart from its moments."""

    lr: float | Tensor
    pull: float | Tensor  # of weight decay
    a: float  # the exponent 1/(p − 1)
    l1: L1

    @classmethod
    def of(cls, lr: float | Tensor, p: float, weight_decay: float, l1: float, l1_of: str) -> "Step":
        if isinstance(lr, Tensor):  # a number, but where reading it would sync or recompile
            lr = lr.squeeze() if torch.compiler.is_compiling() or lr.is_cuda else lr.item()
        return cls(lr, decay_pull(lr, weight_decay, p), inverse_exponent(p), L1(l1, l1_of == "weight"))


def inverse_exponent(p: float) -> float:
    """1/(p − 1), whole where the decimal p means a whole number: 10 for p = 1.1."""
    a = 1 / (p - 1)
    return float(round(a)) if abs(a - round(a)) < 1e-12 * a else a


def whole_exponent(a: float) -> int:
    """`a` where powers are taken by multiplication, else 0."""
    return int(a) if a == int(a) and a <= LARGEST_WHOLE_EXPONENT else 0


def power(x: Tensor, k: int, out: Tensor | None = None) -> Tensor:
    """x^k by squares and cubes, for k ≥ 2."""
    if k <= 3:
        return torch.pow(x, k, out=out)
    if k % 3 == 0:
        return power(x, k // 3, out).pow_(3)
    if k % 2 == 0:
        return power(x, k // 2, out).pow_(2)
    return power(x, k - 1, out).mul_(x)


def signed_power(x: Tensor, a: float, scratch: Scratch = NO_SCRATCH, out: Tensor | None = None) -> Tensor:
    """sign(x)|x|^a; x itself for a = 1 without `out`."""
    n = whole_exponent(a)
    if n == 1:
        return x if out is None else out.copy_(x)
    if n:
        slope = _slope(x, n, scratch[0])
        return slope.mul_(x) if out is None else torch.mul(slope, x, out=out)
    size = torch.abs(x, out=scratch[0])
    if a == 0.5:  # of the ways to take a root the fastest on a CPU
        info = torch.finfo(x.dtype)
        return torch.mul(size.clamp_(info.tiny, info.max).rsqrt_(), x, out=out)
    if 1 < a <= LARGEST_BY_LOGARITHM:
        return torch.mul(size.log2_().mul_(a - 1).exp2_(), x, out=out)
    return torch.copysign(size.pow_(a), x, out=out)


def _slope(x: Tensor, n: int, out: Tensor | None) -> Tensor:
    """|x|^(n−1), for n ≥ 2."""
    if n == 2:
        return torch.abs(x, out=out)
    return power(x, n - 1, out) if n % 2 else power(x, n - 1, out).abs_()


def slope_of_weight(x: Tensor, a: float, of_weight: bool = False) -> Tensor:
    """dw/dθ = a|θ|^(a−1), for a > 1: it is 0 at 0. x is θ or, with `of_weight`, the weight."""
    if of_weight:
        return x.abs().pow_(1 - 1 / a).mul_(a)
    n = whole_exponent(a)
    return (_slope(x, n, None) if n else x.abs().pow_(a - 1)).mul_(a)


def state_dtype(param: Tensor) -> torch.dtype:
    """Of the mirror variable and the moments: float32 for bf16 and fp16, so that θ doubles as master weights."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def has_mirror(param: Tensor, p: float) -> bool:
    """Whether θ is kept apart from the weight: not for p = 2 in full precision, where they are the same."""
    return p != 2 or param.dtype not in (torch.float32, torch.float64)


def keeps_roundings(weight: Tensor, theta: Tensor, a: float) -> bool:
    """Whether what the rounding of θ loses is kept; not beside bf16 weights, which are coarser than θ."""
    return a >= LEAST_KEPT_EXPONENT and weight.dtype == theta.dtype


def mirror_of(weight: Tensor, p: float) -> Tensor:
    """θ of a plain weight, in the precision of the state."""
    return signed_power(weight.detach().to(state_dtype(weight)), p - 1)


def means(theta: Tensor, weight: Tensor, p: float) -> Tensor:
    """Where the weight is that of θ, up to roundings."""
    a = inverse_exponent(p)
    expected = signed_power(theta, a)
    tolerance = (16 + a) * torch.finfo(theta.dtype).eps
    if weight.dtype == theta.dtype:
        # One comparison: each takes as long on a CPU as four products, and torch.isclose takes several.
        nan = torch.finfo(theta.dtype).max / 2
        difference = weight.nan_to_num(nan).sub_(expected.nan_to_num_(nan)).abs_()
        return difference <= expected.abs_().mul_(tolerance)
    # A coarser weight is the rounding of a number that close, so that a change by its last bit is seen.
    low, high = ((expected * (1 + sign * tolerance)).to(weight.dtype) for sign in (-1, 1))
    between = (weight >= torch.minimum(low, high)) & (weight <= torch.maximum(low, high))
    return between | (weight.isnan() & expected.isnan())


def follow(weights: list[Tensor], mirrors: list[Tensor], rests: list[Tensor], p: float) -> None:
    """θ of edited weights, in a compiled step: there every entry is compared."""
    for weight, theta, rest in zip(weights, mirrors, rests):
        if theta is not weight:
            same = means(theta, weight, p)
            theta.copy_(torch.where(same, theta, mirror_of(weight, p)))
            if rest is not theta:
                rest.copy_(torch.where(same, rest, 0))


def decay_pull(lr: float | Tensor, weight_decay: float, p: float) -> float | Tensor:
    """The c for which θ ← θ − lr·cθ multiplies W by 1 − lr·weight_decay: (1 − (1 − lr·weight_decay)^(p−1))/lr.

    As lr → 0 this is weight_decay·(p − 1): cθ is then the gradient of weight_decay·(p − 1)ψ. As a part of the step, and
    not as a factor of θ, it is added before θ is rounded: a float32 factor near 1 is off by 3e-8 in every step.
    """
    limit = weight_decay * (p - 1)
    if weight_decay == 0 or p == 2:
        return limit
    if isinstance(lr, Tensor):
        shrink = -torch.expm1((p - 1) * torch.log1p(-(lr * weight_decay).clamp(max=1)))
        # As a tensor: a compiled step would guard this number, by a formula that is rounded otherwise.
        return torch.where(lr > 0, shrink / lr, torch.ones_like(lr) * weight_decay * (p - 1))
    if lr == 0:
        return limit
    return (-math.expm1((p - 1) * math.log1p(-lr * weight_decay)) if lr * weight_decay < 1 else 1.0) / lr


def leaves_weights(lr: float | Tensor) -> bool:
    """With lr = 0 the weights keep every bit: torch's checkpointing takes a step like that to create the state."""
    return not isinstance(lr, Tensor) and lr == 0


def settle(weight: Tensor, theta: Tensor, rest: Tensor, step: Step, scratch: Scratch) -> None:
    """θ ← θ + rest, rest ← what this sum lost by rounding, weight ← sign(θ)|θ|^a; with `l1` a soft threshold of both.

    A rounding of θ is `a` times as large in the weight: at p = 1.1 a hundred of them make 2.5e-6. So steps are
    subtracted from `rest`, and what is lost goes into the next. Where nothing is kept `rest` is `theta` itself; at
    p = 2 `theta` may be `weight` itself.
    """
    lr, _, a, l1 = step
    of_mirror, of_weight = l1.strength > 0, l1.strength > 0 and l1.of_weight and a != 1
    if of_mirror and not of_weight:
        shrink_pair(theta, rest, lr * l1.strength)
    if rest is not theta:
        before = theta.clone() if scratch[0] is None else scratch[0].copy_(theta)
        theta.add_(rest)
        rest.add_(before.sub_(theta))
    if of_weight:
        # In float64: next to the threshold the difference is small, and errors of its terms are large in it.
        exact = theta if theta.device.type == "mps" else theta.double()
        value = signed_power(exact if rest is theta else exact + rest, a)
        shrink(value, lr * l1.strength)
        weight.copy_(value)
        exact = signed_power(value, 1 / a)
        theta.copy_(exact)
        if rest is not theta:
            rest.copy_(exact.sub_(theta))
    elif theta is not weight:
        signed_power(theta, a, scratch, out=weight)


def read_off(weight: Tensor, change: Tensor, step: Step) -> None:
    """The step θ ← θ + change of a θ that is not kept but read off the weight, in float64: the weight is a record of θ
    that is `a` times as fine."""
    lr, pull, a, l1 = step
    theta = signed_power(weight.to(torch.float64), 1 / a)
    theta.add_(change - lr * pull * theta)
    if l1.strength > 0 and not l1.of_weight:
        shrink(theta, lr * l1.strength)
    value = signed_power(theta, a)
    if l1.strength > 0 and l1.of_weight:
        shrink(value, lr * l1.strength)
    weight.copy_(value)


def apart(theta: Tensor, rest: Tensor, l1: L1) -> Tensor:
    """What to subtract a step from: with `l1` never θ itself, so that step and threshold are one sum, rounded once.

    Alone, the threshold is the same number in every step, and its roundings would add up.
    """
    return torch.zeros_like(theta) if l1.strength > 0 and rest is theta else rest


def shrink(x: Tensor, bound: float | Tensor) -> None:
    """The soft threshold: x towards 0 by `bound`, and 0 where it is no larger. nan stays nan."""
    x.sub_(_clipped(x, bound))


def _clipped(x: Tensor, bound: float | Tensor) -> Tensor:
    return torch.clamp(x, -bound, bound)  # pyright: ignore[reportCallIssue, reportArgumentType]


def shrink_pair(x: Tensor, low: Tensor, bound: float | Tensor) -> None:
    """The soft threshold of x + low, whose small part takes the change; x alone where low is x."""
    if low is x:
        shrink(x, bound)
        return
    value = x + low
    inside = value.abs() <= bound
    low.sub_(_clipped(value, bound))
    x.masked_fill_(inside, 0)
    low.masked_fill_(inside, 0)


def add_multiple(x: Tensor, y: Tensor, factor: float | Tensor, out: Tensor | None = None) -> Tensor:
    """x + factor·y; x itself for a factor of 0."""
    if isinstance(factor, Tensor):
        return x + y * factor
    return torch.add(x, y, alpha=factor, out=out) if factor != 0 else x


def subtract_multiple(x: Tensor, y: Tensor, factor: float | Tensor) -> None:
    """x ← x − factor·y."""
    if isinstance(factor, Tensor):
        x.sub_(y * factor)
    elif factor != 0:
        x.add_(y, alpha=-factor)


def subtract_ratio(x: Tensor, y: Tensor, z: Tensor, factor: float | Tensor) -> None:
    """x ← x − factor·y/z."""
    if isinstance(factor, Tensor):
        x.sub_(y / z * factor)
    else:
        x.addcdiv_(y, z, value=-factor)
