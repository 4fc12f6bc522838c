"""Small helpers between the library's tensors (steps first) and rows (trials first)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attsvm.data import TokenData
from attsvm.geometry import Geometry
from attsvm.svm import MaxMargin, att_svm, solve
from attsvm.tolerances import SHARP


def array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def curves(x: Tensor) -> np.ndarray:
    """Records (R, B, …) as rows (B, R, …)."""
    return np.ascontiguousarray(array(x).swapaxes(0, 1))


def steps_of(steps: Tensor, trials: range) -> np.ndarray:
    """The recorded steps, repeated in every row, so that a file explains itself."""
    return np.tile(array(steps), (len(trials), 1))


def median(x: np.ndarray) -> float:
    """The median of what is known; NaN if nothing is."""
    known = x[np.isfinite(x)]
    return float(np.median(known)) if known.size else np.nan


def limit(data: TokenData, tokens: Tensor, geometry: Geometry | str) -> MaxMargin:
    """The attention SVM of these tokens, as sharp as float64 allows: a gap ε leaves W uncertain by about √ε."""
    return solve(att_svm(data, tokens), geometry, tol=SHARP)
