"""The K-level model: trained embeddings against the posterior difference."""

from __future__ import annotations

from attsvm.embeddings import SIZES, AdamWPlan, KLevel
from attsvm.experiments import Check, Columns, Experiment, Params, Rows
from attsvm.experiments._draw import Figure, finish, new_figure
from attsvm.experiments._token_figures import scatter, token_checks
from attsvm.experiments.tokens import stacked, trained_tokens

PAPER, SMALL = "paper", "small"
MODELS = {PAPER: KLevel(), SMALL: KLevel(sizes=tuple(size // 4 for size in SIZES), irrelevant=240, share=0.2)}
SEQUENCES = {PAPER: (8192, 256), SMALL: (1024, 128)}
"""n and T."""


def run(params: Params, trials: range, device: str) -> Columns:
    size = params["size"]
    n, T = SEQUENCES[size]
    rows = []
    for trial in trials:
        data = MODELS[size].sample(n, T, trial=trial)
        schedule = AdamWPlan(epochs=params["epochs"], lr=params["lr"], weight_decay=1e-4)
        rows.append(trained_tokens(data, params["d"], "one-layer", schedule, trial, device))
    return stacked(rows)


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (9, 3.6))
    scatter(axes[0][0], rows, "p", "attention")
    scatter(axes[0][1], rows, "v", "direction")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    return token_checks(rows, "K-level model")


EXPERIMENT = Experiment(
    id="emb-fig2",
    title="Embeddings trained on the K-level model",
    paper="trained-embeddings, Figure 2",
    statement="With all parameters trained until convergence (AdamW, 196 epochs), ⟨E_s, v⟩ separates positive from "
    "negative tokens and ⟨E_s, p⟩ is larger for more important tokens; irrelevant tokens lie around 0 (|S| = 2048, "
    "K = 8, T = 256, d = 2048).",
    grid={"size": [PAPER], "d": [2048], "epochs": [196], "lr": [1e-4]},
    quick_grid={"size": [SMALL], "d": [64], "epochs": [20], "lr": [2e-3]},
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
    cost=lambda params: 500.0 if params["size"] == PAPER else 3.0,
    remark="The paper does not say how many sequences it draws; here n = 8,192, so that nearly all tokens are seen 50 "
    "times. Sizes are |S_k| = 4 + 2^k, which add up to 2,048, and not the printed 4 + 2^(k−1). The paper says that all "
    "tokens appear equally often; by (34) with δ̃ = 0.05 an irrelevant token appears 21 times as often as another. "
    "With --quick: a fifth of the tokens, d = 64, 20 epochs.",
)
