"""Numbers of every head, summed text by text: only sums and a sample of queries are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attsvm.auditing._inputs import Batch, Inputs
from attsvm.captures import Attended

SAMPLE = 4096
"""Queries of a head, over all texts, whose margins are kept for quantiles."""
ROOM = 64_000_000
"""Logits of an attention that are held at a time: 256 MB."""
ONE_BY_ONE = {"cpu"}
"""Devices that take texts one by one: a CPU likes what fits its caches, a GPU many texts at once."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which queries are kept: the same number from every text for quantiles, and from some texts for margin
    problems."""

    per_text: int
    sampled: frozenset[int]
    """texts, by their numbers, whose margins are kept"""
    of_text: dict[int, int]
    """queries of a text, by its number, that enter the margin problems"""
    competitors: int
    saturated: float
    seed: int

    def order(self, document: int, row: int, queries: int) -> Tensor:
        """The queries of a text in random order: the same for every layer."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + document * 1_009 + row)
        return torch.randperm(queries, generator=generator)


@dataclass(frozen=True, eq=False)
class Rows:
    """Queries of one text with their strongest competitors; n queries, R competitors, H heads."""

    document: int
    query: Tensor
    """(n,) positions"""
    tokens: Tensor
    """(H, n, 1 + R) the selected token and its competitors, strongest first"""
    logits: Tensor
    """(H, n, 1 + R), −inf where there are fewer competitors"""
    weights: Tensor
    """(H, n, T) softmax of the whole row"""
    q: Tensor
    """(H, n, c)"""
    k: Tensor
    """(H, n, 1 + R, c)"""
    bias: Tensor | None
    """(H, n, 1 + R)"""
    hidden_q: Tensor | None
    """(n, d) what the linear maps read, and"""
    hidden_k: Tensor | None
    """(H, n, 1 + R, d)"""

    def cpu(self) -> Rows:
        return replace(self, **{name: x.cpu() for name, x in vars(self).items() if isinstance(x, Tensor)})


@dataclass(eq=False)
class Site:
    """One attention of the model: sums over texts for its H heads."""

    name: str
    heads: int
    scale: float
    queries: int = 0
    texts: int = 0
    sums: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    """by measures, (measures, H) in float64: sums over queries, of `sink` over texts"""
    margins: list[Tensor] = field(default_factory=list)
    """(m, H) of the sampled queries of every text; infinite for queries that see one token"""
    rows: list[Rows] = field(default_factory=list)

    def add(self, names: tuple[str, ...], values: Tensor) -> None:
        """Sums stay on their device: reading them back would make a GPU wait."""
        self.sums[names] = self.sums[names] + values.double() if names in self.sums else values.double()

    def means(self) -> dict[str, Tensor]:
        """(H,) over queries; of `sink` over texts."""
        found = {name: row for names, values in self.sums.items() for name, row in zip(names, values.cpu())}
        return {name: row / (self.texts if name == "sink" else self.queries) for name, row in found.items()}

    def quantiles(self, at: tuple[float, ...]) -> Tensor:
        """(len(at), H) of the margins; NaN where no query has one."""
        found = torch.cat(self.margins).double().cpu() if self.margins else torch.empty(0, self.heads).double()
        found = found[found.isfinite().all(1)]
        if not len(found):
            return torch.full((len(at), self.heads), torch.nan)
        return torch.quantile(found, torch.tensor(at, dtype=torch.float64), dim=0)


@dataclass(frozen=True, eq=False)
class _Part:
    """Queries of b texts that are processed together, with what is known before. The tensors stay on the device,
    because sending them for every layer would make it wait."""

    rows: slice
    places: slice
    T: int
    at: Tensor
    """(k,) the places"""
    hidden: Tensor | None
    """(b, 1, 1, T) tokens that are padding, None if there are none"""
    mask: Tensor | None
    """(b, 1, k) queries that count, None if all do"""
    counts: Tensor
    """(b, 1, 1) queries of every text that count, at least 1"""
    last: bool
    """no further queries of these texts follow"""
    kinds: dict[str, Tensor]
    """(b, 1, T) tokens of a kind"""
    sampled: tuple[Tensor, Tensor] | None
    """text and place of the queries whose margins are kept"""
    problems: list[tuple[int, int, Tensor]]
    """text, its number, and the queries of it that enter the margin problems"""


