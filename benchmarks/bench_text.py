"""AttentionTextClassifier beside TF-IDF + LogisticRegression: accuracy, CPU time of one thread, memory, faithfulness.

    python benchmarks/bench_text.py --imdb imdb.parquet [--yelp yelp.parquet] [--case imdb-words …] [--markdown FILE]

The tables need columns text, label and split (train, test); labels below 0 are left out. The topics and the short texts
are made here. Every row is measured in a process of its own; tokenization counts in all times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FAITHFUL = 5000
"""Test texts whose words are masked"""


class Data(NamedTuple):
    texts: list[str]
    labels: np.ndarray
    fresh: list[str]
    truth: np.ndarray


def read(path: str, few: int | None = None) -> Data:
    from attsvm.text import read_texts

    parts: list[Any] = []
    for split in ("train", "test"):
        texts, labels = read_texts(path, split=split)
        assert labels is not None
        order = np.random.default_rng(0).permutation(np.flatnonzero(labels >= 0))
        order = order[:few] if split == "train" else order
        parts += [[texts[i] for i in order], labels[order]]
    return Data(*parts)


def made(count: int, classes: int, length: int, seed: int = 0) -> Data:
    """Texts of common words (Zipf's law, the same for all classes) and, one word in ten, words of the class; a third of
    these are drawn from a random other class."""
    random = np.random.default_rng(seed)
    total = count + count // 5
    labels = random.integers(classes, size=total)
    sizes = 1 + random.poisson(length - 1, total)
    owner = np.repeat(labels, sizes)
    marked = random.random(len(owner)) < 0.1
    owner = np.where(random.random(len(owner)) < 1 / 3, random.integers(classes, size=len(owner)), owner)
    common = np.minimum(random.zipf(1.3, len(owner)), 20_000)
    mark = np.minimum(random.zipf(1.3, len(owner)), 200)
    words = [f"c{k}m{j}" if m else f"w{i}" for k, j, i, m in zip(owner, mark, common, marked)]
    ends = np.cumsum(sizes)
    texts = [" ".join(words[end - size : end]) for end, size in zip(ends, sizes)]
    return Data(texts[:count], labels[:count], texts[count:], labels[count:])


def ours(**settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        from attsvm.text import AttentionTextClassifier

        return AttentionTextClassifier(random_state=0, **settings)

    return make


def our_words(text: str) -> list[str]:
    """The words that our model sees: 7/10 is one of them, where scikit-learn sees 10."""
    from attsvm.text import WordTokenizer

    tokens = WordTokenizer()([text])
    return [tokens.vocabulary[i] for i in tokens.ids]


OUR_WORDS: dict[str, Any] = {"tokenizer": our_words, "token_pattern": None, "lowercase": False}
"""Options of scikit-learn's vectorizers"""


def tfidf(
    ngrams: int = 1, least: int = 2, damped: bool = False, tuned: bool = False, own: bool = True
) -> Callable[[], Any]:
    """As it comes; or with damped counts; or with these and C chosen by cross-validation. Its `own` words, or ours."""

    def make() -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline

        words = {} if own else OUR_WORDS
        vectors = TfidfVectorizer(ngram_range=(1, ngrams), min_df=least, sublinear_tf=damped or tuned, **words)
        regression = LogisticRegression(max_iter=1000)
        return make_pipeline(vectors, GridSearchCV(regression, {"C": [1, 4, 16, 64]}, cv=3) if tuned else regression)

    return make


def nb_svm() -> Any:
    """Wang and Manning (2012): a linear SVM on whether a text has a word or pair, times the log of the ratio of its
    shares in the two classes. C is chosen by cross-validation."""
    from scipy.sparse import diags
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.svm import LinearSVC

    class LogRatio(TransformerMixin, BaseEstimator):
        def fit(self, X: Any, y: Any) -> Any:
            one, other = (1 + np.asarray(X[y == label].sum(0)).ravel() for label in (1, 0))
            self.ratio_ = np.log(one / one.sum()) - np.log(other / other.sum())
            return self

        def transform(self, X: Any) -> Any:
            return X @ diags(self.ratio_)

    words = CountVectorizer(ngram_range=(1, 2), min_df=2, binary=True, **OUR_WORDS)
    weighed = Pipeline([("ratio", LogRatio()), ("svm", LinearSVC())])
    return make_pipeline(words, GridSearchCV(weighed, {"svm__C": [0.001, 0.003, 0.01, 0.03, 0.1]}, cv=3))


# data, settings, model
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "imdb-words": ("imdb", ours()),
    "imdb-words-tfidf": ("imdb", tfidf()),
    "imdb-words-tfidf-damped": ("imdb", tfidf(damped=True)),
    "imdb-words-tfidf-tuned": ("imdb", tfidf(tuned=True)),
    "imdb-words-tfidf-tuned-ours": ("imdb", tfidf(tuned=True, own=False)),
    "imdb-words-alike": ("imdb", ours(importance=0.01)),
    "imdb-words-l1.1": ("imdb", ours(p=1.1)),
    "imdb-bigrams": ("imdb", ours(ngrams=2)),
    "imdb-bigrams-tfidf": ("imdb", tfidf(2)),
    "imdb-bigrams-tfidf-tuned": ("imdb", tfidf(2, tuned=True)),
    "imdb-bigrams-tfidf-tuned-ours": ("imdb", tfidf(2, tuned=True, own=False)),
    "imdb-bigrams-nb-svm": ("imdb", nb_svm),
    "yelp-words": ("yelp", ours()),
    "yelp-words-tfidf": ("yelp", tfidf()),
    "yelp-bigrams": ("yelp", ours(ngrams=2)),
    "yelp-bigrams-tfidf": ("yelp", tfidf(2)),
    "imdb-500-texts": ("imdb-500", ours()),
    "imdb-500-texts-tfidf": ("imdb-500", tfidf(least=1)),
    "made-20-topics": ("topics", ours()),
    "made-20-topics-tfidf": ("topics", tfidf()),
    "made-500000-short": ("short", ours()),
    "made-500000-short-tfidf": ("short", tfidf()),
}


