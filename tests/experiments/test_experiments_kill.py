"""Kill -9 the runner, its workers, Dask's workers and scheduler: after a resume the rows are as if undisturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from compare import bits
from run_toy import slow

from attsvm.experiments._runner import run_experiments

HERE = Path(__file__).parents[1] / "helpers"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run_experiments([slow()], folder)
    return bits(folder)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "run_toy.py"), str(folder), *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def files(folder: Path) -> int:
    return len(list(folder.rglob("trials-*.parquet")))


def wait_for(condition, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_runner_resumes_to_the_same_rows(tmp_path: Path, undisturbed: dict[str, bytes], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(3):
        process = start(tmp_path)
        before = files(tmp_path)
        # At a random moment once it has begun to write, so that every round gets further.
        wait_for(lambda p=process, b=before: files(tmp_path) > b or p.poll() is not None)
        time.sleep(chance.uniform(0, 0.6))
        workers = children(process.pid)
        process.kill()
        process.communicate()
        wait_for(lambda w=workers: not any(map(alive, w)))  # none is left behind
    process = start(tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert bits(tmp_path) == undisturbed
    assert not list(tmp_path.rglob("*.tmp*"))


@pytest.mark.parametrize("at", [0.5, 1.5, 2.5, 4.0])
def test_ctrl_c_twice_ends_the_run_at_once_and_says_what_is_kept(tmp_path: Path, at: float) -> None:
    command = [sys.executable, "-m", "attsvm", "reproduce", "svm-fig6", "--quick", "--workers", "2", "--quiet"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: (tmp_path / "svm-fig6" / "plan.json").is_file())
    time.sleep(at)
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    kept = f"the same command resumes the run in {tmp_path}" if files(tmp_path) else "no file was left half written"
    assert said == f"Interrupted; {kept}.\n"
    wait_for(lambda: not any(map(alive, workers)))
    assert not list(tmp_path.rglob("*.tmp*"))


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_workers_are_replaced(tmp_path: Path, undisturbed: dict[str, bytes], seed: int) -> None:
    chance = random.Random(seed)
    process = start(tmp_path)
    for least in (1, 5):
        wait_for(lambda n=least: files(tmp_path) >= n or process.poll() is not None)
        time.sleep(chance.uniform(0, 0.5))
        workers = [pid for pid in children(process.pid) if b"spawn_main" in _command(pid)]
        if workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert bits(tmp_path) == undisturbed


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A real scheduler and workers: the address, and their processes, the scheduler first."""
    folder.mkdir(exist_ok=True)
    place = folder / "scheduler.json"
    quiet = {"env": ENVIRONMENT, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    options = ["--no-dashboard", "--scheduler-file", str(place)]
    processes = [subprocess.Popen([*dask, "scheduler", "--port", "0", "--host", "127.0.0.1", *options], **quiet)]
    try:
        wait_for(place.is_file)
        plain = ["--nthreads", "1", "--no-nanny", "--death-timeout", "60"]
        processes += [subprocess.Popen([*dask, "worker", *options, *plain], **quiet) for _ in range(workers)]
        import json

        yield json.loads(place.read_text())["address"], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_dask_gives_the_same_bits_and_survives_kills(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    pytest.importorskip("distributed")
    rows = tmp_path / "rows"
    with cluster(tmp_path / "first") as (address, processes):
        process = start(rows, address)
        wait_for(lambda: files(rows) >= 2)
        processes[1].kill()  # a worker: Dask gives its batches to the other
        wait_for(lambda: files(rows) >= 5)
        processes[0].kill()  # the scheduler: the run ends with one sentence
        _, errors = process.communicate()
        assert process.returncode == 1
        assert "cannot be reached" in errors.splitlines()[-1]
    assert 5 <= files(rows) < 12
    with cluster(tmp_path / "second") as (address, _):
        process = start(rows, address)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert bits(rows) == undisturbed
