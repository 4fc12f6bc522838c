"""Numbers of every head, summed up text by text: nothing is kept but sums and a sample of queries."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attsvm.auditing._inputs import Batch, Inputs
from attsvm.captures import Attended

SAMPLE = 4096
"""Queries of a head, over all texts, whose margins are kept for quantiles."""


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
    """(H, m) of the sampled queries of every text"""
    rows: list[Rows] = field(default_factory=list)

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            value = value.double().cpu()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def mean(self, name: str) -> Tensor:
        """(H,) mean over queries; of `sink` over texts."""
        return self.sums[name] / (self.texts if name == "sink" else self.queries)

    def quantiles(self, at: tuple[float, ...]) -> Tensor:
        """(len(at), H) of the margins; NaN where no query has one."""
        found = torch.cat(self.margins, 1).double() if self.margins else torch.empty(self.heads, 0).double()
        if not found.shape[1]:
            return torch.full((len(at), self.heads), torch.nan)
        return torch.quantile(found, torch.tensor(at, dtype=torch.float64), dim=1)


class Stream:
    """Takes every attention of a batch, and adds it to its site."""

    def __init__(self, inputs: Inputs, plan: Plan) -> None:
        self.inputs, self.plan = inputs, plan
        self.sites: dict[str, Site] = {}
        self.batch: Batch | None = None

    def __call__(self, attended: Attended) -> None:
        assert self.batch is not None
        B, H = attended.q.shape[:2]
        site = self.sites.setdefault(attended.name, Site(attended.name, H, attended.scale))
        hidden = attended.hidden()
        for row in range(B):
            part = _row(attended, row)
            document = self.batch.documents[row if len(self.batch.documents) == B else 0]
            logits = self.batch.own(part.logits()[0], row)
            number = row if self.inputs.given else 0  # texts are the same in any batch
            self._text(site, part, logits, document, number, tuple(None if x is None else x[row] for x in hidden))

    def _text(
        self,
        site: Site,
        attended: Attended,
        logits: Tensor,
        document: int,
        row: int,
        hidden: tuple[Tensor | None, ...],
    ) -> None:
        T = logits.shape[-1]
        some = (logits.amax(-1) > -torch.inf).all(0)
        if not bool(some.all()):  # queries that see nothing at all
            logits = logits[:, some]
        places = some.nonzero()[:, 0]
        if not len(places):
            return
        top = logits.topk(min(1 + self.plan.competitors, T))
        kept = self.plan.order(document, row, len(places)).to(places.device)
        sample = kept[: self.plan.per_text if document in self.plan.sampled else 0]
        rows = kept[: self.plan.of_text.get(document, 0) if row == 0 else 0]
        chosen = logits[:, rows]
        weights = _softmax(logits)  # in place of the logits
        share = weights.amax(-1)
        site.queries += len(places)
        site.texts += 1
        site.add(
            {
                "saturated": (share >= self.plan.saturated).sum(1),
                "confidence": share.sum(1),
                "entropy": -torch.special.xlogy(weights, weights).sum((1, 2)),
                "first_weight": weights[..., 0].sum(1),
                "sink": weights.mean(1).amax(-1),
            }
            | self._kinds(top.indices[..., 0], places, document, T)
        )
        if T > 1 and len(sample):
            margin = top.values[:, sample, 0] - top.values[:, sample, 1]
            known = margin.isfinite().all(0)  # a query that sees one token has none
            site.margins.append(margin[:, known].float().cpu())
        if len(rows):
            self._rows(site, attended, document, places, rows, top, chosen.softmax(-1), hidden)

    def _kinds(self, selected: Tensor, places: Tensor, document: int, T: int) -> dict[str, Tensor]:
        found = {
            "first": selected == 0,
            "self": selected == places,
            "previous": selected == places - 1,
            "next": selected == places + 1,
        }
        documents = self.inputs.documents
        if documents and len(documents[document].ids) == T:
            own, device = documents[document], selected.device
            found["special"] = torch.from_numpy(own.special).to(device)[selected]
            for name, numbers in self.inputs.kinds.items():
                of_kind = torch.tensor([i in numbers for i in own.ids.tolist()], device=device)
                found[name] = (of_kind & ~torch.from_numpy(own.special).to(device))[selected]
        return {name: hit.sum(1) for name, hit in found.items()}

    def _rows(
        self,
        site: Site,
        attended: Attended,
        document: int,
        places: Tensor,
        rows: Tensor,
        top: torch.return_types.topk,
        weights: Tensor,
        hidden: tuple[Tensor | None, ...],
    ) -> None:
        tokens = top.indices[:, rows]
        heads = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        query = places[rows]
        bias = None
        if attended.bias is not None:
            K, T = attended.q.shape[2], attended.k.shape[2]
            bias = attended.bias.expand(1, len(tokens), K, T)[0][heads, query[None, :, None], tokens].cpu()
        keys = attended.keys[0]
        site.rows.append(
            Rows(
                document=document,
                query=query.cpu(),
                tokens=tokens.cpu(),
                logits=top.values[:, rows].cpu(),
                weights=weights.cpu(),
                q=attended.q[0][:, query].cpu(),
                k=keys[heads, tokens].cpu(),
                bias=bias,
                hidden_q=None if hidden[0] is None else hidden[0][query].cpu(),
                hidden_k=None if hidden[1] is None else hidden[1][tokens].cpu(),
            )
        )


def _row(attended: Attended, row: int) -> Attended:
    bias = attended.bias
    if bias is not None and bias.ndim == 4 and bias.shape[0] > 1:
        bias = bias[row : row + 1]
    return Attended(attended.name, attended.q[row : row + 1], attended.k[row : row + 1], attended.scale, bias)


def _softmax(logits: Tensor) -> Tensor:
    """In place: rows are as long as texts, and there are many."""
    logits -= logits.amax(-1, keepdim=True)
    logits.exp_()
    logits /= logits.sum(-1, keepdim=True)
    return logits
