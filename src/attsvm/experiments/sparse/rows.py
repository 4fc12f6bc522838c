"""What the experiments on sparse training share: rows that are kept or trained again, curves, leads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.experiments._checks import Check
from attsvm.experiments._draw import GREEN, ORANGE, PURPLE, SERIES, SKY, Axes, Figure, Series
from attsvm.experiments._experiment import Columns, Experiment, Params, Rows
from attsvm.experiments.sparse.again import train_again
from attsvm.experiments.transformers import interval, nothing_yet

SOURCE = "sparse"
"""The data set's name: a folder with rows.parquet, the kept rows of benchmarks/sparse."""
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
SEEDS = (1, 2, 3)
AGAIN = "corpora"
"""The data set's name: a folder of what benchmarks/sparse/corpora.py writes. With it all runs are trained again, at the
rates that the kept rows chose."""
REMARK = f"The runs took a GPU and are kept as rows. With --data {AGAIN}=FOLDER they are trained again."
TUNED_AT = 0.9
BARS = {0.95: 0.04, 0.98: 0.08}
"""So much lower than AdamW's the loss should be, by share of zeros."""

OURS = ("MirrorAdam p = 1.1", "MirrorAdam p = 1.25", "MirrorAdam p = 1.5")
POWERPROP = "powerprop, alpha = 10"
MIRROR_MUON = "MirrorMuon p = 1.5"
UNMASKED = "Muon, gradients = dense"
ADVISED = ("AdamW", "Muon", MIRROR_MUON, POWERPROP)
OTHERS = ("powerprop, alpha = 2", "RigL", UNMASKED)
METHODS = (*ADVISED, *OURS, *OTHERS)
"""Methods with pruning. Powerprop is MirrorAdam with ``moments_of="mirror"``, p = 1 + 1/alpha and no weight decay. In
the last one gradients of pruned entries reach Muon's orthogonal factor."""
PENALTIES = (
    "MirrorAdam p = 2, l1",
    "MirrorAdam p = 1.5, l1 of θ",
    "MirrorAdam p = 1.5, l1 of W",
    "MirrorAdam p = 1.1, l1 of θ",
    "MirrorAdam p = 1.1, l1 of W",
    "AdaBreg",
    "pAdam",
)
"""Methods whose zeros come from a penalty."""
TITLES = {
    "adamw": "AdamW",
    "muon": "Muon",
    "mirror-muon": "MirrorMuon",
    "mirror": "MirrorAdam",
    "rigl": "RigL",
    "adabreg": "AdaBreg",
    "padam": "pAdam",
}

CORPORA: dict[str, dict[str, Any]] = {
    "GPT on IMDB": {"corpus": "imdb", "clip": 1.0, "tied": False, "init": "torch"},
    "GPT on WikiText-2": {"corpus": "wikitext-2", "epochs": 6.0, "width": 0},
    "ViT on CIFAR-10": {"corpus": "cifar10-16"},
}
"""Models that all methods trained, in one setting each."""

NEAR = 0.03
"""A penalty's share of zeros counts as one that is asked for if it is so near."""
LOOKS: dict[str, Series] = {
    "AdamW": SERIES[0],
    "MirrorAdam p = 1.1": SERIES[1],
    "Muon": SERIES[2],
    UNMASKED: Series(GREEN, ":", "<"),
    "MirrorAdam p = 1.5": SERIES[3],
    "MirrorAdam p = 1.25": Series(PURPLE, "-", "X"),
    POWERPROP: SERIES[4],
    "powerprop, alpha = 2": Series(ORANGE, ":", ">"),
    MIRROR_MUON: Series(SKY, "-", "h"),
    "RigL": Series("0.4", "--", "P"),
}
"""Of a method in all panels, with any threshold, weight decay or teacher."""
BESIDE = Series("0.6", ":", "o")
"""Of a method in a panel of its own variants."""
FREE = (
    *SERIES[1:],
    LOOKS[MIRROR_MUON],
    *(Series("0.4", "--", "P"), Series("0.6", ":", "X"), Series("0.75", "-.", "*")),
)
"""Of all others, in their order."""

Row = dict[str, Any]


