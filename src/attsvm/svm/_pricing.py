"""All rows of one large instance, looked at but never formed: the worst of every query, and bounds over all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.svm._augmented import WorkingRows
from attsvm.svm._embedding import EmbeddingProblem
from attsvm.svm._exact import UNIT, power_of_two, shrunk, two_sum, values
from attsvm.svm._problem import MarginProblem, TokenProblem
from attsvm.svm._rows import Rows

OUT_OF_RANGE = "the rows ⟨a ⊗ z, W⟩/b must have norms between 1e-150 and 1e150: rescale tokens, Z or b."


@dataclass
class Priced:
    """Per query the smallest ⟨f, W⟩/b of the inequalities and the largest |⟨f, W⟩| of the equalities, and the codes of
    these rows. A query without such rows has ∞, and 0."""

    ratio: Tensor
    code: Tensor
    off: Tensor
    off_code: Tensor


class Pricing(Protocol):
    """What the working-set method asks of a problem. A code names a row."""

    def worst(self, W: Tensor) -> Priced: ...

    def bounds(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """What the smallest ⟨f, W⟩/b is not below and the largest |⟨f, W⟩| of equalities not above, in real numbers."""
        ...

    def pick(self, code: Tensor) -> WorkingRows: ...

    def total(self) -> Tensor:
        """The sum of all inequality rows, (d, e)."""
        ...

    def rows_of(self, code: Tensor) -> Tensor:
        """Flat row numbers in the problem's order (Q, R)."""
        ...


