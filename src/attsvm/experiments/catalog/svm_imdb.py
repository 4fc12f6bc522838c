"""Attention SVMs of contextual embeddings: the last layer of a transformer that has read real reviews."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attsvm.captures import Attended, capture
from attsvm.data import TokenData
from attsvm.experiments import Check, Columns, Experiment, Params, Rows, at_least, at_most
from attsvm.experiments._draw import BLUE, SERIES, VERMILION, Figure, finish, new_figure
from attsvm.experiments.tokens import stacked
from attsvm.models import TextTransformer
from attsvm.svm import MaxMargin, att_svm, solve
from attsvm.tokenizers import open_tokenizer
from attsvm.transformer import Settings, Texts, fit, load_data

LENGTH = 128
"""Tokens of a review; the reviews whose last layer is looked at have all of them."""
TOL = 1e-6
NORMS = ("l2", "nuclear", "l1", "linf", "spectral")
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Parts of the reviews for which the tokens of largest effect are to be separated."""
HEAD, EFFECT = "head", "effect"


class LastLayer(NamedTuple):
    """What the [CLS] query of the last layer sees: tokens X (n, T, d), queries Z (n, d), logits x_tᵀ W z.

    `basis` (d, d − 1) spans the plane of all tokens: the entries of a layer norm without bias, divided by its weights,
    add up to 0. `effect` (n, T) says how much the logit of the true label falls where the layer does not see the token.
    """

    X: Tensor
    Z: Tensor
    W: Tensor
    basis: Tensor
    effect: Tensor
    accuracy: float


def run(params: Params, trials: range, device: str, sources: Mapping[str, str]) -> Columns:
    data = load_data(sources["imdb"], tokenizer=sources["bert"], length=LENGTH)
    tokenizer = open_tokenizer(sources["bert"])
    rows = []
    for trial in trials:
        width = params["width"]
        sizes = {"layers": 2, "heads": 1, "width": width, "hidden": 2 * width, "length": LENGTH, "dropout": 0.1}
        settings = Settings("adamw", lr=1e-3, sizes=sizes, batch=50, epochs=3, stop=1.0, loss="mean", seed=trial)
        train, test = _some(data.train, params["train"], trial, 1), _some(data.test, params["reviews"], trial, LENGTH)
        with torch.enable_grad():
            fitted = fit(replace(data, train=train, test=test), settings, device=device)
        assert isinstance(fitted.model, TextTransformer)
        layer = last_layer(fitted.model.cpu().eval(), test)
        words = [tokenizer.id_to_token(int(token)) for token in test.tokens.gather(1, _chosen(layer, HEAD)[:, None])]
        rows.append(_measured(layer) | {"words": "\n".join(_most(words))})
    return stacked(rows)


