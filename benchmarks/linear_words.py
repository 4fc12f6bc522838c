"""How far coefficients of words follow the posterior difference (37) of trained-embeddings in logistic regression.

    python benchmarks/linear_words.py reviews.npz

Counts of words, L2 penalty from very strong (coefficients are then those of one gradient step) to nearly none: accuracy
on a fifth of the reviews, and Spearman's correlation of the coefficients with (37) over words seen at least 50 times.
reviews.npz is what `paper_reviews("imdb", "imdb.parquet", "tokenizer.json").save` wrote. Needs scikit-learn.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from attsvm.embeddings import Reviews, occurrences, posterior_difference
from attsvm.experiments.rank_correlation import spearman
from attsvm.experiments.tokens import SEEN


def main(path: str) -> None:
    data = Reviews.load(path).sequences
    posterior, often = posterior_difference(data).numpy(), occurrences(data).numpy() >= SEEN
    ids, offsets, labels = data.ids.numpy(), data.offsets.numpy(), data.Y.numpy()
    X = csr_array((np.ones(len(ids)), ids, offsets), shape=(len(labels), data.size))
    test = np.random.default_rng(0).random(len(labels)) < 0.2
    print("| C | test accuracy | Spearman |\n|---|---|---|")
    for strength in range(-5, 3):
        model = LogisticRegression(C=10.0**strength, max_iter=1000).fit(X[~test], labels[~test])
        found = spearman(model.coef_[0][often], posterior[often])
        print(f"| 1e{strength} | {model.score(X[test], labels[test]):.3f} | {found:.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
