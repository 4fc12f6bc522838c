"""What theory says of a rule's limit, and the times that decide whether a run gets there."""

import math

import pytest
import torch

from attsvm import AttsvmError, TokenData, att_svm, solve, sphere, train, verdict
from attsvm.data import several_heads
from attsvm.diagnostics import Evidence, forgetting_time, lipschitz_constant, misalignment, outliving, predicted_limit
from attsvm.dynamics import Adam, Batches, Decaying, Growing, Lion, Muon, RMSprop, Rule, Steepest, Trajectory
from attsvm.geometry import Frobenius, Lp, Nuclear, Schatten, Spectral
from attsvm.objective import Added

DATA = sphere(3, 4, 5, trials=3, seed=1)


@pytest.mark.parametrize(
    ("options", "geometry", "evidence"),
    [
        ({"normalize": False}, Frobenius(), Evidence.ATTENTION),
        ({"rule": Steepest(normalize=False)}, Frobenius(), Evidence.ATTENTION),
        ({"geometry": "l1.5", "normalize": False}, Lp(1.5), Evidence.ATTENTION),
        ({}, Frobenius(), Evidence.LINEAR),
        ({"rule": "gd"}, Frobenius(), Evidence.LINEAR),
        ({"rule": Steepest(normalize=False, momentum=0.9)}, Frobenius(), Evidence.LINEAR),
        ({"rule": "sign"}, Lp(math.inf), Evidence.LINEAR),
        ({"rule": "spectral"}, Spectral(), Evidence.LINEAR),
        ({"rule": "muon"}, Spectral(), Evidence.LINEAR),
        ({"rule": Muon(newton_schulz=5)}, Spectral(), Evidence.CONJECTURED),
        ({"rule": "adam"}, Lp(math.inf), Evidence.LINEAR),
        ({"rule": RMSprop(eps=1e-8)}, Frobenius(), Evidence.LINEAR),
        ({"rule": "lion"}, Lp(math.inf), Evidence.CONJECTURED),
        ({"rule": "adam", "geometry": "l3"}, Lp(3), Evidence.NONE),
        ({"rule": Adam(beta1=0.9, beta2=0.9)}, Lp(math.inf), Evidence.LINEAR),
        ({"rule": Adam(beta1=0.9, beta2=0.85)}, Lp(math.inf), Evidence.CONJECTURED),
        ({"geometry": "nuclear", "normalize": False}, Nuclear(), Evidence.CONJECTURED),
        ({"geometry": Schatten(3), "normalize": False}, Schatten(3), Evidence.CONJECTURED),
        ({"geometry": "l3", "rule": "gd", "normalize": True, "batch": 1}, Lp(3), Evidence.NONE),
        ({"geometry": "l3", "rule": Steepest(normalize=False), "batch": 1}, Lp(3), Evidence.NONE),
        ({"geometry": "l3", "parameterization": "joint", "rule": "gd"}, Lp(3), Evidence.NONE),
        ({"geometry": "l3", "parameterization": "KQ", "rule": "gd"}, Lp(3), Evidence.NONE),
        ({"parameterization": "KQ", "rule": Steepest(momentum=0.9), "batch": 1}, Nuclear(), Evidence.NONE),
        ({"parameterization": "KQ", "normalize": False, "batch": 1}, Nuclear(), Evidence.CONJECTURED),
        ({"parameterization": "KQ", "batch": 1}, Nuclear(), Evidence.NONE),
        ({"parameterization": "joint", "normalize": False, "batch": 1}, Frobenius(), Evidence.CONJECTURED),
        ({"parameterization": "KQ"}, Nuclear(), Evidence.CONJECTURED),
        ({"parameterization": "KQ", "rule": "gd"}, Nuclear(), Evidence.CONJECTURED),
        ({"parameterization": "KQ", "rule": Steepest(momentum=0.9)}, Nuclear(), Evidence.NONE),
        ({"parameterization": "KQ", "rule": "spectral"}, Nuclear(), Evidence.NONE),
        ({"parameterization": "KQ", "rule": "adam"}, Nuclear(), Evidence.NONE),
        ({"parameterization": "joint"}, Frobenius(), Evidence.CONJECTURED),
        ({"rule": Adam(decay=0.1)}, Lp(math.inf), Evidence.NONE),
        ({"ridge": 1e-3}, Frobenius(), Evidence.NONE),
        ({"rule": "sign", "batch": 1}, Lp(math.inf), Evidence.NONE),
        ({"rule": Adam(), "batch": 1}, Lp(math.inf), Evidence.NONE),
        ({"rule": Steepest(momentum=0.9), "batch": Batches(1)}, Frobenius(), Evidence.CONJECTURED),
        ({"rule": Steepest(momentum=1e-6), "batch": 1}, Frobenius(), Evidence.NONE),
        ({"rule": Steepest(momentum=0.5), "batch": 1}, Frobenius(), Evidence.NONE),
        ({"rule": Steepest(momentum=0.5), "batch": 2}, Frobenius(), Evidence.CONJECTURED),
        ({"normalize": False, "batch": 2}, Frobenius(), Evidence.LINEAR),
        ({"normalize": False, "batch": 3}, Frobenius(), Evidence.ATTENTION),
        ({"normalize": False, "batch": Batches(3, replace=True)}, Frobenius(), Evidence.LINEAR),
        ({"rule": "sign", "batch": 3}, Lp(math.inf), Evidence.LINEAR),
        ({"normalize": False, "lr": Growing()}, Frobenius(), Evidence.CONJECTURED),
        ({"normalize": False, "loss": lambda f: (-f).exp()}, Frobenius(), Evidence.CONJECTURED),
    ],
)
def test_theory_of_every_rule(options: dict, geometry, evidence: Evidence) -> None:
    run = train(DATA, steps=2, compile=False, **options)
    limit = predicted_limit(run, torch.ones(3))
    assert (run.geometry, limit.evidence) == (geometry, evidence)
    assert str(evidence) in str(limit)