def _some(texts: Any, count: int, seed: int, least: int) -> Texts:
    """Texts of at least so many tokens, drawn at random."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    order = order[texts.lengths[order] >= least][:count]
    return Texts(texts.tokens[order], texts.lengths[order], texts.labels[order])


@torch.no_grad()
def last_layer(model: TextTransformer, texts: Texts) -> LastLayer:
    """The attention of [CLS] in the last layer, in float64, for texts of one length and a model with one head."""
    seen: list[Attended] = []
    with capture(model, seen.append):
        model(texts.tokens.long(), texts.lengths)
    Z, X = (x.double() for x in seen[-1].hidden() if x is not None)
    before, block = cast("list[Any]", list(model.double().blocks))[-2:]
    z, d = Z[:, 0], X.shape[-1]
    of_query, of_key, of_value = block.qkv.weight.chunk(3)
    W = of_key.mT @ of_query / d**0.5
    weight = torch.einsum("ntd,de,ne->nt", X, W, z).softmax(-1)[..., None]
    values = X @ of_value.mT

    def logit(read: Tensor, query: Tensor) -> Tensor:
        x = block.attention_norm(query + block.out(read))
        return model.head(block.norm(x + block.contract(F.gelu(block.expand(x)))))[..., 0]

    read = (weight * values).sum(1)
    whole = logit(read, z)
    without = logit((read[:, None] - weight * values) / (1 - weight), z[:, None])
    sign = 2.0 * texts.labels - 1
    plane = torch.linalg.svd((1 / before.norm.weight)[None], full_matrices=True)[2]
    return LastLayer(
        X, z, W, plane[1:].mT, sign[:, None] * (whole[:, None] - without), float((sign * whole > 0).double().mean())
    )


def _chosen(layer: LastLayer, selection: str) -> Tensor:
    """(n,) the token that the head attends to most, or the one of largest effect."""
    logits = torch.einsum("ntd,de,ne->nt", layer.X, layer.W, layer.Z)
    return (logits if selection == HEAD else layer.effect).argmax(1)


def _solved(layer: LastLayer, selection: str, norm: str, count: int) -> tuple[MaxMargin, Tensor]:
    """The attention SVM of the first reviews, and W of the head in its coordinates.

    Norms that do not depend on the basis are taken in the plane of the tokens: out of it they differ by rounding alone.
    """
    X, Z, W = layer.X[:count], layer.Z[:count], layer.W
    if norm not in ("l1", "linf"):
        X, Z, W = X @ layer.basis, Z @ layer.basis, layer.basis.mT @ W @ layer.basis
    return solve(att_svm(TokenData.cross(X, Z), _chosen(layer, selection)[:count]), norm, tol=TOL), W


def _measured(layer: LastLayer) -> dict[str, Any]:
    n = len(layer.X)
    row: dict[str, Any] = {"accuracy": layer.accuracy, "tokens": layer.X.shape[1]}
    parts = [max(2, round(share * n)) for share in SHARES]
    by_part = [_solved(layer, EFFECT, "l2", count)[0] for count in parts]
    row["parts"] = np.array(parts)
    row["part_status"] = np.array([int(found.codes[0]) for found in by_part])
    row["part_margin"] = np.array([found.margin.item() for found in by_part])
    for selection, count, norms in ((HEAD, n, NORMS), (EFFECT, parts[0], NORMS[:4])):
        for norm in norms:
            solution, W = _solved(layer, selection, norm, count)
            sizes = torch.linalg.svdvals(solution.W[0].nan_to_num())
            facts = {
                "status": int(solution.codes[0]),
                "gap": solution.gap.item(),
                "margin": solution.margin.item(),
                "efficiency": solution.efficiency(W).item(),
                "rank": int((sizes > 1e-6 * sizes[0]).sum()),
                "zeros": float((solution.W[0].abs() <= 1e-6 * solution.W[0].abs().max()).double().mean()),
                "support": int(solution.support.sum()),
                "cosine": torch.cosine_similarity(solution.W[0].flatten(), W.flatten(), dim=0).item(),
                "spectrum": _spectrum(sizes, layer.X.shape[2]),
            }
            row |= {f"{selection} {norm} {name}": value for name, value in facts.items()}
    row["head spectrum"] = _spectrum(torch.linalg.svdvals(layer.W), layer.X.shape[2])
    row["agree"] = (_chosen(layer, HEAD) == _chosen(layer, EFFECT)).double().mean().item()
    row["reviews_seen"] = n
    return row


def _spectrum(sizes: Tensor, d: int) -> np.ndarray:
    """Singular values over the largest, filled up to d of them."""
    found = np.zeros(d)
    found[: len(sizes)] = (sizes / sizes[0].clamp_min(1e-300)).numpy()
    return found


def _most(words: list[str]) -> list[str]:
    names, times = np.unique(words, return_counts=True)
    return [f"{names[k]} {times[k]}" for k in times.argsort()[::-1][:12]]


def figure(rows: Rows) -> Figure:
    figure, axes = new_figure(1, 2, (10, 3.8))
    left, right = axes[0]
    for look, norm in zip(SERIES, ("l2", "nuclear", "spectral")):
        spectrum = rows[f"{HEAD} {norm} spectrum"][0]
        left.plot(np.arange(1, len(spectrum) + 1), spectrum.clip(1e-9), color=look.colour, ls=look.line, label=norm)
    trained = rows["head spectrum"][0]
    left.plot(np.arange(1, len(trained) + 1), trained.clip(1e-9), color="black", lw=1, label="W of the trained head")
    left.set(yscale="log", ylim=(1e-4, 1.5), xlabel="singular value of W", ylabel="over the largest")
    left.set_title("W of largest margin for the head's own selection")
    parts, margin, status = rows["parts"][0], rows["part_margin"][0], rows["part_status"][0]
    solved = status == 0
    right.plot(parts[solved], margin[solved], "o-", color=BLUE, label="largest margin")
    floor = margin[solved].min() / 10 if solved.any() else 1e-6
    right.plot(
        parts[~solved], np.full((~solved).sum(), floor), "x", color=VERMILION, label="proved: no W separates them"
    )
    right.set(xscale="log", yscale="log", xlabel="reviews", ylabel="margin of W/‖W‖, ℓ2")
    right.set_title("the token of largest effect on the label")
    return finish(figure)


def checks(rows: Rows) -> list[Check]:
    found = []
    count, tokens = int(rows["reviews_seen"][0]), int(rows["tokens"][0])
    status, parts = rows["part_status"], rows["parts"][0]
    most = int(parts[(status == 0).all(0)].max(initial=0))
    least = int(parts[(status == 1).all(0)].min(initial=count + 1))
    for norm in NORMS:
        names = ("efficiency", "rank", "support", "zeros")
        head = {name: float(rows[f"{HEAD} {norm} {name}"].mean()) for name in names}
        kinds = (HEAD, EFFECT) if f"{EFFECT} {norm} gap" in rows.cells[0][1] else (HEAD,)
        gap = float(max(rows[f"{selection} {norm} gap"].max() for selection in kinds))
        note = (
            f"margin {rows[f'{HEAD} {norm} margin'].mean():.3g}, rank {head['rank']:.0f}, {head['support']:.0f} rows "
        )
        note += f"at the margin, {head['zeros']:.0%} of W zero, cosine with W of the head "
        note += f"{rows[f'{HEAD} {norm} cosine'].mean():.2f}"
        if EFFECT in kinds:
            note += f"; by effect, {parts[0]} reviews: margin {rows[f'{EFFECT} {norm} margin'].mean():.2g}, rank "
            note += f"{rows[f'{EFFECT} {norm} rank'].mean():.0f}"
        found += [
            at_most(
                f"{norm}: gap on {count * (tokens - 1):,} rows of the head's own selection",
                gap,
                TOL,
                "solved and certified",
                note,
            ),
            at_most(f"{norm}: margin efficiency of the trained head", head["efficiency"], 1.0, extra=True),
        ]
    ranks = {norm: float(rows[f"{HEAD} {norm} rank"].max()) for norm in ("l2", "nuclear")}
    found += [
        at_most(
            "rank of the nuclear solution over that of ℓ2",
            ranks["nuclear"] / ranks["l2"],
            0.5,
            "the nuclear norm prefers low rank",
        ),
        at_least(
            "share of parts in which the tokens of largest effect are separated, or proved not to be",
            float((status < 2).mean()),
            1.0,
            note=f"separated by one W up to {most} reviews, proved impossible from {least} of them on; the head "
            f"attends most to that token in {rows['agree'].mean():.1%} of the reviews; test accuracy of the model "
            f"{rows['accuracy'].mean():.3f}",
        ),
    ]
    return found


EXPERIMENT = Experiment(
    id="svm-imdb",
    title="Attention SVMs of contextual embeddings of reviews",
    statement="The tokens that the last layer of a trained transformer selects in a thousand real reviews are "
    "separated from all other tokens by a W of largest margin: in five norms, certified on all rows, compared with the "
    "W of the head. Whether the tokens of largest effect on the label can be separated is decided too.",
    grid={"width": [16], "train": [25_000], "reviews": [1000]},
    quick_grid={"train": [1000], "reviews": [200]},
    needs=("imdb", "bert"),
    run=run,
    figure=figure,
    checks=checks,
    trials=1,
    quick=1,
    cost=lambda params: 40 + 0.003 * params["train"] + 0.15 * params["reviews"],
    remark="The model is the text transformer of the mirror-descent paper with two layers, one head and width 16, "
    "trained for three epochs of AdamW on the first 128 tokens of the training reviews; the reviews are test reviews "
    "of at least that length. X and z are what the last layer reads. A head always separates its own selection, so "
    "that those problems have a solution; how far the head is from the largest margin is what is measured. The effect "
    "of a token is how much the logit of the true label falls if the last layer does not see it.",
)
