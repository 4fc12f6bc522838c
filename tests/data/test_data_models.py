"""Several heads, classes and next tokens as data of one attention layer: against plain models and many digits."""

from dataclasses import replace
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm import AttsvmError, att_svm, solve, sphere, train, verdict
from attsvm.data import SampleHead, attended_classes, class_data, load, next_token_data, of_heads, save, several_heads
from attsvm.dynamics import Gaussian, Growing, Steepest, Trajectory
from attsvm.objective import Added, Exponential, Lanes, as_loss, gradient, gradients, scaled_gradient, value
from attsvm.svm import multiclass_svm


def test_several_heads_are_a_sum_of_attentions() -> None:
    """Loss and gradient against autograd of the plain model."""
    single = sphere(4, 5, 6, trials=3, seed=2)
    v = torch.randn(3, 2, 6, dtype=torch.float64)
    data = several_heads(single, v)
    W = torch.randn(3, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    s = torch.softmax(torch.einsum("bntd,bhde,bne->bhnt", single.X, W, single.Z[:, :, 0]), -1)
    f = torch.einsum("bhnt,bntd,bhd->bn", s, single.X, v) * single.Y[..., 0]
    loss = torch.nn.functional.softplus(-f).mean(1)
    loss.sum().backward()
    assert W.grad is not None
    wide = W.detach().movedim(1, 2).flatten(2)
    assert torch.equal(of_heads(wide, 2), W.detach())
    torch.testing.assert_close(value(data, wide, Added()), loss.detach())
    torch.testing.assert_close(of_heads(gradient(data, wide, Added()), 2), W.grad, rtol=1e-10, atol=1e-13)
    assert not torch.allclose(value(data, wide), loss.detach())


def test_heads_go_to_their_own_svms() -> None:
    single = sphere(3, 4, 5, trials=4, seed=1)
    data = several_heads(single, torch.randn(2, 5, dtype=torch.float64))
    run = train(data, rule=Steepest(), lr=Growing(), steps=500, loss=Added(), compile=False)
    judged = verdict(run)
    assert judged.reached.all()
    assert not any(holds.any() for name, holds in judged.theorems.items() if "direction" in name)
    for h in range(2):
        alone = solve(att_svm(single, run.tokens[..., h : h + 1]), "l2")
        torch.testing.assert_close(of_heads(judged.W_mm, 2)[:, h], alone.W, rtol=1e-4, atol=1e-5)


def test_a_loss_of_added_outputs_is_kept_in_files(tmp_path) -> None:
    data = several_heads(sphere(3, 4, 5, trials=2, seed=1), torch.ones(2, 5))
    run = train(data, steps=20, loss=Added(Exponential()), init=Gaussian(0.1), compile=False)
    run.save(tmp_path / "run.npz")
    loaded = Trajectory.load(tmp_path / "run.npz")
    assert loaded.loss == Added(Exponential())
    more = train(data, steps=30, loss=loaded.loss, resume=loaded, compile=False)
    whole = train(data, steps=30, loss=Added(Exponential()), init=Gaussian(0.1), compile=False)
    assert torch.equal(more.W, whole.W)


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_cross_entropy_is_exact_in_the_tail(size: float) -> None:
    """The gradient of classes against 80 digits, where all samples are separated by thousands of nats."""
    H = Gaussian(1.0, seed=3).draw(torch.arange(1), {"H": (5, 4)})["H"]
    labels = torch.tensor([[0, 1, 2, 0, 2]])
    data = class_data(H, labels, 3)
    W = solve(multiclass_svm(H, labels, 3), "l2").W
    W = size * (W / torch.linalg.matrix_norm(W) + 0.02 * torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4))
    G, M = scaled_gradient(data, W, "log")
    with mp.workdps(80):
        exact = np.vectorize(mp.mpf, otypes=[object])
        Wm, Hm = exact(W[0].numpy()), exact(H[0].numpy())
        total = exact(np.zeros((3, 4)))
        for h, y in zip(Hm, labels[0].tolist()):
            e = [mp.exp(x) for x in Wm @ h]
            for c in range(3):
                # 1 − p_y as the sum of the others, which does not cancel.
                pull = e[c] / mp.fsum(e) if c != y else -mp.fsum(e[o] for o in range(3) if o != y) / mp.fsum(e)
                total[c] = total[c] + pull * h / 5
        ours = exact(G[0].numpy()) * mp.exp(mp.mpf(M.item()))
        norm = mp.sqrt(mp.fsum(x * x for x in total.flat))
        off = mp.sqrt(mp.fsum(x * x for x in (ours - total).flat))
        assert off <= 1e-10 * norm


