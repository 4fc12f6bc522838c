"""Problems of neighbouring papers, against their definitions and independent solvers; problems of bounded rank."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import assert_optimal, cvxpy_norm, dense, feasible
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from attsvm import AttsvmError, Lp, MarginProblem, Nuclear, att_svm, solve, sphere
from attsvm.svm import (
    TokenProblem,
    graph_finite_part,
    graph_svm,
    multiclass_svm,
    ntp_finite_part,
    ntp_svm,
    per_head_svm,
    solve_rank,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("norm", ["l1", "l2", "l3", "linf", "nuclear", "spectral"])
def test_crammer_singer_separates_every_class(norm: str) -> None:
    H, labels = normal(8, 7), np.array([0, 1, 2, 3, 0, 1, 2, 0])
    problem = multiclass_svm(H, labels)
    solution = solve(problem, norm)
    assert solution.solved.all()
    scores = H @ solution.W[0].mT
    own = scores.gather(1, torch.from_numpy(labels)[:, None])
    others = scores.scatter(1, torch.from_numpy(labels)[:, None], -math.inf)
    assert (own - others).min().item() == pytest.approx(1, abs=1e-9)
    if norm in ("l2", "nuclear"):
        assert solution.W.sum(1).abs().max() < 1e-4  # a shift of all scores would only cost
        expected = cvxpy_norm(problem, Lp(2) if norm == "l2" else Nuclear(), 0)
        assert solution.norm.item() == pytest.approx(expected, rel=1e-6)


def test_two_classes_are_the_ordinary_svm() -> None:
    """W₁ = −W₀ = w/2, and w separates the classes with margin 1."""
    H = normal(6, 9)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    W = solve(multiclass_svm(H, labels), tol=1e-12).W[0]
    w = solve(MarginProblem.from_rows(H * (2.0 * labels - 1)[:, None]), tol=1e-12).W[0, :, 0]
    assert torch.allclose(W, torch.stack((-w, w)) / 2, atol=1e-6)


def some_support(m: int, V: int) -> Tensor:
    support = torch.rand(m, V, generator=torch.Generator().manual_seed(3)) < 0.4
    support[:, 1] = True
    return support


@pytest.mark.parametrize("norm", ["l2", "l1.5", "nuclear"])
def test_ntp_svm_and_its_finite_part(norm: str) -> None:
    H, support = normal(5, 6), some_support(5, 7)
    problem = ntp_svm(H, support)
    solution = solve(problem, norm)
    assert solution.solved.all()
    assert_optimal(problem, solution, 1e-9)
    logits = H @ solution.W[0].mT
    for j in range(5):
        inside, outside = logits[j][support[j]], logits[j][~support[j]]
        assert (inside - inside[0]).abs().max() < 1e-9
        assert (inside[:, None] - outside).min() >= 1 - 1e-9
    assert solution.norm.item() == pytest.approx(cvxpy_norm(problem, solution.geometry, 0), rel=2e-6)

    p = torch.rand(5, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * support
    finite = solve(ntp_finite_part(H, p), norm)
    assert finite.solved.all()
    log = H @ finite.W[0].mT
    for j in range(5):
        ratio = log[j][support[j]] - p[j][support[j]].log()
        assert (ratio - ratio[0]).abs().max() < 1e-8
    # With R·W_svm beside it softmax gives the conditional probabilities, as R grows.
    softmax = (log + 60 * logits).softmax(1)
    assert torch.allclose(softmax, p / p.sum(1, keepdim=True), atol=1e-6)


def test_ntp_takes_batches() -> None:
    H, support = normal(3, 5, 6), some_support(5, 7)
    together = solve(ntp_svm(H, support.expand(3, -1, -1)))
    for k in range(3):
        assert solve(ntp_svm(H[k], support)).norm.item() == pytest.approx(together.norm[k].item(), rel=1e-8)


SEQUENCES = np.array([[0, 1, 2, 3], [1, 2, 3, -1], [2, 0, 3, -1], [0, 4, 5, 2], [1, 5, 1, 3], [5, 0, 2, -1]])
LABELS = np.array([0, 1, 2, 4, 1, 0])


def reachable(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Components of G⁽ᵏ⁾ by scipy, and whether there is a path, by powers of the adjacency matrix."""
    edges = np.zeros((6, 6), dtype=int)
    for sequence, label in zip(SEQUENCES, LABELS):
        tokens = sequence[sequence >= 0]
        if tokens[-1] == k:
            edges[label, tokens] = 1
    _, component = connected_components(edges, directed=True, connection="strong")
    return component, np.linalg.matrix_power(edges + np.eye(6, dtype=int), 6) > 0


