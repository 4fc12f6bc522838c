"""Run the toy experiment as a process of its own, to be killed: run_toy.py FOLDER [SCHEDULER]."""

import sys
from pathlib import Path

from toy_experiment import make

from attsvm import AttsvmError
from attsvm.experiments import Experiment
from attsvm.experiments._runner import Backend, run_experiments


def slow() -> Experiment:
    """Twelve batches of some tenths of a second."""
    return make(grid={"d": [2, 3], "sleep": [0.3]}, trials=12, batch=2)


if __name__ == "__main__":
    backend = Backend(scheduler=sys.argv[2]) if len(sys.argv) > 2 else Backend(workers=2)
    try:
        run_experiments([slow()], Path(sys.argv[1]), backend=backend)
    except AttsvmError as error:
        sys.exit(str(error))
