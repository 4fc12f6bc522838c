"""The verdict on real runs, on made-up runs for each signature, and its invariances."""

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from diagnostics_naive import random_W, with_head
from torch import Tensor

from attsvm import AttsvmError, Lp, Mahalanobis, Nuclear, Status, TokenData, att_svm, head_svm, solve, sphere
from attsvm.diagnostics import (
    Evidence,
    Signature,
    Verdict,
    constants,
    correlation,
    directional_bregman,
    is_locally_optimal,
    lipschitz_constant,
    margin_ratio,
    predictions,
    verdict,
)
from attsvm.dynamics import Gaussian, MirrorDescent, Trajectory, train

STEPS = torch.tensor([0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000])


def straight(
    data: TokenData, noise: torch.Tensor, tokens: torch.Tensor | None = None, geometry: str = "l2"
) -> Trajectory:
    """W = 0.1 k (W̄_mm + noise_k E): on its way to the SVM of the tokens, noise (R,) off its direction."""
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    E = 0.05 * random_W(data, 5)
    unit = solution.geometry.unit(solution.W)
    path = 0.1 * STEPS[:, None, None, None] * (unit + noise[:, None, None, None] * E)
    return Trajectory.of(data, path, solution.geometry, steps=STEPS, lr=0.1)


def decreasing() -> torch.Tensor:
    return 1 / STEPS.double().clamp(min=1)


def signatures(run: Any, **options: Any) -> set[str]:
    return {Signature(s).label for s in verdict(run, **options).signature.tolist()}


@pytest.fixture(scope="module")
def data() -> TokenData:
    return sphere(3, 4, 8, trials=6, seed=3, min_score_gap=0.1)


