"""The verdict certifies no theorem that is refuted, and the corrected ones where they are true."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attsvm import LinearHead, Steepest, TokenData, att_svm, solve, sphere, train, verdict
from attsvm.diagnostics import (
    Signature,
    applicability,
    assumption_b2,
    assumption_c,
    excess_loss,
    lipschitz_constant,
    loss_barrier,
    sufficient_first_step,
)
from attsvm.objective import gradient
from attsvm.search import counterexample

THEOREM_3 = "TF-as-SVM Theorem 3 (norm diverges)"
THEOREM_4 = "TF-as-SVM Theorem 4 (global direction)"
THEOREM_6 = "TF-as-SVM Theorem 6 (global direction)"
THEOREM_8 = "TF-as-SVM Theorem 8 (every SVM feasible)"
BARRIER = "loss below the barrier, the proof of Theorem 6 (global direction)"


def plain(data: TokenData, steps: int, lr: float, loss: str = "correlation"):
    return train(data, steps=steps, lr=lr, normalize=False, loss=loss, record=("W", "loss"), compile=False)


@pytest.mark.parametrize("theorem", [4, 6])
def test_the_verdict_on_a_counter_example_lists_no_refuted_theorem(theorem: int) -> None:
    data = counterexample(theorem)
    lr = 0.99 / lipschitz_constant(data, "correlation").item()
    v = verdict(plain(data, 2000, lr))
    assert not v.globally_optimal.any()
    holds = v.theorems
    assert not any(holds[name].any() for name in holds if "global direction" in name)
    # What is printed would have applied: a separable problem, the assumption of the theorem, a small step from zero.
    assert solve(att_svm(data)).solved.all()
    assert assumption_b2(data).holds.all()
    assert assumption_c(data, "correlation").holds.all() == (theorem == 6)
    words = applicability(v.conditions)
    assert words[THEOREM_3] == "applies"
    assert words[THEOREM_4] == "does not apply: not one query (n·K = 1)"
    assert words[THEOREM_6].startswith("does not apply: ")
    assert "not first step large enough (L(W(1)) below the barrier)" in words[THEOREM_6]
    assert words[BARRIER] == "does not apply: not L(W) below the barrier at a recorded step"


def test_theorem_4_applies_to_one_query() -> None:
    data = sphere(1, 2, 4, trials=5, seed=1)
    lr = 0.9 / lipschitz_constant(data).max().item()
    v = verdict(plain(data, 20, lr, "logistic"))
    assert v.theorems[THEOREM_4].all()
    three = sphere(3, 2, 8, trials=5, seed=1)
    v = verdict(plain(three, 20, 0.9 / lipschitz_constant(three).max().item(), "logistic"))
    assert not v.theorems[THEOREM_4].any()


def test_no_theorem_on_descent_applies_to_steps_of_size_0() -> None:
    data = sphere(1, 2, 4, trials=5, seed=1)
    words = applicability(verdict(plain(data, 20, 0.0)).conditions)
    for theorem in (THEOREM_3, THEOREM_4):
        assert words[theorem] == "does not apply: not plain steps of one size"


def test_plain_steepest_descent_is_gradient_descent() -> None:
    data = sphere(1, 3, 4, trials=3, seed=0)
    lr = 0.9 / lipschitz_constant(data).max().item()
    runs = (
        train(data, steps=300, lr=lr, **kind) for kind in ({"normalize": False}, {"rule": Steepest(normalize=False)})
    )
    a, b = (verdict(run) for run in runs)
    assert applicability(a.conditions)[THEOREM_3].startswith("applies")
    assert applicability(b.conditions) == applicability(a.conditions)
    assert b.prediction == a.prediction
    for other in (Steepest(), Steepest(normalize=False, momentum=0.5), Steepest(normalize=False, decay=0.01)):
        assert "plain steps" in applicability(verdict(train(data, steps=9, rule=other)).conditions)[THEOREM_3]


def test_a_large_first_step_crosses_the_barrier_and_stays_right() -> None:
    data = counterexample(6)
    L_W = lipschitz_constant(data, "correlation").item()
    D = -gradient(data, torch.zeros(1, 3, 1).double(), "correlation")
    barrier = loss_barrier(data, "correlation")
    for first, enough in ((1 / L_W, False), (1 / solve(att_svm(data)).norm.item(), False), (0.6, True), (50.0, True)):
        assert (excess_loss(data, first * D, "correlation") < barrier).item() is enough
        if not enough:
            continue
        recorded = train(
            data,
            steps=1000,
            lr=lambda k, first=first: first if k == 1 else 1 / L_W,
            normalize=False,
            loss="correlation",
            record=("W",),
            compile=False,
        ).records["W"]
        logits = torch.stack([data.logits(W)[0, :, 0] for W in recorded[1:]])
        assert (logits[..., 0] > logits[..., 1]).all()


@pytest.mark.parametrize("loss", ["correlation", "logistic", "exponential"])
def test_the_sufficient_first_step_is_sufficient(loss: str) -> None:
    """For data that meet Assumption C, it and all larger ones go below the barrier; elsewhere there is none."""
    data = sphere(3, 3, 12, trials=60, seed=2, min_score_gap=0.1)
    needed, holds = sufficient_first_step(data, loss), assumption_c(data, loss).holds
    assert needed.isfinite().equal(holds)
    assert holds.sum() > 10
    some = data[holds]
    D = -gradient(some, torch.zeros(len(some), 12, 12).double(), loss)
    for factor in (1.0, 2.0, 100.0):
        W = (factor * needed[holds])[:, None, None] * D
        assert (excess_loss(some, W, loss) < loss_barrier(some, loss) * (1 + 1e-9)).all()
    assert sufficient_first_step(counterexample(6), "correlation").item() == pytest.approx(1.4997, abs=1e-4)


def brute_barrier(data: TokenData, b: int) -> float:
    """The correlation loss's barrier from its definition, one query at a time."""
    costs = []
    for i in range(data.n):
        scores = sorted(data.scores()[b, i, 0].tolist(), reverse=True)
        gap, spread = scores[0] - scores[1], scores[0] - scores[-1]
        costs.append(min(0.5, gap / spread) * gap)
    return min(costs) / data.n


