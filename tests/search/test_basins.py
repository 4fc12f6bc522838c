"""The basins of small problems, and starts inside a cone."""

from __future__ import annotations

import pytest
import torch

import attsvm
from attsvm import AttsvmError, TokenData, att_svm, solve, sphere, train
from attsvm.diagnostics import constants, directional_bregman, in_C, is_locally_optimal, radius
from attsvm.search import basins, cone_start, counterexample


def test_basins_of_the_counter_example() -> None:
    """(optimal, wrong) is locally optimal, and small starts end there."""
    atlas = basins(counterexample(4), scales=(0.0, 1e-3), starts=20, steps=300)
    assert len(atlas) == 1
    assert atlas.share.sum(-1).allclose(torch.ones(2, 1).double())
    rows = {tuple(t[0] for t in row["tokens"]): row for row in atlas.table()}
    assert set(rows) == {(0, 0), (0, 1)}
    assert rows[0, 0]["globally optimal"]
    assert rows[0, 0]["margin"] == pytest.approx(10**-0.5)
    assert rows[0, 1]["margin"] == pytest.approx(1.0)
    assert atlas.table()[0]["tokens"] == [[0], [1]]
    assert rows[0, 1]["share"][0.0] == 1
    assert (atlas.elsewhere < 1e-9).all()
    assert "2 to 2 locally optimal choices of 4" in repr(atlas)


def test_basins_against_one_choice_at_a_time() -> None:
    data = sphere(2, 3, 4, trials=3, seed=1, min_score_gap=0.1)
    atlas = basins(data, "l3", scales=(0.1,), starts=10, steps=200)
    assert atlas.choices.shape == (9, 2, 1)
    for c, tokens in enumerate(atlas.choices):
        solution = solve(att_svm(data, tokens), "l3", tol=1e-10)
        assert atlas.locally_optimal[:, c].equal(is_locally_optimal(data, tokens, solution))
        assert atlas.feasible[:, c].equal(solution.solved)
    assert (atlas.globally_optimal.sum(1) == 1).all()
    assert (atlas.share * atlas.globally_optimal).sum() > 0
    assert atlas.elsewhere.mean() < 0.2


def test_masked_tokens_are_no_choice() -> None:
    data = sphere(1, 3, 3, seed=0, causal=True)
    atlas = basins(data, scales=(0.1,), starts=5, steps=50)
    assert atlas.feasible.sum() <= 1 * 2 * 3
    assert atlas.share.sum().item() == pytest.approx(1)


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(AttsvmError, match="at most 4096"):
        basins(sphere(6, 8, 4))


@pytest.mark.parametrize("geometry", ["l1.5", "l2", "l3"])
def test_a_cone_start_is_in_the_cone_and_stays(geometry: str) -> None:
    data = sphere(2, 2, 6, trials=5, seed=0, min_score_gap=0.1)
    tokens = data.optimal_tokens()
    solution = solve(att_svm(data, tokens), geometry, tol=1e-12)
    c = constants(data, tokens, solution)
    R = radius(data, c, solution)
    norm = attsvm.parse_geometry(geometry)
    for lean in (0.0, 0.5, 1.0):
        start = cone_start(data, geometry=geometry, lean=lean)
        assert in_C(start["W"], solution.W, c.mu0 / 3, R, norm).all()
        share = 3 * directional_bregman(solution.W, start["W"], norm) / c.mu0
        assert (share <= lean * (1 + 1e-3) + 1e-6).all()
        assert (share >= 0.9 * lean - 1e-6).all()
    # Lemma 17: from the thin cone every step stays in the wide one, and the direction comes closer.
    run = train(data, geometry, steps=300, lr=attsvm.Growing(0, 1e-3), init=start, record=("W",), compile=False)
    for W in run.records["W"]:
        assert in_C(W, solution.W, c.mu0, R, norm).all()
    assert (directional_bregman(solution.W, run.W, norm) < directional_bregman(solution.W, start["W"], norm)).all()


def test_a_cone_needs_locally_optimal_tokens() -> None:
    data = sphere(2, 3, 6, seed=0)
    with pytest.raises(AttsvmError, match="locally optimal"):
        cone_start(data, data.scores().argmin(-1))
    with pytest.raises(AttsvmError, match="lean"):
        cone_start(data, lean=2)
    with pytest.raises(AttsvmError, match="scales must have a value"):
        basins(data, scales=[])
    with pytest.raises(AttsvmError, match="lr must be finite and at least 0, but got -1"):
        cone_start(data, lr=-1)
    with pytest.raises(AttsvmError, match="ℓp norm"):
        cone_start(data, geometry="nuclear")
    bent = TokenData.cross(data.X, data.Z, head=lambda x: x[..., 0] ** 3)
    with pytest.raises(AttsvmError, match="head must be linear"):
        cone_start(bent)


def test_the_atlas_shows_every_problem() -> None:

    atlas = basins(sphere(2, 3, 3, trials=3, seed=0), scales=(0.1, 1.0), starts=8, steps=50)
    figure = atlas.plot()
    assert [ax.get_title()[:9] for ax in figure.axes] == ["problem 0", "problem 1", "problem 2"]
    for ax in figure.axes:
        tops = {round(bar.get_y() + bar.get_height(), 6) for bar in ax.patches}  # type: ignore[attr-defined]
        assert 100 in tops
    best = next(row["tokens"] for row in atlas.table(0) if row["globally optimal"])
    name = " ".join(str(t) for query in best for t in query)  # numbered as in Python
    assert figure.axes[0].get_legend_handles_labels()[1][0].startswith(f"{name}, margin ")
