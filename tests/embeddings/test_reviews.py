"""Reviews from tables to sequences, and the experiments on them as a user types them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attsvm import AttsvmError
from attsvm.embeddings import Reviews, occurrences, paper_reviews, posterior_difference, read_reviews

pa = pytest.importorskip("pyarrow")
pytest.importorskip("snowballstemmer")

GOOD, BAD, PLAIN = ("superb", "charming"), ("dreadful", "boring"), ("film", "actor", "scene", "city", "river", "door")


def write(path: Path, texts: list[str], labels: list[int]) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": texts, "label": labels}), path)
    return path


def made_up(n: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Reviews whose good and bad words follow the label nine times in ten."""
    stream = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(n):
        words = list(stream.choice(PLAIN, size=stream.integers(3, 9)))
        side = GOOD if (stream.random() < 0.9) == (i % 2 == 1) else BAD
        texts.append(" ".join(stream.permutation([*words, stream.choice(side), "the"])) + ".")
        labels.append(i % 2)
    return texts, labels


def test_tokens_are_stems_without_stop_words(tmp_path: Path) -> None:
    reviews = read_reviews(write(tmp_path / "r.parquet", *made_up(300)))
    assert "the" not in reviews.vocabulary
    assert "charm" in reviews.vocabulary
    assert reviews.sequences.n == 300
    difference = dict(zip(reviews.vocabulary, posterior_difference(reviews.sequences).tolist()))
    assert difference["superb"] > 0.6
    assert difference["dread"] < -0.6
    assert bool((occurrences(reviews.sequences) >= 50).all())


def test_prepared_reviews_come_back(tmp_path: Path) -> None:
    reviews = read_reviews(write(tmp_path / "r.parquet", *made_up(200)), least=5)
    reviews.save(tmp_path / "r.npz")
    back = read_reviews(tmp_path / "r.npz")
    assert back.vocabulary == reviews.vocabulary
    assert back.sequences.ids.tolist() == reviews.sequences.ids.tolist()
    assert back.sequences.Y.tolist() == reviews.sequences.Y.tolist()
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(AttsvmError, match="prepared reviews"):
        Reviews.load(tmp_path / "other.npz")


def test_sides_lengths_and_balance(tmp_path: Path) -> None:
    texts = ["fine film " * 120, "poor film " * 120, "fine film", "middling film " * 90, "fine actor " * 100] * 30
    labels = [1, 0, 1, -1, 1] * 30
    yelp = write(tmp_path / "yelp.parquet", texts, labels)
    everything = read_reviews(yelp)
    assert everything.sequences.n == 120  # without those that take no side
    chosen = paper_reviews("yelp", yelp)
    assert chosen.sequences.n == 60  # long ones, as many good as bad
    assert float(chosen.sequences.Y.sum()) == 0
    stars = write(tmp_path / "stars.parquet", texts, [4, 0, 3, 2, 1] * 30)
    assert read_reviews(stars).sequences.Y.tolist()[:4] == [1, -1, 1, -1]


def test_a_folder_of_tables_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "data" / "test").mkdir(parents=True)
    texts, labels = made_up(100)
    write(tmp_path / "data" / "train.parquet", texts[:60], labels[:60])
    write(tmp_path / "data" / "test" / "0.parquet", texts[60:], labels[60:])
    assert read_reviews(tmp_path / "data", least=1).sequences.n == 100


def test_unusable_reviews_are_refused(tmp_path: Path) -> None:
    texts, labels = made_up(20)
    for name, wrong, match in (
        ("rare", labels, "no token"),
        ("threes", [label + 5 for label in labels], "labels 0 and 1"),
        ("sides", [label + (k % 4 == 1) for k, label in enumerate(labels)], r"it has \[0, 1, 2\]"),
    ):
        with pytest.raises(AttsvmError, match=match):
            read_reviews(write(tmp_path / f"{name}.parquet", texts, wrong))
    (tmp_path / "empty").mkdir()
    with pytest.raises(AttsvmError, match="parquet"):
        read_reviews(tmp_path / "empty")


def test_reproduce_as_typed(tmp_path: Path) -> None:
    """emb-fig3 and emb-fig4 on made-up reviews: rows, checks and figure; the words that carry the label stand out."""
    typer = pytest.importorskip("typer")
    from typer.testing import CliRunner

    from attsvm.cli._reproduce import reproduce_command
    from attsvm.experiments import CATALOG
    from attsvm.experiments._store import read_stored

    texts, labels = made_up(400)
    imdb = write(tmp_path / "imdb.parquet", texts, labels)
    yelp = write(tmp_path / "yelp.parquet", [text * 20 for text in texts], labels)
    app = typer.Typer()
    app.command("reproduce")(reproduce_command)
    command = ["emb-fig3", "emb-fig4", "--quick", "--workers", "0", "--quiet", "--out", str(tmp_path / "runs")]
    missing = CliRunner().invoke(app, [*command, "--data", f"imdb={imdb}"])
    assert isinstance(missing.exception, AttsvmError)
    assert "--data yelp=PATH" in str(missing.exception)
    done = CliRunner().invoke(app, [*command, "--data", f"imdb={imdb}", "--data", f"yelp={yelp}"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    for name in ("emb-fig3", "emb-fig4"):
        stored = read_stored(tmp_path / "runs", CATALOG[name])
        assert stored is not None
        rows = stored.rows()
        assert CATALOG[name].figure(rows) is not None
        assert CATALOG[name].checks(rows)
        cell = rows.where(data="yelp" if name == "emb-fig4" else "imdb")
        sure = np.abs(cell["posterior"][0]) > 0.5
        assert (np.sign(cell["v"][0][sure]) == np.sign(cell["posterior"][0][sure])).all()
