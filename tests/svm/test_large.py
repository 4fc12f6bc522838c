"""Instances of more than 10,000 rows: priced from the tokens, solved over a working set, certified on all rows."""

from __future__ import annotations

import math
import signal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from oracles import assert_farkas, assert_optimal, cvxpy_norm, dense
from test_norms import norm_by_others
from torch import Tensor

import attsvm
from attsvm import MarginProblem, MaxMargin, TokenData, att_svm, gen_svm, solve, sphere
from attsvm.embeddings import Sequences
from attsvm.svm import EmbeddingProblem, TokenProblem, _augmented, _large, _solve


def planted(n: int = 700, T: int = 20, d: int = 4, e: int = 3, K: int = 1, seed: int = 0) -> tuple[TokenData, Tensor]:
    """Tokens that some W selects, so that a solution exists; and their numbers (1, n, K)."""
    g = torch.Generator().manual_seed(seed)
    X, Z, W = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((n, T, d), (n, K, e), (d, e)))
    data = TokenData.cross(X, Z)
    return data, data.logits(W).argmax(-1)


@pytest.fixture
def unformed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TokenProblem) -> MarginProblem:
        raise AssertionError("rows must not be formed")

    monkeypatch.setattr(TokenProblem, "formed", refuse)


@pytest.mark.parametrize("norm", ["l2", "l1.5", "l3", "l1", "linf", "nuclear"])
def test_a_large_problem_is_solved_as_others_solve_it(norm: str) -> None:
    data, tokens = planted()
    problem = att_svm(data, tokens)
    assert isinstance(problem, TokenProblem)
    solution = solve(problem, norm, tol=1e-8)
    assert solution.solved.all()
    formed = problem.formed()
    assert formed.rows == problem.rows == 700 * 19
    assert_optimal(formed, solution, 1e-8)
    by = norm_by_others if norm in ("l1", "linf") else cvxpy_norm
    assert solution.norm.item() == pytest.approx(by(formed, solution.geometry, 0), rel=1e-6)
    assert (solution.multipliers > 0).sum() <= solution.multipliers.numel() // 10
    logits = data.logits(solution.W)
    margin = logits.gather(-1, tokens[..., None]) - logits
    at_margin = (margin < 1 + 1e-6) & (margin > 0.5)
    assert torch.equal(solution.support_tokens & ~at_margin, torch.zeros_like(at_margin))


def test_rows_are_never_formed(unformed: None) -> None:
    data, tokens = planted()
    assert solve(att_svm(data, tokens), tol=1e-9).solved.all()
    assert solve(att_svm(data, tokens), "l3", tol=1e-6).solved.all()


def test_many_unknowns_are_solved_by_conjugate_gradients_and_factors() -> None:
    """More unknowns than one factors at once: the certificate holds, and agrees with the batch method."""
    data, tokens = planted(n=1200, T=12, d=20, e=20)
    solution = solve(att_svm(data, tokens), tol=1e-7)
    assert solution.solved.all()
    formed = att_svm(data, tokens).formed()
    assert_optimal(formed, solution, 1e-7)
    tight = (solution.multipliers > 0)[0]
    few = MarginProblem.from_rows(formed.A[0][tight], formed.Z[0][tight.nonzero()[:, 0]])
    assert solve(few).norm.item() == pytest.approx(solution.norm.item(), rel=1e-7)


def test_a_minimisation_that_runs_out_of_steps_goes_on_in_the_next_round(monkeypatch: Any) -> None:
    data, tokens = planted(T=18, d=6, e=6)
    usual = solve(att_svm(data, tokens), tol=1e-7)
    monkeypatch.setattr(_augmented, "_NEWTON_STEPS", 2)
    short = solve(att_svm(data, tokens), tol=1e-7)
    assert short.solved.all()
    assert short.iterations > usual.iterations
    torch.testing.assert_close(short.norm, usual.norm, rtol=2e-7, atol=0)


def test_factors_in_float32_give_way_where_they_do_not_serve(monkeypatch: Any) -> None:
    """More rows at the margin than unknowns: the Gram matrix is singular but for 1/σ."""
    monkeypatch.setattr(_augmented, "_LIGHT_ROWS", 10)
    monkeypatch.setattr(_augmented, "_STALE", 1)
    made: list[torch.dtype] = []
    init = _augmented._RowFactor.__init__

    def noted(self: Any, *args: Any) -> None:
        init(self, *args)
        made.append(self.dtype)

    monkeypatch.setattr(_augmented._RowFactor, "__init__", noted)
    data, tokens = planted(T=18, d=16, e=12)
    solution = solve(att_svm(data, tokens), tol=1e-9)
    assert solution.solved.all()
    assert made[0] == torch.float32
    assert made[-1] == torch.float64
    first = made.index(torch.float64)
    assert set(made[first:]) == {torch.float64}  # once and for all