class Stream:
    """Takes every attention of a batch and adds it to its site."""

    def __init__(self, inputs: Inputs, plan: Plan) -> None:
        self.inputs, self.plan = inputs, plan
        self.sites: dict[str, Site] = {}
        self.batch: Batch | None = None
        self._parts: dict[Any, list[_Part]] = {}
        self._parts_of: Batch | None = None

    def __call__(self, attended: Attended) -> None:
        assert self.batch is not None
        B, H, K, _ = attended.q.shape
        T = attended.k.shape[2]
        site = self.sites.setdefault(attended.name, Site(attended.name, H, attended.scale))
        sizes = [self.batch.sizes(row, K, T) for row in range(B)]
        seen = _seeing(attended, sizes)
        if self._parts_of is not self.batch:
            self._parts_of = self.batch
            self._parts.clear()
        key = (B, H, K, T, seen.numpy().tobytes())  # most layers see the same
        if key not in self._parts:
            self._parts[key] = list(self._make_parts(H, K, T, sizes, seen, attended.q.device))
        received: Tensor | None = None
        for part in self._parts[key]:
            weights = self._add(site, attended, part)
            received = weights if received is None else received + weights
            if part.last:
                site.add(("sink",), (received / part.counts).amax(-1).sum(0, keepdim=True))
                received = None
        site.queries += int(seen.sum())
        site.texts += int(seen.any(1).sum())

    def _make_parts(
        self, H: int, K: int, T: int, sizes: list[tuple[int, int]], seen: Tensor, device: torch.device
    ) -> Iterator[_Part]:
        texts = 1 if device.type in ONE_BY_ONE else max(1, ROOM // (H * K * T))
        queries = max(1, ROOM // (H * T))  # a long text is taken in pieces
        kinds = self._kinds(T)
        for start in range(0, len(sizes), texts):
            rows = slice(start, min(start + texts, len(sizes)))
            most, longest = (max(own[i] for own in sizes[rows]) for i in range(2))
            own = torch.tensor([own for _, own in sizes[rows]])
            hidden = (torch.arange(longest) >= own[:, None])[:, None, None].to(device) if own.min() < longest else None
            counts = seen[rows].sum(1).clamp(min=1)[:, None, None].to(device)
            drawn = [self._drawn(row, len(sizes), seen[row]) for row in range(rows.start, rows.stop)]
            for first in range(0, most, queries):
                places = slice(first, min(first + queries, most))
                counted = seen[rows, places]
                sampled = [
                    (place, query - first)
                    for place, (_, wanted, _) in enumerate(drawn)
                    for query in wanted.tolist()
                    if places.start <= query < places.stop
                ]
                problems = [
                    (row, document, own[(own >= places.start) & (own < places.stop)])
                    for row, (document, _, own) in enumerate(drawn, rows.start)
                ]
                which = torch.tensor(sampled).to(device).unbind(1) if sampled and longest > 1 else None
                yield _Part(
                    rows=rows,
                    places=places,
                    T=longest,
                    at=torch.arange(places.start, places.stop, device=device),
                    hidden=hidden,
                    mask=None if bool(counted.all()) else counted[:, None].to(device),
                    counts=counts,
                    last=places.stop == most,
                    kinds={name: kind[rows, None, :longest].to(device) for name, kind in kinds.items()},
                    sampled=None if which is None else (which[0], which[1]),
                    problems=[(row, document, own) for row, document, own in problems if len(own)],
                )

    def _drawn(self, row: int, B: int, seen: Tensor) -> tuple[int, Tensor, Tensor]:
        """Of a text its number, and its queries that are sampled for the margins and for the problems."""
        assert self.batch is not None
        documents = self.batch.documents
        document = documents[row if len(documents) == B else 0]
        number = row if self.inputs.given else 0  # texts are the same in any batch
        here = seen.nonzero()[:, 0]
        wanted = self.plan.per_text if document in self.plan.sampled else 0
        most = self.plan.of_text.get(document, 0) if number == 0 else 0
        if not max(wanted, most):
            return document, here[:0], here[:0]
        order = here[self.plan.order(document, number, len(here))]
        return document, order[:wanted], order[:most]

    def _kinds(self, T: int) -> dict[str, Tensor]:
        """(B, T) which tokens of the batch are of a kind; none if the keys are no tokens of its texts."""
        assert self.batch is not None
        if not self.inputs.documents:
            return {}
        documents = [self.inputs.documents[number] for number in self.batch.documents]
        if max(len(document.ids) for document in documents) != T:
            return {}
        names = (*self.inputs.kinds, *(("special",) if self.inputs.named else ()))
        found = {name: torch.zeros(len(documents), T, dtype=torch.bool) for name in names}
        for row, document in enumerate(documents):
            special = document.special
            if self.inputs.named:
                found["special"][row, : len(special)] = torch.from_numpy(special)
            for name, kind in self.inputs.kinds.items():
                found[name][row, : len(special)] = torch.from_numpy(kind[document.ids] & ~special)
        return found

    def _add(self, site: Site, attended: Attended, part: _Part) -> Tensor:
        """Add the queries of a part to a site; returns the attention (b, H, T) that every token receives from them."""
        logits = _slice(attended, part.rows, part.places, part.T).logits()
        if part.hidden is not None:
            logits.masked_fill_(part.hidden, -torch.inf)
        if part.sampled is not None:
            best = logits[part.sampled[0], :, part.sampled[1]].topk(2).values
            site.margins.append((best[..., 0] - best[..., 1]).float())
        for row, document, query in part.problems:
            T = self.batch.sizes(row, attended.q.shape[2], attended.k.shape[2])[1] if self.batch else part.T
            own = logits[row - part.rows.start][:, (query - part.places.start).to(logits.device), :T]
            site.rows.append(self._rows(attended, own, document, row, query))
        weights = logits.softmax(-1)
        del logits
        if part.mask is not None:
            weights.masked_fill_(~part.mask[..., None], 0.0)
        share, selected = weights.max(-1)
        ahead = selected - part.at
        hits = {
            "saturated": share >= self.plan.saturated,
            "first": selected == 0,
            "self": ahead == 0,
            "previous": ahead == -1,
            "next": ahead == 1,
        }
        hits |= {name: kind.expand(-1, site.heads, -1).gather(2, selected) for name, kind in part.kinds.items()}
        counted = torch.stack(list(hits.values()))
        site.add(tuple(hits), (counted if part.mask is None else counted & part.mask).sum((1, 3)))
        logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()  # twice as fast as xlogy
        sums = torch.stack([share, weights[..., 0], -logs.mul_(weights).sum(-1)])
        site.add(("confidence", "first_weight", "entropy"), sums.sum((1, 3)))
        return weights.sum(2)

    def _rows(self, attended: Attended, logits: Tensor, document: int, row: int, query: Tensor) -> Rows:
        """`logits` (H, n, T) are those of the queries `query` (n,) of a text. All stays on its device: reading it back
        would make a GPU wait."""
        top = logits.topk(min(1 + self.plan.competitors, logits.shape[-1]))
        tokens, device = top.indices, logits.device
        heads = torch.arange(len(tokens), device=device)[:, None, None]
        at = query.to(device)
        part = _slice(attended, slice(row, row + 1), slice(None), None)
        bias = None
        if part.bias is not None:
            whole = part.bias.expand(1, len(tokens), part.q.shape[2], part.k.shape[2])[0]
            bias = whole[heads, at[None, :, None], tokens]
        hidden = [None if x is None else x[row] for x in attended.hidden()]
        return Rows(
            document=document,
            query=query,
            tokens=tokens,
            logits=top.values,
            weights=logits.softmax(-1),
            q=part.q[0][:, at],
            k=part.keys[0][heads, tokens],
            bias=bias,
            hidden_q=None if hidden[0] is None else hidden[0][at],
            hidden_k=None if hidden[1] is None else hidden[1][tokens],
        )


def _slice(attended: Attended, rows: slice, queries: slice, T: int | None) -> Attended:
    """Some texts and queries, against the first T tokens."""
    bias = attended.bias
    if bias is not None:
        bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
        bias = bias[rows if len(bias) > 1 else slice(None), :, queries if bias.shape[2] > 1 else slice(None), :T]
    return Attended(attended.name, attended.q[rows, :, queries], attended.k[rows, :, :T], attended.scale, bias)


def _seeing(attended: Attended, sizes: list[tuple[int, int]]) -> Tensor:
    """(B, K) the queries of every text, padding left out, that see a token of it in every head; on the CPU."""
    B, _, K, _ = attended.q.shape
    own = torch.tensor(sizes)
    real = torch.arange(K) < own[:, :1]
    if attended.bias is None:
        return real
    T, device = attended.k.shape[2], attended.q.device
    bias = _slice(attended, slice(None), slice(None), None).bias
    assert bias is not None
    inside = (torch.arange(T) < own[:, 1:]).to(device)
    seen = ((bias > -torch.inf) & inside[:, None, None]).any(-1).all(1)
    return real & seen.expand(B, K).cpu()
