"""Rules beside mirror descent: their steps in many digits, against torch.optim, and the margins that they reach."""

import math

import mp_reference as reference
import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm import AttsvmError, TokenData, att_svm, solve, sphere, train, verdict
from attsvm.diagnostics import margin_ratio
from attsvm.dynamics import (
    RULES,
    Adam,
    Gaussian,
    Growing,
    Lion,
    MirrorDescent,
    Muon,
    RMSprop,
    Rule,
    Steepest,
    Trajectory,
)
from attsvm.dynamics._optimizers import unit_step
from attsvm.geometry import Group, Lp, Nuclear, Schatten, Spectral

STEPS = 5
EVERY: dict[str, Rule] = {
    "gd": Steepest(),
    "gd-plain": Steepest(normalize=False),
    "heavy-ball": Steepest(momentum=0.9),
    "nesterov": Steepest(momentum=0.9, nesterov=True),
    "l3": Steepest(Lp(3)),
    "sign": Steepest(Lp(math.inf)),
    "sign-momentum": Steepest(Lp(math.inf), momentum=0.5),
    "l1": Steepest(Lp(1)),
    "adam": Adam(),
    "adam-fast": Adam(0.9, 0.95),
    "adam-eps": Adam(eps=1e-8),
    "adamw": Adam(decay=0.1),
    "rmsprop": RMSprop(),
    "lion": Lion(),
}
"""All whose step is a formula of entries; the others need a polar factor."""


