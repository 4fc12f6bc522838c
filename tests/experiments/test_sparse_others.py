"""The experiments on WikiText-2, images and rates read the rows of the repository as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attsvm.experiments import CATALOG, Rows
from attsvm.experiments.catalog import sparse_lr
from attsvm.experiments.catalog.sparse_wikitext import PUSHED, TAUGHT
from attsvm.experiments.sparse.rows import METHODS, PENALTIES, kept_rows, looks_of, method_of

pytest.importorskip("pyarrow.parquet")
FOLDER = str(Path(__file__).parents[2] / "benchmarks/results/sparse")


def rows_of(name: str) -> Rows:
    kept_rows.cache_clear()
    experiment, data = CATALOG[name], {"sparse": FOLDER}
    trials, cells = range(experiment.trials), experiment.cells(quick=False)
    return Rows([(cell, experiment.run(cell, trials, "cpu", data)) for cell in cells])


@pytest.mark.parametrize(
    "name", ["sparse-characters", "sparse-wikitext", "sparse-vit", "sparse-classifier", "sparse-cut", "sparse-lr"]
)
def test_figures_and_checks_come_from_the_rows(name: str) -> None:
    rows = rows_of(name)
    assert CATALOG[name].checks(rows)
    CATALOG[name].figure(rows).canvas.draw()


def test_a_method_looks_alike_in_all_panels_and_no_two_of_a_panel_do() -> None:
    looks = dict(zip(METHODS, looks_of(METHODS)))
    for panel in (METHODS, ("AdamW", *PENALTIES), ("MirrorAdam p = 1.1", *PUSHED)):
        assert len(set(looks_of(panel))) == len(panel)
    grey, *variants = looks_of(["AdamW", "AdamW, scope = relative", "Muon, scope = relative, weight_decay = 1"])
    assert variants == [looks["AdamW"], looks["Muon"]]
    assert grey not in looks.values()


def test_a_cell_has_its_own_runs() -> None:
    """Against a naive look into the file: the right method, share, rate and seeds."""
    rows = rows_of("sparse-wikitext")
    kept = [
        row for row in kept_rows(FOLDER) if row["corpus"] == "wikitext-2" and row["epochs"] == 6 and not row["width"]
    ]
    cells = [("AdamW", 0.95), ("AdamW", 0.0), ("MirrorAdam p = 1.1", 0.98), ("powerprop, alpha = 10", 0.9)]
    for method, share in cells:
        own, at = [row for row in kept if method_of(row) == method], 0.9 if share else 0.0
        tuned = min((r for r in own if r["note"] == "tune" and r["sparsity"] == at), key=lambda r: r["validation"])
        wanted = {r["seed"]: r["test"] for r in own if r["note"] == "main" and r["sparsity"] == share}
        assert {r["lr"] for r in own if r["note"] == "main" and r["sparsity"] == share} == {tuned["lr"]}
        np.testing.assert_array_equal(rows.where(method=method, sparsity=share)["test"], [wanted[s] for s in (1, 2, 3)])
    found = rows.where(
        method="MirrorMuon p = 1.5", sparsity=0.98
    )  # of a threshold and a rate of its head that it tuned
    own = [row for row in kept if row["method"] == "mirror-muon" and row["note"] == "main" and row["sparsity"] == 0.98]
    assert sorted(found["test"]) == sorted(row["test"] for row in own if row["lr"] == found["lr"][0])
    assert len(PUSHED) == sum(np.isfinite(rows.where(method=m, sparsity=0.9)["test"]).all() for m in PUSHED)
    taught = [row["test"] for row in kept if method_of(row) == TAUGHT and row["sparsity"] == 0.95]
    assert sorted(rows.where(method=TAUGHT, sparsity=0.95)["test"]) == sorted(taught)


def test_cut_models_are_the_dense_ones_at_their_best_rate() -> None:
    rows = rows_of("sparse-cut")
    for corpus, model in (("imdb", "GPT on IMDB"), ("cifar10-16", "ViT on CIFAR-10")):
        own = [row for row in kept_rows(FOLDER) if row["corpus"] == corpus and method_of(row) == "MirrorAdam p = 1.1"]
        own = [row for row in own if row["sparsity"] == 0 and row["init"] == "torch" and not row["tied"]]
        best = min((row for row in own if row["note"] == "tune"), key=lambda row: row["validation"])["lr"]
        fresh = {row["seed"]: row for row in own if row["note"] == "main" and row["lr"] == best}
        for share, value in ((0.0, "test"), (0.5, "one_shot_50"), (0.8, "one_shot_80")):
            cell = rows.where(model=model, method="MirrorAdam p = 1.1", sparsity=share)
            np.testing.assert_array_equal(cell["test"], [fresh[seed][value] for seed in (1, 2, 3)])
            assert (cell["zeros"] == share).all()


def test_penalties_stand_at_the_share_that_they_reach() -> None:
    rows = rows_of("sparse-wikitext")
    for method in PENALTIES:
        for params, columns in rows.where(method=method):
            if np.isfinite(columns["tuned"][0]):
                assert abs(columns["tuned_zeros"][0] - params["sparsity"]) < 0.03
            if np.isfinite(columns["zeros"]).any():
                assert abs(columns["zeros"].mean() - params["sparsity"]) < 0.03
                assert len(set(columns["lr"])) == 1
                assert len(set(columns["test"])) == 3
    assert np.isfinite(rows.where(method="pAdam", sparsity=0.95)["test"]).all()
    assert np.isfinite(rows.where(method="pAdam", sparsity=0.9)["tuned"]).all()
    assert np.isnan(rows.where(method="pAdam", sparsity=0.5)["tuned"]).all()


def test_one_rate_for_all_is_judged_by_its_worst_model() -> None:
    losses = np.array([[[3.0, 2.0, 4.0], [1.0, 1.5, np.inf]], [[1.0, 3.0, 5.0], [2.0, 2.0, 2.0]]])
    np.testing.assert_array_equal(sparse_lr.excess(losses), [[1.0, 0.5, np.inf], [0.0, 2.0, 4.0]])
    rate, lost = sparse_lr.one_rate(losses)  # the second is better on the first seed, but worse on its worst
    assert rate == sparse_lr.RATES[0]
    np.testing.assert_array_equal(lost, [1.0, 0.0])
    found = sparse_lr.losses(rows_of("sparse-lr"), "MirrorAdam p = 1.1")
    assert found.shape == (3, 6, 7)
    assert (found[:, :, -1] > found.min(-1) + 1).all()  # lr = 0.1 breaks down
    assert np.isinf(found[:, :, -1]).any(1).all()  # on every seed some run ends without a loss
    assert len(np.unique(found[np.isfinite(found)])) == np.isfinite(found).sum()  # seeds are runs of their own
