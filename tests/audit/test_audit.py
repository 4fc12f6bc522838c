"""Every number of an audit against a naive computation: loops over queries, dense matrices, whole softmax rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attsvm
from attsvm.auditing import QUANTILES, Audit, audit_rule, certify_change, largest_pruning, pruning, quantisation
from attsvm.auditing import audit as run_audit
from attsvm.captures import capture
from attsvm.models import GPT, TextTransformer, ViT

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "film", "was", "good", "bad", "not", "and", ",", ".", "plot"]
TEXTS = [
    "the film was good , and the plot was not bad .",
    "not good .",
    "the plot was bad and the film was not good , not good , and bad .",
]


def made_gpt() -> GPT:
    torch.manual_seed(0)
    model = GPT(vocabulary=len(WORDS), length=24, width=12, layers=2, heads=3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn_like(weight))
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from made_tokenizer import write_tokenizer

    from attsvm.tokenizers import open_tokenizer

    return open_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), WORDS))


@pytest.fixture(scope="module")
def audited(tokenizer: Any) -> Audit:
    return run_audit(made_gpt(), tokenizer, TEXTS, batch=2, queries=12, competitors=3)


def dense(model: Any, ids: list[int]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Logits (H, T, T), what the layer reads (T, d), and the weights of queries and keys, layer by layer."""
    found = []
    x = model.words(torch.tensor(ids)) + model.positions.weight[: len(ids)]
    for block in model.blocks:
        y = block.attention_norm(x)
        W_q, W_k, _ = (w.view(3, 4, 12) for w in block.qkv.weight.chunk(3))
        q, k = (torch.einsum("hcd,td->htc", w, y) for w in (W_q, W_k))
        logits = q @ k.mT / 2
        logits = logits.masked_fill(~torch.ones(len(ids), len(ids), dtype=torch.bool).tril(), -torch.inf)
        found.append((logits.detach(), y.detach(), W_q.detach(), W_k.detach()))
        x = block(x[None])[0]
    return found


def test_sums_over_queries(audited: Audit, tokenizer: Any) -> None:
    model = made_gpt()
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    layers = [dense(model, own) for own in ids]
    assert audited.tokens == sum(map(len, ids))
    assert audited.texts == len(TEXTS)
    flat = [token for own in ids for token in own if token > 3]
    by_count = sorted(set(flat), key=lambda token: (flat.count(token), token))
    rare, room = set(), 0.1 * len(flat)
    while (room := room - flat.count(by_count[0])) >= 0:
        rare.add(by_count.pop(0))
    for place, layer in enumerate(("blocks.0", "blocks.1")):
        for head in range(3):
            rows, sinks = [], []
            for own, found in zip(ids, layers):
                weights = found[place][0][head].softmax(-1)
                sinks.append(float(weights.mean(0).max()))
                for query in range(len(own)):
                    row = weights[query]
                    selected = int(row.argmax())
                    rows.append(
                        {
                            "saturated": float(row.max() >= 0.9),
                            "confidence": float(row.max()),
                            "entropy": -sum(float(w) * math.log(w) for w in row if w > 0),
                            "first_weight": float(row[0]),
                            "first": selected == 0,
                            "self": selected == query,
                            "previous": selected == query - 1,
                            "next": selected == query + 1,
                            "special": own[selected] in (1, 2),
                            "punctuation": own[selected] in (11, 12),
                            "rare": own[selected] in rare,
                        }
                    )
            measured = audited[layer, head].measures
            assert audited[layer, head].queries == len(rows)
            for name in rows[0]:
                assert measured[name] == pytest.approx(sum(row[name] for row in rows) / len(rows), abs=1e-5), name
            assert measured["sink"] == pytest.approx(sum(sinks) / len(sinks), abs=1e-5)


def test_batches_change_nothing(audited: Audit, tokenizer: Any) -> None:
    alone = run_audit(made_gpt(), tokenizer, TEXTS, batch=1, queries=12, competitors=3, norms=[])
    for one, other in zip(alone.heads, audited.heads):
        assert one.measures == pytest.approx(other.measures, rel=1e-4, abs=1e-6)
        assert [(f["document"], f["query"], f["competitor"]) for f in one.support] == [
            (f["document"], f["query"], f["competitor"]) for f in other.support
        ]


