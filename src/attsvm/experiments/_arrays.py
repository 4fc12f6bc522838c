"""Small helpers between the library's tensors (steps first) and rows (trials first)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data import TokenData
from attsvm.diagnostics import margin_ratio
from attsvm.dynamics import Gaussian, Trajectory
from attsvm.geometry import Geometry
from attsvm.svm import MaxMargin, att_svm, solve
from attsvm.tolerances import SHARP

RIDGE = 2.0**-52
"""The penalty of TF-as-SVM on ‖K‖² + ‖Q‖², "the smallest representable number"."""


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


def margin_share(data: TokenData, tokens: Tensor, W: Tensor, geometry: Geometry | str) -> Tensor:
    """The margin of W over the largest one that these tokens have in this norm, (B,)."""
    solution = solve(att_svm(data, tokens), geometry)
    return margin_ratio(data, tokens, W, solution.geometry, solution)


def share_columns(result: Trajectory, norms: Iterable[str]) -> dict[str, np.ndarray]:
    """The recorded steps, and in every norm the margin share of the W there and the norm of the SVM solution."""
    columns = {"steps": steps_of(result.steps, range(len(result)))}
    for norm in norms:
        solution = solve(att_svm(result.data, result.tokens), norm)
        shares = [margin_ratio(result.data, result.tokens, W, solution.geometry, solution) for W in result.records["W"]]
        columns |= {f"efficiency_{norm}": curves(torch.stack(shares)), f"norm_{norm}": array(solution.norm)}
    return columns


def second_best(data: TokenData) -> Tensor:
    """The second best token of the first sequence, the best of the others: often locally, never globally optimal."""
    tokens = data.optimal_tokens().clone()
    tokens[:, 0, 0] = data.scores()[:, 0, 0].topk(2).indices[:, 1]
    return tokens


def as_in_paper(trained: str) -> dict[str, Any]:
    """Options of `train` for W, or for (K, Q) as TF-as-SVM trains them: from a small start, with its penalty."""
    return {"parameterization": "KQ", "init": Gaussian(0.1), "ridge": RIDGE} if trained == "KQ" else {}