@pytest.mark.parametrize("norm", ["l2", "nuclear", "l1"])
def test_graph_svm_orders_components(norm: str) -> None:
    E = normal(6, 8)
    problem = graph_svm(E, SEQUENCES, LABELS)
    solution = solve(problem, norm)
    assert solution.solved.all()
    if norm != "l1":
        assert solution.norm.item() == pytest.approx(cvxpy_norm(problem, solution.geometry, 0), rel=2e-6)
    tied = ordered = 0
    for k in (2, 3):
        component, path = reachable(k)
        logits = (E @ solution.W[0] @ E[k]).numpy()
        for i in range(6):
            for j in range(6):
                if i != j and component[i] == component[j]:
                    tied += 1
                    assert logits[i] == pytest.approx(logits[j], abs=1e-9)
                elif path[i, j] and i != j:
                    ordered += 1
                    assert logits[i] - logits[j] >= 1 - 1e-9
    assert tied > 0
    assert ordered > 0
    assert (~problem.equality & problem.present).sum() <= ordered  # paths of several edges need no row


def test_graph_finite_part_minimises_the_cyclic_loss() -> None:
    E = normal(6, 5)
    W = graph_finite_part(E, SEQUENCES, LABELS)

    def loss(w: np.ndarray) -> float:
        total = 0.0
        for sequence, label in zip(SEQUENCES, LABELS):
            tokens = sequence[sequence >= 0]
            component, _ = reachable(tokens[-1])
            kept = tokens[component[tokens] == component[label]]
            logits = E.numpy()[kept] @ w.reshape(5, 5) @ E.numpy()[tokens[-1]]
            total -= math.log(np.exp(logits)[kept == label].sum() / np.exp(logits).sum())
        return total / len(LABELS)

    # Only directions of the span matter to the loss: no other W has a smaller one.
    best = scipy.optimize.minimize(loss, np.zeros(25), method="BFGS", tol=1e-7).fun
    assert loss(W.flatten().numpy()) <= best + 1e-10
    problem = graph_svm(E, SEQUENCES, LABELS)
    F, _, equality, _ = (x[0] for x in dense(problem))
    inside = np.linalg.lstsq(F[equality].T, W.flatten().numpy(), rcond=None)[0]
    assert np.allclose(F[equality].T @ inside, W.flatten().numpy(), atol=1e-12)


def test_graph_finite_part_has_the_same_bits_every_time() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(8, (40, 5), generator=generator)
    labels = sequences[:, 2]
    parts = [graph_finite_part(normal(8, 16), sequences, labels) for _ in range(5)]
    assert all(torch.equal(part, parts[0]) for part in parts)


def test_graph_finite_part_of_two_tokens_is_their_log_odds() -> None:
    sequences, labels = [[0, 1]] * 4, [0, 0, 0, 1]
    W = graph_finite_part(np.eye(2), sequences, labels)
    assert (W[0, 1] - W[1, 1]).item() == pytest.approx(math.log(3), abs=1e-12)
    assert graph_svm(np.eye(2), sequences, labels).equality.sum() == 1
    alone = graph_svm(np.eye(2), [[0, 0]], [0])
    assert solve(alone).norm.item() == 0
    assert (graph_finite_part(np.eye(2), [[0, 1]], [0]) == 0).all()


