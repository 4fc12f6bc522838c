"""Numbers of every head, summed up text by text: nothing is kept but sums and a sample of queries."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
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
    """Which queries are kept: as many of every text for quantiles, and of some texts for margin problems."""

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


@dataclass(eq=False)
class Site:
    """One attention of the model: sums over texts for its H heads."""

    name: str
    heads: int
    scale: float
    queries: int = 0
    texts: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    """by measure, (H,) in float64: sums over queries, of `sink` over texts"""
    margins: list[Tensor] = field(default_factory=list)
    """(m, H) of the sampled queries of every text; infinite for queries that see one token"""
    rows: list[Rows] = field(default_factory=list)

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():  # which stay where they are: to ask a GPU for each would make it wait
            self.sums[name] = self.sums[name] + value.double() if name in self.sums else value.double()

    def mean(self, name: str) -> Tensor:
        """(H,) mean over queries; of `sink` over texts."""
        return self.sums[name].cpu() / (self.texts if name == "sink" else self.queries)

    def quantiles(self, at: tuple[float, ...]) -> Tensor:
        """(len(at), H) of the margins; NaN where no query has one."""
        found = torch.cat(self.margins).double().cpu() if self.margins else torch.empty(0, self.heads).double()
        found = found[found.isfinite().all(1)]
        if not len(found):
            return torch.full((len(at), self.heads), torch.nan)
        return torch.quantile(found, torch.tensor(at, dtype=torch.float64), dim=0)


class Stream:
    """Takes every attention of a batch, and adds it to its site."""

    def __init__(self, inputs: Inputs, plan: Plan) -> None:
        self.inputs, self.plan = inputs, plan
        self.sites: dict[str, Site] = {}
        self.batch: Batch | None = None
        self._kinds_of: tuple[Batch, dict[str, Tensor]] | None = None

    def __call__(self, attended: Attended) -> None:
        assert self.batch is not None
        B, H, K, _ = attended.q.shape
        T = attended.k.shape[2]
        site = self.sites.setdefault(attended.name, Site(attended.name, H, attended.scale))
        sizes = [self.batch.sizes(row, K, T) for row in range(B)]
        seen = _seeing(attended, sizes).cpu()
        texts = 1 if attended.q.device.type in ONE_BY_ONE else max(1, ROOM // (H * K * T))
        queries = max(1, ROOM // (H * T))  # a long text is taken in pieces
        for start in range(0, B, texts):
            rows = slice(start, min(start + texts, B))
            received = torch.zeros((), device=attended.q.device)
            most = max(own for own, _ in sizes[rows])
            for first in range(0, most, queries):
                places = slice(first, min(first + queries, most))
                received = received + self._part(site, attended, rows, places, sizes, seen)
            counts = seen[rows].sum(1)
            if bool(counts.any()):
                shares = received / counts.clamp(min=1).to(received.device)[:, None, None]
                site.add({"sink": shares.amax(-1).sum(0)})
        site.queries += int(seen.sum())
        site.texts += int(seen.any(1).sum())

    def _part(
        self,
        site: Site,
        attended: Attended,
        rows: slice,
        places: slice,
        sizes: list[tuple[int, int]],
        seen: Tensor,
    ) -> Tensor:
        """Add queries of some texts to a site; returns the attention (b, H, T) that every token receives from them."""
        T = max(own for _, own in sizes[rows])
        part = _slice(attended, rows, places, T)
        logits, device = part.logits(), attended.q.device
        own = torch.tensor([own for _, own in sizes[rows]])
        if int(own.min()) < T:  # padding
            logits.masked_fill_((torch.arange(T) >= own[:, None]).to(device)[:, None, None], -torch.inf)
        self._keep(site, attended, logits, rows, places, sizes, seen)
        weights = logits.softmax(-1)
        del logits
        counted = seen[rows, places]
        mask = None if bool(counted.all()) else counted.to(device)[:, None]
        if mask is not None:
            weights.masked_fill_(~mask[..., None], 0.0)
        share, selected = weights.max(-1)
        at = torch.arange(places.start, places.stop, device=device)
        hits = {
            "saturated": share >= self.plan.saturated,
            "first": selected == 0,
            "self": selected == at,
            "previous": selected == at - 1,
            "next": selected == at + 1,
        }
        if attended.k.shape[2] == max(map(len, self._ids()), default=0):
            for name, kind in self._kinds(device).items():
                hits[name] = kind[rows, None, :T].expand(-1, site.heads, -1).gather(2, selected)
        values = {name: hit if mask is None else hit & mask for name, hit in hits.items()}
        values |= {"confidence": share, "first_weight": weights[..., 0]}
        site.add({name: value.sum((0, 2)) for name, value in values.items()})
        site.add({"entropy": torch.special.entr(weights).sum((0, 2, 3))})
        return weights.sum(2)

    def _keep(
        self,
        site: Site,
        attended: Attended,
        logits: Tensor,
        rows: slice,
        places: slice,
        sizes: list[tuple[int, int]],
        seen: Tensor,
    ) -> None:
        """The sampled queries: their margins, and what enters the margin problems."""
        assert self.batch is not None
        documents = self.batch.documents
        sampled: list[tuple[int, int]] = []
        for place, row in enumerate(range(rows.start, rows.stop)):
            document = documents[row if len(documents) == len(sizes) else 0]
            number = row if self.inputs.given else 0  # texts are the same in any batch
            here = seen[row].nonzero()[:, 0]
            wanted = self.plan.per_text if document in self.plan.sampled else 0
            most = self.plan.of_text.get(document, 0) if number == 0 else 0
            if not len(here) or not max(wanted, most):
                continue
            order = here[self.plan.order(document, number, len(here))[: max(wanted, most)]]
            inside = (order >= places.start) & (order < places.stop)
            sampled += [(place, query) for query in order[:wanted][inside[:wanted]].tolist()]
            query = order[:most][inside[:most]]
            if len(query):
                own = logits[place][:, (query - places.start).to(logits.device), : sizes[row][1]]
                site.rows.append(self._rows(attended, own, document, row, query))
        if sampled and logits.shape[-1] > 1:
            which, query = torch.tensor(sampled, device=logits.device).unbind(1)
            best = logits[which, :, query - places.start].topk(2).values
            site.margins.append((best[..., 0] - best[..., 1]).float())

    def _ids(self) -> list[np.ndarray]:
        """The token numbers of the texts of the batch."""
        assert self.batch is not None
        return [self.inputs.documents[number].ids for number in self.batch.documents] if self.inputs.documents else []

    def _kinds(self, device: torch.device) -> dict[str, Tensor]:
        """(B, T) which tokens of the batch are of a kind."""
        assert self.batch is not None
        if self._kinds_of is None or self._kinds_of[0] is not self.batch:
            ids = self._ids()
            found = {name: np.zeros((len(ids), max(map(len, ids))), bool) for name in ("special", *self.inputs.kinds)}
            for row, number in enumerate(self.batch.documents):
                special = self.inputs.documents[number].special
                found["special"][row, : len(special)] = special
                for name, numbers in self.inputs.kinds.items():
                    found[name][row, : len(special)] = np.isin(ids[row], numbers) & ~special
            self._kinds_of = self.batch, {name: torch.from_numpy(kind).to(device) for name, kind in found.items()}
        return self._kinds_of[1]

    def _rows(self, attended: Attended, logits: Tensor, document: int, row: int, query: Tensor) -> Rows:
        """`logits` (H, n, T) are those of the queries `query` (n,) of a text."""
        top = logits.topk(min(1 + self.plan.competitors, logits.shape[-1]))
        tokens, device = top.indices, logits.device
        heads = torch.arange(len(tokens), device=device)[:, None, None]
        at = query.to(device)
        part = _slice(attended, slice(row, row + 1), slice(None), None)
        bias = None
        if part.bias is not None:
            whole = part.bias.expand(1, len(tokens), part.q.shape[2], part.k.shape[2])[0]
            bias = whole[heads, at[None, :, None], tokens].cpu()
        hidden = [None if x is None else x[row] for x in attended.hidden()]
        return Rows(
            document=document,
            query=query,
            tokens=tokens.cpu(),
            logits=top.values.cpu(),
            weights=logits.softmax(-1).cpu(),
            q=part.q[0][:, at].cpu(),
            k=part.keys[0][heads, tokens].cpu(),
            bias=bias,
            hidden_q=None if hidden[0] is None else hidden[0][at].cpu(),
            hidden_k=None if hidden[1] is None else hidden[1][tokens].cpu(),
        )


def _slice(attended: Attended, rows: slice, queries: slice, T: int | None) -> Attended:
    """Some texts and queries, against the first T tokens."""
    bias = attended.bias
    if bias is not None:
        bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
        bias = bias[rows if len(bias) > 1 else slice(None), :, queries if bias.shape[2] > 1 else slice(None), :T]
    return Attended(attended.name, attended.q[rows, :, queries], attended.k[rows, :, :T], attended.scale, bias)


def _seeing(attended: Attended, sizes: list[tuple[int, int]]) -> Tensor:
    """(B, K) the queries of every text, padding left out, that see a token of it in every head."""
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
