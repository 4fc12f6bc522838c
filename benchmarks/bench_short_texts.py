"""AttentionTextClassifier on short texts, beside TF-IDF with a tuned logistic regression and a tuned linear SVM.

    python benchmarks/bench_short_texts.py --imdb imdb.parquet --yelp yelp.parquet --wikitext train.txt.gz

Sentences and beginnings of reviews, questions without their question word, sentences of articles, docstrings of
installed packages, and made questions. Every set is cut in two halves. What the classifier chooses by itself, and from
what, was designed on the first halves (`--half 0`); the table is of the second ones. A split draws the training texts
anew, and up to 4,000 other texts of the half to judge by.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import html
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from bench_text import OUR_WORDS
from made_questions import make_questions

Set = tuple[list[str], list[Any]]
SPLITS = 3
JUDGES = 4000
SIZES = {
    "sentences of IMDB, 2 classes": 3000,
    "ends of IMDB, 8 ratings": 2000,
    "beginnings of Yelp, 5 stars": 2000,
    "sentences of Yelp, 2 classes": 1500,
    "questions of both, 6 words": 1800,
    "sentences of 12 articles": 1000,
    "docstrings of 12 packages": 2000,
    "made questions, 6 types": 1000,
}
"""Training texts"""
PACKAGES = "numpy scipy sklearn torch sympy matplotlib networkx transformers pyarrow rich setuptools dask"
QUESTION_WORDS = ("who", "what", "where", "when", "why", "how")


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", text))


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+", plain(text)) if part.strip()]


def between(texts: list[str], least: int, most: int) -> list[str]:
    return [text for text in texts if least <= len(text.split()) <= most]


def review_sets(imdb: str, yelp: str, random: np.random.Generator) -> Iterator[Set]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(imdb).to_pydict()
    order = random.permutation(len(table["text"]))
    last = [
        (found[-1], table["label"][i]) for i in order[:40_000] if (found := between(sentences(table["text"][i]), 6, 20))
    ]
    yield [text for text, _ in last], [label for _, label in last]
    ends = [" ".join(plain(table["text"][i]).split()[-25:]) for i in order[:20_000]]
    yield ends, [table["rating"][i] for i in order[:20_000]]
    asked = [part for i in order for part in sentences(table["text"][i]) if part.endswith("?")]

    table = parquet.read_table(yelp).to_pydict()
    order = random.permutation(len(table["text"]))
    rated = [i for i in order if table["stars"][i] is not None]
    yield [" ".join(plain(table["text"][i]).split()[:12]) for i in rated], [int(table["stars"][i]) for i in rated]
    told = [i for i in order if table["label"][i] >= 0]
    first = [(found[0], table["label"][i]) for i in told if (found := between(sentences(table["text"][i]), 4, 20))]
    labels = np.array([label for _, label in first])
    bad = np.flatnonzero(labels == 0)
    kept = random.permutation(np.concatenate([bad, np.flatnonzero(labels == 1)[: len(bad)]]))  # as many of each
    yield [first[i][0] for i in kept], labels[kept].tolist()

    asked += [part for i in order for part in sentences(table["text"][i]) if part.endswith("?")]
    words = [text.split() for text in between(asked, 4, 20)]
    words = [(re.sub(r"\W", "", first).lower(), " ".join(rest)) for first, *rest in words]
    words = [(word, rest) for word, rest in words if word in QUESTION_WORDS]
    kept = random.permutation(len(words))
    yield [words[i][1] for i in kept], [words[i][0] for i in kept]


def articles(wikitext: str, random: np.random.Generator) -> Set:
    """Sentences of the twelve longest articles."""
    found: dict[str, list[str]] = {}
    name = None
    for line in gzip.decompress(Path(wikitext).read_bytes()).decode().split("\n"):
        if title := re.match(r"^ = ([^=].*[^=]) = $", line):
            name = title.group(1)
            found[name] = []
        elif name and line.strip() and not line.startswith(" ="):
            found[name] += between(re.split(r"(?<= [.!?]) ", line), 8, 25)
    longest = sorted(found, key=lambda name: -len(found[name]))[:12]
    texts = [(text.replace("@", "").replace("<unk>", ""), name) for name in longest for text in found[name]]
    kept = random.permutation(len(texts))
    return [texts[i][0] for i in kept], [texts[i][1] for i in kept]


def docstrings(random: np.random.Generator) -> Set:
    """First paragraphs; which package are they from?"""
    found: list[tuple[str, str]] = []
    for package in PACKAGES.split():
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        mine: set[str] = set()
        for file in sorted(Path(spec.origin).parent.rglob("*.py")):
            try:
                tree = ast.parse(file.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and (said := ast.get_docstring(node)):
                    mine.update(between([" ".join(said.split("\n\n")[0].split())], 4, 25))
        ordered = sorted(mine)
        found += [(ordered[i], package) for i in random.permutation(len(ordered))[:900]]
    kept = random.permutation(len(found))
    return [found[i][0] for i in kept], [found[i][1] for i in kept]


def all_sets(options: argparse.Namespace) -> dict[str, Set]:
    random = np.random.default_rng(0)
    sets = [*review_sets(options.imdb, options.yelp, random), articles(options.wikitext, random), docstrings(random)]
    return dict(zip(SIZES, [*sets, make_questions(8000)]))


def split(data: Set, size: int, half: int, seed: int) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    texts, labels = data
    count = len(texts) // 2
    order = half * count + np.random.default_rng(seed).permutation(count)
    fit, judge = order[:size], order[size : size + JUDGES]
    names = np.array(labels)
    return [texts[i] for i in fit], names[fit], [texts[i] for i in judge], names[judge]


def ours(**settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        from attsvm.text import AttentionTextClassifier

        return AttentionTextClassifier(random_state=0, **settings)

    return make


def tfidf(svm: bool, **words: Any) -> Callable[[], Any]:
    """C and the longest n-grams by cross-validation."""

    def make() -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import Pipeline
        from sklearn.svm import LinearSVC

        model = LinearSVC() if svm else LogisticRegression(max_iter=1000)
        strengths = [0.1, 0.3, 1] if svm else [1, 5, 25]
        steps = Pipeline([("words", TfidfVectorizer(sublinear_tf=True, **words)), ("model", model)])
        grid = {"words__ngram_range": [(1, 1), (1, 2)], "model__C": strengths}
        return GridSearchCV(steps, grid, cv=3)

    return make


MODELS: dict[str, Callable[[], Any]] = {
    "attsvm": ours(),
    "attsvm, characters=4": ours(characters=4),
    "words of 2 texts": ours(ngrams=1, min_texts=2, importance=0.5, rarity=0.5),
    "TF-IDF + LR": tfidf(svm=False),
    "TF-IDF + LinearSVC": tfidf(svm=True),
    "our words + LR": tfidf(svm=False, **OUR_WORDS),
    "our words + LinearSVC": tfidf(svm=True, **OUR_WORDS),
}


def table(rows: list[dict[str, Any]], models: list[str]) -> str:
    lines = [f"| accuracy (CPU s of the fit) | texts | {' | '.join(models)} |", "|---" * (len(models) + 2) + "|"]
    names = list(dict.fromkeys(row["set"] for row in rows))
    means: dict[str, list[float]] = {model: [] for model in models}
    for name in names:
        cells = []
        for model in models:
            mine = [row for row in rows if row["set"] == name and row["model"] == model]
            means[model].append(float(np.mean([row["accuracy"] for row in mine])))
            cells.append(f"{100 * means[model][-1]:.1f} ({np.mean([row['seconds'] for row in mine]):.1f})")
        lines.append(f"| {name} | {SIZES[name]:,} | {' | '.join(cells)} |")
    lines.append(f"| mean | | {' | '.join(f'{100 * np.mean(means[model]):.2f}' for model in models)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imdb", required=True)
    parser.add_argument("--yelp", required=True)
    parser.add_argument("--wikitext", required=True, help="WikiText-2, training part, packed with gzip")
    parser.add_argument("--half", type=int, choices=[0, 1], default=1)
    parser.add_argument("--model", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--rows", type=Path, help="file of rows to read and to add to: a run that was broken off resumes"
    )
    parser.add_argument("--markdown", type=Path, help="file to write the table to")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    done = {(row["set"], row["model"], row["split"]) for row in rows}
    for name, data in all_sets(options).items():
        for seed in range(SPLITS):
            texts, labels, fresh, truth = split(data, SIZES[name], options.half, seed)
            for model in options.model:
                if (name, model, seed) in done:
                    continue
                start = time.process_time()
                fitted = MODELS[model]().fit(texts, labels)
                seconds = time.process_time() - start
                accuracy = float((fitted.predict(fresh) == truth).mean())
                row = {"set": name, "model": model, "split": seed, "accuracy": accuracy, "seconds": seconds}
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if options.rows:
                    with options.rows.open("a", encoding="utf-8") as file:
                        print(json.dumps(row), file=file)
    result = table([row for row in rows if row["model"] in options.model], options.model)
    print(result)
    if options.markdown:
        options.markdown.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