def test_every_head_has_its_own_problem() -> None:
    data = sphere(4, 5, 6, trials=3, seed=1)
    tokens = torch.randint(0, 5, (3, 2, 4, 1), generator=torch.Generator().manual_seed(0))
    both = solve(per_head_svm(data, tokens))
    for b in range(3):
        for h in range(2):
            one = solve(att_svm(data[b], tokens[b, h]))
            assert one.norm.item() == pytest.approx(both.norm[2 * b + h].item(), rel=1e-8)
    assert per_head_svm(data, tokens[0, :, :, 0]).B == 6


@pytest.mark.parametrize("norm", ["l2", "nuclear"])
def test_bounded_rank_is_exact_where_the_convex_solution_has_it(norm: str) -> None:
    data = sphere(3, 5, 6, trials=3, seed=2)
    problem = att_svm(data)
    convex = solve(problem, norm)
    full = solve_rank(problem, 3, norm)  # Lemma 1: at most as many as sequences
    assert full.solved.all()
    assert torch.allclose(full.upper, convex.norm, rtol=1e-6)
    before = full.upper
    for m in (2, 1):
        low = solve_rank(problem, m, norm, rounds=5)
        F, b, _, _ = dense(problem)
        found = low.upper.isfinite().numpy()
        assert (np.linalg.matrix_rank(low.W.numpy()[found], tol=1e-9) <= m).all()
        values = np.einsum("bnk,bk->bn", F, low.W.flatten(1).numpy())
        assert (values[found] >= b[found] - 1e-9).all()
        assert (low.upper >= before * (1 - 1e-6)).all()
        assert (low.lower <= convex.norm).all()
        before = low.upper
    assert feasible(problem).all()


def test_a_rank_one_problem_is_solved() -> None:
    """A single row: W is a multiple of a ⊗ z."""
    for norm in ("l2", "nuclear"):
        assert solve_rank(att_svm(sphere(1, 2, 5, trials=4)), 1, norm).solved.all()


def test_a_problem_that_keeps_tokens_only_has_solutions_of_bounded_rank() -> None:
    data = sphere(3, 4, 5, seed=0)
    formed = att_svm(data)
    sets = torch.zeros_like(data.mask).scatter_(-1, data.optimal_tokens()[..., None], True)
    unformed = TokenProblem(data, sets)  # as of instances of more than 10,000 rows
    assert torch.equal(solve_rank(unformed, 1, rounds=3).W, solve_rank(formed, 1, rounds=3).W)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: multiclass_svm(np.eye(3), [0, 1, 5], classes=3), "classes must be"),
        (lambda: multiclass_svm(np.ones(3), [0, 1, 2]), "H must have shape"),
        (lambda: multiclass_svm(np.eye(3), [0, 1]), r"labels must have shape \(3,\)"),
        (lambda: multiclass_svm(np.eye(2), [0, -1]), "labels must be at least 0, but got -1"),
        (lambda: ntp_finite_part(np.eye(2), [[0.5, np.nan], [1, 0]]), "probabilities must be finite"),
        (lambda: ntp_svm(np.eye(3), np.ones((2, 4), dtype=bool)), "support must have a row"),
        (lambda: ntp_svm(np.eye(3), np.zeros((3, 4), dtype=bool)), "at least one token"),
        (lambda: ntp_finite_part(np.eye(2), [[0.5, -0.5], [1, 0]]), "must not be negative"),
        (lambda: graph_svm(np.eye(3), [[0, 1]], [2]), "must occur in their sequences"),
        (lambda: graph_svm(np.eye(3), [[0, -1, 1]], [0]), "padded at the end"),
        (lambda: graph_svm(np.eye(3), [[0, 7]], [0]), "token numbers in 0..2"),
        (lambda: solve_rank(att_svm(sphere(2, 3, 4)), 2, "l3"), "must be l2 or nuclear"),
        (lambda: solve_rank(ntp_svm(np.eye(3), np.ones((3, 4), dtype=bool)), 1), "no equalities"),
        (lambda: per_head_svm(sphere(2, 3, 4), [[0, 1, 2]]), "tokens must have shape"),
    ],
)
def test_wrong_arguments(call: object, message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        call()  # type: ignore[operator]
