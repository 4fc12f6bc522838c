"""Keep, tabulate and draw the rows of the benchmark of sparse training.

    python benchmarks/sparse/tables.py [new-rows.jsonl]

adds new rows to benchmarks/results/sparse/rows.parquet, and writes benchmarks/results/sparse.md and
docs/images/sparse*.png, the figures of the experiments sparse-*.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attsvm.experiments import CATALOG, Rows
from attsvm.experiments.catalog import sparse_cut, sparse_lr
from attsvm.experiments.catalog.sparse_gpt import SETTINGS
from attsvm.experiments.catalog.sparse_wikitext import CORPUS, PUSHED
from attsvm.experiments.sparse.methods import Family
from attsvm.experiments.sparse.rows import CORPORA, MIRROR_MUON, POWERPROP, SOURCE, chosen_rate, kept_rows, method_of
from attsvm.experiments.transformers import interval

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/results/sparse"
DOCUMENT = ROOT / "benchmarks/results/sparse.md"
EXPERIMENTS = (
    "sparse-gpt",
    "sparse-wikitext",
    "sparse-characters",
    "sparse-vit",
    "sparse-classifier",
    "sparse-cut",
    "sparse-lr",
)
START = """With a head of its own, each method at the start whose best rate has the smaller validation loss at 90%
zeros, on seed 0, or on the fresh seeds where seed 0 was not run. For p = 1.5 the two differ by 0.0006."""
WIKITEXT = """A GPT of 4 layers, width 256, on WikiText-2 as 4,096 byte pairs (3.0M tokens), 6 epochs (1,092 steps),
dropout 0.1, own head, nn.Linear's start; otherwise the protocol above. Nats per byte pair."""
IMAGES = """A ViT of 4 layers, width 256, on CIFAR-10's images averaged to 16 × 16 pixels, patches of 2 × 2, 10 epochs
(1,750 steps), dropout 0.1, shifts and mirror images, nn.Linear's start; AdamW at 1e-3 on embeddings and norms. Nats per
image."""
COMBINED = """Three seeds each. The rate is that of the method alone, not tuned again. *Muon first*: Muon's steps for
the first fifth of the run, MirrorAdam from there. *Distilled*: half of every label is the prediction of a dense teacher
that Muon trained at 0.004 from the same start; the teacher's run costs as much again."""
IDEAS = """One rate each; one seed, or three where there is an interval. `epochs` 12 is twice the training. *gradients =
dense*: those of pruned entries reach Muon's orthogonal factor. *scope = relative*: one threshold in units of each
matrix's root mean square."""
FRONT_ON_IMDB = """What might bring 90 and 95% zeros to the loss of dense AdamW. `distil` is the share of a dense
teacher's predictions in the labels; Muon trained it at `teacher_lr` from the same start, in as many epochs or in
`teacher_epochs`. Rates are those of the method alone. Seed 0, which these ideas were tried on, and the mean of the
fresh seeds of what was taken further."""
FRONT_OF_CHARACTERS = """A share `distil` of every label is the prediction of a dense teacher that Muon trained at
`teacher_lr` from the same start, in as many steps. Rates are those of the method alone. Shares of 0.5, 0.8 and 1 were
tried on seed 0; 0.5 was run on fresh seeds before that, 0.8 after it. With `regrow` that share of the kept weights is
exchanged at every change of the masks. Dense AdamW is in the table above."""
RELATIVE = """Pruned with `scope="relative"`: one threshold in units of each matrix's root mean square. Three seeds; the
rate is the one that the method has with one threshold for all."""
DECAY = """Adam's second decay rate β2, of all parameters, and the weight decay of matrices: one run each on seed 0 at
90% zeros, and rates around the best. Usual are 0.999 and 0.01, or no decay with powerprop and MirrorMuon. Bold: the
smallest validation loss. Then fresh seeds, and how far they are below AdamW and Muon here, with the same threshold."""
DECAY_KNOWN = "Fresh seeds at the rates and weight decays that are best on WikiText-2's characters: nothing was chosen."
PENALTY = """Without pruning. First the fresh seeds: for 90% and for 95% zeros the strength and the rate with the
smallest validation loss among those of seed 0 with at least so many zeros (less half a percent), chosen in the table
below, which has every strength and rate of seed 0. AdaBreg makes no 95% there."""
PENALTY_ON_IMDB = """Own head, nn.Linear's start, without pruning. First three fresh seeds of the strength and rate with
the smallest validation loss among those of seed 0 with at least 90% zeros (less half a percent); then seed 0. Strengths
are next to those that make 90% on WikiText-2."""
PENALTY_ON_IMAGES = """Without pruning. First three seeds of what has the smallest validation loss with at least 90%
zeros on seed 0; then seed 0. AdaBreg makes no 95% here either."""
PENALTY_ON_LABELS = """Without pruning. First three seeds of what has the smallest validation loss with at least 90%
zeros on seed 0 (less half a percent); then seed 0. Test accuracy in percent."""
FRONT = """Seed 0, 90% zeros, all distilled from Muon's dense model, with Muon for the first fifth. `distil` is the
teacher's share in the labels; pruning goes from 20 to 75% of the steps unless said otherwise. One run each; none was
repeated on fresh seeds."""
TWO_FOUR = """Two of four neighbours in a row are 0 in every matrix, by the same gradual pruning. Three seeds; the rate
is the one that the method has at 90% zeros."""
LABELS = """The first 256 word pieces of a review and its label. The paper's transformer: 3 layers, width 384, dropout
0.2; 22,500 reviews in batches of 128, 5 epochs (875 steps), nn.Linear's start; AdamW at 1e-3 on embeddings and norms.
2,500 train reviews are for validation, 10,000 of the test split are tested. Nats per review. At the lower edge of seven
rates lie the best dense ones of AdamW, MirrorAdam and powerprop, and at 90% those of p = 1.1 and of Muon with dense
gradients."""
RATES = """Validation loss of the GPT on WikiText-2 after one epoch, dense, mean of three seeds, rates 1e-4, 3e-4, …,
1e-1. The rate of embeddings and norms stays at 2e-3. The best rate of every model, and the rate that loses least over
all six, with what it loses on each seed."""
TOP = (0.9, 0.95, 0.98)
SCOPE = ", scope = relative"
LEADS = """How far the test loss is below that of {} with the same start, head and threshold, paired by seed: the mean
and its 95% interval over the fresh seeds. Bold: beyond the noise. The start is nn.Linear's unless GPT-2's is named;
that of the tied head is GPT-2's. The threshold is one of |w| for all matrices; *relative*: in units of each matrix's
root mean square (`scope="relative"`). A dagger marks MirrorMuon with the latter where {} was not run with it on fresh
seeds."""
MIRROR = {"MirrorAdam p = 1.1": "p = 1.1", POWERPROP: "powerprop", MIRROR_MUON: "MirrorMuon"}
ONE_SHOT_WORDS = """Dense runs of the fresh seeds, each method at the rate that is best for its dense model, cut by
size: one threshold of |w| for all matrices. Own head, nn.Linear's start; test loss."""
CHARACTERS = """The first two million characters of WikiText-2's train split, a GPT of 2 layers and width 64, windows of
64, batches of 32, one epoch (976 steps), own head, nn.Linear's start; otherwise the protocol above. On a CPU
(`run.py --eager`), where a run takes half a minute. The threshold is one for all, also for MirrorMuon. Nats per
character."""
CHARACTERS_IMDB = """The same on the first two million characters of IMDB's train texts. Nothing was tuned or chosen on
them: rates are those of WikiText-2's characters, and all runs were planned before the first."""
CHARACTERS_GPT2 = """The same with GPT-2's start: normal with a deviation of 0.02, and 0.01 where a sub-layer writes to
the residual stream. Rates were tuned at 90% alone."""


