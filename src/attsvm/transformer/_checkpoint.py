"""A run in one file: weights, optimizer state, place in the epoch, random states. Resumed, it gives the same bits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.errors import AttsvmError
from attsvm.files import read_arrays, write_arrays

_FORMAT = "attsvm transformer run 1"


@dataclass
class Place:
    """How far a run has come. `sums` and random states have one row a process."""

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


def save_run(
    path: Path,
    identity: dict[str, Any],
    place: Place,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    tokenizer: str = "",
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
    write_arrays(path, tensors, {"format": _FORMAT, "attsvm": json.dumps(described)})


def load_run(path: Path, identity: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Place:
    """Put what `save_run` wrote into model and optimizer; a file of another run is refused."""
    tensors, described = read_run(path)
    theirs = described["identity"]
    differing = sorted(name for name in identity.keys() | theirs.keys() if identity.get(name) != theirs.get(name))
    if differing:
        name = differing[0]
        raise AttsvmError(
            f"{path} is the checkpoint of another run, with {name} {theirs.get(name)!r} and not "
            f"{identity.get(name)!r}: choose another folder or remove it."
        )
    try:
        model.load_state_dict(_under("model.", tensors))
    except RuntimeError as error:
        raise AttsvmError(f"{path} is the checkpoint of another model: its weights do not fit.") from error
    state: dict[int, dict[str, Any]] = {}
    for key, value in (_under("optimizer.", tensors) | _under("optimizer.", described["other"])).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    if state:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return Place(**described["place"], sums=tensors["sums"], rng=_under("rng.", tensors))


def read_run(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a checkpoint."""
    arrays, strings = read_arrays(path)
    if strings.get("format") != _FORMAT:
        raise AttsvmError(f"{path} must be a checkpoint of attsvm transformer, but it is another kind of file.")
    described = json.loads(strings["attsvm"])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name in described["scalars"]:
        tensors[name] = tensors[name].reshape(())
    return tensors, described


def _under(prefix: str, named: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
