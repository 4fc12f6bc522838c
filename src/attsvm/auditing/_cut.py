"""What may be cut: which selections a pruning or quantisation provably keeps, and which it flips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attsvm.auditing._audit import evaluated
from attsvm.auditing._inputs import Batch, Inputs
from attsvm.auditing._weights import probe
from attsvm.captures import Attended, capture
from attsvm.checks import as_count, as_share
from attsvm.errors import AttsvmError, describe


@dataclass(frozen=True)
class HeadCut:
    """What a change of the weights does to the selections of one head."""

    layer: str
    head: int
    queries: int
    certified: float
    """share of queries for which |δ| is below the margin for every competitor: they cannot flip, nor could they for
    any smaller multiple of this change of the logits"""
    flipped: float
    """share of queries that select another token"""


@dataclass(frozen=True)
class Cut:
    """The heads under one change. Every layer has the inputs of the unchanged model."""

    heads: list[HeadCut]

    def _mean(self, name: str) -> float:
        total = sum(head.queries for head in self.heads)
        return sum(getattr(head, name) * head.queries for head in self.heads) / total

    @property
    def certified(self) -> float:
        """Over all heads and queries."""
        return self._mean("certified")

    @property
    def flipped(self) -> float:
        return self._mean("flipped")

    def rows(self) -> list[dict[str, Any]]:
        return [vars(head) for head in self.heads]


def pruning(share: float) -> Callable[[Tensor], Tensor]:
    """Set the smallest `share` of a weight matrix to 0."""
    as_share("share", share)

    def change(weight: Tensor) -> Tensor:
        order = weight.abs().flatten().argsort(stable=True)
        keep = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
        keep[order[: round(share * weight.numel())]] = False
        return weight * keep.view_as(weight)

    return change


def quantisation(bits: int) -> Callable[[Tensor], Tensor]:
    """Round every row of a weight matrix to 2^bits − 1 equally spaced values around 0, the largest entry among them."""
    levels = 2 ** (as_count("bits", bits, 2, 16) - 1) - 1

    def change(weight: Tensor) -> Tensor:
        step = weight.abs().amax(-1, keepdim=True) / levels
        return torch.where(step > 0, (weight / step).round() * step, weight)

    return change


def certify_change(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[Any],
    change: Callable[[Tensor], Tensor],
    *,
    length: int | None = None,
    batch: int = 8,
) -> Cut:
    """Change the weights that make queries and keys, one layer at a time, and compare what every head selects.

    A query selects token o. If its logits change by less than the margin against every other token t,
    |(k_o − k_t)ᵀ ΔW q| < m_t, the selection cannot flip. Rounding of the logits is counted against the certificate.
    """
    if not callable(change):
        raise AttsvmError(f"change must be a function of a weight, such as pruning(0.2), not {describe(change)}.")
    return _compare(Inputs(model, tokenizer, texts, length), change, as_count("batch", batch))


def largest_pruning(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[Any],
    flips: float = 0.01,
    *,
    length: int | None = None,
    batch: int = 8,
    steps: int = 7,
) -> tuple[float, list[tuple[float, float]]]:
    """The largest uniform pruning that flips at most the share `flips` of all selections, found by bisection.

    Every matrix loses the same share of its weights. Returns the share, and all (share, flipped) that were tried; the
    answer is right to 2^−steps if flips grow with the share.
    """
    as_share("flips", flips)
    inputs = Inputs(model, tokenizer, texts, length)
    low, high = 0.0, 1.0
    tried: list[tuple[float, float]] = []
    for _ in range(as_count("steps", steps)):
        share = (low + high) / 2
        flipped = _compare(inputs, pruning(share), as_count("batch", batch)).flipped
        tried.append((share, flipped))
        low, high = (share, high) if flipped <= flips else (low, share)
    return low, tried


def _compare(inputs: Inputs, change: Callable[[Tensor], Tensor], size: int) -> Cut:
    counts: dict[str, Tensor] = {}
    model = inputs.model
    with evaluated(model):
        weights = probe(inputs)
        if not weights:
            raise AttsvmError("the model must make queries and keys by linear maps, but none was seen.")
        modules = {name.partition(":")[0] for name in weights}
        used = {w.untyped_storage().data_ptr() for found in weights.values() for w in found.used}
        seen: list[Attended] = []
        with torch.no_grad(), capture(model, seen.append) as mode:
            current: list[Batch] = []

            def again(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
                if mode.paused:  # this is the second call
                    return
                before = list(seen)
                seen.clear()
                changed = {
                    own: _changed(change, weight)
                    for own, weight in module.named_parameters()
                    if weight.untyped_storage().data_ptr() in used
                }
                after: list[Attended] = []
                mode.paused = True
                try:
                    with capture(module, after.append):
                        functional_call(module, changed, args, kwargs)
                finally:
                    mode.paused = False
                for old, new in zip(before, after, strict=True):
                    key = old.name
                    found = _count(old, new, current[-1])
                    counts[key] = counts[key] + found if key in counts else found

            hooks = [model.get_submodule(name).register_forward_hook(again, with_kwargs=True) for name in modules]
            try:
                for part in inputs.batches(size):
                    current[:] = [part]
                    mode.calls.clear()
                    part.run(model)
            finally:
                for hook in hooks:
                    hook.remove()
    heads = [
        HeadCut(name, head, int(n), float(certified / n), float(flipped / n))
        for name, found in counts.items()
        for head, (n, certified, flipped) in enumerate(found.tolist())
        if n
    ]
    return Cut(heads)


def _changed(change: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    new = change(weight)
    if not isinstance(new, Tensor) or new.shape != weight.shape:
        shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise AttsvmError(f"change must return a tensor of shape {tuple(weight.shape)}, as it was given, not {shape}.")
    return new


def _count(old: Attended, new: Attended, batch: Batch) -> Tensor:
    """Queries, certified and flipped ones of every head, (H, 3)."""
    total = torch.zeros(old.q.shape[1], 3, dtype=torch.float64)
    before, after = old.logits(), new.logits()
    for row in range(len(before)):
        old_logits, new_logits = (batch.own(x[row], row) for x in (before, after))
        seen = old_logits > -torch.inf
        some = seen.any(-1).all(0)
        old_logits, new_logits, seen = old_logits[:, some], new_logits[:, some], seen[:, some]
        chosen = old_logits.argmax(-1, keepdim=True)
        margin, then = (x.gather(-1, chosen) - x for x in (old_logits, new_logits))
        size = torch.maximum(old_logits.abs(), new_logits.abs())
        rounding = 16 * torch.finfo(size.dtype).eps * (size + size.gather(-1, chosen))
        safe = (then - margin).abs() + rounding < margin
        safe = safe | ~seen | torch.zeros_like(safe).scatter(-1, chosen, True)
        total[:, 0] += seen.shape[1]
        total[:, 1] += safe.all(-1).sum(1).double().cpu()
        total[:, 2] += (new_logits.argmax(-1, keepdim=True) != chosen)[..., 0].sum(1).double().cpu()
    return total
