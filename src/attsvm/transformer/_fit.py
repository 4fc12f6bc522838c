"""Train a transformer; killed at any step and started again, it ends with the same weights."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attsvm.checks import as_device
from attsvm.errors import AttsvmError, describe
from attsvm.files import clear_leftovers, one_line, under
from attsvm.identity import run_folder
from attsvm.memory import free_bytes
from attsvm.models import GPT, TextTransformer, ViT
from attsvm.optim import GradualPruning
from attsvm.transformer._checkpoint import Place, load_run, read_run, save_run
from attsvm.transformer._data import Data, MiniBatch
from attsvm.transformer._evaluate import best_epoch, evaluate, write_metrics
from attsvm.transformer._settings import Settings, make_model, make_optimizer, make_pruning

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"


@dataclass(frozen=True)
class Reached:
    """Where a run is: told after every step. `history` has a row for every epoch that is done."""

    epoch: int
    batch: int
    batches: int
    rate: float
    """tokens or images per second in this epoch"""
    history: list[dict[str, float]]
    model: nn.Module
    """as it is after this step; where batch is batches, with the weights that the epoch's row is measured with"""


@dataclass(frozen=True)
class Fitted:
    """A trained model, what happened in every epoch, and why it ended: accuracy, epochs, diverged or interrupted."""

    model: nn.Module
    history: list[dict[str, float]]
    stopped: str
    settings: Settings

    def __repr__(self) -> str:
        reached = [
            f"test {name} {self.history[-1][f'test_{name}']:.4f}" for name in ("loss", "accuracy") if self.history
        ]
        epochs = f"{len(self.history)} epoch{'s' * (len(self.history) != 1)}"
        return f"Fitted({', '.join([type(self.model).__name__, epochs, f'stopped: {self.stopped}', *reached])})"


def fit(
    data: Data,
    settings: Settings,
    *,
    device: torch.device | str = "cpu",
    out: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[Reached], None] = lambda progress: None,
    accelerator: Any = None,
    teacher: nn.Module | None = None,
) -> Fitted:
    """Train on `data.train`, and evaluate on `data.test` after every epoch.

    Args:
        data: see :func:`load_data`.
        settings: model, optimizer, stopping rule, seed.
        device: where to compute.
        out: folder for the checkpoint, and for the weights of the epoch with the best test accuracy; a run that is
            there already is resumed bit for bit.
        checkpoint_seconds: how much work a kill may lose; a checkpoint is also written at the end.
        stop: asked after every step, and of a single process before every batch of an evaluation; True writes a
            checkpoint and ends the run as "interrupted".
        report: told where the run is, after every step.
        accelerator: an ``accelerate.Accelerator``: its processes share every batch. `device` is then the accelerator's.
        teacher: a trained model, such as :func:`load_model` gives, whose predictions are a share `settings.distil` of
            the labels in training; it is not changed.
    """
    if not isinstance(data, Data):
        raise AttsvmError(f"data must be what load_data gives, but got {describe(data)}.")
    if not isinstance(settings, Settings):
        raise AttsvmError(f"settings must be Settings, but got {describe(settings)}.")
    if not isinstance(teacher, nn.Module | None):
        raise AttsvmError(f"teacher must be a model, but got {describe(teacher)}.")
    if (teacher is None) != (settings.distil == 0):
        missing = "a teacher" if teacher is None else "settings.distil, the share of its predictions in the labels"
        raise AttsvmError(f"to learn from a teacher fit needs {missing} as well.")
    place = as_device(device) if accelerator is None else accelerator.device
    devices = [place] if place.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        if out is not None and (accelerator is None or accelerator.is_main_process):
            folder = stack.enter_context(run_folder(out, "transformer fit"))
            for name in (CHECKPOINT, BEST):
                clear_leftovers(folder / name)
        return _Run(data, settings, place, out, checkpoint_seconds, accelerator, teacher).run(stop, report)


class _Stopped(Exception):
    """An evaluation was asked to stop."""


