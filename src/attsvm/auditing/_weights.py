"""W_QK of every head, from the derivatives of its queries and keys: no names of weights are needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.auditing._inputs import Inputs
from attsvm.captures import Attended, affine, capture
from attsvm.errors import AttsvmError

SEEN = 8
"""Tokens of the first text on which the weights are probed."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The maps q = A_q x + b_q and k = A_k x + b_k of the H heads of an attention, in float64."""

    A_q: Tensor
    """(H, c, d)"""
    b_q: Tensor
    A_k: Tensor
    b_k: Tensor
    scale: float
    alike: bool
    """the same for all tokens: neither rotated nor normalised"""
    used: tuple[Tensor, ...]
    """the weights that make queries and keys"""

    def spectrum(self) -> Tensor:
        """The singular values of W_QK = scale·A_kᵀ A_q that may be positive, (H, c)."""
        R_q, R_k = (torch.linalg.qr(A.mT, mode="r")[1] for A in (self.A_q, self.A_k))
        return self.scale * torch.linalg.svdvals(R_k @ R_q.mT)

    @property
    def biased(self) -> bool:
        return bool(self.b_q.any() or self.b_k.any())

    def with_biases(self) -> tuple[Tensor, Tensor]:
        """The maps of queries and keys, (H, c, d); with biases, of tokens with a last coordinate 1, (H, c, d + 1)."""
        if not self.biased:
            return self.A_q, self.A_k
        return torch.cat([self.A_q, self.b_q[..., None]], -1), torch.cat([self.A_k, self.b_k[..., None]], -1)


def probe(inputs: Inputs) -> dict[str, Weights]:
    """The weights of every attention that makes queries and keys by linear maps, seen on a little of the first text."""
    batch = inputs.batch([0], SEEN) if inputs.documents else next(inputs.batches(1))
    found: dict[str, Weights] = {}

    def look(attended: Attended) -> None:
        for x in (attended.q, attended.keys):
            if not bool(x.isfinite().all()):
                raise AttsvmError(f"queries and keys must be finite, but {attended.name} computes nan or inf.")
        q_source, k_source = attended.sources
        if q_source is None or k_source is None or None in attended.hidden():
            return
        maps = affine(attended)
        alike = True
        for A, b, x, own in zip(maps[::2], maps[1::2], attended.hidden(), (attended.q, attended.keys)):
            assert x is not None
            made = torch.einsum("hcd,btd->bhtc", A, x.detach()) + b[:, None]
            alike &= torch.allclose(made, own.detach(), rtol=1e-3, atol=1e-4 * float(own.detach().abs().max()))
        A_q, b_q, A_k, b_k = (x.double().cpu() for x in maps)
        used = tuple({id(s.weight): s.weight for s in (q_source, k_source)}.values())
        found[attended.name] = Weights(A_q, b_q, A_k, b_k, attended.scale, alike, used)

    with torch.enable_grad(), capture(inputs.model, look, differentiable=True):
        batch.run(inputs.model)
    return found
