"""Losses ℓ(f) of the signed output f = Y·h(o), with slopes that do not underflow."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attsvm.checks import describe
from attsvm.errors import AttsvmError


class Loss(ABC):
    """A decreasing loss."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, f: Tensor) -> Tensor:
        """ℓ(f)."""

    @abstractmethod
    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """(log part, factor) with −ℓ′(f) = e^(log part) · factor, the factor of the order of 1."""


@dataclass(frozen=True)
class Logistic(Loss):
    """ℓ(f) = log(1 + e^(−f))."""

    name: ClassVar[str] = "logistic"

    def value(self, f: Tensor) -> Tensor:
        return torch.log1p(torch.exp(-f.abs())) + (-f).clamp(min=0)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return -f.clamp(min=0), 1 / (1 + torch.exp(-f.abs()))


@dataclass(frozen=True)
class Exponential(Loss):
    """ℓ(f) = e^(−f)."""

    name: ClassVar[str] = "exponential"

    def value(self, f: Tensor) -> Tensor:
        return torch.exp(-f)

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return -f, torch.ones_like(f)


@dataclass(frozen=True)
class Correlation(Loss):
    """ℓ(f) = −f."""

    name: ClassVar[str] = "correlation"

    def value(self, f: Tensor) -> Tensor:
        return -f

    def slope(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(f), torch.ones_like(f)


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Exponential(), Correlation())}


def as_loss(loss: str | Loss) -> Loss:
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]
    raise AttsvmError(f"loss must be a Loss or one of {', '.join(LOSSES)}, but got {describe(loss)}.")