class TokenPricing:
    """Rows (x_first − x_t) ⊗ z; the code of a row is query·T + t."""

    def __init__(self, problem: TokenProblem) -> None:
        self.problem, self.data = problem, problem.data
        self.first = problem.sets[0].int().argmax(-1)  # (n, K)
        others = problem.sets[0].sum(-1) > 1
        self.ties = bool(others.any())

    def worst(self, W: Tensor) -> Priced:
        T, K = self.data.T, self.data.K
        ratio, token, off, tied = [], [], [], []
        for _, outside, inside in self.problem.margins(W):
            least = outside.min(-1)
            ratio.append(least.values.flatten())
            token.append(least.indices.flatten())
            if self.ties:
                most = inside.abs().max(-1)
                off.append(most.values.flatten())
                tied.append(most.indices.flatten())
        query = torch.arange(self.data.n * K, device=W.device)
        found = torch.cat(ratio)
        none = torch.zeros_like(found)
        return Priced(
            ratio=found,
            code=query * T + torch.cat(token),
            off=torch.cat(off) if self.ties else none,
            off_code=query * T + (torch.cat(tied) if self.ties else 0),
        )

    def bounds(self, W: Tensor) -> tuple[Tensor, Tensor]:
        data = self.data
        least, most = [], []
        for part, outside, inside in self.problem.margins(W):
            size = (data.Z[0, part].double().abs() @ W.abs().mT) @ data.X[0, part].double().abs().mT
            error = 1.01 * (data.d + data.e + 20) * UNIT * (size.gather(-1, self.first[part][..., None]) + size)
            error = error + 1e-300
            least.append((outside - error).amin())
            most.append(
                torch.where(self.problem.sets[0, part], inside.abs() + error, 0.0).amax() if self.ties else None
            )
        off = torch.stack([x for x in most if x is not None]).amax() if self.ties else torch.zeros_like(least[0])
        return torch.stack(least).amin(), off

    def pick(self, code: Tensor) -> WorkingRows:
        query, t = code // self.data.T, code % self.data.T
        i, k = query // self.data.K, query % self.data.K
        X = self.data.X[0]
        A, low = two_sum(X[i, self.first[i, k]].double(), -X[i, t].double())
        equality = self.problem.sets[0, i, k, t]
        return scaled(A, low, self.data.Z[0, i, k].double(), (~equality).double(), equality, code)

    def total(self) -> Tensor:
        data, U = self.data, 0.0
        step = max(1, 2**22 // (data.T * (data.d + data.K)))
        for part in torch.arange(data.n, device=data.device).split(step):
            outside = (data.mask[0, part] & ~self.problem.sets[0, part]).double()
            X = data.X[0, part].double()
            first = X.gather(1, self.first[part][..., None].expand(-1, -1, data.d))
            a = first * outside.sum(-1, keepdim=True) - outside @ X
            U = U + a.flatten(0, 1).mT @ data.Z[0, part].double().flatten(0, 1)
        return torch.as_tensor(U)

    def rows_of(self, code: Tensor) -> Tensor:
        query, t = code // self.data.T, code % self.data.T
        first = self.first.flatten()[query]
        return query * (self.data.T - 1) + t - (t > first).long()


class EmbeddingPricing:
    """Rows E_first − E_other; the code of a row is its number, and all rows with the same other token are a query."""

    def __init__(self, problem: EmbeddingProblem) -> None:
        self.problem = problem

    def worst(self, W: Tensor) -> Priced:
        value, tied = self.problem.values(W), self.problem.tied
        ratio, code = self._least(value.where(~tied, torch.inf))
        off, off_code = self._least(-value.abs().where(tied, 0.0))
        return Priced(ratio, code, -off, off_code)

    def _least(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest value of every query, and a row that has it."""
        query = self.problem.other
        least = value.new_full((len(self.problem.E),), torch.inf).scatter_reduce_(0, query, value, "amin")
        at = (value == least[query]).nonzero()[:, 0]
        return least, torch.zeros_like(least, dtype=torch.long).scatter_(0, query[at], at)

    def bounds(self, W: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        value, size = problem.values(W), problem.E.double().abs() @ W.abs()[:, 0]
        error = 1.01 * (len(W) + 20) * UNIT * (size[problem.first] + size[problem.other]) + 1e-300
        least = (value - error).where(~problem.tied, torch.inf).amin()
        return least, torch.where(problem.tied, value.abs() + error, 0.0).amax()

    def pick(self, code: Tensor) -> WorkingRows:
        problem = self.problem
        E, tied = problem.E.double(), problem.tied[code]
        A, low = two_sum(E[problem.first[code]], -E[problem.other[code]])
        return scaled(A, low, A.new_ones(len(A), 1), (~tied).double(), tied, code)

    def total(self) -> Tensor:
        problem, asked = self.problem, (~self.problem.tied).double()
        weight = asked.new_zeros(len(problem.E)).index_add_(0, problem.first, asked)
        weight.index_add_(0, problem.other, asked, alpha=-1)
        return (weight @ problem.E.double())[:, None]

    def rows_of(self, code: Tensor) -> Tensor:
        return code


class FormedPricing:
    """Rows that are in memory anyway; the code of a row is its number."""

    def __init__(self, problem: MarginProblem, k: int) -> None:
        self.present, self.equality = problem.present[k], problem.equality[k] & problem.present[k]
        self.b = problem.b[k].double()
        self.A, self.Z, self.low = problem.A[k].double(), problem.Z[k].double(), None
        if problem.A_low is not None:  # of float32 tokens 2⁻²⁴ of A, as in `double_rows`
            self.A, self.low = two_sum(self.A, problem.A_low[k].double())
        self.rows = Rows(self.A[None], self.Z[None])
        self.asked = self.present & ~self.equality

    def worst(self, W: Tensor) -> Priced:
        value = self.rows.apply(W[None]).reshape(self.b.shape)
        least = (value / self.b).where(self.asked, torch.inf).min(-1)
        most = value.abs().where(self.equality, 0.0).max(-1)
        query = torch.arange(len(value), device=W.device) * value.shape[1]
        return Priced(least.values, query + least.indices, most.values, query + most.indices)

    def bounds(self, W: Tensor) -> tuple[Tensor, Tensor]:
        value, error = (x.reshape(self.b.shape) for x in values(self.rows, W[None]))
        least = ((value - error) / self.b).where(self.asked, torch.inf).amin()
        return least, torch.where(self.equality, value.abs() + error, 0.0).amax()

    def pick(self, code: Tensor) -> WorkingRows:
        query, r = code // self.b.shape[1], code % self.b.shape[1]
        low = torch.zeros_like(self.A[query, r]) if self.low is None else self.low[query, r]
        return scaled(self.A[query, r], low, self.Z[query], self.b[query, r], self.equality[query, r], code)

    def total(self) -> Tensor:
        return self.rows.adjoint(self.asked.double().reshape(1, -1))[0]

    def rows_of(self, code: Tensor) -> Tensor:
        return code


def scaled(A: Tensor, low: Tensor, Z: Tensor, b: Tensor, equality: Tensor, code: Tensor) -> WorkingRows:
    """Rows and b divided by powers of two, so that rows have norm about 1 and nothing is rounded, underflow aside."""
    of_A, of_Z = (power_of_two(torch.linalg.vector_norm(x, dim=1)) for x in (A, Z))
    scale = of_A * of_Z
    asked = b / scale
    if bool(((asked < 1e-150) & (b != 0) | ~(asked < 1e150)).any()):
        raise AttsvmError(OUT_OF_RANGE)
    A, Z, low = (shrunk(x, by[:, None]) for x, by in ((A, of_A), (Z, of_Z), (low, of_A)))
    return WorkingRows(A, Z, low, asked, equality, scale, code)
