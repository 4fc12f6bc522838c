"""A rule that a head might follow: is there a W that follows it, and with what margin?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.auditing._audit import evaluated
from attsvm.auditing._inputs import Inputs
from attsvm.captures import Attended, capture
from attsvm.checks import as_count
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry, parse_geometry
from attsvm.svm import MarginProblem, Status, solve

ROUNDS = 60
"""Rounds of adding violated rows to a margin problem."""
GAP = 1e-3
"""Relative gap of the answer."""


def previous(ids: Sequence[int]) -> list[int | None]:
    """The token before."""
    return [None, *range(len(ids) - 1)]


def first(ids: Sequence[int]) -> list[int | None]:
    """The first token."""
    return [0] * len(ids)


def itself(ids: Sequence[int]) -> list[int | None]:
    """The token itself."""
    return list(range(len(ids)))


def induction(ids: Sequence[int]) -> list[int | None]:
    """The token behind the last earlier occurrence of this one."""
    last: dict[int, int] = {}
    found: list[int | None] = []
    for place, number in enumerate(ids):
        found.append(last[number] + 1 if number in last else None)
        last[number] = place
    return found


RULES: dict[str, Callable[[Sequence[int]], Sequence[int | None]]] = {
    "previous": previous,
    "first": first,
    "self": itself,
    "induction": induction,
}
"""Rules by name."""


@dataclass(frozen=True, eq=False)
class RuleHead:
    """A rule in the space of one head's queries and keys."""

    layer: str
    head: int
    queries: int
    follows: float
    """share of queries that select the rule's token"""
    status: str
    """"solved": some W separates the rule's tokens from all others; "infeasible": proved that none does"""
    lower: float
    upper: float
    """lower ≤ smallest norm of such a W ≤ upper; the margin is its inverse"""
    efficiency: float | None
    """the head's own margin for the rule over the largest one; negative where it breaks the rule"""
    W: Tensor
    """(c, c) the max-margin solution; one more row and column if the logits have a bias"""

    @property
    def margin(self) -> float:
        return 1 / self.upper if self.upper > 0 else math.inf  # where a query sees nothing else


@dataclass(frozen=True, eq=False)
class _Text:
    q: Tensor
    """(H, n, e)"""
    k: Tensor
    """(H, T, c)"""
    bias: Tensor
    """(H, n, T), −inf where hidden"""
    target: Tensor
    """(n,)"""


def audit_rule(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[Any],
    rule: str | Callable[[Sequence[int]], Sequence[int | None]] | Sequence[Sequence[int | None]],
    *,
    geometry: Geometry | str = "l2",
    length: int | None = None,
    most: int = 32,
    seed: int = 0,
) -> list[RuleHead]:
    """For every head, the max-margin problem of a rule: the rule's token against all others that a query sees. Queries
    that do not see the rule's token are left out, and so are heads without any other.

    Args:
        model, tokenizer, texts, length: as in `audit`.
        rule: "previous", "first", "self", "induction", a function from the token numbers of a text to the place that
            each of its queries should select (None where the rule is silent), or these places for every text.
        geometry: the norm.
        most: queries, drawn from all texts.
        seed: of the draw.
    """
    geometry, inputs = parse_geometry(geometry), Inputs(model, tokenizer, texts, length)
    if not inputs.documents:
        raise AttsvmError("rules are about tokens: give texts or token numbers.")
    model, wanted = inputs.model, _places(inputs, rule)
    order = torch.randperm(len(wanted), generator=torch.Generator().manual_seed(seed))[: as_count("most", most)]
    chosen: dict[int, list[tuple[int, int]]] = {}
    for index in order.tolist():
        document, query, target = wanted[index]
        chosen.setdefault(document, []).append((query, target))
    found: dict[str, list[_Text]] = {}
    scales: dict[str, float] = {}
    with evaluated(model), torch.no_grad():
        for document, places in chosen.items():

            def keep(attended: Attended, places: list[tuple[int, int]] = places, document: int = document) -> None:
                tokens = len(inputs.documents[document].ids)
                if attended.q.shape[2] != tokens or attended.k.shape[2] != tokens:
                    return
                query, target = torch.tensor(places).mT
                bias = torch.zeros(()) if attended.bias is None else attended.bias.cpu()
                bias = bias.expand(1, attended.q.shape[1], tokens, tokens)[0][:, query].double()
                # A query cannot select a token that this attention hides from it.
                seen = (bias.gather(-1, target.expand(len(bias), -1)[..., None]) > -torch.inf)[..., 0].all(0)
                if not bool(seen.any()):
                    return
                q, k = attended.q[0].cpu()[:, query[seen]].double(), attended.keys[0].double().cpu()
                scales[attended.name] = attended.scale
                found.setdefault(attended.name, []).append(_Text(q, k, bias[:, seen], target[seen]))

            with capture(model, keep):
                inputs.batch([document]).run(model)
    return [head for name, parts in found.items() for head in _solve(name, parts, scales[name], geometry)]