def test_cross_entropy_is_that_of_torch() -> None:
    H = torch.randn(2, 7, 5, dtype=torch.float64)
    labels = torch.randint(0, 4, (2, 7))
    data = class_data(H, labels, 4)
    W = torch.randn(2, 4, 5, dtype=torch.float64)
    plain = torch.stack([torch.nn.functional.cross_entropy(H[b] @ W[b].T, labels[b]) for b in range(2)])
    torch.testing.assert_close(value(data, W, "log"), plain)
    ours, theirs = att_svm(data, labels), multiclass_svm(H, labels, 4)
    assert torch.equal(ours.A, theirs.A)


@pytest.mark.parametrize("size", [None, 1e2, 1e4])
def test_classes_of_attended_tokens_by_cross_entropy(size: float | None, tmp_path) -> None:
    """Loss and gradient against autograd of softmax(V o), and in the tail the gradient against 6,000 digits."""
    plain = sphere(3, 4, 5, trials=2, seed=1)
    V, labels = torch.randn(2, 4, 5, dtype=torch.float64), torch.tensor([[0, 3, 1], [2, 2, 0]])
    data = attended_classes(plain, V, labels)
    W = Gaussian(1.0).draw(data.trials, {"W": (5, 5)})["W"]
    if size is None:
        W = W.clone().requires_grad_()
        s = torch.softmax(torch.einsum("bntd,bde,bne->bnt", plain.X, W, plain.Z[:, :, 0]), -1)
        scores = torch.einsum("bnt,bntd,bcd->bnc", s, plain.X, V)
        loss = torch.stack([torch.nn.functional.cross_entropy(x, y) for x, y in zip(scores, labels)])
        loss.sum().backward()
        assert W.grad is not None
        torch.testing.assert_close(value(data, W.detach()), loss.detach())
        torch.testing.assert_close(gradient(data, W.detach()), W.grad, rtol=1e-10, atol=1e-13)
        save(data, tmp_path / "data.npz")
        assert load(tmp_path / "data.npz").digest() == data.digest()
        return
    W = size * W / torch.linalg.matrix_norm(W, keepdim=True)
    G, M = scaled_gradient(data, W)
    with mp.workdps(6000):
        exact = np.vectorize(mp.mpf, otypes=[object])
        total = exact(np.zeros((5, 5)))
        for x, z, y in zip(exact(data.X[0].numpy()), exact(data.Z[0, :, 0].numpy()), labels[0].tolist()):
            e = np.array([mp.exp(a) for a in x @ (exact(W[0].numpy()) @ z)])
            p = e / mp.fsum(e)
            c = np.array([mp.exp(a) for a in exact(V[0].numpy()) @ (p @ x)])
            pull = c / mp.fsum(c)
            pull[y] = pull[y] - 1
            u = x @ (pull @ exact(V[0].numpy()))
            total = total + np.outer((p * (u - p @ u)) @ x, z) / 3
        ours = exact(G[0].numpy()) * mp.exp(mp.mpf(M[0].item()))
        norm, off = (mp.sqrt(mp.fsum(a * a for a in A.flat)) for A in (total, ours - total))
        assert off <= 1e-10 * norm


