"""Training softmax attention is a margin problem.

`TokenData` holds the sequences; `train` returns the `Trajectory` of attention weights trained on them in a `Geometry`;
`solve` returns the certified `MaxMargin` of a `MarginProblem`, which says which tokens are to be separated; `verdict`
brings the two together.
"""

import importlib
from typing import Any

from attsvm._version import __version__
from attsvm.data import (
    LinearHead,
    MLPHead,
    QuadraticHead,
    TokenData,
    example1,
    example2,
    figure1,
    load,
    orthonormal,
    save,
    sphere,
)
from attsvm.diagnostics import Verdict, verdict
from attsvm.dynamics import Gaussian, Growing, Near, Trajectory, regularization_path, train
from attsvm.errors import AttsvmError
from attsvm.geometry import Frobenius, Geometry, Lp, Nuclear, parse_geometry
from attsvm.svm import (
    MarginProblem,
    MaxMargin,
    Status,
    att_svm,
    embedding_svm,
    finite_part,
    gen_svm,
    head_svm,
    label_margin,
    solve,
    token_margin,
)

_SUBPACKAGES = ("embeddings", "models", "optim", "search", "transformer")  # not needed by what is above
_SEARCH = ("basins", "cone_start", "falsify")


def __getattr__(name: str) -> Any:
    """`import attsvm` is enough for `attsvm.optim.MirrorAdam`; it is imported when it is asked for."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"attsvm.{name}")
    if name in _SEARCH:
        return getattr(importlib.import_module("attsvm.search"), name)
    raise AttributeError(f"module 'attsvm' has no attribute {name!r}")


__all__ = [
    "AttsvmError",
    "Frobenius",
    "Gaussian",
    "Geometry",
    "Growing",
    "LinearHead",
    "Lp",
    "MLPHead",
    "MarginProblem",
    "MaxMargin",
    "Near",
    "Nuclear",
    "QuadraticHead",
    "Status",
    "TokenData",
    "Trajectory",
    "Verdict",
    "__version__",
    "att_svm",
    "embedding_svm",
    "example1",
    "example2",
    "figure1",
    "finite_part",
    "gen_svm",
    "head_svm",
    "label_margin",
    "load",
    "orthonormal",
    "parse_geometry",
    "regularization_path",
    "save",
    "solve",
    "sphere",
    "token_margin",
    "train",
    "verdict",
]
