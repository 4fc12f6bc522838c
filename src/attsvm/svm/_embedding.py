"""Eq. (9) of trained-embeddings: the max-margin ⟨cls⟩ vector, for a few sequences or for millions of words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attsvm.checks import as_float, as_index, as_real, check_real
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.svm._exact import two_sum
from attsvm.svm._problem import MarginProblem, UnformedProblem, gen_svm, is_large


class EmbeddingProblem(UnformedProblem):
    """Eq. (9) with so many pairs of words that only the embeddings and the pairs are kept.

    Row c asks p·(E_first − E_other) ≥ 1, or = 0 where `tied`. Every pair is kept once; `times` (N,) says how often the
    sequences ask for it. `first` and `other` (N,) are token numbers.
    """

    E: Tensor
    first: Tensor
    other: Tensor
    tied: Tensor
    times: Tensor

    def __init__(self, E: Tensor, first: Tensor, other: Tensor, tied: Tensor, times: Tensor) -> None:
        given = {"E": E, "first": first, "other": other, "tied": tied, "times": times, "layout": None}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def formed(self) -> MarginProblem:
        A, low = two_sum(self.E[self.first], -self.E[self.other])
        rows = MarginProblem.from_rows(A, b=(~self.tied).to(A.dtype), equality=self.tied)
        return replace(rows, A_low=low[None, None])

    @property
    def rows(self) -> int:
        return len(self.first)

    @property
    def shape(self) -> tuple[int, int]:
        return self.E.shape[1], 1

    @property
    def device(self) -> torch.device:
        return self.E.device

    def values(self, W: Tensor) -> Tensor:
        """W·(E_first − E_other) of every pair (N,), for W (d, 1)."""
        a = self.E.double() @ W.to(self.E.device, torch.float64)[:, 0]
        return a[self.first] - a[self.other]

    def least_margin(self, W: Tensor) -> Tensor:
        return self.values(W[0]).where(~self.tied, torch.inf).amin()[None]


def embedding_svm(E: Any, sequences: Any, p: Any, tol: float = 1e-9) -> MarginProblem:
    """Eq. (9) of trained-embeddings: the max-margin ⟨cls⟩ vector with the selection of p.

    E (|S|, d) embeddings, p (d,). `sequences` are (n, T) token numbers padded with −1, or ragged ones with `ids` and
    `offsets`, such as `attsvm.embeddings.Sequences`: these become one row for every pair of a selected token and
    another one, and if there are many, only E and the pairs are kept. In every sequence the tokens of largest p·E_s
    (ties within `tol`) are the selected ones.
    """
    E = as_float("E", E)
    ragged = hasattr(sequences, "ids") and hasattr(sequences, "offsets")
    ids = as_index("sequences", sequences.ids if ragged else sequences).to(E.device)
    p = as_float("p", p, like=E)
    check_real("E", E)
    check_real("p", p)
    if E.ndim != 2 or p.shape != E.shape[1:]:
        raise AttsvmError(f"E must have shape (|S|, d) and p (d,), but got {tuple(E.shape)} and {tuple(p.shape)}.")
    if ids.ndim != 2 - ragged or bool(((ids < ragged - 1) | (ids >= len(E))).any()):
        raise AttsvmError(
            f"sequences must be (n, T) token numbers in 0..{len(E) - 1}, padded with −1, or have flat ids and offsets."
        )
    if ragged:
        return _over_pairs(E, ids, as_index("offsets", sequences.offsets).to(E.device), E @ p, as_real("tol", tol, 0))
    data = TokenData.cls(E[ids.clamp_min(0)], mask=ids >= 0)
    return gen_svm(data, data.selected_sets(p[:, None], tol))


def _over_pairs(E: Tensor, ids: Tensor, offsets: Tensor, a: Tensor, tol: float) -> MarginProblem:
    """Every pair of a selected token (the first of its sequence) and another token of the sequence, once."""
    ends = [*offsets[:1].tolist(), *offsets[-1:].tolist()]
    if offsets.ndim != 1 or ends != [0, len(ids)] or bool((offsets.diff() < 0).any()):
        raise AttsvmError(f"offsets must be (n + 1,) numbers that rise from 0 to {len(ids)}, the number of ids.")
    n, logit = len(offsets) - 1, a[ids]
    row = torch.repeat_interleave(torch.arange(n, device=E.device), offsets.diff(), output_size=len(ids))
    top = logit.new_full((n,), -torch.inf).scatter_reduce_(0, row, logit, "amax")
    inside = logit >= (top - tol * top.abs().clamp_min(1))[row]
    chosen = ids.new_full((n,), len(E)).scatter_reduce_(0, row[inside], ids[inside], "amin")[row]
    # A token of the same number is the selected one itself. The last bit of a code says whether the two are tied.
    others = ids != chosen
    code = ((chosen * len(E) + ids) * 2 + inside)[others]
    code, times = code.unique(return_counts=True)
    pair = code // 2
    problem = EmbeddingProblem(E, pair // len(E), pair % len(E), code % 2 == 1, times)
    return problem if is_large(problem.rows, *problem.shape) else problem.formed()
