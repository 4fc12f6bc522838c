"""The experiments on sparse training train their cells again where they are given the corpora."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import AttsvmError
from attsvm.experiments import CATALOG, run
from attsvm.experiments.sparse import again, training
from attsvm.experiments.sparse.methods import Family, shape_of
from attsvm.experiments.sparse.rows import kept_rows
from attsvm.experiments.sparse.samples import SHAPES, open_samples

pa = pytest.importorskip("pyarrow")
CHARACTERS = "wikitext-characters"
ADAMW = Family("adamw", 3e-3, 0, corpus=CHARACTERS, tied=False, init="torch", epochs=1, weight_decay=0.02, note="tune")


def keep(folder: Path, *rows: dict[str, Any]) -> str:
    from pyarrow import parquet

    usual = {"zeros": 0.0, "test": 9.0, "validation": 9.0, "accuracy": None}
    whole = [{**asdict(ADAMW), **usual, **row} for row in rows]
    plain = [
        {k: v for k, v in row.items() if k != "sparsities"} | {"options": json.dumps(row["options"])} for row in whole
    ]
    parquet.write_table(pa.Table.from_pylist(plain), folder / "rows.parquet")
    return str(folder)


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    kept_rows.cache_clear()
    again._row.cache_clear()
    yield
    again._row.cache_clear()


@pytest.fixture
def corpora(tmp_path: Path) -> str:
    """Texts in which each character is followed by the next, enough for ten steps."""
    folder = tmp_path / "corpora"
    folder.mkdir()
    stream = np.tile(np.arange(32), 700).astype(np.uint16)
    np.savez(folder / f"{CHARACTERS}.npz", train=stream, validation=stream[:2500], test=stream[:2500])
    return str(folder)


@pytest.mark.filterwarnings("ignore:pruning has left nothing")  # ten steps are few
def test_cells_are_trained_as_the_kept_rows_say_and_not_read(tmp_path: Path, corpora: str) -> None:
    tuned = [{"sparsity": share, "lr": lr, "validation": lr} for share in (0.0, 0.9) for lr in (3e-3, 6e-3)]
    data = {"sparse": keep(tmp_path, *tuned, {"sparsity": 0.95, "seed": 1, "note": "main"}), "corpora": corpora}
    before = torch.get_rng_state()
    rows = run(CATALOG["sparse-characters"], tmp_path / "runs", quick=True, data=data).rows
    assert torch.equal(torch.get_rng_state(), before)
    samples = open_samples(corpora, CHARACTERS, "cpu")
    for share in (0.0, 0.95):
        family = Family(**{**asdict(ADAMW), "seed": 1, "sparsities": (share,)})
        (expected,) = training.train_family(family, samples, shape_of(family))
        cell = rows.where(method="AdamW", sparsity=share)
        assert cell["test"] == expected["test"]
        assert cell["test"] < np.log(128)
        assert cell["zeros"] == pytest.approx(share, abs=1e-4)
        assert cell["lr"] == 3e-3
    assert np.isnan(rows.where(method="powerprop, alpha = 10")["test"]).all()  # no row says how
    CATALOG["sparse-characters"].figure(rows).canvas.draw()


def test_every_setting_of_a_kept_row_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(family: Family, *others: Any) -> list[dict[str, Any]]:
        asked.append(family)
        return [{"test": float(family.seed)}]

    monkeypatch.setattr(again, "train_family", train)
    monkeypatch.setattr(again, "_samples", lambda *_: torch.zeros(()))
    row = asdict(Family("mirror", 2e-3, 7, (0.5,), CHARACTERS, {"p": 1.1, "dropout": 0.3}, 1e-3, 0.05, 2.0, 0.3, 2.0))
    row |= {"tied": False, "start": 0.1, "end": 0.6, "init": "torch", "width": 128, "scale": 3.0, "note": "lr"}
    found = again.train_again({**row, "steps": 5, "accuracy": None}, 0.8, [1, 2], "", "cpu")
    assert [asdict(family) for family in asked] == [{**row, "seed": seed, "sparsities": (0.8,)} for seed in (1, 2)]
    assert [(one["seed"], one["test"]) for one in found] == [(1, 1.0), (2, 2.0)]
    assert shape_of(asked[0]).width == 128
    assert shape_of(asked[0]).dropout == 0.3
    assert shape_of(ADAMW) == SHAPES[CHARACTERS]


def test_models_that_several_cells_cut_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def train(family: Family, *others: Any) -> list[dict[str, Any]]:
        trained.append((family.seed, family.sparsities))
        return [{"test": 1.0, "one_shot_50": 2.0, "one_shot_70": 3.0, "zeros": 0.0}]

    monkeypatch.setattr(again, "train_family", train)
    monkeypatch.setattr(again, "_samples", lambda *_: torch.zeros(()))
    data = {"sparse": keep(tmp_path, {"corpus": "imdb", "sparsity": 0.0}), "corpora": ""}
    cut = CATALOG["sparse-cut"]
    cells = [{"model": "GPT on IMDB", "method": "AdamW", "sparsity": share} for share in (0.0, 0.5, 0.7)]
    found = [cut.run(cell, range(3), "cpu", data)["test"] for cell in cells]
    np.testing.assert_array_equal(found, [[1.0] * 3, [2.0] * 3, [3.0] * 3])
    assert trained == [(seed, (0.0,)) for seed in (1, 2, 3)]


def test_rates_are_tried_again_on_the_seeds_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "train_family", lambda family, *_: [{"validation": 10 * family.seed + family.lr}])
    monkeypatch.setattr(again, "_samples", lambda *_: torch.zeros(()))
    row = {"corpus": "wikitext-2", "sparsity": 0.0, "note": "lr", "width": 128, "lr": 1e-3}
    data = {"sparse": keep(tmp_path, row), "corpora": ""}
    cell = {"method": "AdamW", "model": "width 128", "lr": 1e-3}
    found = [CATALOG["sparse-lr"].run({**cell, "lr": lr}, range(3), "cpu", data)["loss"] for lr in (1e-3, 3e-3)]
    np.testing.assert_array_equal(found, [[1e-3, 10.001, 20.001], [np.nan] * 3])


def test_penalties_are_trained_again_without_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "train_family", lambda family, *_: [{"test": family.options["l1"], "zeros": 0.93}])
    monkeypatch.setattr(again, "_samples", lambda *_: torch.zeros(()))
    row = {"method": "mirror", "corpus": "imdb-labels", "sparsity": 0.0, "note": "penalty", "seed": 1}
    rows = [{**row, "options": {"p": 2.0, "l1": l1}, "zeros": zeros} for l1, zeros in ((0.1, 0.7), (0.5, 0.9))]
    data = {"sparse": keep(tmp_path, *rows), "corpora": ""}
    found = CATALOG["sparse-classifier"].run({"method": "MirrorAdam p = 2, l1", "sparsity": 0.9}, range(3), "cpu", data)
    np.testing.assert_array_equal(found["test"], [0.5] * 3)
    np.testing.assert_array_equal(found["zeros"], [0.93] * 3)


@pytest.mark.parametrize("damage", ["missing", "text", "arrays"])
def test_a_folder_without_the_corpus_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / f"{CHARACTERS}.npz"
    if damage == "text":
        path.write_text("no archive")
    elif damage == "arrays":
        np.savez(path, other=np.zeros(3))
    with pytest.raises(AttsvmError, match=r"--data corpora must be a folder with wikitext-characters\.npz"):
        open_samples(tmp_path, CHARACTERS, "cpu")
