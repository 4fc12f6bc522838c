"""The page of attention maps, and the experiments that read pieces."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizer import write_tokenizer
from pyarrow import parquet
from typer.testing import CliRunner

from attsvm import AttsvmError
from attsvm.cli._transformer import app
from attsvm.experiments import CATALOG
from attsvm.experiments import transformers as shared
from attsvm.experiments._experiment import Rows
from attsvm.experiments._transformer_runs import Piece, rounded, run_piece
from attsvm.experiments.transformers import chosen_accuracy, find_piece, interval, sign_flip_test
from attsvm.files import write_json
from attsvm.tokenizers import open_tokenizer
from attsvm.transformer import (
    Settings,
    encode_probes,
    fit,
    load_model,
    load_probes,
    pivotal_reviews,
    save_data,
    synthetic_sentiment,
)

SMALL = Settings("adamw", lr=1e-3, sizes={"width": 12, "hidden": 12, "layers": 1, "length": 32}, batch=16, epochs=2)
MD = ("imdb3-md-p1.1-lr0.0008", "imdb3-md-p2-lr0.0004", "imdb3-adamw-lr0.0003", "imdb3-mirror-adam-p1.1-lr0.001")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = sorted({word for review in pivotal_reviews() for word in re.findall(r"\w+", review.text)})
    folder = tmp_path_factory.mktemp("tokenizer")
    return write_tokenizer(folder, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words]).parent


@pytest.fixture(scope="module")
def texts(tokenizer: Path) -> Any:
    from dataclasses import replace

    return replace(synthetic_sentiment(48, 20, length=16), vocabulary=open_tokenizer(tokenizer).get_vocab_size())


def keep(folder: Path, result: dict[str, Any]) -> None:
    """As the results of earlier sittings are kept."""
    write_json(folder / f"{result['name']}.json", rounded(result))


@pytest.fixture(scope="module")
def pieces(tokenizer: Path, texts: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results of small runs under the names of large ones."""
    folder = tmp_path_factory.mktemp("pieces")
    probes = encode_probes(tokenizer)
    for stem in MD:
        for seed in range(2):
            piece = find_piece(f"{stem}-seed{seed}")
            chosen = Settings(**(SMALL.to_dict() | {"seed": seed, "optimizer": piece.settings.optimizer}))
            result = run_piece(Piece(piece.name, "imdb", chosen), texts, probes=probes)
            keep(folder, result | {"settings": piece.settings.to_dict()})
    return folder


def test_models_of_one_name_are_all_shown_and_other_tokenizers_refused(
    pieces: Path, texts: Any, tmp_path: Path
) -> None:
    one = next(pieces.glob("*.json"))
    places = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        places.append(tmp_path / folder / "run.json")
        places[-1].write_text(one.read_text())
    made = CliRunner().invoke(app, ["attention", *map(str, places), "--out", str(tmp_path / "page.html")])
    assert "2 models" in " ".join(made.output.split())  # lines break where the path ends
    assert all(str(place) in (tmp_path / "page.html").read_text() for place in places)

    fit(synthetic_sentiment(8, 4), SMALL, out=tmp_path / "run")  # its own 56 words
    words = [f"w{i}" for i in range(60)]
    other = write_tokenizer(tmp_path, ["[PAD]", "[CLS]", "[SEP]", "superb", *words, "[UNK]"])
    asked = ["attention", str(tmp_path / "run"), "--tokenizer", str(other), "--out", str(tmp_path / "page.html")]
    with pytest.raises(AttsvmError, match="name the tokenizer that it was trained with"):
        raise CliRunner().invoke(app, asked).exception  # type: ignore[misc]
    for content in ("[]", "3", '{"probes": {}}'):
        (tmp_path / "odd.json").write_text(content)
        asked = ["attention", str(tmp_path / "odd.json"), "--out", str(tmp_path / "page.html")]
        with pytest.raises(AttsvmError, match=r"must be an object|must have name"):
            raise CliRunner().invoke(app, asked).exception  # type: ignore[misc]