def test_nothing_is_proved_for_attention_under_a_head_that_is_not_linear() -> None:
    data = TokenData.cross(DATA.X, DATA.Z, Y=DATA.Y, head=lambda x: x[..., 0] - x[..., 1].square())
    limit = predicted_limit(train(data, steps=2, normalize=False, compile=False), torch.ones(3))
    assert limit.evidence == Evidence.CONJECTURED
    assert "a linear head" in limit.why


def test_verdict_says_what_theory_knows_and_measures_every_margin() -> None:
    run = train(DATA, rule="sign", lr=0.02, steps=1500, compile=False)
    judged = verdict(run, tol=0.1)
    assert list(judged.efficiency) == ["linf", "l2", "spectral"]
    assert torch.equal(judged.efficiency["linf"], judged.margin_ratio)
    for share in judged.efficiency.values():
        assert (share <= 1 + 1e-6).all()
    assert (judged.efficiency["linf"] > judged.efficiency["spectral"]).all()
    assert "proved for linear models" in str(judged)
    assert "spectral 0." in str(judged)
    assert judged.summary()["theory"]["evidence"] == Evidence.LINEAR
    assert list(verdict(train(DATA, steps=5)).efficiency) == ["l2"]
    assert list(verdict(train(DATA, steps=5), norms=["l3"]).efficiency) == ["l2", "l3"]


def test_nothing_is_predicted_of_weights_that_an_unknown_optimizer_trained() -> None:
    W = torch.ones(len(DATA), DATA.d, DATA.e, dtype=torch.float64)
    judged = verdict(Trajectory.of(DATA, W, "linf"))
    assert judged.prediction.evidence == Evidence.NONE
    assert "the optimizer is not known" in str(judged)
    assert list(judged.efficiency) == ["linf", "l2", "spectral"]
    for rule in (Steepest(Lp(math.inf)), "sign", "adam"):
        told = Trajectory.of(DATA, W, "linf", rule=rule)
        assert predicted_limit(told, torch.ones(3)).evidence == Evidence.LINEAR
    with pytest.raises(AttsvmError, match="rule must be a Rule or one of"):
        Trajectory.of(DATA, W, "linf", rule="adagrad")


def test_forgetting_time() -> None:
    """Simulate v of one entry whose gradient follows the margin that Adam's own steps build up."""
    beta2, eta, gamma = 0.99, 0.05, 2.0
    norm = torch.tensor([1 / gamma], dtype=torch.float64)
    time = forgetting_time(beta2, eta, norm).item()
    # log g = −γ·(sum of steps), v = β2 v + (1 − β2) g², both relative to β2^k so that nothing underflows.
    log_g, log_v, remembered, k = 0.0, 0.0, 1.0, 0
    while remembered > math.exp(-1):
        new = math.log1p(-beta2) + 2 * log_g
        old = log_v + math.log(beta2)
        log_v = max(new, old) + math.log1p(math.exp(-abs(new - old)))
        remembered *= math.exp(old - log_v)
        log_g -= gamma * eta * math.exp(log_g - log_v / 2)
        k += 1
    assert 0.5 < k / time < 2
    assert forgetting_time(beta2, 1e-6, norm).item() == pytest.approx(1 / (1 - beta2))


def test_momentum_that_outlives_the_gradient_is_named() -> None:
    norm = torch.tensor([2.0])
    assert outliving(0.9, 0.1, norm).item() == pytest.approx(0.05 / -math.log(0.9))

    def caution(rule: Rule, lr) -> str:
        return predicted_limit(train(DATA, rule=rule, lr=lr, steps=2, compile=False), norm.expand(3)).caution

    for rule in (Lion(), Muon(), Steepest(momentum=0.9)):
        assert "take lr below" in caution(rule, 5.0)
        assert not caution(rule, 1e-3)
    assert not caution(Steepest(normalize=False, momentum=0.9), 5.0)
    assert "forget" in caution(Adam(), 0.1)
    assert not caution(Adam(eps=1e-8), 0.1)
    assert not caution(Adam(), Decaying(0.1))


