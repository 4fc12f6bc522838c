"""All that a training run depends on besides its data; and the optimizer and model it asks for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attsvm.checks import as_count, as_real
from attsvm.errors import AttsvmError, describe
from attsvm.models import GPT, TextTransformer, ViT
from attsvm.optim import GradualPruning, MirrorAdam, MirrorDescent, MirrorMuon, param_groups
from attsvm.transformer._data import Data, Images, Texts

LENGTH = 512
"""The default of TextTransformer."""
SCHEDULES = ("constant", "cosine")
_LATER = ("schedule", "warmup", "clip", "sparsity", "moments_of", "scope", "rest_lr", "head_lr", "distil")
_REST = ("embeddings", "vectors")
MIRROR = {"mirror-descent": MirrorDescent, "mirror-adam": MirrorAdam, "mirror-muon": MirrorMuon}
OPTIMIZERS = (*MIRROR, "sgd", "adam", "adamw")


@dataclass(frozen=True)
class Settings:
    """A training run.

    optimizer      mirror-descent, mirror-adam, mirror-muon, sgd, adam or adamw
    p              exponent of the mirror optimizers
    lr             step size; the largest, if it is scheduled
    rest_lr        the same of embeddings and vectors, where groups are "matrices"; None is lr
    head_lr        the same of a head that mirror-muon gives Adam's step, such as a language model's own; None is lr
    schedule       "constant", or "cosine": lr falls to 0 along half a cosine until the last epoch ends
    warmup         over this share of all steps lr rises from 0
    clip           largest norm of all gradients together; 0 is no bound
    sparsity       share of the matrices' entries that gradual pruning sets to 0, for good
    scope          its threshold: "global", one for all matrices; "relative", one in units of each matrix's root mean
                   square; "layer", the same share in each
    distil         share of a teacher's predictions in the labels; the rest is the right answer
    groups         "all": p for every weight, as in the paper; "matrices": p for matrices, 2 for embeddings and vectors.
                   Empty is "all" for mirror-descent and "matrices" for the others.
    momentum       of mirror-descent and sgd
    moments_of     of mirror-adam: whose gradient the moments are of, the "weight"'s or the "mirror" variable's
    weight_decay   None is the optimizer's own default
    sizes          of the model: keyword arguments of TextTransformer, ViT or GPT
    batch, epochs  rows per step; most epochs
    stop           stop after the epoch whose running train accuracy (with dropout) reaches this; not before all zeros
                   are made
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
    schedule: str = "constant"
    warmup: float = 0.0
    clip: float = 0.0
    sparsity: float = 0.0
    moments_of: str = "weight"
    scope: str = "global"
    rest_lr: float | None = None
    head_lr: float | None = None
    distil: float = 0.0

    def __post_init__(self) -> None:
        _among("optimizer", self.optimizer, OPTIMIZERS)
        _among("loss", self.loss, ("sum", "mean"))
        _among("groups", self.groups, ("", "all", "matrices"))
        _among("schedule", self.schedule, SCHEDULES)
        _among("moments_of", self.moments_of, ("weight", "mirror"))
        _among("scope", self.scope, ("global", "relative", "layer"))
        as_count("batch", self.batch)
        as_count("epochs", self.epochs)
        as_count("seed", self.seed, 0, 2**40)  # seeds of epochs are multiples of it
        for name in ("warmup", "sparsity"):
            if not as_real(name, getattr(self, name), 0.0) < 1:
                raise AttsvmError(f"{name} must be a share, at least 0 and below 1, but got {getattr(self, name)}.")
        for name in ("lr", "stop", "momentum", "clip"):
            as_real(name, getattr(self, name), 0.0)
        for name in ("weight_decay", "rest_lr", "head_lr"):
            if getattr(self, name) is not None:
                as_real(name, getattr(self, name), 0.0)
        if not as_real("distil", self.distil, 0.0) <= 1:
            raise AttsvmError(f"distil must be a share, from 0 to 1, but got {self.distil}.")
        if self.scope != "global" and self.sparsity == 0:
            raise AttsvmError(f'scope="{self.scope}" is the threshold of pruning: set sparsity as well.')
        if self.rest_lr is not None and (self.optimizer not in MIRROR or self.of_weights == "all"):
            raise AttsvmError('rest_lr is for mirror optimizers with groups="matrices": AdamW is mirror-adam at p = 2.')
        if self.head_lr is not None and self.optimizer != "mirror-muon":
            raise AttsvmError(f"head_lr is for mirror-muon, but optimizer is {self.optimizer}: leave it out.")
        if not as_real("p", self.p, 1.0) > 1:
            raise AttsvmError(f"p must be above 1 and finite, but got {self.p}.")
        if self.moments_of == "mirror" and (self.optimizer != "mirror-adam" or self.groups == "all"):
            raise AttsvmError('moments_of="mirror" is for mirror-adam on matrices: a bias of 0 would stay 0.')
        if self.optimizer == "mirror-muon" and self.p > 2:
            raise AttsvmError(f"mirror-muon takes p from 1 to 2, but got {self.p}.")
        if self.optimizer == "mirror-muon" and self.groups == "all":
            raise AttsvmError('mirror-muon takes groups="matrices": a bias of 0 would stay 0.')
        for name in ("grouped", "bf16", "compile"):
            if not isinstance(value := getattr(self, name), bool):
                raise AttsvmError(f"{name} must be True or False, but got {describe(value)}.")
        if not isinstance(self.sizes, Mapping):
            raise AttsvmError(f"sizes must map names to numbers, but got {describe(self.sizes)}.")

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; without the settings that came later, unless they are used: so older runs can go on."""
        later = {f.name for f in dataclasses.fields(self) if f.name in _LATER and getattr(self, f.name) == f.default}
        every = dataclasses.asdict(self) | {"sizes": dict(self.sizes)}
        return {name: value for name, value in every.items() if name not in later}

    @property
    def of_weights(self) -> str:
        """Which weights p is for, "all" or "matrices"."""
        return self.groups or ("all" if self.optimizer == "mirror-descent" else "matrices")

    @property
    def planned(self) -> bool:
        """Whether a step depends on how many there will be."""
        return self.schedule != "constant" or self.warmup > 0 or self.sparsity > 0

    def rate(self, step: int, steps: int, group: str = "") -> float:
        """lr of a step, the first being 0, of so many, and of a group of weights."""
        own = self.rest_lr if group in _REST else self.head_lr if group == "heads" else None
        warm, lr = self.warmup * steps, self.lr if own is None else own
        if step < warm:
            return lr * (step + 1) / (warm + 1)
        if self.schedule == "constant":
            return lr
        return lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def make_model(settings: Settings, data: Data) -> nn.Module:
    """The model for this data, with torch's initial weights."""
    kind: Callable[..., nn.Module] = {"text": TextTransformer, "vit": ViT, "gpt": GPT}[data.kind]
    needed, defaults = {} if data.kind == "gpt" else {"classes": data.classes}, {}
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
    mirror: Callable[..., torch.optim.Optimizer] = MIRROR[name]
    if settings.of_weights == "all":
        # With a name: biases, too, on purpose, as in the paper's code.
        return mirror([{"params": list(model.parameters()), "name": "all"}], p=settings.p, **options)
    if name == "mirror-adam":
        options["moments_of"] = settings.moments_of
    if name == "mirror-muon":
        options["head_lr"] = settings.head_lr
    rest = {} if settings.rest_lr is None else {"lr": settings.rest_lr}
    made = mirror(param_groups(model, settings.p, embeddings=rest, vectors=rest), **options)
    if settings.head_lr is not None and not any(group.get("name") == "heads" for group in made.param_groups):
        raise AttsvmError(
            "head_lr is for a head that is not the embedding and more than ten times as long as wide, but there is "
            "none: leave it out."
        )
    return made


def make_pruning(
    settings: Settings, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> GradualPruning | None:
    """Gradual pruning of all matrices over so many steps, if some share of them is to be 0."""
    if settings.sparsity == 0:
        return None
    groups = [group for group in param_groups(model, 2.0) if group["name"] in ("attention", "matrices")]
    matrices = [named for group in groups for named in zip(group["param_names"], group["params"])]
    every = max(1, min(50, steps // 40))
    return GradualPruning(optimizer, settings.sparsity, steps, every=every, scope=settings.scope, params=matrices)


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise AttsvmError(f"{name} must be one of {', '.join(filter(None, known))}, but got {value!r}.")
