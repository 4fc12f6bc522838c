"""Losses ℓ(f) of the signed output f = Y·h(o), with slopes that do not underflow."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attsvm.checks import check_returned
from attsvm.data import TokenData
from attsvm.derivatives import derivative
from attsvm.errors import AttsvmError, describe
from attsvm.named import kinds

GRID = 257
"""Points at which the extreme slopes and curvatures of a user's loss are searched."""

_ROUNDING = 1e-6
"""Of a probability of 0."""


class Loss(ABC):
    """A decreasing loss. `train`, paths and `verdict` need `value`; the rest follows from it by differentiation.

    If your loss saturates, give `slope` in closed form: a derivative that underflows has no direction.
    """

    name: ClassVar[str]
    bounded_slopes: ClassVar[bool] = False
    """Assumption A of the papers: ℓ′ is bounded and Lipschitz on bounded intervals. Set it where that is proved."""
    convex: ClassVar[bool] = False
    """Is −ℓ′ known to fall in f? Otherwise its extremes are searched among 257 points."""
    couples: ClassVar[bool] = False
    """Does the loss of a query depend on the outputs of the sample's other queries?"""

    @abstractmethod
    def value(self, f: Tensor) -> Tensor:
        """ℓ(f)."""

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """(log part, factor) with −ℓ′(f) = e^(log part) · factor, the factor of the order of 1."""
        fall = -derivative(self.value, f)
        if bool((fall < 0).any()):
            raise AttsvmError(f"loss must not increase, but {self.name} does at f = {f[fall < 0][0].item():g}.")
        return torch.log(fall), torch.ones_like(fall)

    def bend(self, f: Tensor) -> Tensor:
        """ℓ″(f)/(−ℓ′(f)), the fall of log(−ℓ′)."""
        return -derivative(self.log_slope, f)

    def log_slope(self, f: Tensor) -> Tensor:
        """log(−ℓ′(f))."""
        log_part, factor = self.slope(f)
        return log_part + torch.log(factor)

    def most_bent(self, low: Tensor, high: Tensor) -> Tensor:
        """The f in [low, high] at which |ℓ″| is largest, here among 257 points."""
        f = _grid(low, high)
        return f.gather(0, (self.bend(f) * self.log_slope(f).exp()).abs().argmax(0, keepdim=True))[0]

    def log_slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest log(−ℓ′) on [low, high]."""
        if self.convex:
            return self.log_slope(high), self.log_slope(low)
        slopes = self.log_slope(_grid(low, high))
        return slopes.amin(0), slopes.amax(0)


def _grid(low: Tensor, high: Tensor) -> Tensor:
    """Numbers from low to high, along a new first axis."""
    return torch.lerp(low, high, torch.linspace(0, 1, GRID).to(low)[(slice(None), *(None,) * low.ndim)])


@dataclass(frozen=True)
class Logistic(Loss):
    """ℓ(f) = log(1 + e^(−f))."""

    name: ClassVar[str] = "logistic"
    convex: ClassVar[bool] = True
    bounded_slopes: ClassVar[bool] = True

    def value(self, f: Tensor) -> Tensor:
        return torch.log1p(torch.exp(-f.abs())) + (-f).clamp(min=0)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return -f.clamp(min=0), 1 / (1 + torch.exp(-f.abs()))

    def bend(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def log_slope(self, f: Tensor) -> Tensor:
        return logsigmoid(-f)

    def most_bent(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.zeros_like(low).clamp(low, high)


@dataclass(frozen=True)
class Exponential(Loss):
    """ℓ(f) = e^(−f)."""

    name: ClassVar[str] = "exponential"
    convex: ClassVar[bool] = True
    bounded_slopes: ClassVar[bool] = True

    def value(self, f: Tensor) -> Tensor:
        return torch.exp(-f)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return -f, torch.ones_like(f)

    def bend(self, f: Tensor) -> Tensor:
        return torch.ones_like(f)

    def most_bent(self, low: Tensor, high: Tensor) -> Tensor:
        return low


@dataclass(frozen=True)
class Correlation(Loss):
    """ℓ(f) = −f."""

    name: ClassVar[str] = "correlation"
    convex: ClassVar[bool] = True
    bounded_slopes: ClassVar[bool] = True

    def value(self, f: Tensor) -> Tensor:
        return -f

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(f), torch.ones_like(f)

    def bend(self, f: Tensor) -> Tensor:
        return torch.zeros_like(f)

    def most_bent(self, low: Tensor, high: Tensor) -> Tensor:
        return low


@dataclass(frozen=True)
class Log(Loss):
    """ℓ(f) = −log f, for outputs that are probabilities: cross-entropy of classes and of next tokens."""

    name: ClassVar[str] = "log"
    convex: ClassVar[bool] = True

    def value(self, f: Tensor) -> Tensor:
        return -torch.log(f)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.log(f), torch.ones_like(f)

    def bend(self, f: Tensor) -> Tensor:
        return 1 / f

    def most_bent(self, low: Tensor, high: Tensor) -> Tensor:
        return low


@dataclass(frozen=True)
class Added(Loss):
    """ℓ(Σ_k f_k): the outputs of a sample's queries are added before the loss, as those of several heads are.

    f (n, K, …): the queries are the second axis. Each of them is given an equal share of the loss. `loss` may also be a
    name or a function.
    """

    loss: Any = Logistic()

    name: ClassVar[str] = "added"
    couples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", as_loss(self.loss))

    def value(self, f: Tensor) -> Tensor:
        return self.loss.value(self._total(f)) / f.shape[1]

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss.slope(self._total(f))

    def log_slope(self, f: Tensor) -> Tensor:
        return self.loss.log_slope(self._total(f))

    def bend(self, f: Tensor) -> Tensor:
        raise AttsvmError("the curvature of a loss that adds outputs couples queries, and is not computed.")

    @staticmethod
    def _total(f: Tensor) -> Tensor:
        return f.sum(1, keepdim=True).expand_as(f)


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A differentiable function of f, applied entry by entry. Files hold only its name."""

    function: Callable[[Tensor], Tensor]
    name: str = field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))

    def value(self, f: Tensor) -> Tensor:
        return check_returned(f"loss {self.name}, a number for each entry of f,", self.function(f), f.shape)


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Exponential(), Correlation(), Log())}
"""Losses by name: those of the papers, and cross-entropy."""


