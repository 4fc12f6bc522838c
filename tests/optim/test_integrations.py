"""The mirror optimizers inside Hugging Face Trainer, Accelerate and Lightning, as a user would write it."""

import contextlib
import gc
import importlib
import logging
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from small_task import same, small_transformer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from two_processes import run_pair

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, MirrorMuon, lightning_pruning, param_groups, trainer_pruning

# What these packages warn of (no GPU, few workers, deprecations of their own) is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

MAKERS = {
    "adam": lambda model: MirrorAdam(param_groups(model, p=1.1, lr=2e-3)),
    "descent": lambda model: MirrorDescent(param_groups(model, p=1.1, lr=0.02), momentum=0.9),
    "muon": lambda model: MirrorMuon(param_groups(model, p=1.5, lr=5e-3)),
}
make_all = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@pytest.fixture(autouse=True, scope="module")
def _loaded():
    """The trainers collect garbage after every training: not also through all that was imported for them."""
    for name in ("transformers.trainer", "transformers.models.bert.modeling_bert", "pytorch_lightning"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Hugging Face Trainer


class Sentences(Dataset):
    """The label is whether word 3 occurs."""

    def __init__(self, size: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(3, 13, (size, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[i], "labels": (self.words[i] == 3).any().long()}


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        initializer_range=0.2,
    )
    return transformers.BertForSequenceClassification(config)


class Killed(Exception):
    pass


def hf_trainer(folder: Path, model: nn.Module, kill_at: int | None = None, **options: Any) -> Any:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == kill_at:
                raise Killed

    arguments = {
        "max_steps": 8,
        "save_steps": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "logging_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
    }
    settings = transformers.TrainingArguments(str(folder), **(arguments | options.pop("arguments", {})))
    callbacks = [*options.pop("callbacks", []), Kill()]
    return transformers.Trainer(model, settings, train_dataset=Sentences(), callbacks=callbacks, **options)


@pytest.mark.parametrize("bf16", [False, True])
@make_all
def test_trainer_resumes_bit_equal(tmp_path, make, bf16):
    arguments = {"bf16": bf16}
    straight = bert()
    hf_trainer(tmp_path / "a", straight, optimizers=(make(straight), None), arguments=arguments).train()
    assert not same(straight, bert())

    killed = bert()
    trainer = hf_trainer(tmp_path / "b", killed, 6, optimizers=(make(killed), None), arguments=arguments)
    with pytest.raises(Killed):
        trainer.train()
    resumed = bert()
    trainer = hf_trainer(tmp_path / "b", resumed, optimizers=(make(resumed), None), arguments=arguments)
    trainer.train(resume_from_checkpoint=True)
    assert same(resumed, straight)


def test_trainer_makes_the_optimizer_from_the_class(tmp_path):
    model = bert()
    kwargs = {"params": param_groups(model, p=1.1), "lr": 2e-3}
    trainer = hf_trainer(tmp_path / "groups", model, optimizer_cls_and_kwargs=(MirrorAdam, kwargs))
    trainer.train()
    assert [group["name"] for group in trainer.optimizer.param_groups] == [
        "attention",
        "matrices",
        "embeddings",
        "vectors",
    ]
    by_hand = bert()
    optimizer = MirrorAdam(param_groups(by_hand, p=1.1), lr=2e-3)
    hf_trainer(tmp_path / "hand", by_hand, optimizers=(optimizer, None)).train()
    assert same(model, by_hand)

    # Without groups of ours the Trainer makes its two, with and without weight decay.
    model = bert()
    kwargs = {"lr": 2e-3, "p": 1.1}
    trainer = hf_trainer(
        tmp_path / "plain", model, optimizer_cls_and_kwargs=(MirrorAdam, kwargs), arguments={"weight_decay": 0.1}
    )
    trainer.train()
    assert [(group["p"], group["weight_decay"]) for group in trainer.optimizer.param_groups] == [(1.1, 0.1), (1.1, 0)]
    assert not same(model, bert())


def test_trainer_learns(tmp_path):
    model = bert()
    optimizer = MirrorAdam(param_groups(model, p=1.1), lr=3e-3)
    arguments = {"max_steps": 150, "save_strategy": "no", "gradient_accumulation_steps": 1, "logging_steps": 10}
    trainer = hf_trainer(tmp_path, model, optimizers=(optimizer, None), arguments=arguments)
    trainer.train()
    batch = {key: torch.stack([row[key] for row in Sentences()]) for key in ("input_ids", "labels")}
    model.eval()
    with torch.no_grad():
        accuracy = (model(**batch).logits.argmax(dim=1) == batch["labels"]).float().mean()
    assert accuracy > 0.95


@pytest.mark.parametrize("options", [{}, {"initial": 0.3, "start": 0.0, "end": 0.5}], ids=str)
@pytest.mark.parametrize("make", [MAKERS["adam"], lambda model: torch.optim.AdamW(param_groups(model), lr=2e-3)])
def test_trainer_prunes_and_resumes_bit_equal(tmp_path, make, options):
    def trainer(folder: str, model: nn.Module, kill_at: int | None = None) -> Any:
        callbacks = [trainer_pruning(0.7, every=1, **options)]
        return hf_trainer(tmp_path / folder, model, kill_at, optimizers=(make(model), None), callbacks=callbacks)

    straight, killed, resumed = bert(), bert(), bert()
    trainer("a", straight).train()
    matrices = [p for g in param_groups(straight) for p in g["params"] if g["name"] in ("attention", "matrices")]
    zeros = torch.cat([p.flatten() for p in matrices]) == 0
    assert zeros.double().mean() == pytest.approx(0.7, abs=1e-3)
    with pytest.raises(Killed):
        trainer("b", killed, 6).train()
    trainer("b", resumed).train(resume_from_checkpoint=True)
    assert same(resumed, straight)


@pytest.mark.parametrize("make", [MAKERS["adam"], lambda model: torch.optim.AdamW(param_groups(model), lr=2e-3)])
def test_masks_come_from_the_checkpoint_that_is_resumed(tmp_path, make):
    def train(folder: str, seed: int = 1, **resume: Any) -> nn.Module:
        model = bert()
        optimizer = make(model)
        arguments = {"seed": seed, "resume_from_checkpoint": resume.pop("named", None)}
        callbacks = [trainer_pruning(0.7, every=1, end=0.5)]
        made = hf_trainer(
            tmp_path / folder, model, arguments=arguments, optimizers=(optimizer, None), callbacks=callbacks
        )
        made.train(**resume)
        return model

    straight, other = train("a"), train("b", seed=2)
    assert not same(straight, other)
    place = str(tmp_path / "a" / "checkpoint-4")
    with pytest.raises(AttsvmError, match="masks of another training: name the checkpoint"):
        train("b", resume_from_checkpoint=place)
    with pytest.raises(AttsvmError, match=r"is missing\. A checkpoint outside of output_dir must be named"):
        train("c", resume_from_checkpoint=place)
    assert same(train("d", resume_from_checkpoint=place, named=place), straight)
    other = str(tmp_path / "a" / "checkpoint-8")
    with pytest.raises(AttsvmError, match=r"must name the checkpoint that is resumed, of step 4, but .* is of step 8"):
        train("e", resume_from_checkpoint=place, named=other)


def test_a_search_keeps_the_masks_in_the_checkpoints_of_its_trials(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Search(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            state.is_hyper_param_search = True

    for trial in range(2):
        model = bert()
        callbacks = [Search(), trainer_pruning(0.7, every=1)]
        trainer = hf_trainer(tmp_path, model, optimizers=(MAKERS["adam"](model), None), callbacks=callbacks)
        trainer._get_output_dir = lambda trial, folder=f"run-{trial}": str(tmp_path / folder)  # as in a search
        trainer.train()
    found = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("pruning.pt"))
    assert found == [Path(f"run-{n}/checkpoint-{step}/pruning.pt") for n in range(2) for step in (4, 8)]


def test_a_best_model_from_before_the_end_of_the_pruning_is_warned_of(tmp_path):
    model = bert()
    arguments = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4}
    made = {"arguments": arguments, "eval_dataset": Sentences(), "callbacks": [trainer_pruning(0.7)]}
    trainer = hf_trainer(tmp_path, model, optimizers=(MAKERS["adam"](model), None), **made)
    with pytest.warns(UserWarning, match="from before the pruning has ended"):
        trainer.train()


# Accelerate


def points(size: int = 32) -> TensorDataset:
    X = torch.randn(size, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(X, (X[:, 0] > 0).long())


def accelerated(make, **options: Any) -> tuple[Any, ...]:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model = small_transformer()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    loader = DataLoader(points(), batch_size=8 // accelerator.num_processes)
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def epoch(accelerator: Any, model: nn.Module, optimizer: Any, loader: Any, scheduler: Any) -> None:
    for X, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(X), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("precision", ["no", "bf16"])
@make_all
def test_accelerate_resumes_bit_equal(tmp_path, make, precision):
    options = {"gradient_accumulation_steps": 2, "mixed_precision": precision}
    accelerator, *straight = accelerated(make, **options)
    epoch(accelerator, *straight)
    accelerator.save_state(str(tmp_path / "state"))
    epoch(accelerator, *straight)

    accelerator, *resumed = accelerated(make, **options)
    accelerator.load_state(str(tmp_path / "state"))
    epoch(accelerator, *resumed)
    assert same(straight[0], resumed[0])
    assert not same(straight[0], small_transformer())


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@make_all
@pytest.mark.usefixtures("double")  # with one token the gradients of queries are roundings; in float32 Adam sees them
def test_accumulated_gradients_make_the_steps_of_large_batches(make):
    accelerator, *halves = accelerated(make, gradient_accumulation_steps=2)
    for _ in range(2):
        epoch(accelerator, *halves)
    model = small_transformer()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for _ in range(2):
        for X, y in DataLoader(points(), batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    for a, b in zip(model.parameters(), halves[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def _pair(rank: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    torch.set_default_dtype(torch.float64)  # as above
    for name, make in MAKERS.items():
        accelerator, *pair = accelerated(make)
        assert accelerator.num_processes == 2
        epoch(accelerator, *pair)
        accelerator.save_state(f"{folder}/{name}")
        epoch(accelerator, *pair)
        # Each process saw half of every batch: together the steps of one that sees it whole.
        alone = small_transformer()
        optimizer = make(alone)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        for _ in range(2):
            for X, y in DataLoader(points(), batch_size=8):
                optimizer.zero_grad()
                nn.functional.cross_entropy(alone(X), y).backward()
                nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
                optimizer.step()
                for _ in range(2):  # Accelerate counts the steps of all processes
                    scheduler.step()
        for a, b in zip(alone.parameters(), pair[0].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)

        accelerator, *resumed = accelerated(make)
        accelerator.load_state(f"{folder}/{name}")
        epoch(accelerator, *resumed)
        assert same(pair[0], resumed[0])


@pytest.mark.slow
def test_accelerate_with_two_processes(tmp_path):
    pytest.importorskip("accelerate")
    run_pair(_pair, str(tmp_path))


# Lightning


def lightning_module(make) -> Any:
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = small_transformer()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            X, y = batch
            return nn.functional.cross_entropy(self.network(X), y)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = make(self)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, [g["lr"] for g in optimizer.param_groups], total_steps=8, cycle_momentum=False
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Module()


def lightning_trainer(**options: Any) -> Any:
    lightning = pytest.importorskip("pytorch_lightning")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", devices=1, gradient_clip_val=1.0, **quiet, **options)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@make_all
def test_lightning_resumes_bit_equal(make, precision):
    loader = DataLoader(points(), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        options = {"default_root_dir": folder, "precision": precision}
        straight = lightning_module(make)
        lightning_trainer(max_epochs=2, enable_checkpointing=False, **options).fit(straight, loader)

        trainer = lightning_trainer(max_epochs=1, enable_checkpointing=False, **options)
        trainer.fit(lightning_module(make), loader)
        trainer.save_checkpoint(f"{folder}/half.ckpt")
        resumed = lightning_module(make)
        trainer = lightning_trainer(max_epochs=2, enable_checkpointing=False, **options)
        trainer.fit(resumed, loader, ckpt_path=f"{folder}/half.ckpt")
    assert same(straight, resumed)
    assert not same(straight.network.float(), small_transformer())
    if precision == "bf16-true":  # the weights are bf16, their masters and moments are not, after loading either
        states = trainer.optimizers[0].state.values()
        assert {t.dtype for state in states for t in state.values() if t.ndim} == {torch.float32}


@pytest.mark.parametrize("make", [MAKERS["adam"], lambda model: torch.optim.AdamW(param_groups(model), lr=2e-3)])
def test_lightning_prunes_and_resumes_bit_equal(make, tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")
    loader = DataLoader(points(), batch_size=8)

    class Save(lightning.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    class SaveBefore(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
            if trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "early.ckpt")

    options = {"default_root_dir": tmp_path, "max_epochs": 2, "enable_checkpointing": False}
    straight, resumed = lightning_module(make), lightning_module(make)
    callbacks = [lightning_pruning(0.7, every=1, end=0.6)]
    lightning_trainer(callbacks=[SaveBefore(), *callbacks, Save()], **options).fit(straight, loader)
    matrices = [p for g in param_groups(straight) for p in g["params"] if g["name"] in ("attention", "matrices")]
    assert torch.cat([p.flatten() for p in matrices]).eq(0).double().mean() == pytest.approx(0.7, abs=1e-3)
    trainer = lightning_trainer(callbacks=[lightning_pruning(0.7, every=1, end=0.6)], **options)
    trainer.fit(resumed, loader, ckpt_path=str(tmp_path / "half.ckpt"))
    assert same(straight, resumed)
    early = lightning_pruning(0.7, every=1, end=0.6)  # what it loads has pruned one step less than the trainer has made
    trainer = lightning_trainer(callbacks=[early], **options)
    trainer.fit(lightning_module(make), loader, ckpt_path=str(tmp_path / "early.ckpt"))
    assert early.pruning.count == trainer.global_step == 8
    options |= {"max_epochs": -1}
    endless = lightning_trainer(callbacks=[lightning_pruning(0.7)], **options)
    with pytest.raises(AttsvmError, match="set max_epochs or max_steps"):
        endless.fit(lightning_module(make), loader)


def test_lightning_warns_of_averages_which_undo_zeros(tmp_path):
    callbacks = pytest.importorskip("pytorch_lightning.callbacks")
    loader, module = DataLoader(points(), batch_size=8), lightning_module(MAKERS["adam"])
    pruning, average = lightning_pruning(0.7, every=1), callbacks.StochasticWeightAveraging(1e-3, swa_epoch_start=1)
    options = {"default_root_dir": tmp_path, "max_epochs": 3, "enable_checkpointing": False}
    with pytest.warns(UserWarning, match="StochasticWeightAveraging averages over weights from before"):
        lightning_trainer(callbacks=[pruning, average], **options).fit(module, loader)
    zeros = [p.eq(0) for p in pruning.pruning.masks()]
    assert torch.cat([z.flatten() for z in zeros]).double().mean() < 0.6
    with torch.no_grad():
        for p, mask in pruning.pruning.masks().items():  # as the warning advises
            p.mul_(mask)
    assert pruning.pruning.achieved() == pytest.approx(0.7, abs=1e-3)


def test_a_training_that_ends_before_the_pruning_is_warned_of(tmp_path):
    said = r"ended after 4 steps, but the pruning would have after 6: \d+\.\d% of the weights are 0, not 70\.0%"
    lightning = pytest.importorskip("pytorch_lightning")
    transformers = pytest.importorskip("transformers")

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 4

    class Enough(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
            trainer.should_stop = trainer.global_step == 4

    model = bert()
    optimizers, callbacks = (MAKERS["adam"](model), None), [trainer_pruning(0.7, every=1), Stop()]
    with pytest.warns(UserWarning, match=said):
        hf_trainer(tmp_path, model, optimizers=optimizers, callbacks=callbacks).train()
    options = {"default_root_dir": tmp_path, "max_steps": 8, "min_steps": 1, "enable_checkpointing": False}
    trainer = lightning_trainer(callbacks=[lightning_pruning(0.7, every=1), Enough()], **options)
    with pytest.warns(UserWarning, match=said):
        trainer.fit(lightning_module(MAKERS["adam"]), DataLoader(points(), batch_size=8))


def test_a_lightning_callback_is_copied_and_starts_anew_in_another_fit(tmp_path):
    loader = DataLoader(points(), batch_size=8)
    options = {"default_root_dir": tmp_path, "max_epochs": 1, "enable_checkpointing": False}
    callback = pickle.loads(pickle.dumps(lightning_pruning(0.7, every=1)))
    trainer = lightning_trainer(callbacks=[callback], **options)
    trainer.fit(lightning_module(MAKERS["adam"]), loader)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    options |= {"max_epochs": 2}
    lightning_trainer(callbacks=[callback], **options).fit(
        lightning_module(MAKERS["adam"]), loader, ckpt_path=tmp_path / "end.ckpt"
    )
    assert callback.pruning.count == 8
    copy = pickle.loads(pickle.dumps(callback))
    for fresh in (callback, copy):
        lightning_trainer(callbacks=[fresh], **options).fit(lightning_module(MAKERS["adam"]), loader)
        assert fresh.pruning.count == 8
        assert fresh.pruning.achieved() == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("steps", [{"max_steps": 8}, {"max_epochs": 1}], ids=str)
@pytest.mark.parametrize("every", [1, 2])
def test_steps_by_hand_are_counted(tmp_path, steps, every):
    module = lightning_module(MAKERS["adam"])
    module.automatic_optimization = False

    def training_step(batch: list[Tensor], batch_idx: int) -> None:
        optimizer = module.optimizers()
        for _ in range(2 if every == 1 else 1):
            optimizer.zero_grad()
            module.manual_backward(nn.functional.cross_entropy(module.network(batch[0]), batch[1]))
            if batch_idx % every == 0:
                optimizer.step()

    module.training_step = training_step
    callback = lightning_pruning(0.7, every=1)
    trainer = lightning_trainer(callbacks=[callback], default_root_dir=tmp_path, enable_checkpointing=False, **steps)
    trainer.gradient_clip_val = None  # which Lightning refuses here
    trainer.fit(module, DataLoader(points(), batch_size=8))
    assert trainer.global_step == (8 if "max_steps" in steps or every == 1 else 2)
    assert callback.pruning.count == (8 if "max_steps" in steps else 4)  # else batches, as they are planned
    assert callback.pruning.achieved() == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("make", [trainer_pruning, lightning_pruning])
@pytest.mark.parametrize(
    ("sparsity", "options", "wrong"),
    [
        (95, {}, "sparsity must be"),
        (0.9, {"scope": "globl"}, "scope must be one of"),
        (0.9, {"evry": 10}, "unexpected keyword argument 'evry'"),
        (0.9, {"total_steps": 10}, "multiple values for argument 'total_steps'"),
    ],
)
def test_wrong_options_are_refused_before_the_training(make, sparsity, options, wrong):
    pytest.importorskip("transformers" if make is trainer_pruning else "pytorch_lightning")
    with pytest.raises(AttsvmError, match=wrong):
        make(sparsity, **options)
