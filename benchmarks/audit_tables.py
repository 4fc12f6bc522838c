"""Tables and the figure of audits along training, from the rows of `audit_training.py`.

    python benchmarks/audit_tables.py rows/*.jsonl --keep benchmarks/results/audit/training.parquet
    python benchmarks/audit_tables.py benchmarks/results/audit/training.parquet --figure docs/images/audit.png

Numbers are medians over the heads of all seeds, with 95% intervals from 1,000 bootstrap samples: seeds are drawn, then
heads of each. A ratio compares a head with a control of its own: W_QK turned at random, or W_QK of the start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NORMS = ("l2", "nuclear", "spectral", "linf")
SYMBOLS = {"l2": "ℓ2", "nuclear": "nuclear", "spectral": "spectral", "linf": "ℓ∞"}
TASKS = {
    "gpt": "GPT, next word piece",
    "text": "Classifier, all layers but the last",
    "class": "Classifier, last layer: the query of the class token alone",
}
OPTIMIZERS = {
    "adamw": "AdamW",
    "muon": "Muon",
    "mirror-1.1": "MirrorAdam p = 1.1",
    "mirror-1.5": "MirrorAdam p = 1.5",
}
SAMPLES = 1000
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(rows: list[Row], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path)


def prepared(rows: list[Row]) -> list[Row]:
    """Step 0 was audited once per seed: it is the same for every optimizer. The last layer of the classifier, of which
    one query is read, is a task of its own."""
    last = max((row["layer"] for row in rows if row["task"] == "text"), default=0)
    rows = [row | {"task": "class"} if (row["task"], row["layer"]) == ("text", last) else row for row in rows]
    starts = [row for row in rows if row["step"] == 0]
    names = dict.fromkeys(row["optimizer"] for row in rows)
    return [row for row in rows if row["step"]] + [row | {"optimizer": name} for row in starts for name in names]


def bootstrap(values: dict[int, np.ndarray], of: Callable[[np.ndarray], Any] = np.median) -> tuple[float, float, float]:
    """A statistic of the values of all seeds, and its 95% interval; `values` by seed."""
    values = {seed: own[np.isfinite(own)] for seed, own in values.items()}
    values = {seed: own for seed, own in values.items() if len(own)}
    if not values:
        return float("nan"), float("nan"), float("nan")
    draw = np.random.default_rng(0)
    seeds, found = list(values), []
    for _ in range(SAMPLES):
        drawn = [values[seeds[i]] for i in draw.integers(len(seeds), size=len(seeds))]
        found.append(of(np.concatenate([own[draw.integers(len(own), size=len(own))] for own in drawn])))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(of(np.concatenate(list(values.values())))), float(low), float(high)


def by_seed(rows: list[Row], name: str) -> dict[int, np.ndarray]:
    return {
        seed: np.array([row[name] for row in rows if row["seed"] == seed and row.get(name) is not None], float)
        for seed in sorted({row["seed"] for row in rows})
    }


def shown(found: tuple[float, float, float]) -> str:
    at, low, high = found
    return "–" if np.isnan(at) else f"{at:.2g} ({low:.2g}, {high:.2g})"


def ratios(rows: list[Row], control: str, name: str) -> dict[int, np.ndarray]:
    """Of every head the value over that of its control, by seed."""
    place = ("seed", "layer", "head")
    of_control = {tuple(row[key] for key in place): row[name] for row in rows if row["kind"] == control}
    own = [row | {name: row[name] / of_control[at]} for row in rows
           if row["kind"] == "own" and (at := tuple(row[key] for key in place)) in of_control]  # fmt: skip
    return by_seed(own, name)


def table(names: list[str], lines: list[list[str]]) -> None:
    print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def select(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def print_task(rows: list[Row], task: str) -> None:
    print(f"\n### {TASKS[task]}")
    rows = select(rows, task=task)
    last = max(row["step"] for row in rows)
    ended = {name: select(rows, optimizer=name, step=last) for name in OPTIMIZERS}
    measures = {
        "norm": "‖W_QK‖", "stable_rank": "stable rank", "small": "small weights", "saturated": "saturated queries",
        "entropy": "entropy, nats", "margin": "median margin", "tokens_l2_alignment": "alignment with ℓ2",
    }  # fmt: skip
    lines = []
    start = select(rows, step=0, kind="own", optimizer="adamw")
    by_name = {"start": start} | {name: select(own, kind="own") for name, own in ended.items()}
    for name, own in by_name.items():
        if own:
            losses = sorted({(row["seed"], row["loss"], row.get("accuracy")) for row in own})
            loss = ", ".join(f"{loss:.3f}" + (f" ({100 * part:.1f}%)" if part else "") for _, loss, part in losses)
            cells = [shown(bootstrap(by_seed(own, measure))) for measure in measures]
            lines.append([OPTIMIZERS.get(name, name), loss, *cells])
    table(["at the end", "loss of every seed", *measures.values()], lines)
    lines = []
    for name, own in ended.items():
        for norm in NORMS if own else ():
            column = f"tokens_{norm}_efficiency"
            kinds = [shown(bootstrap(by_seed(select(own, kind=kind), column))) for kind in ("own", "turned", "start")]
            share = bootstrap(ratios(own, "turned", column), lambda x: np.mean(x > 1))
            compared = [shown(bootstrap(ratios(own, kind, column))) for kind in ("turned", "start")]
            lines.append([OPTIMIZERS[name], SYMBOLS[norm], *kinds, *compared, shown(share)])
    table(
        ["", "norm", "efficiency", "turned", "of the start", "over turned", "over the start", "heads above turned"],
        lines,
    )
    lines = []
    for name in OPTIMIZERS:
        for step in sorted({row["step"] for row in select(rows, optimizer=name)}):
            own = select(rows, optimizer=name, step=step, kind="own")
            columns = ["stable_rank", *(f"tokens_{norm}_efficiency" for norm in NORMS), "tokens_l2_alignment"]
            loss = np.mean([row["loss"] for row in own])
            seeds = len({row["seed"] for row in own})
            cells = [shown(bootstrap(by_seed(own, column))) for column in columns]
            lines.append([OPTIMIZERS[name], str(step), str(seeds), f"{loss:.3f}", *cells])
    names = ["", "step", "seeds", "loss", "stable rank", *(f"efficiency, {SYMBOLS[norm]}" for norm in NORMS)]
    table([*names, "alignment with ℓ2"], lines)


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.lines import Line2D

    from attsvm.plots import BLUE, GREEN, ORANGE, VERMILION, new_figure, save_figure, styled

    efficiencies = [(f"tokens_{norm}_efficiency", f"efficiency in {SYMBOLS[norm]}") for norm in NORMS]
    others = [
        ("tokens_l2_alignment", "cosine with the ℓ2 solution"),
        ("stable_rank", "stable rank of W_QK"),
        ("entropy", "entropy, nats"),
        ("small", "share of small weights"),
    ]
    tasks = [task for task in TASKS if select(rows, task=task)]
    lines = [
        (task, panels)
        for task in tasks
        for panels in ([efficiencies, others] if task == "gpt" else [[efficiencies[0], *others[:3]]])
    ]

    def draw_panel(axis: Any, task: str, name: str) -> None:
        for optimizer, colour in zip(OPTIMIZERS, (BLUE, ORANGE, GREEN, VERMILION)):
            own = select(rows, task=task, optimizer=optimizer)
            steps = sorted({row["step"] for row in own})
            found = np.array([bootstrap(by_seed(select(own, step=s, kind="own"), name)) for s in steps])
            if not len(found):
                continue
            known = ~np.isnan(found[:, 0])
            x, found = np.maximum(steps, 25)[known], found[known]
            axis.plot(x, found[:, 0], color=colour, label=OPTIMIZERS[optimizer])
            axis.fill_between(x, found[:, 1], found[:, 2], color=colour, alpha=0.15, linewidth=0)
            for kind, marker in (("turned", "o"), ("start", "x")):
                at, low, high = bootstrap(by_seed(select(own, kind=kind, step=steps[-1]), name))
                if not np.isnan(at) and name != "stable_rank":
                    face = {"markerfacecolor": "none", "markersize": 5, "color": colour, "linewidth": 0.8}
                    axis.errorbar([x[-1] * 1.35], [at], yerr=[[at - low], [high - at]], marker=marker, **face)
        axis.set_xscale("log")
        axis.set_xticks([25, 50, 100, 200, 400, 800, 1600], ["0", "50", "", "200", "", "800", ""], minor=False)
        axis.set_xticks([], minor=True)
        if "efficiency" in name:
            axis.set_yscale("log")
        if name == "stable_rank":
            axis.set_yscale("log")
            axis.set_yticks([2, 5, 10, 20, 40], ["2", "5", "10", "20", "40"])
            axis.set_yticks([], minor=True)

    @styled
    def figure() -> Any:
        made, axes = new_figure(len(lines), 4, (11, 2.4 * len(lines) + 0.4))
        for line, (task, panels) in enumerate(lines):
            for axis, (name, title) in zip(axes[line], panels):
                draw_panel(axis, task, name)
                axis.set_title(title)
            axes[line][0].set_ylabel(TASKS[task].replace(", ", "\n").replace(": ", ":\n"), fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("step")
        curves = axes[0][0].get_legend_handles_labels()
        marks = [
            Line2D([], [], color="0.3", marker=marker, markerfacecolor="none", linestyle="none", label=words)
            for marker, words in (("o", "W_QK turned at random"), ("x", "W_QK of the start"))
        ]
        made.legend(handles=[*curves[0], *marks], loc="outside lower center", ncols=6, frameon=False)
        return made

    save_figure(figure(), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, help="write all rows into this .parquet")
    parser.add_argument("--figure", type=Path, help="draw into this file")
    asked = parser.parse_args()
    rows = [row for path in asked.files for row in read(path)]
    if asked.keep:
        write(rows, asked.keep)
    rows = prepared(rows)
    for task in TASKS:
        if select(rows, task=task):
            print_task(rows, task)
    if asked.figure:
        draw(rows, asked.figure)


if __name__ == "__main__":
    main()