@lru_cache(1)
def kept_rows(folder: str) -> tuple[Row, ...]:
    """The rows of benchmarks/sparse, one per training run, with the `name` of its method."""
    path = Path(folder) / "rows.parquet"
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise AttsvmError("kept rows need pyarrow: pip install 'attsvm[transformer]'.") from error
    try:
        rows = parquet.read_table(path).to_pylist()
        rows = [{**row, "options": json.loads(row["options"])} for row in rows]
        return tuple({**row, "name": method_of(row)} for row in rows)
    except (OSError, ArrowException, KeyError, ValueError) as error:
        raise AttsvmError(f"--data {SOURCE} must be a folder with the rows.parquet of benchmarks/sparse, but {path} "
                          "is not one.") from error  # fmt: skip


def from_rows(**facts: Any) -> Experiment:
    """An experiment that reads kept rows, unless it is given corpora: all its trials at once, also in its quick form.
    `facts` take precedence."""
    trials = len(SEEDS)
    usual = {"trials": trials, "quick": trials, "batch": trials, "cost": lambda params: 0.01}
    drawn = facts.pop("figure")

    def figure(rows: Rows) -> Figure:
        there = any(
            np.isfinite(columns[name]).any() for _, columns in rows for name in ("test", "loss") if name in columns
        )
        return drawn(rows) if there else nothing_yet("no run is there yet")

    return Experiment(**{**usual, **facts}, figure=figure, needs=(SOURCE,), accepts=(AGAIN,))


def method_of(row: Row) -> str:
    """The name of a method, with its options."""
    options = dict(row["options"])
    title = TITLES.get(row["method"], str(row["method"]))
    if row["method"] == "mirror-muon" and row["note"] in ("main", "tune", "decay"):  # a part of its tuning
        options = {name: value for name, value in options.items() if name not in ("head_lr", "scope")}
    if row["method"] == "mirror" and "l1" in options and options["p"] != 2:  # there θ is W
        of = {"mirror": "θ", "weight": "W"}[options.pop("l1_of", "mirror")]
        options[f"l1 of {of}"] = options.pop("l1")
    named = [f" p = {options.pop('p'):g}"] if "p" in options else []
    values = ((name, f"{value:g}" if isinstance(value, float) else value) for name, value in sorted(options.items()))
    return title + "".join([*named, *(f", {name} = {value}" for name, value in values)])


def chosen_rate(rows: Sequence[Row], share: float) -> Row | None:
    """Of one method's rows the tuning run with the smallest validation loss: dense for dense runs, else at 90%."""
    at = 0.0 if share == 0 else TUNED_AT
    tuned = [row for row in rows if row["note"] == "tune" and row["sparsity"] == at]
    return min(tuned, key=lambda row: row["validation"] if math.isfinite(row["validation"]) else math.inf, default=None)


def read(
    params: Params,
    wanted: Mapping[str, Any],
    trials: range,
    device: str,
    data: Mapping[str, str],
    notes: Sequence[str] = ("main",),
    value: str = "test",
) -> Columns:
    """What the fresh seeds reach at the chosen rate, and the loss of the seed that chose it; nan where there is no
    run. `notes` are what the runs are for; `value` is the loss that counts."""
    rows = [row for row in kept_rows(data[SOURCE]) if row["name"] == params["method"]]
    rows = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    best, share = chosen_rate(rows, params["sparsity"]), params["sparsity"]
    there = [row for row in rows if row["sparsity"] == share and (best is None or row["lr"] == best["lr"])]
    fresh = [row for row in there if row["note"] in notes]
    if AGAIN in data:
        fresh = _again(fresh[:1] or ([] if best is None else [best]), share, trials, device, data)
    return _columns(fresh, best if best is not None and best["sparsity"] == share else {}, trials, value)


