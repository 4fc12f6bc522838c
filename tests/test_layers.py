"""The map of the package has no arrow that points up, and none into another's private module."""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import layers


def test_no_arrow_points_up() -> None:
    assert layers.problems(layers.imports()) == []


def test_wrong_arrows_are_seen() -> None:
    wrong = layers.problems({"svm": Counter(["dynamics", "data._io"]), "geometry": Counter(["errors", "mystery"])})
    assert wrong == [
        "mystery is in no layer",
        "svm imports dynamics, which is not below it",
        "svm imports the private module data._io",
    ]
