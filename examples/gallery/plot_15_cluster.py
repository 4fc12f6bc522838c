"""
An experiment on a Dask cluster
===============================

The runner sends batches of trials to any Dask scheduler. Rows do not depend on who computed them, so a cluster and a
laptop give the same figure. Here the cluster is two workers on this machine.
"""

import logging
import tempfile
from pathlib import Path

from dask.distributed import LocalCluster

from attsvm.experiments import Backend, find, read_stored, run_experiments

logging.getLogger("distributed").setLevel(logging.ERROR)
experiments = find(["md-fig2"])
with (
    tempfile.TemporaryDirectory() as folder,
    LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=logging.ERROR
    ) as cluster,
):
    backend = Backend(workers=0, scheduler=cluster.scheduler_address, jobs=None)
    run_experiments(experiments, Path(folder), quick=True, backend=backend)
    rows = read_stored(Path(folder), experiments[0]).rows()

# %%
# The figure that `attsvm reproduce md-fig2 --quick` draws.
figure = experiments[0].figure(rows)
