"""The finite and the growing part of a W whose SVM has equalities."""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.svm import MarginProblem

INDEPENDENT = 1e-10
"""Singular values below this share of the largest are those of dependent rows."""


def finite_component(problem: MarginProblem, W: Tensor) -> Tensor:
    """The projection of W (R, B, d, e) on the span of the equality rows of its trial, where training stays finite."""
    found = torch.zeros_like(W)
    for b in range(W.shape[1]):
        rows = problem.A[b, :, :, :, None] * problem.Z[b, :, None, None]
        rows = rows[problem.equality[b] & problem.present[b]].flatten(1)
        if len(rows):
            _, sizes, Vh = torch.linalg.svd(rows, full_matrices=False)
            basis = Vh[sizes > INDEPENDENT * sizes[0]]
            flat = W[:, b].flatten(1)
            found[:, b] = (flat @ basis.mT @ basis).reshape(W[:, b].shape)
    return found
