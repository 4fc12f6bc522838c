"""AttentionTextClassifier as a member of scikit-learn, and what it makes of bad input."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_texts import make_texts
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from attsvm import AttsvmError
from attsvm.text import AttentionTextClassifier, WordPieceTokenizer, WordTokenizer

TEXTS, LABELS = make_texts(240)
QUICK: dict[str, Any] = {"penalty": 0.1}


class OnNumbers(AttentionTextClassifier):
    """Numbers as texts, a word for each: then the battery of scikit-learn applies, of which texts get one check."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnNumbers:
        X, y = validate_data(self, X, y)
        super().fit(self._texts(X), y, sample_weight)
        return self

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return super()._scores(self._texts(validate_data(self, X, reset=False)))

    def _texts(self, X: np.ndarray) -> list[str]:
        levels = np.searchsorted(np.linspace(-3, 3, 25), X)
        return [" ".join(f"f{j}at{level}" for j, level in enumerate(row)) for row in levels]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        return tags


@parametrize_with_checks(
    [OnNumbers(validation_fraction=0.1, random_state=0)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": "holds to the tolerance of the fit; the check asks for 1e-7",
    },
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_one_check_that_applies_to_texts() -> None:
    with pytest.warns(SkipTestWarning, match="Can't test estimator"):
        check_estimator(AttentionTextClassifier())


@pytest.fixture(scope="module")
def fitted() -> AttentionTextClassifier:
    return AttentionTextClassifier(random_state=0).fit(TEXTS, LABELS)


def test_shapes_and_sums(fitted: AttentionTextClassifier) -> None:
    assert is_classifier(fitted)
    probability = fitted.predict_proba(TEXTS)
    assert probability.shape == (240, 2)
    assert np.allclose(probability.sum(1), 1)
    assert np.array_equal(fitted.predict(TEXTS), fitted.classes_[probability.argmax(1)])
    assert np.allclose(fitted.decision_function(TEXTS), np.log(probability[:, 1] / probability[:, 0]))
    assert fitted.score(TEXTS, LABELS) > 0.9
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 2)
    many = AttentionTextClassifier(**QUICK).fit(*make_texts(200, 4))
    assert many.decision_function(TEXTS).shape == (240, 4)
    assert np.allclose(many.decision_function(TEXTS).sum(1), 0)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["bad", "good"], ["bad", "good"]),
        ([False, True], [False, True]),
        ([-1, 1], [-1, 1]),
        ([2.0, 5.0], [2.0, 5.0]),
        (["é", "日本"], ["é", "日本"]),
    ],
)
def test_labels_of_every_kind(labels: list[Any], classes: list[Any], tmp_path: Path) -> None:
    y = [labels[k] for k in LABELS]
    for given in (y, np.array(y), np.array(y, dtype=object)):
        model = AttentionTextClassifier(**QUICK).fit(TEXTS, given)
        assert model.classes_.tolist() == classes
        assert set(model.predict(TEXTS).tolist()) == set(classes)
    model.save(tmp_path / "model")
    again = AttentionTextClassifier.load(tmp_path / "model")
    assert again.predict(TEXTS).tolist() == model.predict(TEXTS).tolist()
    assert again.classes_.dtype == model.classes_.dtype


def test_containers_of_texts() -> None:
    import pyarrow as pa

    expected = AttentionTextClassifier(**QUICK).fit(TEXTS, LABELS).predict_proba(TEXTS[:5])
    for texts in (tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), pa.array(TEXTS), iter(TEXTS)):
        model = AttentionTextClassifier(**QUICK).fit(texts, LABELS.tolist())
        assert np.array_equal(model.predict_proba(TEXTS[:5]), expected)


