"""`attsvm train` and `attsvm verdict` as a user types them."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run, run_script

import attsvm
from attsvm.dynamics import RULES, Trajectory
from attsvm.geometry import Lp

TRAIN = ("train", "data.npz", "--geometry", "l1.75", "--steps", "400", "--normalize", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    run("data", "sphere", "--n", "3", "--tokens", "4", "--dim", "6", "--trials", "4", "--out", "data.npz", cwd=folder)
    run(*TRAIN, "--out", "run", cwd=folder)
    return folder


def test_train_writes_trajectory_verdict_and_plots(folder: Path) -> None:
    assert {path.name for path in (folder / "run").iterdir()} == {
        "trajectory.safetensors",
        "verdict.json",
        "direction.png",
        "direction.svg",
        "weight.png",
        "weight.svg",
    }
    trajectory = Trajectory.load(folder / "run" / "trajectory.safetensors")
    assert trajectory.state.step == 400
    verdict = json.loads((folder / "run" / "verdict.json").read_text())
    assert verdict["summary"]["trials"] == 4


def test_classes_are_trained_by_cross_entropy(tmp_path: Path) -> None:
    data = attsvm.data.class_data(attsvm.sphere(1, 9, 5, seed=2).X[0, 0], [0, 1, 2] * 3)
    attsvm.save(data, tmp_path / "classes.npz")
    run("train", "classes.npz", "--loss", "log", "--steps", "40", "--quiet", "--out", "run", cwd=tmp_path)
    trained = Trajectory.load(tmp_path / "run" / "trajectory.safetensors")
    assert torch.equal(trained.W, attsvm.train(data, loss="log", steps=40).W)


def test_titles_are_not_cut_off(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from attsvm.cli._verdict import draw_run

    figures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attsvm.plots.save_figure", lambda figure, *_: figures.append(figure))
        trajectory = attsvm.train(attsvm.sphere(3, 4, 6, trials=100), "l1.75", steps=20)
        draw_run(trajectory, attsvm.verdict(trajectory), tmp_path)
    figures[0].draw_without_rendering()
    box = figures[0].axes[0].title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figures[0].bbox.width


def test_verdict_prints_it_again(folder: Path) -> None:
    text = run("verdict", "run", cwd=folder).stdout
    assert "l1.75 max-margin solution of the selected tokens" in text
    printed = json.loads(run("verdict", "run", "--json", cwd=folder).stdout)
    assert printed == json.loads((folder / "run" / "verdict.json").read_text())


def test_runs_of_infeasible_data_are_judged_and_drawn(folder: Path) -> None:
    run("data", "sphere", "--dim", "1", "--trials", "3", "--out", "line.npz", cwd=folder)
    for command in (("train", "line.npz", "--steps", "5", "--out", "line", "--quiet"), ("verdict", "line")):
        result = run(*command, cwd=folder, check=False)
        assert result.returncode == 3, result.stderr
        assert "infeasible" in " ".join(result.stdout.split())
        assert "Traceback" not in result.stderr
    assert (folder / "line" / "direction.png").is_file()


def test_a_longer_run_goes_on_and_equals_one_in_a_piece(folder: Path) -> None:
    longer = [argument if argument != "400" else "900" for argument in TRAIN]
    run(*longer, "--out", "run2", cwd=folder)
    run(*TRAIN, "--out", "run3", cwd=folder)
    run(*longer, "--out", "run3", cwd=folder)
    whole, pieces = (Trajectory.load(folder / name / "trajectory.safetensors") for name in ("run2", "run3"))
    assert torch.equal(whole.W, pieces.W)
    assert torch.equal(whole.steps, pieces.steps)
    assert all(torch.equal(whole.records[name], pieces.records[name]) for name in whole.records)


KILLED = """
import os, sys
from attsvm.cli import main
from attsvm.dynamics import Trajectory, _train
number, when = int(sys.argv[1]), int(sys.argv[2])
_train.CHECKPOINT_SECONDS = 0.0  # the run is kept after every part of it
save, times = Trajectory.save, []
def save_and_die(self, path):
    times.append(save(self, path))
    if len(times) == when:
        os.kill(os.getpid(), number)
Trajectory.save = save_and_die
sys.argv[:] = ["attsvm", *sys.argv[3:]]
main()
"""


def test_killed_again_and_again_it_ends_with_the_same_bits(folder: Path) -> None:
    """Kill -9 a run twice, and Ctrl-C it once; then let it end."""
    arguments = [*TRAIN, "--out", "killed"]
    kept = []
    for number, when in ((signal.SIGKILL, 2), (signal.SIGINT, 3), (signal.SIGKILL, 1)):
        ended = run_script(KILLED, str(int(number)), str(when), *arguments, cwd=folder)
        assert ended.returncode == (130 if number == signal.SIGINT else -number), ended.stderr
        kept.append(Trajectory.load(folder / "killed" / "trajectory.safetensors").state.step)
    assert 0 < kept[0] < kept[1] < kept[2] < 400
    run(*arguments, cwd=folder)
    undisturbed = [argument if argument != "killed" else "undisturbed" for argument in arguments]
    run(*undisturbed, cwd=folder)
    killed, whole = (Trajectory.load(folder / x / "trajectory.safetensors") for x in ("killed", "undisturbed"))
    assert torch.equal(killed.state.blocks["W"]["theta"], whole.state.blocks["W"]["theta"])
    assert torch.equal(killed.steps, whole.steps)
    assert all(torch.equal(killed.records[name], whole.records[name]) for name in whole.records)
    assert not [path for path in (folder / "killed").iterdir() if ".tmp" in path.name]


INTERRUPTED = """
import signal, sys
from attsvm.cli import main
from attsvm.dynamics._run import Run
number, out = int(sys.argv[1]), sys.argv[-1]
measure = Run.measure
def interrupted(self, names):
    if self.step == 200:
        signal.raise_signal(number)
    return measure(self, names)
