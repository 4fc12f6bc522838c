"""A counter-example is found from nothing, is small, and obeys what it claims; a true conjecture has none."""

from __future__ import annotations

import pytest
import torch

import attsvm
from attsvm import AttsvmError, TokenData, att_svm, solve
from attsvm.diagnostics import assumption_b2, lipschitz_constant
from attsvm.search import (
    Descent,
    _falsify,  # the module
    counterexample,
    falsify,
    optimal_tokens_lead,
)
from attsvm.search._shrink import Instance, shrink


def step_size(data: TokenData) -> torch.Tensor:
    return 0.999 / lipschitz_constant(data, "correlation")


def separable_equal_scores(data: TokenData) -> torch.Tensor:
    return assumption_b2(data).holds & solve(att_svm(data)).solved


def always(data: TokenData) -> torch.Tensor:
    return torch.ones(data.B, dtype=torch.bool)


def test_theorem_4_is_refuted_from_scratch() -> None:
    descent = Descent(100, step_size, "correlation")
    found = falsify(optimal_tokens_lead, separable_equal_scores, descent, n=2, batch=256, rounds=20, entries=3)
    assert found is not None
    data = found.data
    assert (data.n, data.T) == (2, 2)  # for one sequence the theorem is true
    assert data.X.equal(data.X.round())
    assert separable_equal_scores(data).all()
    assert found.confirmed[1] <= found.confirmed[0] < 0
    assert found.digits == 50
    assert found.confirmed[1] == pytest.approx(found.slack, rel=1e-6)
    # The descent, once more and longer, by train itself.
    lr = step_size(data).item()
    run = attsvm.train(data, steps=3200, lr=lr, normalize=False, loss="correlation", record=(), compile=False)
    assert optimal_tokens_lead(run).item() < found.confirmed[0]
    assert "Counterexample(X=" in repr(found)


def test_a_true_theorem_is_not_refuted() -> None:
    descent = Descent(100, step_size, "correlation")
    assert falsify(optimal_tokens_lead, separable_equal_scores, descent, n=1, T=3, batch=64, rounds=3) is None
    assert falsify(optimal_tokens_lead, separable_equal_scores, descent, n=2, batch=64, seconds=0) is None


def test_hypotheses_that_few_data_meet_find_nothing() -> None:
    descent = Descent(5, step_size, "correlation")
    small = lambda data: data.X.abs().sum((1, 2, 3)) < 10  # noqa: E731
    assert falsify(lambda run: torch.ones(len(run)), small, descent, n=2, batch=16, rounds=20) is None


@pytest.mark.parametrize(
    ("given", "value", "why"),
    [(False, 1.0, "of 48 instances given holds on none"), (True, torch.nan, "the conclusion was decided on none")],
)
def test_a_search_that_tests_nothing_says_so(given: bool, value: float, why: str) -> None:
    descent = Descent(5, 0.1, "correlation")
    holds = lambda data: torch.full((len(data),), given)  # noqa: E731
    with pytest.warns(UserWarning, match=why):
        assert falsify(lambda run: torch.full((len(run),), value), holds, descent, n=2, batch=16, rounds=3) is None


def test_scaled_queries_are_step_sizes() -> None:
    data = attsvm.sphere(2, 3, 4, trials=3, seed=0)
    sizes = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    for geometry, normalize in (("l2", False), ("l3", False), ("l2", True), ("l1.5", True)):
        run = Descent(20, lambda data: sizes, "logistic", geometry, normalize).run(data)
        for b, lr in enumerate(sizes.tolist()):
            one = attsvm.train(data[b], geometry, steps=20, lr=lr, normalize=normalize, record=(), compile=False)
            torch.testing.assert_close(run.data[b].logits(run.W[b]), data[b].logits(one.W), rtol=1e-8, atol=1e-10)


def test_many_digits_agree_with_train_in_other_geometries() -> None:
    data = attsvm.sphere(1, 3, 2, seed=0)
    for geometry, normalize in (("l3", False), ("l1.5", True)):
        descent = Descent(10, 0.3, "logistic", geometry, normalize)
        (run, decided), (later, _) = descent.replay(data, 50)
        one = attsvm.train(data, geometry, steps=10, lr=0.3, normalize=normalize, record=(), compile=False)
        torch.testing.assert_close(run.W, one.W, rtol=1e-10, atol=1e-14)
        assert decided
        assert run.tokens.equal(one.tokens)
        followed = descent.follow(one)
        torch.testing.assert_close(later.data.logits(later.W), followed.data.logits(followed.W), rtol=1e-6, atol=1e-8)


def test_shrinking_ends_at_a_simplest_violation() -> None:
    """Violation: an entry of X is above 6 in absolute value. One is enough."""
    generator = torch.Generator().manual_seed(0)
    start = Instance.draw(1, 3, 3, 2, 1, ("X", "v"), 9, generator)

    def heavy(x: Instance) -> torch.Tensor:
        return x.X.flatten(1).abs().amax(1) > 6

    small = shrink(start, heavy)
    assert small.X.shape == (1, 1, 2, 1)
    assert sorted(small.X.flatten().tolist()) == [0, 7]
    assert (small.v == 0).all()
    assert heavy(small).all()


