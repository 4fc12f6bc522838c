"""Gradual pruning of a GPT on IMDB's word pieces: MirrorAdam against AdamW and Muon, at 50 to 98% zeros."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.experiments._checks import Check
from attsvm.experiments._draw import SERIES, Axes, Figure, Series, finish, new_figure, styled
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows
from attsvm.experiments.transformers import interval, nothing_yet

SOURCE = "sparse"
"""The data set's name: a folder with rows.parquet, the kept rows of benchmarks/sparse."""
SETTINGS = {
    "own head, nn.Linear's start": {"tied": False, "init": "torch"},
    "own head, GPT-2's start": {"tied": False, "init": "gpt2"},
    "tied head, GPT-2's start": {"tied": True, "init": "gpt2"},
}
METHODS = ("AdamW", "MirrorAdam p = 1.1", "MirrorAdam p = 1.5", "Muon")
LOOKS: dict[str, Series] = dict(zip(METHODS, SERIES))
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
SEEDS = (1, 2, 3)
BARS = {0.95: 0.04, 0.98: 0.08}
"""So much lower than AdamW's the loss should be."""

Row = dict[str, Any]


@lru_cache(1)
def kept_rows(folder: str) -> tuple[Row, ...]:
    """The rows of benchmarks/sparse, one per training run."""
    path = Path(folder) / "rows.parquet"
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise AttsvmError("kept rows need pyarrow: pip install 'attsvm[transformer]'.") from error
    try:
        rows = parquet.read_table(path).to_pylist()
        return tuple({**row, "options": json.loads(row["options"])} for row in rows)
    except (OSError, ArrowException, KeyError, ValueError) as error:
        raise AttsvmError(f"--data {SOURCE} must be a folder with the rows.parquet of benchmarks/sparse: {path} is "
                          "not such a file.") from error  # fmt: skip


def method_of(row: Row) -> str:
    """The name of a method, with its options."""
    options = dict(row["options"])
    titles = {"adamw": "AdamW", "muon": "Muon", "mirror": "MirrorAdam", "rigl": "RigL"}
    title = titles.get(row["method"], str(row["method"]))
    named = [f" p = {options.pop('p'):g}"] if "p" in options else []
    return title + "".join([*named, *(f", {name} = {value}" for name, value in sorted(options.items()))])


def run(params: Params, trials: range, device: str, data: Mapping[str, str]) -> Columns:
    """Test losses of the fresh seeds, and of the seed that chose the rate; nan where there is no run."""
    wanted = SETTINGS[params["setting"]] | {"corpus": "imdb", "sparsity": params["sparsity"]}
    rows = [row for row in kept_rows(data[SOURCE]) if method_of(row) == params["method"]]
    rows = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    fresh = {row["seed"]: row for row in rows if row["note"] == "main"}
    tuned = min((row for row in rows if row["note"] == "tune"), key=lambda row: _finite(row["validation"]), default={})
    found = [fresh.get(SEEDS[trial], {}) for trial in trials]
    columns = {name: np.array([row.get(name, np.nan) for row in found]) for name in ("test", "zeros", "lr")}
    return columns | {"tuned": np.full(len(found), tuned.get("test", np.nan))}


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


@styled
def figure(rows: Rows) -> Figure:
    if not np.isfinite(rows["test"]).any():
        return nothing_yet("no run is there yet")
    figure, axes = new_figure(1, len(SETTINGS), (12, 4))
    for ax, setting in zip(axes[0], SETTINGS):
        for method, look in LOOKS.items():
            _curve(ax, rows.where(setting=setting, method=method), look, method)
        ax.set(xscale="log", xlabel="entries that are not 0, %", title=setting)
        ax.set_xticks([100, 50, 20, 10, 5, 2], ["100", "50", "20", "10", "5", "2"])
        ax.minorticks_off()
        ax.invert_xaxis()
    axes[0][0].set_ylabel("test loss, nats per word piece")
    figure.suptitle("hollow: only the seed that chose the rate", fontsize=9)
    return finish(figure, list(axes[0]))


def _curve(ax: Axes, rows: Rows, look: Series, label: str) -> None:
    """Means of seeds with their 95% intervals; a hollow mark where there is only the seed that chose the rate."""
    points = []
    for params, columns in rows:
        losses = columns["test"][np.isfinite(columns["test"])]
        if len(losses):
            points.append((100 * (1 - params["sparsity"]), *interval(losses), True))
        elif np.isfinite(columns["tuned"][0]):
            points.append((100 * (1 - params["sparsity"]), columns["tuned"][0], np.nan, False))
    if not points:
        return
    x, mean, half, fresh = (np.array(column) for column in zip(*points))
    ax.plot(x, mean, color=look.colour, ls=look.line, lw=1.4, label=label)
    for marks, face in ((fresh, look.colour), (~fresh, "white")):
        style: dict[str, Any] = {"color": look.colour, "markerfacecolor": face, "ms": 5, "capsize": 3}
        ax.errorbar(x[marks], mean[marks], np.nan_to_num(half[marks]), fmt=look.marker, ls="none", **style)


def checks(rows: Rows) -> list[Check]:
    made = []
    for setting in SETTINGS:
        for share, bar in BARS.items():
            base = _losses(rows, setting, "AdamW", share)
            for method in ("MirrorAdam p = 1.1", "MirrorAdam p = 1.5"):
                ours = _losses(rows, setting, method, share)
                if np.isfinite(base - ours).sum() >= 2:
                    made.append(_lead(f"{setting}, {share:.0%} zeros: {method}", base, ours, bar))
    zeros = [(p["sparsity"], c["zeros"][np.isfinite(c["zeros"])]) for p, c in rows]
    far = max((float(np.abs(share - found).max()) for share, found in zeros if len(found)), default=np.nan)
    made.append(Check("the share of exact zeros is the one asked for", "", f"within {far:.0e}", far < 1e-4))
    return made


def _losses(rows: Rows, setting: str, method: str, share: float) -> np.ndarray:
    return rows.where(setting=setting, method=method, sparsity=share)["test"]


def _lead(what: str, base: np.ndarray, ours: np.ndarray, bar: float) -> Check:
    there = np.isfinite(base - ours)
    (a, half_a), (b, half_b), (lead, half) = (interval(v[there]) for v in (base, ours, base - ours))
    apart = abs(a - b) > half_a + half_b
    found = f"{lead:+.3f} ± {half:.3f} ({b:.3f} ± {half_b:.3f} against {a:.3f} ± {half_a:.3f}, {there.sum()} seeds)"
    return Check(f"{what} is below AdamW by {bar}, beyond the noise", "", found, bool(lead >= bar and apart))


EXPERIMENT = Experiment(
    id="sparse-gpt",
    title="Gradual pruning of a GPT: MirrorAdam against AdamW and Muon",
    statement="With the same gradual pruning, MirrorAdam ends at a lower loss than AdamW at 95 and 98% zeros.",
    grid={"setting": list(SETTINGS), "method": list(METHODS), "sparsity": list(SHARES)},
    run=run,
    figure=figure,
    checks=checks,
    trials=len(SEEDS),
    quick=len(SEEDS),
    batch=len(SEEDS),
    needs=(SOURCE,),
    cost=lambda params: 0.01,
    remark="The runs took a GPU and are kept as rows: benchmarks/sparse computes them. Rates were tuned on another "
    "seed, at 0 and at 90% zeros; benchmarks/results/sparse.md has the protocol and all rates.",
)
