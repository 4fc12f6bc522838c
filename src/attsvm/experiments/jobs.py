"""Batches as files, for a machine that has torch and numpy and nothing else, or no way to reach this one.

attsvm reproduce ID --device cuda --jobs FOLDER --data …     here: writes a .json file for every batch
python -m attsvm.experiments.jobs FOLDER --data NAME=PATH     there: computes them, a .npz file beside each
attsvm reproduce ID --device cuda --jobs FOLDER --data …     here again: takes the results for its rows

A job names an experiment of the catalog, or of a file of yours that is named there too (--experiment mine.py), and one
of its batches. It holds no code, and no numbers that the experiment does not have itself.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attsvm._version import __version__
from attsvm.checks import as_device
from attsvm.errors import AttsvmError, did_you_mean
from attsvm.experiments._experiment import Batch, Experiment
from attsvm.experiments._own import load_experiments
from attsvm.experiments._sources import content_digest
from attsvm.experiments._work import Done, run_batch
from attsvm.files import make_folder, read_arrays, read_json, under, write_arrays, write_json
from attsvm.schema import Array, Schema

_JOB = {
    "format": frozenset({"attsvm-job/1"}),
    "experiment": str,
    "quick": bool,
    "device": str,
    "attsvm": str,
    "data": {str: str},
}
_RESULT = Schema(
    "attsvm-job-result/1",
    "the result of a job",
    {"column.*": Array("real whole bool", "trials ...", finite=False)},
    {"where": dict, "timing": {"seconds": float, "cpu_seconds": float, "finished": str}, "texts": {str: [str]}},
)


def write_job(folder: Path, batch: Batch, device: str, quick: bool) -> None:
    """Write a file that says what to compute."""
    job = {
        "format": "attsvm-job/1",
        "experiment": batch.experiment.id,
        "quick": quick,
        "device": device,
        "attsvm": __version__,
        "data": dict(batch.data),
    }
    make_folder(folder)
    write_json(_file(folder, batch, ".json"), job)


def read_result(folder: Path, batch: Batch) -> Done | None:
    """What came back for this batch, if anything did. Its name says what it depends on, so it is never another's."""
    path = _file(folder, batch, ".npz")
    if not path.is_file():
        return None
    arrays, facts = read_arrays(path, _RESULT)
    columns = under("column.", arrays) | {name: np.array(texts) for name, texts in facts["texts"].items()}
    if any(len(column) != batch.stop - batch.start for column in columns.values()):
        raise AttsvmError(f"{path} must have {batch.stop - batch.start} rows, but it has others; delete it.")
    return Done(columns, facts["where"], facts["timing"])


def work(
    folder: Path, places: Mapping[str, str], report: Any = print, own: Mapping[str, Experiment] | None = None
) -> int:
    """Compute all jobs of a folder that have no result yet, short ones first; how many there were.

    `own` are experiments by id that are not in the catalog.
    """
    paths_left = [path for path in sorted(folder.glob("*.json")) if not path.with_suffix(".npz").is_file()]
    jobs = [(*_read_job(path, own or {}), path) for path in paths_left]
    for batch, device, path in sorted(jobs, key=lambda job: job[0].cost):
        report(f"{path.stem}: {batch.experiment.id} {dict(batch.params)}")
        paths, kept = _paths(batch.data, places), path.with_suffix(".work") if batch.experiment.checkpoints else None
        run, trials = batch.experiment.run, range(batch.start, batch.stop)
        done = run_batch(run, batch.params, trials, device, __version__, paths, kept)
        numbers = {name: column for name, column in done.columns.items() if column.dtype.kind not in "UO"}
        texts = {name: [str(x) for x in done.columns[name]] for name in done.columns.keys() - numbers.keys()}
        facts = {"format": _RESULT.format, "where": done.where, "timing": done.timing, "texts": texts}
        write_arrays(path.with_suffix(".npz"), {f"column.{name}": column for name, column in numbers.items()}, facts)
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
        report(f"{path.stem}: {done.timing['seconds']:.1f} s")
    return len(jobs)


def _read_job(path: Path, own: Mapping[str, Experiment]) -> tuple[Batch, str]:
    """The batch that a job file names by its own name, and where to compute it."""
    from attsvm.experiments.catalog import CATALOG

    job = read_json(path, _JOB, "a job")
    known = {**CATALOG, **own}
    if job["experiment"] not in known:
        hint = did_you_mean(job["experiment"], known)
        raise AttsvmError(f"{path} is a job of {job['experiment']}, unknown to the catalog and to --experiment{hint}")
    if job["attsvm"] != __version__:
        raise AttsvmError(f"{path} was written by attsvm {job['attsvm']}, but this is {__version__}.")
    as_device(job["device"])
    for batch in known[job["experiment"]].batches(job["quick"], job["device"], job["data"]):
        if _file(path.parent, batch, ".json").name == path.name:
            return batch, job["device"]
    raise AttsvmError(f"{path} is no job of {job['experiment']} as it is here: give attsvm reproduce --jobs again.")


def _file(folder: Path, batch: Batch, ending: str) -> Path:
    experiment, digest, trials = batch.path.split("/")
    return folder / f"{experiment}-{digest}-{trials.removesuffix('.parquet')}{ending}"


def _paths(digests: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """The data sets by name, if they are what the job was written for."""
    for name, digest in digests.items():
        if name not in places:
            raise AttsvmError(f"the job needs data: give --data {name}=PATH.")
        if content_digest(Path(places[name])) != digest:
            raise AttsvmError(f"--data {name}={places[name]} is not the data set that the job was written for.")
    return {name: places[name] for name in digests}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute the jobs of a folder that attsvm reproduce --jobs wrote.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--experiment", action="append", default=[], metavar="FILE.py", help="with own experiments")
    given = parser.parse_args()
    try:
        if not given.folder.is_dir():
            raise AttsvmError(f"{given.folder} must be a folder of jobs, but it is none.")
        places = dict(text.partition("=")[::2] for text in given.data)
        own = {experiment.id: experiment for file in given.experiment for experiment in load_experiments(file)}
        done = work(given.folder, places, own=own)
    except AttsvmError as error:
        sys.exit(f"error: {error}")
    print(f"{done} jobs done, attsvm {__version__}")


if __name__ == "__main__":
    main()
