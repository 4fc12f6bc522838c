"""The gradient in 80-digit arithmetic, from another formula than the library's.

With s = softmax(X W z) the gradient of Y h(o) in W is Σ_{t<τ} s_t s_τ (u_t − u_τ)(x_t − x_τ) zᵀ, a sum over pairs
that singles out no token and in which nothing cancels.
"""

from typing import Any

import mpmath as mp
import numpy as np

from attsvm import LinearHead, MLPHead, QuadraticHead, TokenData

Matrix = Any  # numpy array of mpf


def exact(x: Any) -> Matrix:
    """Floats as they are, in mpf."""
    return np.vectorize(mp.mpf, otypes=[object])(np.asarray(x, dtype=float))


def head_value_and_grad(head: Any, k: int, o: Matrix) -> tuple[Any, Matrix]:
    k = min(k, head.H - 1)
    if isinstance(head, LinearHead):
        v = exact(head.v[0, k])
        return v @ o, v
    if isinstance(head, QuadraticHead):
        v, lam = exact(head.v[0, k]), exact(head.lam[0, k])[()]
        return v @ o - lam * (o @ o), v - 2 * lam * o
    assert isinstance(head, MLPHead)
    U, c, a = exact(head.U[0, k]), exact(head.c[0, k]), exact(head.a[0, k])
    hidden = U @ o + c
    active = np.array([mp.mpf(h > 0) for h in hidden])
    return a @ (active * hidden), (a * active) @ U


def slope(loss: str, f: Any) -> Any:
    if loss == "logistic":
        return -1 / (1 + mp.exp(f))
    if loss == "log":
        return -1 / f
    return -mp.exp(-f) if loss == "exponential" else mp.mpf(-1)


def gradients(data: TokenData, loss: str, W: Matrix, head: Any = None) -> tuple[Matrix, Matrix]:
    """The gradients of the loss of trial 0 in W (d, e) and, for a linear head, in v (d,)."""
    head = data.head if head is None else head
    X, Z, Y = exact(data.X[0]), exact(data.Z[0]), exact(data.Y[0])
    G, g_v = exact(np.zeros((data.d, data.e))), exact(np.zeros(data.d))
    for i in range(data.n):
        for k in range(data.K):
            x = X[i][data.mask[0, i, k].numpy()]
            a = x @ (W @ Z[i, k])
            weight = np.array([mp.exp(logit - max(a)) for logit in a])
            s = weight / weight.sum()
            h, grad = head_value_and_grad(head, k, s @ x)
            outer = slope(loss, Y[i, k] * h) * Y[i, k] / data.n
            u = x @ grad
            pairs = exact(np.zeros(data.d))
            for t in range(len(x)):
                for r in range(t):
                    pairs = pairs + s[t] * s[r] * (u[t] - u[r]) * (x[t] - x[r])
            G = G + outer * np.outer(pairs, Z[i, k])
            g_v = g_v + outer * (s @ x)
    return G, g_v


def norm(x: Matrix) -> Any:
    return mp.sqrt((x * x).sum())
