"""What the experiments on real transformers share: rows from kept or fresh pieces, groups of runs, paired tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm.errors import AttsvmError
from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, SKY, Figure, Series, new_figure
from attsvm.experiments._experiment import Columns, Params, Rows
from attsvm.experiments._transformer_runs import (
    PUBLIC_LR,
    UNFINISHED_FOLDER,
    VIT_EPOCHS,
    Piece,
    find_piece,
    plan,
    read_piece,
    read_result,
    run_piece,
)
from attsvm.transformer import EDGES, LARGE_EDGES, SHARES, load_data, load_probes, pivotal_reviews

__all__ = ["UNFINISHED_FOLDER", "VIT_EPOCHS", "find_piece", "plan", "read_piece", "read_result", "run_piece"]
__all__ += ["KINDS", "PRUNED", "chosen_accuracy", "group_runs", "run"]

SOURCE = "transformers"
"""The data set's name: a folder of kept results, as JSON. With imdb.npz and probes.npz, or cifar10.npz, in it what is
missing is computed."""
MISSING, UNFINISHED, FINISHED = range(3)
MOST_EPOCHS = 200
DRAWS = 20_000
"""Of random signs."""
KINDS = ("query", "key", "value")
PRUNED = (0.0, *SHARES)
PAPER_SIZE = 6
"""Of the models in Figures 8 and 9: the notebooks of the paper's public code open runs of six layers."""
LOOKS: dict[str, Series] = dict(zip(("ℓ1.1-MD", "ℓ2-MD", "ℓ3-MD", "AdamW", "MirrorAdam p = 1.1"), SERIES)) | {
    "MirrorAdam p = 1.5": Series(SKY, (0, (1, 2, 4, 2)), "X"),  # type: ignore[arg-type]
    "Adam": SERIES[3],
}
_load_data = lru_cache(1)(load_data)
# 97.5% quantiles of Student's t for 1, 2, … degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

IMDB = [piece.name for piece in plan() if piece.data == "imdb"]
VIT = [piece.name for piece in plan() if piece.data == "cifar10"]


def run(params: Params, trials: range, device: str, data: Mapping[str, str], work: Path | None = None) -> Columns:
    """One row: what is known of a piece, and all of it as JSON. A curve that ends early is filled up with nan."""
    piece = find_piece(params["piece"])
    result, status = _result(piece, Path(data[SOURCE]), device, work)
    return {"result": np.array([json.dumps(result)])} | {
        name: np.asarray(value)[None] for name, value in _columns(result, status).items()
    }


def _result(piece: Piece, folder: Path, device: str, work: Path | None) -> tuple[dict[str, Any], int]:
    if not folder.is_dir():
        raise AttsvmError(f"--data {SOURCE} must be a folder of kept results or data, but {folder} is not a folder.")
    found = read_piece(folder, piece)
    if found is not None:
        return found, FINISHED
    source = folder / f"{piece.data}.npz"
    if source.is_file():
        path = folder / "probes.npz"
        probes = load_probes(path) if path.is_file() else None
        with torch.enable_grad():
            found = run_piece(piece, _load_data(source), probes=probes, device=device, work=work)
        torch.compiler.reset()  # or the next piece, of other sizes, is compiled for any size
        return found, FINISHED
    found = read_piece(folder, piece, unfinished=True)
    return (found, UNFINISHED) if found is not None else ({}, MISSING)