def test_numbers_are_rounded_to_small_integers() -> None:
    """Violation: the first token's entries are 2 : 3 to a hundredth. Rounding must keep that."""
    generator = torch.Generator().manual_seed(1)
    start = Instance.draw(1, 1, 2, 2, 1, ("X", "v"), 0, generator)
    start.X[0, 0, 0] = torch.tensor([0.2, 0.3])

    def ratio(x: Instance) -> torch.Tensor:
        a, b = x.X[:, 0, 0, 0], x.X[:, 0, 0, -1]
        return ((a / b - 2 / 3).abs() < 0.01) & (b != 0)

    small = shrink(start, ratio)
    assert small.X[0, 0, 0].tolist() in ([2, 3], [4, 6])
    assert (small.X[0, 0, 1] == 0).all()


def test_a_violation_that_passes_is_none() -> None:
    """Token differences on which the wrong token leads for 10,000 steps, and the right one for ever after; and the
    counter-example of Theorem 6, where it never does."""
    X = torch.zeros(1, 3, 2, 3).double()
    X[0, :, 0] = torch.tensor([[5.0, 0, 8], [2, 3, 0], [-3, -3, 2]])
    passing = TokenData.cross(X, torch.ones(1, 3, 1).double(), head=torch.tensor([[1.0, 1, 4]]).double())
    descent = Descent(400, step_size, "correlation")
    for data, lasts in ((passing, False), (counterexample(6), True)):
        run = descent.run(data)
        assert optimal_tokens_lead(run).item() < 0
        assert (optimal_tokens_lead(descent.follow(run)).item() < 0) is lasts


def test_a_conjecture_that_ties_do_not_decide_is_refuted() -> None:
    """Half of all instances refute the first one, all the second. Neither shrinks to tokens that tie, as at X = 0."""
    descent = Descent(5, 0.1, "correlation")
    for conclusion in (lambda run: run.tokens[:, 0, 0] != 0, lambda run: run.tokens[:, 0, 0] < 0):
        found = falsify(conclusion, always, descent, n=2, batch=8, rounds=1, digits=16)
        assert found is not None
        assert sorted(found.data.X.flatten().tolist()) == [0, 1]
        assert found.confirmed == (-1, -1)


def test_a_violation_that_shrinks_to_none_is_given_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_falsify, "shrink", lambda hit, *_: Instance(0 * hit.X, hit.Z, hit.v))
    descent = Descent(5, 0.1, "correlation")
    found = falsify(lambda run: run.tokens[:, 0, 0] != 0, always, descent, n=1, batch=8, rounds=1, digits=16)
    assert found is not None
    assert found.data.X.any()
    assert attsvm.train(found.data, steps=5, normalize=False, loss="correlation").tokens[0, 0, 0] == 0


def test_bad_input_is_refused() -> None:
    descent = Descent(10)
    with pytest.raises(AttsvmError, match="free must name"):
        falsify(optimal_tokens_lead, separable_equal_scores, descent, n=2, free=("W",))
    with pytest.raises(AttsvmError, match="ℓp norm"):
        Descent(10, geometry="nuclear").run(attsvm.sphere(1, 2, 2))
    for lr in (-0.1, 0.0, float("inf"), float("nan"), "fast"):
        with pytest.raises(AttsvmError, match="lr must be"):
            Descent(10, lr)  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="steps must be a whole number"):
        Descent(0.5)  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="seed must be a whole number in 0"):
        falsify(optimal_tokens_lead, always, descent, n=2, seed="a")  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="descent must be a Descent, but got int 50"):
        falsify(optimal_tokens_lead, always, 50, n=2)  # type: ignore[arg-type]


def test_what_many_digits_cannot_replay_is_refused_before_the_search() -> None:
    def never(data: TokenData) -> torch.Tensor:
        raise AssertionError

    for loss in ("log", "squared", lambda f: -f, ["logistic"]):
        with pytest.raises(AttsvmError, match="loss must be one of correlation, logistic, exponential for many digits"):
            falsify(optimal_tokens_lead, never, Descent(10, 0.1, loss), n=2)  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="l1 has no mirror map"):
        falsify(optimal_tokens_lead, never, Descent(10, geometry="l1"), n=2)


def test_functions_of_the_conjecture_are_checked() -> None:
    descent = Descent(5, 0.1, "correlation")
    with pytest.raises(AttsvmError, match=r"conclusion, .* must return a tensor of shape \(8,\), but got int 3"):
        falsify(lambda run: 3, always, descent, n=2, batch=8, rounds=1)  # type: ignore[arg-type, return-value]
    with pytest.raises(AttsvmError, match=r"given, .* must return a tensor of shape \(8,\), but got bool True"):
        falsify(optimal_tokens_lead, lambda data: True, descent, n=2, batch=8, rounds=1)  # type: ignore[arg-type]
    endless = Descent(5, lambda data: torch.full((data.B,), torch.inf), "correlation")
    with pytest.raises(AttsvmError, match="lr must be above 0 and finite for all instances, but it is inf"):
        falsify(optimal_tokens_lead, always, endless, n=2, batch=8, rounds=1)
