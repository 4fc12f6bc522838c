"""Train a GPT, a ViT or a text classifier with one method at one or more shares of zeros."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.experiments.sparse.methods import Family, make_optimizers, start_model
from attsvm.experiments.sparse.samples import Samples, Shape
from attsvm.models import GPT
from attsvm.optim import GradualPruning

ONE_SHOT = (0.5, 0.7, 0.8, 0.9)


Losses = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy of what is to be predicted: next tokens, or classes of images."""
    x, y = batch
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        logits = model(x)
    return F.cross_entropy(logits.float().flatten(0, -2), y.flatten())


def distilled(model: nn.Module, teacher: nn.Module, batch: tuple[Tensor, Tensor], share: float) -> Tensor:
    """Cross-entropy with labels that are, to this share, the teacher's probabilities."""
    x, y = batch
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        with torch.no_grad():
            soft = teacher(x).float().flatten(0, -2).softmax(-1)
        logits = model(x)
    logits = logits.float().flatten(0, -2)
    return (1 - share) * F.cross_entropy(logits, y.flatten()) + share * F.cross_entropy(logits, soft)


@cache
def compiled() -> Callable[..., Tensor]:
    return torch.compile(distilled)


def train_family(
    family: Family,
    corpus: Samples,
    shape: Shape,
    losses: Losses = loss_of,
    model: nn.Module | None = None,
    *,
    fused: bool = True,
    done: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """One row for each share of zeros. `model`, if given, is trained in place of a new one (its weights are reset)."""
    fresh = start_model(shape, family)
    trained = fresh.to(corpus.device) if model is None else model
    start_weights = copy.deepcopy(fresh.state_dict())
    total = corpus.steps(shape, family.epochs)
    common = round(family.start * total) - 1 if _can_share(family) else 0

    def from_start() -> Run:
        trained.load_state_dict(start_weights)
        torch.manual_seed(family.seed)
        return Run(family, corpus, shape, losses, trained, total, fused)

    run = from_start()
    if "distil" in family.options:
        run.learn_from_muon(start_weights)
    run.advance(common)
    start = run.snapshot() if common else None
    for sparsity in family.sparsities:
        if family.key(sparsity) in done:
            continue
        if start is None:
            teacher, run = run.teacher, from_start()
            run.teacher = teacher
        else:
            run.restore(start)
        if "muon_until" in family.options:
            run.advance_by_muon(float(family.options["muon_until"]), float(family.options["muon_lr"]))
        pruning = pruning_of(run, sparsity)
        if pruning is not None:
            pruning.count = run.count
        run.advance(total, pruning)
        one_shot = sparsity == 0 and family.note in ("main", "tune") and family.method != "adabreg"
        yield {"sparsity": sparsity, **run.measures(one_shot)}


def _can_share(family: Family) -> bool:
    return len(family.sparsities) > 1 and family.method != "rigl" and "muon_until" not in family.options


def pruning_of(run: Run, sparsity: float) -> GradualPruning | None:
    if sparsity == 0:
        return None
    family = run.family
    schedule: dict[str, Any] = {"start": family.start, "end": family.end, "every": run.shape.every}
    if family.method == "rigl":
        schedule |= {"initial": sparsity, "start": 0.0, "regrow": 0.3, "scope": "layer"}
    schedule |= {name: family.options[name] for name in ("regrow", "scope", "structure") if name in family.options}
    pruning = GradualPruning(run.optimizers[0], sparsity, run.total, **schedule)
    if family.options.get("gradients") == "dense":  # those of pruned entries reach the optimizer
        run.optimizers[0]._optimizer_step_pre_hooks.clear()
    scores = {"first order": _first_order, "margin": partial(_by_margin, run)}
    if by := family.options.get("by"):
        score = scores[str(by)]
        by_score = [partial(_of_entries, score, *unit.params) for unit in pruning._units]
        pruning._units = [unit._replace(scores=scores) for unit, scores in zip(pruning._units, by_score)]
    return pruning


def _of_entries(score: Callable[[Tensor], Tensor], w: Tensor, masks: Any) -> Tensor:
    return score(w)  # it is 0 of what is pruned


def _first_order(w: Tensor) -> Tensor:
    """What the loss changes by to first order when an entry becomes 0."""
    assert w.grad is not None
    return (w.detach() * w.grad).abs()


def _by_margin(run: Run, w: Tensor) -> Tensor:
    """The size of an entry; of queries and keys over the margin by which their layer selects, as a share of the mean
    margin of all layers: what selects surely may lose more."""
    size, model = w.detach().abs(), run.model
    assert isinstance(model, GPT)
    name = next(name for name, other in model.named_parameters() if other is w)  # blocks.0.qkv.weight
    if "qkv" in name:
        batch, _ = next(run.corpus.batches(run.shape, 0))
        found = margins(model, batch[:8])
        size[: 2 * w.shape[1]] *= found.mean() / found[int(name.split(".")[1])]
    return size


@torch.no_grad()
def margins(model: GPT, tokens: Tensor) -> Tensor:
    """By how much the logit of the token that a query selects exceeds the next one's: the mean of every layer."""
    was, _ = model.training, model.eval()
    maps = model.attention(tokens)[1]
    model.train(was)
    tops = [weights[..., 1:, :].double().topk(2).values.log() for weights in maps]  # the first query sees one key
    return torch.stack([(top[..., 0] - top[..., 1]).mean() for top in tops])


_teachers: dict[Any, nn.Module] = {}  # the last one: families that follow each other may share it


class Run:
    def __init__(
        self,
        family: Family,
        corpus: Samples,
        shape: Shape,
        losses: Losses,
        model: nn.Module,
        total: int,
        fused: bool,
    ) -> None:
        self.family, self.corpus, self.shape, self.losses, self.model = family, corpus, shape, losses, model
        self.total, self.fused = total, fused
        self.optimizers = make_optimizers(model, family, fused)
        self.batches = corpus.batches(shape, 1000 + family.seed)
        self.count, self.seconds, self.recent = 0, 0.0, torch.zeros((), device=corpus.device)
        self.teacher: nn.Module | None = None

    def advance(self, until: int, pruning: GradualPruning | None = None) -> None:
        began = time.perf_counter()
        self.model.train()
        while self.count < until:
            if "p_from" in self.family.options and self.count % self.shape.every == 0:
                self._lower_p()
            factor = self._factor(self.count)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
                optimizer.zero_grad()
            if self.teacher is None:
                loss = self.losses(self.model, next(self.batches))
            else:
                share = float(self.family.options["distil"])
                with_teacher = distilled if self.losses is loss_of else compiled()
                loss = with_teacher(self.model, self.teacher, next(self.batches), share)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.family.clip)
            for optimizer in self.optimizers:
                optimizer.step()
            if pruning is not None:
                pruning.step()
            if self.count >= self.total - 100:
                self.recent += loss.detach() / 100
            self.count += 1
        if self.recent.is_cuda:
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - began

    def learn_from_muon(self, start: dict[str, Tensor]) -> None:
        """Train a dense teacher with Muon, from the same start; then go back to it."""
        own = self.family
        lr, epochs = float(own.options["teacher_lr"]), float(own.options.get("teacher_epochs", own.epochs))
        by_muon = replace(
            own, method="muon", options={}, lr=lr, epochs=epochs, sparsities=(), start=0.0, end=0.0, note="teacher"
        )
        key = (by_muon.key(0.0), self.shape)
        if key not in _teachers:
            total = self.corpus.steps(self.shape, epochs)
            Run(by_muon, self.corpus, self.shape, self.losses, self.model, total, self.fused).advance(total)
            _teachers.clear()
            _teachers[key] = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.teacher = _teachers[key]
        self.model.load_state_dict(start)
        torch.manual_seed(own.seed)

    def advance_by_muon(self, share: float, lr: float) -> None:
        """Muon's steps at first; then the family's own method goes on from its weights, with new moments."""
        own, by_muon = self.optimizers, replace(self.family, method="muon", options={}, lr=lr)
        self.optimizers = make_optimizers(self.model, by_muon, self.fused)
        self.advance(round(share * self.total))
        self.optimizers = [own[0], self.optimizers[1]]

    def _lower_p(self) -> None:
        """From `p_from` to `p` along a line, while weights are pruned."""
        f = self.family
        done = min(max(self.count / self.total - f.start, 0) / (f.end - f.start), 1)
        first, last = float(f.options["p_from"]), float(f.options["p"])
        for group in self.optimizers[0].param_groups:
            group["p"] = first + (last - first) * done

    def _factor(self, count: int) -> float:
        warm = self.family.warmup * self.total
        if count < warm:
            return (count + 1) / (warm + 1)
        return 0.5 * (1 + math.cos(math.pi * (count - warm) / (self.total - warm)))

    def snapshot(self) -> tuple[Any, ...]:
        states = [copy.deepcopy(o.state_dict()) for o in self.optimizers]
        return {k: v.clone() for k, v in self.model.state_dict().items()}, states, self.count, self.seconds

    def restore(self, saved: tuple[Any, ...]) -> None:
        weights, states, self.count, self.seconds = saved
        torch.manual_seed(10_000 + self.family.seed)  # of dropout from here on
        self.recent = torch.zeros_like(self.recent)
        self.optimizers = make_optimizers(self.model, self.family, self.fused)  # without hooks of another share
        self.model.load_state_dict(weights)
        for optimizer, state in zip(self.optimizers, states):
            optimizer.load_state_dict(copy.deepcopy(state))
        self.batches = self.corpus.batches(self.shape, 1000 + self.family.seed)
        for _ in range(self.count):
            next(self.batches)

    @torch.no_grad()
    def measures(self, one_shot: bool) -> dict[str, Any]:
        matrices = [p for g in self.optimizers[0].param_groups for p in g["params"]]
        flat = torch.cat([w.detach().abs().flatten() for w in matrices])
        found: dict[str, Any] = {
            "validation": self.evaluate("validation"),
            "test": self.evaluate("test"),
            **({"accuracy": self.accuracy()} if self.shape.classes else {}),
            "train": self.recent.item(),
            "zeros": (flat == 0).double().mean().item(),
            "steps": self.count,
            "seconds": round(self.seconds, 2),
        }
        if one_shot and math.isfinite(found["test"]):
            whole, ordered = [w.clone() for w in matrices], flat.sort().values
            for share in ONE_SHOT:
                threshold = ordered[round(share * len(flat)) - 1]
                for w, original in zip(matrices, whole):
                    w.copy_(original * (original.abs() > threshold))
                found[f"one_shot_{round(100 * share)}"] = self.evaluate("test")
            for w, original in zip(matrices, whole):
                w.copy_(original)
        return found

    @torch.no_grad()
    def evaluate(self, split: str) -> float:
        """Mean cross-entropy of a token, text or image, in nats."""
        self.model.eval()
        found = [self.losses(self.model, batch).double() for batch in self.corpus.evaluation(split, self.shape)]
        self.model.train()
        return torch.stack(found).mean().item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of test texts or images that are classified rightly."""
        self.model.eval()
        batches = self.corpus.evaluation("test", self.shape)
        right = [(self.model(x).argmax(1) == y).double().mean() for x, y in batches]
        self.model.train()
        return torch.stack(right).mean().item()
