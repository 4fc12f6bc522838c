"""`attsvm audit`: what every head of a model selects, how sure it is, and what may be cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from attsvm.cli._common import Device, check_folder, console
from attsvm.errors import AttsvmError
from attsvm.identity import kind_of
from attsvm.progress import progress_bar

if TYPE_CHECKING:
    from torch import nn

    from attsvm.auditing import Audit


RuleName = Literal["previous", "first", "self", "induction"]


def audit_command(
    model: Annotated[
        Path,
        typer.Argument(
            help="A folder with a model of Hugging Face (a config.json alone: random weights), with checkpoints of one "
            "(checkpoint-500, …), or of attsvm transformer fit.",
            show_default=False,
        ),
    ],
    texts: Annotated[
        str,
        typer.Option(
            help="Texts: .txt with one per line, .parquet, .csv or .jsonl; for models of transformer fit also what "
            "they are trained on (tokens in .npz, synthetic, tiny-images).",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for audit.html, audit.json and heads.parquet.", show_default=False)],
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, or the folder of a tokenizer; by default the model's own.")
    ] = None,
    column: Annotated[str, typer.Option(help="Column of the texts in a table.")] = "text",
    limit: Annotated[int, typer.Option(min=1, help="Most texts.")] = 1000,
    length: Annotated[
        int | None, typer.Option(min=2, help="Longest text in tokens.", show_default="512, or what the model takes")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 8,
    queries: Annotated[int, typer.Option(min=1, help="Most queries of a margin problem.")] = 16,
    competitors: Annotated[int, typer.Option(min=1, help="Tokens that the selected one is compared with.")] = 4,
    norms: Annotated[
        str, typer.Option(help="Norms of the margin problems; empty for none.")
    ] = "l2,nuclear,spectral,linf",
    prune: Annotated[float | None, typer.Option(min=0, max=1, help="Certify that this share may be pruned.")] = None,
    bits: Annotated[int | None, typer.Option(min=2, max=16, help="Certify that this many bits are enough.")] = None,
    flips: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Find the largest pruning that flips at most this share of selections."),
    ] = None,
    rule: Annotated[
        RuleName | None,
        typer.Option(
            metavar="NAME",
            help="Ask whether heads could follow a rule, with what margin: previous, first, self or induction.",
        ),
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of the sample of queries, and of random weights.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the end.")] = False,
) -> None:
    """Audit every head of a model: selections, margins, max-margin solutions, and what may be cut."""
    from attsvm.auditing import audit, audit_steps, checkpoints, config_of, has_config
    from attsvm.checks import as_device
    from attsvm.geometry import parse_geometry

    as_device(device)
    check_folder(out)
    wanted = [norm for norm in norms.split(",") if norm]
    for norm in wanted:
        parse_geometry(norm)
    if not model.exists():
        raise AttsvmError(f"{model} must be a folder with a model, but there is none.")
    if prune is not None and bits is not None:
        raise AttsvmError("--prune and --bits are two changes of the weights: ask for one of them.")
    steps = checkpoints(model)
    own = None if steps else _own(model)
    if not steps and own is None:
        config_of(model)
    if steps and (prune, bits, flips, rule) != (None,) * 4:
        raise AttsvmError(
            f"--prune, --bits, --flips and --rule are for one model, but {model} holds checkpoints: name one of them, "
            f"such as {steps[-1][1]}."
        )
    read, words = _texts(model, own, texts, tokenizer, column, limit, length, batch)
    settings: dict[str, Any] = {
        "length": length if words is not None else None,
        "batch": batch,
        "queries": queries,
        "competitors": competitors,
        "norms": wanted,
        "seed": seed,
    }
    total = (max(1, len(steps)) * -(-len(read) // batch)) if words is not None else len(read)
    with progress_bar(not quiet, 0, total, "reading texts") as tell:
        if steps:
            notes: dict[str, None] = {}
            if has_config(model):
                notes[f"{model} also holds a model of its own, which is not audited: move it elsewhere for that"] = None
            pairs = _loaded(steps, device, seed, tell, total, notes)
            found_steps = audit_steps(pairs, words, read, name=model.resolve().name, **settings)
            found_steps.save(out)
            found = found_steps.audits[-1][1]
            _print(found, out, *notes, f"{len(steps)} checkpoints; over steps: {out / 'steps.html'}")
            return
        network, note = (own, []) if own is not None else _model(model, seed)
        network = network.to(device)
        found = audit(network, words, read, name=model.resolve().name, tell=tell, **settings)
    found, more = _asked(found, network, words, read, settings["length"], batch, prune, bits, flips, rule)
    found.save(out)
    _print(found, out, *note, *more)


def _loaded(
    steps: list[tuple[int, Path]], device: str, seed: int, tell: Any, total: int, notes: dict[str, None]
) -> Iterator[tuple[int, nn.Module]]:
    for done, (step, folder) in enumerate(steps):
        tell(done * total / len(steps), f"step {step}")
        network, said = _model(folder, seed)
        notes.update(dict.fromkeys(said))
        yield step, network.to(device)
    tell(total)


def _own(place: Path) -> nn.Module | None:
    """The model of a run of transformer fit."""
    from attsvm.transformer import load_model

    return load_model(place) if kind_of(place) == "transformer fit" else None


def _model(place: Path, seed: int) -> tuple[nn.Module, list[str]]:
    from attsvm.auditing import load_hugging_face

    if (own := _own(place)) is not None:
        return own, []
    network, random = load_hugging_face(place, seed)
    if len(random) <= 2:
        names = " and ".join(random)
    else:
        names = "" if len(random) == sum(1 for _ in network.parameters()) else f"{random[0]} and {len(random) - 1} more"
    return network, [f"{place} has no weights{' for ' * bool(names)}{names}: these are random"] if random else []


def _texts(
    model: Path,
    own: nn.Module | None,
    source: str,
    tokenizer: Path | None,
    column: str,
    limit: int,
    length: int | None,
    batch: int,
) -> tuple[list[Any], Any]:
    """Texts and their tokenizer; or token numbers; or batches of images, without one. `own` is a model that transformer
    fit has trained."""
    from attsvm.auditing import checkpoints, has_tokenizer, load_tokenizer, reads_images
    from attsvm.models import GPT, ViT
    from attsvm.tables import FORMATS, read_texts

    if source in ("synthetic", "tiny-images") or source.endswith(".npz"):
        if own is None:
            raise AttsvmError(f"--texts {source} is for models of transformer fit, but {model} is not one.")
        import torch

        from attsvm.transformer import Texts, load_data

        size = own.size if isinstance(own, ViT) else None
        split = load_data(source, length=length or 512, size=size, next_tokens=isinstance(own, GPT)).test
        if isinstance(split, Texts) == isinstance(own, ViT):
            kind = "images" if isinstance(own, ViT) else "texts"
            raise AttsvmError(f"--texts {source} must be what {model} was trained on, {kind}, but it is not.")
        if isinstance(split, Texts):
            rows = zip(split.tokens[:limit], split.lengths[:limit].tolist())
            return [row[:count].tolist() for row, count in rows], None
        images = torch.cat([split.take(part)[0] for part in split.batches(batch)[: -(-limit // batch)]])
        return list(images[:limit].split(batch)), None
    if isinstance(own, ViT):
        raise AttsvmError(f"{model} is a model of images: give --texts pixels in .npz, or tiny-images.")
    folders = [model, *(folder for _, folder in checkpoints(model))]
    if reads_images(folders[-1]):  # also where it has a tokenizer, or is given one
        raise AttsvmError(f"{model} is a model of images: give batches of them to attsvm.audit(model, None, batches).")
    path = Path(source)
    if path.suffix == ".txt":
        if not path.is_file():
            raise AttsvmError(f"{path} is not a file.")
        if column != "text":
            raise AttsvmError(f"--column is for tables, but {path} has one text in every line: leave it out.")
        try:
            read = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise AttsvmError(f"{path} is not written in UTF-8: save it as UTF-8.") from error
    elif path.is_file() and path.suffix.lower() not in FORMATS:
        raise AttsvmError(f"{path} must be one of .txt, {', '.join(FORMATS)}.")
    else:
        read = read_texts(source, text=column, label=None).texts
    if not read:
        raise AttsvmError(f"{path} must have at least one text, but it is empty.")
    place = tokenizer or next((folder for folder in folders if has_tokenizer(folder)), None)
    if place is None:
        raise AttsvmError(f"--tokenizer must name the tokenizer of the texts: {model} has none.")
    return read[:limit], load_tokenizer(place)


def _asked(
    found: Audit,
    network: nn.Module,
    words: Any,
    read: list[Any],
    length: int | None,
    batch: int,
    prune: float | None,
    bits: int | None,
    flips: float | None,
    rule: RuleName | None,
) -> tuple[Audit, list[str]]:
    from attsvm.auditing import audit_rule, certify_change, largest_pruning, pruning, quantisation

    said: list[str] = []
    if prune is not None or bits is not None:
        change = pruning(prune) if prune is not None else quantisation(bits or 2)
        name = f"pruning {prune:.0%}" if prune is not None else f"{bits} bits"
        cut = certify_change(network, words, read, change, length=length, batch=batch)
        found = found.with_measures(
            {(head.layer, head.head): {"certified": head.certified, "flipped": head.flipped} for head in cut.heads},
            {
                "certified": f"share of selections that {name} provably does not flip",
                "flipped": f"share of selections that {name} flips",
            },
        )
        said.append(f"{name}: {cut.certified:.1%} of the selections cannot flip, {cut.flipped:.1%} do")
    if flips is not None:
        share, tried = largest_pruning(network, words, read, flips, length=length, batch=batch)
        at = dict(tried).get(share, 0.0)
        said.append(
            f"largest uniform pruning that flips at most {flips:.1%}: {share:.1%} of the weights ({at:.1%} flip)"
        )
    if rule is not None:
        heads = audit_rule(network, words, read, rule, length=length)
        found = found.with_measures(
            {
                (head.layer, head.head): {
                    "follows": head.follows,
                    "separable": float(head.status == "solved"),
                    **({} if head.efficiency is None else {"rule_efficiency": head.efficiency}),
                }
                for head in heads
            },
            {
                "follows": f"share of sampled queries that select by the rule “{rule}”",
                "separable": f"1 if some W selects by the rule “{rule}” on all sampled queries",
                "rule_efficiency": f"own margin for the rule “{rule}” over the largest one",
            },
        )
        best = max(heads, key=lambda head: head.follows, default=None)
        if best is None:
            return found, [*said, f"rule {rule}: no attention of the model sees its tokens"]
        apart = sum(head.status == "solved" for head in heads)
        follows = f"{best.layer}, head {best.head} follows it most often, {best.follows:.0%} of {best.queries} queries"
        if not best.follows:
            follows = "no head follows it at any sampled query"
        said.append(f"rule {rule}: separable in {apart} of {len(heads)} heads; {follows}")
    return found, said


def _print(found: Audit, out: Path, *notes: str) -> None:
    from attsvm.auditing import SUMMARY

    table = Table(title=f"{found.model}: mean over the heads of a layer", title_justify="left")
    table.add_column("layer", overflow="fold")  # layers may differ in the end of a long name alone
    for name in SUMMARY:
        table.add_column(name.replace("_", " "), justify="right")
    for row in found.summary():
        table.add_row(*row)
    console().print(table)
    for note in notes:
        console().print(note, soft_wrap=True)
    console().print(f"wrote {out / 'audit.html'}, audit.json and heads.parquet", soft_wrap=True)
