"""The ℓ2 problem by an active set: slower than the interior point, and sure where rows nearly contradict each other.

Over λ ≥ 0 let r = (−A'λ, 1 − b'λ) be as short as possible. If it is 0, λ is a Farkas vector. Else W = A'λ/(1 − b'λ) is
the solution: Lawson and Hanson, Solving Least Squares Problems, chapter 23. The rows with weight are independent, so a
Farkas vector is a vertex, which elimination in fractions can prove.
"""

from __future__ import annotations

import numpy as np
import torch

from attsvm.svm._rows import Iterates, System

MOST_ROWS = 400
"""It takes a step per row with weight, one instance after another."""


def solve_active(system: System) -> Iterates:
    rows, b = system.rows, system.b
    F, found, weights = rows.dense(), [], []
    for k in range(rows.B):
        there, both = (system.inequality | system.equality)[k], system.equality[k]
        E = torch.cat([F[k][there], b[k][there, None]], 1).cpu().numpy()
        E = np.concatenate([E, -E[both[there].cpu().numpy()]])  # an equality is two inequalities
        lam, r = _nonnegative(E.T)
        whole = torch.zeros_like(b[k])
        whole[there] = torch.as_tensor(lam[: int(there.sum())], dtype=b.dtype, device=b.device)
        whole[both] -= torch.as_tensor(lam[int(there.sum()) :], dtype=b.dtype, device=b.device)
        W = -r[:-1] / max(r[-1], 1e-300)
        found.append(torch.as_tensor(W, dtype=b.dtype, device=b.device).reshape(rows.d, rows.e))
        weights.append(whole)
    return Iterates(torch.stack(found), torch.stack(weights), torch.zeros(rows.B, dtype=torch.long, device=b.device))


def _nonnegative(E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """λ ≥ 0 with the least ‖Eλ − (0, …, 0, 1)‖, and (0, …, 0, 1) − Eλ."""
    f = np.zeros(len(E))
    f[-1] = 1.0
    lam, active = np.zeros(E.shape[1]), np.zeros(E.shape[1], dtype=bool)
    size = np.linalg.norm(E, axis=0).clip(1e-300)
    for _ in range(3 * E.shape[1]):
        r = f - E @ lam
        pull = np.where(active, -np.inf, E.T @ r / size)
        new = int(pull.argmax()) if len(pull) else 0
        if not len(pull) or pull[new] <= 1e-13 * np.linalg.norm(r) or np.linalg.norm(r) <= 1e-13:
            break
        active[new] = True
        while True:
            s = np.zeros_like(lam)
            s[active] = np.linalg.lstsq(E[:, active], f, rcond=None)[0]
            below = active & (s <= 0)
            if not below.any():
                lam = s
                break
            step = (lam[below] / (lam[below] - s[below])).min()
            lam = lam + step * (s - lam)
            active &= lam > 1e-14 * lam.max(initial=1e-300)
            lam[~active] = 0.0
    return lam, f - E @ lam
