"""What the documents say about sparse training is what the kept rows give."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow.parquet")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "sparse"))
import tables  # noqa: E402

from attsvm.experiments.catalog import sparse_characters, sparse_gpt  # noqa: E402
from attsvm.experiments.sparse.rows import kept_rows, method_of  # noqa: E402
from attsvm.experiments.transformers import interval  # noqa: E402

WITH_INTERVAL = re.compile(r"\d+\.\d+ ±\s+\d+\.\d+")
LOSS = re.compile(r"(?<![\d.])[1-5]\.\d{3}(?!\d)")
SHARED = ("corpus", "tied", "init", "width", "clip")
OWN = ("lr", "epochs", "note", "weight_decay", "rest_lr", "start", "end")


def differences() -> set[str]:
    """Of the losses of two methods of one model at one share of zeros, or of one and dense AdamW or Muon, paired by
    fresh seeds."""
    settings: dict[tuple, dict[tuple, dict[int, float]]] = {}
    for row in kept_rows(str(tables.FOLDER)):
        if row["seed"] and row["sparsity"] in (0.0, 0.9, 0.95, 0.98):
            key = (row["sparsity"], method_of(row), *(row[name] for name in OWN))
            settings.setdefault(tuple(row[name] for name in SHARED), {}).setdefault(key, {})[row["seed"]] = row["test"]
    found = set()
    for runs in settings.values():
        whole = {
            key: np.array([losses[seed] for seed in (1, 2, 3)]) for key, losses in runs.items() if len(losses) == 3
        }
        for one, other in permutations(whole, 2):
            if one[0] == other[0] or other[:2] in ((0.0, "AdamW"), (0.0, "Muon")):
                mean, half = interval(whole[one] - whole[other])
                found.add(f"{abs(mean):.3f} ± {half:.3f}")
    return found


@pytest.fixture(scope="module")
def results() -> str:
    kept_rows.cache_clear()
    return tables.document({name: tables.measured(name) for name in tables.EXPERIMENTS})


def test_the_tables_are_those_of_the_rows(results: str) -> None:
    assert tables.DOCUMENT.read_text() == results


def section(document: str, start: str, end: str | None) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return text[text.index(start) : text.index(end) if end else None]


PARTS = {
    "measured": ("docs/sparse-measured.md", "## How far ahead of AdamW", None),
    "README": ("README.md", "Two small GPTs and a ViT", "## Classify texts"),
}


def test_leads_are_those_of_the_tables(results: str) -> None:
    """Row by row: of the model and threshold that they are said of."""
    text = (ROOT / "docs/sparse-measured.md").read_text(encoding="utf-8")
    for heading in ("## How far ahead of AdamW", "## How far ahead of Muon"):
        here, there = (part.split(heading)[1].split("\n## ")[0] for part in (text, results))
        blocks, known = (
            [part.strip() for part in whole.split("\n\n") if part.startswith("|")] for whole in (here, there)
        )
        assert len(blocks) >= 2
        assert all(block in known for block in blocks)


@pytest.mark.parametrize("part", PARTS)
def test_every_number_of_a_document_is_one_of_the_tables(part: str, results: str) -> None:
    text = section(*PARTS[part])
    known = {" ".join(value.split()) for value in WITH_INTERVAL.findall(results)} | differences()
    said = {" ".join(value.split()) for value in WITH_INTERVAL.findall(text)}
    assert said <= known, sorted(said - known)
    losses = {value for line in text.splitlines() if line.lstrip().startswith("|") for value in LOSS.findall(line)}
    assert losses
    assert losses <= set(LOSS.findall(results))


@pytest.mark.parametrize(
    ("corpus", "epochs", "methods"),
    [("imdb", 4, sparse_gpt.DECAYED), ("wikitext-characters", 1, sparse_characters.DECAYED)],
    ids=["imdb", "characters"],
)
def test_fresh_seeds_have_the_weight_decay_that_is_best_on_seed_0(
    corpus: str, epochs: int, methods: Iterable[str]
) -> None:
    rows = [row for row in kept_rows(str(tables.FOLDER)) if row["corpus"] == corpus and row["epochs"] == epochs]
    rows = tables.matching(rows, {"tied": False, "init": "torch", "width": 0, "clip": 1.0})
    for method in methods:
        (rate, beta2, decay), *others = {tables.settings_of(r) for r in rows if method_of(r) == method and r["seed"]}
        assert not others
        name = re.sub(", (scope|weight_decay) = [^,]*", "", method)
        tried = [
            row for row in rows if row["seed"] == 0 and row["sparsity"] == 0.9 and row["note"] in ("tune", "decay")
        ]
        tried = [row for row in tried if tables.without(row, "beta2", "weight_decay") == name]
        assert tables.settings_of(min(tried, key=lambda row: row["validation"])) == (rate, beta2, decay)
        assert len({tables.settings_of(row) for row in tried}) >= 9