@pytest.mark.parametrize(("at_once", "room"), [(True, 10**6), (True, 700), (False, 100)])
def test_texts_together_and_texts_in_pieces(
    at_once: bool, room: int, audited: Audit, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU takes several texts at once, with padding between them, and a long text is taken in pieces."""
    from attsvm.auditing import _stream

    monkeypatch.setattr(_stream, "ONE_BY_ONE", set() if at_once else {"cpu"})
    monkeypatch.setattr(_stream, "ROOM", room)
    other = run_audit(made_gpt(), tokenizer, TEXTS, batch=3, queries=12, competitors=3, norms=["l2"])
    for one, own in zip(other.heads, audited.heads):
        assert one.measures == pytest.approx(own.measures, rel=1e-4, abs=1e-6)
        assert one.quantiles == pytest.approx(own.quantiles, rel=1e-4, abs=1e-6)
        assert one.queries == own.queries
        assert one.problems["tokens"]["l2"]["efficiency"] == pytest.approx(
            own.problems["tokens"]["l2"]["efficiency"], rel=1e-2, abs=1e-5
        )


def test_margins_and_their_quantiles(audited: Audit, tokenizer: Any) -> None:
    """All queries are in the sample of so few texts; the first query of a text sees itself alone."""
    layers = [dense(made_gpt(), tokenizer.encode(text).ids) for text in TEXTS]
    for place, layer in enumerate(audited.layers):
        for head in range(3):
            margins = []
            for found in layers:
                best = found[place][0][head][1:].topk(2).values
                margins += (best[:, 0] - best[:, 1]).tolist()
            expected = torch.quantile(torch.tensor(margins), torch.tensor(QUANTILES))
            measured = audited[layer, head]
            assert measured.quantiles == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-4)
            assert measured.measures["margin"] == measured.quantiles[2]


def test_spectrum_of_W_QK(audited: Audit) -> None:
    for place, layer in enumerate(audited.layers):
        _, _, W_q, W_k = dense(made_gpt(), [1, 2])[place]
        for head in range(3):
            sigma = torch.linalg.svdvals(W_k[head].mT @ W_q[head] / 2)
            measured = audited[layer, head]
            assert measured.spectrum == pytest.approx(sigma[:4].tolist(), rel=1e-3)
            assert measured.measures["norm"] == pytest.approx(float(sigma.norm()), rel=1e-3)
            assert measured.measures["stable_rank"] == pytest.approx(float((sigma.norm() / sigma[0]) ** 2), rel=1e-3)
            assert measured.one_W


def naive_rows(audited_on: list[list[int]], place: int, head: int, space: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of all queries that select, against the three strongest competitors: A (N, 3, d), Z, present, own W."""
    A, Z, present = [], [], []
    own = torch.empty(0)
    for ids in audited_on:
        logits, y, W_q, W_k = dense(made_gpt(), ids)[place]
        y, W_q, W_k = y.double(), W_q[head].double(), W_k[head].double()
        keys, queries = (y @ W_k.mT, y @ W_q.mT) if space == "head" else (y, y)
        own = torch.eye(4).double() / 2 if space == "head" else W_k.mT @ W_q / 2
        for query in range(len(ids)):
            order = logits[head][query].argsort(descending=True)[:4].tolist()
            rows = [keys[order[0]] - keys[t] for t in order[1:]]
            A.append(torch.stack(rows + [torch.zeros_like(keys[0])] * (3 - len(rows))))
            Z.append(queries[query])
            selects = float(logits[head][query].softmax(-1).max()) >= 0.5
            present.append([selects and j < len(rows) and t <= query for j, t in enumerate(order[1:] + [99] * 3)][:3])
    return torch.stack(A), torch.stack(Z), torch.tensor(present), own


@pytest.mark.parametrize("space", ["head", "tokens"])
@pytest.mark.parametrize("norm", ["l2", "nuclear", "spectral", "linf"])
def test_margin_problems_of_what_a_head_selects(tokenizer: Any, space: str, norm: str) -> None:
    """With every query a candidate the rows are all rows; W is not restricted to their span, as the audit does."""
    text = TEXTS[0]
    ids = tokenizer.encode(text).ids
    found = run_audit(made_gpt(), tokenizer, [text], queries=len(ids), competitors=3, norms=[norm])
    for place, layer in enumerate(found.layers[:1]):
        A, Z, present, own = naive_rows([ids], place, 1, space)
        problem = attsvm.MarginProblem(
            A[None],
            Z[None],
            torch.ones_like(A[None, ..., 0]),
            torch.zeros(1, *A.shape[:2], dtype=torch.bool),
            present[None],
        )
        solution = attsvm.solve(problem, norm, tol=1e-6)
        facts = found[layer, 1].problems[space][norm]
        assert facts["status"] == "solved"
        assert found[layer, 1].selecting == int(present.any(-1).sum())
        assert facts["margin"] == pytest.approx(float(solution.margin[0]), rel=3e-3)
        assert facts["efficiency"] == pytest.approx(float(solution.efficiency(own)[0]), rel=3e-2, abs=1e-5)
        U, V = torch.linalg.qr(A.flatten(0, 1).mT)[0], torch.linalg.qr(Z.mT)[0]
        seen = own if norm == "linf" else U @ (U.mT @ own @ V) @ V.mT
        cosine = float((seen * solution.W[0]).sum() / seen.norm() / solution.W[0].norm())
        assert facts["alignment"] == pytest.approx(cosine, abs=3e-2), norm
        if (norm, space) == ("l2", "head"):
            weight = (solution.multipliers[0] * solution.support[0]).amax(-1)
            shares = {fact["query"]: fact["share"] for fact in found[layer, 1].support}
            assert len(shares) == min(6, int((weight > 0).sum()))
            for query, share in shares.items():
                assert share == pytest.approx(float(weight[query] / weight.sum()), abs=2e-2)


def test_the_surest_queries_make_the_problem(tokenizer: Any) -> None:
    """Of all queries of a text three are wanted: those that put most on one token."""
    ids = tokenizer.encode(TEXTS[0]).ids
    asked: dict[str, Any] = {"queries": 3, "competitors": 3, "norms": ["l2"], "selects": 0.0, "spaces": ["tokens"]}
    found = run_audit(made_gpt(), None, [ids], **asked | {"length": 12})
    A, Z, present, own = naive_rows([ids[:12]], 0, 1, "tokens")
    weights = dense(made_gpt(), ids[:12])[0][0][1].softmax(-1).amax(-1)
    surest = weights[1:].argsort(descending=True)[:3] + 1  # the first query sees one token: it has no competitor
    assert bool(present[surest].any(-1).all())
    none = torch.zeros(1, 3, 3, dtype=torch.bool)
    problem = attsvm.MarginProblem(A[None, surest], Z[None, surest], torch.ones(1, 3, 3), none, present[None, surest])
    facts = found["blocks.0", 1].problems
    assert set(facts) == {"tokens"}
    assert found["blocks.0", 1].selecting == 3
    solution = attsvm.solve(problem, "l2", tol=1e-6)
    assert facts["tokens"]["l2"]["efficiency"] == pytest.approx(float(solution.efficiency(own)[0]), rel=3e-2)


def test_support_tokens_are_near_misses_with_their_texts(audited: Audit, tokenizer: Any) -> None:
    shown = [(head, fact) for head in audited.heads for fact in head.support]
    assert shown
    for head, fact in shown:
        ids = tokenizer.encode(TEXTS[fact["document"]]).ids
        place = audited.layers.index(head.layer)
        logits = dense(made_gpt(), ids)[place][0][head.head][fact["query"]]
        assert int(logits.argmax()) == fact["selected"]
        margin = float(logits[fact["selected"]] - logits[fact["competitor"]])
        assert fact["margin"] == pytest.approx(margin, rel=1e-3, abs=1e-4)
        weights = logits.softmax(-1)
        assert fact["weights"] == {t: pytest.approx(float(w), abs=1e-3) for t, w in enumerate(weights) if w >= 0.01}
        assert "".join(audited.documents[fact["document"]].words[1:-1]) == TEXTS[fact["document"]]


def changed_logits(model: GPT, ids: list[int], change: Any) -> list[tuple[Tensor, Tensor]]:
    """Logits of every layer before and after its own weights change, with the inputs of the model as it is."""
    found = []
    for logits, y, _, _ in dense(model, ids):
        block = model.blocks[len(found)]
        W_q, W_k, _ = (w.view(3, 4, 12) for w in change(block.qkv.weight.detach()).chunk(3))
        q, k = (torch.einsum("hcd,td->htc", w, y) for w in (W_q, W_k))
        found.append((logits, (q @ k.mT / 2).masked_fill(logits == -torch.inf, -torch.inf)))
    return found


@pytest.mark.parametrize("change", [pruning(0.5), pruning(0.02), quantisation(4)], ids=["half", "little", "4 bits"])
def test_certified_selections_do_not_flip(change: Any, tokenizer: Any) -> None:
    model = made_gpt()
    cut = certify_change(model, tokenizer, TEXTS, change, batch=2)
    per_text = [changed_logits(model, tokenizer.encode(text).ids, change) for text in TEXTS]
    for head in cut.heads:
        certified = flipped = 0
        for found in per_text:
            old, new = (x[head.head] for x in found[int(head.layer[-1])])
            for query in range(len(old)):
                o = int(old[query].argmax())
                gaps = [
                    (old[query, o] - old[query, t], new[query, o] - new[query, t]) for t in range(query + 1) if t != o
                ]
                safe = all(abs(float(b - a)) < float(a) for a, b in gaps)
                flip = int(new[query].argmax()) != o
                assert not (safe and flip)
                certified, flipped = certified + safe, flipped + flip
        assert head.certified == pytest.approx(certified / head.queries, abs=1e-9)
        assert head.flipped == pytest.approx(flipped / head.queries, abs=1e-9)
    assert cut.certified + cut.flipped <= 1
    assert torch.equal(model.blocks[0].qkv.weight, made_gpt().blocks[0].qkv.weight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("pruning", "change must be a function of a weight, such as pruning"),
        (lambda weight: weight[:1], r"change must return a tensor of shape \(36, 12\), as it was given, not \(1, 12\)"),
        (lambda weight: None, "not NoneType"),
    ],
)
def test_a_change_that_is_none_is_refused(change: Any, words: str) -> None:
    with pytest.raises(attsvm.AttsvmError, match=words):
        certify_change(made_gpt(), None, [[4, 5, 6]], change)


