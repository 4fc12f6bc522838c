"""A run in one file: weights, optimizer state, place in the epoch, random states. It resumes bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.errors import AttsvmError
from attsvm.files import one_line, read_arrays, under, write_arrays
from attsvm.identity import check_same_run
from attsvm.schema import NUMBER, Array, Schema

_SCHEMA = Schema(
    "attsvm-transformer-run/1",
    "a checkpoint of attsvm transformer fit",
    {
        "model.*": Array("real whole bool", finite=False),  # of a run that diverged, too
        "optimizer.*": Array("real whole bool", finite=False),
        "pruning.*": Array("whole bool", least=0, most=1),  # masks, of optimizers that do not know them
        "rng.*": Array("whole", "processes ...", least=0, most=255),
        "sums": Array("real", "processes 2", finite=False),
    },
    {
        "attsvm": {
            "identity": {"model": frozenset({"text", "vit", "gpt"}), "sizes": dict, "...": object},
            "place": {"epoch": int, "batch": int, "seconds": float, "stopped": str, "history": [{str: NUMBER}]},
            "other": dict,
            "scalars": [str],
            "tokenizer?": str,
        }
    },
    former=("attsvm transformer run 1",),
)


@dataclass
class Place:
    """How far a run has come. `sums` and random states have one row per process."""

    epoch: int = 0
    """whole epochs done"""
    batch: int = 0
    """batches done of the epoch under way"""
    seconds: float = 0.0
    """of work on that epoch"""
    stopped: str = ""
    """why the run ended, if it did"""
    history: list[dict[str, float]] = field(default_factory=list)
    sums: Tensor = field(default_factory=lambda: torch.zeros(1, 2, dtype=torch.float64))
    rng: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[int, Tensor] = field(default_factory=dict)
    """of pruned weights, by number"""


def save_run(
    path: Path,
    identity: dict[str, Any],
    place: Place,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    tokenizer: str = "",
    masks: Mapping[int, Tensor] | None = None,
) -> None:
    """Write all of it, whole or not at all. Without an optimizer it is for `load_model` alone.

    tokenizer: digest of the vocabulary, if known. It is no part of the identity, which the tokens themselves are.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    other: dict[str, Any] = {}
    for index, state in ({} if optimizer is None else optimizer.state_dict()["state"]).items():
        for name, value in state.items():
            key = f"optimizer.{index}.{name}"
            if isinstance(value, Tensor):
                tensors[key] = value
            elif value is not None:
                other[key] = value
    tensors |= {f"pruning.{number}": mask for number, mask in (masks or {}).items()}
    tensors |= {f"rng.{name}": state for name, state in place.rng.items()}
    tensors["sums"] = place.sums
    scalars = sorted(name for name, tensor in tensors.items() if tensor.ndim == 0)
    described = {
        "identity": identity,
        "place": {name: getattr(place, name) for name in ("epoch", "batch", "seconds", "stopped", "history")},
        "other": other,
        "scalars": scalars,  # array files have no arrays without axes
        "tokenizer": tokenizer,
    }
    write_arrays(path, tensors, {"format": _SCHEMA.format, "attsvm": described})


def load_run(path: Path, identity: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Place:
    """Put what `save_run` wrote into model and optimizer; a file of another run is refused."""
    try:
        tensors, described = read_run(path)
    except AttsvmError as error:
        raise AttsvmError(f"{error} To begin anew, remove {path.parent}, or choose another folder.") from error
    check_same_run(path.parent, described["identity"], identity)
    try:
        model.load_state_dict(under("model.", tensors))
    except RuntimeError as error:
        raise AttsvmError(f"{path} is the checkpoint of another model: its weights do not fit.") from error
    try:
        _load_optimizer(optimizer, under("optimizer.", tensors) | under("optimizer.", described["other"]))
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise AttsvmError(f"{path} has a state that does not fit the optimizer: {one_line(error)}") from error
    masks = {int(number): mask.bool() for number, mask in under("pruning.", tensors).items()}
    return Place(**described["place"], sums=tensors["sums"], rng=under("rng.", tensors), masks=masks)


def read_run(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a checkpoint."""
    arrays, facts = read_arrays(path, _SCHEMA)
    described = facts["attsvm"]
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name in described["scalars"]:
        if name not in tensors or tensors[name].numel() != 1:
            raise AttsvmError(f"{path}: {name} must be a single number.")
        tensors[name] = tensors[name].reshape(())
    return tensors, described


def _load_optimizer(optimizer: torch.optim.Optimizer, named: dict[str, Any]) -> None:
    """State by "number of the weight.name", if every tensor is a number or has the shape of its weight."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in named.items():
        index, name = key.split(".", 1)
        shape = weights[int(index)].shape
        if isinstance(value, Tensor) and value.ndim and value.shape != shape:
            raise ValueError(f"{key} must have shape {tuple(shape)}, but got {tuple(value.shape)}")
        state.setdefault(int(index), {})[name] = value
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