def test_a_run_is_shown_with_its_own_tokenizer_and_length(tokenizer: Path, tmp_path: Path) -> None:
    reviews = pivotal_reviews()[:10] + pivotal_reviews()[-10:]
    rows = {"text": [r.text for r in reviews] * 2, "label": [r.label for r in reviews] * 2}
    table = pa.table(rows | {"split": ["train"] * 20 + ["test"] * 20})
    parquet.write_table(table, tmp_path / "reviews.parquet")
    load = ["tokens", str(tmp_path / "reviews.parquet"), "--tokenizer", str(tokenizer)]
    assert CliRunner().invoke(app, [*load, "--out", str(tmp_path / "tokens.npz")]).exit_code == 0
    options = ["--layers", "1", "--width", "8", "--hidden", "8", "--lr", "1e-3", "--epochs", "2", "--quiet"]
    for name, source in (
        ("table", [str(tmp_path / "reviews.parquet"), *load[-2:]]),
        ("tokens", [str(tmp_path / "tokens.npz")]),
        ("short", [str(tmp_path / "tokens.npz"), "--length", "4"]),
    ):
        assert CliRunner().invoke(app, ["fit", *source, *options, "--out", str(tmp_path / name)]).exit_code == 0
    words = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    other = write_tokenizer(tmp_path, [*list(words)[:4], *reversed(list(words)[4:])])  # its numbers fit

    def show(run: str, *arguments: str) -> Any:
        page = ["--out", str(tmp_path / "page.html")]
        return CliRunner().invoke(app, ["attention", str(tmp_path / run), *page, *arguments])

    for run in ("table", "tokens"):
        assert show(run, "--tokenizer", str(tokenizer)).exit_code == 0
        with pytest.raises(AttsvmError, match="was trained with a tokenizer of another vocabulary"):
            raise show(run, "--tokenizer", str(other)).exception
    with pytest.raises(AttsvmError, match="but the model was trained with length 4: train one with length"):
        raise show("short", "--tokenizer", str(tokenizer)).exception
    assert show("table", "--tokenizer", str(tokenizer), "--best").exit_code == 0
    assert "table, best epoch" in (tmp_path / "page.html").read_text()
    encode_probes(other).save(tmp_path / "probes.npz")
    assert load_probes(tmp_path / "probes.npz").tokenizer == encode_probes(other).tokenizer


def test_checkpoints_that_do_not_know_their_tokenizer_are_shown(texts: Any, tokenizer: Path, tmp_path: Path) -> None:
    fit(texts, SMALL, out=tmp_path)  # of token numbers alone
    assert load_model(tmp_path, tokenizer=encode_probes(tokenizer).tokenizer) is not None


def rows_of(name: str, folder: Path) -> Rows:
    experiment = CATALOG[name]
    cells = experiment.cells(quick=False)
    return Rows([(cell, experiment.run(cell, range(1), "cpu", {"transformers": str(folder)})) for cell in cells])


def test_experiments_read_what_is_there(pieces: Path) -> None:
    for name in ("md-table1", "md-fig8", "md-fig9"):
        rows = rows_of(name, pieces)
        assert (rows["status"] == shared.FINISHED).sum() == 2 * len(MD)
        CATALOG[name].figure(rows).canvas.draw()
        checks = CATALOG[name].checks(rows)
        assert len(checks) >= 3
        assert all(check.name and check.ours for check in checks)
    by_piece = rows_of("md-table1", pieces).where(piece=f"{MD[0]}-seed1")
    assert by_piece["epochs"][0] == 2
    assert np.isnan(by_piece["test_curve"][0, 2:]).all()
    assert by_piece["best"][0] == by_piece["test_curve"][0, :2].max()


@pytest.mark.parametrize(("shift", "passed"), [(0.001, True), (0.05, False)])
def test_bf16_is_compared_with_float32_at_the_same_rate(tmp_path: Path, shift: float, passed: bool) -> None:
    stem = "imdb3-mirror-adam-p1.1-lr0.001-seed"
    for name, best in [(f"{stem}0", 0.86), (f"{stem}1", 0.85), (f"{stem}2", 0.87), (f"{stem}0-float32", 0.86 - shift)]:
        curve = {"epoch": [1, 2], "train_accuracy": [0.9, 0.996], "test_accuracy": [best, best - 0.01]}
        settings = find_piece(name).settings.to_dict()
        keep(tmp_path, {"name": name, "settings": settings, "stopped": "accuracy", "history": curve})
    (check,) = [c for c in CATALOG["md-table1"].checks(rows_of("md-table1", tmp_path)) if "bf16" in c.name]
    assert check.ours.startswith(f"{100 * shift:+.2f} points (1 seed)")
    assert "deviation of 1.00" in check.ours
    assert check.passed is passed


def test_experiments_say_when_nothing_is_there(tmp_path: Path) -> None:
    for name in ("md-table1", "md-fig8", "md-fig9", "md-vit"):
        rows = rows_of(name, tmp_path)
        CATALOG[name].figure(rows).canvas.draw()
        assert not any(check.passed for check in CATALOG[name].checks(rows))
    with pytest.raises(AttsvmError, match="must be a folder of kept results or data"):
        rows_of("md-vit", tmp_path / "none")


