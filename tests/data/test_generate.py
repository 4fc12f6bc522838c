"""Generated data: laws, reproducibility, and the printed examples."""

import itertools

import numpy as np
import pytest
import torch

from attsvm.data import LinearHead, TokenData, example1, example2, figure1, orthonormal, sphere
from attsvm.data import _generate as generate
from attsvm.errors import AttsvmError


def assert_same(first: TokenData, second: TokenData) -> None:
    assert isinstance(first.head, LinearHead)
    assert isinstance(second.head, LinearHead)
    for name in ("X", "Z", "Y", "mask"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.head.v, second.head.v)


@pytest.mark.parametrize(
    "make",
    [
        lambda trials: sphere(6, 8, 10, trials=trials, seed=3),
        lambda trials: sphere(1, 1, 1, trials=trials),
        lambda trials: sphere(2, 3, 2, trials=trials, queries=4, e=3),
        lambda trials: sphere(5, 5, 2, trials=trials, min_score_gap=0.3),
        lambda trials: sphere(5, 5, 7, trials=trials, min_score_gap=0.3, queries=2),
        lambda trials: sphere(3, 4, 20, trials=trials, min_score_gap=0.1, causal=True, self_attention=True),
        lambda trials: orthonormal(2, 3, 5, trials=trials),
        lambda trials: figure1(trials=trials),
    ],
)
def test_a_trial_is_the_same_alone(make) -> None:
    every = make(100)
    assert_same(every[17], make([17]))
    assert_same(every[[99, 3, 3]], make(iter((99, 3, 3))))
    assert_same(every[:2], make(np.int64(2)))


def test_seeds_and_trials_differ() -> None:
    X = torch.cat([sphere(2, 3, 4, trials=3, seed=seed).X for seed in (0, 1, 2**64 - 1)])
    assert len({tuple(x.flatten().tolist()) for x in X}) == 9


def test_sphere_has_unit_vectors_and_signs() -> None:
    data = sphere(4, 5, 6, trials=50, queries=3, e=2)
    assert (data.B, data.n, data.T, data.d, data.K, data.e) == (50, 4, 5, 6, 3, 2)
    assert isinstance(data.head, LinearHead)
    for vectors in (data.X, data.Z, data.head.v):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(vectors.shape[:-1], dtype=torch.float64))
    assert abs(data.Y.mean().item()) < 4 / data.Y.numel() ** 0.5
    assert data.X.mean((0, 1, 2)).abs().max() < 5 / (50 * 4 * 5 * 6) ** 0.5
    second_moment = torch.einsum("bntd,bnte->de", data.X, data.X) / 1000
    torch.testing.assert_close(second_moment, torch.eye(6, dtype=torch.float64) / 6, atol=0.03, rtol=0)


def test_self_attention_and_causal_masks() -> None:
    own = sphere(2, 4, 3, self_attention=True, queries=2)
    assert torch.equal(own.Z, own.X[:, :, :2])
    causal = sphere(2, 4, 3, causal=True)
    assert causal.K == 4
    assert torch.equal(causal.mask[0, 0], torch.ones(4, 4).tril().bool())
    both = sphere(2, 4, 3, causal=True, self_attention=True)
    assert torch.equal(both.Z, both.X)


@pytest.mark.parametrize(
    "options",
    [{}, {"queries": 3}, {"self_attention": True}, {"causal": True}, {"causal": True, "queries": 5}],
)
def test_score_gap_is_kept(options: dict) -> None:
    data = sphere(5, 5, 4, trials=100, min_score_gap=0.1, **options)
    assert data.score_gap().min() >= 0.1 - 1e-12
    free = sphere(5, 5, 4, trials=100, **options)
    assert torch.equal(data.Y, free.Y)
    kept = (data.X == free.X).all(-1).all(-1)
    assert 0 < kept.double().mean() < 1  # sequences that had the gap at once stay


def test_resampling_gives_the_law_of_rejected_trials() -> None:
    gap = 0.25
    free = sphere(2, 3, 3, trials=40_000, seed=1)
    accepted = free[free.score_gap() >= gap]
    resampled = sphere(2, 3, 3, trials=len(accepted), seed=2, min_score_gap=gap)
    assert len(accepted) > 5000
    for statistic in (
        lambda data: data.scores().sort(-1).values.mean((0, 1, 2)),
        lambda data: data.scores().square().mean((0, 1, 2)),
        lambda data: data.score_gap().mean(),
        lambda data: torch.einsum("bntd,bnte->bnde", data.X, data.X).square().mean((0, 1, 2, 3)),
    ):
        torch.testing.assert_close(statistic(resampled), statistic(accepted), atol=0.012, rtol=0)


