"""The models against autograd on gathered embeddings, and what their gradients must satisfy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm, softplus

from attsvm import AttsvmError
from attsvm.embeddings import (
    AdamWPlan,
    Embeddings,
    Sequences,
    descend,
    gradients,
    initial_embeddings,
    slopes,
    train_embeddings,
    two_layer_output,
)

LISTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=7), min_size=1, max_size=5)


def sequences(lists: list[list[int]]) -> Sequences:
    return Sequences.from_lists(lists, [1 if i % 2 else -1 for i in range(len(lists))], 6)


def naive(lists: list[list[int]], at: Embeddings, layers: int) -> torch.Tensor:
    """Outputs by the printed formulas, position by position."""
    outputs = []
    for tokens in lists:
        X = at.E[tokens]
        if layers == 2:
            X = layer_norm(torch.softmax(X @ X.T, -1) @ X + X, X.shape[-1:])
        outputs.append(torch.softmax(X @ at.p, 0) @ X @ at.v)
    return torch.stack(outputs)


@settings(deadline=None, max_examples=30)
@given(LISTS, st.integers(0, 99), st.booleans())
def test_one_layer_and_its_rank_two_gradient(lists: list[list[int]], trial: int, merged: bool) -> None:
    data, at = sequences(lists), initial_embeddings(6, 5, trial=trial)
    leaves = Embeddings(*(x.clone().requires_grad_() for x in at))
    f = naive(lists, leaves, 1)
    expected = torch.autograd.grad(softplus(-data.Y * f).mean(), leaves)
    found, slope = gradients(data.merged() if merged else data, at)
    torch.testing.assert_close(found.f, f.detach())
    for ours, theirs in zip(slope, expected):
        torch.testing.assert_close(ours, theirs)


@settings(deadline=None, max_examples=30)
@given(LISTS, st.integers(0, 99))
def test_two_layers_on_distinct_tokens(lists: list[list[int]], trial: int) -> None:
    at = initial_embeddings(6, 5, trial=trial)
    torch.testing.assert_close(two_layer_output(sequences(lists).merged(), at), naive(lists, at, 2))


def test_order_and_padding_do_not_matter() -> None:
    at = initial_embeddings(6, 4)
    one, other = sequences([[0, 1, 1, 2], [3, 4]]), sequences([[1, 2, 0, 1], [4, 3]])
    torch.testing.assert_close(slopes(one, at.E @ at.p, at.E @ at.v).f, slopes(other, at.E @ at.p, at.E @ at.v).f)
    torch.testing.assert_close(two_layer_output(one.merged(), at), two_layer_output(other.merged(), at))


def test_slopes_do_not_overflow() -> None:
    data = sequences([[0, 1], [1, 2]])
    found = slopes(data, *torch.tensor([[1e4, -1e4, 3, 0, 0, 0], [-1e3, 1e3, 0, 0, 0, 0]], dtype=torch.float64))
    assert all(bool(x.isfinite().all()) for x in found)


def test_descent_lowers_the_loss_and_leaves_v_alone() -> None:
    data, start = sequences([[0, 1, 2], [3, 1, 2], [0, 4, 5], [3, 4, 5]]), initial_embeddings(6, 20)
    at, losses = descend(data, start, lr=0.5, steps=200)
    assert bool((losses.diff() < 0).all())
    assert torch.equal(at.v, start.v)
    assert not torch.equal(descend(data, start, lr=0.5, train_v=True)[0].v, start.v)


@pytest.mark.parametrize("model", ["one-layer", "two-layer"])
def test_adamw_is_that_of_torch(model: str) -> None:
    """One batch an epoch: the same steps as a plain loop with autograd and MultiStepLR."""
    lists = [[0, 1, 1, 2], [3, 1, 2], [0, 4], [3, 4, 5]]
    data, start = sequences(lists), initial_embeddings(6, 5)
    schedule = AdamWPlan(epochs=12, lr=0.05, weight_decay=0.1, milestones=(4, 8))
    ours = train_embeddings(data, start, model, schedule)
    leaves = Embeddings(*(x.clone().requires_grad_() for x in start))
    optimizer = torch.optim.AdamW(leaves, lr=0.05, weight_decay=0.1)
    plan = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 8], 0.1)
    for epoch in range(12):
        optimizer.zero_grad()
        loss = softplus(-data.Y * naive(lists, leaves, 1 if model == "one-layer" else 2)).mean()
        torch.testing.assert_close(ours.losses[epoch], loss.detach())
        loss.backward()
        optimizer.step()
        plan.step()
    for a, b in zip(ours.at, leaves):
        torch.testing.assert_close(a, b.detach())


@pytest.mark.parametrize("model", ["one-layer", "two-layer"])
def test_batches_see_every_sequence_once_an_epoch(model: str) -> None:
    lists = [[i % 6, (i * i) % 6][: 1 + i % 2] for i in range(23)]
    still = AdamWPlan(epochs=2, lr=0.0, weight_decay=0.0, batch=4)
    start = initial_embeddings(6, 5)
    fitted = train_embeddings(sequences(lists), start, model, still)
    f = naive(lists, start, 1 if model == "one-layer" else 2)
    expected = softplus(-sequences(lists).Y * f).mean()
    torch.testing.assert_close(fitted.losses, expected.expand(2))


def test_fit_repeats_and_fixes_v_when_told() -> None:
    data, start = sequences([[0, 1], [2, 3], [4, 5], [0, 3]]), initial_embeddings(6, 5)
    schedule = AdamWPlan(epochs=3, batch=2)
    first, second = (train_embeddings(data, start, schedule=schedule, seed=7, train_v=False) for _ in range(2))
    assert torch.equal(first.at.E, second.at.E)
    assert torch.equal(first.at.v, start.v)
    with pytest.raises(AttsvmError, match="model must be"):
        train_embeddings(data, start, "three-layer")
    few = initial_embeddings(data.size - 1, start.E.shape[1])
    mixed = Embeddings(start.E, start.p[1:], start.v)
    for train in (
        lambda at: train_embeddings(data, at),
        lambda at: train_embeddings(data, at, "two-layer"),
        lambda at: descend(data, at, lr=1),
    ):
        for wrong in (few, mixed):
            with pytest.raises(AttsvmError, match=f"at least {data.size}, the vocabulary of the data"):
                train(wrong)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"batch": -5}, {"batch": 1.5}, {"epochs": -1}, {"lr": -1}, {"factor": float("nan")}]
)
def test_wrong_schedules_are_refused(wrong: dict) -> None:
    with pytest.raises(AttsvmError, match=f"{next(iter(wrong))} must be"):
        AdamWPlan(**wrong)


@pytest.mark.parametrize(
    ("lists", "Y", "size", "match"),
    [
        ([[0], []], [1, -1], None, "every sequence"),
        ([[0], [1]], [1, 0], None, "labels ±1, but got 0"),
        ([[0], [1]], [1, -1], 2.5, "size must be a whole number"),
        ([[0], [1]], [1], None, "labels"),
        ([[0], [6]], [1, -1], 6, "0..5"),
        ([[0], [-1]], [1, -1], 6, "0..5"),
        ([[0.9, 1.9], [2.2, 1.0]], [1, -1], None, "token numbers, which are whole"),
    ],
)
def test_wrong_sequences_are_refused(lists, Y, size, match: str) -> None:
    with pytest.raises(AttsvmError, match=match):
        Sequences.from_lists(lists, Y, size)


def test_reduced_start_has_the_distribution_of_the_plain_one() -> None:
    """Means and variances of the Gram matrix of (v, p, E) agree within five standard errors."""
    draws, size, d = 2000, 3, 8
    grams = {}
    for reduced in (False, True):
        stacked = []
        for trial in range(draws):
            at = initial_embeddings(size, d, seed=int(reduced), trial=trial, reduced=reduced)
            M = torch.cat([at.v[None], at.p[None], at.E])
            stacked.append((M @ M.T).numpy())
        grams[reduced] = np.stack(stacked)
    for moment in (lambda x: x, np.square):
        plain, other = (moment(grams[reduced]) for reduced in (False, True))
        error = np.sqrt((plain.var(0) + other.var(0)) / draws)
        assert (np.abs(plain.mean(0) - other.mean(0)) <= 5 * error + 1e-12).all()


def test_reduced_start_takes_any_dimension() -> None:
    at = initial_embeddings(4, 1e70, reduced=True)
    gram = at.E @ at.E.T
    torch.testing.assert_close(gram, torch.eye(4, dtype=torch.float64))
    assert 0 < float(gram[0, 1].abs()) < 1e-30
    with pytest.raises(AttsvmError, match="d must be"):
        initial_embeddings(4, 5, reduced=True)
    with pytest.raises(AttsvmError, match="d must be finite and at least 6, but got nan"):
        initial_embeddings(4, math.nan, reduced=True)


def test_a_step_size_that_is_none_is_refused() -> None:
    data, start = Sequences.from_lists([[0, 1], [1]], [1, -1]), initial_embeddings(2, 3)
    for lr in (math.nan, -0.1):
        with pytest.raises(AttsvmError, match="lr must be finite and at least 0"):
            descend(data, start, lr=lr)
