"""The signatures on numbers made by hand, and what a verdict says of runs without a direction."""

import math

import pytest
import torch
from diagnostics_naive import masked_data, queries, score, visible, with_head
from torch import Tensor

from attsvm import TokenData, att_svm, solve, sphere
from attsvm.diagnostics import Signature, margin_ratio, selected_sets, verdict
from attsvm.diagnostics import _combinatorial as combinatorial
from attsvm.diagnostics._constants import loss_barrier
from attsvm.diagnostics._signatures import ADVICE, diagnose, loss_rises, norm_stands_still, oscillates
from attsvm.dynamics import Gaussian, Trajectory, train

STEPS = [0, 100, 200]


def made(steps: list[int], **records: list[list[float]]) -> Trajectory:
    """A run whose records are given, (R, B) each."""
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in records.items()}
    trials = next(iter(tensors.values())).shape[1]
    W = torch.ones(len(steps), trials, 4, 4, dtype=torch.float64)
    return Trajectory.of(sphere(2, 3, 4, trials=trials), W, steps=steps, records=tensors)


def test_signatures_have_numbers_in_their_order_and_the_first_one_counts() -> None:
    assert [signature.value for signature in Signature] == list(range(9))
    assert set(ADVICE) == set(Signature)
    applies = torch.tensor([[True, True, False], [False, True, False]])
    found = diagnose({Signature.OSCILLATING: applies[0], Signature.REACHED: applies[1]})
    assert [Signature(s) for s in found.tolist()] == [Signature.OSCILLATING, Signature.REACHED, Signature.TOO_EARLY]


def test_a_norm_stands_still_by_its_law_and_by_its_size() -> None:
    """From step 100 to 200 it should grow by ‖W_mm‖ log 2; below a tenth of that and 1% of itself it stands."""
    norm_mm = torch.tensor([10.0, 10.0, 10.0, 0.1, 10.0, math.nan, math.inf])
    expected = 0.1 * 10 * math.log(2)  # 0.69, of most
    late = [100 + 0.9 * expected, 100 + 1.1 * expected, 10 + 0.9 * expected, 100.0 + 0.5, 99.0, 100.01, 100.01]
    run = made(STEPS, norm=[[1.0] * 7, [100.0, 100.0, 10.0, 100.0, 100.0, 100.0, 100.0], late])
    assert norm_stands_still(run, norm_mm).tolist() == [True, False, False, False, True, False, False]
    # The last record that is not later than the half counts, and the steps since then.
    run = made([0, 10, 200], norm=[[100.0], [100.0], [100.0 + 0.1 * 10 * math.log(20) - 0.01]])
    assert not norm_stands_still(run, norm_mm[:1]).item()  # more than 1% of itself
    assert norm_stands_still(run, 100 * norm_mm[:1]).tolist() == [False]
    run = made([0, 10, 200], norm=[[1e4], [1e4], [1e4 + 0.1 * 10 * math.log(20) - 0.01]])
    assert norm_stands_still(run, norm_mm[:1]).item()
    run = made([0, 10, 200], norm=[[1e4], [1e4], [1e4 + 0.1 * 10 * math.log(20) + 0.01]])
    assert not norm_stands_still(run, norm_mm[:1]).item()
    for short in ([0], [1], [0, 1]):
        assert not norm_stands_still(made(short, norm=[[1.0]] * len(short)), norm_mm[:1]).any()
    assert norm_stands_still(made([1, 2], norm=[[1.0], [1.0]]), norm_mm[:1]).all()
    assert not norm_stands_still(made([150, 200], norm=[[1.0], [1.0]]), norm_mm[:1]).any()  # no record of the half


def test_a_loss_rises_in_the_late_half_beyond_rounding() -> None:
    rows = {0: [1.0, 1.0, 1.0, -1.0], 9: [2.0, 1.0, 1.0, -1.0], 10: [2.0, 1.0, 1.0, -1.0], 100: [1.0, 1.1, 1.0, -0.9]}
    assert loss_rises(made(list(rows), loss=list(rows.values()))).tolist() == [False, True, False, True]
    tiny = made([0, 10, 100], loss=[[2.0, 2.0]] * 2 + [[2.0 * (1 + 5e-10), 2.0 * (1 + 2e-9)]])
    assert loss_rises(tiny).tolist() == [False, True]
    assert not loss_rises(Trajectory.of(sphere(2, 3, 4), torch.ones(1, 4, 4))).any()