def by_penalty(
    params: Params, wanted: Mapping[str, Any], trials: range, device: str, data: Mapping[str, str]
) -> Columns:
    """Of a method whose zeros come from a penalty: the fresh seeds of the strength and rate whose share of zeros is
    nearest to the one asked for; where there are none, the nearest run of the seed that was tried on."""
    rows = [row for row in kept_rows(data[SOURCE]) if all(row[name] == value for name, value in wanted.items())]
    rows = [row for row in rows if row["name"].startswith(params["method"])]
    tried: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["note"] == "penalty":
            tried.setdefault((row["name"], row["lr"]), []).append(row)
    off = {abs(np.mean([row["zeros"] for row in own]) - params["sparsity"]): own for own in tried.values()}
    fresh = off[min(off)] if min(off, default=1.0) < NEAR else []
    if AGAIN in data:
        fresh = _again(fresh[:1], 0.0, trials, device, data)
    alone = {abs(row["zeros"] - params["sparsity"]): row for row in rows if row["note"] == "strength"}
    return _columns(fresh, alone[min(alone)] if min(alone, default=1.0) < NEAR else {}, trials)


def _again(rows: Sequence[Row], share: float, trials: range, device: str, data: Mapping[str, str]) -> list[Row]:
    """The runs of these trials with the settings of a row, if there is one."""
    return [run for row in rows for run in train_again(row, share, [SEEDS[i] for i in trials], data[AGAIN], device)]


def _columns(fresh: Sequence[Row], alone: Row, trials: range, value: str = "test") -> Columns:
    """Of the fresh seeds, and of a run of one seed that shows where there are none."""
    by_seed = {row["seed"]: row for row in fresh}
    found = [by_seed.get(SEEDS[trial], {}) for trial in trials]
    tuned = {"tuned": value, "tuned_zeros": "zeros", "tuned_accuracy": "accuracy"}
    return {
        "test": _numbers(value, found),
        **{name: _numbers(name, found) for name in ("accuracy", "zeros", "lr")},
        **{name: np.repeat(_numbers(key, [alone]), len(found)) for name, key in tuned.items()},
    }


def _numbers(name: str, found: Sequence[Row]) -> np.ndarray:
    return np.array([np.nan if row.get(name) is None else row[name] for row in found])


def base_of(method: str) -> str:
    """The name of a method without what its runs were told beside."""
    return re.sub(r", (?!alpha|gradients)\w+ = [^,]*", "", method)


def looks_of(methods: Sequence[str]) -> list[Series]:
    """Of the methods of a panel: variants look as the method does, which then stands beside them in grey."""
    bases = [base_of(method) for method in methods]
    looks: dict[str, Series] = {}
    for method, base in zip(methods, bases):
        if method == base and bases.count(base) > 1:
            looks[method] = BESIDE
        elif base in LOOKS and LOOKS[base] not in looks.values():
            looks[method] = LOOKS[base]
    free = (look for look in FREE if look not in looks.values())
    return [looks[method] if method in looks else next(free) for method in methods]


def curves(
    ax: Axes, rows: Rows, methods: Sequence[str], value: str = "test", names: Mapping[str, str] | None = None
) -> None:
    """One for each method, under its name or what `names` calls it."""
    for method, look in zip(methods, looks_of(methods)):
        _curve(ax, rows.where(method=method), look, (names or {}).get(method, method), value)


def _curve(ax: Axes, rows: Rows, look: Series, label: str, value: str) -> None:
    """Means of seeds with their 95% intervals, over the share of entries that are not 0; a hollow mark where there is
    only one seed."""
    points, alone = [], "tuned" if value == "test" else f"tuned_{value}"
    for _, columns in rows:
        there = np.isfinite(columns[value])
        if there.any():
            share = 100 * (1 - columns["zeros"][there].mean())
            points.append((share, *interval(columns[value][there]), there.sum() > 1))
        elif np.isfinite(columns[alone][0]):
            points.append((100 * (1 - columns["tuned_zeros"][0]), columns[alone][0], np.nan, False))
    if not points:
        return
    x, mean, half, several = (np.array(column) for column in zip(*sorted(points)))
    ax.plot(x, mean, look.marker, color=look.colour, ls=look.line, lw=1.4, ms=5, markevery=[], label=label)
    for marks, face in ((several, look.colour), (~several, "white")):
        style: dict[str, Any] = {"color": look.colour, "markerfacecolor": face, "ms": 5, "capsize": 3}
        ax.errorbar(x[marks], mean[marks], np.nan_to_num(half[marks]), fmt=look.marker, ls="none", **style)


