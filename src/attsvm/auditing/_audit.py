"""What every head of a model selects, how sure it is, and which max-margin solution it resembles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attsvm.auditing._inputs import Document, Inputs
from attsvm.auditing._page import write_data_page
from attsvm.auditing._problems import Problem, Solved, finite, head_problem, solve_all, token_problem
from attsvm.auditing._stream import SAMPLE, Plan, Rows, Site, Stream
from attsvm.auditing._weights import Weights, probe
from attsvm.captures import capture
from attsvm.checks import as_count, as_share
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, make_folder, write_json
from attsvm.frames import frame
from attsvm.geometry import parse_geometry
from attsvm.pages import html_table
from attsvm.progress import Tell
from attsvm.tables import write_table

NORMS = ("l2", "nuclear", "spectral", "linf")
SPACES = ("head", "tokens")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MEASURES = {
    "saturated": "share of queries that put at least {saturated:g} of their attention on one token",
    "confidence": "mean attention on the selected token",
    "entropy": "mean entropy of the attention, in nats",
    "first_weight": "mean attention on the first token",
    "sink": "attention that the most attended token of a text receives, mean over its queries",
    "first": "share of queries that select the first token",
    "self": "share of queries that select themselves",
    "previous": "share of queries that select the token before them",
    "next": "share of queries that select the token after them",
    "special": "share of queries that select a special token",
    "punctuation": "share of queries that select punctuation",
    "rare": "share of queries that select one of the rarest tokens, which are a tenth of the texts",
    "margin": "median of the logit margin: largest logit minus the second",
    "norm": "Frobenius norm of W_QK",
    "stable_rank": "‖W_QK‖_F²/σ₁²",
}
"""What the numbers of a head mean."""
NOT_SHARES = ("entropy", "margin", "norm", "stable_rank")
"""Measures that are no numbers between 0 and 1."""
SUMMARY = ("saturated", "entropy", "sink", "margin", "stable_rank")
"""Measures that are printed for every layer."""
CANDIDATES = 4
"""Sampled queries for one of a margin problem: not all of them select."""
SHOWN = 6
"""Support tokens of a head that are kept with their texts."""
WEIGHT = 0.01
"""Attention of a token below which it is not kept for the page."""


@dataclass(frozen=True, eq=False)
class Head:
    """The numbers of one head; `measures` has the keys of `MEASURES` that could be computed."""

    layer: str
    head: int
    queries: int
    measures: dict[str, float]
    quantiles: list[float | None]
    """of the margins, at `QUANTILES`"""
    spectrum: list[float]
    """singular values of W_QK; empty if its queries and keys are not made by linear maps"""
    one_W: bool
    """W_QK is the same for all tokens: neither rotation nor normalisation comes after it"""
    problems: dict[str, dict[str, dict[str, Any]]]
    """by space ("head", "tokens") and norm: status, margin, efficiency, alignment"""
    selecting: int
    """queries that enter the problems: those that select, and have a competitor that is no tie"""
    support: list[dict[str, Any]]
    """the near misses that define the head: support rows of the ℓ2 problem, the largest multiplier first"""

    def row(self) -> dict[str, Any]:
        """One flat row of a table."""
        found: dict[str, Any] = {"layer": self.layer, "head": self.head, "queries": self.queries} | self.measures
        found |= {f"margin_{100 * at:g}%": value for at, value in zip(QUANTILES, self.quantiles)}
        for space, norms in self.problems.items():
            for norm, facts in norms.items():
                found |= {f"{space}_{norm}_{name}": facts[name] for name in ("efficiency", "alignment", "margin")}
        return found | {"one_W": self.one_W, "selecting": self.selecting}


@dataclass(frozen=True, eq=False)
class Audit:
    """Every head of a model, layer by layer; `save` writes the page, `audit.json` and `heads.parquet`."""

    model: str
    heads: list[Head]
    texts: int
    tokens: int
    settings: dict[str, Any]
    documents: dict[int, Document] = field(repr=False)
    """the texts that support tokens are from, by number"""
    more: dict[str, str] = field(default_factory=dict)
    """measures that were added, with what they mean"""

    def with_measures(self, of_heads: Mapping[tuple[str, int], Mapping[str, float]], meaning: dict[str, str]) -> Audit:
        """The audit with more measures of its heads, such as those of a cut, by (layer, head)."""
        heads = [
            replace(head, measures=head.measures | dict(of_heads.get((head.layer, head.head), {})))
            for head in self.heads
        ]
        return replace(self, heads=heads, more=self.more | meaning)

    def __getitem__(self, place: tuple[str, int]) -> Head:
        """audit[layer, head]"""
        for head in self.heads:
            if (head.layer, head.head) == place:
                return head
        raise AttsvmError(f"the audit has no head {place}; its layers are {', '.join(self.layers)}.")

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(head.layer for head in self.heads))

    @property
    def read(self) -> str:
        """How much was read, in words: texts, or batches of tensors, of which no tokens are counted."""
        one, more = ("text", "texts") if self.tokens else ("batch", "batches")
        return f"{self.texts} {one if self.texts == 1 else more}"

    def rows(self) -> list[dict[str, Any]]:
        """A flat row per head, all with the same columns."""
        rows = [head.row() for head in self.heads]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return [{name: row.get(name) for name in names} for row in rows]

    def to_dataframe(self) -> Any:
        rows = self.rows()
        return frame({name: [row[name] for row in rows] for name in rows[0]})

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and words: what audit.json holds."""
        return {
            "format": "attsvm-audit/1",
            "model": self.model,
            "texts": self.texts,
            "tokens": self.tokens,
            "settings": self.settings,
            "measures": {name: words.format(**self.settings) for name, words in MEASURES.items()} | self.more,
            "shares": [name for name in (*MEASURES, *self.more) if name not in NOT_SHARES],
            "quantiles": list(QUANTILES),
            "heads": [vars(head) for head in self.heads],
            "documents": {
                number: {"words": document.words, "special": document.special.tolist()}
                for number, document in self.documents.items()
            },
        }

    def save(self, folder: PathLike) -> None:
        """Write audit.html, audit.json and heads.parquet into a folder."""
        place = make_folder(folder)
        write_json(place / "audit.json", self.facts())
        write_heads(place / "heads.parquet", self.rows())
        write_data_page(place / "audit.html", "auditing/audit.html", self.facts() | {"read": self.read})

    def summary(self, names: Sequence[str] = SUMMARY) -> list[list[str]]:
        """For each layer its name and the mean of each measure over its heads, in words."""
        rows = []
        for layer in self.layers:
            values = [[head.measures.get(name) for head in self.heads if head.layer == layer] for name in names]
            known = [[value for value in own if value is not None] for own in values]
            rows.append([layer, *(f"{sum(own) / len(own):.3g}" if own else "–" for own in known)])
        return rows

    def _repr_html_(self) -> str:
        return html_table(self.summary(), ("layer", *SUMMARY), f"{self.model}: mean over the heads of a layer")

    def __repr__(self) -> str:
        return f"Audit({self.model}: {len(self.layers)} attentions, {len(self.heads)} heads, {self.read})"


