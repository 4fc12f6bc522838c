"""Rows in parquet files, one a batch, and the plan that says which files make up a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Batch, Columns, Experiment, Rows
from attsvm.files import atomic_path, make_folder

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise AttsvmError("experiments need pyarrow: pip install 'attsvm[reproduce]'.") from error

SECONDS = "seconds"
"""The one column that differs between two runs: wall seconds of the batch, divided by its trials."""
PLAN = "plan.json"
_SHAPE, _PROVENANCE, _TIMING = b"shape", b"attsvm", b"attsvm.timing"


def write_batch(
    root: Path, batch: Batch, columns: Columns, where: Mapping[str, Any], timing: Mapping[str, Any]
) -> None:
    """One parquet file, whole or not at all: parameters and columns a trial, provenance in its metadata."""
    count = batch.stop - batch.start
    arrays: dict[str, Any] = {"trial": np.arange(batch.start, batch.stop)}
    # A cell without parameters of its own writes none.
    arrays |= {name: np.full(count, _plain(value)) for name, value in batch.params.items()}
    for name, column in columns.items():
        if name in arrays or name == SECONDS:
            raise AttsvmError(
                f"column {name!r} of {batch.experiment.id} has the name of a parameter or of the store's."
            )
        if len(column) != count:
            raise AttsvmError(
                f"column {name!r} of {batch.experiment.id} must have {count} rows, but has {len(column)}."
            )
        arrays[name] = column
    arrays[SECONDS] = np.full(count, timing[SECONDS] / count)
    fields, data = zip(*(_field(name, np.ascontiguousarray(array)) for name, array in arrays.items()))
    provenance = batch.identity | {"first": batch.start, "last": batch.stop - 1} | dict(where)
    metadata = {_PROVENANCE: json.dumps(provenance, sort_keys=True), _TIMING: json.dumps(dict(timing), sort_keys=True)}
    table = pa.Table.from_arrays(list(data), schema=pa.schema(fields, metadata=metadata))
    path = root / batch.path
    make_folder(path.parent)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def is_done(root: Path, batch: Batch) -> bool:
    """Files appear whole, so one that is there is finished."""
    return (root / batch.path).is_file()


def clear_leftovers(root: Path, batches: list[Batch]) -> None:
    """Remove what a killed run left half written."""
    for folder in {(root / batch.path).parent for batch in batches}:
        for leftover in folder.glob(".*.tmp.parquet"):
            leftover.unlink(missing_ok=True)


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """All columns of a file, curves with their shape."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise AttsvmError(f"{path} must be a parquet file of attsvm, but it cannot be read: {error}.") from error
    return {field.name: _array(table.column(field.name), field) for field in table.schema}


def read_provenance(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the rows depend on and where they were made; and when, in how many seconds."""
    try:
        metadata = pq.read_schema(path).metadata
        return json.loads(metadata[_PROVENANCE]), json.loads(metadata[_TIMING])
    except (OSError, pa.ArrowException, LookupError, TypeError) as error:
        raise AttsvmError(f"{path} must be a parquet file of attsvm, but it cannot be read: {error}.") from error


@dataclass(frozen=True)
class Stored:
    """What a folder holds of the last planned run of an experiment."""

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
        for batch, path in zip(self.batches, self.paths):
            key = json.dumps(dict(batch.params), sort_keys=True)
            cells.setdefault(key, (batch.params, []))[1].append(read_columns(path))
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
    if experiment.needs:
        plan["data"] = experiment.data(digests or {})
    make_folder(root / experiment.id)
    with atomic_path(root / experiment.id / PLAN) as temporary:
        temporary.write_text(json.dumps(plan) + "\n")


def read_stored(root: Path, experiment: Experiment) -> Stored | None:
    """The last planned run, if there is one; files of other versions or parameters are no part of it."""
    try:
        plan = json.loads((root / experiment.id / PLAN).read_text())
        quick, device, data = plan["quick"], plan["device"], plan.get("data")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise AttsvmError(f"{root / experiment.id / PLAN} must be a plan of attsvm, but it cannot be read.") from error
    batches = experiment.batches(quick, device, data)
    paths = [path for batch in batches if (path := root / batch.path).is_file()]
    return Stored(experiment, quick, device, batches, paths)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _field(name: str, array: np.ndarray) -> tuple[pa.Field, pa.Array]:
    """A column: numbers as they are, arrays a trial as lists of fixed length with their shape beside them."""
    if array.ndim == 1:
        values = pa.array(array.tolist() if array.dtype.kind in "UO" else array)
        return pa.field(name, values.type), values
    shape = array.shape[1:]
    size = int(np.prod(shape))
    values = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), size)
    return pa.field(name, values.type, metadata={_SHAPE: json.dumps(shape)}), values


def _array(column: pa.ChunkedArray, field: pa.Field) -> np.ndarray:
    combined = column.combine_chunks()
    if not (field.metadata and _SHAPE in field.metadata):
        return combined.to_numpy(zero_copy_only=False)
    shape = json.loads(field.metadata[_SHAPE])
    return combined.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *shape)
