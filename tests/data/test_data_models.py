"""Several heads, classes and next tokens as data of one attention layer: against plain models and many digits."""

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm import AttsvmError, att_svm, solve, sphere, train, verdict
from attsvm.data import class_data, load, next_token_data, of_heads, save, several_heads
from attsvm.dynamics import Gaussian, Growing, Steepest, Trajectory
from attsvm.objective import Added, Exponential, gradient, scaled_gradient, value
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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: several_heads(sphere(2, 3, 4, trials=1), torch.ones(2, 5)), "v must"),
        (lambda: several_heads(sphere(2, 3, 4, trials=1, queries=2), torch.ones(2, 4)), "one query"),
        (lambda: class_data(torch.ones(3, 2), [0, 1]), "labels"),
        (lambda: class_data(torch.ones(2, 2), [0, 3], 2), "labels"),
        (lambda: next_token_data(torch.eye(3), [[0, 1]], [2]), "labels"),
        (lambda: next_token_data(torch.ones(3, 4), [[0, 1]], [1]), "independent"),
        (lambda: next_token_data(torch.eye(2), [[0, 2]], [2]), "token numbers"),
    ],
)
def test_wrong_models_are_refused(make, words: str) -> None:
    with pytest.raises(AttsvmError, match=words):
        make()