class _Run:
    """The state of a run: model, optimizer and place."""

    def __init__(
        self,
        data: Data,
        settings: Settings,
        device: torch.device,
        out: str | Path | None,
        every: float,
        accelerator: Any,
        teacher: nn.Module | None,
    ) -> None:
        self.settings, self.device, self.every, self.accelerator = settings, device, every, accelerator
        self.rank = accelerator.process_index if accelerator else 0
        self.world = accelerator.num_processes if accelerator else 1
        self.data = data.to(device)
        torch.manual_seed(settings.seed)
        self._check_memory()
        self.model = make_model(settings, data).to(device)
        self.optimizer = make_optimizer(settings, self.model)
        self.per_epoch = -(-len(data.train) // settings.batch)
        self.steps = settings.epochs * self.per_epoch
        self.pruning = make_pruning(settings, self.model, self.optimizer, self.steps)
        # Processes share the initial weights, not the dropout.
        torch.manual_seed((settings.seed + 1) * 1_000_003 + self.rank)
        self.identity = settings.to_dict() | {"data": data.digest(), "model": data.kind, "processes": self.world}
        self.teacher: Any = None if teacher is None else copy.deepcopy(teacher).to(device).eval().requires_grad_(False)
        if teacher is not None:
            self.identity["weights of the teacher"] = _digest(teacher)
            self._check_teacher()
        if not settings.planned:
            del self.identity["epochs"]  # a run may be continued for longer
        self.tokenizer = data.tokenizer
        self.path = None if out is None else Path(out) / CHECKPOINT
        self.place = Place(sums=torch.zeros(self.world, 2, dtype=torch.float64))
        if self.path is not None and self.path.is_file():
            self.place = load_run(self.path, self.identity, self.model, self.optimizer)
            self._set_rng(self.place.rng)
            if self.pruning is not None:
                self._load_pruning(self.pruning)
            if self.place.stopped in ("", "epochs"):  # there may be more or fewer epochs to do than before
                self.place.stopped = "" if self.place.epoch < settings.epochs else "epochs"
        elif self.path is not None and self.rank == 0:
            self.path.with_name(BEST).unlink(missing_ok=True)  # of another run
        self.sums = self.place.sums[self.rank].to(device)
        self.step_model: Any = self.model
        if accelerator:
            self.step_model, self.optimizer = accelerator.prepare(self.model, self.optimizer)
        if settings.compile:
            # Texts have many widths; images have one, and torch 2.11 cannot compile this model for any size.
            dynamic = data.kind != "vit"
            self.step_model = torch.compile(self.step_model, dynamic=dynamic)
            self.teacher = self.teacher and torch.compile(self.teacher, dynamic=dynamic)

    def _check_memory(self) -> None:
        """Refuse a model that cannot be trained here: a machine that runs out of memory kills without a word."""
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in make_model(self.settings, self.data).parameters())
        moments = 0 if self.settings.optimizer in ("sgd", "mirror-descent") else 2
        free, needed = free_bytes(self.device), 4 * weights * (2 + moments)  # float32, with gradients
        if free is not None and needed > free:
            raise AttsvmError(
                f"the model has {weights:,} weights, whose training takes {needed / 1e9:.3g} GB of memory or more, but "
                f"{free / 1e9:.3g} GB are free: take fewer layers, or a smaller width or length."
            )

    def run(self, stop: Callable[[], bool], report: Callable[[Reached], None]) -> Fitted:
        place, settings = self.place, self.settings
        if place.stopped:  # nothing is left to do
            return Fitted(self.model, place.history, place.stopped, settings)
        saved = time.monotonic()
        while not place.stopped:
            generator = torch.Generator().manual_seed(settings.seed * 100_003 + place.epoch)
            batches = self.data.train.batches(settings.batch, generator, grouped=settings.grouped)
            work = sum(batch.work for batch in batches[: place.batch])
            start, before = time.perf_counter(), place.seconds
            self.step_model.train()
            for batch in batches[place.batch :]:
                self._step(batch)
                place.batch += 1
                work += batch.work
                place.seconds = before + time.perf_counter() - start
                rate = work / place.seconds
                report(Reached(place.epoch, place.batch, len(batches), rate, place.history, self.model))
                due = self.path is not None and time.monotonic() - saved > self.every
                ended, due = self._agreed(stop(), due)
                if ended or due:
                    self._save()
                    saved = time.monotonic()
                if ended:
                    return Fitted(self.model, place.history, "interrupted", settings)
            try:
                self._end_epoch(work, before, start, stop)
            except _Stopped:  # resumed, it evaluates anew
                self._save()
                return Fitted(self.model, place.history, "interrupted", settings)
        self._save()
        return Fitted(self.model, place.history, place.stopped, settings)

    def _step(self, batch: MiniBatch) -> None:
        """One step of the optimizer; the loss and the number of right answers are added up, on the device."""
        train, settings = self.data.train, self.settings
        mine = self._mine(batch)
        given = train.take(mine, training=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.bf16):
            scores, labels, _ = train.answers(mine, self.step_model(*given))
        scores = scores.float()
        loss = F.cross_entropy(scores, labels, reduction="sum")
        wanted = loss
        if self.teacher is not None:
            taught = F.cross_entropy(scores, self._told(mine, given), reduction="sum")
            wanted = (1 - settings.distil) * loss + settings.distil * taught
        # Processes average their gradients; times the number of processes gives the sum.
        scaled = wanted * self.world / (train.counts[batch.rows].sum() if settings.loss == "mean" else 1)
        self.optimizer.zero_grad()
        if self.accelerator:
            self.accelerator.backward(scaled)
        else:
            scaled.backward()
        if settings.clip > 0:
            clip = self.accelerator.clip_grad_norm_ if self.accelerator else nn.utils.clip_grad_norm_
            clip(self.step_model.parameters(), settings.clip)
        if settings.planned:
            step = self.place.epoch * self.per_epoch + self.place.batch
            for group in self.optimizer.param_groups:
                group["lr"] = settings.rate(step, self.steps, group.get("name", ""))
        self.optimizer.step()
        if self.pruning is not None:
            self.pruning.step()
        self.sums += torch.stack([loss.detach(), (scores.detach().argmax(-1) == labels).sum()])

    @torch.no_grad()
    def _told(self, batch: MiniBatch, given: tuple[Any, ...]) -> Tensor:
        """The teacher's probabilities of every answer."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            scores = self.data.train.answers(batch, self.teacher(*given))[0]
        return scores.float().softmax(-1)

    @torch.no_grad()
    def _check_teacher(self) -> None:
        train, cannot = self.data.train, "the teacher cannot answer what this data asks"
        kinds = [type(model) for model in (self.teacher, self.model)]
        if kinds[0] in (GPT, TextTransformer, ViT) and kinds[0] is not kinds[1]:
            raise AttsvmError(f"{cannot}: it is a {kinds[0].__name__}, and the model a {kinds[1].__name__}.")
        longest = train.batches(1)[-1]
        given = train.take(longest)
        try:
            told = self._told(longest, given)
        except (TypeError, ValueError, LookupError, RuntimeError, AttributeError, AttsvmError) as error:
            raise AttsvmError(f"{cannot}: {one_line(error)}") from error
        asked = train.answers(longest, self.model.eval()(*given))[0]
        if told.shape != asked.shape:
            theirs, ours = (found.shape[-1] for found in (told, asked))
            raise AttsvmError(f"the teacher must choose among {ours} answers, as the model, but it has {theirs}.")

    def _end_epoch(self, work: int, before: float, start: float, stop: Callable[[], bool]) -> None:
        def mine(batch: MiniBatch) -> MiniBatch:
            if self.world == 1 and stop():
                raise _Stopped
            return self._mine(batch)

        place, settings = self.place, self.settings
        n = int(self.data.train.counts.sum())
        loss, right = (self._total(self.sums) / n).tolist()  # waits for the device
        trained = before + time.perf_counter() - start
        row = {"epoch": place.epoch + 1, "train_loss": loss, "train_accuracy": right}
        row |= evaluate(self.step_model, self.data.test, bf16=settings.bf16, mine=mine, total=self._total)
        if self.pruning is not None:
            row["zeros"] = self.pruning.achieved()
        row |= {"seconds": before + time.perf_counter() - start, "rate": work / trained}
        place.history.append(row)
        place.epoch, place.batch, place.seconds = place.epoch + 1, 0, 0.0
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        if loss != loss or row["test_loss"] != row["test_loss"]:
            place.stopped = "diverged"
        elif right >= settings.stop and (self.pruning is None or self.pruning.count >= self.pruning.last):
            place.stopped = "accuracy"
        elif place.epoch >= settings.epochs:
            place.stopped = "epochs"
        if self.path is not None and self.rank == 0:
            if best_epoch(place.history) is row:
                reached = Place(place.epoch, history=place.history)
                save_run(self.path.with_name(BEST), self.identity, reached, self.model, None, self.tokenizer)
            write_metrics(self.path.parent, place.history)

    def _mine(self, batch: MiniBatch) -> MiniBatch:
        """The part of a batch that belongs to this process."""
        return batch.part(self.rank, self.world)

    def _total(self, sums: Tensor) -> Tensor:
        return self.accelerator.reduce(sums, "sum") if self.accelerator else sums

    def _agreed(self, *wanted: bool) -> list[bool]:
        """What the first process wants: all must save at the same step."""
        if self.world == 1:
            return list(wanted)
        flags = torch.tensor(wanted, device=self.device, dtype=torch.float32) * (self.rank == 0)
        return self.accelerator.reduce(flags, "sum").bool().tolist()

    def _save(self) -> None:
        if self.path is None:
            return
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        self.place.sums, self.place.rng = self._rows(self.sums), {name: self._rows(r) for name, r in rng.items()}
        if self.rank == 0:
            optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # inside Accelerate's wrapper
            masks = None if self.pruning is None else self.pruning.state_dict()["masks"]
            save_run(self.path, self.identity, self.place, self.model, optimizer, self.tokenizer, masks)
        if self.accelerator:
            self.accelerator.wait_for_everyone()

    def _rows(self, own: Tensor) -> Tensor:
        """One row per process, on the CPU."""
        if self.world == 1:
            return own[None].cpu()
        return self.accelerator.gather(own.to(self.device)[None]).cpu()

    def _load_pruning(self, pruning: GradualPruning) -> None:
        place = self.place
        masks = {number: mask.to(self.device) for number, mask in place.masks.items()}
        pruning.load_state_dict({"count": place.epoch * self.per_epoch + place.batch, "masks": masks})

    def _set_rng(self, states: dict[str, Tensor]) -> None:
        try:
            torch.set_rng_state(states["cpu"][self.rank].clone())
            if "cuda" in states and self.device.type == "cuda":
                torch.cuda.set_rng_state(states["cuda"][self.rank].clone(), self.device)
        except (LookupError, TypeError, RuntimeError) as error:
            raise AttsvmError(f"{self.path} has random states that cannot be restored: {one_line(error)}") from error


def _digest(model: nn.Module) -> str:
    """Names the weights: a run belongs to its teacher."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def load_model(folder: str | Path, *, best: bool = False, tokenizer: str = "") -> nn.Module:
    """The model of a run's last checkpoint, on the CPU and ready to be evaluated.

    Args:
        folder: `out` of :func:`fit`.
        best: the weights of the epoch with the best test accuracy instead. That accuracy is optimistic.
        tokenizer: digest of a vocabulary, as :func:`encode_probes` gives it; a run known to have another is refused.
    """
    path, other = Path(folder) / (BEST if best else CHECKPOINT), Path(folder) / BEST
    if not path.is_file():
        early = f"{path} is not a file: this run has no epoch yet whose weights could be kept."
        there = (Path(folder) / CHECKPOINT).is_file()
        raise AttsvmError(early if there else f"{folder} holds no run of attsvm transformer fit.")
    tensors, described = read_run(path)
    theirs = described.get("tokenizer", "")
    if tokenizer and theirs and tokenizer != theirs:
        raise AttsvmError(f"{path} was trained with a tokenizer of another vocabulary: name that one.")
    weights = under("model.", tensors)
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        instead = "take its best weights (best=True, --best)" if other.is_file() else "train with a smaller lr"
        raise AttsvmError(f"{path} has weights that are not finite, since its run diverged: {instead}.")
    try:
        return _rebuilt(described["identity"], weights).eval()
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise AttsvmError(f"{path} has weights that do not fit its settings: {one_line(error)}") from error


def _rebuilt(identity: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """The model that these weights belong to; no memory is taken for any other."""
    sizes: dict[str, Any] = dict(identity["sizes"])
    if int(sizes.get("layers", 1)) > len(weights):
        raise ValueError(f"there are {len(weights)} weights for {sizes['layers']} layers")
    with torch.device("meta"):
        if identity["model"] == "gpt":
            sizes = {"length": len(weights["positions.weight"])} | sizes | _vocabulary(weights)
            model: nn.Module = GPT(**sizes)
        elif identity["model"] == "text":  # two classes have one score
            model = TextTransformer(**(sizes | _vocabulary(weights) | {"classes": max(2, len(weights["head.weight"]))}))
        else:
            patch = sizes.get("patch", 4)
            side = round((weights["positions"].shape[1] - 1) ** 0.5) * patch
            channels = weights["embed.weight"].shape[1] // patch**2
            classes = len(weights["head.weight"])
            model = ViT(**(sizes | {"size": side, "channels": channels, "classes": classes}))
    model.load_state_dict(weights, assign=True)
    return model


def _vocabulary(weights: dict[str, Tensor]) -> dict[str, int]:
    return {"vocabulary": len(weights["words.weight"])}
