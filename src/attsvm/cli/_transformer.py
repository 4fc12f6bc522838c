"""`attsvm transformer`: train the papers' transformers, or a GPT, on texts or images with any of the optimizers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attsvm.cli import INCOMPLETE
from attsvm.cli._common import Device, RunFolder, check_file, console, resumable
from attsvm.errors import AttsvmError
from attsvm.interrupts import asked_to_stop
from attsvm.progress import Tell, progress_bar

if TYPE_CHECKING:
    from attsvm.transformer import Reached

app = typer.Typer(no_args_is_help=True, help="Train transformers on texts or images.")

DataArgument = Annotated[
    str,
    typer.Argument(
        help="Texts (.parquet, .csv, .jsonl with text, label, split; an aclImdb folder; .txt for gpt; tokens in .npz), "
        "images (.parquet with image, label, split; a CIFAR-10 folder), a Hugging Face name, synthetic or tiny-images.",
        show_default=False,
    ),
]
TokenizerOption = Annotated[Path | None, typer.Option(help="tokenizer.json, or its folder; texts need it.")]
LengthOption = Annotated[int, typer.Option(min=1, help="Longest text in tokens; the rest is cut off.")]
TestOption = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share that is the test split, for a table without a column split or a .txt."),
]
ImagesOption = Annotated[bool, typer.Option("--images", help="The Hugging Face name is of images.")]
OptimizerName = Literal["mirror-descent", "mirror-adam", "mirror-muon", "sgd", "adam", "adamw"]
Groups = Literal["all", "matrices"]
Model = Literal["classifier", "gpt"]
Start = Literal["gpt2", "linear"]
Schedule = Literal["constant", "cosine"]
Scope = Literal["global", "relative", "layer"]
Loss = Literal["sum", "mean"]
MomentsOf = Literal["weight", "mirror"]
_MIRROR = ("mirror-descent", "mirror-adam", "mirror-muon")
ModelOption = Annotated[
    Model,
    typer.Option(help="classifier: of texts or images. gpt: predicts every next token of texts; it needs no labels."),
]
_USED_BY = {
    "p": _MIRROR,
    "groups": _MIRROR,
    "momentum": ("mirror-descent", "sgd"),
    "moments_of": ("mirror-adam",),
    "rest_lr": _MIRROR,
    "head_lr": ("mirror-muon",),
}
"""Options that only these optimizers use, and"""
_OF_KIND = {"tokenizer": "text", "length": "text", "grouped": "text", "size": "vit", "patch": "vit", "images": "vit"}
"""those that only this kind of data uses."""


@app.command("fit")
def fit_command(
    context: typer.Context,
    data: DataArgument,
    out: RunFolder,
    lr: Annotated[float, typer.Option(min=0, help="Step size.")],
    rest_lr: Annotated[
        float | None,
        typer.Option(min=0, help="Step size of embeddings and vectors, where p is for matrices.", show_default="--lr"),
    ] = None,
    head_lr: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Step size of mirror-muon on an --own-head more than ten times as long as wide.",
            show_default="--lr",
        ),
    ] = None,
    tokenizer: TokenizerOption = None,
    model: ModelOption = "classifier",
    own_head: Annotated[
        bool, typer.Option("--own-head", help="The head of gpt is a matrix of its own, not the embedding.")
    ] = False,
    start: Annotated[Start, typer.Option(help="Initial weights of gpt's matrices: GPT-2's, or nn.Linear's.")] = "gpt2",
    optimizer: Annotated[
        OptimizerName,
        typer.Option(metavar="NAME", help="mirror-descent, mirror-adam, mirror-muon, sgd, adam or adamw."),
    ] = "mirror-descent",
    p: Annotated[float, typer.Option(help="Exponent of the mirror optimizers; 2 is SGD, AdamW or Muon.")] = 1.1,
    groups: Annotated[
        Groups | None,
        typer.Option(
            help="Which weights p is for: all, as in the paper (the default of mirror-descent), or matrices, with "
            "2 for embeddings and vectors (the default of the others)."
        ),
    ] = None,
    momentum: Annotated[float, typer.Option(min=0, help="Momentum of mirror-descent and sgd.")] = 0.0,
    moments_of: Annotated[
        MomentsOf,
        typer.Option(help="Whose gradient mirror-adam's moments are of; mirror with --weight-decay 0 is powerprop."),
    ] = "weight",
    weight_decay: Annotated[
        float | None, typer.Option(min=0, help="Weight decay; the optimizer's own if not given.")
    ] = None,
    schedule: Annotated[
        Schedule, typer.Option(help="lr over the run; cosine: falls to 0 until the last of --epochs.")
    ] = "constant",
    warmup: Annotated[float, typer.Option(min=0, help="Over this share of all steps lr rises from 0.")] = 0.0,
    clip: Annotated[float, typer.Option(min=0, help="Largest norm of the gradients; 0 is no bound.")] = 0.0,
    sparsity: Annotated[
        float, typer.Option(min=0, help="Share of the matrices' entries that gradual pruning sets to 0.")
    ] = 0.0,
    scope: Annotated[
        Scope,
        typer.Option(
            metavar="NAME",
            help="Threshold of --sparsity. global: one for all matrices; relative: one in units of each matrix's size; "
            "layer: one that makes the same share of each 0.",
        ),
    ] = "global",
    teacher: Annotated[
        Path | None, typer.Option(help="Folder of a run of the same data, whose predictions are a part of the labels.")
    ] = None,
    distil: Annotated[float, typer.Option(min=0, max=1, help="The share of --teacher in the labels.")] = 0.5,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers.", show_default="3, images and gpt 6")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Attention heads per layer.", show_default="as layers, images 8, gpt 6")
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width.", show_default="384, images 512")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width inside.", show_default="1536, images 512")] = None,
    dropout: Annotated[
        float | None, typer.Option(min=0, max=1, help="Dropout.", show_default="0.2, images 0.1, gpt 0")
    ] = None,
    length: LengthOption = 512,
    test: TestOption = 0.0,
    size: Annotated[
        int | None, typer.Option(min=1, help="Height and width to which images are scaled; 48, built-in images 8.")
    ] = None,
    patch: Annotated[int, typer.Option(min=1, help="Height and width of a patch.")] = 4,
    images: ImagesOption = False,
    batch: Annotated[int, typer.Option(min=1, help="Rows per step.")] = 100,
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs.")] = 200,
    stop: Annotated[float, typer.Option(min=0, help="Stop once the train accuracy of an epoch is this.")] = 0.995,
    loss: Annotated[Loss, typer.Option(help="Over the batch; the paper's code sums. Of gpt, over its tokens.")] = "sum",
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, order and dropout.")] = 0,
    grouped: Annotated[bool, typer.Option("--group/--mixed", help="Texts of similar length share a batch.")] = True,
    bf16: Annotated[bool, typer.Option("--bf16", help="Autocast to bfloat16.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile the model.")] = False,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the end.")] = False,
) -> None:
    """Train, evaluate after every epoch, and keep checkpoint, best weights and metrics in a folder.

    Several GPUs or machines: accelerate launch -m attsvm transformer fit …
    """
    from attsvm.checks import as_device
    from attsvm.transformer import BEST, Settings, best_epoch, fit, load_data, load_model

    as_device(device)
    if teacher is None and _given(context, ["distil"]):
        raise AttsvmError("--distil is the share of a teacher in the labels: name one with --teacher.")
    for name in _given(context, _USED_BY):
        if optimizer not in _USED_BY[name]:
            allowed = " and ".join(filter(None, [", ".join(_USED_BY[name][:-1]), _USED_BY[name][-1]]))
            option = name.replace("_", "-")
            raise AttsvmError(f"--{option} is for {allowed}, but --optimizer is {optimizer}: leave it out.")
    for name in _given(context, ["own_head", "start"]):
        if model != "gpt":
            raise AttsvmError(f"--{name.replace('_', '-')} is for --model gpt: leave it out.")
    gpt = model == "gpt"
    loaded = load_data(data, tokenizer=tokenizer, length=length, size=size, images=images, next_tokens=gpt, test=test)
    kind = "text" if gpt else loaded.kind
    _refuse_unused(context, data, kind)
    own: dict[str, Any] = {"length": length} if kind == "text" else {"patch": patch}
    if gpt:
        own |= {"tied": False} if own_head else {}
        own |= {"start": start} if start != "gpt2" else {}
    asked: dict[str, Any] = {"layers": layers, "heads": heads, "width": width, "hidden": hidden, "dropout": dropout}
    settings = Settings(
        optimizer=optimizer,
        p=p,
        lr=lr,
        groups=groups or "",
        momentum=momentum,
        moments_of=moments_of,
        weight_decay=weight_decay,
        sizes=own | {name: value for name, value in asked.items() if value is not None},
        batch=batch,
        epochs=epochs,
        stop=stop,
        loss=loss,
        seed=seed,
        grouped=grouped,
        bf16=bf16,
        compile=compiled,
        schedule=schedule,
        warmup=warmup,
        clip=clip,
        sparsity=sparsity,
        scope=scope,
        rest_lr=rest_lr,
        head_lr=head_lr,
        distil=0.0 if teacher is None else distil,
    )
    taught_by = None if teacher is None else load_model(teacher, tokenizer=loaded.tokenizer)
    accelerator = _accelerator(device)
    speaks = accelerator is None or accelerator.is_main_process
    bar = progress_bar(speaks and not quiet, 0, epochs, "starting")
    with resumable(out), bar as tell, asked_to_stop() as request:
        fitted = fit(
            loaded,
            settings,
            device=device,
            out=out,
            stop=request.is_set,
            report=_told(tell, epochs, loaded.kind),
            accelerator=accelerator,
            teacher=taught_by,
        )
        if fitted.stopped == "interrupted":
            request.obey()
    if not speaks:
        return
    done, last, best = len(fitted.history), fitted.history[-1], best_epoch(fitted.history)
    why = {
        "accuracy": f"train accuracy {stop:g} reached",
        "epochs": "all epochs done" if done <= epochs else f"the run in {out} had them already; --epochs is {epochs}",
        "diverged": "loss is not finite",
    }
    at_best = "" if best is None else f", {best['test_accuracy']:.4f} at its best epoch"
    zeros = f", {last['zeros']:.1%} of the matrices' entries are 0" if "zeros" in last else ""
    if gpt:
        reached = f"loss per token {last['train_loss']:.4f} in training, {last['test_loss']:.4f} on the test split"
    else:
        reached = f"train accuracy {last['train_accuracy']:.4f}, test accuracy {last['test_accuracy']:.4f} at the end"
        reached += at_best
    console().print(f"{done} epoch{'s' * (done != 1)} ({why[fitted.stopped]}): {reached}{zeros}")
    console().print(f"{out} has checkpoint.safetensors and metrics.parquet")
    if best is not None and (out / BEST).is_file():  # which older runs do not have
        accuracy = "accuracy of the next token" if gpt else "accuracy"
        zeros = f" ({best['zeros']:.1%} zeros)" if "zeros" in best else ""
        console().print(
            f"{out / BEST}: the weights of epoch {best['epoch']}{zeros}, the best on the test split by {accuracy}, "
            "which is optimistic, since the test split chose the epoch",
        )
    if fitted.stopped == "diverged":
        mean = ", or --loss mean" if loss == "sum" else ""
        typer.echo(f"Error: training diverged in epoch {done}: take a smaller --lr than {lr:g}{mean}.", err=True)
        raise typer.Exit(INCOMPLETE)


@app.command("tokens")
def tokens_command(
    context: typer.Context,
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="The .npz file to write.")],
    tokenizer: TokenizerOption = None,
    model: ModelOption = "classifier",
    length: LengthOption = 512,
    test: TestOption = 0.0,
) -> None:
    """Tokenize texts, or unpack images, once, into a compact file that transformer fit reads where torch is all that is
    installed."""
    from attsvm.transformer import load_data, save_data

    check_file(out)
    gpt = model == "gpt"
    loaded = load_data(data, tokenizer=tokenizer, length=length, next_tokens=gpt, test=test)
    _refuse_unused(context, data, "text" if gpt else loaded.kind)
    save_data(loaded, out)
    console().print(f"wrote {out}: {len(loaded.train)} train and {len(loaded.test)} test rows")


@app.command("attention")
def attention_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of transformer fit, or kept results (.json).", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The .html page to write.")],
    tokenizer: TokenizerOption = None,
    best: Annotated[
        bool, typer.Option("--best", help="The weights of the epoch with the best test accuracy, not the last.")
    ] = False,
) -> None:
    """Show where [CLS] looks in 120 short reviews, and how much of it is on the word that decides.

    Runs on synthetic reviews need no tokenizer: they are shown 60 new reviews of their own kind.
    """
    from attsvm.experiments.transformers import read_result
    from attsvm.models import TextTransformer
    from attsvm.transformer import (
        WORDS,
        class_attention,
        encode_probes,
        load_model,
        pivotal_reviews,
        synthetic_probes,
        write_attention_page,
    )

    check_file(out)
    probes, reviews = None if tokenizer is None else encode_probes(tokenizer), pivotal_reviews()
    synthetic = 0
    found: dict[str, Any] = {}
    without: list[str] = []
    whole = [Path(os.path.abspath(place)) for place in runs]  # "." has a name, too
    short = [place.stem if place.suffix == ".json" else place.name for place in whole]
    for place, name in zip(runs, short):
        name = str(place) if short.count(name) > 1 else name
        if place.suffix == ".json":
            if best:
                raise AttsvmError(f"--best is for folders of transformer fit, but {place} is a kept result.")
            result = read_result(place)
            if "probes" in result:
                found[name] = result["probes"]
            else:
                without.append(name)
            continue
        model = load_model(place, best=best, tokenizer=probes.tokenizer if probes else "")
        if not isinstance(model, TextTransformer):
            raise AttsvmError(f"{place} must be a run that classifies texts, but it is one of {type(model).__name__}.")
        if tokenizer is None:
            if len(model.words.weight) != len(WORDS):
                raise AttsvmError(f"--tokenizer must name the tokenizer.json that {place} was trained with.")
            synthetic += 1
            probes, reviews = synthetic_probes()
        assert probes is not None
        found[name + ", best epoch" * best] = class_attention(model, probes)
    if not found:
        raise AttsvmError(f"{runs[0]} must be a result with the attention on the reviews, but it has none.")
    if synthetic not in (0, len(found)):
        raise AttsvmError("runs on synthetic reviews use other words: give them a separate page.")
    write_attention_page(out, found, reviews)
    console().print(f"wrote {out}: {len(found)} model{'s' * (len(found) > 1)}")
    if without:
        names = ", ".join(without)
        console().print(f"left out, without attention (images, or diverged): {names}")


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of the options that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in names if name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _refuse_unused(context: typer.Context, data: str, kind: str) -> None:
    """Refuse options that this data does not use: they would do nothing."""
    for name in _given(context, _OF_KIND):
        option = "--group or --mixed" if name == "grouped" else f"--{name}"
        if _OF_KIND[name] != kind:
            kinds = {"text": "texts", "vit": "images"}
            raise AttsvmError(f"{option} is for {kinds[_OF_KIND[name]]}, but {data} has {kinds[kind]}: leave it out.")
        if name == "tokenizer" and (data == "synthetic" or data.endswith(".npz")):
            raise AttsvmError(f"--tokenizer is for texts, but {data} has token numbers already: leave it out.")


def _accelerator(device: str) -> Any:
    """One of Accelerate's processes, if it started this one among several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise AttsvmError("several processes need Accelerate: pip install 'attsvm[transformer]'.") from error
    return Accelerator(cpu=device == "cpu")


def _told(tell: Tell, epochs: int, kind: str) -> Callable[[Reached], None]:
    """Epochs done, throughput, the last accuracies (of gpt losses), and the time left at most (the stopping rule may
    come first)."""
    unit = "images" if kind == "vit" else "tokens"
    names = {"loss": "train_loss", "test": "test_loss"}
    if kind != "gpt":
        names = {"train": "train_accuracy", "test": "test_accuracy"}

    def report(reached: Reached) -> None:
        more = f"{reached.rate:,.0f} {unit}/s"
        for name, column in names.items() if reached.history else ():
            more += f"  {name} {reached.history[-1][column]:.3f}"
        done = reached.epoch + reached.batch / reached.batches
        tell(done, f"epoch {reached.epoch + 1} of {epochs}", more)

    return report
