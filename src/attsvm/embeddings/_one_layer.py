"""The one-layer model (1), f(X) = softmax(pᵀE_Xᵀ) E_X v, through two numbers per token.

The output depends on a token s only through a_s = p·E_s and u_s = v·E_s. So a pass over the data works on a and u
(|S|,) and on sums over the entries of ragged sequences; no embedding is ever gathered. With A = ∂L/∂a and U = ∂L/∂u the
gradients (Lemma 7) are ∇_E L = A pᵀ + U vᵀ, of rank two, ∇_p L = EᵀA and ∇_v L = EᵀU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from attsvm.checks import as_count, as_real
from attsvm.embeddings._generate import random_stream
from attsvm.embeddings._sequences import Sequences
from attsvm.errors import AttsvmError


class Embeddings(NamedTuple):
    """E (|S|, d) of the tokens, p (d,) of ⟨cls⟩, v (d,) the output vector."""

    E: Tensor
    p: Tensor
    v: Tensor


class Slopes(NamedTuple):
    """Outputs f (n,), the mean logistic loss, and its derivatives A and U (|S|,) in a = E p and u = E v."""

    f: Tensor
    loss: Tensor
    A: Tensor
    U: Tensor


def initial_embeddings(size: int, d: float, *, seed: int = 0, trial: int = 0, reduced: bool = False) -> Embeddings:
    """E_s and p from N(0, I/d), v a unit vector; float64.

    `reduced` gives the same random inner products in |S| + 2 coordinates, for any d ≥ |S| + 2 however large: v is
    the first axis, and the triangular factor of a Gaussian matrix is drawn entry by entry (Bartlett), normal below
    the diagonal and χ on it. Gradient descent and flow do not see the difference; Adam, which works entry by entry,
    does.
    """
    stream = random_stream(seed, trial)
    rows = as_count("size", size) + 1
    if not reduced:
        d = as_count("d", d)
        vectors = torch.from_numpy(stream.standard_normal((rows + 1, d)))
        vectors[:rows] /= d**0.5
        vectors[rows] /= vectors[rows].norm()
        return Embeddings(vectors[1:rows], vectors[0], vectors[rows])
    as_real("d", d, rows + 1)
    lower = torch.from_numpy(stream.standard_normal((rows, rows + 1))).tril()
    # Row i: its part along v, then along the rows before it, then the rest, χ with d − 1 − i degrees of freedom.
    chi = torch.from_numpy(2 * stream.standard_gamma([(d - 1 - i) / 2 for i in range(rows)])).sqrt()
    lower[torch.arange(rows), torch.arange(rows) + 1] = chi
    vectors = lower / d**0.5
    return Embeddings(vectors[1:], vectors[0], torch.eye(1, rows + 1, dtype=torch.float64)[0])


def slopes(data: Sequences, a: Tensor, u: Tensor) -> Slopes:
    """One pass over the data, forward and back."""
    row, ids = data.row, data.ids
    logit = a[ids] + data.count.log()
    top = logit.new_full((data.n,), -torch.inf).scatter_reduce_(0, row, logit, "amax")
    q = torch.exp(logit - top[row])
    q = q / q.new_zeros(data.n).index_add_(0, row, q)[row]
    score = u[ids]
    f = q.new_zeros(data.n).index_add_(0, row, q * score)
    pull = (-data.Y * torch.sigmoid(-data.Y * f) / data.n)[row] * q
    A = torch.zeros_like(a).index_add_(0, ids, pull * (score - f[row]))
    U = torch.zeros_like(u).index_add_(0, ids, pull)
    return Slopes(f, softplus(-data.Y * f).mean(), A, U)


def gradients(data: Sequences, at: Embeddings) -> tuple[Slopes, Embeddings]:
    """The gradient of the mean logistic loss in E, p and v."""
    found = slopes(data, at.E @ at.p, at.E @ at.v)
    # One vector at a time: a product with two columns runs at a tenth of the speed.
    E = torch.outer(found.A, at.p).addr_(found.U, at.v)
    return found, Embeddings(E, found.A @ at.E, found.U @ at.E)


def ready(data: Sequences, start: Embeddings) -> Sequences:
    """The data to train these embeddings on: merged, and where the embeddings are."""
    if start.E.ndim != 2 or len(start.E) < data.size or {start.p.shape, start.v.shape} != {start.E.shape[1:]}:
        raise AttsvmError(
            f"start must have E (|S|, d) with |S| at least {data.size}, the vocabulary of the data, and p and v (d,), "
            f"but got shapes {', '.join(str(tuple(tensor.shape)) for tensor in start)}."
        )
    return data.merged().to(start.E.device, start.E.dtype)


def descend(
    data: Sequences, start: Embeddings, *, lr: float, steps: int = 1, train_v: bool = False
) -> tuple[Embeddings, Tensor]:
    """Full-batch gradient descent on E and p (and v), and the loss before every step and at the end (steps + 1,)."""
    data, lr = ready(data, start), as_real("lr", lr, least=0)
    at, losses = start, []
    for _ in range(as_count("steps", steps, 0)):
        found, slope = gradients(data, at)
        losses.append(found.loss)
        v = at.v - lr * slope.v if train_v else at.v
        at = Embeddings(at.E - lr * slope.E, at.p - lr * slope.p, v)
    losses.append(slopes(data, at.E @ at.p, at.E @ at.v).loss)
    return at, torch.stack(losses)
