"""Mini-batch AdamW with the schedule of Appendix E, for the one-layer and the two-layer model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm.checks import as_count, as_real
from attsvm.embeddings._one_layer import Embeddings, gradients, ready
from attsvm.embeddings._sequences import Sequences
from attsvm.embeddings._two_layer import two_layer_loss
from attsvm.errors import AttsvmError

MODELS = ("one-layer", "two-layer")


@dataclass(frozen=True)
class AdamWPlan:
    """AdamW's settings: lr · factor^(milestones passed) in every epoch of random batches."""

    epochs: int = 500
    lr: float = 0.01
    weight_decay: float = 1e-8
    batch: int = 128
    milestones: Sequence[int] = (100, 200)
    factor: float = 0.1

    def __post_init__(self) -> None:
        as_count("epochs", self.epochs, 0)
        as_count("batch", self.batch)
        for name in ("lr", "weight_decay", "factor"):
            as_real(name, getattr(self, name), least=0)

    def rate(self, epoch: int) -> float:
        return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, eq=False)
class TrainedEmbeddings:
    """Trained embeddings, and the mean loss of every epoch as its batches saw it (epochs,)."""

    at: Embeddings
    losses: Tensor


def train_embeddings(
    data: Sequences,
    start: Embeddings,
    model: str = "one-layer",
    schedule: AdamWPlan = AdamWPlan(),
    *,
    train_v: bool = True,
    seed: int = 0,
    report: Callable[[int, Embeddings], None] | None = None,
) -> TrainedEmbeddings:
    """Train E, p (and v) on the mean logistic loss; `report` is shown the embeddings after every epoch.

    The order of the sequences is drawn anew in every epoch. Batches of the two-layer model hold sequences of similar
    length (the drawn order is sorted by length in stretches of 50 batches), since it pads them.
    """
    if model not in MODELS:
        raise AttsvmError(f"model must be one of {', '.join(MODELS)}, but got {model!r}.")
    data = ready(data, start)
    at = Embeddings(*(tensor.clone() for tensor in start))
    trained = [at.E, at.p, *([at.v] if train_v else [])]
    optimizer = torch.optim.AdamW(trained, lr=schedule.lr, weight_decay=schedule.weight_decay, fused=True)
    back = _one_layer_gradient if model == "one-layer" else _two_layer_gradient
    chance = torch.Generator().manual_seed(seed)
    losses = []
    for epoch in range(schedule.epochs):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(epoch)
        order = torch.randperm(data.n, generator=chance)
        stretch = 50 * schedule.batch if model == "two-layer" else 0
        total = at.E.new_zeros(())
        for part in _batches(data, order, schedule.batch, stretch, chance):
            total += back(part, at) * (part.n / data.n)
            optimizer.step()
        losses.append(total)
        if report is not None:
            report(epoch, at)
    return TrainedEmbeddings(at, torch.stack(losses) if losses else at.E.new_zeros(0))


def _one_layer_gradient(data: Sequences, at: Embeddings) -> Tensor:
    found, slope = gradients(data, at)
    at.E.grad, at.p.grad, at.v.grad = slope
    return found.loss


def _two_layer_gradient(data: Sequences, at: Embeddings) -> Tensor:
    with torch.enable_grad():
        leaves = Embeddings(*(tensor.detach().requires_grad_() for tensor in at))
        loss = two_layer_loss(data, leaves)
        # The fused optimizer reads a gradient as if it were contiguous, whatever its strides.
        at.E.grad, at.p.grad, at.v.grad = (slope.contiguous() for slope in torch.autograd.grad(loss, leaves))
    return loss.detach()


def _batches(data: Sequences, order: Tensor, size: int, stretch: int, chance: torch.Generator) -> Iterator[Sequences]:
    """The sequences in this order, cut into batches; sorted by length within stretches, then batches mixed."""
    entries = data.offsets.diff().cpu()
    if stretch:
        order = torch.cat([part[entries[part].argsort(stable=True)] for part in order.split(stretch)])
    all_of = data.take(order.to(data.ids.device))
    # One copy of the epoch in order: a batch is then a slice, and its ends are known without asking the device.
    ends = torch.cat([entries.new_zeros(1), entries[order].cumsum(0)]).tolist()
    starts = range(0, data.n, size)
    for index in torch.randperm(len(starts), generator=chance).tolist() if stretch else range(len(starts)):
        first = starts[index]
        last = min(first + size, data.n)
        inside = slice(ends[first], ends[last])
        offsets = all_of.offsets[first : last + 1] - ends[first]
        yield replace(
            all_of, ids=all_of.ids[inside], offsets=offsets, Y=all_of.Y[first:last], count=all_of.count[inside]
        )
