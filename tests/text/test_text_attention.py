"""The attention model of texts: gradients, optimality, invariances, exact explanations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_texts import make_texts

from attsvm.text import AttentionTextClassifier, WordTokenizer
from attsvm.text._attention import PATH, Attention, Problem, follow_path
from attsvm.text._features import learn_features, parts_of
from attsvm.text._selection import hold_out

Texts = tuple[list[str], np.ndarray]


class ExactProblem(Problem):
    dtype = np.float64


def make_problem(classes: int, p: float, seed: int = 0) -> ExactProblem:
    texts, labels = make_texts(40, classes, seed=seed)
    _, x = learn_features(WordTokenizer()(texts), 1, 1)
    outputs = classes if classes > 2 else 1
    y = (labels[:, None] == (np.arange(classes) if classes > 2 else 1)).astype(float)
    weight = np.random.default_rng(seed).random(len(labels)) + 0.1
    assert y.shape[1] == outputs
    return ExactProblem(x, y, weight, p=p, sigma=0.5)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("p", [1.2, 2, 3])
def test_gradient(classes: int, p: float) -> None:
    problem = make_problem(classes, p)
    random = np.random.default_rng(1)
    flat = random.normal(size=problem.columns * (1 + problem.outputs) + problem.outputs)
    value, gradient = problem.objective(flat)
    for _ in range(5):
        step = random.normal(size=flat.shape)
        h = 1e-5
        slope = (problem.objective(flat + h * step)[0] - problem.objective(flat - h * step)[0]) / (2 * h)
        assert slope == pytest.approx(gradient @ step, rel=1e-5, abs=1e-8 * abs(value))


@pytest.mark.parametrize("classes", [2, 4])
def test_the_objective_is_the_formula(classes: int) -> None:
    problem = make_problem(classes, 1.5)
    problem.set_penalty(0.3)
    random = np.random.default_rng(2)
    flat = random.normal(size=problem.columns * (1 + problem.outputs) + problem.outputs)
    model = problem.unflatten(flat)
    assert np.allclose(problem.flatten(model), flat)
    x = problem.x.toarray()
    loss = 0.0
    for row, target, weight in zip(x, problem.y, problem.weight[:, 0]):
        attention = row * np.exp(model.a) / (model.cls + (row * np.exp(model.a)).sum())
        score = model.bias + attention @ model.b
        logits = np.array([0, score[0]]) if classes == 2 else score
        place = int(target[0]) if classes == 2 else int(target.argmax())
        loss += weight * (np.log(np.exp(logits).sum()) - logits[place])
    small = 1e-2
    cost_a = (((model.a / 0.5) ** 2 + small**2) ** 0.75).sum() / 1.5
    cost_b = ((problem.r * model.b**2 + small**2) ** 0.75).sum() / 1.5
    assert problem.objective(flat)[0] == pytest.approx(loss + (cost_a + 0.3 * cost_b) / problem.n)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_answer_is_stationary(classes: int) -> None:
    problem = make_problem(classes, 2)
    model, _, _ = problem.minimize(problem.start(), 1000, 0.0, lambda k: None)
    value, gradient = problem.objective(problem.flatten(model))
    assert value < problem.objective(problem.flatten(problem.start()))[0]
    assert np.abs(gradient).max() < 1e-5


@pytest.mark.parametrize("classes", [2, 4])
def test_the_start_knows_how_frequent_the_classes_are(classes: int) -> None:
    problem = make_problem(classes, 2)
    model = problem.start()
    assert not model.a.any()
    assert not model.b.any()
    _, gradient = problem.objective(problem.flatten(model))
    assert np.abs(gradient[-problem.outputs :]).max() < 1e-12  # the best bias of all, as long as no word speaks


def balanced_problem(penalty: float, sigma: float = 0.5) -> ExactProblem:
    texts, labels = make_texts(400, common=2000, length=30)
    _, x = learn_features(WordTokenizer()(texts), 1, 1)
    problem = ExactProblem(x, (labels[:, None] == 1).astype(float), np.ones(400), p=2, sigma=sigma)
    problem.set_penalty(penalty)
    return problem


@pytest.mark.parametrize("penalty", [3.0, 0.01])
def test_the_scaled_variables_have_curvature_one(penalty: float) -> None:
    problem = balanced_problem(penalty)
    start = problem.flatten(problem.start())
    h = 1e-3
    for s in range(0, problem.columns, 97):  # at the start the directions have it exactly: p(1 − p) = 1/4 in every text
        flat = start.copy()
        flat[problem.columns + s] = h
        slope = problem.objective(flat)[1] - problem.objective(start)[1]
        assert slope[problem.columns + s] / h == pytest.approx(1, abs=1e-4)
    problem = balanced_problem(penalty, sigma=50)  # so that the loss has a part in the curvature of the importances
    # They have it where the directions are ±√T/4: Gauss and Newton's form of it, by hand.
    random = np.random.default_rng(0)
    b = random.choice([-1, 1], size=problem.columns) * np.sqrt(problem.length) / 4
    attention = (
        Attention(np.zeros(problem.columns), b[:, None], np.zeros(1), problem.cls).attention(problem.x).toarray()
    )
    slope = attention * (b - (attention @ b)[:, None])
    curvature = (slope**2).mean(0) / 4 + 1 / (problem.n * problem.sigma**2)
    assert np.median(curvature * problem.scale_a[:, 0] ** 2) == pytest.approx(1, abs=0.1)


def test_the_scaling_saves_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = balanced_problem(0.1)
    _, scaled, converged = problem.minimize(problem.start(), 1000, 1e-8, lambda k: None)
    assert converged
    for name in ("scale_a", "scale_b"):
        with monkeypatch.context() as patch:
            patch.setattr(problem, name, np.ones((problem.columns, 1)))
            _, plain, _ = problem.minimize(problem.start(), 1000, 1e-8, lambda k: None)
        assert scaled < 0.8 * plain


def test_the_path_starts_each_fit_where_the_last_one_ended() -> None:
    texts, labels = make_texts(400)
    warm = AttentionTextClassifier(ngrams=1, min_texts=1, importance=0.5, rarity=0.5, random_state=0).fit(texts, labels)
    cold = AttentionTextClassifier(penalty=warm.penalty_).fit(texts, labels)
    assert cold.chosen_ == warm.chosen_
    assert warm.n_iter_ < 0.8 * cold.n_iter_


def test_columns_that_no_text_has_keep_two_zeros() -> None:
    texts, labels = make_texts(30)
    _, x = learn_features(WordTokenizer()([*texts, "elsewhere"]), 1, 1)
    problem = Problem(x[:30], (labels[:, None] == 1).astype(float), np.ones(30), p=2, sigma=0.5)
    model, _, _ = problem.minimize(problem.start(), 50, 1e-5, lambda k: None)
    assert model.a[-1] == 0
    assert model.b[-1] == 0


def test_the_path_ends_where_the_held_out_loss_rises() -> None:
    texts, labels = make_texts(300, rate=0.1)
    _, x = learn_features(WordTokenizer()(texts), 1, 1)
    y = (labels[:, None] == 1).astype(float)
    parts = [Problem(x[part], y[part], np.ones(150), p=2, sigma=0.5) for part in (slice(150), slice(150, 300))]
    path, best = follow_path([(parts[0], parts[1])], PATH, 200, 1e-6, lambda stage, k: None)
    losses = [step.loss for step in path]
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    assert losses[-1] > losses[-2]
    assert parts[1].losses(best.scores(parts[1].x))[0].mean() == pytest.approx(min(losses), rel=1e-4)
    penalties = [step.penalty for step in path]
    assert penalties == sorted(penalties, reverse=True)


@pytest.fixture(scope="module", params=[2, 5])
def fitted(request: pytest.FixtureRequest) -> tuple[AttentionTextClassifier, Texts]:
    texts, labels = make_texts(400, request.param)
    model = AttentionTextClassifier(ngrams=2, penalty=0.1)
    return model.fit(texts, labels), (texts, labels)


def test_marks_are_attended_to_and_point_to_their_class(fitted: tuple[AttentionTextClassifier, Texts]) -> None:
    model, _ = fitted
    words = {row["word"]: row for row in model.words_}
    marks = [word for word in words if word.startswith("c") and " " not in word]
    common = [word for word in words if word.startswith("w") and " " not in word]
    for word in marks:
        direction = words[word]["direction"]
        assert max(direction, key=direction.get) == int(word[1 : word.index("m")])
    # Each mark of many is told from the common words by importance too.
    assert np.median([words[word]["importance"] for word in marks]) > max(words[word]["importance"] for word in common)
    for label in model.classes_:
        top = model.words_.top(label, 5)
        assert all(f"c{label}m" in row["word"] for row in top)


def test_contributions_add_up_to_the_score(fitted: tuple[AttentionTextClassifier, Texts]) -> None:
    model, (texts, _) = fitted
    texts = [
        *texts[:20],
        "",
        "never seen",
        "w1 " * 50 + "c0m1, c1m1.",
        "c0m1 never c0m1",
        "&lt;c0m1&gt; &amp;lt;b&gt; c1m1",
    ]
    scores = model.decision_function(texts)
    probability = model.predict_proba(texts)
    for label in [None, *model.classes_.tolist()]:
        for i, one in enumerate(model.explain(texts, label)):
            k = model.classes_.tolist().index(one.label)
            expected = scores[i] * (1 if k else -1) if scores.ndim == 1 else scores[i, k]
            assert one.score == pytest.approx(expected, abs=1e-9)
            assert one.bias + one.contribution.sum() == one.score
            assert one.bias + sum(share for _, _, share in one.spans) == pytest.approx(one.score, abs=1e-9)
            assert np.allclose(one.attention * one.direction, one.contribution)
            assert 0 < one.cls_attention <= 1
            assert (np.diff(np.abs(one.contribution)) <= 0).all()
            assert one.probability == pytest.approx(probability[i, k])
            if label is None:
                assert one.probability == probability[i].max()
            assert set(one.selected) <= set(one.words)


def test_the_effect_of_a_word_is_what_the_score_loses_without_it(
    fitted: tuple[AttentionTextClassifier, Texts],
) -> None:
    model, (texts, _) = fitted
    names = model.features_.names()
    opposed = 0
    for one in model.explain(texts[:20]):
        k = model.classes_.tolist().index(one.label)
        x = model.features_.matrix(model.tokenizer_([one.text]))
        for word, effect in zip(one.words, one.effect):
            without = x.copy()
            without[0, names.index(word)] = 0
            scores = model.attention_.scores(without)[0]
            score = scores[k] if len(scores) > 1 else scores[0] * (1 if k else -1)
            assert one.score - score == pytest.approx(effect, abs=1e-9)
        opposed += int(one.opposed.sum())
        noise = 1e-6 * np.abs(one.contribution).sum()
        sides = [np.sign(x) * (np.abs(x) > noise) for x in (one.contribution, one.effect)]
        assert np.array_equal(one.opposed, sides[0] * sides[1] == -1)
    assert opposed  # they are no rarity


def test_the_effect_of_a_single_word_is_that_of_striking_it_out() -> None:
    texts, labels = make_texts(200)
    model = AttentionTextClassifier(penalty=0.1).fit(texts, labels)
    for one in model.explain(texts[:20], 1):
        for word, effect in zip(one.words, one.effect):
            struck = " ".join(other for other in one.text.split() if other != word)
            assert one.score - model.decision_function([struck])[0] == pytest.approx(effect, abs=1e-9)


def test_masking_top_words_matters_more_than_masking_others(fitted: tuple[AttentionTextClassifier, Texts]) -> None:
    model, (texts, _) = fitted
    random = np.random.default_rng(0)
    top, other = [], []
    for one in model.explain(texts[:100]):
        place = model.classes_.tolist().index(one.label)
        words = one.text.split()
        weight = {w: c for w, c in zip(one.words, one.contribution) if " " not in w}
        chosen = set(sorted(weight, key=lambda w: -weight[w])[:3])
        drawn = set(random.permutation(sorted(set(words)))[:3])
        for masked, drops in ((chosen, top), (drawn, other)):
            rest = " ".join(word for word in words if word not in masked)
            drops.append(one.probability - model.predict_proba([rest])[0, place])
    assert np.mean(top) > 2 * np.mean(other)


def test_order_of_texts_and_words_does_not_matter() -> None:
    texts, labels = make_texts(200)
    model = AttentionTextClassifier(penalty=0.1, tol=1e-12).fit(texts, labels)
    order = np.random.default_rng(0).permutation(200)
    shuffled = [" ".join(reversed(texts[i].split())) for i in order]
    again = AttentionTextClassifier(penalty=0.1, tol=1e-12).fit(shuffled, labels[order])
    assert np.allclose(model.decision_function(texts), again.decision_function(texts), atol=0.02)


def test_a_weighted_problem_is_the_problem_of_repeated_texts() -> None:
    texts, labels = make_texts(60, 3)
    tokens = WordTokenizer()(texts)
    weight = np.random.default_rng(0).integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), weight)
    target = (labels[:, None] == np.arange(3)).astype(float)
    here = np.flatnonzero(weight)
    features, x = learn_features(tokens[here], 2, 2, 4, weight[here])
    same, many = learn_features(tokens[repeated], 2, 2, 4)
    assert features.names() == same.names()
    problems = [
        ExactProblem(x, target[here], weight[here].astype(float), p=1.5, sigma=0.5),
        ExactProblem(many, target[repeated], np.ones(len(repeated)), p=1.5, sigma=0.5),
    ]
    random = np.random.default_rng(1)
    flat = random.normal(size=problems[0].columns * 4 + 3)
    (value, gradient), (again, gradient_again) = (problem.objective(flat) for problem in problems)
    assert value == pytest.approx(again, rel=1e-6)  # the counts themselves are float32
    assert np.allclose(gradient, gradient_again, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1.0, 1: 3.0}])
def test_weights_are_repetitions(class_weight: Any) -> None:
    texts, labels = make_texts(60)
    weight = np.random.default_rng(0).integers(0, 3, 60)
    settings: dict[str, Any] = {"penalty": 0.1, "tol": 1e-12, "min_texts": 2, "class_weight": class_weight}
    weighted = AttentionTextClassifier(**settings).fit(texts, labels, sample_weight=weight)
    repeated = AttentionTextClassifier(**settings).fit(np.repeat(texts, weight), np.repeat(labels, weight))
    assert sorted(weighted.words_.word) == sorted(repeated.words_.word)
    assert np.allclose(weighted.predict_proba(texts), repeated.predict_proba(texts), atol=0.01)


def test_a_text_of_weight_zero_is_absent() -> None:
    texts, labels = make_texts(240)
    texts[:20] = ["never seen otherwise"] * 20
    labels = labels.copy()
    labels[:5] = 2
    weight = np.r_[np.zeros(20), np.random.default_rng(0).random(220) + 0.5]
    weighted = AttentionTextClassifier(random_state=0).fit(texts, labels, weight)
    deleted = AttentionTextClassifier(random_state=0).fit(texts[20:], labels[20:], weight[20:])
    assert weighted.classes_.tolist() == [0, 1]
    assert weighted.words_.word == deleted.words_.word
    assert weighted.path_ == deleted.path_
    assert np.array_equal(weighted.predict_proba(texts), deleted.predict_proba(texts))
    no_class = AttentionTextClassifier(random_state=0, class_weight={2: 0.0}).fit(texts, labels)
    assert no_class.classes_.tolist() == [0, 1]


def test_the_same_texts_are_held_out_however_often_and_in_what_order_they_stand() -> None:
    texts, labels = make_texts(300, 3)
    random = np.random.default_rng(0)
    rows = random.permutation(np.repeat(np.arange(300), random.integers(1, 4, 300)))
    fields = [(texts, labels), ([texts[i] for i in rows], labels[rows])]
    parts = [
        [
            {text for text, away in zip(chosen, part) if away}
            for part in hold_out(chosen, place, np.ones(len(chosen)), None, np.random.RandomState(0))
        ]
        for chosen, place in fields
    ]
    assert parts[0] == parts[1]
    assert sum(map(len, parts[0])) == len(set.union(*parts[0])) == 300  # each text once
    for part in parts[0]:
        assert np.bincount([labels[texts.index(text)] for text in part]).tolist() == [20, 20, 20]
    (one,) = hold_out(texts, labels, np.ones(300), 0.1, np.random.RandomState(0))
    assert one.sum() == 30


def test_balanced_weights_lift_the_rare_class() -> None:
    texts, labels = make_texts(600, rate=0.05)
    keep = (labels == 0) | (np.arange(600) % 10 == 0)
    texts, labels = [text for text, kept in zip(texts, keep) if kept], labels[keep]
    recall = [
        (
            AttentionTextClassifier(class_weight=weight, random_state=0).fit(texts, labels).predict(texts)[labels == 1]
            == 1
        ).mean()
        for weight in (None, "balanced", {0: 1, 1: 50})
    ]
    assert recall[0] < recall[1] <= recall[2]


def test_p_near_one_uses_fewer_words() -> None:
    texts, labels = make_texts(300)
    used = []
    for p in (1.1, 2, 3):
        model = AttentionTextClassifier(p=p, penalty=1.0).fit(texts, labels)
        size = np.abs(model.attention_.b[:, 0])
        used.append((size > 0.1 * size.max()).mean())
    assert used[0] < used[1] < used[2]


@pytest.mark.parametrize("classes", [2, 3])
def test_attention_and_scores_by_hand(classes: int) -> None:
    random = np.random.default_rng(0)
    outputs = 1 if classes == 2 else classes
    model = Attention(random.normal(size=3), random.normal(size=(3, outputs)), random.normal(size=outputs), 2.0)
    from scipy.sparse import csr_matrix

    x = csr_matrix(np.array([[1.0, 0, 2], [0, 0, 0], [0, 3, 0]]))
    weights = x.toarray() * np.exp(model.a)
    attention = weights / (2 + weights.sum(1, keepdims=True))
    assert np.allclose(model.attention(x).toarray(), attention)
    assert np.allclose(model.scores(x), attention @ model.b + model.bias)


WORDS = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


@pytest.mark.parametrize("mask", [0, 3, 2**22 - 1])  # all keys alike in their last bits, some, none
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(WORDS, min_size=1, max_size=8), ngrams=st.integers(1, 4), least=st.integers(1, 3))
def test_ngrams(texts: list[str], ngrams: int, least: int, mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.text._features._MASK", mask)
    tokens = WordTokenizer()(texts)
    expected: dict[str, np.ndarray] = {}
    for i, text in enumerate(texts):
        words = text.split()
        for size in range(1, ngrams + 1):
            for start in range(len(words) - size + 1):
                expected.setdefault(" ".join(words[start : start + size]), np.zeros(len(texts)))[i] += 1
    expected = {name: count for name, count in expected.items() if (count > 0).sum() >= least}
    if not expected:
        with pytest.raises(ValueError, match="lower min_texts" if "".join(texts).strip() else "must have words, but"):
            learn_features(tokens, ngrams, least)
        return
    features, x = learn_features(tokens, ngrams, least)
    names = features.names()
    assert sorted(names) == sorted(expected)
    count = np.array([expected[name] for name in names]).T
    assert np.allclose(x.toarray(), np.where(count > 0, 1 + np.log(np.maximum(count, 1)), 0), rtol=1e-6)
    again = features.matrix(WordTokenizer()(["zzz a", *texts, "b zzz b"]))
    assert np.allclose(again[1:-1].toarray(), x.toarray())
    if "b b" in expected:
        assert again[-1, names.index("b b")] == 0  # the unknown word stands between


@given(word=st.text("abcé", max_size=9), most=st.integers(3, 8))
def test_parts_of_words(word: str, most: int) -> None:
    ends = f"<{word}>"
    expected = [
        ends[i : i + size]
        for size in range(3, most + 1)
        for i in range(len(ends) - size + 1)
        if ends[i : i + size] != ends
    ]
    names = parts_of(word, most)
    # A hyphen is put where the word goes on, so that the run can be read off the name.
    read = [("" if name[0] == "-" else "<") + name.strip("-") + ("" if name[-1] == "-" else ">") for name in names]
    assert read == expected


def test_parts_of_words_know_words_that_were_never_seen() -> None:
    stems = ["wonder", "horrid"]
    labels = np.arange(200) % 2
    random = np.random.default_rng(0)
    letters = "abcdefgh"
    texts = [f"{stems[k]}{''.join(random.choice(list(letters), 4))} w{random.integers(20)}" for k in labels]
    model = AttentionTextClassifier(characters=4, random_state=0).fit(texts, labels)
    assert model.predict(["wonderxyz", "horridxyz"]).tolist() == [0, 1]
    one = model.explain(["Wonderxyz w1"])[0]
    assert "won-" in one.words
    assert one.bias + one.contribution.sum() == one.score
    assert one.bias + sum(share for _, _, share in one.spans) == pytest.approx(one.score, abs=1e-9)
    assert abs(one.spans[0][2]) > abs(one.spans[1][2])  # the parts of a word are shown at the word