def test_small_blocks_give_the_same_law_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BLOCK_SIZE", 1)
    data = sphere(3, 4, 5, trials=20, min_score_gap=0.3)
    assert data.score_gap().min() >= 0.3 - 1e-12


def test_orthonormal_tokens() -> None:
    data = orthonormal(3, 4, 6, trials=200, queries=2, e=5)
    gram = data.X @ data.X.transpose(-1, -2)
    torch.testing.assert_close(gram, torch.eye(4, dtype=torch.float64).expand_as(gram))
    assert data.Z.shape == (200, 3, 2, 5)
    assert (data.Y == 1).all()
    assert data.X.mean((0, 1)).abs().max() < 5 / (600 * 6) ** 0.5  # uniform, not tied to signs of the routine
    square = orthonormal(1, 10, 10)
    torch.testing.assert_close(square.X[0, 0].T @ square.X[0, 0], torch.eye(10, dtype=torch.float64))


def least_norm(data: TokenData) -> torch.Tensor:
    """The smallest W with margin 1 for the optimal tokens when all constraints are active."""
    best = data.optimal_tokens()[0, :, 0]
    rows = [
        torch.outer(data.X[0, i, best[i]] - data.X[0, i, t], data.Z[0, i, 0]).flatten()
        for i in range(data.n)
        for t in range(data.T)
        if t != best[i]
    ]
    A = torch.stack(rows)
    return (torch.linalg.pinv(A) @ torch.ones(len(A), dtype=A.dtype)).view(data.d, data.e)


def test_example1_has_the_printed_frobenius_solution() -> None:
    data = example1()
    assert data.optimal_tokens().flatten().tolist() == [0, 0]
    W = least_norm(data)
    logits = data.logits(W)[0, :, 0]
    torch.testing.assert_close(logits[:, 0] - logits[:, 1], torch.ones(2, dtype=torch.float64))
    printed = torch.tensor([[0.03846, 0.0], [-0.00769, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(W, printed, atol=5e-6, rtol=0)


def label_margin(points: torch.Tensor, p: float) -> float:
    """max over ‖v‖_p = 1 of min_i vᵀx_i for points (2, 2), on a fine grid of directions."""
    angle = torch.linspace(0, 2 * torch.pi, 20_001, dtype=torch.float64)
    v = torch.stack([angle.cos(), angle.sin()], 1)
    v = v / v.norm(p=p, dim=1, keepdim=True)
    return (v @ points.T).amin(1).max().item()


@pytest.mark.parametrize(("p", "best"), [(1.75, (1, 0)), (2, (0, 0)), (3, (0, 0))])
def test_example2_label_margins(p: float, best: tuple[int, int]) -> None:
    data = example2()
    assert (data.n, data.T, data.d) == (2, 3, 2)
    assert torch.equal(data.Z[:, :, 0], data.X[:, :, 0])
    assert data.optimal_tokens().flatten().tolist() == [0, 0]
    torch.testing.assert_close(data.scores()[0, :, 0, 0], torch.ones(2, dtype=torch.float64))
    signed = data.Y[0, :, :, None] * data.X[0]
    margins = {
        tokens: label_margin(torch.stack([signed[0, tokens[0]], signed[1, tokens[1]]]), p)
        for tokens in itertools.product(range(3), repeat=2)
    }
    assert max(margins, key=lambda tokens: margins[tokens]) == best


def test_figure1_setting() -> None:
    data = figure1(trials=5)
    assert (data.B, data.n, data.T, data.d, data.K, data.e) == (5, 2, 3, 2, 1, 2)
    assert data.score_gap().min() >= 0.1 - 1e-12


@pytest.mark.parametrize("sizes", [(10**22, 8, 10), (10**13, 10**5, 10**4)])
def test_sizes_beyond_all_memory_are_refused_before_it_is_taken(sizes: tuple[int, int, int]) -> None:
    for make in (sphere, orthonormal):
        n, T, d = sizes if make is sphere else (sizes[0], 2, sizes[2])
        with pytest.raises(AttsvmError, match="do not fit into memory: take fewer trials or smaller sizes"):
            make(n, T, d)