def add(source: Path) -> None:
    """New rows behind those that are kept, each once."""
    usual = {name: value for name, value in asdict(Family("", 0.0, 0)).items() if name != "sparsities"}
    path = FOLDER / "rows.parquet"
    kept = pq.read_table(path).to_pylist() if path.is_file() else []
    rows = [usual | {name: value for name, value in row.items() if value is not None} for row in kept]
    for line in source.read_text().splitlines():
        row = usual | json.loads(line)
        rows.append(row | {"options": json.dumps(row["options"], sort_keys=True), "clip": row["clip"] or 0.0})
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole: list[Row] = [{name: row.get(name) for name in names} for row in rows]
    for row in whole:
        row |= {name: float(row[name]) for name in ("epochs", "sparsity", "lr", "clip") if row[name] is not None}
    once = {json.dumps({k: v for k, v in row.items() if k != "seconds"}, sort_keys=True): row for row in whole}
    pq.write_table(pa.Table.from_pylist(list(once.values())), path)


def shown(values: list[float], scale: float = 1.0) -> str:
    digits = 3 if scale == 1 else 1
    mean, half = interval(scale * np.array(values))
    seeds = "" if len(values) == 3 else f" ({len(values)} seed{'s' * (len(values) > 1)})"
    return (f"{mean:.{digits}f} ± {half:.{digits}f}" if math.isfinite(half) else f"{mean:.{digits}f}") + seeds