def test_missing_pieces_are_computed_from_data(texts: Any, tokenizer: Path, tmp_path: Path, monkeypatch) -> None:
    save_data(texts, tmp_path / "imdb.npz")
    encode_probes(tokenizer).save(tmp_path / "probes.npz")
    monkeypatch.setattr(shared, "find_piece", lambda name: Piece(name, "imdb", SMALL))
    with torch.no_grad():  # as the runner calls it
        row = shared.run({"piece": "some"}, range(1), "cpu", {"transformers": str(tmp_path)})
    assert row["status"][0] == shared.FINISHED
    assert np.isfinite(row["pivotal"]).all()
    assert np.isfinite(row["chosen"]).all()


KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "transformers"


def test_the_page_of_the_kept_results(tmp_path: Path) -> None:
    kept = sorted(map(str, KEPT.glob("*.json")))
    made = CliRunner().invoke(app, ["attention", *kept, "--out", str(tmp_path / "maps.html")])
    assert made.exit_code == 0, made.output
    assert "nan" not in (tmp_path / "maps.html").read_text()


def test_the_kept_curves_tell_the_comparison() -> None:
    rows = rows_of("md-table1", KEPT)
    checks = {check.name: check for check in CATALOG["md-table1"].checks(rows)}
    compared = checks["size 3: ℓ1.1-MD above ℓ2-MD, best epoch"]
    best = {params["piece"]: columns["best"][0] for params, columns in rows}
    pairs = [(best[f"imdb3-md-p1.1-lr0.0008-seed{n}"], best[f"imdb3-md-p2-lr0.0004-seed{n}"]) for n in range(3)]
    difference = 100 * np.nanmean([a - b for a, b in pairs])  # of the seeds that both have
    assert f"{difference:+.2f}" in compared.ours


def test_weights_are_read_at_rates_at_which_training_came_to_its_rule() -> None:
    rows = rows_of("md-table1", KEPT)
    for layers, found in shared.measured(rows).items():
        for method, runs in found.items():
            rates = [other for other in shared.group_runs(rows) if (other.method, other.layers) == (method, layers)]
            ended = [other for other in rates if not other.variant and other.columns["by_rule"].all()]
            assert runs.columns["by_rule"].all() or not ended
            validated = [other.columns["chosen"][0] for other in ended or rates]
            assert runs.columns["chosen"][0] == max(validated)
    lost = [runs for runs in shared.best_lr(shared.group_runs(rows)) if runs.columns["last"].mean() < 0.6]
    axes = CATALOG["md-table1"].figure(rows).axes[1]
    written = [text.get_text() for text in axes.texts]
    assert written == [f"◂ last epoch {100 * runs.columns['last'].mean():.1f}" for runs in lost]


def test_the_kept_vit_runs_tell_their_comparison() -> None:
    checks = CATALOG["md-vit"].checks(rows_of("md-vit", KEPT))
    kept = [[json.loads(path.read_text()) for path in KEPT.glob(f"vit-{name}-lr*")] for name in ("mirror-adam", "adam")]
    best = [max(rates, key=lambda result: chosen_accuracy(result["history"])) for rates in kept]
    pruned = [100 * result["pruning"]["0.9"] for result in best]
    name = "more accuracy left with MirrorAdam p = 1.1 than with Adam after zeroing 90%"
    (check,) = [check for check in checks if check.name.startswith(name)]
    assert check.ours == "{:.2f}% against {:.2f}%".format(*pruned)
    assert check.passed == (pruned[0] > pruned[1])


def test_the_kept_tables_are_those_of_the_kept_results() -> None:
    tables = runpy.run_path(str(KEPT.parents[1] / "transformer_tables.py"))["tables"](KEPT)
    for name, table in tables.items():
        assert repr(parquet.read_table(KEPT / f"{name}.parquet").to_pylist()) == repr(table.to_pylist())  # nan is nan


def test_the_validated_epoch_is_never_better_than_the_best_of_each_half() -> None:
    even, odd = [0.5, 0.9, 0.7], [0.6, 0.7, 0.8]
    history = {"test_accuracy_even": even, "test_accuracy_odd": odd}
    assert chosen_accuracy(history) == pytest.approx((0.7 + 0.7) / 2)  # odd chooses epoch 3, even chooses epoch 2
    assert np.isnan(chosen_accuracy({"test_accuracy": [0.5]}))


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10))
@settings(deadline=None)
def test_intervals_agree_with_scipy(values: list[float]) -> None:
    from scipy import stats

    x = np.array(values)
    mean, half = interval(x)
    assert mean == pytest.approx(x.mean())
    expected = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    assert half == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_the_sign_flip_test_is_exact_on_small_samples() -> None:
    x = np.array([0.5, 1.0, 2.0, -0.2])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T
    exact = (np.abs(signs @ x) >= abs(x.sum()) - 1e-12).mean()
    assert sign_flip_test(x) == pytest.approx(exact, abs=0.02)
    assert sign_flip_test(np.ones(30)) < 1e-3
    assert sign_flip_test(np.array([1.0, -1.0] * 15)) > 0.9


