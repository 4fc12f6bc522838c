"""Files bring back every norm: solutions, runs and checkpoints."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm import AttsvmError, Geometry, MaxMargin, Steepest, Trajectory, att_svm, solve, sphere, train
from attsvm.geometry import Group, Hybrid, Lp, Mahalanobis, Nuclear, Part, Schatten, Spectral

DATA = sphere(3, 4, 3, trials=2, seed=0)
INNER = Hybrid((Part((0, 1), (0, 3), Lp(math.inf), 2.0), Part((1, 2), (0, 3), Spectral())))
NORMS: list[Geometry] = [
    Lp(math.inf),
    Nuclear(1e-6),
    Schatten(2.5),
    Group("columns", largest=True),
    Group([[0, 1, 2], [0, 1, 1], [2, 2, 2]]),
    Mahalanobis(torch.eye(9) + 0.1),
    Hybrid((Part((0, 1), (0, 3), Lp(2)), Part((1, 3), (0, 3), Spectral(), 3))),
    Hybrid([Part([0, 2], (0, 3), INNER, np.float32(0.5)), Part((2, 3), np.array([0, 3]), Lp(2))]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("geometry", NORMS, ids=lambda g: g.name)
def test_files_bring_back_every_norm(tmp_path: Path, geometry: Geometry, ending: str) -> None:
    solution = solve(att_svm(DATA), geometry)
    solution.save(tmp_path / f"solution.{ending}")
    again = MaxMargin.load(tmp_path / f"solution.{ending}")
    assert (again.geometry, hash(again.geometry)) == (geometry, hash(geometry))
    assert torch.equal(again.efficiency(again.W), solution.efficiency(solution.W))

    rule = Steepest(geometry)
    whole = train(DATA, rule=rule, steps=12)
    train(DATA, rule=rule, steps=6, checkpoint=tmp_path / f"run.{ending}")
    half = Trajectory.load(tmp_path / f"run.{ending}")
    assert (half.geometry, half.rule) == (geometry, rule)
    for resumed in (
        train(DATA, rule=half.rule, steps=12, resume=half),
        train(DATA, rule=rule, steps=12, checkpoint=tmp_path / f"run.{ending}"),
    ):
        assert torch.equal(resumed.W, whole.W)


@dataclass(frozen=True, eq=False)
class Priced(Geometry):
    """A norm with a parameter that no file can hold."""

    price: Tensor = field(default_factory=lambda: torch.ones(3, 1, dtype=torch.float64))

    @property
    def name(self) -> str:
        return "priced"

    def norm(self, W: Tensor) -> Tensor:
        return Lp(2).norm(self.price * W)

    def dual_norm(self, G: Tensor) -> Tensor:
        return Lp(2).norm(G / self.price)


def test_parameters_that_no_file_holds_are_refused_before_training(tmp_path: Path) -> None:
    for run in (
        lambda: train(DATA, rule=Steepest(Priced()), steps=10**9, checkpoint=tmp_path / "run.npz"),
        lambda: solve(att_svm(DATA), Priced()).save(tmp_path / "solution.npz"),
    ):
        with pytest.raises(AttsvmError, match="files hold plain numbers, texts and lists of them, but a parameter is"):
            run()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([{"rows": [0, 3], "columns": "ab", "geometry": {"kind": "Lp", "p": 2}}], "columns of a Part"),
        ([{"rows": [0, 3], "columns": [0, 3]}], "geometry must be described"),
        ([{"rows": [0, 3], "columns": [0, 3], "geometry": {"kind": "Lp", "p": 2}, "of": 1}], "other parameters"),
        ([5], "parts must be a sequence of Part"),
        ([Part((0, 1), (0, 3), Lp(2)), "l2"], "parts must be a sequence of Part"),
    ],
)
def test_what_is_no_part_is_refused(parts: Any, words: str) -> None:
    with pytest.raises(AttsvmError, match=words):
        Hybrid(parts)


def test_a_part_needs_a_geometry() -> None:
    with pytest.raises(AttsvmError, match="geometry of a Part must be a Geometry"):
        Part((0, 1), (0, 3), "l2")  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="rows of a Part must be"):
        Part((0, 1, 2), (0, 3), Lp(2))  # type: ignore[arg-type]