def dense_line(ax: Axes, rows: Rows) -> None:
    """The mean loss of dense AdamW."""
    dense = rows.where(method="AdamW", sparsity=0.0)["test"]
    if np.isfinite(dense).any():
        ax.axhline(float(np.nanmean(dense)), color="0.6", lw=0.8)


def below(
    ax: Axes,
    rows: Rows,
    methods: Sequence[str],
    title: str,
    base: str = "AdamW",
    names: Mapping[str, str] | None = None,
) -> None:
    """How far each method is below AdamW, seed by seed, where the bars are: means and 95% intervals."""
    for (share, bar), look, shift in zip(BARS.items(), SERIES, (0.15, -0.15)):
        losses = rows.where(method=base, sparsity=share)["test"]
        ahead = [losses - rows.where(method=method, sparsity=share)["test"] for method in methods]
        there = [(i - shift, *interval(x[np.isfinite(x)])) for i, x in enumerate(ahead) if np.isfinite(x).sum() > 1]
        if there:
            y, mean, half = (np.array(column) for column in zip(*there))
            label = f"{share:.0%} zeros; dashed: {bar:g}"
            ax.errorbar(mean, y, xerr=half, fmt=look.marker, color=look.colour, ms=5, capsize=3, ls="none", label=label)
        ax.axvline(bar, color=look.colour, ls="--", lw=0.8)
    ax.axvline(0, color="0.6", lw=0.8)
    for i, method in enumerate(methods):
        ax.text(0.01, i, (names or {}).get(method, method), transform=ax.get_yaxis_transform(), fontsize=8, va="center")
    left, right = ax.get_xlim()
    ax.set(xlim=(left - 0.6 * (right - left), right), ylim=(len(methods) + 0.6, -0.6), yticks=[])
    ax.set(xlabel="test loss below AdamW's", title=title)


def share_axis(ax: Axes, title: str) -> None:
    ax.set(xscale="log", xlabel="entries that are not 0, %", title=title)
    least, most = 0.99 * ax.dataLim.x0, 1.01 * ax.dataLim.x1
    ticks = [tick for tick in (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2) if least <= tick <= most]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.invert_xaxis()


def lead(what: str, base: np.ndarray, ours: np.ndarray, bar: float, than: str = "AdamW") -> Check:
    """Whether a loss is so much lower than AdamW's, or than another's, and the intervals of both do not overlap."""
    there = np.isfinite(base - ours)
    (a, half_a), (b, half_b), (ahead, half) = (interval(v[there]) for v in (base, ours, base - ours))
    apart = abs(a - b) > half_a + half_b
    found = f"{ahead:+.3f} ± {half:.3f} ({b:.3f} ± {half_b:.3f} against {a:.3f} ± {half_a:.3f}, {there.sum()} seeds)"
    return Check(f"{what} is below {than} by {bar}, beyond the noise", "", found, bool(ahead >= bar and apart))


def leads(
    rows: Rows, where: str, methods: Sequence[str], bars: Mapping[float, float], than: str = "AdamW", **setting: Any
) -> list[Check]:
    """`lead` of each method at each share, where there are two seeds or more."""
    made = []
    for share, bar in bars.items():
        base = rows.where(method=than, sparsity=share, **setting)["test"]
        for method in methods:
            ours = rows.where(method=method, sparsity=share, **setting)["test"]
            if np.isfinite(base - ours).sum() >= 2:
                made.append(lead(f"{where}, {share:.0%} zeros: {method}", base, ours, bar, than))
    return made


def exact_zeros(rows: Rows, but: Sequence[str] = ()) -> Check:
    """Of all runs with gradual pruning, which are all `but` those of some methods."""
    pruned = [(p["sparsity"], c["zeros"]) for p, c in rows if p["sparsity"] > 0 and p["method"] not in but]
    zeros = [(share, found[np.isfinite(found)]) for share, found in pruned]
    far = max((float(np.abs(share - found).max()) for share, found in zeros if len(found)), default=np.nan)
    return Check("the share of exact zeros is the one asked for", "", f"within {far:.0e}", far < 1e-4)
