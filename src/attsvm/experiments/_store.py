"""Rows in parquet files, one per batch, and the plan that says which files make up a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm import files
from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Batch, Columns, Experiment, Rows
from attsvm.files import atomic_path, make_folder, one_line, read_json, write_json
from attsvm.schema import check_json

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise AttsvmError("experiments need pyarrow: pip install 'attsvm[reproduce]'.") from error

SECONDS = "seconds"
"""The one column that differs between two runs: wall seconds of the batch, divided by its trials."""
PLAN = "plan.json"
_DELETE = "delete it, and attsvm reproduce computes it again."
_TIMES = {"seconds": float, "finished": str, "...": object}
_SHAPE, _PROVENANCE, _TIMING = b"shape", b"attsvm", b"attsvm.timing"


def write_batch(
    root: Path, batch: Batch, columns: Columns, where: Mapping[str, Any], timing: Mapping[str, Any]
) -> None:
    """One parquet file, whole or not at all: parameters and columns per trial, provenance in its metadata."""
    count = batch.stop - batch.start
    arrays: dict[str, Any] = {"trial": np.arange(batch.start, batch.stop)}
    # A cell without parameters of its own writes none.
    arrays |= {name: np.full(count, _plain(value)) for name, value in batch.params.items()}
    for name, column in columns.items():
        if name in arrays or name == SECONDS:
            raise AttsvmError(
                f"column {name!r} of {batch.experiment.id} has the name of a parameter or of the store's."
            )
        if np.shape(column)[:1] != (count,) or 0 in np.shape(column):
            raise AttsvmError(
                f"column {name!r} of {batch.experiment.id} must have {count} rows with something in each, but its "
                f"shape is {np.shape(column)}."
            )
        arrays[name] = column
    arrays[SECONDS] = np.full(count, timing[SECONDS] / count)
    fields, data = zip(*(_field(name, np.ascontiguousarray(array), batch) for name, array in arrays.items()))
    provenance = batch.identity | {"first": batch.start, "last": batch.stop - 1} | dict(where)
    metadata = {_PROVENANCE: json.dumps(provenance, sort_keys=True), _TIMING: json.dumps(dict(timing), sort_keys=True)}
    table = pa.Table.from_arrays(list(data), schema=pa.schema(fields, metadata=metadata))
    path = root / batch.path
    make_folder(path.parent)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def is_done(root: Path, batch: Batch) -> bool:
    """Are the rows of this batch there, whole and its own? Others are computed again."""
    try:
        read_batch(root, batch)
    except AttsvmError:
        return False
    return True


def read_batch(root: Path, batch: Batch) -> dict[str, np.ndarray]:
    """The columns of a batch, if the file has all of its rows and no others."""
    path = root / batch.path
    columns, (provenance, _) = read_columns(path), read_provenance(path)
    trials = np.arange(batch.start, batch.stop)
    theirs = {name: provenance.get(name) for name in batch.identity}
    ours = json.dumps(theirs, sort_keys=True) == json.dumps(batch.identity, sort_keys=True)
    if not ours or not np.array_equal(columns.get("trial"), trials):  # pyright: ignore[reportArgumentType]
        raise AttsvmError(f"{path} must have the trials {batch.start} to {batch.stop - 1}, but has others; {_DELETE}")
    return columns


def clear_leftovers(root: Path, batches: list[Batch]) -> None:
    """Remove what a killed run left half written."""
    for folder in {(root / batch.path).parent for batch in batches}:
        for name in {re.sub(r"\.[^.]*\.tmp\.parquet$", "", path.name) for path in folder.glob(".*.tmp.parquet")}:
            files.clear_leftovers(folder / f"{name[1:]}.parquet")


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """All columns of a file, curves with their shape."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        return {field.name: _array(table.column(field.name), field) for field in table.schema}
    except (OSError, pa.ArrowException, ValueError, LookupError, TypeError, MemoryError, RecursionError) as error:
        raise _unreadable(path, error) from error


def read_provenance(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the rows depend on and where they were made; and when, in how many seconds."""
    try:
        metadata = pq.read_schema(path).metadata
        found = json.loads(metadata[_PROVENANCE]), json.loads(metadata[_TIMING])
        for content, shape in zip(found, (dict, _TIMES)):
            check_json("provenance", content, shape)
        return found
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> AttsvmError:
    return AttsvmError(f"{path} is not readable as rows of attsvm ({one_line(error).rstrip('.')}); {_DELETE}")


@dataclass(frozen=True)
class Stored:
    """What a folder holds of the last planned run of an experiment."""

    root: Path
    experiment: Experiment
    quick: bool
    device: str
    batches: list[Batch]
    paths: list[Path]

    @property
    def complete(self) -> bool:
        return len(self.paths) == len(self.batches)

    def rows(self) -> Rows:
        """All rows, cell by cell in the order of the grid."""
        cells: dict[str, tuple[Any, list[dict[str, np.ndarray]]]] = {}
        for batch in self.batches:
            key = json.dumps(dict(batch.params), sort_keys=True)
            parts = cells.setdefault(key, (batch.params, []))[1]
            parts.append(read_batch(self.root, batch))
            if parts[-1].keys() != parts[0].keys():
                raise AttsvmError(f"{self.root / batch.path} must have the columns of its cell, but not all; {_DELETE}")
        joined = [
            (params, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
            for params, parts in cells.values()
        ]
        return Rows(joined)


def write_plan(
    root: Path, experiment: Experiment, quick: bool, device: str, digests: Mapping[str, str] | None = None
) -> None:
    """Say which run of the experiment this folder is about."""
    plan: dict[str, Any] = {"quick": quick, "device": device}
    if data := experiment.data(digests or {}):
        plan["data"] = data
    make_folder(root / experiment.id)
    write_json(root / experiment.id / PLAN, plan, indent=None)


def read_stored(root: Path, experiment: Experiment) -> Stored | None:
    """The last planned run, if there is one; files of other versions or parameters are no part of it."""
    path = root / experiment.id / PLAN
    if not path.is_file():
        return None
    try:
        plan = read_json(path, {"quick": bool, "device": str, "data?": {str: str}}, "a plan")
    except AttsvmError as error:
        raise AttsvmError(f"{str(error).rstrip('.')}; delete it, and give attsvm reproduce again.") from error
    quick, device, data = plan["quick"], plan["device"], plan.get("data")
    batches = experiment.batches(quick, device, data)
    paths = [path for batch in batches if (path := root / batch.path).is_file()]
    return Stored(root, experiment, quick, device, batches, paths)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _field(name: str, array: np.ndarray, batch: Batch) -> tuple[pa.Field, pa.Array]:
    """A column: numbers as they are, arrays per trial as lists of fixed length with their shape beside them."""
    shape = array.shape[1:]
    try:
        values = pa.array(array.tolist() if array.dtype.kind in "UO" and not shape else array.reshape(-1))
        if not shape:
            return pa.field(name, values.type), values
        values = pa.FixedSizeListArray.from_arrays(values, int(np.prod(shape)))
        return pa.field(name, values.type, metadata={_SHAPE: json.dumps(shape)}), values
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise AttsvmError(
            f"column {name!r} of {batch.experiment.id} must hold real numbers or texts: {one_line(error)}"
        ) from error


def _array(column: pa.ChunkedArray, field: pa.Field) -> np.ndarray:
    combined = column.combine_chunks()
    if not (field.metadata and _SHAPE in field.metadata):
        return combined.to_numpy(zero_copy_only=False)
    shape = json.loads(field.metadata[_SHAPE])
    return combined.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *shape)