@pytest.mark.parametrize("geometry", ["l2", "l1.75", "l3"])
def test_a_real_run_by_its_parts(data: TokenData, geometry: str) -> None:
    run = train(data, geometry, steps=3000, record=("loss", "norm", "W"), compile=False)
    v = verdict(run)
    solution = solve(att_svm(data, run.tokens), run.geometry, tol=1e-12)
    torch.testing.assert_close(v.misalignment, 1 - correlation(run.W, solution.W), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(v.bregman, directional_bregman(solution.W, run.W, run.geometry), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(v.margin_ratio, margin_ratio(data, run.tokens, run.W, run.geometry, solution))
    torch.testing.assert_close(v.norm_mm, solution.norm)
    torch.testing.assert_close(v.norm, run.records["norm"][-1])
    assert v.tokens.equal(run.tokens)
    assert v.error.equal(v.bregman)
    assert v.globally_optimal.equal((run.tokens == data.optimal_tokens()).flatten(1).all(1))
    assert v.locally_optimal.equal(is_locally_optimal(data, run.tokens, solution))
    assert v.reached.equal((v.error <= v.tol) & (v.misalignment <= v.tol) & v.locally_optimal)
    assert (v.rate.power < -0.2).all()
    assert v.step_convexity.max() < 1
    assert v.steps == 3000
    if geometry != "l3":
        assert v.reached.all()


def test_a_kq_run_is_judged_by_the_nuclear_norm(data: TokenData) -> None:
    run = train(data, "nuclear", "KQ", steps=500, init=Gaussian(0.1), record=("W",), compile=False)
    v = verdict(run)
    assert v.geometry.name == "nuclear"
    assert v.error.equal(v.misalignment)
    assert v.error_name == "1 - correlation"
    solution = solve(att_svm(data, run.tokens), Nuclear(), tol=1e-12)
    torch.testing.assert_close(v.misalignment, 1 - correlation(run.W, solution.W), atol=1e-7, rtol=1e-5)
    assert set(v.theorems) == {
        "TF-as-SVM Theorem 8 (every SVM feasible)",
        "TF-as-SVM Theorem 2 (regularization path)",
    }
    assert v.step_convexity.isnan().all()
    narrow = train(data, "nuclear", "KQ", steps=5, m=1, compile=False)
    assert not verdict(narrow).theorems["TF-as-SVM Theorem 2 (regularization path)"].any()


def test_a_joint_run_also_judges_v(data: TokenData) -> None:
    run = train(data, "l2", "joint", steps=2000, record=("loss", "norm", "W", "v"), compile=False)
    v = verdict(run, samples=4)
    assert v.head is not None
    assert run.v is not None
    solution = solve(head_svm(data, run.tokens), "l2", tol=1e-12)
    expected = 1 - correlation(run.v[..., None], solution.W)
    torch.testing.assert_close(v.head.misalignment, expected, atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(v.head.norm, run.v.norm(dim=1))
    near = (v.error <= v.tol) & (v.misalignment <= v.tol)
    v_near = (v.head.error <= v.tol) & (v.head.misalignment <= v.tol)
    assert v.reached.equal(near & v_near & v.locally_optimal)
    assert "mirror-descent Theorem 5 (joint regularization path)" in v.theorems
    assert "head" in v.summary()
    assert "v_error" in v.rows()[0]
    with pytest.raises(AttsvmError, match="v must be given"):
        Trajectory.of(run.data, run.W, parameterization="joint")


def test_a_quadratic_head_composes_tokens() -> None:
    data = with_head(sphere(2, 4, 8, trials=8, seed=2), "quadratic", seed=4)
    run = train(data, "l2", steps=2000, compile=False)
    v = verdict(run)
    found = predictions(data, run.W)
    several = (found.sets.selected.sum(-1) > 1).flatten(1).any(1)
    assert several.any()
    assert v.composite.equal(several)
    assert v.decided.equal(found.sets.decided)
    torch.testing.assert_close(v.misalignment, 1 - correlation(run.W, found.W_mm), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(v.svmeq_misalignment, 1 - correlation(run.W, found.W_svmeq), atol=1e-6, rtol=1e-4)
    assert v.error[several].equal(v.svmeq_misalignment[several])
    assert v.error[~several].equal(v.bregman[~several])
    assert v.reached[several].equal(((v.error <= v.tol) & v.decided)[several])
    assert not (v.locally_optimal & v.composite).any()
    assert not (v.signature[v.composite] == Signature.NOT_LOCALLY_OPTIMAL).any()
    assert v.summary()["composing several tokens"] == several.sum()


def test_what_the_solver_leaves_open_is_not_called_infeasible() -> None:
    """Rows (±1, 1e-30): W = (0, 1) separates, but float64 finds no W with a certificate."""
    X = [[[1.0, 1e-30], [0, 0]], [[-1.0, 1e-30], [0, 0]]]
    data = TokenData.cross(X, [[1.0], [1.0]], head=[0.0, 1.0])
    W = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    assert solve(att_svm(data, [0, 0])).open.all()
    assert (data.logits(W).argmax(-1) == 0).all()
    assert signatures(Trajectory.of(data, W)) == {"not solved"}


def test_attention_that_leaves_no_token_out_has_not_reached_a_limit() -> None:
    """After one step all weights are near 1/T. W_fin then reproduces W, whatever W is."""
    v = verdict(train(with_head(sphere(2, 4, 8, trials=3, seed=2), "quadratic", seed=4), steps=1, compile=False))
    assert (v.composite & v.decided).all()
    assert (v.norm_mm == 0).all()
    assert v.error.isnan().all()
    assert not v.reached.any()
    assert (v.signature != Signature.REACHED).all()


def test_reached(data: TokenData) -> None:
    run = straight(data, decreasing())
    v = verdict(run)
    assert v.reached.all()
    assert (v.signature == Signature.REACHED).all()
    assert v.rate.power.tolist() == pytest.approx([-2] * 6, abs=0.05)
    # The same at a tolerance that it does not meet: still on its way.
    assert signatures(run, tol=1e-12) == {"too early"}


def test_norm_not_growing(data: TokenData) -> None:
    run = straight(data, 3 + decreasing())
    run = Trajectory.of(data, 5 * Lp(2).unit(run.records["W"]), steps=STEPS, lr=0.1)
    assert signatures(run) == {"norm not growing"}
    # Logarithmic growth, the slowest that the theorems know, is growth.
    norm = solve(att_svm(data)).norm[None, :, None, None] * STEPS.double().clamp(min=1).log()[:, None, None, None]
    unit = Lp(2).unit(run.records["W"])
    run = Trajectory.of(data, norm * unit, steps=STEPS, lr=0.1)
    assert signatures(run) == {"too early"}
    # A short run from zero grows with every step.
    run = Trajectory.of(data, 1e-4 * STEPS[:, None, None, None] * unit, steps=STEPS, lr=0.1)
    assert signatures(run) == {"too early"}


def test_step_too_large(data: TokenData) -> None:
    run = straight(data, 3 + decreasing())
    falling = (1 / (1 + STEPS.double()))[:, None].expand(-1, 6).clone()
    run.records["loss"] = falling
    assert signatures(run) == {"too early"}
    run.records["loss"] = falling.clone()
    run.records["loss"][-2] += 0.1
    assert signatures(run) == {"step too large"}
    run.records["loss"] = falling.clone()
    run.records["loss"][1] += 10  # the beginning does not count
    assert signatures(run) == {"too early"}
    # Without a recorded loss the step itself tells: along the solution a long one has η D_L/D_ψ near 2.
    run = straight(data, decreasing())
    run.settings["lr"]["W"]["eta"] = 10000.0
    assert signatures(run, tol=1e-12) == {"step too large"}
    assert verdict(run).reached.all()


def test_normalised_steps_below_p_2_are_not_too_large_where_the_potential_is_flat() -> None:
    """A smaller lr would only take longer."""
    data = sphere(6, 8, 10, trials=4, seed=0)
    early, late = (train(data, 1.1, steps=steps, lr=0.03, compile=False) for steps in (300, 2500))
    v = verdict(early)
    assert (v.step_convexity > 1).all()
    assert {Signature(s).label for s in v.signature.tolist()} == {"too early"}
    assert verdict(late).reached.all()


def test_plain_steps_that_raise_the_loss_are_too_large() -> None:
    data = sphere(10, 8, 2, trials=30, seed=0)
    run = train(data, "l2", steps=100, lr=50.0, normalize=False, record=("loss", "norm", "W"), at=1, compile=False)
    v = verdict(run, tol=1e-9)
    rises = (run.records["loss"].diff(dim=0) > 1e-3).sum(0) > 10
    assert rises.any()
    assert (v.signature[rises] == Signature.STEP_TOO_LARGE).all()


def test_one_wild_step_is_remembered() -> None:
    """A step so long that the softmax saturates at once leaves W where it is: the cause is the step, not the norm."""
    data = sphere(6, 8, 10, trials=5)
    run = train(data, "l1.1", steps=50, lr=1e4, normalize=False, record=("norm", "W"), compile=False)
    v = verdict(run)
    assert (v.step_convexity > 1).all()
    assert (v.signature == Signature.STEP_TOO_LARGE).all()


def test_tokens_that_are_not_locally_optimal_are_not_final(data: TokenData) -> None:
    lowest = data.scores().argmin(-1)
    v = verdict(straight(data, decreasing(), lowest))
    assert v.tokens.equal(lowest)
    assert not v.locally_optimal.any()
    assert not v.reached.any()
    assert (v.error < 1e-6).all()
    assert {Signature(s).label for s in v.signature.tolist()} == {"not locally optimal"}


def test_oscillating(data: TokenData) -> None:
    up_and_down = torch.tensor([3.0, 1.5]).double().repeat(6)
    assert signatures(straight(data, up_and_down)) == {"oscillating"}
    assert signatures(straight(data, 3 - STEPS.double() / 2000)) == {"too early"}


def test_infeasible_and_not_finite() -> None:
    X = torch.tensor([[[0.0, 0], [1.0, 0], [-1.0, 0]]]).double()
    data = TokenData.cls(X.expand(3, 1, 3, 2), head=torch.tensor([0.0, 1.0]))
    W = torch.tensor([[[0.0], [1]], [[float("nan")], [1]], [[1.0], [0]]]).double()
    run = Trajectory.of(data, W, steps=[10])
    v = verdict(run)
    assert [Signature(s).label for s in v.signature.tolist()][:2] == ["infeasible", "not finite"]
    assert v.status[:2] == [Status.INFEASIBLE, Status.INFEASIBLE]
    assert v.status[2] == Status.SOLVED
    assert v.error[:2].isnan().all()
    assert not v.finite[1]
    rows = json.loads(v.to_json())["trials"]
    assert rows[0]["error"] is None
    assert rows[0]["svm"] == "infeasible"


def test_a_run_without_records_or_steps_is_judged_by_its_end(data: TokenData) -> None:
    run = train(data, "l2", steps=2000, record=(), compile=False)
    v, full = verdict(run), verdict(train(data, "l2", steps=2000, record=("loss", "norm", "W"), compile=False))
    assert v.reached.equal(full.reached)
    assert v.rate.power.isnan().all()
    start = verdict(train(data, "l2", steps=0, compile=False))
    assert not start.reached.any()
    assert start.margin_ratio.isnan().all()
    json.loads(start.to_json())


def test_a_batch_is_its_trials_and_permutes_with_them(data: TokenData) -> None:
    run = train(data, "l1.75", steps=300, record=("loss", "norm", "W"), compile=False)
    whole = verdict(run)
    order = torch.tensor([4, 0, 5, 2, 1, 3])

    parts = [(order, verdict(run[order]))] + [(torch.tensor([b]), verdict(run[b])) for b in (0, 3)]
    for index, part in parts:
        for name in ("error", "misalignment", "margin_ratio", "norm", "norm_mm", "step_convexity"):
            torch.testing.assert_close(getattr(part, name), getattr(whole, name)[index], rtol=1e-5, atol=1e-8)
        for name in ("signature", "reached", "globally_optimal", "locally_optimal", "tokens", "rank"):
            assert getattr(part, name).equal(getattr(whole, name)[index])
        assert part.status == [whole.status[b] for b in index.tolist()]
        for name, holds in part.theorems.items():
            assert holds.equal(whole.theorems[name][index])


def test_scaling_w_changes_its_norm_only(data: TokenData) -> None:
    run = straight(data, decreasing())
    before = verdict(run)
    after = verdict(Trajectory.of(data, 64 * run.records["W"], run.geometry, steps=run.steps, lr=0.1))
    torch.testing.assert_close(after.norm, 64 * before.norm)
    for name in ("misalignment", "bregman", "margin_ratio"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name))
    assert after.rank.equal(before.rank)


def test_no_trials(data: TokenData) -> None:
    for parameterization, geometry in (("W", "l2"), ("KQ", "nuclear"), ("joint", "l3")):
        v = verdict(train(data[:0], geometry, parameterization, steps=3, compile=False), samples=2)
        assert len(v) == 0
        assert v.rows() == []
        assert json.loads(v.to_json())["summary"]["trials"] == 0
        assert "0 of 0" in repr(v)


def test_single_precision_is_judged_in_double(data: TokenData) -> None:
    v = verdict(train(data.to(dtype=torch.float32), "l2", steps=500, compile=False))
    assert v.error.dtype == torch.float64


def test_norms_of_one_name_are_all_judged(data: TokenData) -> None:
    run = train(data, steps=50, compile=False)
    rows, columns = torch.ones(data.d, data.e), torch.arange(1.0, data.e + 1).expand(data.d, data.e)
    norms = [Mahalanobis(rows), Mahalanobis(columns), "l2", Mahalanobis(rows)]
    v = verdict(run, norms=norms)
    assert list(v.efficiency) == ["l2", "mahalanobis", "mahalanobis #2"]
    problem = att_svm(data, run.tokens)
    for norm, share in zip(norms, list(v.efficiency.values())[1:]):
        known = ~share.isnan()
        torch.testing.assert_close(share[known], solve(problem, norm).efficiency(run.W)[known], rtol=1e-8, atol=1e-8)


def test_no_theorem_on_descent_in_one_norm_applies_to_steps_in_another() -> None:
    @dataclass(frozen=True)
    class Halved(MirrorDescent):
        """A user's rule that forgets."""

        def step(self, state: Any, gradient: Any, eta: Tensor) -> Any:
            return {name: x / 2 for name, x in super().step(state, gradient, eta).items()}

    pairs = sphere(1, 2, 8, trials=4, seed=1)
    lr = 0.5 / lipschitz_constant(pairs).max().item()
    barrier = "loss below the barrier, the proof of Theorem 6 (global direction)"
    names = ("TF-as-SVM Theorem 3 (norm diverges)", "TF-as-SVM Theorem 4 (global direction)", barrier)
    options: dict[str, Any] = {"lr": lr, "steps": 5, "compile": False, "init": {"W": 1e3 * torch.eye(8)}}
    for rule in (MirrorDescent(normalize=False), MirrorDescent(Lp(3), normalize=False), Halved(normalize=False)):
        v = verdict(train(pairs, "l2", rule=rule, **options))
        applies = rule == MirrorDescent(normalize=False)
        assert all(
            bool(v.conditions[name]["mirror descent in the norm of the limit"].all()) == applies for name in names
        )
        assert all(applies or not v.theorems[name].any() for name in names)
        assert (v.prediction.evidence == Evidence.ATTENTION) == applies
    # A limit in a norm without a mirror map is judged by its margin.
    for limit in ("linf", "spectral", "group:rows"):
        v = verdict(train(pairs, limit, rule=MirrorDescent(normalize=False), **options))
        assert v.error_name == "1 - margin ratio"
        assert v.prediction.evidence == Evidence.NONE


def test_summary_and_rows_are_plain(data: TokenData) -> None:
    v = verdict(train(data, "l2", steps=100, record=("loss", "norm", "W"), compile=False), samples=3)
    assert isinstance(v, Verdict)
    text = v.to_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    loaded = json.loads(text)
    assert loaded["summary"] == v.summary()
    assert loaded["trials"] == v.rows()
    assert sum(v.summary()["signatures"].values()) == 6
    assert set(v.summary()["advice"]) == set(v.summary()["signatures"])
    assert "\n" not in repr(v)


def test_conditions_of_the_theorems(data: TokenData) -> None:
    # Two tokens a query: B.2 holds always, and a plain small step on one query meets Theorems 3 and 4.
    pairs = sphere(1, 2, 8, trials=4, seed=1)
    L_W = lipschitz_constant(pairs)
    for lr, small in ((0.9 / L_W.max().item(), True), (1.1 / L_W.min().item(), False)):
        v = verdict(train(pairs, "l2", steps=20, lr=lr, normalize=False, record=("W", "loss"), compile=False))
        for number in ("3 (norm diverges)", "4 (global direction)"):
            assert v.theorems[f"TF-as-SVM Theorem {number}"].tolist() == [small] * 4
        local = v.conditions["mirror-descent Theorems 2 to 4 (local direction and rate)"]
        assert local["plain steps of one size"].all()
        assert local["ψ − ηL convex on recorded steps"].all()
        assert not local["W in the cone C_{p,μ,R}"].any()
    normalised = verdict(train(pairs, "l2", steps=20, compile=False))
    assert not normalised.theorems["TF-as-SVM Theorem 4 (global direction)"].any()
    assert normalised.theorems["TF-as-SVM Theorem 2 (regularization path)"].all()


def test_theorem_6_needs_to_start_at_zero() -> None:
    pairs = sphere(1, 2, 4, trials=4, seed=1)
    lr = 0.5 / max(lipschitz_constant(pairs).max().item(), solve(att_svm(pairs)).norm.max().item())
    name = "TF-as-SVM Theorem 6 (global direction)"
    for record in ((), ("norm",), ("W",)):
        v = verdict(train(pairs, "l2", steps=5, lr=lr, normalize=False, record=record, compile=False))
        assert v.theorems[name].all()
        off = train(
            pairs, "l2", steps=5, lr=lr, normalize=False, init=Gaussian(0.1), record=record, at=[0], compile=False
        )
        assert not verdict(off).theorems[name].any()


def test_a_run_deep_in_the_cone_meets_the_local_theorems(data: TokenData) -> None:
    tokens = data.optimal_tokens()
    solution = solve(att_svm(data, tokens), tol=1e-12)
    assert (constants(data, tokens, solution).mu0 > 0).all()
    run = Trajectory.of(data, 1e12 * solution.W, lr=1e-3, rule=MirrorDescent(normalize=False))
    v = verdict(run)
    assert v.theorems["mirror-descent Theorems 2 to 4 (local direction and rate)"].all()
    assert v.theorems["TF-as-SVM Theorem 7 (local direction)"].all()


def test_bad_input_is_refused(data: TokenData) -> None:
    run = train(data, "l2", steps=1, compile=False)
    with pytest.raises(AttsvmError, match="tol"):
        verdict(run, tol=-1)
    with pytest.raises(AttsvmError, match="parameterization"):
        Trajectory.of(data, run.W, parameterization="QK")
    with pytest.raises(AttsvmError, match="W must have shape"):
        Trajectory.of(data, run.W[:2])
    with pytest.raises(AttsvmError, match="Trajectory"):
        verdict(run.W)  # type: ignore[arg-type]
    headless = TokenData(data.X, data.Z, data.Y, data.mask)
    with pytest.raises(AttsvmError, match="head"):
        verdict(replace(run, data=headless))


@pytest.mark.parametrize("p", [500, 1.01])
def test_a_far_direction_is_not_reached_where_the_divergence_hardly_sees_it(data: TokenData, p: float) -> None:
    """D = 1 − Σ |w|^(p−1) sign(w) w_mm sees only the largest entries for large p, only signs for p near 1."""
    tokens = data.optimal_tokens()
    W_mm = solve(att_svm(data, tokens), Lp(p)).W
    W = solve(att_svm(data, tokens), "l1").W if p > 2 else W_mm.sign() * W_mm.abs() ** 0.3
    far, near = (verdict(Trajectory.of(data, V, p)) for V in (W, W_mm))
    assert (far.error <= far.tol).all()
    assert (far.misalignment > 0.05).all()
    assert far.locally_optimal.any()
    assert not far.reached.any()
    assert near.reached.equal(near.locally_optimal)
    assert dict(near.table())["reached"].endswith("(directional Bregman divergence and 1 - correlation ≤ 0.01)")


def test_the_head_of_a_joint_run_must_be_aligned_as_well(data: TokenData) -> None:
    tokens = data.optimal_tokens()
    W_mm, v_mm = solve(att_svm(data, tokens), "l500").W, solve(head_svm(data, tokens), "l500").W[..., 0]
    v_far = torch.where(v_mm.abs() == v_mm.abs().amax(1, keepdim=True), v_mm, 0.2 * v_mm)
    near, far = (verdict(Trajectory.of(data, W_mm, 500, "joint", v=v)) for v in (v_mm, v_far))
    assert near.reached.any()
    assert far.head is not None
    blind = near.reached & (far.head.error <= far.tol) & (far.head.misalignment > far.tol)
    assert blind.any()
    assert not far.reached[blind].any()


@pytest.mark.parametrize("geometry", ["l2", "l3", "nuclear", "linf"])
def test_every_direction_is_the_limit_where_no_query_has_a_second_token(geometry: str) -> None:
    data = sphere(3, 1, 4, trials=2, seed=0)
    for W in (random_W(data, 1), torch.zeros(2, 4, 4, dtype=torch.float64)):
        v = verdict(Trajectory.of(data, W, geometry))
        assert (v.error == 0).all()
        assert v.reached.all()