def load(name: str, paths: dict[str, str | None]) -> Data:
    if name == "topics":
        return made(10_000, 20, 60)
    if name == "short":
        return made(500_000, 2, 10)
    base, _, few = name.partition("-")
    path = paths[base]
    assert path is not None
    return read(path, int(few) if few else None)


def measure(case: str, paths: dict[str, str | None]) -> dict[str, Any]:
    source, make = CASES[case]
    data = load(source, paths)
    model = make()
    start = time.process_time()
    model.fit(data.texts, data.labels)
    fit = time.process_time() - start
    seconds, predicted = float("inf"), np.empty(0)
    for _ in range(3):  # the noise of a shared machine only ever adds
        start = time.process_time()
        predicted = model.predict(data.fresh)
        seconds = min(seconds, time.process_time() - start)
    row = {
        "case": case,
        "texts": len(data.texts),
        "accuracy": float((predicted == data.truth).mean()),
        "fit": fit,
        "rate": len(data.fresh) / seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    if case in ("imdb-words", "imdb-bigrams", "yelp-words"):
        row |= faithfulness(model, data.fresh[:FAITHFUL])
    if case == "imdb-words":
        row |= {"tops": {str(k): [row["word"] for row in model.words_.top(k, 20)] for k in model.classes_.tolist()}}
        row |= correlations(model, data)
    return row


def faithfulness(model: Any, texts: list[str]) -> dict[str, Any]:
    """What becomes of the predicted class when three words are taken out wherever they stand in the text."""
    random = np.random.default_rng(0)
    masked: dict[str, list[str]] = {"top": [], "random": []}
    explanations = model.explain(texts)
    for one in explanations:
        shares: dict[str, float] = {}
        for start, end, share in one.spans:
            word = one.text[start:end].lower()
            shares[word] = shares.get(word, 0.0) + share
        words = sorted(shares)
        chosen = {
            "top": sorted(words, key=lambda word: -shares[word])[:3],
            "random": [words[i] for i in random.permutation(len(words))[:3]],
        }
        for kind, out in chosen.items():
            kept = [one.text[start:end] for start, end, _ in one.spans if one.text[start:end].lower() not in out]
            masked[kind].append(" ".join(kept))
    place = {label: k for k, label in enumerate(model.classes_.tolist())}
    column = np.array([place[one.label] for one in explanations])
    sure = np.array([one.probability for one in explanations])
    result: dict[str, Any] = {}
    for kind, without in masked.items():
        probability = model.predict_proba(without)
        result[f"flip_{kind}"] = float((probability.argmax(1) != column).mean())
        result[f"drop_{kind}"] = float((sure - probability[np.arange(len(column)), column]).mean())
    scores = model.decision_function([one.text for one in explanations]) * np.where(column == 1, 1, -1)
    sums = np.array([one.bias + one.contribution.sum() for one in explanations])
    return result | {"sum_error": float(np.abs(sums - scores).max())}


def correlations(model: Any, data: Data) -> dict[str, float]:
    """Spearman, over words seen at least 50 times: importance and direction against the posterior difference (37)."""
    from scipy.stats import spearmanr

    tokens = model.tokenizer_(data.texts)
    sign = np.where(data.labels == 1, 1, -1)[tokens.text_of]
    count = tokens.counts()
    difference = np.bincount(tokens.ids, weights=sign, minlength=len(count)) / np.maximum(count, 1)
    number = {word: s for s, word in enumerate(tokens.vocabulary)}
    words = model.words_
    seen = np.array([number[word] for word in words.word])
    kept = count[seen] >= 50
    posterior = difference[seen][kept]
    return {
        "spearman_direction": float(spearmanr(words.direction[kept, 1], posterior)[0]),  # pyright: ignore
        "spearman_importance": float(spearmanr(words.importance[kept], np.abs(posterior))[0]),  # pyright: ignore
        "words_50": int(kept.sum()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | texts | test accuracy | fit, CPU s | predictions per second | peak memory, GB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row["case"], f"{row['texts']:,}", f"{row['accuracy']:.4f}", f"{row['fit']:.1f}", f"{row['rate']:,.0f}")
        lines.append(f"| {' | '.join(cells)} | {row['memory']:.2f} |")
    for row in rows:
        if "flip_top" in row:
            flips, others = f"{100 * row['flip_top']:.1f}%", f"{100 * row['flip_random']:.1f}%"
            falls = f"{row['drop_top']:.3f} against {row['drop_random']:.3f}"
            lines += [
                "",
                f"{row['case']}, three words masked: the class flips in {flips} of the texts for the top words,",
                f"in {others} for random words; its probability falls by {falls}.",
                f"Contributions add up to the score within {row['sum_error']:.0e}.",
            ]
        if "tops" in row:
            lines += ["", *(f"Top words of class {k}: {', '.join(words)}." for k, words in row["tops"].items())]
            lines += [
                "",
                f"Over {row['words_50']:,} words seen at least 50 times the Spearman correlation of the direction with",
                f"the posterior difference is {row['spearman_direction']:.3f}, of the importance with its size "
                f"{row['spearman_importance']:.3f}.",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imdb")
    parser.add_argument("--yelp")
    parser.add_argument("--case", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    paths = {"imdb": options.imdb, "yelp": options.yelp}
    if options.one:
        print(json.dumps(measure(options.one, paths)))
        return
    rows = []
    for case in options.case:
        source = CASES[case][0].partition("-")[0]
        if source in paths and paths[source] is None:
            continue
        command = [sys.executable, __file__, "--one", case]
        command += [part for name, path in paths.items() if path for part in (f"--{name}", path)]
        answer = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
        )
        rows.append(json.loads(answer.stdout))
        print(table(rows[-1:]), flush=True)
    if options.markdown:
        options.markdown.write_text(table(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
