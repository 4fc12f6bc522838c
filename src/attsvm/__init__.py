"""Training softmax attention is a margin problem.

`TokenData` holds the sequences, a `MarginProblem` says which tokens are to be separated, `solve` returns the
certified `MaxMargin` in a `Geometry`.
"""

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

__all__ = [
    "AttsvmError",
    "Frobenius",
    "Geometry",
    "LinearHead",
    "Lp",
    "MLPHead",
    "MarginProblem",
    "MaxMargin",
    "Nuclear",
    "QuadraticHead",
    "Status",
    "TokenData",
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
    "save",
    "solve",
    "sphere",
    "token_margin",
]