def fresh(rows: list[Row], share: float) -> list[Row]:
    """Of one method the runs of fresh seeds at the chosen rate."""
    chosen = chosen_rate(rows, share)
    there = [row for row in rows if row["sparsity"] == share and row["note"] in ("main", "relative")]
    return [row for row in there if chosen is None or row["lr"] == chosen["lr"]]


def cell(rows: list[Row], share: float, value: str = "test") -> str:
    """The mean of the fresh seeds; else the tuning seed at its best rate, with a star."""
    scale = 100.0 if value == "accuracy" else 1.0
    values = [row[value] for row in fresh(rows, share)]
    chosen = chosen_rate(rows, share)
    if not values and chosen is not None and chosen["sparsity"] == share:
        return f"{scale * chosen[value]:.{3 if scale == 1 else 1}f}*"
    return shown(values, scale) if values else "–"


def lead(rows: list[Row], base: list[Row], share: float, bold: bool = False) -> str:
    """How much lower than the base's, seed by seed; bold where it is beyond the noise, if that is asked for."""
    losses, other = ({row["seed"]: row["test"] for row in fresh(part, share)} for part in (rows, base))
    paired = [other[seed] - losses[seed] for seed in losses if seed in other]
    if not paired:
        return "–"
    mean, half = interval(np.array(paired))
    mark = "**" if bold and mean > half else ""
    size = f"{mean:+.3f}".replace("-", "−")
    if bold:
        size = size.removeprefix("+")
    return f"{mark}{size} ± {half:.3f}{mark}" if math.isfinite(half) else size


def leads_table(settings: Mapping[str, list[Row]], than: str, ahead: Mapping[str, str]) -> list[str]:
    """What methods gain over another one on every model, in one place."""
    lines = [f"## How far ahead of {than}", "", LEADS.format(than, than), ""]
    for share in TOP:
        lines += [f"| {share:.0%} zeros | " + " | ".join(ahead.values()) + " |", "|---" * (len(ahead) + 1) + "|"]
        for setting, rows in settings.items():
            methods = by_threshold(rows)
            for scope in ("", SCOPE):
                base = methods.get(than + scope, [])
                own = {method: lead(methods.get(method + scope, []), base, share, bold=True) for method in ahead}
                if than + SCOPE not in methods and MIRROR_MUON + SCOPE in methods:
                    own[MIRROR_MUON] = lead(methods[MIRROR_MUON + SCOPE], base, share, bold=True) + " †"
                if fresh(base, share) and set(own.values()) != {"–"}:
                    lines.append(f"| {setting}{', relative' if scope else ''} | " + " | ".join(own.values()) + " |")
        lines.append("")
    return lines