Run.measure = interrupted
sys.argv[:] = ["attsvm", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_before_the_first_checkpoint_it_keeps_the_run(folder: Path, number: signal.Signals) -> None:
    out = f"interrupted-{number}"
    ended = run_script(INTERRUPTED, str(int(number)), *TRAIN, "--out", out, cwd=folder)
    assert ended.returncode == 128 + number
    assert ended.stderr == f"Interrupted; the same command resumes the run in {out}.\n"
    assert [path.name for path in (folder / out).iterdir()] == ["trajectory.safetensors"]
    kept = Trajectory.load(folder / out / "trajectory.safetensors")
    assert 200 <= kept.state.step < 400
    run(*TRAIN, "--out", out, cwd=folder)
    resumed, whole = (Trajectory.load(folder / x / "trajectory.safetensors") for x in (out, "run"))
    assert torch.equal(resumed.state.blocks["W"]["theta"], whole.state.blocks["W"]["theta"])
    assert torch.equal(resumed.steps, whole.steps)
    assert all(torch.equal(resumed.records[name], whole.records[name]) for name in whole.records)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TRAIN, "--out", "run", "--lr", "0.3"), "holds another run, with lr.W.eta 0.1, not 0.3"),
        (("train", "data.npz", "--geometry", "l1.75", "--steps", "10", "--out", "run"), "steps must be at least"),
        (("train", "head.npz", *TRAIN[2:], "--out", "run"), "holds another run, with other data"),
        ((*TRAIN, "--out", "data.npz"), "cannot be made"),
        (("train", "data.npz", "--steps", "10", "--geometry", "l1", "--out", "x"), "for example l1.1"),
        (("train", "data.npz", "--steps", "10", "--geometry", "linf", "--out", "x"), "--rule sign"),
        (("train", "data.npz", "--steps", "10", "--width", "3", "--out", "x"), "width of K and Q"),
        (
            (
                "train",
                "data.npz",
                "--steps",
                "10",
                *("--parameterization", "KQ", "--width", "1" + 12 * "0"),
                "--out",
                "x",
            ),
            "GB are free",
        ),
        (("train", "data.npz", "--steps", "10", "--seed", "3", "--out", "x"), "give --init-scale too"),
        (("verdict", "nowhere"), "holds no run"),
        (("verdict", "run/trajectory.safetensors"), "is a file: give the folder of a run"),
    ],
    ids=[
        "other options",
        "fewer steps",
        "another head",
        "a file",
        "p",
        "inf",
        "width",
        "memory",
        "seed",
        "no run",
        "file of a run",
    ],
)
def test_wrong_input(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    content = dict(np.load(folder / "data.npz"))
    np.savez(folder / "head.npz", **(content | {"head.v": -content["head.v"]}))
    result = run(*arguments, cwd=folder, check=False)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("parameterization", ["KQ", "joint"])
def test_other_parameterizations(folder: Path, parameterization: str) -> None:
    options = ("--parameterization", parameterization, "--steps", "300", "--quiet", "--growing", "4")
    out = f"run-{parameterization}"
    assert "predicted limit" in run("train", "data.npz", *options, "--out", out, cwd=folder).stdout


def test_the_seed_draws_the_factors(folder: Path) -> None:
    for seed in ("0", "7"):
        options = ("--parameterization", "KQ", "--steps", "5", "--quiet", "--seed", seed)
        run("train", "data.npz", *options, "--out", f"seed-{seed}", cwd=folder)
    first, other = (Trajectory.load(folder / f"seed-{seed}" / "trajectory.safetensors") for seed in "07")
    assert not torch.equal(first.state.blocks["K"]["theta"], other.state.blocks["K"]["theta"])


def test_interrupted_before_anything_is_kept_it_does_not_say_so(folder: Path) -> None:
    code = """
import signal, sys
import attsvm.dynamics
from attsvm.cli import main

def interrupted(*arguments, **options):
    signal.raise_signal(signal.SIGINT)

attsvm.dynamics.train = interrupted
sys.argv = ["attsvm", "train", "data.npz", "--steps", "9", "--out", "none", "--quiet"]
main()
"""
    result = run_script(code, cwd=folder)
    assert result.returncode == 130
    assert result.stderr == "Interrupted; no file was left half written.\n"


def test_other_rules(folder: Path) -> None:
    run("train", "data.npz", "--rule", "sign", "--steps", "30", "--lr", "0.05", "--out", "sign", "--quiet", cwd=folder)
    trajectory = Trajectory.load(folder / "sign" / "trajectory.safetensors")
    assert trajectory.geometry == Lp(math.inf)
    assert trajectory.rule == RULES["sign"]
    result = run("train", "data.npz", "--rule", "adma", "--steps", "3", "--out", "x", cwd=folder, check=False)
    assert result.returncode == 1
    assert "rule must be a Rule or one of gd, sign" in result.stderr
    assert not (folder / "x").exists()
