"""The exact minimiser of Lemma 6 of TF-as-SVM."""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-12


def best_weights(scores: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """argmin over the simplex of λ‖s‖² − γᵀs (orthonormal tokens), for γ (B, T) and λ (B,).

    For λ > 0 it is the Euclidean projection of γ/2λ onto the simplex; for λ = 0 the best token.
    """
    top = np.eye(scores.shape[1])[scores.argmax(1)]
    u = scores / (2 * np.where(lam > 0, lam, 1.0))[:, None]
    ordered = -np.sort(-u, axis=1)
    excess = ordered.cumsum(1) - 1
    size = (ordered - excess / np.arange(1, u.shape[1] + 1) > ROUNDING).sum(1)
    shift = np.take_along_axis(excess, size[:, None] - 1, 1) / size[:, None]
    return np.where((lam > 0)[:, None], np.maximum(u - shift, 0.0), top)