def test_fit_changes_no_parameter_and_starts_anew(fitted: AttentionTextClassifier) -> None:
    model = AttentionTextClassifier(random_state=0, ngrams=2)
    before = model.get_params()
    assert model.fit(TEXTS[:100], LABELS[:100]) is model
    assert model.get_params() == before
    model.set_params(ngrams=1).fit(TEXTS, LABELS)
    assert np.array_equal(model.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_the_seed_decides() -> None:
    first, second = (AttentionTextClassifier(ngrams=1, random_state=3).fit(TEXTS, LABELS) for _ in range(2))
    assert np.array_equal(first.predict_proba(TEXTS), second.predict_proba(TEXTS))
    assert first.path_ == second.path_
    assert first.path_ != AttentionTextClassifier(ngrams=1, random_state=4).fit(TEXTS, LABELS).path_
    AttentionTextClassifier(random_state=np.random.RandomState(0)).fit(TEXTS, LABELS)


def test_pickle_and_clone(fitted: AttentionTextClassifier) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(TEXTS)


@pytest.mark.parametrize("name", ["predict", "predict_proba", "decision_function", "explain", "words_", "save"])
def test_not_fitted(name: str) -> None:
    def use() -> None:
        getattr(AttentionTextClassifier(), name)("folder" if name == "save" else TEXTS)

    with pytest.raises(NotFittedError):
        use()


def test_in_scikit_learn() -> None:
    pipeline = make_pipeline(
        FunctionTransformer(lambda texts: [text.upper() for text in texts]), AttentionTextClassifier()
    )
    assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) > 0.9
    assert cross_val_score(AttentionTextClassifier(**QUICK), TEXTS, LABELS, cv=3, scoring="roc_auc").min() > 0.8
    grid = GridSearchCV(AttentionTextClassifier(), {"penalty": [1e6, 0.1]}, cv=2, scoring="neg_log_loss")
    grid.fit(TEXTS, LABELS)
    assert grid.best_params_["penalty"] == 0.1
    assert cross_val_predict(AttentionTextClassifier(**QUICK), TEXTS, LABELS, cv=2).shape == (240,)
    names = np.array(["no", "yes"])[LABELS]
    for ensemble in (
        VotingClassifier([("a", AttentionTextClassifier(**QUICK)), ("b", AttentionTextClassifier(ngrams=2, **QUICK))]),
        CalibratedClassifierCV(AttentionTextClassifier(**QUICK), cv=2),
        OneVsRestClassifier(AttentionTextClassifier(**QUICK)),
    ):
        assert ensemble.fit(TEXTS, names).score(TEXTS, names) > 0.9
    # Bagging hands over columns of a table: the texts must be picked out of it.
    pick = FunctionTransformer(lambda table: table[:, 0])
    bag = BaggingClassifier(make_pipeline(pick, AttentionTextClassifier(**QUICK)), n_estimators=2, random_state=0)
    assert bag.fit(np.array(TEXTS, dtype=object)[:, None], LABELS).score(np.array(TEXTS)[:, None], LABELS) > 0.8


