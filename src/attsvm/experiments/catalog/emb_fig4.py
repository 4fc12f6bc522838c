"""Yelp reviews, two layers: trained embeddings against the posterior difference."""

from __future__ import annotations

from dataclasses import replace

from attsvm.experiments.catalog import emb_fig1

EXPERIMENT = replace(
    emb_fig1.EXPERIMENT,
    id="emb-fig4",
    title="Embeddings trained on Yelp reviews, two layers",
    paper="trained-embeddings, Figure 4",
    grid={"data": ["yelp"], "model": ["two-layer"], "d": [128], "epochs": [200]},
    quick_grid={"d": [32], "epochs": [60]},
    needs=("yelp",),
    cost=lambda params: params["epochs"] * params["d"] * 0.006,
)