_TRIED = (-8.7, -3.3, -1.9, -0.77, -0.41, -0.13, 0.013, 0.13, 0.41, 0.77, 1.9, 3.3, 8.7)
"""Outputs f at which a user's loss is tried: of both signs, and where hinges are not."""


def check_loss(loss: Loss, data: TokenData, *, trains_head: bool) -> None:
    """Refuse the log loss of outputs that are no probabilities, and a user's loss without a derivative or with a
    `slope` that is not −ℓ′."""
    if isinstance(loss, Log):
        scores = data.X.new_empty(0) if trains_head else data.scores()[data.mask]
        if trains_head or bool((scores < -_ROUNDING).any()):
            came = "the head is trained" if trains_head else f"a token has the score {scores.min().item():.3g}"
            raise AttsvmError(
                f"loss log is −log f for outputs that are probabilities, such as those of class_data, but {came}: for "
                "labels ±1 take logistic."
            )
    if type(loss) in {type(known) for known in LOSSES.values()}:
        return
    f = torch.tensor(_TRIED, dtype=torch.float64, device=data.device).expand(data.n, data.K, 1, -1).contiguous()
    value = check_returned(f"loss {loss.name}, a number for each entry of f,", loss.value(f), f.shape)
    fall = -derivative(loss.value, f)
    there = value.isfinite() & fall.isfinite()
    if not bool((fall[there] != 0).any()):
        raise AttsvmError(f"loss {loss.name}: its derivative is 0 everywhere: is it detached?")
    if type(loss).slope is Loss.slope:
        return
    pair: Any = loss.slope(f)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise AttsvmError(f"loss {loss.name}: slope must return a pair (log part, factor), but got {describe(pair)}.")
    log_part, factor = (check_returned(f"loss {loss.name}: slope, in both parts,", part, f.shape) for part in pair)
    slope = torch.exp(log_part) * factor
    wrong = there & ~((slope - fall).abs() <= 1e-6 * fall.abs() + 1e-12 * fall[there].abs().max())
    if bool(wrong.any()):
        at, is_, must = (float(x[wrong][0]) for x in (f, slope, fall))
        raise AttsvmError(
            f"loss {loss.name}: slope must be −ℓ′, but at f = {at:g} it is {is_:.6g} and −ℓ′ is {must:.6g}."
        )


def as_loss(loss: Any) -> Loss:
    """A Loss: given as such, by the name of a defined one, or as a differentiable function of f."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss in LOSSES:
            return LOSSES[loss]
        own = kinds(Loss)
        if loss in own and own[loss] is not FunctionLoss:
            return cast(Any, own[loss])()
    elif callable(loss) and not isinstance(loss, type):
        return FunctionLoss(cast(Callable[[Tensor], Tensor], loss))
    raise AttsvmError(f"loss must be a Loss, a function of f or one of {', '.join(LOSSES)}, but got {describe(loss)}.")