def write_heads(path: PathLike, rows: list[dict[str, Any]]) -> None:
    """Rows of heads as parquet."""
    try:
        import pyarrow
    except ImportError as error:
        raise AttsvmError("parquet needs pyarrow: pip install 'attsvm[audit]'.") from error
    write_table(pyarrow.Table.from_pylist(rows), Path(path))


def audit(
    model: nn.Module,
    tokenizer: Any = None,
    texts: Sequence[Any] = (),
    *,
    name: str = "",
    length: int | None = None,
    batch: int = 8,
    queries: int = 16,
    competitors: int = 4,
    norms: str | Sequence[str] = NORMS,
    spaces: str | Sequence[str] = SPACES,
    saturated: float = 0.9,
    selects: float = 0.5,
    seed: int = 0,
    tell: Tell | None = None,
) -> Audit:
    """Audit every head of a model on texts.

    The forward pass is the model's own; queries and keys are read as they enter the softmax. Texts are streamed: only
    sums, a sample of margins, and the rows of the margin problems are kept.

    Args:
        model: from Hugging Face, torch, timm, attsvm.models, or any other that computes softmax attention.
        tokenizer: from transformers or from the package tokenizers; not needed for token numbers and tensors.
        texts: texts, lists of token numbers, or batches of tensors (a tensor, a tuple or a dict of arguments).
        name: of the model, for the page.
        length: longest text in tokens; the rest is cut off. 512, or what the model takes.
        batch: texts per forward pass.
        queries: the largest number of queries in a head's margin problems: the surest of four times as many, which are
            spread over the texts; of a batch of tensors the first row is its text.
        competitors: number of tokens, those with the next largest logits, that the selected one is compared with.
        norms: of the margin problems.
        spaces: of the margin problems: that of queries and keys ("head"), that of tokens ("tokens"), or both.
        saturated: attention on one token from which a query counts as saturated.
        selects: attention on one token from which a query selects it, and enters the margin problems.
        seed: of the sample of queries.
        tell: called with the number of batches done; while the margin problems are solved, also with words.
    """
    norms, spaces = ([x] if isinstance(x, str) else list(x) for x in (norms, spaces))
    for norm in norms:
        parse_geometry(norm)
    if unknown := set(spaces) - set(SPACES):
        raise AttsvmError(f"spaces must be of {', '.join(SPACES)}, but got {', '.join(sorted(unknown))}.")
    as_share("saturated", saturated)
    as_share("selects", selects)
    inputs = Inputs(model, tokenizer, texts, length)
    model = inputs.model
    plan = make_plan(
        inputs, CANDIDATES * as_count("queries", queries), as_count("competitors", competitors), saturated, seed
    )
    stream = Stream(inputs, plan)
    with evaluated(model):
        weights = probe(inputs)
        done = 0
        with torch.no_grad(), capture(model, stream) as mode:
            for part in inputs.batches(as_count("batch", batch)):
                stream.batch = part
                mode.calls.clear()
                part.run(model)
                done += 1
                if tell is not None:
                    tell(done)
    if not stream.sites:
        raise AttsvmError("the model must compute softmax attention, but none was seen in its forward pass.")
    wanted = {space: tuple(norms) if space in spaces else () for space in SPACES}
    heads: list[Head] = []
    for site in stream.sites.values():
        if tell is not None:
            tell(done, f"solving: {site.name}")
        site.rows = [rows.cpu() for rows in site.rows]
        heads += _heads(site, weights.get(site.name), wanted, selects, queries)
    kept = {fact["document"] for head in heads for fact in head.support}
    return Audit(
        model=name or type(model).__name__,
        heads=heads,
        texts=len(texts),
        tokens=sum(len(document.ids) for document in inputs.documents),
        settings={
            "queries": queries,
            "competitors": competitors,
            "norms": norms,
            "spaces": spaces,
            "saturated": saturated,
            "selects": selects,
            "seed": seed,
        },
        documents={number: inputs.documents[number] for number in sorted(kept)} if inputs.documents else {},
    )