def test_the_page(pieces: Path, tokenizer: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    data = tmp_path / "data.npz"
    from dataclasses import replace

    save_data(
        replace(synthetic_sentiment(24, 8, length=16), vocabulary=open_tokenizer(tokenizer).get_vocab_size()), data
    )
    options = "layers=2 width=8 hidden=8 length=32 lr=1e-3 epochs=1"
    fit = ["fit", str(data), *(part for pair in options.split() for part in f"--{pair}".split("="))]
    assert CliRunner().invoke(app, [*fit, "--quiet", "--out", str(run)]).exit_code == 0
    page = tmp_path / "maps.html"
    one = pieces / f"{MD[0]}-seed0.json"
    made = CliRunner().invoke(app, ["attention", str(run), str(one), "--tokenizer", str(tokenizer), "--out", str(page)])
    assert made.exit_code == 0, made.output
    text = page.read_text()
    assert text.count('class="review"') == len(pivotal_reviews())
    assert text.count(" pivotal") - text.count("pivotal word") >= 2 * len(pivotal_reviews())
    assert "http" not in text
    plain = re.sub(r"<[^>]*>", "", text)
    assert all(review.text in plain for review in pivotal_reviews())

    (tmp_path / "empty.json").write_text('{"name": "x", "settings": {}, "history": {}}')
    made = CliRunner().invoke(app, ["attention", str(one), str(tmp_path / "empty.json"), "--out", str(page)])
    assert made.exit_code == 0, made.output
    assert "1 model\n" in made.output
    assert "left out, without attention (images, or diverged): empty" in made.output
    for arguments, message in (
        ([str(run)], "--tokenizer must name"),
        ([str(tmp_path / "empty.json")], "but it has none"),
        ([str(tmp_path / "none.json")], "cannot be read as the result of a run: No such file"),
        ([str(one), "--best"], "--best is for folders of transformer fit"),
        ([str(tmp_path / "nowhere"), "--tokenizer", str(tokenizer)], "holds no run of attsvm transformer fit"),
    ):
        with pytest.raises(AttsvmError, match=message):
            raise CliRunner().invoke(app, ["attention", *arguments, "--out", str(page)]).exception


def test_the_page_of_a_synthetic_run_needs_no_tokenizer(pieces: Path, tmp_path: Path) -> None:
    """Words are as dark as their attention, on one scale for all lines."""
    from attsvm.transformer import class_attention, synthetic_probes

    run, page = tmp_path / "run", tmp_path / "maps.html"
    options = "layers=1 width=8 hidden=8 length=32 lr=1e-3 epochs=1"
    fit = ["fit", "synthetic", *(part for pair in options.split() for part in f"--{pair}".split("="))]
    assert CliRunner().invoke(app, [*fit, "--quiet", "--out", str(run)]).exit_code == 0
    made = CliRunner().invoke(app, ["attention", str(run), "--out", str(page)])
    assert made.exit_code == 0, made.output
    probes, reviews = synthetic_probes()
    text = page.read_text()
    plain = re.sub(r"<[^>]*>", "", text)
    assert all(review.text in plain for review in reviews)
    for row, review in enumerate(reviews):
        (at,) = probes.pivotal[row].nonzero().flatten().tolist()
        assert review.text[slice(*probes.spans[row, at].tolist())] == review.word
    found = class_attention(load_model(run), probes)
    shown = re.findall(r'<span class="word[^>]*title="([^"]*)" style="background:rgba\(0,114,178,([^)]*)\)', text)
    shares = [w for row, spans in zip(found["attention"], found["spans"]) for w, (a, b) in zip(row, spans) if a < b]
    assert len(shown) == len(shares)
    for (title, opacity), share in zip(shown, shares):
        assert float(title) == pytest.approx(share, abs=6e-4)
        assert float(opacity) == pytest.approx(0.75 * share, abs=6e-3)
    one = pieces / f"{MD[0]}-seed0.json"
    with pytest.raises(AttsvmError, match="give them a separate page"):
        raise CliRunner().invoke(app, ["attention", str(run), str(one), "--out", str(page)]).exception