def test_largest_pruning_flips_as_few_as_asked(tokenizer: Any) -> None:
    model = made_gpt()
    share, tried = largest_pruning(model, tokenizer, TEXTS, flips=0.05, steps=5)
    assert certify_change(model, tokenizer, TEXTS, pruning(share)).flipped <= 0.05
    assert all(flipped > 0.05 for other, flipped in tried if other > share)
    assert largest_pruning(model, tokenizer, TEXTS, flips=0.0, steps=2)[0] <= share


class Positions(nn.Module):
    """Attention whose keys are the positions and whose queries point at the position before."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.eye(8))
        self.shift = shift

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        k = self.places[:T].expand(1, 1, T, 8)
        q = k.roll(self.shift, 2)
        return nn.functional.scaled_dot_product_attention(q, k, k)


class Overflowing(Positions):
    """Its weights are finite, what it computes is not."""

    def forward(self, tokens: Tensor) -> Tensor:
        k = torch.full((1, 1, tokens.shape[1], 8), 1e38)
        return nn.functional.scaled_dot_product_attention(10 * k, k, k)


class Hearing(Positions):
    """It wants more than the tokens of a text."""

    def forward(self, tokens: Tensor, sound: Tensor | None = None) -> Tensor:
        assert tokens.ndim
        if sound is None:
            raise ValueError("where is the sound?")
        return super().forward(tokens)


def test_a_rule_is_separable_with_its_margin() -> None:
    """Query t is e_{t−1}, keys are e_t: W = ½ I separates "previous" with e_{t−1}ᵀ I e_{t−1} − 0, and any other rule by
    a permutation; the smallest norm follows from the symmetry of the problem."""
    text = [5, 3, 6, 4, 7, 2]
    (found,) = audit_rule(Positions(1), None, [text], "previous", most=5)
    assert found.status == "solved"
    assert found.follows == 1.0
    assert found.queries == 5
    X = torch.eye(8)[:6].expand(5, 6, 8).double()
    problem = attsvm.att_svm(attsvm.TokenData.cross(X, torch.eye(8)[:5].double()), tokens=list(range(5)))
    exact = attsvm.solve(problem)
    assert found.lower * (1 - 1e-9) <= float(exact.norm[0])
    assert float(exact.lower[0]) <= found.upper * (1 + 1e-9)
    assert found.upper <= 1.001 * found.lower
    assert found.efficiency == pytest.approx(float(exact.efficiency(torch.eye(8).double())[0]), rel=2e-3)
    (broken,) = audit_rule(Positions(2), None, [text], "previous", most=5)
    assert broken.status == "solved"
    assert broken.follows == 0.0
    assert broken.efficiency < 0


def test_a_rule_that_no_head_can_follow_is_proved_infeasible() -> None:
    """One query, two tokens that both should win."""
    model = Positions(0)
    model.places[1] = model.places[0]
    (found,) = audit_rule(model, None, [[5, 3, 6, 4]], [[0, 1, None, None]])
    assert found.status == "infeasible"
    assert found.efficiency is None


def test_queries_that_do_not_see_their_token_are_left_out() -> None:
    torch.manual_seed(0)
    model = attsvm.models.GPT(vocabulary=20, length=12, width=16, layers=1, heads=2).eval()
    texts = torch.randint(20, (6, 12)).tolist()
    places = [[None, *range(11)] for _ in texts]
    places[2][3] = 5  # ahead
    found = audit_rule(model, None, texts, places, most=66)
    assert {head.queries for head in found} == {65}
    (only,) = {(head.queries, head.margin, head.efficiency) for head in audit_rule(model, None, [[1], [2]], "self")}
    assert only == (2, float("inf"), None)  # a query that sees one token


def test_rules_read_tokens() -> None:
    from attsvm.auditing import RULES

    assert RULES["induction"]([4, 5, 6, 4, 5, 4]) == [None, None, None, 1, 2, 4]
    assert RULES["previous"]([4, 5, 6]) == [None, 0, 1]
    assert RULES["first"]([4, 5]) == [0, 0]
    with pytest.raises(attsvm.AttsvmError, match="silent"):
        audit_rule(Positions(1), None, [[1, 2, 3]], "induction")


@pytest.mark.parametrize("kind", ["text", "vit", "torch"])
def test_other_models_and_inputs(kind: str) -> None:
    """Token numbers with padding, images, and a bare attention: padding adds no queries, and weights are means."""
    torch.manual_seed(0)
    if kind == "text":
        model: Any = TextTransformer(vocabulary=20, length=16, width=8, hidden=8, layers=2)
        inputs: list[Any] = [[3, 4, 5], [6, 7, 8, 9, 10, 11], [2, 2]]
    elif kind == "vit":
        model, inputs = ViT(size=8, patch=4, width=8, hidden=8, layers=2, heads=2), [torch.randn(3, 3, 8, 8)]
    else:
        model = nn.MultiheadAttention(8, 2, batch_first=True)
        inputs = [(x, x, x) for x in (torch.randn(2, 5, 8), torch.randn(1, 7, 8))]
    found = run_audit(model, None, inputs, norms=["l2"], selects=0.0, batch=2)
    seen: dict[str, list[Tensor]] = {}

    def keep(attended: Any) -> None:
        weights = attended.logits().softmax(-1)
        seen.setdefault(attended.name, []).append(weights.amax(-1).transpose(0, 1).flatten(1))

    with torch.no_grad(), capture(model.eval(), keep) as mode:
        for item in inputs:
            mode.calls.clear()
            if kind == "text":
                model(torch.tensor([item]), torch.tensor([len(item)]))
            else:
                model(*(item if isinstance(item, tuple) else (item,)))
    for head in found.heads:
        own = torch.cat(seen[head.layer], 1)[head.head]
        assert head.queries == len(own)
        assert head.measures["confidence"] == pytest.approx(float(own.mean()), rel=1e-4)
    assert len(found.heads) == {"text": 4, "vit": 4, "torch": 2}[kind]
    if kind == "text":  # which reads the first token of its last layer alone
        assert [head.queries for head in found.heads] == [11, 11, 3, 3]
    assert all(head.problems["head"]["l2"]["status"] == "solved" for head in found.heads)


@pytest.mark.parametrize("kind", ["text", "images"])
def test_inference_mode_of_the_caller_changes_nothing(kind: str) -> None:
    model: Any = made_gpt() if kind == "text" else ViT(size=8, patch=4, width=8, hidden=8, layers=1, heads=2)
    plain: list[Any] = [[4, 5, 6, 7]] if kind == "text" else [torch.randn(2, 3, 8, 8)]
    expected = run_audit(model, None, plain, norms=["l2"], selects=0.0)
    with torch.inference_mode():
        inside = plain if kind == "text" else [plain[0].clone()]
        found = run_audit(model, None, inside, norms=["l2"], selects=0.0)
        cut = certify_change(model, None, inside, pruning(0.3))
    assert found.facts() == expected.facts()
    assert cut == certify_change(model, None, plain, pruning(0.3))


def test_one_norm_and_one_space_need_no_list() -> None:
    found = run_audit(made_gpt(), None, [[4, 5, 6, 7]], norms="nuclear", spaces="head", selects=0.0)
    assert [(space, list(norms)) for space, norms in found.heads[0].problems.items()] == [("head", ["nuclear"])]


def test_token_numbers_of_any_kind() -> None:
    expected = run_audit(made_gpt(), None, [[4, 5, 6], [7, 8]], norms=[]).facts()
    ids = [np.array([4, 5, 6]), np.array([7, 8], np.int32)]
    for texts in (ids, [list(row) for row in ids], [torch.from_numpy(row) for row in ids]):
        assert run_audit(made_gpt(), None, texts, norms=[]).facts() == expected


def test_batches_are_not_called_texts(tmp_path: Path) -> None:
    model = ViT(size=8, patch=4, width=8, hidden=8, layers=1, heads=2)
    found = run_audit(model, None, [torch.randn(3, 3, 8, 8)], norms=[])
    assert str(found).endswith("1 batch)")
    found.save(tmp_path)
    assert "heads on 1 batch." in (tmp_path / "audit.html").read_text()
    assert str(run_audit(made_gpt(), None, [[4, 5], [6, 7]], norms=[])).endswith("2 texts)")


def test_files_of_an_audit(audited: Audit, tmp_path: Path) -> None:
    import pyarrow.parquet

    audited.save(tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert len(facts["heads"]) == len(audited.heads)
    table = pyarrow.parquet.read_table(tmp_path / "out" / "heads.parquet")
    assert table["saturated"].to_pylist() == [head.measures["saturated"] for head in audited.heads]
    assert table.num_rows == len(audited.to_dataframe())
    for layer, *cells in audited.summary(["entropy", "norm"]):
        heads = [head.measures for head in audited.heads if head.layer == layer]
        for cell, name in zip(cells, ("entropy", "norm"), strict=True):
            assert float(cell) == pytest.approx(sum(head[name] for head in heads) / 3, rel=6e-3)
    assert "blocks.1" in audited._repr_html_()
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"texts": []}, "at least one text"),
        ({"texts": "one text"}, "list of at least one text"),
        ({"texts": ["a text"], "tokenizer": None}, "need the tokenizer"),
        ({"model": "bert"}, "torch module"),
        ({"model": nn.Embedding(20, 4)}, "softmax attention"),
        ({"saturated": 2}, "between 0 and 1"),
        ({"norms": ["l0.5"]}, "p"),
        ({"queries": 0}, "queries"),
        ({"spaces": ["words"]}, "spaces must be of head, tokens, but got words"),
        ({"texts": [[1, 2], []]}, "text 1 has none"),
        ({"model": Overflowing(1)}, "queries and keys must be finite"),
        ({"model": Hearing(1)}, r"give batches of what it takes to .* It says: where is the sound\?"),
    ],
)
def test_wrong_input(asked: dict[str, Any], words: str) -> None:
    given = {"model": Positions(1), "tokenizer": None, "texts": [[1, 2, 3]]} | asked
    with pytest.raises(attsvm.AttsvmError, match=words):
        run_audit(**given)


def test_what_a_model_says_about_given_batches_is_left_as_it_is() -> None:
    tokens, sound = torch.tensor([[1, 2, 3]]), torch.zeros(1)
    assert len(run_audit(Hearing(1), texts=[(tokens, sound)], norms=()).heads) == 1
    with pytest.raises(ValueError, match=r"^where is the sound\?$"):
        run_audit(Hearing(1), texts=[(tokens,)], norms=())
