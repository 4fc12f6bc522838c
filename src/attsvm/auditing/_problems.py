"""The max-margin problem of what a head selects: in the space of its queries and keys, and for W_QK."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attsvm.auditing._stream import Site
from attsvm.auditing._weights import Weights
from attsvm.geometry import Geometry, Lp, Nuclear, Schatten, parse_geometry
from attsvm.svm import MarginProblem, MaxMargin, solve

GAP = 1e-3
"""Relative gap to which the largest margins are certified: enough for the digits that are shown."""
TIE = 1e-6
"""Logit gaps below this fraction of the largest logit are ties, and no row."""
LARGEST = 60_000_000
"""Entries of all rows a ⊗ z of an attention up to which norms that depend on the coordinates are solved: 0.5 GB."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows ⟨a ⊗ z, W⟩ ≥ 1 of H heads, and the W that they have."""

    A: Tensor
    """(H, Q, R, d)"""
    Z: Tensor
    """(H, Q, e)"""
    present: Tensor
    """(H, Q, R)"""
    left: Tensor
    """(H, c, d) and"""
    right: Tensor
    """(H, c, e): W = leftᵀ right"""
    query: Tensor
    """(H, Q) which of the sampled queries they are"""

    @staticmethod
    def of(A: Tensor, Z: Tensor, present: Tensor, sure: Tensor, left: Tensor, right: Tensor, most: int) -> Problem:
        """For every head, at most `most` queries that have rows, those with the largest `sure`, (H, Q)."""
        has_rows = present.any(-1)
        order = sure.masked_fill(~has_rows, -1.0).argsort(dim=1, descending=True, stable=True)
        query = order[:, : min(most, int(has_rows.sum(1).max()))]
        at = torch.arange(len(A))[:, None]
        present = present[at, query]
        return Problem(A[at, query].masked_fill(~present[..., None], 0.0), Z[at, query], present, left, right, query)

    def own_margins(self) -> Tensor:
        """aᵀ W z of every row, (H, Q, R)."""
        return torch.einsum(
            "hqrc,hqc->hqr", self.A @ self.left.mT[:, None], torch.einsum("hce,hqe->hqc", self.right, self.Z)
        )

    def solve(self, geometry: Geometry | str) -> Solved | None:
        """The problem of every head in one norm; None if it is too large for a norm that depends on coordinates."""
        geometry = parse_geometry(geometry)
        turned = _of_singular_values(geometry)
        d, e = self.A.shape[-1], self.Z.shape[-1]
        if not turned and self.present.numel() * d * e > LARGEST:
            return None
        if turned:  # norms of singular values do not see the coordinates: W need not leave the span of the rows
            U, V = _span(self.A.flatten(1, 2)), _span(self.Z)
        else:
            U, V = (torch.eye(n, dtype=self.A.dtype).expand(len(self.A), n, n) for n in (d, e))
        A, Z = self.A @ U[:, None], self.Z @ V
        ones = torch.ones_like(self.present, dtype=A.dtype)
        problem = MarginProblem(A, Z, ones, torch.zeros_like(self.present), self.present)
        found = solve(problem, geometry, tol=GAP)
        least = self.own_margins().masked_fill(~self.present, torch.inf).flatten(1).amin(1)
        own = least / self.norm(geometry) * found.lower
        seen = (self.left @ U).mT @ (self.right @ V)  # the part of W that the rows see
        cosine = (seen * found.W).sum((1, 2)) / (_size(seen) * _size(found.W))
        return Solved(geometry, found, own, cosine)

    def norm(self, geometry: Geometry) -> Tensor:
        """‖leftᵀ right‖ of every head, (H,)."""
        left, right = self.left, self.right
        if _of_singular_values(geometry):  # which the triangles of the factors share with W
            left, right = (torch.linalg.qr(x.mT, mode="r")[1] for x in (left, right))
            return geometry.norm(left @ right.mT)
        return torch.stack([geometry.norm(k.mT @ q) for k, q in zip(left, right)])


@dataclass(frozen=True, eq=False)
class Solved:
    geometry: Geometry
    solution: MaxMargin
    efficiency: Tensor
    """(H,) the margin of W/‖W‖ over the largest one"""
    alignment: Tensor
    """(H,) ⟨W, W_mm⟩/(‖W‖_F ‖W_mm‖_F), W restricted to the span of the rows"""

    def facts(self, head: int) -> dict[str, Any]:
        norm = float(self.solution.norm[head])
        return {
            "status": str(self.solution.status[head]),
            "margin": 1 / norm if norm > 0 else None,
            "efficiency": finite(self.efficiency[head]),
            "alignment": finite(self.alignment[head]),
        }