def _places(
    inputs: Inputs, rule: str | Callable[[Sequence[int]], Sequence[int | None]] | Sequence[Sequence[int | None]]
) -> list[tuple[int, int, int]]:
    if isinstance(rule, str):
        if rule not in RULES:
            raise AttsvmError(f"rule must be {', '.join(RULES)}, a function or places, but got {rule!r}.")
        rule = RULES[rule]
    given: list[Sequence[int | None]] = (
        [rule(d.ids.tolist()) for d in inputs.documents] if callable(rule) else list(rule)
    )
    if len(given) != len(inputs.documents):
        raise AttsvmError(f"rule must have places for {len(inputs.documents)} texts, but has them for {len(given)}.")
    found = []
    for number, (document, places) in enumerate(zip(inputs.documents, given)):
        for query, target in enumerate(places[: len(document.ids)]):
            if target is not None:
                found.append((number, query, as_count("place", target, 0, len(document.ids) - 1)))
    if not found:
        raise AttsvmError("the rule must say something about these texts, but it is silent on all of their tokens.")
    return found


def _solve(name: str, parts: list[_Text], scale: float, geometry: Geometry) -> list[RuleHead]:
    """Rows are added where they are violated; what the rows so far prove is proved for all of them."""
    H, c = parts[0].q.shape[0], parts[0].q.shape[2]
    biased = any(bool((part.bias[part.bias > -torch.inf] != 0).any()) for part in parts)
    size = c + biased
    Z = torch.cat([part.q for part in parts], 1)
    if biased:
        Z = torch.cat([Z, Z.new_ones(*Z.shape[:2], 1)], -1)
    own = scale * torch.eye(size, dtype=torch.float64)
    own[c:, c:] = 1
    W = own.expand(H, size, size)
    Q = Z.shape[1]
    A, present = Z.new_zeros(H, Q, 0, size), torch.zeros(H, Q, 0, dtype=torch.bool)
    least = _gaps(parts, W, c, biased)[0]
    solution, upper = None, torch.full((H,), torch.inf, dtype=torch.float64)
    own_least = least.amin(1)
    follows = (least > 0).double().mean(1)
    best = W.clone()
    for _ in range(ROUNDS):
        gap, which = _gaps(parts, W, c, biased)
        # Rows that are there already are satisfied up to rounding: what is worst is new, or the answer is right.
        new = (gap < 1 - GAP / 4) & gap.isfinite() if solution is not None else gap.isfinite()
        if solution is not None:
            done = gap.amin(1)
            better = (done > 0) & (solution.norm / done < upper)
            upper = torch.where(better, solution.norm / done, upper)
            best = torch.where(better[:, None, None], W / done.clamp(min=1e-300)[:, None, None], best)
            if not bool((new.any(1) & ~solution.infeasible).any()):
                break
        A = torch.cat([A, _rows(parts, which, biased)[:, :, None]], 2)
        present = torch.cat([present, new[..., None]], 2)
        problem = MarginProblem(A, Z, torch.ones_like(present, dtype=A.dtype), torch.zeros_like(present), present)
        solution = solve(problem, geometry, tol=GAP / 4)
        W = torch.where(solution.W.isfinite(), solution.W, 0.0)
    assert solution is not None
    found = []
    for head in range(H):
        lower, high = float(solution.lower[head]), float(upper[head])
        bad = bool(solution.infeasible[head])
        status = Status.INFEASIBLE if bad else Status.SOLVED if high <= (1 + GAP) * lower else Status.NOT_CONVERGED
        ratio = None if bad or high == 0 else float(own_least[head] / geometry.norm(own)) * lower
        found.append(RuleHead(name, head, Q, float(follows[head]), str(status), lower, high, ratio, best[head]))
    return found


def _gaps(parts: list[_Text], W: Tensor, c: int, biased: bool) -> tuple[Tensor, Tensor]:
    """The smallest (score of the rule's token) − (score of another), and of which one, (H, Q) each."""
    gaps, which = [], []
    for part in parts:
        z = torch.cat([part.q, part.q.new_ones(*part.q.shape[:2], 1)], -1) if biased else part.q
        u = z @ W.mT  # (H, n, size)
        seen = part.bias > -torch.inf
        score = u[..., :c] @ part.k.mT
        if biased:
            score = score + u[..., c:] * part.bias.masked_fill(~seen, 0.0)
        target = part.target.expand(len(score), -1)[..., None]
        gap = (score.gather(-1, target) - score).masked_fill(~seen, torch.inf).scatter(-1, target, torch.inf)
        worst = gap.min(-1)
        gaps.append(worst.values)
        which.append(worst.indices)
    return torch.cat(gaps, 1), torch.cat(which, 1)


def _rows(parts: list[_Text], which: Tensor, biased: bool) -> Tensor:
    """a = k_rule − k_t for one token t of every query, (H, Q, size)."""
    rows = []
    for part, own in zip(parts, which.split([len(part.target) for part in parts], 1)):
        heads = torch.arange(len(part.k))[:, None]
        target = part.target.expand(len(part.k), -1)
        a = part.k[heads, target] - part.k[heads, own]
        if biased:
            at = torch.arange(len(part.target))
            gap = part.bias[heads, at, target] - part.bias[heads, at, own]
            a = torch.cat([a, gap.masked_fill(~gap.isfinite(), 0.0)[..., None]], -1)
        rows.append(a)
    return torch.cat(rows, 1)