class Reference:
    """The rules in 60 digits, by their textbook formulas on the true gradient."""

    def __init__(self, rule: Rule, W: np.ndarray) -> None:
        self.rule, self.W, self.count = rule, W, 0
        self.M = self.V = reference.exact(np.zeros(W.shape))

    def unit(self, G: np.ndarray) -> np.ndarray:
        p = self.rule.geometry.p  # type: ignore[attr-defined]
        sign = np.vectorize(mp.sign, otypes=[object])
        if p == math.inf:
            return sign(G)
        if p == 1:
            top = max(abs(x) for x in G.flat)
            return np.vectorize(lambda x: mp.sign(x) if abs(x) == top else mp.mpf(0), otypes=[object])(G)
        q = mp.mpf(p) / (p - 1)
        size = mp.fsum(abs(x) ** q for x in G.flat) ** (1 / q)
        return np.vectorize(lambda x: mp.sign(x) * (abs(x) / size) ** (q - 1), otypes=[object])(G)

    def step(self, G: np.ndarray, eta: float) -> None:
        rule, eta = self.rule, mp.mpf(eta)
        self.count += 1
        root = np.vectorize(mp.sqrt, otypes=[object])
        if isinstance(rule, Steepest):
            seen = G
            if rule.momentum:
                self.M = mp.mpf(rule.momentum) * self.M + G
                seen = mp.mpf(rule.momentum) * self.M + G if rule.nesterov else self.M
            direction = self.unit(seen)
            if not rule.normalize:
                direction = direction * reference.norm(seen)
        elif isinstance(rule, Adam):
            b1, b2, one = mp.mpf(rule.beta1), mp.mpf(rule.beta2), mp.mpf(1)
            self.M, self.V = b1 * self.M + (1 - b1) * G, b2 * self.V + (1 - b2) * G * G
            c1, c2 = (1 - b1**self.count, 1 - b2**self.count) if rule.corrected else (one, one)
            direction = (self.M / c1) / (root(self.V / c2) + mp.mpf(rule.eps))
        else:
            assert isinstance(rule, Lion)
            b1, b2 = mp.mpf(rule.beta1), mp.mpf(rule.beta2)
            direction = np.vectorize(mp.sign, otypes=[object])(b1 * self.M + (1 - b1) * G)
            self.M = b2 * self.M + (1 - b2) * G
        self.W = (1 - eta * mp.mpf(getattr(rule, "decay", 0))) * self.W - eta * direction


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("name", EVERY)
def test_steps_are_exact_in_the_tail(name: str, size: float) -> None:
    """Five steps from ‖W‖ = size, where at 1e4 the softmax has long saturated, against 60 digits."""
    data = sphere(3, 4, 4, seed=7)
    rule, eta = EVERY[name], 0.1 * size
    start = size * solve(att_svm(data)).geometry.unit(
        solve(att_svm(data)).W + 0.3 * Gaussian(1.0).draw(data.trials, {"W": (4, 4)})["W"]
    )
    with mp.workdps(60):
        exact = Reference(rule, reference.exact(start[0].numpy()))
        run = train(data, rule=rule, steps=STEPS, lr=eta, init={"W": start}, record=["W"], at=1, compile=False)
        for k in range(STEPS):
            exact.step(reference.gradients(data, "logistic", exact.W)[0], eta)
            off = reference.exact(run.records["W"][k + 1, 0].numpy()) - exact.W
            moved = reference.norm(exact.W - reference.exact(start[0].numpy()))
            # The logits carry a relative error of eps·‖W‖ into the gradient; and an entry whose sign that decides
            # would be off by the whole step, but none is that small here.
            assert reference.norm(off) <= 1e-10 * max(moved, mp.mpf(size) * 1e-3) + 1e-13 * size


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (Adam(0.9, 0.99, 1e-8), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.99), eps=1e-8)),
        (Adam(0.8, 0.9, 1e-6, decay=0.1), lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.9), 1e-6, 0.1)),
        (RMSprop(beta2=0.95, eps=1e-8), lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.95, eps=1e-8)),
        (Steepest(normalize=False, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        (
            Steepest(normalize=False, momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        ),
    ],
    ids=["adam", "adamw", "rmsprop", "momentum", "nesterov"],
)
def test_rules_are_those_of_torch(rule: Rule, make) -> None:
    data = sphere(3, 4, 5, trials=1, seed=1)
    W = (0.3 * torch.randn(1, 5, 5, dtype=torch.float64)).requires_grad_()
    run = train(data, rule=rule, steps=20, lr=0.05, init={"W": W.detach().clone()}, compile=False)
    optimizer = make([W])
    for _ in range(20):
        optimizer.zero_grad()
        s = torch.softmax(torch.einsum("bntd,bde,bnke->bnkt", data.X, W, data.Z), -1)
        out = data.Y * torch.einsum("bnkt,bntd,bhd->bnk", s, data.X, data.head.v)
        torch.nn.functional.softplus(-out).sum(2).mean(1).sum().backward()
        optimizer.step()
    torch.testing.assert_close(run.W, W.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [0.1, 10.0])
@pytest.mark.parametrize(
    "rule", [Steepest(Spectral()), Muon(), Muon(nesterov=False)], ids=["spectral", "muon", "plain"]
)
def test_polar_steps_against_many_digits(rule: Rule, size: float) -> None:
    """Five steps against the singular value decomposition in 60 digits; four queries give gradients of full rank.

    Singular values below 1e-14 of the largest cannot be seen in a gradient of float64, and count as 0. So where samples
    differ by more, far in the tail, polar rules follow the largest of them only.
    """
    data = sphere(4, 4, 4, seed=7)
    eta = 0.1 * size
    start = size * Gaussian(0.3).draw(data.trials, {"W": (4, 4)})["W"]
    run = train(data, rule=rule, steps=STEPS, lr=eta, init={"W": start}, record=["W"], at=1, compile=False)
    with mp.workdps(60):
        W = reference.exact(start[0].numpy())
        M = reference.exact(np.zeros((4, 4)))
        for k in range(STEPS):
            G = reference.gradients(data, "logistic", W)[0]
            seen = G
            if isinstance(rule, Muon):
                beta = mp.mpf(rule.momentum)
                M = beta * M + G
                seen = beta * M + G if rule.nesterov else M
            U, s, Vh = mp.svd_r(mp.matrix(seen.tolist()))
            assert s[3] > mp.mpf("1e-11") * s[0]
            W = W - mp.mpf(eta) * np.array((U * Vh).tolist(), dtype=object)
            off = reference.exact(run.records["W"][k + 1, 0].numpy()) - W
            # A polar factor is as uncertain as the ratio of the singular values makes it.
            assert reference.norm(off) <= eta * (k + 1) * (1e-10 + 1e-14 * s[0] / s[3])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("groups", ["rows", "columns"])
def test_steps_in_their_own_layout_are_dual_units(groups: str, largest: bool) -> None:
    geometry = Group(groups, largest)
    G = Gaussian(1.0).draw(torch.arange(7), {"G": (4, 5)})["G"]
    G[1], G[2, 1], G[3, :, 2], G[4] = 0.0, 0.0, 1e-200, 1.0
    for norm in (geometry, Lp(1.5), Lp(2), Lp(3), Lp(20)):
        torch.testing.assert_close(unit_step(norm, G.movedim(0, -1)).movedim(-1, 0), norm.dual_unit(G))


def test_muon_and_spectral_steps_are_polar_factors() -> None:
    data = sphere(3, 4, 5, trials=6, seed=1)
    for rule in (Muon(), Steepest(Spectral()), Muon(nesterov=False)):
        run = train(data, rule=rule, steps=4, lr=0.1, init=Gaussian(0.1), record=["W"], at=1, compile=False)
        steps = run.records["W"].diff(dim=0) / -0.1
        eye = torch.eye(5, dtype=torch.float64).expand(*steps.shape[:2], 5, 5)
        if rule == Steepest(Spectral()):  # three queries: the gradient has rank three, and so has the step
            sigma = torch.linalg.svdvals(steps)
            torch.testing.assert_close(sigma[..., :3], torch.ones_like(sigma[..., :3]), rtol=0, atol=1e-10)
            assert sigma[..., 3:].abs().max() < 1e-8
        else:
            assert ((steps @ steps.mT) - eye).abs().max() < 1.0 + 1e-9
    near = train(data, rule=Muon(newton_schulz=5), steps=1, lr=1.0, init={"W": torch.zeros(5, 5)}, compile=False).W
    sigma = torch.linalg.svdvals(near)[:, :3]
    assert (sigma > 0.3).all()
    assert (sigma < 1.3).all()


@pytest.mark.parametrize(
    ("rule", "lr", "steps", "least"),
    [
        (Steepest(), Growing(), 2000, 0.99),
        (Steepest(Lp(math.inf)), 0.02, 4000, 0.97),
        (Steepest(Spectral()), Growing(0.1, 1.0), 1500, 0.97),
        (RMSprop(), 0.02, 4000, 0.95),
        (Steepest(Schatten(3)), Growing(), 1500, 0.95),
        (Steepest(Group("rows", largest=True)), 0.05, 3000, 0.9),
    ],
    ids=["gd", "sign", "spectral", "rmsprop", "schatten3", "rows"],
)
def test_steepest_descent_reaches_the_margin_of_its_norm(rule: Rule, lr, steps: int, least: float) -> None:
    """Measured, not proved, for attention; the horizon is short."""
    data = sphere(4, 5, 6, trials=8, seed=2)
    run = train(data, rule=rule, lr=lr, steps=steps, record=["norm"], compile=False)
    solution = solve(att_svm(data, run.tokens), run.geometry)
    ratio = margin_ratio(data, run.tokens, run.W, run.geometry, solution)
    assert ratio.median() >= least
    assert ratio.max() <= 1 + 1e-7
    judged = verdict(run, tol=0.1)
    if run.geometry != Lp(2) and run.geometry != Schatten(3):
        assert judged.error_name == "1 - margin ratio"
        torch.testing.assert_close(judged.error, 1 - ratio, rtol=1e-3, atol=1e-6)
    assert not any(holds.any() for name, holds in judged.theorems.items() if "Theorem 7" in name)


def test_resumed_rules_have_the_same_bits_and_files_keep_their_moments(tmp_path) -> None:
    data = sphere(3, 4, 5, trials=5, seed=1)
    for rule in (*EVERY.values(), Muon(), Muon(newton_schulz=5), Steepest(Nuclear()), Steepest(Schatten(3))):
        whole = train(data, rule=rule, steps=30, lr=0.05, record=["norm"], compile=False)
        half = train(data, rule=rule, steps=17, lr=0.05, record=["norm"], compile=False)
        half.save(tmp_path / "half.npz")
        loaded = Trajectory.load(tmp_path / "half.npz")
        assert loaded.rule == rule
        rest = train(data, rule=rule, steps=30, lr=0.05, record=["norm"], resume=loaded, compile=False)
        assert torch.equal(rest.W, whole.W)


def test_rules_take_names_of_norms() -> None:
    assert Steepest("l3") == Steepest(Lp(3))  # pyright: ignore[reportArgumentType]
    assert MirrorDescent(1.5) == MirrorDescent(Lp(1.5))  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttsvmError, match="geometry"):
        Steepest("square")  # pyright: ignore[reportArgumentType]