def test_next_tokens_are_weights_of_the_label(tmp_path) -> None:
    """Free independent embeddings, repeated tokens: f is the softmax weight of all copies of the label."""
    E = torch.randn(5, 6, dtype=torch.float64)
    sequences = torch.tensor([[0, 1, 2, 1], [3, 3, 4, 0]])
    labels = torch.tensor([1, 3])
    data = next_token_data(E, sequences, labels)
    W = torch.randn(1, 6, 6, dtype=torch.float64)
    expected = []
    for sequence, label in zip(sequences, labels):
        s = torch.softmax(E[sequence] @ W[0] @ E[sequence[-1]], 0)
        expected.append(-s[sequence == label].sum().log())
    torch.testing.assert_close(value(data, W, "log")[0], torch.stack(expected).mean())
    save(data, tmp_path / "data.npz")
    assert load(tmp_path / "data.npz").digest() == data.digest()
    run = train(data, rule=Steepest(), lr=Growing(), steps=600, loss="log", compile=False)
    assert (sequences[torch.arange(2), run.tokens[0, :, 0]] == labels).all()
    assert verdict(run).finite.all()


def test_factors_of_several_heads_are_those_of_plain_heads() -> None:
    """One step of (K, Q) per head against autograd; no head's query meets the factors of another."""
    single = sphere(4, 5, 6, trials=3, seed=2)
    v = torch.randn(3, 2, 6, dtype=torch.float64)
    data = several_heads(single, v)
    K, Q = (torch.randn(3, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in "KQ")
    a = torch.einsum("bntd,bhdm,bhem,bne->bhnt", single.X, K, Q, single.Z[:, :, 0])
    f = torch.einsum("bhnt,bntd,bhd->bn", torch.softmax(a, -1), single.X, v) * single.Y[..., 0]
    torch.nn.functional.softplus(-f).mean(1).sum().backward()
    assert K.grad is not None
    assert Q.grad is not None

    def side_by_side(K: torch.Tensor, Q: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = torch.stack([torch.block_diag(*q) for q in Q.detach()])
        return {"K": K.detach().movedim(1, 2).flatten(2), "Q": wide}

    options: dict[str, Any] = {"lr": 1.0, "normalize": False, "loss": Added(), "m": 4, "heads": 2, "compile": False}
    run = train(data, "l2", "KQ", steps=1, init=side_by_side(K, Q), **options)
    assert run.factors is not None
    for ours, theirs in zip(run.factors, side_by_side(K - K.grad, Q - Q.grad).values()):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)
    drawn = train(data, "l2", "KQ", steps=5, init=Gaussian(0.1), **options)
    assert drawn.factors is not None
    assert not drawn.factors[1][:, :6, 4:].any()
    more = train(data, "l2", "KQ", steps=9, resume=drawn, **options)
    assert torch.equal(more.W, train(data, "l2", "KQ", steps=9, init=Gaussian(0.1), **options).W)
    assert "own tokens" in str(verdict(more).prediction)
    with pytest.raises(AttsvmError, match="heads"):
        train(data, "l2", "KQ", steps=9, resume=drawn, loss=Added(), m=8, normalize=False)
    with pytest.raises(AttsvmError, match="diagonal blocks"):
        train(data, "l2", "KQ", steps=1, init=side_by_side(K, Q) | {"Q": torch.ones(12, 8)}, **options)
    with pytest.raises(AttsvmError, match="several_heads"):
        train(data, steps=1, heads=2)


def tail(model: str, size: float):
    """Data, loss and K, Q (trial last) of a model near an SVM solution of this norm."""
    draw = Gaussian(1.0, seed=3).draw(torch.arange(1), {"H": (4, 3), "v": (2, 3), "K": (3, 3), "Q": (6, 3)})
    loss = as_loss("log")
    if model == "heads":
        data, loss = several_heads(sphere(2, 3, 3, trials=1, seed=3), draw["v"]), Added()
        W = draw["K"] @ draw["Q"].mT
    else:
        data = next_token_data(torch.eye(3), [[0, 1, 2], [2, 0, 1]], [0, 1])
        if model == "classes":
            data = class_data(draw["H"], torch.tensor([[0, 1, 2, 0]]), 3)
        labels = data.optimal_tokens()
        W = solve(att_svm(data, labels), "l2").W
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    root = (s * size / s[:, :1]).sqrt()
    return data, loss, {"K": (U * root[:, None]).movedim(0, -1), "Q": (Vh.mT * root[:, None]).movedim(0, -1)}


@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("model", ["heads", "classes", "next tokens"])
def test_gradients_of_factors_are_exact_in_the_tail(model: str, size: float) -> None:
    data, loss, blocks = tail(model, size)
    ours = gradients(Lanes.of(data, fixed_head=True), loss, blocks)
    assert data.head is not None
    with mp.workdps(1500):
        exact = np.vectorize(mp.mpf, otypes=[object])
        K, Q = (exact(blocks[name][..., 0].numpy()) for name in "KQ")
        X, Z = exact(data.X[0].numpy()), exact(data.Z[0].numpy())
        scores = exact((data.Y[..., None] * data.head.value(data.X[:, :, None]))[0].numpy())
        G = exact(np.zeros((data.d, data.e)))
        for x, queries, u in zip(X, Z, scores):
            p = []
            for z in queries:
                e = np.array([mp.exp(a) for a in x @ (K @ (Q.T @ z))])
                p.append(e / mp.fsum(e))
            f = [mp.fsum(w * s) for w, s in zip(p, u)]
            for k, z in enumerate(queries):
                slope = -1 / (1 + mp.exp(mp.fsum(f))) if isinstance(loss, Added) else -1 / f[k]
                G = G + np.outer((slope * p[k] * (u[k] - f[k])) @ x, z)
        for name, reference in (("K", G @ Q), ("Q", G.T @ K)):
            mine = exact(ours[name].G[..., 0].numpy()) * mp.exp(mp.mpf(ours[name].shift.item()))
            norm, off = (mp.sqrt(mp.fsum(y * y for y in M.flat)) for M in (reference, mine - reference))
            assert off <= 1e-10 * norm


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: several_heads(sphere(2, 3, 4, trials=1), torch.ones(2, 5)), "v must"),
        (lambda: several_heads(sphere(2, 3, 4, trials=1, queries=2), torch.ones(2, 4)), "one query"),
        (lambda: class_data(torch.ones(3, 2), [0, 1]), "labels"),
        (lambda: attended_classes(sphere(2, 3, 4, trials=1), torch.ones(3, 5), [0, 1]), "V must"),
        (lambda: attended_classes(sphere(2, 3, 4, trials=1), torch.ones(3, 4), [0, 3]), "labels"),
        (lambda: class_data(torch.ones(2, 2), [0, 3], 2), "labels"),
        (lambda: class_data(torch.ones(2, 2), [-1, -1]), r"labels must be in 0\.\.0"),
        (lambda: class_data(torch.ones(0, 2), torch.zeros(0, dtype=torch.long)), "n, d ≥ 1"),
        (lambda: next_token_data(torch.eye(3).expand(3, 3, 3), [[[0, 1]]] * 2, [[0]] * 2), "E must have B = 2 trials"),
        (
            lambda: replace(sphere(3, 4, 2, trials=1), head=SampleHead(torch.ones(1, 1, 2, 2, dtype=torch.float64))),
            "for n = 3",
        ),
        (lambda: next_token_data(torch.eye(3) * torch.nan, [[0, 1]], [0]), "E must be finite"),
        (lambda: next_token_data(torch.eye(3), [[0, 1]], [2]), "labels"),
        (lambda: next_token_data(torch.ones(3, 4), [[0, 1]], [1]), "independent"),
        (lambda: next_token_data(torch.eye(2), [[0, 2]], [2]), "token numbers"),
    ],
)
def test_wrong_models_are_refused(make, words: str) -> None:
    with pytest.raises(AttsvmError, match=words):
        make()


def test_classes_of_no_trials() -> None:
    assert len(class_data(torch.ones(0, 4, 2), torch.zeros(0, 4, dtype=torch.long), 3)) == 0


def test_the_loss_of_added_outputs_may_be_a_name_or_a_function() -> None:
    data = several_heads(sphere(3, 4, 5, trials=2), torch.eye(5)[:2])
    by_name, by_object = (train(data, loss=Added(loss), steps=5) for loss in ("exponential", Exponential()))
    assert torch.equal(by_name.W, by_object.W)
    by_function = train(data, loss=Added(lambda f: torch.exp(-f)), steps=5)
    torch.testing.assert_close(by_function.W, by_object.W)
    with pytest.raises(AttsvmError, match="loss must be a Loss, a function of f or one of"):
        Added(5)
