"""The runs of real transformers behind the papers' tables and figures, one piece each, most valuable first.

A piece is a training run and what is measured of its last weights: a cell of an experiment. Earlier results are kept as
small JSON files.
"""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from attsvm._version import __version__
from attsvm.errors import AttsvmError
from attsvm.files import read_json
from attsvm.transformer import Data, Probes, Settings, class_attention, fit, pruning_curve, weight_summary

PUBLIC_LR = {1.1: {3: 8e-4, 4: 6e-4, 6: 1e-3}, 2.0: {3: 4e-4, 4: 4e-4, 6: 1e-3}, 3.0: {3: 4e-6, 4: 6e-6, 6: 1e-5}}
"""Of the paper's public code, by p and layers; the loss is summed over batches of 100."""
ADAM_LRS = (3e-4, 1e-4, 1e-3, 3e-5, 3e-3)
ADAM_EPOCHS = 40
VIT_EPOCHS = 60
UNFINISHED_FOLDER = "unfinished"
_NUMBER = (float, None)  # what is not finite is null
_KIND = dict.fromkeys(("number", "large", "largest", "gini"), _NUMBER)
_RESULT = {
    "name": str,
    "settings": dict,
    "history": {str: [_NUMBER]},
    "stopped?": str,
    "weights?": {str: _KIND | {"histogram": [int], "large_histogram": [int], "...": object}},
    "pruning?": {str: _NUMBER},
    "probes?": {
        "attention": [[_NUMBER]],
        "spans": [[[int]]],
        "pivotal": [_NUMBER],
        "positive": [_NUMBER],
    },
    "...": object,
}


@dataclass(frozen=True)
class Piece:
    """One run: `data` is "imdb" or "cifar10"."""

    name: str
    data: str
    settings: Settings


def plan() -> list[Piece]:
    """All pieces, most valuable first."""
    seeds, others = range(3), range(1, 3)
    found = [_descent(3, p, seed) for p in (3.0, 2.0, 1.1) for seed in seeds]  # the longest begin first
    found += [_adam(o, 1.1, lr) for lr in ADAM_LRS for o in ("mirror-adam", "adamw")]
    found += [_adam(o, 1.1, lr, seed) for seed in others for o, lr in (("adamw", 3e-4), ("mirror-adam", 1e-3))]
    found += [_vit("mirror-descent", 5e-2), _vit("adam", 1e-4), _vit("mirror-adam", 1e-3)]
    found += [_precise(_adam("mirror-adam", 1.1, 1e-3))]
    found += [_descent(layers, p, 0) for layers, p in ((4, 1.1), (4, 2.0), (6, 3.0), (4, 3.0), (6, 2.0), (6, 1.1))]
    found += [_vit("adam", 3e-4), _vit("mirror-adam", 3e-4), _vit("adam", 1e-3)]
    best, second = (("mirror-adam", 1e-3), ("adamw", 3e-4)), (("mirror-adam", 3e-4), ("adamw", 1e-4))
    found += [_adam(o, 1.1, lr, layers=layers) for rates in (best, second) for layers in (4, 6) for o, lr in rates]
    found += [_adam("mirror-adam", 1.5, lr) for lr in ADAM_LRS]
    found += [_adam("mirror-adam", 1.5, 1e-3, seed) for seed in others]
    found += [_precise(_adam("mirror-adam", 1.1, 1e-3, seed)) for seed in others]
    found += [_precise(_descent(3, 1.1, 0))]
    found += [_descent(layers, p, seed) for seed in others for layers in (4, 6) for p in PUBLIC_LR]
    return found


def find_piece(name: str) -> Piece:
    """A piece by its name."""
    for piece in plan():
        if piece.name == name:
            return piece
    raise AttsvmError(f"piece must be one of the plan, but got {name!r}.")


def run_piece(
    piece: Piece, data: Data, *, probes: Probes | None = None, device: str = "cpu", work: Path | None = None
) -> dict[str, Any]:
    """Train and measure the last weights: their sizes, pruning, and for texts the attention of [CLS] on the probes.

    A run that diverged leaves nothing to measure. A run that was killed resumes from its checkpoint in `work`.
    """
    settings = piece.settings
    fitted = fit(data, settings, device=device, out=work)
    start = time.perf_counter()
    model, placed = fitted.model, data.to(torch.device(device))
    columns = {name: [row[name] for row in fitted.history] for name in fitted.history[0]}
    result: dict[str, Any] = {
        "name": piece.name,
        "data": piece.data,
        "digest": data.digest(),
        "settings": settings.to_dict(),
        "stopped": fitted.stopped,
        "history": columns,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    if fitted.stopped != "diverged":
        result["weights"] = weight_summary(model)
        result["pruning"] = pruning_curve(model, placed.test, bf16=settings.bf16)
        if probes is not None and piece.data == "imdb":
            result["probes"] = class_attention(model, probes)
    result |= {
        "seconds": sum(columns["seconds"]),
        "measuring_seconds": time.perf_counter() - start,
        "processor": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "torch": torch.__version__,
        "attsvm": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return rounded(result)


def read_piece(folder: Path, piece: Piece, *, unfinished: bool = False) -> dict[str, Any] | None:
    """The kept result of a piece, if the folder has it; one of other settings does not count."""
    path = (folder / UNFINISHED_FOLDER if unfinished else folder) / f"{piece.name}.json"
    found = read_result(path) if path.is_file() else None
    return found if found is not None and found["settings"] == rounded(piece.settings.to_dict()) else None


def read_result(path: Path) -> dict[str, Any]:
    """A kept result."""
    return read_json(path, _RESULT, "the result of a run")


def rounded(value: Any) -> Any:
    """Numbers to six digits, as JSON holds them."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def _descent(layers: int, p: float, seed: int) -> Piece:
    lr = PUBLIC_LR[p][layers]
    return _imdb(f"md-p{p:g}-lr{lr:g}", Settings("mirror-descent", p, lr, seed=seed), layers)


def _adam(optimizer: str, p: float, lr: float, seed: int = 0, layers: int = 3) -> Piece:
    label = "adamw" if optimizer == "adamw" else f"mirror-adam-p{p:g}"
    return _imdb(f"{label}-lr{lr:g}", Settings(optimizer, p, lr, seed=seed, epochs=ADAM_EPOCHS), layers)


def _imdb(label: str, settings: Settings, layers: int) -> Piece:
    settings = replace(settings, sizes={"layers": layers}, bf16=True, compile=True)
    return Piece(f"imdb{layers}-{label}-seed{settings.seed}", "imdb", settings)


def _precise(piece: Piece) -> Piece:
    return replace(piece, name=piece.name + "-float32", settings=replace(piece.settings, bf16=False))


def _vit(optimizer: str, lr: float) -> Piece:
    settings = Settings(optimizer, 1.1, lr, epochs=VIT_EPOCHS, stop=1.0, loss="mean")
    return Piece(f"vit-{optimizer}-lr{lr:g}-seed0", "cifar10", replace(settings, bf16=True, compile=True))
