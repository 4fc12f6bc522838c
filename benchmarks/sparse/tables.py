"""Draw and tabulate the rows of the benchmark of sparse training.

    python benchmarks/sparse/tables.py benchmarks/results/sparse/rows.jsonl

writes benchmarks/results/sparse.md and docs/images/sparse.png.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
# Of a mean of n seeds: t quantiles at 95%, two-sided, with n − 1 degrees of freedom.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


def name_of(row: Row) -> str:
    options = dict(row["options"])
    if row["method"] == "mirror":
        l1 = f", l1 = {options['l1']:g} of the {options.get('l1_of', 'mirror')}" if options.get("l1") else ""
        return f"MirrorAdam p = {options['p']:g}{l1}"
    title = {"adamw": "AdamW", "muon": "Muon", "rigl": "RigL (AdamW)", "padam": "pAdam", "adabreg": "AdaBreg"}
    extra = f" α = {options['alpha']:g}" if "alpha" in options else ""
    return f"{title.get(row['method'], row['method'])}{extra}"


def best(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row["validation"] if math.isfinite(row["validation"]) else math.inf)


def points(rows: list[Row]) -> dict[tuple[str, float], list[Row]]:
    """Rows of every method and share: fresh seeds where there are some, else the tuning seed at its best rate."""
    found: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        if row["note"] == "main":
            found[name_of(row), row["sparsity"]].append(row)
    tuned: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        if row["note"] == "tune":
            tuned[name_of(row), row["sparsity"]].append(row)
    for key, group in tuned.items():
        if key not in found:
            found[key] = [best(group)]
    return found


def interval(values: list[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95% interval; None for one seed."""
    if len(values) < 2:
        return values[0], None
    return statistics.mean(values), STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def cell(rows: list[Row] | None) -> str:
    if not rows:
        return "–"
    mean, half = interval([row["test"] for row in rows])
    tuned = "*" if rows[0]["note"] == "tune" else ""
    return f"{mean:.3f}{tuned}" if half is None else f"{mean:.3f} ± {half:.3f}"


def tables(rows: list[Row]) -> str:
    found = points(rows)
    names, shares = sorted({name for name, _ in found}), sorted({share for _, share in found})
    lines = [
        "| | " + " | ".join("dense" if s == 0 else f"{s:.0%}" for s in shares) + " |",
        "|---" * (len(shares) + 1) + "|",
    ]
    lines += [f"| {name} | " + " | ".join(cell(found.get((name, s))) for s in shares) + " |" for name in names]
    lines += ["", "Tuning, seed 0, validation loss:", "", "| | lr | dense | 90% |", "|---|---|---|---|"]
    by_rate: dict[tuple[str, float], dict[float, float]] = defaultdict(dict)
    for row in rows:
        if row["note"] == "tune":
            by_rate[name_of(row), row["lr"]][row["sparsity"]] = row["validation"]
    for (name, lr), losses in sorted(by_rate.items()):
        values = (f"{losses[s]:.3f}" if s in losses else "–" for s in (0, 0.9))
        lines.append(f"| {name} | {lr:g} | " + " | ".join(values) + " |")
    lines += ["", "One shot, no retraining: the dense runs of seed 0 at their best rate, test loss:", ""]
    cuts = (50, 70, 80, 90)
    lines += ["| | lr | dense | " + " | ".join(f"{c}%" for c in cuts) + " |", "|---" * (len(cuts) + 3) + "|"]
    for name in names:
        dense = [row for row in rows if name_of(row) == name and row["sparsity"] == 0 and row["note"] == "tune"]
        if dense:
            row = best(dense)
            values = " | ".join(f"{row[f'one_shot_{c}']:.3f}" for c in cuts)
            lines.append(f"| {name} | {row['lr']:g} | {row['test']:.3f} | {values} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = points(rows)
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name in sorted({name for name, _ in found}):
        shares = sorted(share for other, share in found if other == name)
        left = [100 * (1 - share) for share in shares]
        means, halves = zip(*(interval([row["test"] for row in found[name, share]]) for share in shares))
        bars = [half or 0.0 for half in halves]
        line = axes.plot(left, means, linewidth=1.2, label=name)[0]
        for x, y, bar, share in zip(left, means, bars, shares):
            hollow = found[name, share][0]["note"] == "tune"
            face = "white" if hollow else line.get_color()
            style = {"color": line.get_color(), "markerfacecolor": face, "markersize": 5, "capsize": 3}
            axes.errorbar(x, y, yerr=bar or None, marker="o", **style)
    axes.set(xscale="log", xlabel="non-zero entries of all matrices, %", ylabel="test loss, nats per word piece")
    axes.set_xticks([100, 50, 20, 10, 5, 2], ["100", "50", "20", "10", "5", "2"])
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, title="hollow: the seed that chose the rate")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(source: Path) -> None:
    rows = [json.loads(line) for line in source.read_text().splitlines() if line]
    rows = [row for row in rows if row["corpus"] == "imdb"]
    text = (Path(__file__).parent / "protocol.md").read_text()
    (ROOT / "benchmarks/results/sparse.md").write_text(text + "\n" + tables(rows))
    draw(rows, ROOT / "docs/images/sparse.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