def test_below_the_barrier_the_gradient_is_a_positive_sum_of_rows() -> None:
    """And every later W of a descent is below it too, with the optimal token first in every query."""
    data = sphere(3, 4, 6, trials=40, seed=3, min_score_gap=0.1)
    assert loss_barrier(data, "correlation").tolist() == pytest.approx([brute_barrier(data, b) for b in range(40)])
    solution = solve(att_svm(data), tol=1e-12)
    W = 8 * solution.W
    for loss in ("correlation", "logistic", "exponential"):
        barrier = loss_barrier(data, loss)
        below = excess_loss(data, W, loss) < barrier
        assert below.sum() > 5
        some, start = data[below], W[below]
        lr = 1 / lipschitz_constant(some, loss).max().item()
        run = train(some, steps=300, lr=lr, normalize=False, loss=loss, init={"W": start}, record=("W",), compile=False)
        for recorded in run.records["W"]:
            assert (excess_loss(some, recorded, loss) < barrier[below]).all()
            s = some.attention(recorded)[:, :, 0]
            scores = some.scores()[:, :, 0]
            other = 1 - s.gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            assert (other < 0.5).all()
            # p_t = s_t (γ̄ − γ_t) ≥ 0 for the tokens that are not optimal: the weights of the rows in −∇L.
            p = s * ((s * scores).sum(-1, keepdim=True) - scores)
            assert (p.scatter(-1, scores.argmax(-1, keepdim=True), 1.0) > 0).all()
        v = verdict(run)
        assert v.theorems[BARRIER].all()
        assert v.globally_optimal.all()