@pytest.mark.parametrize("norm", ["l2", "l3"])
def test_ties_hold(norm: str) -> None:
    """In some sequences a second token is selected that has the same logit under the planted W."""
    data, tokens = planted(d=6, e=6)
    W = solve(att_svm(data, tokens), tol=1e-6).W[0]
    X = data.X.clone()
    selected = torch.zeros_like(data.mask).scatter_(-1, tokens[..., None], True)
    for i in range(8):
        t = int(tokens[0, i, 0])
        other, v = (t + 1) % data.T, W @ data.Z[0, i, 0]
        aside = X[0, i, other] - X[0, i, t]
        X[0, i, other] = X[0, i, t] + aside - v * (aside @ v) / (v @ v)
        selected[0, i, 0, other] = True
    tied = TokenData.cross(X, data.Z)
    problem = gen_svm(tied, selected)
    solution = solve(problem, norm, tol=1e-7)
    assert solution.solved.all()
    logits = tied.logits(solution.W)[0, :8, 0]
    for i in range(8):
        inside = logits[i][selected[0, i, 0]]
        assert (inside - inside[0]).abs().max() <= solution.violation.item() + 1e-12
    assert solution.violation.item() < 1e-5
    assert solution.norm.item() == pytest.approx(cvxpy_norm(problem.formed(), solution.geometry, 0), rel=1e-5)


def test_infeasible_problems_are_proved() -> None:
    data, tokens = planted(d=3, e=1)
    wrong = (tokens + 1) % data.T
    problem = att_svm(data, wrong)
    for norm in ("l2", "linf"):
        solution = solve(problem, norm)
        assert solution.infeasible.all()
        assert_farkas(problem.formed(), solution)
    X = data.X.clone()
    X[0, 5, (int(tokens[0, 5, 0]) + 1) % data.T] = X[0, 5, int(tokens[0, 5, 0])]
    equal = att_svm(TokenData.cross(X, data.Z), tokens)
    solution = solve(equal)
    assert solution.infeasible.all()
    assert_farkas(equal.formed(), solution)


def test_several_queries_masks_and_single_precision() -> None:
    data, _ = planted(n=40, T=18, d=5, e=5, K=18)
    mask = torch.ones(18, 18, dtype=torch.bool).tril().expand(40, 18, 18)
    W = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    causal = TokenData.cross(data.X[0], data.Z[0], mask=mask)
    tokens = causal.logits(W).argmax(-1)
    problem = att_svm(causal, tokens)
    assert isinstance(problem, TokenProblem)
    solution = solve(problem, tol=1e-8)
    assert solution.solved.all()
    assert_optimal(problem.formed(), solution, 1e-8)
    single = att_svm(causal.to(dtype=torch.float32), tokens)
    assert solve(single, tol=1e-8).norm.item() == pytest.approx(solution.norm.item(), rel=1e-3)


def test_float32_tokens_of_several_instances_are_not_rounded() -> None:
    """Differences of float32 tokens need more digits than float32 has: they are those of the same tokens in float64."""
    data, tokens = planted(n=700, T=16, d=3, e=2)
    single = TokenData.cross(data.X[0] + 3, data.Z[0]).to(dtype=torch.float32)
    two = TokenData.cross(single.X.expand(2, -1, -1, -1), single.Z.expand(2, -1, -1, -1))
    solution = solve(att_svm(two, tokens.expand(2, -1, -1)), tol=1e-8)
    exact = solve(att_svm(single.to(dtype=torch.float64), tokens), tol=1e-8)
    assert solution.solved.all()
    assert (solution.lower <= exact.upper).all()
    assert (solution.upper >= exact.lower).all()


def test_own_rows_and_several_instances() -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(2, 12_000, 5))
    A *= np.sign(A @ rng.normal(size=5))[..., None]
    A += 0.1 * np.sign(A)  # some margin, and rows of other lengths
    A *= 10.0 ** rng.integers(-2, 3, size=(2, 12_000, 1))
    b = rng.uniform(0.5, 2, size=(2, 12_000))
    problem = MarginProblem.from_rows(A, b=b)
    solution = solve(problem, tol=1e-8)
    if solution.solved.all():
        assert_optimal(problem, solution, 1e-8)
    else:
        assert_farkas(problem, solution)