def _columns(result: dict[str, Any], status: int) -> dict[str, Any]:
    history = result.get("history", {})
    test = history.get("test_accuracy", [])
    weights, pruning, probes = (result.get(name) for name in ("weights", "pruning", "probes"))
    reviews = len(pivotal_reviews())
    return {
        "status": status,
        "by_rule": result.get("stopped") == "accuracy",
        "epochs": len(test),
        "best": max(test, default=np.nan),
        "last": test[-1] if test else np.nan,
        "chosen": chosen_accuracy(history),
        "train_last": history["train_accuracy"][-1] if test else np.nan,
        "train_curve": _filled(history.get("train_accuracy", [])),
        "test_curve": _filled(test),
        "number": [weights[kind]["number"] if weights else 0 for kind in KINDS],
        "large": [weights[kind]["large"] if weights else 0 for kind in KINDS],
        "largest": [weights[kind]["largest"] if weights else np.nan for kind in KINDS],
        "gini": [weights[kind]["gini"] if weights else np.nan for kind in KINDS],
        "histogram": [weights[kind]["histogram"] if weights else [0] * (len(EDGES) - 1) for kind in KINDS],
        "large_histogram": [
            weights[kind]["large_histogram"] if weights else [0] * (len(LARGE_EDGES) - 1) for kind in KINDS
        ],
        "pruned": [pruning[f"{share:g}"] if pruning else np.nan for share in PRUNED],
        "pivotal": probes["pivotal"] if probes else [np.nan] * reviews,
        "positive": probes["positive"] if probes else [np.nan] * reviews,
    }


def chosen_accuracy(history: Mapping[str, Sequence[float]]) -> float:
    """Accuracy at a validated epoch: each half of the test rows chooses the epoch for the other; their mean."""
    if not history.get("test_accuracy_even"):
        return np.nan
    even, odd = np.asarray(history["test_accuracy_even"]), np.asarray(history["test_accuracy_odd"])
    return float(even[odd.argmax()] + odd[even.argmax()]) / 2


def _filled(curve: Sequence[float]) -> np.ndarray:
    filled = np.full(MOST_EPOCHS, np.nan)
    filled[: len(curve)] = curve
    return filled


@dataclass(frozen=True)
class Runs:
    """Runs that differ in the seed alone: columns (seeds, …), with how far they came."""

    method: str
    layers: int
    variant: str
    lr: float
    seeds: tuple[int, ...]
    columns: Columns

    @property
    def finished(self) -> bool:
        return bool((self.columns["status"] == FINISHED).all())

    def with_weights(self) -> Runs:
        """Those of which there are weights to look at."""
        there = np.flatnonzero(self.columns["number"].sum(1) > 0)
        columns = {name: column[there] for name, column in self.columns.items()}
        return replace(self, seeds=tuple(self.seeds[i] for i in there), columns=columns)

    @property
    def look(self) -> Series:
        return LOOKS[self.method]

    @property
    def extent(self) -> str:
        """Seeds and epochs, in words."""
        epochs = self.columns["epochs"]
        span = f"{epochs.min()}" if epochs.min() == epochs.max() else f"{epochs.min()}–{epochs.max()}"
        whole = int((self.columns["status"] == FINISHED).sum())
        ended = "" if self.finished else f", {whole} of {len(self.seeds)} to the end"
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}, {span} epochs{ended}"


def group_runs(rows: Rows) -> list[Runs]:
    """Runs of equal settings, those that are there."""
    by_setting: dict[tuple[str, int, str, float], dict[int, Columns]] = {}
    for params, columns in rows:
        if columns["status"][0] == MISSING:
            continue
        piece = find_piece(params["piece"])
        variant = "" if piece.settings.bf16 else "float32"
        key = (_method(piece), piece.settings.sizes.get("layers", 0), variant, piece.settings.lr)
        by_setting.setdefault(key, {})[piece.settings.seed] = columns
    found = []
    for (method, layers, variant, lr), by_seed in by_setting.items():
        names = next(iter(by_seed.values()))
        joined = {name: np.concatenate([by_seed[seed][name] for seed in sorted(by_seed)]) for name in names}
        found.append(Runs(method, layers, variant, lr, tuple(sorted(by_seed)), joined))
    return sorted(found, key=lambda runs: (runs.layers, runs.variant, [*LOOKS, runs.method].index(runs.method)))


def best_lr(found: Sequence[Runs], worth: Callable[[Runs], Any] | None = None) -> list[Runs]:
    """Of runs that differ in the learning rate alone the best: by their validated accuracy, or by `worth`."""
    worth = worth or _validated
    best: dict[tuple[str, int, str], Runs] = {}
    for runs in found:
        key = (runs.method, runs.layers, runs.variant)
        if key not in best or worth(runs) > worth(best[key]):
            best[key] = runs
    return list(best.values())


