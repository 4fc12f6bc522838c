"""Margin problems of real text, emb-imdb-svm and svm-imdb, on small data of the tests' own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attsvm.embeddings import KLevel, Reviews
from attsvm.experiments import Rows, fine
from attsvm.experiments.catalog import emb_imdb_svm, svm_imdb
from attsvm.models import TextTransformer
from attsvm.svm import Status
from attsvm.transformer import Texts


@pytest.mark.parametrize("irrelevant", [30, 600])
def test_the_cls_vector_of_reviews_is_found_and_compared(tmp_path: Path, irrelevant: int) -> None:
    """With few words and with many, which are priced from their embeddings."""
    model = KLevel(sizes=(4, 8), levels=(0.3, 0.05), irrelevant=irrelevant, share=0.3)
    data = model.sample(300, 80)
    Reviews(data, [f"word{k}" for k in range(data.size)]).save(tmp_path / "imdb.npz")
    params = {"d": 24, "epochs": 2}
    columns = emb_imdb_svm.run(params, range(1), "cpu", {"imdb": str(tmp_path / "imdb.npz")})
    rows = Rows([(params, columns)])
    assert fine([check for check in emb_imdb_svm.checks(rows) if not check.extra and "posterior" not in check.name])
    for stage in (emb_imdb_svm.START, emb_imdb_svm.TRAINED):
        assert columns[f"{stage} solved"].all()
        assert columns[f"{stage} least"].min() >= 1 - 1e-9
        assert 0 < columns[f"{stage} efficiency"].max() <= 1
        # No pair lies below the largest margin at the solution; some do at p, unless p is the solution.
        below = columns[f"{stage} below_hat"][0][emb_imdb_svm.LEVELS < 1 - 1e-6]
        assert below.max() == 0
    assert str(columns["trained words"][0]).startswith("word")
    assert len(emb_imdb_svm.figure(rows).axes) == 3


@pytest.fixture(scope="module")
def reading() -> tuple[TextTransformer, Texts]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = TextTransformer(vocabulary=50, length=12, width=8, hidden=16, layers=2, heads=1, dropout=0.0).eval()
        tokens = torch.randint(50, (40, 12))
        for block in model.blocks:  # norms as training leaves them
            block.norm.weight.data.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return model, Texts(tokens, torch.full((40,), 12), torch.arange(40) % 2)


def test_the_last_layer_is_that_of_the_model(reading: tuple[TextTransformer, Texts]) -> None:
    model, texts = reading
    logits, maps = model.double().attention(texts.tokens, texts.lengths)
    layer = svm_imdb.last_layer(model.float(), texts)
    weights = torch.einsum("ntd,de,ne->nt", layer.X, layer.W, layer.Z).softmax(-1)
    assert torch.allclose(weights, maps[-1][:, 0, 0], atol=1e-6)
    right = (logits[:, 1] > 0) == (texts.labels > 0)
    assert layer.accuracy == pytest.approx(right.double().mean().item())
    # The tokens lie in the plane of the basis: nothing is lost in its coordinates.
    assert torch.allclose(layer.X @ layer.basis @ layer.basis.mT, layer.X, atol=1e-5)


def test_the_effect_of_a_token_is_what_the_layer_loses_without_it(reading: tuple[TextTransformer, Texts]) -> None:
    """For a review of one token more, seen and not seen by the last layer: only its keys and values change."""
    model, texts = reading
    layer = svm_imdb.last_layer(model.float(), texts)
    block, head = model.double().blocks[-1], model.head
    sign = 2.0 * texts.labels - 1
    for hidden in (0, 5):
        seen = torch.arange(12) != hidden
        weights = torch.einsum("ntd,de,ne->nt", layer.X[:, seen], layer.W, layer.Z).softmax(-1)
        whole = torch.einsum("ntd,de,ne->nt", layer.X, layer.W, layer.Z).softmax(-1)
        value = block.qkv.weight[16:]  # type: ignore[union-attr, index]
        out = []
        for weight, X in ((whole, layer.X), (weights, layer.X[:, seen])):
            x = layer.Z + block.out(torch.einsum("nt,ntd->nd", weight, X @ value.mT))  # type: ignore[union-attr, operator]
            x = block.attention_norm(x)  # type: ignore[union-attr, operator]
            x = block.norm(x + block.contract(torch.nn.functional.gelu(block.expand(x))))  # type: ignore[union-attr, operator]
            out.append(head(x)[:, 0])
        assert torch.allclose(sign * (out[0] - out[1]), layer.effect[:, hidden], atol=1e-12)


def test_contextual_problems_are_solved_or_proved_impossible(reading: tuple[TextTransformer, Texts]) -> None:
    model, texts = reading
    measured = svm_imdb._measured(svm_imdb.last_layer(model.float(), texts))
    rows = Rows([({}, {name: np.asarray(value)[None] for name, value in measured.items()})])
    status = rows["part_status"][0]
    assert (status != Status.NOT_CONVERGED).all()
    assert (np.diff(status) >= 0).all()  # more reviews are harder to separate
    assert all(rows[f"head {norm} status"][0] == Status.SOLVED for norm in svm_imdb.NORMS)
    assert rows["head nuclear rank"][0] <= rows["head l2 rank"][0] <= 7
    assert len(svm_imdb.checks(rows)) == 2 * len(svm_imdb.NORMS) + 2
    assert len(svm_imdb.figure(rows).axes) == 2