def test_equal_best_scores_have_no_barrier() -> None:
    data = TokenData.cross(torch.tensor([[[1.0, 0], [1, 1], [0, 1]]]), torch.ones(1, 1), head=torch.tensor([1.0, 0]))
    assert loss_barrier(data).item() == 0
    single = TokenData.cross(torch.ones(1, 1, 2), torch.ones(1, 1), head=torch.tensor([1.0, 0]))
    assert loss_barrier(single).item() == float("inf")


def test_without_a_second_token_no_theorem_promises_a_direction() -> None:
    data = TokenData.cross(torch.ones(1, 1, 2), torch.ones(1, 1), head=torch.tensor([1.0, 0]))
    run = plain(data, 20, 0.01)
    assert (run.W == 0).all()  # nothing to learn: the norm does not diverge
    assert [name for name, holds in verdict(run).theorems.items() if holds.any()] == [THEOREM_8]


def test_theorem_8_is_about_independent_tokens_and_queries() -> None:
    data = sphere(3, 4, 5, trials=4, seed=0)
    assert verdict(plain(data, 1, 0.1)).theorems[THEOREM_8].all()
    X = data.X.clone()
    X[0, 0, 2] = (X[0, 0, 0] + X[0, 0, 1]) / 2  # a token between two others can never be selected
    flat = TokenData.cross(X, data.Z, data.Y, data.head)
    assert verdict(plain(flat, 1, 0.1)).theorems[THEOREM_8].tolist() == [False, True, True, True]
    assert solve(att_svm(flat, [2, 0, 0])).solved.tolist() == [False, True, True, True]


def test_applicability_in_words() -> None:
    yes, no = torch.tensor([True, True]), torch.tensor([False, False])
    words = applicability(
        {
            "a": {"x": yes},
            "b": {"x": yes, "y": no},
            "c": {"x": torch.tensor([True, False])},
            "d": {"x": torch.tensor([True, False]), "y": torch.tensor([False, True])},
        }
    )
    assert words == {
        "a": "applies",
        "b": "does not apply: not y",
        "c": "applies in 1 of 2 trials: not x in 1",
        "d": "does not apply: not x (in 1 of 2 trials), not y (in 1 of 2 trials)",
    }
    none = verdict(train(sphere(2, 3, 4, trials=0), steps=3)).conditions
    assert set(applicability(none).values()) == {"says nothing of 0 trials"}


def test_the_first_step_is_large_enough_where_it_crosses_the_barrier() -> None:
    data, found = sphere(2, 3, 6, trials=30, seed=1), []
    for lr in (1.0, 30.0, 1000.0):
        run = plain(data, 1, lr)
        conditions = next(x for x in verdict(run).conditions.values() if "W(0) = 0" in x)
        holds = conditions["first step large enough (L(W(1)) below the barrier)"]
        assert torch.equal(holds, excess_loss(data, run.W, "correlation") < loss_barrier(data, "correlation"))
        found += holds.tolist()
    assert any(found)
    assert not all(found)


def test_a_first_step_that_overflows_crosses_no_barrier() -> None:
    data = sphere(3, 4, 5, trials=3, seed=0, min_score_gap=0.1)
    assert data.head is not None
    steep = replace(data, head=LinearHead(1e4 * torch.ones(3, 1, 5, dtype=torch.float64)))
    run = train(steep, steps=20, loss="exponential", compile=False)
    assert run.W.isfinite().all()
    first = gradient(steep, torch.zeros_like(run.W), "exponential")
    v = verdict(run)
    crossed = v.conditions[THEOREM_6]["first step large enough (L(W(1)) below the barrier)"]
    overflows = ~first.isfinite().flatten(1).all(1)
    assert overflows.any()
    assert not crossed[overflows].any()


def test_a_loss_outside_of_its_domain_is_judged_not_finite() -> None:
    data = sphere(3, 4, 5, trials=2, seed=0)
    run = train(data, steps=5, loss=lambda f: -f.sqrt(), compile=False)
    assert run.W.isnan().flatten(1).any(1).all()
    v = verdict(run)
    assert v.signature.eq(Signature.NOT_FINITE).all()
    assert not v.reached.any()
    assert not v.theorems[THEOREM_6].any()
