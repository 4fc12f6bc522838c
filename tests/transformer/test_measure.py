"""What is measured of trained transformers, and the pieces that keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizer import write_tokenizer

from attsvm import AttsvmError
from attsvm.experiments._transformer_runs import Piece, plan, read_piece, rounded, run_piece
from attsvm.files import write_json
from attsvm.transformer import (
    Probes,
    Settings,
    attention_weights,
    class_attention,
    encode_probes,
    evaluate,
    fit,
    load_probes,
    make_model,
    pivotal_reviews,
    pruned,
    pruning_curve,
    synthetic_sentiment,
    tiny_images,
    weight_summary,
)
from attsvm.transformer._measure import gini

TEXTS = synthetic_sentiment(48, 20, length=16)
SMALL = Settings("adamw", lr=1e-3, sizes={"width": 12, "hidden": 12, "layers": 2, "length": 32}, batch=16, epochs=2)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return make_model(SMALL, TEXTS).eval()


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.floats(0.1, 10))
@settings(deadline=None)
def test_gini(sizes: list[float], factor: float) -> None:
    """The mean absolute difference over twice the mean; free of scale; 0 for equals; (n − 1)/n for one alone."""
    x = np.array(sizes)
    found = gini(x)
    if x.sum() > 1e-6:
        assert found == pytest.approx(np.abs(x[:, None] - x).mean() / (2 * x.mean()), abs=1e-9)
        assert found == pytest.approx(gini(factor * x), abs=1e-9)
    n = len(x)
    assert gini(np.ones(n)) == pytest.approx(0, abs=1e-12)
    assert gini(np.eye(n)[0]) == pytest.approx((n - 1) / n)


def test_weight_summary_counts_the_right_rows() -> None:
    network = model()
    with torch.no_grad():  # rows 12 to 23 of qkv are the keys
        network.blocks[1].qkv.weight[12:24] = 0.07
        network.blocks[0].qkv.weight[:12] = 1e-3
    found = weight_summary(network)
    assert all(of_kind["number"] == 2 * 144 == sum(of_kind["histogram"]) for of_kind in found.values())
    assert found["key"]["large"] >= 144
    assert found["query"]["large"] <= 144
    assert sum(found["key"]["large_histogram"]) == found["key"]["large"]
    for name, matrices in attention_weights(network).items():
        assert found[name]["largest"] == pytest.approx(max(float(m.detach().abs().max()) for m in matrices))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_pruning_takes_the_smallest_and_gives_them_back(share: float) -> None:
    network = model()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    sizes = torch.cat([m.flatten() for of in attention_weights(network).values() for m in of]).detach().abs()
    with pruned(network, share):
        now = torch.cat([m.flatten() for of in attention_weights(network).values() for m in of]).detach().abs()
        gone = now == 0
        assert int(gone.sum()) == round(share * len(sizes))
        assert share in (0.0, 1.0) or sizes[gone].max() <= sizes[~gone].min()
        assert torch.equal(network.head.weight, before["head.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with pytest.raises(AttsvmError, match="between 0 and 1"), pruned(network, 1.5):
        pass


def test_the_pruning_curve_starts_at_the_accuracy() -> None:
    network = model()
    curve = pruning_curve(network, TEXTS.test)
    assert list(curve) == ["0", "0.5", "0.8", "0.9", "0.95"]
    assert curve["0"] == evaluate(network, TEXTS.test)["test_accuracy"]
    images = tiny_images(10, 10)
    seen = make_model(Settings(sizes={"width": 12, "hidden": 12, "layers": 1, "heads": 2}), images)
    assert pruning_curve(seen, images.test, [1.0])["1"] >= 0


def test_the_reviews_are_many_balanced_and_have_one_pivotal_word_each() -> None:
    reviews = pivotal_reviews()
    assert len(reviews) >= 100
    assert sum(review.label for review in reviews) == len(reviews) / 2
    assert len({review.text for review in reviews}) == len(reviews)
    for review in reviews:
        assert review.word.isalpha()
        assert review.text.split().count(review.word) <= 1
        assert "*" not in review.text


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Probes:
    words = sorted({word for review in pivotal_reviews() for word in review.text.replace(",", " ").split()})
    return encode_probes(
        write_tokenizer(tmp_path_factory.mktemp("probes"), ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words])
    )


def test_probes_mark_the_pivotal_word(probes: Probes, tmp_path: Path) -> None:
    for row, review in enumerate(pivotal_reviews()):
        (at,) = probes.pivotal[row].nonzero().flatten().tolist()
        start, stop = probes.spans[row, at].tolist()
        assert review.text[start:stop] == review.word
    probes.save(tmp_path / "probes.npz")
    again = load_probes(tmp_path / "probes.npz")
    assert torch.equal(again.pivotal, probes.pivotal)
    assert torch.equal(again.spans, probes.spans)


def test_attention_of_the_class_token(probes: Probes) -> None:
    torch.manual_seed(0)
    network = make_model(SMALL, replace(TEXTS, vocabulary=int(probes.tokens.max()) + 1))
    found = class_attention(network, probes)
    for row, review in enumerate(pivotal_reviews()):
        weights, spans = found["attention"][row], found["spans"][row]
        assert sum(weights) == pytest.approx(1)
        inside = [w for w, (a, b) in zip(weights, spans) if a < b and review.start <= a and b <= review.stop]
        assert sum(inside) == pytest.approx(found["pivotal"][row])
        assert 0 < found["positive"][row] < 1


def test_of_a_diverged_run_nothing_is_measured(probes: Probes) -> None:
    lost = run_piece(Piece("one", "imdb", replace(SMALL, optimizer="sgd", lr=1e30)), TEXTS, probes=probes)
    assert lost["stopped"] == "diverged"
    assert not {"weights", "pruning", "probes"} & lost.keys()
    network = make_model(SMALL, replace(TEXTS, vocabulary=int(probes.tokens.max()) + 1))
    torch.nn.init.constant_(network.head.weight, float("nan"))
    with pytest.raises(AttsvmError, match="not finite"):
        class_attention(network, probes)


def test_a_killed_piece_resumes_bit_for_bit(tmp_path: Path) -> None:
    piece = Piece("one", "imdb", SMALL)
    straight = run_piece(piece, TEXTS)
    assert straight["stopped"] == "epochs"
    stops = iter([False] * 4 + [True])
    fit(TEXTS, SMALL, out=tmp_path / "work", stop=lambda: next(stops))  # what a kill leaves is a checkpoint
    whole = run_piece(piece, TEXTS, work=tmp_path / "work")
    assert whole["weights"] == straight["weights"]
    assert whole["history"]["test_loss"] == straight["history"]["test_loss"]


def test_kept_results_are_checked(tmp_path: Path) -> None:
    piece = Piece("one", "imdb", SMALL)
    result = {"name": "one", "settings": SMALL.to_dict(), "history": {"epoch": [1], "test_accuracy": [0.5]}}
    assert read_piece(tmp_path, piece) is None
    write_json(tmp_path / "one.json", rounded(result))
    assert read_piece(tmp_path, piece) is not None
    assert read_piece(tmp_path, replace(piece, settings=replace(SMALL, lr=2e-3))) is None
    for wrong in ({"history": {"epoch": ["a"]}}, {"settings": 3}, {"probes": {}}, {"weights": [1]}):
        write_json(tmp_path / "one.json", rounded(result) | wrong)
        with pytest.raises(AttsvmError, match=r"one\.json"):
            read_piece(tmp_path, piece)
    (tmp_path / "one.json").write_text("{")
    with pytest.raises(AttsvmError, match="cannot be read as the result of a run"):
        read_piece(tmp_path, piece)


def test_the_plan_names_every_piece_once_and_the_kept_results_belong_to_it() -> None:
    pieces = plan()
    assert len({piece.name for piece in pieces}) == len(pieces)
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "transformers"
    by_name = {piece.name: piece for piece in pieces}
    for path in folder.glob("**/imdb*.json"):
        unfinished = path.parent != folder
        assert read_piece(folder, by_name[path.stem], unfinished=unfinished) is not None, path