def test_the_cls_vector_of_many_sequences() -> None:
    """Eq. (9): e = 1, one token selected per sequence."""
    rng = np.random.default_rng(1)
    E = rng.normal(size=(300, 8))
    sequences = rng.integers(0, 300, size=(800, 20))
    p = rng.normal(size=8)
    padded = np.full((800, 20), -1)
    for row, sequence in zip(padded, sequences):
        words = np.unique(sequence)
        row[: len(words)] = words
    problem = attsvm.embedding_svm(E, padded, p)
    solution = solve(problem, tol=1e-9)
    assert solution.solved.all()
    w = solution.W[0, :, 0].numpy()
    scores, planted_scores = E @ w, E @ p
    for row in padded[:100]:
        kept = row[row >= 0]
        best = kept[planted_scores[kept].argmax()]
        others = scores[kept[kept != best]]
        assert len(others) == 0 or scores[best] - others.max() >= 1 - 1e-9
    assert solution.norm.item() == pytest.approx(cvxpy_norm(problem.formed(), solution.geometry, 0), rel=1e-6)


def reviews(n: int, words: int, d: int, seed: int) -> tuple[Tensor, Sequences, Tensor]:
    """Embeddings, sequences of 2 to 20 words, and p."""
    g = torch.Generator().manual_seed(seed)
    E, p = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((words, d), (d,)))
    lengths = torch.randint(2, 21, (n,), generator=g).tolist()
    ids = [torch.randperm(words, generator=g)[:length].tolist() for length in lengths]
    return E, Sequences.from_lists(ids, [1] * n, words), p


def padded(data: Sequences) -> Tensor:
    found = torch.full((data.n, int(data.offsets.diff().max())), -1)
    place = torch.arange(len(data.ids)) - data.offsets[data.row]
    found[data.row, place] = data.ids
    return found


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_pairs_of_words_are_the_sequences_that_ask_for_them(norm: str) -> None:
    """Eq. (9) from ragged sequences, every pair once: the same optimum as from padded ones, and few rows are formed."""
    E, data, p = reviews(3000, 300, 8, seed=1)
    problem = attsvm.embedding_svm(E, data, p)
    assert isinstance(problem, EmbeddingProblem)
    assert int(problem.times.sum()) == len(data.ids) - data.n > problem.rows
    solution = solve(problem, norm, tol=1e-9)
    other = solve(attsvm.embedding_svm(E, padded(data), p), norm, tol=1e-9)
    assert solution.solved.all()
    assert solution.norm.item() == pytest.approx(other.norm.item(), rel=1e-8)
    assert_optimal(problem.formed(), solution, 1e-9)
    assert solution.efficiency(p[:, None]).item() == pytest.approx(other.efficiency(p[:, None]).item(), rel=1e-7)
    a = E @ solution.W[0, :, 0]
    for row in padded(data)[:200]:
        words = row[row >= 0]
        lead = a[words].topk(2).values.diff().neg().item()
        assert words[a[words].argmax()] == words[(E @ p)[words].argmax()]
        assert lead >= 1 - 1e-9


def test_tied_words_stay_tied() -> None:
    """Word 0 and word 1 differ only where p is 0, and lead every sequence."""
    E, data, p = reviews(3000, 300, 8, seed=2)
    E[:, 7], p[7] = 0.0, 0.0
    E[0] = 50 * p
    E[1] = E[0]
    E[1, 7] = 1.0
    ids = torch.cat((torch.tensor([0, 1]), 2 + data.ids % 298))
    both = Sequences.of(ids, data.offsets + 2 * (data.offsets > 0), [1] * data.n, 300)
    problem = attsvm.embedding_svm(E, both, p)
    assert isinstance(problem, EmbeddingProblem)
    assert problem.tied.sum() == 1
    solution = solve(problem, tol=1e-9)
    assert solution.solved.all()
    w = solution.W[0, :, 0]
    assert abs((E[0] - E[1]) @ w) <= solution.violation.item() <= 1e-6
    assert solution.norm.item() == pytest.approx(cvxpy_norm(problem.formed(), solution.geometry, 0), rel=1e-6)


def test_a_few_ragged_sequences_become_plain_rows() -> None:
    E, data, p = reviews(20, 30, 5, seed=3)
    problem = attsvm.embedding_svm(E, data, p)
    assert not isinstance(problem, EmbeddingProblem)
    assert solve(problem).norm.item() == pytest.approx(
        solve(attsvm.embedding_svm(E, padded(data), p)).norm.item(), rel=1e-8
    )


