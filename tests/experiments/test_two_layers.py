"""The gradients of two layers, against autograd and, where both have saturated, against 1,500 digits."""

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm import sphere
from attsvm.dynamics import Gaussian
from attsvm.experiments._two_layers import TwoLayers


def model(n: int, T: int, d: int, trials: int, mlp: bool = False) -> TwoLayers:
    data = sphere(n, T, d, trials=trials, seed=3)
    assert data.head is not None
    between = Gaussian(0.7).draw(data.trials, {"A": (d, 2 * d), "C": (2 * d, d)}) if mlp else None
    weights = None if between is None else (between["A"], between["C"])
    return TwoLayers(data.X, data.Z[:, :, 0], data.Y[..., 0], data.head.tensors()["v"][:, 0], mlp=weights)


@pytest.mark.parametrize("mlp", [False, True])
def test_gradients_are_those_of_autograd(mlp: bool) -> None:
    m = model(3, 4, 5, 6, mlp)
    W1, W2 = (torch.randn(6, 5, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    s1 = torch.softmax(torch.einsum("bnsd,bde,bnte->bnts", m.X, W1, m.X), -1)
    X1 = m.X + m.rho * torch.einsum("bnts,bnsd->bntd", s1, m.X)
    if m.mlp is not None:
        A, C = m.mlp
        X1 = X1 + torch.einsum("bdh,bnth->bntd", A, torch.relu(torch.einsum("bhd,bntd->bnth", C, X1)))
    torch.testing.assert_close(m.hidden(W1.detach())[0], X1.detach())
    s2 = torch.softmax(torch.einsum("bntd,bde,bne->bnt", X1, W2, m.Z), -1)
    f = m.Y * torch.einsum("bnt,bntd,bd->bn", s2, X1, m.v)
    torch.nn.functional.softplus(-f).mean(1).sum().backward()
    for (G, shift), W in zip(m.gradients(W1.detach(), W2.detach()), (W1, W2)):
        assert W.grad is not None
        torch.testing.assert_close(G * shift.exp()[:, None, None], W.grad, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("size", [10.0, 1e3])
def test_gradients_are_exact_in_the_tail(size: float, mlp: bool) -> None:
    m = model(2, 3, 3, 1, mlp)
    start = Gaussian(1.0).draw(torch.arange(1), {"W1": (3, 3), "W2": (3, 3)})
    W1, W2 = (size * W / torch.linalg.matrix_norm(W, keepdim=True) for W in start.values())
    with mp.workdps(1500):
        exact = np.vectorize(mp.mpf, otypes=[object])
        A, C, rho = exact(W1[0].numpy()), exact(W2[0].numpy()), mp.mpf(m.rho)
        G1, G2 = exact(np.zeros((3, 3))), exact(np.zeros((3, 3)))
        v = exact(m.v[0].numpy())
        for X, z, y in zip(exact(m.X[0].numpy()), exact(m.Z[0].numpy()), m.Y[0].tolist()):
            S = [_softmax(X @ (A @ x)) for x in X]
            H = np.array([x + rho * (s @ X) for x, s in zip(X, S)])
            J = [np.eye(3, dtype=object)] * 3
            if m.mlp is not None:
                U, D = (exact(w[0].numpy()) for w in m.mlp)
                on = [np.array([mp.mpf(float(x > 0)) for x in D @ h]) for h in H]
                J = [np.eye(3, dtype=object) + (U * gate) @ D for gate in on]
                H = np.array([j @ h for j, h in zip(J, H)])
            s2 = _softmax(H @ (C @ z))
            f = int(y) * (s2 @ H @ v)
            slope = -1 / (1 + mp.exp(f)) / 2  # of the mean over two samples
            pull = s2 * (int(y) * (H @ v) - f)
            G2 = G2 + slope * np.outer(pull @ H, z)
            for t, (s, x) in enumerate(zip(S, X)):
                g = rho * (J[t].T @ (int(y) * s2[t] * v + pull[t] * (C @ z)))
                u = X @ g
                G1 = G1 + slope * np.outer((s * (u - s @ u)) @ X, x)
        for (G, shift), reference in zip(m.gradients(W1, W2), (G1, G2)):
            ours = exact(G[0].numpy()) * mp.exp(mp.mpf(shift.item()))
            norm = mp.sqrt(mp.fsum(x * x for x in reference.flat))
            assert mp.sqrt(mp.fsum(x * x for x in (ours - reference).flat)) <= 1e-10 * norm


def _softmax(a: np.ndarray) -> np.ndarray:
    e = np.array([mp.exp(x) for x in a])
    return e / mp.fsum(e)