def test_saved_and_loaded(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(frozenset({"w1", "w2"}), "english")
    weight = {0: 1.0, 1: 2.0}
    model = AttentionTextClassifier(
        ngrams=3, characters=4, tokenizer=tokenizer, class_weight=weight, random_state=0
    ).fit(TEXTS, LABELS)
    model.save(tmp_path / "deep" / "model")
    again = AttentionTextClassifier.load(tmp_path / "deep" / "model")
    assert np.array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert again.get_params() == model.get_params()
    assert again.words_.word == model.words_.word
    assert again.path_ == model.path_
    assert again.chosen_ == model.chosen_
    model.save(tmp_path / "deep" / "model")  # over what is there
    assert sorted(path.name for path in (tmp_path / "deep" / "model").iterdir()) == ["model.json", "model.safetensors"]


def test_word_pieces_travel_with_the_model(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pieces = {"[UNK]": 0, "c": 1, "##0": 2, "##1": 3, "##m": 4, "w": 5} | {f"##{k}": 6 + k for k in range(2, 10)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "pieces.json"))
    settings: dict[str, Any] = {"tokenizer": WordPieceTokenizer(file=tmp_path / "pieces.json"), "ngrams": 3}
    model = AttentionTextClassifier(**settings, **QUICK).fit(TEXTS, LABELS)
    assert model.score(TEXTS, LABELS) > 0.9  # "c ##0 ##m" and "c ##1 ##m"
    one = model.explain(["c1m3, w1."])[0]
    assert [one.text[start:end] for start, end, _ in one.spans] == ["c1m3", "w1"]
    assert one.bias + sum(share for _, _, share in one.spans) == pytest.approx(one.score)
    expected = model.predict_proba(TEXTS)
    model.save(tmp_path / "model")
    (tmp_path / "pieces.json").unlink()
    again = AttentionTextClassifier.load(tmp_path / "model")
    again.save(tmp_path / "model")
    assert np.array_equal(AttentionTextClassifier.load(tmp_path / "model").predict_proba(TEXTS), expected)


def test_a_model_that_cannot_be_written_leaves_the_old_one(
    fitted: AttentionTextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    other = AttentionTextClassifier(penalty=1.0).fit(TEXTS[::-1], LABELS)

    def full(*_: Any) -> None:
        raise AttsvmError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("attsvm.text._model_files.write_arrays", full)
        with pytest.raises(AttsvmError, match="no space left"):
            other.save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    other.save(tmp_path)
    (tmp_path / "model.json").write_bytes(before[tmp_path / "model.json"])  # as if between the two files
    with pytest.raises(AttsvmError, match="do not belong together"):
        AttentionTextClassifier.load(tmp_path)
    fitted.save(tmp_path)
    old = json.loads((tmp_path / "model.json").read_text())
    del old["digest"]  # as older models are
    old["format"] = "attsvm text classifier 1"
    (tmp_path / "model.json").write_text(json.dumps(old))
    assert np.array_equal(AttentionTextClassifier.load(tmp_path).predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_damaged_models_are_refused(fitted: AttentionTextClassifier, tmp_path: Path) -> None:
    with pytest.raises(AttsvmError, match=r"has no model\.json"):
        AttentionTextClassifier.load(tmp_path)
    fitted.save(tmp_path)
    whole = (tmp_path / "model.json").read_text()
    for damaged, sentence in (
        ("{", "cannot be read as a text model"),
        (whole.replace("attsvm-text-model/1", "attsvm-text-model/9"), "format must be one of"),
        (whole.replace('"words"', '"w"'), "not a readable model"),
        (whole.replace('"w1",', ""), "do not belong together"),
    ):
        (tmp_path / "model.json").write_text(damaged)
        with pytest.raises(AttsvmError, match=sentence):
            AttentionTextClassifier.load(tmp_path)
    (tmp_path / "model.json").write_text(whole)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(AttsvmError, match="not a readable"):
        AttentionTextClassifier.load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "labels", "sentence"),
    [
        ("a bare string", [1], "bare string"),
        ([], [], "empty"),
        (["a", "b"], [1], "2 texts and 1 labels"),
        (["a", "b"], [1, 1], "1 class: \\[1\\]"),
        (["", " ... ", "<br/>", "😀"], [0, 1, 1, 0], "have none: see whether they are empty, or signs alone"),
        (["a", None], [0, 1], "text 1 is nothing"),
        (["a", 3], [0, 1], "text 1 is int"),
        (["a", "b"], None, "requires y"),
        (["a", "b"], [0, None], "label 1 is missing"),
        (["a", "b"], [0, float("nan")], "label 1 is missing"),
        (["a", "b", "c"], [0.1, 0.2, 0.33], "Unknown label type"),
        ([["a"], ["b"]], [0, 1], "text 0 is list"),
        ({"a": 1, "b": 2}, [0, 1], "column of texts"),
        (["a", "b", "c"], [1, "1", 2], "one kind, but has 1 \\(a number\\) and '1' \\(a text\\)"),
        (["a", "b"], np.array([1, "one"], dtype=object), "labels of one kind"),
        (["a", "b"], ("yes", True), "labels of one kind"),
    ],
)
def test_bad_input_is_refused(texts: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AttentionTextClassifier().fit(texts, labels)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ngrams": 0}, "ngrams must be"),
        ({"characters": 2}, "characters must be"),
        ({"rarity": 1.5}, "rarity must lie"),
        ({"p": 1}, "1 < p < inf"),
        ({"penalty": 0}, "penalty must be positive"),
        ({"penalty": -1}, "penalty must be"),
        ({"importance": 0}, "importance must be positive"),
        ({"validation_fraction": 1}, "between 0 and 1"),
        ({"min_texts": 0}, "min_texts must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tokenizer": str.split}, "tokenizer must be"),
        ({"class_weight": "wrong"}, "class_weight"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AttentionTextClassifier(**settings).fit(TEXTS, LABELS)


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_wrong_class_weights_are_refused(wrong: float) -> None:
    weight = dict.fromkeys(np.unique(LABELS).tolist(), 1.0) | {np.unique(LABELS).tolist()[0]: wrong}
    with pytest.raises(AttsvmError, match="class_weight must be numbers of at least 0"):
        AttentionTextClassifier(class_weight=weight).fit(TEXTS, LABELS)


def test_wrong_weights_and_labels_are_refused(fitted: AttentionTextClassifier) -> None:
    for weight in ([1.0], -np.ones(240), np.full(240, np.nan), np.zeros(240)):
        with pytest.raises(AttsvmError, match="sample_weight must be 240 numbers"):
            AttentionTextClassifier().fit(TEXTS, LABELS, sample_weight=weight)
    with pytest.raises(AttsvmError, match=r"label must be one of \[0, 1\]"):
        fitted.explain(TEXTS[:1], "yes")
    with pytest.raises(AttsvmError, match=r"label must be one of \[0, 1\]"):
        fitted.words_.top(2)
    with pytest.raises(AttsvmError, match="count must be a whole number at least 0, but got -1"):
        fitted.words_.top(1, -1)
    with pytest.raises(AttsvmError, match="in at least 999 of them, but none does: lower min_texts"):
        AttentionTextClassifier(min_texts=999).fit(TEXTS, LABELS)
    with pytest.raises(KeyError, match="not among the words"):
        fitted.words_["zebra"]
    with pytest.raises(AttsvmError, match="bare string"):
        fitted.predict("a bare string")


def test_odd_texts_get_a_sensible_answer(fitted: AttentionTextClassifier) -> None:
    bias = fitted.predict_proba([""])[0]
    odd = ["never seen words", " \n\t", "\x00\ud800", "<br/>", "!!!"]
    assert np.allclose(fitted.predict_proba(odd), bias)
    assert all(one.words == [] and one.cls_attention == 1 for one in fitted.explain(odd))
    long = "c1m1 w1 " * 125_000  # 1 MB
    assert fitted.predict([long])[0] == 1
    assert fitted.explain([long])[0].words[0] == "c1m1"
    # More words of the same kind, more attention to them, a surer answer.
    sure = [fitted.predict_proba([" ".join(f"c1m{j}" for j in range(k))])[0, 1] for k in (0, 1, 3, 8)]
    assert sure == sorted(sure)


@pytest.mark.parametrize("count", [2, 4, 30])
def test_few_texts(count: int) -> None:
    texts, labels = make_texts(count)
    model = AttentionTextClassifier(random_state=0).fit(texts, labels)
    assert (model.predict(texts) == labels).mean() >= 0.5
    one_each = AttentionTextClassifier().fit(["good film", "bad film", "odd film"], ["+", "-", "?"])
    assert one_each.predict(["good", "bad", "odd"]).tolist() == ["+", "-", "?"]


def test_twenty_classes_and_five_hundred_texts() -> None:
    texts, labels = make_texts(500, 20, length=30)
    fresh, truth = make_texts(200, 20, length=30, seed=1)
    model = AttentionTextClassifier(ngrams=1, validation_fraction=0.1, random_state=0).fit(texts, labels)
    assert model.score(fresh, truth) > 0.9
    assert model.words_.direction.shape[1] == 20


def questions(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """The pair of the first two words, neither alone, tells the class; rare names follow, most of them new."""
    random = np.random.default_rng(seed)
    first, second = random.integers(2, size=(2, count))
    names = random.integers(10_000, size=(count, 2))
    texts = [f"{'ab'[i]} {'xy'[j]} n{k} n{m}" for i, j, (k, m) in zip(first, second, names)]
    return texts, np.array(["even", "odd"])[first ^ second]


def test_what_the_held_out_texts_choose() -> None:
    texts, labels = questions(400)
    model = AttentionTextClassifier(random_state=0).fit(texts, labels)
    assert model.chosen_["ngrams"] == 2
    assert model.score(*questions(400, 1)) > 0.9
    assert AttentionTextClassifier(ngrams=1, random_state=0).fit(texts, labels).chosen_["ngrams"] == 1
    fixed: dict[str, Any] = {"ngrams": 1, "importance": 0.5, "rarity": 0.5, "random_state": 0}
    for data in (questions(400), make_texts(400, common=5, marks=400)):
        free, *rivals = (AttentionTextClassifier(min_texts=k, **fixed).fit(*data) for k in (None, 1, 2))
        losses = [min(step.loss for step in rival.path_) for rival in rivals]
        assert free.chosen_["min_texts"] == 1 + int(losses[1] < losses[0])


def test_a_long_corpus_keeps_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.text._selection._CHEAP", 100)
    model = AttentionTextClassifier(random_state=0).fit(*questions(400))
    assert model.chosen_ == {"ngrams": 1, "min_texts": 2, "characters": 0, "importance": 0.5, "rarity": 0.5}
    assert model.path_


def test_words_that_stand_in_one_text_each_are_enough() -> None:
    texts = [f"only{i}" for i in range(200)]
    model = AttentionTextClassifier(random_state=0).fit(texts, np.arange(200) % 2)
    assert model.chosen_["min_texts"] == 1


def test_too_few_iterations_warn() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter = 1"):
        AttentionTextClassifier(max_iter=1, **QUICK).fit(TEXTS, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttentionTextClassifier(**QUICK).fit(TEXTS, LABELS)


@pytest.mark.parametrize(
    ("good", "bad"), [("这部电影非常好看", "太差了"), ("หนังดีมาก", "หนังแย่"), ("とても良い映画", "ひどい")]
)
def test_scripts_without_spaces_warn(good: str, bad: str, tmp_path: Path) -> None:
    labels = [1, 0] * 10
    with pytest.warns(UserWarning, match="no spaces between words"):
        AttentionTextClassifier().fit([good, bad] * 10, labels)
    tokenizers = pytest.importorskip("tokenizers")
    names = ["[UNK]", *dict.fromkeys([*good, *bad, *(f"##{sign}" for sign in good + bad)])]
    known = {name: number for number, name in enumerate(names)}
    tokenizers.Tokenizer(tokenizers.models.WordPiece(known, unk_token="[UNK]")).save(str(tmp_path / "pieces.json"))
    pieces = WordPieceTokenizer(file=tmp_path / "pieces.json")
    AttentionTextClassifier(tokenizer=pieces).fit([good, bad] * 10, labels)  # without a warning
    (tmp_path / "pieces.json").rename(tmp_path / "tokenizer.json")  # which its folder names, too
    model = AttentionTextClassifier(tokenizer=WordPieceTokenizer(file=tmp_path)).fit([good, bad] * 10, labels)
    model.save(tmp_path / "model")
    assert AttentionTextClassifier.load(tmp_path / "model").predict([good]) == model.predict([good])
    AttentionTextClassifier().fit([f"a good film, {good[:2]}", "a bad film"] * 10, labels)


def test_verbose_says_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    AttentionTextClassifier(verbose=True, random_state=0).fit(TEXTS, LABELS)
    said = capsys.readouterr()
    assert said.out == ""
    assert "tokenize" in said.err
    assert "final fit: iteration 1" in said.err


def test_the_text_of_an_explanation(fitted: AttentionTextClassifier) -> None:
    one = fitted.explain(["c1m1 & <b>w1</b>!"])[0]
    assert "c1m1" in str(one).splitlines()[1]
    assert [one.text[start:end] for start, end, _ in one.spans] == ["c1m1", "w1"]
    assert repr(fitted.words_).startswith("Words(")
    assert len(list(fitted.words_)) == len(fitted.words_)
    buffer = io.BytesIO()
    pickle.dump(one, buffer)


def test_a_kill_between_two_files_leaves_the_old_model_or_the_new_one(
    fitted: AttentionTextClassifier, tmp_path: Path
) -> None:
    other = AttentionTextClassifier(penalty=1.0).fit(TEXTS[::-1], LABELS)
    place, new = tmp_path / "model", tmp_path / "new"
    fitted.save(place)
    other.save(new)
    digest = json.loads((new / "model.json").read_text())["digest"][:12]
    shutil.copy(new / "model.safetensors", place / f"model-{digest}.safetensors")  # the numbers are there, no JSON yet
    assert np.array_equal(AttentionTextClassifier.load(place).predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    shutil.copy(new / "model.json", place / "model.json")  # not yet renamed
    assert np.array_equal(AttentionTextClassifier.load(place).predict_proba(TEXTS), other.predict_proba(TEXTS))
    fitted.save(place)
    assert sorted(path.name for path in place.iterdir()) == ["model.json", "model.safetensors"]
    assert np.array_equal(AttentionTextClassifier.load(place).predict_proba(TEXTS), fitted.predict_proba(TEXTS))


@pytest.mark.parametrize(
    "change",
    [
        {"words": ["a", 3]},
        {"words": "abc"},
        {"levels": [1, "a"]},
        {"cls": float("nan")},
        {"classes": {"values": [1], "dtype": "<i8"}},
        {"classes": {"values": [1, 1], "dtype": "<i8"}},
        {"classes": {"values": [1, 2], "dtype": "<U1"}},
        {"classes": {"values": [[1], [2, 3]], "dtype": "<i8"}},
        {"path": [{"penalty": 1}]},
        {"settings": {"unknown": 3}},
        {"tokenizer": {"kind": "pty", "stop": [], "stem": None}},
        {"tokenizer": {"kind": "WordTokenizer", "stop": [], "stem": "klingon"}},
        {"tokenizer": {"kind": "WordPieceTokenizer", "stop": [], "stem": None}},
    ],
)
def test_wrong_descriptions_are_refused(fitted: AttentionTextClassifier, tmp_path: Path, change: dict) -> None:
    fitted.save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(content | change))
    with pytest.raises(AttsvmError, match=r"model|tokenizer"):
        AttentionTextClassifier.load(tmp_path)
