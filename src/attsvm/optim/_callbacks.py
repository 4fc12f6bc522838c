"""Gradual pruning inside trainers: Hugging Face and Lightning."""

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attsvm.errors import AttsvmError
from attsvm.files import atomic_path
from attsvm.optim._pruning import GradualPruning, check_plan
from attsvm.optim._shards import local, whole

__all__ = ["lightning_pruning", "trainer_pruning"]

_FILE = "pruning.pt"
_AVERAGES = {"StochasticWeightAveraging", "WeightAveraging"}  # of Lightning


def trainer_pruning(sparsity: float, **options: Any) -> Any:
    """A TrainerCallback of Hugging Face that prunes while the Trainer trains; options are :class:`GradualPruning`'s.

    The number of steps is the Trainer's. Checkpoints hold what a resumed training needs. One that lies outside of
    output_dir must be named in ``TrainingArguments(resume_from_checkpoint=…)``, too: callbacks do not see it otherwise.

    Example:
        >>> groups = param_groups(model, p=1.1)  # doctest: +SKIP
        >>> Trainer(  # doctest: +SKIP
        ...     model, args, optimizers=(MirrorAdam(groups, lr=4e-3), None), callbacks=[trainer_pruning(0.95)]
        ... )
    """
    try:
        from transformers.trainer_callback import TrainerCallback
    except ImportError as error:
        raise AttsvmError("trainer_pruning needs Hugging Face transformers: install transformers.") from error

    check_plan(sparsity, **options)

    class Pruning(TrainerCallback):
        pruning: GradualPruning | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            self.pruning = GradualPruning(optimizer, sparsity, state.max_steps, **options)
            if args.load_best_model_at_end:
                warnings.warn(
                    "load_best_model_at_end may restore a checkpoint from before the pruning has ended, with fewer "
                    "zeros: leave it out.",
                    stacklevel=2,
                )
            if state.global_step > 0:
                named = args.resume_from_checkpoint
                saved = (Path(named) if isinstance(named, str) else _checkpoint(args, state)) / _FILE
                if not saved.is_file():
                    raise AttsvmError(
                        f"the training cannot be resumed with pruning: {saved} is missing. A checkpoint outside of "
                        "output_dir must be named in TrainingArguments(resume_from_checkpoint=…), too."
                    )
                before = {w: local(w.detach()) != 0 for w in self.pruning.params}  # loaded masks set weights to 0
                self.pruning.load_state_dict(torch.load(saved, weights_only=True, map_location="cpu"))
                if self.pruning.count != state.global_step:
                    raise AttsvmError(
                        "TrainingArguments(resume_from_checkpoint=…) must name the checkpoint that is resumed, of step "
                        f"{state.global_step}, but {saved} is of step {self.pruning.count}."
                    )
                if any((before[w] & ~local(mask)).any() for w, mask in self.pruning.masks().items()):
                    raise AttsvmError(
                        f"{saved} has the masks of another training: name the checkpoint in "
                        "TrainingArguments(resume_from_checkpoint=…), too."
                    )

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert self.pruning is not None
            self.pruning.step()

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert self.pruning is not None
            saved = _whole_state(self.pruning)
            if state.is_world_process_zero:
                with atomic_path(_checkpoint(args, state) / _FILE) as temporary:
                    torch.save(saved, temporary)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert self.pruning is not None
            _warn_of_early_end(self.pruning)

    return Pruning()


def _whole_state(pruning: GradualPruning) -> dict[str, Any]:
    """One process saves it for all: every rank has a shard alone. All ranks must call this."""
    state = pruning.state_dict()
    return {**state, "masks": {i: whole(mask) for i, mask in state["masks"].items()}}


def _warn_of_early_end(pruning: GradualPruning) -> None:
    """As by early stopping, or by fewer steps than the trainer had announced."""
    if pruning.count < pruning.last:
        warnings.warn(
            f"the training has ended after {pruning.count} steps, but the pruning would have after {pruning.last}: "
            f"{pruning.achieved():.1%} of the weights are 0, not {pruning.sparsity:.1%}.",
            stacklevel=3,
        )


def _checkpoint(args: Any, state: Any) -> Path:
    name = f"checkpoint-{state.global_step}"
    if not state.is_hyper_param_search:
        return Path(args.output_dir) / name
    # Every trial of a search has a folder, which callbacks are not told: that of the checkpoint that was just written.
    return max(Path(args.output_dir).glob(f"*/{name}"), key=lambda folder: folder.stat().st_mtime_ns)


def lightning_pruning(sparsity: float, **options: Any) -> Any:
    """A Callback of Lightning that prunes while its Trainer trains; options are :class:`GradualPruning`'s.

    Example:
        >>> Trainer(callbacks=[lightning_pruning(0.95)])  # doctest: +SKIP
    """
    try:
        from pytorch_lightning import Callback
    except ImportError:
        try:
            from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise AttsvmError("lightning_pruning needs Lightning: install pytorch-lightning.") from error

    check_plan(sparsity, **options)

    class Pruning(Callback):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        pruning: GradualPruning | None = None
        _saved: dict[str, Any] | None = None
        _seen = 0
        _by_batch = False

        def __reduce__(self) -> Any:  # for ddp_spawn: the class is local
            return partial(lightning_pruning, sparsity, **options), (), {"_saved": self._saved}

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if len(trainer.optimizers) != 1:
                raise AttsvmError(f"lightning_pruning prunes with one optimizer, but got {len(trainer.optimizers)}.")
            total = trainer.estimated_stepping_batches
            if not math.isfinite(total):
                raise AttsvmError("pruning is planned over the whole training: set max_epochs or max_steps.")
            self.pruning = GradualPruning(trainer.optimizers[0], sparsity, int(total), **options)
            kinds = {kind.__name__ for callback in trainer.callbacks for kind in type(callback).__mro__}
            for averages in sorted(kinds & _AVERAGES):
                warnings.warn(
                    f"{averages} averages over weights from before the pruning has ended, and that has fewer zeros: "
                    "leave it out, or multiply the parameters by callback.pruning.masks() afterwards.",
                    stacklevel=2,
                )
            # Unless max_steps ends it, a training with manual optimization is known in batches alone.
            self._by_batch = not pl_module.automatic_optimization and total != trainer.max_steps
            self._seen = trainer.global_step
            if self._saved is not None:
                self.pruning.load_state_dict(self._saved)
                self._saved = None  # another fit starts anew
                self._seen = self.pruning.count  # a callback before this one may have saved it in the midst of a step

        def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
            assert self.pruning is not None
            advanced = 1 if self._by_batch else trainer.global_step - self._seen  # 0 while gradients are gathered
            self._seen = trainer.global_step
            for _ in range(advanced):
                self.pruning.step()

        def on_train_end(self, *unused: Any) -> None:
            assert self.pruning is not None
            _warn_of_early_end(self.pruning)

        def state_dict(self) -> dict[str, Any]:
            return {} if self.pruning is None else _whole_state(self.pruning)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._saved = state_dict or None

    return Pruning()