def by_threshold(rows: list[Row]) -> dict[str, list[Row]]:
    """By method and threshold, whatever the rate of the head."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["note"] in ("main", "tune", "relative"):
            options = {name: value for name, value in row["options"].items() if name not in ("head_lr", "scope")}
            scope = SCOPE if row["options"].get("scope") == "relative" else ""
            found.setdefault(method_of({**row, "options": options}) + scope, []).append(row)
    return found


def by_method(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(method_of(row), []).append(row)
    return dict(sorted(found.items()))


def setting_table(title: str, rows: list[Row], words: str = "", more: Sequence[str] = ()) -> list[str]:
    """All methods of a setting at every share, what they are below AdamW, and all rates that were tried."""
    used = [row for row in rows if row["note"] in ("main", "tune")]
    methods, shares = by_method(used), sorted({row["sparsity"] for row in used})
    if not methods:
        return []
    heads = ["dense" if share == 0 else f"{share:.0%}" for share in shares]
    lines = [f"## {title[0].upper() + title[1:]}", "", *([words, ""] if words else [])]
    lines += ["| | " + " | ".join([*heads, "below AdamW at 95%", "at 98%"]) + " |", "|---" * (len(shares) + 3) + "|"]
    for method, own in methods.items():
        if method.endswith(SCOPE):  # has a table of its own
            continue
        values = [cell(own, share) for share in shares]
        leads = [lead(own, methods["AdamW"], s) if method != "AdamW" else "" for s in (0.95, 0.98)]
        lines.append(f"| {method} | " + " | ".join([*values, *leads]) + " |")
    tuning = _tuning(methods) if any(row["note"] == "tune" for row in rows) else []
    return [*lines, "", *more, *tuning, ""]


def _tuning(methods: dict[str, list[Row]]) -> list[str]:
    lines = ["Seed 0, validation loss of every rate:", "", "| | lr | dense | 90% |", "|---|---|---|---|"]
    for name, rows in methods.items():
        tried = {(row["lr"], row["sparsity"]): row["validation"] for row in rows if row["note"] == "tune"}
        chosen = {share: chosen_rate(rows, share) for share in (0.0, 0.9)}
        for lr in sorted({lr for lr, _ in tried}):
            values = []
            for share, taken in chosen.items():
                bold = "**" if taken is not None and taken["lr"] == lr else ""
                values.append(f"{bold}{tried[lr, share]:.3f}{bold}" if (lr, share) in tried else "–")
            lines.append(f"| {name} | {lr:g} | " + " | ".join(values) + " |")
    return lines


def one_shot_table(drawn: Rows) -> list[str]:
    """Dense runs, cut by size without retraining: losses of fresh seeds."""
    lines = ["## One shot, no retraining", "", ONE_SHOT_WORDS, ""]
    heads = ["dense" if share == 0 else f"{share:.0%}" for share in sparse_cut.SHARES]
    lines += ["| | | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for model in CORPORA:
        for method in sparse_cut.METHODS:
            own = drawn.where(model=model, method=method)
            values = [shown(list(own.where(sparsity=share)["test"])) for share in sparse_cut.SHARES]
            lines.append(f"| {model} | {method} | " + " | ".join(values) + " |")
    return [*lines, ""]


def explored_table(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["## What else was tried", "", "Test loss of single runs; a rate of the rest of 2e-3 is the usual.", ""]
    lines += ["| | seed | zeros | head | start | lr | of the rest | loss |", "|---" * 8 + "|"]
    for row in rows:
        head = "tied" if row["tied"] else "own"
        start = {"torch": "nn.Linear", "gpt2": "GPT-2"}[row["init"]]
        values = [method_of(row), row["seed"], f"{row['sparsity']:.0%}", head, start, row["lr"], row["rest_lr"]]
        lines.append("| " + " | ".join(map(str, [*values, f"{row['test']:.3f}"])) + " |")
    return [*lines, ""]


def accuracies(rows: list[Row]) -> list[str]:
    """The share of texts or images that are classified rightly, in percent."""
    rows = [row for row in rows if row["note"] in ("main", "tune")]
    shares = sorted({row["sparsity"] for row in rows})
    lines = ["Accuracy, percent:", "", "| | " + " | ".join("dense" if s == 0 else f"{s:.0%}" for s in shares) + " |"]
    lines.append("|---" * (len(shares) + 1) + "|")
    for method, own in by_method(rows).items():
        lines.append(f"| {method} | " + " | ".join(cell(own, share, "accuracy") for share in shares) + " |")
    return [*lines, ""]


def combined_table(rows: list[Row]) -> list[str]:
    """Test losses of combined methods over seeds, and of ideas with one."""
    lines = ["### Combined methods", "", COMBINED, "", "| | 90% | 95% | 98% |", "|---|---|---|---|"]
    for method, name in PUSHED.items():
        own = [row for row in rows if row["note"] in ("combined", "explore") and method_of(row) == method]
        by_share = [{r["seed"]: r["test"] for r in own if r["sparsity"] == s and r["lr"] == own[-1]["lr"]} for s in TOP]
        lines.append(f"| {name} | " + " | ".join(shown(list(x.values())) if x else "–" for x in by_share) + " |")
    lines += ["", "### Other ideas", "", IDEAS, "", "| | lr | epochs | zeros | test |", "|---|---|---|---|---|"]
    ideas: dict[tuple[float, float, str, float], dict[int, float]] = {}
    for row in rows:
        if row["note"] == "explore" and method_of(row) not in PUSHED:
            decay = "" if row["weight_decay"] == 0.01 else f", weight_decay = {row['weight_decay']:g}"
            key = row["epochs"], row["sparsity"], method_of(row) + decay, row["lr"]
            ideas.setdefault(key, {})[row["seed"]] = row["test"]
    for (epochs, share, name, lr), by_seed in sorted(ideas.items(), key=lambda item: (*item[0][:2], mean(item[1]))):
        values = [name, f"{lr:g}", f"{epochs:g}", "dense" if share == 0 else f"{share:.0%}"]
        lines.append("| " + " | ".join([*values, shown(list(by_seed.values()))]).removesuffix(" (1 seed)") + " |")
    lines += ["", "### More of the best combination", "", FRONT, ""]
    lines += ["| | distil | pruning | lr | validation | test |", "|---" * 6 + "|"]
    for row in sorted((row for row in rows if row["note"] == "front"), key=lambda row: row["validation"]):
        name = method_of({**row, "options": {k: v for k, v in row["options"].items() if k in ("p", "alpha")}})
        values = [name, row["options"]["distil"], f"{row['start']:.0%} to {row['end']:.0%}", f"{row['lr']:g}"]
        lines.append("| " + " | ".join(map(str, values)) + f" | {row['validation']:.3f} | {row['test']:.3f} |")
    return [*lines, ""]


def front_table(settings: dict[str, list[Row]], words: str) -> list[str]:
    """Longer runs and teachers."""
    lines = ["### Towards dense AdamW", "", words, ""]
    lines += ["| | | epochs | lr | zeros | test, seed 0 | test, fresh seeds |", "|---" * 7 + "|"]
    for setting, rows in settings.items():
        found: dict[tuple[float, str, float, float], dict[int, float]] = {}
        for row in rows:
            if row["note"] == "front":
                key = row["sparsity"], method_of(row), row["epochs"], row["lr"]
                found.setdefault(key, {})[row["seed"]] = row["test"]
        for (share, name, epochs, lr), by_seed in sorted(found.items()):
            values = [setting, name, f"{epochs:g}", f"{lr:g}", "dense" if share == 0 else f"{share:.0%}"]
            fresh = [loss for seed, loss in by_seed.items() if seed]
            first = f"{by_seed[0]:.3f}" if 0 in by_seed else "–"
            lines.append(f"| {' | '.join(values)} | {first} | {shown(fresh) if fresh else '–'} |")
    return [*lines, ""]


def mean(by_seed: dict[int, float]) -> float:
    return float(np.nan_to_num(np.mean(list(by_seed.values())), nan=math.inf))


def relative_table(rows: list[Row]) -> list[str]:
    """Another threshold, for the methods that it was run for."""
    rows = [row for row in rows if row["note"] == "relative"]
    if not rows:
        return []
    lines = ["### A threshold for each matrix", "", RELATIVE, "", "| | 90% | 95% | 98% |", "|---|---|---|---|"]
    for method, own in by_method(rows).items():
        found = [[row["test"] for row in own if row["sparsity"] == share] for share in TOP]
        values = [shown(losses) if losses else "–" for losses in found]
        lines.append(f"| {method.removesuffix(SCOPE)} | " + " | ".join(values) + " |")
    return [*lines, ""]


def without(row: Row, *names: str) -> str:
    """The name of a method without some of its options."""
    return method_of({**row, "options": {name: value for name, value in row["options"].items() if name not in names}})


def decay_table(rows: list[Row]) -> list[str]:
    """What β2 and weight decay do for each method, and the fresh seeds with the best."""
    tuned = ("beta2", "weight_decay")
    fresh = [row for row in rows if row["note"] == "decay" and row["seed"]]
    if not fresh:
        return []
    tried = [row for row in rows if row["note"] in ("decay", "tune") and row["seed"] == 0 and row["sparsity"] == 0.9]
    lines = ["### Weight decay and β2", "", DECAY if tried else DECAY_KNOWN, ""]
    lines += ["| | lr | β2 | weight decay | validation |", "|---" * 5 + "|"] if tried else []
    of_decay = {without(row, *tuned, "scope") for row in tried if row["note"] == "decay"}
    for method in sorted(of_decay):
        own = [row for row in tried if without(row, *tuned) == method]
        least = min(row["validation"] for row in own)
        for row in sorted(own, key=settings_of):
            lr, beta2, decay = settings_of(row)
            bold = "**" if row["validation"] == least else ""
            lines.append(f"| {method} | {lr:g} | {beta2:g} | {decay:g} | {bold}{row['validation']:.3f}{bold} |")
    lines += [""] if tried else []
    lines += ["| | lr | weight decay | 95% | 98% | below AdamW at 95% | at 98% | below Muon at 95% | at 98% |"]
    lines.append("|---" * 9 + "|")
    for own in by_method(fresh).values():
        lr, _, decay = settings_of(own[0])
        values = [cell(_as_main(own), share) for share in (0.95, 0.98)]
        for than in ("AdamW", "Muon"):
            title = than + (SCOPE if own[0]["options"].get("scope") == "relative" else "")
            base = _as_main([row for row in fresh if without(row, *tuned) == title])
            ahead = [lead(_as_main(own), base, share) for share in (0.95, 0.98)]
            values += ["", ""] if own[0]["method"] == than.lower() else ahead
        name = without(own[0], *tuned)
        lines.append("| " + " | ".join([name, f"{lr:g}", f"{decay:g}", *values]) + " |")
    return [*lines, ""]


def settings_of(row: Row) -> tuple[float, float, float]:
    """Rate, β2 and weight decay of matrices."""
    usual = 0.0 if row["method"] in ("powerprop", "mirror-muon") else row["weight_decay"]
    return row["lr"], row["options"].get("beta2", 0.999), row["options"].get("weight_decay", usual)


def _as_main(rows: list[Row]) -> list[Row]:
    return [{**row, "note": "main"} for row in rows]


def penalty_table(rows: list[Row], words: str = PENALTY, value: str = "test") -> list[str]:
    """Fresh seeds of the chosen strengths and rates, then all that were tried on seed 0."""
    if not any(row["note"] in ("penalty", "strength") for row in rows):
        return []
    lines = ["### Zeros by a penalty", "", words, ""]
    scale, digits = (100.0, 1) if value == "accuracy" else (1.0, 3)
    fresh: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row["note"] == "penalty":
            fresh.setdefault((method_of(row), row["lr"]), []).append(row)
    if fresh:
        lines += ["| | lr | zeros | test |", "|---|---|---|---|"]
        for (method, lr), own in sorted(fresh.items()):
            zeros = np.mean([row["zeros"] for row in own])
            lines.append(f"| {method} | {lr:g} | {zeros:.1%} | {shown([row[value] for row in own], scale)} |")
        lines.append("")
    lines += ["| | lr | zeros | validation loss | test |", "|---|---|---|---|---|"]
    tried = sorted((row for row in rows if row["note"] == "strength"), key=lambda row: (method_of(row), row["lr"]))
    for row in tried:
        losses = f"{row['validation']:.3f} | {scale * row[value]:.{digits}f}"
        lines.append(f"| {method_of(row)} | {row['lr']:g} | {row['zeros']:.1%} | {losses} |")
    return [*lines, ""]


def two_four_table(rows: list[Row]) -> list[str]:
    lines = ["### Two of four", "", TWO_FOUR, "", "| | test |", "|---|---|"]
    for method, own in by_method([row for row in rows if row["note"] == "two-four"]).items():
        name = method.removesuffix(", structure = 2:4")
        lines.append(f"| {name} | {shown([row['test'] for row in own])} |")
    return [*lines, ""]


def rate_table(drawn: Rows) -> list[str]:
    """The best rate of every model, and what one rate for all of them costs."""
    lines = [
        "## One rate for six models",
        "",
        RATES,
        "",
        "| | " + " | ".join(sparse_lr.MODELS) + " | one rate for all |",
    ]
    lines.append("|---" * (len(sparse_lr.MODELS) + 2) + "|")
    for method in sparse_lr.METHODS:
        found = sparse_lr.losses(drawn, method)
        means = found.mean(0)
        best_ones = [f"{sparse_lr.RATES[int(x.argmin())]:g} ({x.min():.2f})" for x in means]
        rate, lost = sparse_lr.one_rate(found)
        all_of_them = f"{rate:g}: up to {', '.join(f'{x:.2f}' for x in lost)} above the best"
        lines.append(f"| {method} | " + " | ".join([*best_ones, all_of_them]) + " |")
    return [*lines, ""]


def start_table(settings: dict[str, list[Row]]) -> list[str]:
    """With a head of its own every method at the start that is better for it at 90% zeros, on seed 0."""
    own = {name: by_method(rows) for name, rows in settings.items() if name.startswith("own head")}

    def validation(rows: list[Row]) -> float:
        chosen = chosen_rate(rows, 0.9)
        return float(np.mean([row["validation"] for row in ([chosen] if chosen else fresh(rows, 0.9))] or [np.inf]))

    lines = ["## The start as a choice", "", START, ""]
    lines += ["| | start | " + " | ".join(f"{share:.0%}" for share in TOP) + " |", "|---" * (len(TOP) + 2) + "|"]
    for method in sorted(set.intersection(*(set(methods) for methods in own.values()))):
        start = min(own, key=lambda name: validation(own[name][method]))
        values = [cell(own[start][method], share) for share in TOP]
        lines.append(f"| {method} | {start.removeprefix('own head, ')} | " + " | ".join(values) + " |")
    return [*lines, ""]


def matching(rows: Sequence[Row], wanted: Mapping[str, Any]) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def document(drawn: Mapping[str, Rows]) -> str:
    """The protocol and all tables."""
    rows = kept_rows(str(FOLDER))
    imdb = matching(rows, {"corpus": "imdb", "clip": 1.0})
    settings = {name: matching(imdb, wanted) for name, wanted in SETTINGS.items()}
    wikitext, images = matching(rows, CORPUS), matching(rows, {"corpus": "cifar10-16"})
    labelled, other = matching(rows, {"corpus": "imdb-labels"}), matching(rows, {"corpus": "imdb-characters"})
    characters = {init: matching(rows, {"corpus": "wikitext-characters", "init": init}) for init in ("torch", "gpt2")}
    names = "IMDB", "IMDB, GPT-2's start", "IMDB, tied head", "IMDB, width 768"
    models = dict(zip(names, settings.values(), strict=True))
    models |= {"WikiText-2": wikitext, "images": images, "characters": characters["torch"]}
    models |= {"characters, GPT-2's start": characters["gpt2"], "characters of IMDB": other}
    lines = leads_table(models, "AdamW", MIRROR | {"Muon": "Muon", "RigL": "RigL"})
    lines += leads_table(models, "Muon", MIRROR)
    for name, own in settings.items():
        lines += setting_table(name, own) + relative_table(own) + decay_table(own)
        lines += penalty_table(own, PENALTY_ON_IMDB)
    lines += front_table(settings, FRONT_ON_IMDB) + start_table(settings)
    lines += explored_table([row for row in imdb if row["note"] == "explore"])
    lines += setting_table("WikiText-2", wikitext, WIKITEXT)
    lines += combined_table(matching(rows, {"corpus": "wikitext-2", "width": 0}))
    lines += relative_table(wikitext) + decay_table(wikitext) + two_four_table(wikitext) + penalty_table(wikitext)
    lines += setting_table("CIFAR-10, 16 × 16 pixels", images, IMAGES, accuracies(images))
    lines += relative_table(images) + penalty_table(images, PENALTY_ON_IMAGES)
    lines += setting_table("Reviews of IMDB and their labels", labelled, LABELS, accuracies(labelled))
    lines += penalty_table(labelled, PENALTY_ON_LABELS, "accuracy")
    lines += one_shot_table(drawn["sparse-cut"])
    lines += rate_table(drawn["sparse-lr"])
    lines += setting_table("Characters", characters["torch"], CHARACTERS)
    lines += relative_table(characters["torch"]) + decay_table(characters["torch"])
    lines += front_table({"nn.Linear's start": characters["torch"]}, FRONT_OF_CHARACTERS)
    lines += setting_table("Characters, GPT-2's start", characters["gpt2"], CHARACTERS_GPT2)
    lines += relative_table(characters["gpt2"])
    lines += setting_table("Characters of IMDB", other, CHARACTERS_IMDB) + decay_table(other)
    text = (Path(__file__).parent / "protocol.md").read_text()
    return text + "\n" + "\n".join(lines) + "\n"


def measured(name: str) -> Rows:
    """What an experiment reads from the kept rows."""
    experiment, data = CATALOG[name], {SOURCE: str(FOLDER)}
    trials = range(experiment.trials)
    cells = experiment.cells(quick=False)
    return Rows([(params, experiment.run(params, trials, "cpu", data)) for params in cells])


def draw(name: str, rows: Rows) -> None:
    """The figure of an experiment into docs/images; its checks are printed."""
    image = "sparse.png" if name == "sparse-gpt" else f"{name}.png"
    CATALOG[name].figure(rows).savefig(ROOT / "docs/images" / image, dpi=120)
    for check in CATALOG[name].checks(rows):
        print(name, "ok  " if check.passed else "FAIL", check.name, "|", check.ours)


def main(source: Path | None) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if source is not None:
        add(source)
    drawn = {name: measured(name) for name in EXPERIMENTS}
    for name, rows in drawn.items():
        draw(name, rows)
    DOCUMENT.write_text(document(drawn))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
