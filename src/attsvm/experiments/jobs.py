"""Batches as files, for a machine that has torch and numpy and nothing else, or no way to reach this one.

attsvm reproduce ID --device cuda --jobs FOLDER --data …     here: writes a .json file for every batch
python -m attsvm.experiments.jobs FOLDER --data NAME=PATH     there: computes them, a .npz file beside each
attsvm reproduce ID --device cuda --jobs FOLDER --data …     here again: takes the results for its rows
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attsvm._version import __version__
from attsvm.errors import AttsvmError
from attsvm.experiments._experiment import Batch
from attsvm.experiments._sources import content_digest
from attsvm.experiments._work import Done, run_batch
from attsvm.files import atomic_path, make_folder, read_arrays


def write_job(folder: Path, batch: Batch, device: str) -> None:
    """Say in a file what is to be computed."""
    run = batch.experiment.run
    job = {
        "run": f"{run.__module__}:{run.__qualname__}",
        "identity": batch.identity,
        "first": batch.start,
        "stop": batch.stop,
        "device": device,
        "cost": batch.cost,
    }
    make_folder(folder)
    with atomic_path(_file(folder, batch, ".json")) as temporary:
        temporary.write_text(json.dumps(job, indent=1) + "\n")


def read_result(folder: Path, batch: Batch) -> Done | None:
    """What came back for this batch, if anything did. Its name says what it depends on, so it is never another's."""
    path = _file(folder, batch, ".npz")
    if not path.is_file():
        return None
    arrays, strings = read_arrays(path)
    return Done(arrays, json.loads(strings["where"]), json.loads(strings["timing"]))


def work(folder: Path, places: Mapping[str, str], report: Any = print) -> int:
    """Compute all jobs of a folder that have no result yet, short ones first; how many there were."""
    paths_left = [path for path in sorted(folder.glob("*.json")) if not path.with_suffix(".npz").is_file()]
    jobs = sorted(((json.loads(path.read_text()), path) for path in paths_left), key=lambda job: job[0]["cost"])
    for job, path in jobs:
        paths = _paths(job["identity"].get("data", {}), places)
        module, _, name = job["run"].partition(":")
        run = getattr(import_module(module), name)
        trials = range(job["first"], job["stop"])
        report(f"{path.stem}: {job['identity']['experiment']} {job['identity']['params']}")
        done = run_batch(run, job["identity"]["params"], trials, job["device"], job["identity"]["attsvm"], paths)
        contents: dict[str, Any] = {name: np.array(json.dumps(getattr(done, name))) for name in ("where", "timing")}
        contents |= done.columns
        with atomic_path(path.with_suffix(".npz")) as temporary:
            np.savez(temporary, **contents)
        report(f"{path.stem}: {done.timing['seconds']:.1f} s")
    return len(jobs)


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
    given = parser.parse_args()
    try:
        done = work(given.folder, dict(text.split("=", 1) for text in given.data))
    except AttsvmError as error:
        sys.exit(f"error: {error}")
    print(f"{done} jobs done, attsvm {__version__}")


if __name__ == "__main__":
    main()