def up_and_down(*factors: float) -> Tensor:
    return torch.tensor([1.0, *factors]).cumprod(0)[:, None].double()


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1.3, 0.5, 1.3, 0.5), True),  # rises by 1.69 in all, three turns
        ((1.2, 0.5, 1.2, 0.5), False),  # rises by 1.44
        ((1.3, 1.3, 0.5, 0.5), False),  # one turn
        ((3.0, 0.5, 1.0, 0.5), False),
        ((0.5, 3.0, 0.5, 3.0), True),
    ],
)
def test_oscillations_rise_and_turn(factors: tuple[float, ...], expected: bool) -> None:
    steps = torch.tensor([10, 20, 40, 80, 100])
    assert oscillates(steps, up_and_down(*factors)).item() is expected
    early = torch.tensor([1, 2, 3, 4, 100])
    assert not oscillates(early, up_and_down(*factors)).item()


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_the_barrier_by_loops(kind: str) -> None:
    data = with_head(masked_data(4, seed=3), kind)
    for b in range(data.B):
        costs = []
        for _, i, k in queries(data[b]):
            scores = sorted((score(data, b, i, k, t) for t in visible(data, b, i, k)), reverse=True)
            if len(scores) > 1:
                gap, spread = scores[0] - scores[1], scores[0] - scores[-1]
                attended = scores[0] - min(0.5, gap / spread) * gap
                costs.append(math.log1p(math.exp(-attended)) - math.log1p(math.exp(-scores[0])))
        assert loss_barrier(data)[b].item() == pytest.approx(min(costs) / data.n, rel=1e-9)


def test_the_number_of_choices_decides_whether_all_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sphere(2, 3, 4, trials=2, seed=1)
    monkeypatch.setattr(combinatorial, "CHOICES", 9)  # 3² of them
    assert combinatorial.assumption_d(data).samples is None
    monkeypatch.setattr(combinatorial, "CHOICES", 8)
    assert combinatorial.assumption_d(data, samples=5).samples == 5


def test_thresholds_may_be_0() -> None:
    weights = torch.tensor([0.7, 0.3, 0.0, 0.0], dtype=torch.float64).reshape(1, 1, 1, 4)
    sets = selected_sets(weights, selected=0.0, masked=0.0)
    assert sets.selected.flatten().tolist() == [True, True, False, False]
    assert sets.undecided.flatten().tolist() == [False, False, True, True]


@pytest.fixture(scope="module")
def joint() -> Trajectory:
    return train(sphere(2, 3, 4, trials=3, seed=1), "l2", "joint", steps=20, init=Gaussian(0.1))


def test_the_joint_theorem_is_checked_where_samples_are_asked_for(joint: Trajectory) -> None:
    with_samples, without = verdict(joint, samples=4).theorems, verdict(joint, samples=0).theorems
    assert set(without) < set(with_samples)
    assert any("joint" in name for name in set(with_samples) - set(without))


def test_a_verdict_as_a_table(joint: Trajectory) -> None:
    pytest.importorskip("pyarrow")
    judged = verdict(joint)
    table = judged.to_dataframe()
    columns = {name: [getattr(x, "as_py", lambda x=x: x)() for x in table[name]] for name in ("trial", "norm")}
    assert columns["trial"] == [0, 1, 2]
    assert columns["norm"] == pytest.approx(judged.norm.tolist())
    assert len(verdict(joint[[]]).to_dataframe()) == 0


def test_where_the_limit_is_no_direction_the_margin_is_measured() -> None:
    data = sphere(2, 3, 6, trials=4, seed=1)
    tokens = data.optimal_tokens()
    solution = solve(att_svm(data, tokens), "linf", tol=1e-12)
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(solution.W.shape, generator=generator, dtype=torch.float64)
    W = 100 * (solution.W / solution.norm[:, None, None] + noise)
    judged = verdict(Trajectory.of(data, W, "linf"))
    ratio = margin_ratio(data, judged.tokens, W, judged.geometry, solve(att_svm(data, judged.tokens), "linf"))
    torch.testing.assert_close(judged.error, 1 - ratio, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(judged.errors[-1], judged.error)
    assert verdict(Trajectory.of(data, 100 * solution.W, "linf")).reached.all()


def test_data_without_a_second_token_have_no_margin() -> None:
    data = TokenData.cls([[[1.0, 2.0]]], head=[1.0, 0.0])
    W = torch.ones(1, 2, 1, dtype=torch.float64)
    solution = solve(att_svm(data), "l2")
    assert margin_ratio(data, data.optimal_tokens(), W, solution.geometry, solution).tolist() == [1.0]


def test_a_verdict_in_words_and_as_a_picture(joint: Trajectory) -> None:
    judged = verdict(joint, tol=1e-3)
    assert judged.head is not None
    rows = dict(judged.table())
    assert rows["reached"].startswith(f"{int(judged.reached.sum())} of 3 (")
    assert rows["v: median direction error"] == f"{judged.head.error.median().item():.3g}"
    assert Signature.REACHED.label not in set(rows) - {"reached"}
    found = {Signature(s) for s in judged.signature.tolist()} - {Signature.REACHED}
    assert found
    for signature in found:
        number = int((judged.signature == signature).sum())
        assert rows[signature.label] == f"{number} of 3: {ADVICE[signature]}"
    assert "v: median direction error" not in dict(verdict(made([0, 1, 2], norm=[[1.0]] * 3)).table())
    ax = judged.plot(pytest.importorskip("matplotlib.figure").Figure().subplots())
    curve, tolerance = ax.get_lines()
    assert curve.get_ydata().tolist() == pytest.approx(judged.errors.quantile(0.5, 1).tolist())
    assert set(tolerance.get_ydata()) == {1e-3}
    unknown = dict(verdict(Trajectory.of(sphere(2, 3, 4), torch.full((1, 4, 4), math.nan))).table())
    assert unknown["median direction error"] == "–"
