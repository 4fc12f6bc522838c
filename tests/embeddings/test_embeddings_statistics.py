"""Statistics of tokens by their definitions, and the generators by what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import AttsvmError
from attsvm.embeddings import (
    KLevel,
    Sequences,
    assumption_4,
    descend,
    initial_embeddings,
    occurrences,
    posterior_difference,
    signed_frequency,
    single_important,
    token_kinds,
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.sampled_from([1, -1])), min_size=1))
def test_statistics_by_their_definitions(rows: list[tuple[list[int], int]]) -> None:
    data = Sequences.from_lists([tokens for tokens, _ in rows], [y for _, y in rows], 5)
    for s in range(5):
        plus = sum(tokens.count(s) for tokens, y in rows if y == 1)
        minus = sum(tokens.count(s) for tokens, y in rows if y == -1)
        for view in (data, data.merged()):
            kinds = token_kinds(view)
            assert float(signed_frequency(view)[s]) == (plus - minus) / (3 * len(rows))
            assert bool(kinds.positive[s]) == (plus > minus)
            assert bool(kinds.negative[s]) == (plus < minus)
            assert bool(kinds.irrelevant[s]) == (plus == minus > 0)
            assert bool(kinds.completely_positive[s]) == (plus > 0 == minus)
            assert bool(kinds.completely_negative[s]) == (minus > 0 == plus)
            assert float(occurrences(view)[s]) == plus + minus
            if plus + minus:
                assert float(posterior_difference(view)[s]) == (plus - minus) / (plus + minus)


def test_unequal_lengths_weigh_as_the_first_step_does() -> None:
    """With near-orthogonal embeddings the first step moves E_s by η/2 · α_s v, for sequences of any lengths."""
    data = Sequences.from_lists([[0, 1], [2, 1, 1, 3], [0, 3, 2]], [1, -1, 1])
    start = initial_embeddings(4, 1e40, reduced=True)
    moved = descend(data, start, lr=2.0)[0].E - start.E
    torch.testing.assert_close(moved, signed_frequency(data)[:, None] * start.v, atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 5), st.integers(1, 4), st.booleans(), st.integers(0, 999))
def test_single_important_satisfies_assumption_4(
    important: int, each: int, T: int, irrelevant: int, even: bool, trial: int
) -> None:
    n = 2 * important * each
    irrelevant = min(irrelevant, n // 2 * (T - 1))
    data = single_important(n, T, important, irrelevant, trial=trial, even=even)
    found = assumption_4(data)
    assert found.holds
    assert torch.equal(found.important, data.ids.reshape(n, T)[:, 0])
    assert bool((occurrences(data) > 0).all())
    assert int(token_kinds(data).irrelevant.sum()) == irrelevant
    if even:
        assert len(set(signed_frequency(data)[: 2 * important].abs().tolist())) == 1


@pytest.mark.parametrize(
    ("lists", "holds"),
    [
        ([[0, 2], [1, 2]], True),
        ([[0, 0], [1, 1]], False),  # an important token twice
        ([[0, 2], [1, 3]], False),  # two important tokens
        ([[0, 2, 2], [1, 2, 2]], True),
        ([[2], [2]], False),  # none
        ([[0, 2, 2], [1, 2, 3]], False),
    ],
)
def test_assumption_4(lists: list[list[int]], holds: bool) -> None:
    assert assumption_4(Sequences.from_lists(lists, [1, -1], 4)).holds == holds


def test_k_level_model_adds_up() -> None:
    """The corrected sizes give the paper's 2048 tokens; (34) is a distribution with the posterior (35)."""
    model = KLevel()
    assert model.size == 2048
    probabilities = model.probabilities()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2, dtype=torch.float64))
    level = model.level()
    posterior = probabilities[1] / probabilities.sum(0)
    delta = torch.tensor([0.5, *model.levels], dtype=torch.float64)[level.abs()]
    torch.testing.assert_close(posterior, torch.where(level > 0, 1 - delta, delta))


def test_k_level_samples_follow_the_probabilities() -> None:
    model = KLevel(sizes=(2, 3), levels=(0.3, 0.1), irrelevant=4, share=0.4)
    data = model.sample(4000, 50, seed=3)
    for y, expected in zip((-1, 1), model.probabilities()):
        counts = torch.bincount(data.ids[(y == data.Y)[data.row]], minlength=model.size)
        error = (expected * (1 - expected) / 100_000).sqrt()
        assert bool(((counts / 100_000 - expected).abs() <= 5 * error).all())
    assert torch.equal(data.ids, model.sample(4000, 50, seed=3).ids)
    assert not torch.equal(data.ids, model.sample(4000, 50, seed=3, trial=1).ids)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KLevel(sizes=(1,), levels=(0.1, 0.2)),
        lambda: KLevel(sizes=(1,), levels=(0.6,)),
        lambda: single_important(3, 3, 1, 1),
        lambda: single_important(6, 3, 2, 1),
        lambda: single_important(2, 3, 1, 5),
        lambda: KLevel().sample(0, 3),
        lambda: KLevel(irrelevant=0),
        lambda: KLevel(sizes=(0,), levels=(0.1,)),
    ],
)
def test_impossible_settings_are_refused(make) -> None:
    with pytest.raises(AttsvmError):
        make()


def test_take_and_merge_keep_the_sequences() -> None:
    stream = np.random.default_rng(0)
    lists = [stream.integers(0, 7, size=stream.integers(1, 9)).tolist() for _ in range(20)]
    data = Sequences.from_lists(lists, stream.choice([1, -1], size=20), 7)
    index = torch.from_numpy(stream.permutation(20)[:11])
    some = data.merged().take(index)
    for row, i in enumerate(index.tolist()):
        inside = slice(int(some.offsets[row]), int(some.offsets[row + 1]))
        tokens = some.ids[inside].repeat_interleave(some.count[inside].long()).tolist()
        assert tokens == sorted(lists[i])
        assert some.Y[row] == data.Y[i]