def test_rules_by_name_and_what_they_are_predicted_to_reach() -> None:
    data = sphere(2, 3, 4, trials=2, seed=0)
    limits = {name: train(data, rule=name, steps=2).geometry.name for name in RULES}
    assert limits == {
        "gd": "l2",
        "sign": "linf",
        "spectral": "spectral",
        "adam": "linf",
        "rmsprop": "linf",
        "lion": "linf",
        "muon": "spectral",
    }
    assert train(data, rule=Adam(eps=1e-8), steps=2).geometry == Lp(2)  # nothing is predicted
    assert train(data, rule="adam", parameterization="KQ", steps=2).geometry == Nuclear()
    assert train(data, "l3", rule="adam", steps=2).geometry == Lp(3)
    assert train(data, "l3", steps=2).rule == MirrorDescent(Lp(3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Adam(beta1=1.0), "beta1"),
        (lambda: Adam(beta2=-0.1), "beta2"),
        (lambda: Adam(eps=-1.0), "eps"),
        (lambda: Steepest(momentum=1.5), "momentum"),
        (lambda: Steepest(nesterov=True), "nesterov"),
        (lambda: Steepest(decay=-1.0), "decay"),
        (lambda: Muon(newton_schulz=-1), "newton_schulz"),
    ],
)
def test_wrong_settings_are_refused(make, words: str) -> None:
    with pytest.raises(AttsvmError, match=words):
        make()


def test_weight_decay_bounds_the_norm() -> None:
    """Decoupled decay λ keeps the dual-norm-1 steps of sign descent within ‖W‖_∞ ≤ 1/λ."""
    data: TokenData = sphere(4, 5, 6, trials=4, seed=2)
    run = train(data, rule=Steepest(Lp(math.inf), decay=0.5), lr=0.05, steps=600, compile=False)
    assert run.records["norm"].max() <= 2 + 1e-9
    assert run.records["norm"][-1].min() > 1.5