def _validated(runs: Runs) -> float:
    """Of the first seed: an accuracy that no row of the test split has chosen for itself."""
    chosen = runs.columns["chosen"][0]
    return float(chosen if np.isfinite(chosen) else runs.columns["last"][0])


def _method(piece: Piece) -> str:
    p = f"{piece.settings.p:g}"
    names = {"mirror-descent": f"ℓ{p}-MD", "mirror-adam": f"MirrorAdam p = {p}", "adamw": "AdamW", "adam": "Adam"}
    return names[piece.settings.optimizer]


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Mean of paired differences and half of its 95% interval (Student's t); without a second seed it is unknown."""
    n = len(differences)
    if n < 2:
        return float(differences.mean()), np.nan
    return float(differences.mean()), float(_T[min(n, len(_T) + 1) - 2] * differences.std(ddof=1) / np.sqrt(n))


def sign_flip_test(differences: np.ndarray) -> float:
    """Two-sided p-value of a mean of 0: how often random signs give a mean as far from 0."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(DRAWS, len(differences)))
    flipped = np.abs(signs @ differences)
    return float((1 + (flipped >= abs(differences.sum()) * (1 - 1e-12)).sum()) / (1 + DRAWS))


def pruning_checks(sparse: Runs, dense: Runs, size: str = "") -> list[Check]:
    """What is left of the test accuracy where the smallest attention weights are set to 0."""
    made = []
    for share in (0.8, 0.9, 0.95):
        a, b = (100 * runs.columns["pruned"][:, PRUNED.index(share)].mean() for runs in (sparse, dense))
        against = f"{size}more accuracy left with {sparse.method} than with {dense.method}"
        name = f"{against} after zeroing {100 * share:g}% of the attention weights"
        made.append(Check(name, "", f"{a:.2f}% against {b:.2f}%", a > b, extra=True))
    return made


def nothing_yet(what: str) -> Figure:
    """A figure that says what is not there."""
    figure, axes = new_figure(1, 1, (6, 1.2))
    axes[0][0].axis("off")
    axes[0][0].text(0.5, 0.5, what, ha="center", va="center")
    return figure


@cache
def required() -> dict[str, list[str]]:
    """The pieces that the comparison of optimizers needs at the least, by what they are for."""
    names = [piece.name for piece in plan()]
    size_3 = [n for n in names if n.startswith("imdb3-md") and n.endswith(("seed0", "seed1", "seed2"))]
    adams = [n for n in names if n.startswith(("imdb3-adamw", "imdb3-mirror-adam-p1.1")) and n.endswith("seed0")]
    larger = [n for n in names if n.startswith(("imdb4-md", "imdb6-md")) and n.endswith("seed0")]
    assert len(size_3) == 3 * len(PUBLIC_LR)
    return {"size 3, three seeds": size_3, "AdamW and MirrorAdam, five rates": adams, "sizes 4 and 6": larger}


def there_are(figure: str, found: Mapping[int, Mapping[str, Runs]]) -> list[Check]:
    """A failed check where the runs are missing that Figures 8 and 9 of the paper compare."""
    missing = ", ".join(method for method in ("ℓ1.1-MD", "ℓ2-MD") if method not in found.get(PAPER_SIZE, {}))
    name = f"runs of ℓ1.1 and ℓ2 at size {PAPER_SIZE}"
    return [Check(name, figure, f"not there yet: {missing}", False)] if missing else []


def measured(rows: Rows, column: str = "gini") -> dict[int, dict[str, Runs]]:
    """Runs of the plain variant whose last weights were measured, by size and method, at each method's best rate.

    Rates at which training reached its stopping rule go first: others may have lost by their last epoch what they had
    learned, so that their last weights say nothing.
    """
    found: dict[int, dict[str, Runs]] = {}
    for runs in best_lr(group_runs(rows), lambda runs: (bool(runs.columns["by_rule"].all()), _validated(runs))):
        there = runs.with_weights()
        if not runs.variant and there.seeds and np.isfinite(there.columns[column]).all():
            found.setdefault(runs.layers, {})[runs.method] = there
    return found
