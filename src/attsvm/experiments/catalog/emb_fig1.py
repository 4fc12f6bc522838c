"""IMDB reviews, two layers: trained embeddings against the posterior difference."""

from __future__ import annotations

from attsvm.experiments import Experiment
from attsvm.experiments._token_figures import review_figure, two_layer_checks
from attsvm.experiments.tokens import run_reviews

EXPERIMENT = Experiment(
    id="emb-fig1",
    title="Embeddings trained on IMDB reviews, two layers",
    paper="trained-embeddings, Figure 1",
    statement="In the two-layer model (36), with skip connection and layer norm, ⟨E_s, v⟩ follows the posterior "
    "difference and ⟨E_s, p⟩ its modulus, as in one layer; the loss ends near 10⁻⁵ (AdamW, 500 epochs, d = 2048).",
    grid={"data": ["imdb"], "model": ["two-layer"], "d": [128], "epochs": [5]},
    quick_grid={"d": [32], "epochs": [1]},
    needs=("imdb",),
    accepts=("bert",),
    run=run_reviews,
    figure=review_figure,
    checks=two_layer_checks,
    trials=1,
    quick=1,
    cost=lambda params: params["epochs"] * params["d"] * 0.5,
    remark="d = 128, fewer epochs, and the learning rate reduced at 1/5 and 2/5 of them. A step of AdamW moves v by "
    "up to lr in every coordinate, and so the output of a layer-normed row by up to 0.8·lr·d: by 16 with the "
    "paper's lr = 0.01 and d = 2048. What came of d = 2048 is in docs/papers.md. Layer norm has no parameters here. "
    "Batches hold reviews of similar length. With --quick: d = 32.",
)