def test_a_batch_of_all_samples_is_no_batch() -> None:
    whole, batched = (train(DATA, steps=20, lr=0.01, normalize=False, batch=b, compile=False) for b in (None, 3))
    assert torch.equal(whole.W, batched.W)
    judged, same = verdict(whole), verdict(batched)
    assert judged.prediction == same.prediction
    for name, conditions in judged.conditions.items():
        for part, holds in conditions.items():
            assert torch.equal(same.conditions[name][part], holds)


def test_growing_steps_of_sign_like_rules_are_named() -> None:
    def caution(rule: Rule | str) -> str:
        return predicted_limit(train(DATA, rule=rule, lr=Growing(), steps=2, compile=False), torch.ones(3)).caution

    for rule in ("sign", "lion", "adam"):
        assert "oscillate" in caution(rule)
    for rule in ("muon", Steepest(momentum=0.9)):
        assert "momentum" in caution(rule)
    assert not caution("gd")
    assert not caution(Adam(eps=1e-8))


def test_adam_whose_first_moment_outlives_the_second_is_named() -> None:
    """A gradient that stops leaves M/√V = (β1/√β2)^k, which grows with β1 > √β2."""

    def why(beta1: float) -> str:
        run = train(DATA, rule=Adam(beta1=beta1, beta2=0.64), steps=2, compile=False)
        return predicted_limit(run, torch.ones(3)).why

    assert why(0.7) == "the proofs need β1 ≤ β2"
    assert "without bound" in why(0.9)
    assert "β1 ≤ β2" not in why(0.5)


def test_no_theorem_on_plain_steps_applies_to_a_run_that_changed_its_settings() -> None:
    options = {"normalize": False, "compile": False}
    lr = 0.5 / lipschitz_constant(DATA).max().item()
    plain = train(DATA, steps=10, lr=lr, resume=train(DATA, steps=5, lr=lr, **options), **options)
    mixed = train(DATA, steps=10, lr=lr, resume=train(DATA, steps=5, lr=50.0, **options), **options)
    theorem = "TF-as-SVM Theorem 3 (norm diverges)"
    holds, fails = verdict(plain), verdict(mixed)
    assert holds.conditions[theorem]["plain steps of one size"].all()
    assert holds.conditions[theorem]["η ≤ 1/L_W"].all()
    assert not fails.conditions[theorem]["plain steps of one size"].any()
    assert not fails.conditions[theorem]["η ≤ 1/L_W"].any()
    assert not holds.prediction.caution
    assert "the run changed its step size" in str(fails.prediction)


@pytest.mark.parametrize(
    ("options", "applies"),
    [
        ({"geometry": "l3"}, True),
        ({"geometry": "nuclear"}, False),
        ({"geometry": "schatten3"}, False),
        ({"rule": "sign"}, False),
        ({"geometry": "l3", "loss": "exponential"}, False),
    ],
)
def test_the_joint_theorem_is_about_lp_norms_and_the_logistic_loss(options: dict, applies: bool) -> None:
    v = verdict(train(sphere(3, 4, 6, trials=2, seed=0), parameterization="joint", steps=50, **options), samples=8)
    listed = v.theorems.get("mirror-descent Theorem 5 (joint regularization path)", torch.zeros(2, dtype=torch.bool))
    assert bool(listed.all()) == applies
    assert ("; proved for the regularization path" in v.prediction.why) == applies
    assert ("the proof for regularization paths needs" in v.prediction.why) != applies


def test_the_theorem_on_factors_is_about_one_head_and_a_loss_for_every_query() -> None:
    data = sphere(3, 4, 6, trials=2, seed=0)
    wide = several_heads(data, sphere(2, 4, 6, seed=1).X[0, :, 0])
    name = "TF-as-SVM Theorem 2 (regularization path)"
    assert verdict(train(data, parameterization="KQ", steps=50)).theorems[name].all()
    assert name not in verdict(train(wide, parameterization="KQ", heads=2, steps=50)).theorems
    v = verdict(train(wide, parameterization="KQ", loss=Added(), steps=50))
    assert "needs Assumption A and a loss for every query" in v.prediction.why


def test_a_ridge_is_euclidean_whatever_the_norm_of_the_steps() -> None:
    """Where it holds W, the direction is near the ℓ2 solution, and far from that of the steps."""
    data = sphere(4, 5, 6, trials=3, seed=0)
    run = train(data, "l1.5", steps=2000, lr=0.01, ridge=1e-15, compile=False)
    off = {name: misalignment(run.W, solve(att_svm(data, run.tokens), name).W) for name in ("l2", "l1.5")}
    assert (off["l2"] < off["l1.5"] / 3).all()
    assert "turns to the l2 solution" in verdict(run).prediction.why
    assert (
        "turns to the nuclear solution"
        in verdict(train(data, parameterization="KQ", steps=9, ridge=1e-9)).prediction.why
    )
