"""All that a training run depends on besides its data; and the optimizer and model it asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attsvm.checks import as_count, as_real, describe
from attsvm.errors import AttsvmError
from attsvm.models import TextTransformer, ViT
from attsvm.optim import MirrorAdam, MirrorDescent, param_groups
from attsvm.transformer._data import Data, Images, Texts

LENGTH = 512
"""The default of TextTransformer."""
OPTIMIZERS = ("mirror-descent", "mirror-adam", "sgd", "adam", "adamw")


@dataclass(frozen=True)
class Settings:
    """A training run.

    optimizer      mirror-descent, mirror-adam, sgd, adam or adamw
    p              exponent of the mirror optimizers
    lr             step size, constant
    groups         "all": p for every weight, as in the paper; "matrices": p for matrices, 2 for embeddings and vectors.
                   Empty is "all" for mirror-descent and "matrices" for mirror-adam.
    momentum       of mirror-descent and sgd
    weight_decay   None is the optimizer's own default
    sizes          of the model: keyword arguments of TextTransformer or ViT
    batch, epochs  rows per step; most epochs
    stop           stop after the epoch whose running train accuracy (with dropout) reaches this
    loss           "sum" over the batch, as in the paper's public code, or "mean"
    seed           of initial weights, order and dropout
    grouped        texts of similar length share a batch
    bf16           autocast to bfloat16
    compile        torch.compile
    """

    optimizer: str = "mirror-descent"
    p: float = 1.1
    lr: float = 8e-4
    groups: str = ""
    momentum: float = 0.0
    weight_decay: float | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 100
    epochs: int = 200
    stop: float = 0.995
    loss: str = "sum"
    seed: int = 0
    grouped: bool = True
    bf16: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        _among("optimizer", self.optimizer, OPTIMIZERS)
        _among("loss", self.loss, ("sum", "mean"))
        _among("groups", self.groups, ("", "all", "matrices"))
        as_count("batch", self.batch)
        as_count("epochs", self.epochs)
        as_count("seed", self.seed, 0, 2**40)  # seeds of epochs are multiples of it
        for name in ("lr", "stop", "momentum"):
            as_real(name, getattr(self, name), 0.0)
        if self.weight_decay is not None:
            as_real("weight_decay", self.weight_decay, 0.0)
        if not as_real("p", self.p, 1.0) > 1:
            raise AttsvmError(f"p must be above 1 and finite, but got {self.p}.")
        for name in ("grouped", "bf16", "compile"):
            if not isinstance(value := getattr(self, name), bool):
                raise AttsvmError(f"{name} must be True or False, but got {describe(value)}.")
        if not isinstance(self.sizes, Mapping):
            raise AttsvmError(f"sizes must map names to numbers, but got {describe(self.sizes)}.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self) | {"sizes": dict(self.sizes)}


def make_model(settings: Settings, data: Data) -> nn.Module:
    """The model for this data, with torch's initial weights."""
    kind: Callable[..., nn.Module] = TextTransformer if data.kind == "text" else ViT
    needed, defaults = {"classes": data.classes}, {}
    if isinstance(data.train, Images):
        needed |= {"size": data.train.size, "channels": data.train.pixels.shape[1]}
    else:
        longest = max(split.tokens.shape[1] for split in (data.train, data.test) if isinstance(split, Texts))
        needed |= {"vocabulary": data.vocabulary, "length": longest}
        defaults = {"length": LENGTH}
    sizes = needed | defaults | dict(settings.sizes)
    for name, number in needed.items():
        asked, exact = as_count(name, sizes[name]), name in ("size", "channels")
        if asked < number or (exact and asked > number):
            bound = f"{number}" if exact else f"at least {number}"
            raise AttsvmError(f"{name} must be {bound}, as in the data, not {asked}.")
    try:
        return kind(**sizes)
    except TypeError as error:
        raise AttsvmError(f"sizes must be those of {kind.__name__}, but: {error}.") from error


def make_optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all weights of the model."""
    name, lr = settings.optimizer, settings.lr
    options: dict[str, Any] = {"lr": lr}
    if settings.weight_decay is not None:
        options["weight_decay"] = settings.weight_decay
    if name in ("mirror-descent", "sgd"):
        options["momentum"] = settings.momentum
    if not name.startswith("mirror"):
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
        # fused: one kernel for all weights. Not on the CPU, where foreach is as fast and older.
        return kind(model.parameters(), fused=next(model.parameters()).is_cuda or None, **options)
    groups = settings.groups or ("all" if name == "mirror-descent" else "matrices")
    mirror: Callable[..., torch.optim.Optimizer] = MirrorDescent if name == "mirror-descent" else MirrorAdam
    if groups == "all":
        return mirror(model.parameters(), p=settings.p, **options)
    return mirror(param_groups(model, settings.p), **options)


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise AttsvmError(f"{name} must be one of {', '.join(filter(None, known))}, but got {value!r}.")