def make_plan(inputs: Inputs, queries: int, competitors: int, saturated: float, seed: int) -> Plan:
    count = len(inputs.documents) or len(inputs.batches_given)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    each, more = divmod(queries, count)
    of_text = {number: each + (place < more) for place, number in enumerate(order) if each or place < more}
    return Plan(math.ceil(SAMPLE / count), frozenset(order[:SAMPLE]), of_text, competitors, saturated, seed)


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Inside the block the model is in evaluation mode and computes attention where the audit sees it."""
    training, kind = model.training, getattr(getattr(model, "config", None), "_attn_implementation", None)
    unseen = isinstance(kind, str) and ("flash" in kind or "flex" in kind)
    try:
        model.eval()
        if unseen:
            model.set_attn_implementation("sdpa")  # the same numbers, where they can be seen
        with torch.inference_mode(False):  # the caller's: in it nothing can be differentiated
            yield
    finally:
        model.train(training)
        if unseen:
            model.set_attn_implementation(kind)


def _heads(
    site: Site, weights: Weights | None, norms: dict[str, tuple[str, ...]], selects: float, most: int
) -> list[Head]:
    """`norms` by space; the support tokens are those of ℓ2 in the space of queries and keys in any case."""
    own = head_problem(site, selects, most)
    solved = {
        "head": solve_all(own, tuple(dict.fromkeys(("l2", *norms["head"])))),
        "tokens": solve_all(token_problem(site, weights, selects, most), norms["tokens"]),
    }
    quantiles = site.quantiles(QUANTILES)
    spectrum = None if weights is None else weights.spectrum()
    means = site.means()
    found = []
    for head in range(site.heads):
        measures = {name: float(mean[head]) for name, mean in means.items()}
        measures["margin"] = float(quantiles[QUANTILES.index(0.5), head])
        if spectrum is not None:
            sigma = spectrum[head]
            measures["norm"] = float(sigma.square().sum().sqrt())
            measures["stable_rank"] = float(sigma.square().sum() / sigma[0].square()) if sigma[0] > 0 else 0.0
        problems = {
            space: {norm: by_norm[norm].facts(head) for norm in norms[space] if norm in by_norm}
            for space, by_norm in solved.items()
            if by_norm and norms[space]
        }
        l2 = solved["head"].get("l2")
        found.append(
            Head(
                layer=site.name,
                head=head,
                queries=site.queries,
                measures={name: value for name in MEASURES if math.isfinite(value := measures.get(name, math.nan))},
                quantiles=[finite(value) for value in quantiles[:, head].tolist()],
                spectrum=[] if spectrum is None else spectrum[head].tolist(),
                one_W=weights is not None and weights.alike,
                problems=problems,
                selecting=0 if own is None else int(own.present[head].any(-1).sum()),
                support=[] if own is None or l2 is None else _support(site, own, l2, head),
            )
        )
    return found


def _support(site: Site, problem: Problem, solved: Solved, head: int) -> list[dict[str, Any]]:
    """The rows with the largest multipliers, at most one per query, with their places in the texts."""
    solution = solved.solution
    if not bool(solution.norm[head].isfinite()):
        return []
    weight = (solution.multipliers[head] * solution.support[head]).cpu()  # (Q, R)
    best, which = weight.max(-1)
    places = [(rows, n) for rows in site.rows for n in range(len(rows.query))]
    found = []
    for q in best.argsort(descending=True)[:SHOWN].tolist():
        if best[q] <= 0:
            break
        rows, n = places[int(problem.query[head, q])]
        found.append(_shown(rows, n, head, int(which[q]), float(best[q] / best.sum())))
    return found


def _shown(rows: Rows, n: int, head: int, competitor: int, share: float) -> dict[str, Any]:
    weights = rows.weights[head, n]
    return {
        "document": rows.document,
        "query": int(rows.query[n]),
        "selected": int(rows.tokens[head, n, 0]),
        "competitor": int(rows.tokens[head, n, 1 + competitor]),
        "margin": float(rows.logits[head, n, 0] - rows.logits[head, n, 1 + competitor]),
        "share": share,
        "weights": {int(t): round(float(weights[t]), 4) for t in (weights >= WEIGHT).nonzero()[:, 0]},
    }