def head_problem(site: Site, selects: float, most: int) -> Problem | None:
    """Rows (k_o − k_t) ⊗ q of queries with the weight `selects` on o; the head's own W is a multiple of the identity.

    A bias of the logits becomes one more coordinate: its difference in a, 1 in z, 1 in W.
    """
    if not site.rows:
        return None
    q = torch.cat([rows.q for rows in site.rows], 1).double()
    k = _joined([rows.k for rows in site.rows]).double()
    A = k[:, :, :1] - k[:, :, 1:]
    own = site.scale * torch.eye(q.shape[-1], dtype=torch.float64)
    present = _present(site, selects)
    if any(rows.bias is not None for rows in site.rows):
        bias = _joined([torch.zeros_like(r.logits) if r.bias is None else r.bias for r in site.rows]).double()
        gap = (bias[..., :1] - bias[..., 1:]).masked_fill(~present, 0.0)
        if bool(gap.any()):
            A, q = torch.cat([A, gap[..., None]], -1), torch.cat([q, q.new_ones(*q.shape[:-1], 1)], -1)
            own = torch.block_diag(own, torch.ones(1, 1, dtype=torch.float64))
    eye = torch.eye(len(own), dtype=torch.float64).expand(len(q), -1, -1)
    return Problem.of(A, q, present, _sure(site), eye, own.expand(len(q), -1, -1), most)


def token_problem(site: Site, weights: Weights | None, selects: float, most: int) -> Problem | None:
    """Rows (x_o − x_t) ⊗ x for W_QK, over what the linear maps read; None where no single W makes the logits."""
    if weights is None or not weights.alike or not site.rows:
        return None
    if any(rows.bias is not None and _biased(rows.bias) for rows in site.rows):
        return None
    if any(rows.hidden_q is None or rows.hidden_k is None for rows in site.rows):
        return None
    z = torch.cat([rows.hidden_q for rows in site.rows if rows.hidden_q is not None]).double()
    x = _joined([rows.hidden_k for rows in site.rows if rows.hidden_k is not None]).double()
    A_q, A_k = weights.with_biases()
    a = x[:, :, :1] - x[:, :, 1:]
    if weights.biased:
        z = torch.cat([z, z.new_ones(len(z), 1)], 1)
        a = torch.cat([a, a.new_zeros(*a.shape[:-1], 1)], -1)
    z = z.expand(site.heads, -1, -1)
    present = _present(site, selects)
    return Problem.of(a, z, present, _sure(site), A_k, weights.scale * A_q, most)


def solve_all(problem: Problem | None, norms: Sequence[str]) -> dict[str, Solved]:
    """The problem in every norm, by name; norms for which it is too large are left out."""
    if problem is None or not bool(problem.present.any()):
        return {}
    found = {name: problem.solve(name) for name in norms}
    return {name: solved for name, solved in found.items() if solved is not None}


def _present(site: Site, selects: float) -> Tensor:
    """Rows that are there: of queries that select, visible competitors that are no ties."""
    logits = _joined([rows.logits for rows in site.rows], -torch.inf).double()
    size = logits.masked_fill(logits == -torch.inf, 0.0).abs().amax((1, 2), keepdim=True)
    decided = _sure(site)[..., None] >= selects
    return decided & (logits[..., 1:] > -torch.inf) & (logits[..., :1] - logits[..., 1:] > TIE * size)


def _sure(site: Site) -> Tensor:
    """The largest weight of every sampled query, (H, Q)."""
    return torch.cat([rows.weights.amax(-1) for rows in site.rows], 1)


def _joined(parts: list[Tensor], fill: float = 0.0) -> Tensor:
    """(H, n, 1 + R, ...) of several texts as one; short texts have fewer competitors."""
    most = max(part.shape[2] for part in parts)
    wide = []
    for part in parts:
        room = part.new_full((*part.shape[:2], most - part.shape[2], *part.shape[3:]), fill)
        wide.append(torch.cat([part, room], 2))
    return torch.cat(wide, 1)


def _biased(bias: Tensor) -> bool:
    return bool((bias[bias > -torch.inf] != 0).any())


def _of_singular_values(geometry: Geometry) -> bool:
    return isinstance(geometry, Schatten | Nuclear) or geometry == Lp(2)


def _span(rows: Tensor) -> Tensor:
    """An orthonormal basis (H, d, r) whose span holds the rows (H, N, d), r at most min(N, d)."""
    return torch.linalg.qr(rows.mT)[0]


def _size(W: Tensor) -> Tensor:
    return torch.linalg.vector_norm(W, dim=(1, 2))


def finite(x: Tensor | float) -> float | None:
    """A number as JSON holds it."""
    return float(x) if math.isfinite(x) else None
