"""The axes that users leave out, put back."""

from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_bool, as_float
from attsvm.errors import AttsvmError

ArrayLike = Any  # Tensor, numpy array or nested list


def as_tokens(X: ArrayLike) -> Tensor:
    """X as a tensor (n, T, d) or (B, n, T, d)."""
    tensor = as_float("X", X)
    if tensor.ndim not in (3, 4) or 0 in tensor.shape[-3:]:
        raise AttsvmError(
            f"X must have shape (n, T, d) or (B, n, T, d) with n, T, d ≥ 1, but got shape {tuple(tensor.shape)}."
        )
    return tensor


def with_all_axes(
    X: Tensor, Z: ArrayLike, Y: ArrayLike | None, mask: ArrayLike | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X, Z, Y, mask with trial and query axes; Y defaults to +1 and mask to True.

    Sizes are left to the check of TokenData.
    """
    single = X.ndim == 3
    queries = as_float("Z", Z, like=X)
    if queries.ndim == X.ndim - 1:
        queries = queries.unsqueeze(-2)
    if queries.ndim != X.ndim:
        axes = "(n, e) or (n, K, e)" if single else "(B, n, e) or (B, n, K, e)"
        raise AttsvmError(f"Z must have shape {axes}, but got shape {tuple(queries.shape)}.")
    K, T = queries.shape[-2], X.shape[-2]
    labels = X.new_ones(queries.shape[:-1]) if Y is None else as_float("Y", Y, like=X)
    if labels.ndim == X.ndim - 2:
        labels = labels.unsqueeze(-1).expand(*labels.shape, K)
    if mask is None:
        allowed = X.new_ones((*queries.shape[:-1], T), dtype=torch.bool)
    else:
        allowed = as_bool("mask", mask, X.device)
    if allowed.ndim == X.ndim - 1:
        allowed = allowed.unsqueeze(-2).expand(*allowed.shape[:-1], K, -1)
    if single:
        return X[None], queries[None], labels[None], allowed[None]
    return X, queries, labels, allowed