def test_an_interrupt_returns_the_bracket_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    data, tokens = planted(d=8, e=8)
    problem = att_svm(data, tokens)
    whole = solve(problem, tol=1e-8)
    worst, rounds = _large.TokenPricing.worst, iter(range(10**6))

    def interrupted(self: Any, W: Tensor) -> Any:
        if next(rounds) == 3:  # in the third round: the first pricing is before it begins
            signal.raise_signal(signal.SIGINT)
        return worst(self, W)

    monkeypatch.setattr(_large.TokenPricing, "worst", interrupted)
    with pytest.warns(UserWarning, match="interrupted: the brackets are those reached by then"):
        cut = solve(problem, tol=1e-8)
    assert cut.open.all()
    assert cut.iterations.item() == 3 < whole.iterations.item()
    assert 0 < cut.lower.item() <= whole.norm.item()
    assert cut.upper.item() >= whole.lower.item()


def test_progress_tells_rows_violation_and_gap(capsys: pytest.CaptureFixture[str]) -> None:
    data, tokens = planted()
    solve(att_svm(data, tokens), tol=1e-6, progress=True)
    shown = " ".join(capsys.readouterr().err.split())
    assert "13,300 rows" in shown
    assert "in the set" in shown


def test_infeasible_rows_of_many_unknowns_are_proved_without_solving_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multipliers of the working set are close enough to a Farkas vector."""
    data, tokens = planted(n=900, T=14, d=8, e=8)
    problem = att_svm(data, (tokens + 1) % data.T)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("rows must not be solved anew")

    monkeypatch.setattr(_solve, "_solve_small", refuse)
    solution = solve(problem)
    assert solution.infeasible.all()
    assert_farkas(problem.formed(), solution)


def test_efficiency_saving_and_picking(tmp_path: Any) -> None:
    data, tokens = planted()
    solution = solve(att_svm(data, tokens), tol=1e-8)
    other = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for W in (solution.W, other[None]):
        F, b, _, present = dense(solution.problem.formed())
        values = np.einsum("nk,k->n", F[0], W.flatten().numpy()) / b[0]
        expected = values[present[0]].min() / W.norm().item() * solution.lower.item()
        assert solution.efficiency(W).item() == pytest.approx(expected, rel=1e-9)
    solution.save(tmp_path / "large.npz")
    back = MaxMargin.load(tmp_path / "large.npz")
    assert torch.equal(back.W, solution.W)
    assert back.problem.rows == solution.problem.rows
    assert solution[0].norm.item() == solution.norm.item()


@pytest.mark.parametrize("size", [1e200, 1e307, 1e-200])
def test_numbers_too_large_or_too_small_are_refused(size: float) -> None:
    data, tokens = planted()
    with pytest.raises(attsvm.AttsvmError, match="between 1e-150 and 1e150"):
        solve(att_svm(TokenData.cross(data.X * size, data.Z), tokens))


def test_few_rows_stay_with_the_batch_methods() -> None:
    problem = att_svm(sphere(6, 8, 10, trials=2))
    assert not isinstance(problem, TokenProblem)
    assert math.isfinite(solve(problem, progress=True).norm.sum().item())


def test_multipliers_whose_terms_cancel_prove_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fractions, for rows that are opposite but for rounding: rounding λ anew loses such a bound."""
    monkeypatch.setattr(_solve, "is_large", lambda *_: True)
    monkeypatch.setattr(_large, "PATIENCE", 1)
    for seed in (1, 2, 7):
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(8, 4))
        A[1] = -A[0] * (1 + rng.integers(-2, 3, size=4) * 2.0**-52)
        solution = solve(MarginProblem.from_rows(A), "linf")
        assert solution.lower > 1e14
        lam = [Fraction(x) for x in solution.multipliers.flatten().tolist()]
        U = [abs(sum(x * Fraction(a) for x, a in zip(lam, column))) for column in A.T.tolist()]
        assert sum(U) * Fraction(solution.lower.item()) <= sum(lam)


def test_a_w_that_violates_equalities_is_not_kept_for_being_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is off by more than the tolerance, nor one that is off by less and lies below the bound."""
    rng = np.random.default_rng(5)
    A, Z, tied = rng.integers(-2, 3, size=(40, 8, 4)), rng.integers(-2, 3, size=(40, 8, 2)), np.arange(8) < 4
    problem = MarginProblem.from_rows(A, Z, b=np.where(tied, 0.0, 1.0), equality=tied)
    expected = solve(problem, "l2")
    monkeypatch.setattr(_solve, "is_large", lambda *_: True)
    solution = solve(problem, "l2")
    assert solution.status == expected.status
    assert not solution.open.any()
    np.testing.assert_allclose(solution.norm, expected.norm, rtol=2e-9)
