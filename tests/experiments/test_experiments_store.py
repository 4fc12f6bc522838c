"""Rows survive the way to parquet and back; other parameters or versions never meet them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from compare import bits
from toy_experiment import make

from attsvm import AttsvmError
from attsvm.experiments import Rows, at_least, at_most, verdict_line
from attsvm.experiments._runner import run_experiments
from attsvm.experiments._store import (
    clear_leftovers,
    is_done,
    read_columns,
    read_provenance,
    read_stored,
    write_batch,
    write_plan,
)
from attsvm.files import locked_folder

TIMING = {"seconds": 3.0, "finished": "2026-11-15T00:00:00+00:00"}


def test_columns_of_every_kind_come_back(tmp_path: Path) -> None:
    batch = make().batches(quick=True)[0]
    columns = {
        "curve": np.random.default_rng(0).normal(size=(4, 3, 2)),
        "flag": np.array([True, False, True, True]),
        "text": np.array(["a", "b", "ü", ""]),
        "count": np.arange(4, dtype=np.uint8),
        "gap": np.array([np.nan, np.inf, -np.inf, 5e-324]),
    }
    write_batch(tmp_path, batch, columns, {"processor": "abacus"}, TIMING)
    back = read_columns(tmp_path / batch.path)
    for name, column in columns.items():
        np.testing.assert_array_equal(back[name], column)
    assert back["trial"].tolist() == [0, 1, 2, 3]
    assert back["d"].tolist() == [2] * 4
    assert back["seconds"].tolist() == [0.75] * 4
    provenance, timing = read_provenance(tmp_path / batch.path)
    assert provenance["processor"] == "abacus"
    assert provenance["params"] == {"d": 2}
    assert timing == TIMING


@pytest.mark.parametrize(
    "columns",
    [{"d": np.zeros(4)}, {"seconds": np.zeros(4)}, {"x": np.zeros(3)}, {"x": np.zeros(())}, {"x": np.zeros((4, 0))}],
)
def test_wrong_columns_are_refused(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    batch = make().batches(quick=True)[0]
    with pytest.raises(AttsvmError, match="column"):
        write_batch(tmp_path, batch, columns, {}, TIMING)
    assert not is_done(tmp_path, batch)


def test_every_change_has_a_folder_of_its_own() -> None:
    variants = [
        make().batches(quick=True),
        make().batches(quick=False),
        make(version=2).batches(quick=True),
        make(batch=4).batches(quick=False),
        make(grid={"d": [4, 5]}).batches(quick=True),
        make().batches(quick=True, device="cuda"),
        make(id="toy2").batches(quick=True),
    ]
    folders = [{batch.path.rpartition("/")[0] for batch in batches} for batches in variants]
    assert len(set.union(*folders)) == sum(map(len, folders))


def test_batches_cover_all_trials_once() -> None:
    batches = [batch for batch in make().batches(quick=False) if batch.params["d"] == 2]
    assert [(batch.start, batch.stop) for batch in batches] == [(0, 5), (5, 10), (10, 12)]


def test_without_a_batch_all_trials_are_one_and_their_rows_are_those_of_that_size() -> None:
    whole, same = (make(batch=size).batches(quick=False) for size in (None, 12))
    assert [(batch.start, batch.stop) for batch in whole] == [(0, 12)] * 2
    assert [batch.path for batch in whole] == [batch.path for batch in same]


def test_plan_says_which_rows_count(tmp_path: Path) -> None:
    assert read_stored(tmp_path, make()) is None
    write_plan(tmp_path, make(), True, "cpu")
    stored = read_stored(tmp_path, make())
    assert stored is not None
    assert not stored.complete
    for broken in ("{", "{}", "[]"):
        (tmp_path / "toy" / "plan.json").write_text(broken)
        with pytest.raises(AttsvmError, match="plan"):
            read_stored(tmp_path, make())
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "toy").write_text("")
    with pytest.raises(AttsvmError, match="cannot be made a folder"):
        write_plan(tmp_path / "file", make(), True, "cpu")


def test_leftovers_of_a_killed_write_go(tmp_path: Path) -> None:
    batch = make().batches(quick=True)[0]
    leftover = (tmp_path / batch.path).with_name(".trials-00000-00003.abcdef123456.tmp.parquet")
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"PAR1")
    clear_leftovers(tmp_path, [batch])
    assert not leftover.exists()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no")
    for read in (read_columns, read_provenance):
        with pytest.raises(AttsvmError, match=r"x\.parquet"):
            read(tmp_path / "x.parquet")


def test_rows_join_cells() -> None:
    rows = Rows([({"d": 2, "p": 1}, {"x": np.zeros(2)}), ({"d": 3, "p": 1}, {"x": np.ones(3)})])
    assert rows["x"].tolist() == [0, 0, 1, 1, 1]
    assert rows.where(d=3)["x"].tolist() == [1, 1, 1]
    assert rows.values("d") == [2, 3]
    assert len(rows) == 5
    with pytest.raises(AttsvmError, match="cell"):
        rows.where(d=4)


def test_checks_fail_on_nan_and_say_their_names() -> None:
    checks = [at_most("low", 1.0, 2.0, ""), at_least("high", float("nan"), 0.5, "")]
    assert [check.passed for check in checks] == [True, False]
    assert verdict_line(checks) == "1 of 2 checks failed: high"
    assert verdict_line(checks[:1]) == "1 check passed"


def test_damaged_rows_are_computed_again_and_named(tmp_path: Path) -> None:
    """Truncated, bits flipped, other rows, other batches' files, other JSON: never taken for the rows of a batch."""
    experiment = make()
    run_experiments([experiment], tmp_path, quick=True)
    good = bits(tmp_path)
    first, second = (tmp_path / batch.path for batch in experiment.batches(quick=True))
    content, table = first.read_bytes(), pq.read_table(first)
    damaged = [content[:-1], content[: len(content) // 2], b"", second.read_bytes()]
    rng = np.random.default_rng(0)
    damaged += [
        content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in rng.integers(0, len(content), 25)
    ]
    for some in (table.slice(0, 2), table.drop_columns("trial"), table.replace_schema_metadata({b"attsvm": b"[]"})):
        pq.write_table(some, first)
        damaged.append(first.read_bytes())
    for case in damaged:
        first.write_bytes(case)
        stored = read_stored(tmp_path, experiment)
        assert stored is not None
        try:
            rows = stored.rows()
        except AttsvmError as error:
            said = str(error)
            assert "delete it, and attsvm reproduce computes it again" in said
            assert "\n" not in said
            assert run_experiments([experiment], tmp_path, quick=True) == 1
        else:  # a byte that no reader needs
            assert (rows["norm"] == rows["norm"]).all()
            first.write_bytes(content)
        assert bits(tmp_path) == good


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(AttsvmError, match="is in use by process"):
        run_experiments([make()], tmp_path, quick=True)
