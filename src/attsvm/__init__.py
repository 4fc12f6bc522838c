"""Training softmax attention is a margin problem.

`TokenData` holds the sequences; `train` returns the `Trajectory` of attention weights trained on them in a `Geometry`;
`solve` returns the certified `MaxMargin` of a `MarginProblem`, which says which tokens to separate; `verdict` brings
the two together.
"""

import importlib
from typing import Any

from attsvm._version import __version__
from attsvm.data import (
    Head,
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
from attsvm.dynamics import (
    Adam,
    Batches,
    Decaying,
    Gaussian,
    Growing,
    Lion,
    MirrorDescent,
    Muon,
    Near,
    RMSprop,
    Rule,
    Steepest,
    Trajectory,
    train,
)
from attsvm.errors import AttsvmError
from attsvm.geometry import (
    Frobenius,
    Geometry,
    Group,
    Hybrid,
    Lp,
    Mahalanobis,
    Nuclear,
    Part,
    Schatten,
    Spectral,
    parse_geometry,
)
from attsvm.objective import Loss
from attsvm.paths import RegularizationPath, regularization_path
from attsvm.svm import (
    MarginProblem,
    MaxMargin,
    Status,
    att_svm,
    embedding_svm,
    finite_part,
    gen_svm,
    graph_finite_part,
    graph_svm,
    head_svm,
    label_margin,
    margin_efficiency,
    multiclass_svm,
    ntp_finite_part,
    ntp_svm,
    per_head_svm,
    solve,
    solve_rank,
    token_margin,
)
from attsvm.sweeps import sweep

_SUBPACKAGES = (
    "auditing",
    "embeddings",
    "experiments",
    "models",
    "optim",
    "plots",
    "report",
    "search",
    "text",
    "transformer",
)
"""Not needed by what is above, and some of them need more packages."""
_FUNCTIONS = {"audit": "auditing", "basins": "search", "cone_start": "search", "falsify": "search"}


def __getattr__(name: str) -> Any:
    """`import attsvm` is enough for `attsvm.optim.MirrorAdam`; it is imported when it is asked for."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"attsvm.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"attsvm.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'attsvm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES, *_FUNCTIONS})


__all__ = [
    "Adam",
    "AttsvmError",
    "Batches",
    "Decaying",
    "Frobenius",
    "Gaussian",
    "Geometry",
    "Group",
    "Growing",
    "Head",
    "Hybrid",
    "LinearHead",
    "Lion",
    "Loss",
    "Lp",
    "MLPHead",
    "Mahalanobis",
    "MarginProblem",
    "MaxMargin",
    "MirrorDescent",
    "Muon",
    "Near",
    "Nuclear",
    "Part",
    "QuadraticHead",
    "RMSprop",
    "RegularizationPath",
    "Rule",
    "Schatten",
    "Spectral",
    "Status",
    "Steepest",
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
    "graph_finite_part",
    "graph_svm",
    "head_svm",
    "label_margin",
    "load",
    "margin_efficiency",
    "multiclass_svm",
    "ntp_finite_part",
    "ntp_svm",
    "orthonormal",
    "parse_geometry",
    "per_head_svm",
    "regularization_path",
    "save",
    "solve",
    "solve_rank",
    "sphere",
    "sweep",
    "token_margin",
    "train",
    "verdict",
]
