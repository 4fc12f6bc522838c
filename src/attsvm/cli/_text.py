"""`attsvm text`: fit a classifier of texts, use it, and see its words."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attsvm.cli._common import check_file, check_folder, console
from attsvm.errors import AttsvmError
from attsvm.files import is_file
from attsvm.identity import check_kind
from attsvm.progress import progress_bar

if TYPE_CHECKING:
    from attsvm.text import AttentionTextClassifier

app = typer.Typer(no_args_is_help=True, help="Classify texts by attention over their words, and show the words.")

_WIDE = 12
"""With more classes than this the confusion table shows the worst confusions only."""

Model = Annotated[Path, typer.Argument(help="Folder that attsvm text fit wrote.", show_default=False)]
Encoding = Annotated[str, typer.Option(help="Of .csv, .tsv and .jsonl files.")]
Split = Annotated[str | None, typer.Option(help="Only rows whose column split has this value.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@app.command("fit")
def fit_command(
    source: Annotated[
        str,
        typer.Argument(help="A .parquet, .csv, .tsv or .jsonl file, or a Hugging Face data set.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    text: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
    label: Annotated[str, typer.Option(help="Column of the labels.")] = "label",
    split: Split = None,
    drop: Annotated[list[str] | None, typer.Option(help="A label to leave out, such as --drop=-1.")] = None,
    test: Annotated[
        float, typer.Option(min=0, max=0.9, help="Part held out to measure the accuracy; 0 fits to everything.")
    ] = 0.1,
    ngrams: Annotated[
        int | None, typer.Option(min=1, max=8, help="2 adds pairs of neighbouring words; chosen if not given.")
    ] = None,
    min_texts: Annotated[
        int | None, typer.Option(min=1, help="Leave out words in fewer texts; chosen if not given.")
    ] = None,
    characters: Annotated[
        int, typer.Option(min=0, max=8, help="Longest part of a word that counts by itself, such as 4; 0 for none.")
    ] = 0,
    penalty: Annotated[
        float | None, typer.Option(help="Of the directions; chosen by early stopping if not given.")
    ] = None,
    importance: Annotated[
        float | None, typer.Option(help="Size of log-attention; larger: fewer words take more; chosen if not given.")
    ] = None,
    rarity: Annotated[
        float | None, typer.Option(help="From 0 to 1: how much more frequent words cost; chosen if not given.")
    ] = None,
    p: Annotated[float, typer.Option("--p", help="Geometry of the penalty; near 1 few words carry the model.")] = 2.0,
    balanced: Annotated[bool, typer.Option("--balanced", help="Rare classes count as much as common ones.")] = False,
    stop_words: Annotated[bool, typer.Option("--stop-words", help="Leave out English stop words.")] = False,
    stem: Annotated[str | None, typer.Option(help="Language to stem words in, such as english.")] = None,
    word_pieces: Annotated[
        Path | None, typer.Option(help="tokenizer.json of word pieces, such as BERT's, or its folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides which texts are held out.")] = 0,
    encoding: Encoding = "utf-8",
    quiet: Quiet = False,
) -> None:
    """Fit a classifier to a table of texts and labels."""
    from attsvm import tables
    from attsvm.text import AttentionTextClassifier, WordPieceTokenizer, WordTokenizer, visible
    from attsvm.text import stop_words as english

    check_folder(out)
    check_kind(out, "text fit")
    table = tables.read_table(source, text=text, encoding=encoding, split=split)
    texts, labels = tables.text_column(table, text, source), tables.label_column(table, label, source)
    if split is None and "split" in table.column_names:
        splits = sorted({str(value) for value in table["split"].to_pylist()})
        if len(splits) > 1:
            named = ", ".join(splits[:3]) + ", …" * (len(splits) > 3)
            typer.echo(visible(f"The rows of all splits are used ({named}); --split takes those of one."), err=True)
    if drop:
        names = np.array([_name(one) for one in labels.tolist()], dtype=str)
        known = np.unique(names).tolist()
        keep = ~np.isin(names, [_named(known, one, "--drop") for one in drop])
        texts, labels = [one for one, kept in zip(texts, keep) if kept], labels[keep]
    if len(np.unique(labels)) < 2:
        found = f"all rows have {_shown(_name(labels.tolist()[0]))}" if texts else "there are no rows"
        raise AttsvmError(f"{source}: column {label!r} must have at least two classes, but {found}.")
    stop = english() if stop_words else frozenset()
    model = AttentionTextClassifier(
        ngrams=ngrams,
        min_texts=min_texts,
        penalty=penalty,
        importance=importance,
        rarity=rarity,
        characters=characters,
        p=p,
        class_weight="balanced" if balanced else None,
        tokenizer=WordTokenizer(stop, stem)
        if word_pieces is None
        else WordPieceTokenizer(stop, stem, file=word_pieces),
        random_state=seed,
    )
    held_out: Any = None
    if test:
        held = _held_out(texts, labels, test, seed)
        held_out = ([one for one, away in zip(texts, held) if away], labels[held])
        texts, labels = [one for one, away in zip(texts, held) if not away], labels[~held]
    with progress_bar(not quiet, 0, None, "starting") as tell:
        model._fit(texts, labels, None, lambda stage, n: tell(n, f"{stage}, iteration {n}" if n else stage))
    model.text_column_ = text
    model.save(out)
    output, features = console(), model.features_
    counts = ((features.words, "words"), (features.last, "n-grams"), (features.parts, "parts of words"))
    columns = ", ".join(f"{len(found)} {name}" for found, name in counts if len(found))
    chosen = {name: value for name, value in model.chosen_.items() if value or name != "characters"}
    output.print(
        f"{len(texts)} texts, {len(model.classes_)} classes, {columns}; penalty {model.penalty_:.3g}"
        + (" (early stopping)" if model.path_ else "")
        + "".join(f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
        + f"; model in {out}",
        markup=False,
    )
    if held_out is not None:
        _judge(model.classes_, held_out[1], model.predict(held_out[0]), "held-out texts")


@app.command("predict")
def predict_command(
    model: Model,
    source: Annotated[str, typer.Argument(help="A .parquet, .csv, .tsv or .jsonl file.", show_default=False)],
    text: Annotated[
        str | None, typer.Option(help="Column of the texts; that of fit, or else text, if not given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Table to write; CSV on standard output if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of true labels, to measure the accuracy.")] = None,
    split: Split = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Add the columns `predicted` and `probability` to a table of texts."""
    import pyarrow as pa

    from attsvm import tables

    check_file(out)
    classifier = _load(model)
    names = [text or classifier.text_column_ or "text", text or "text"]
    table = tables.read_table(source, text=names[0], encoding=encoding, split=split)
    text = next((name for name in names if name in table.column_names), names[0])
    probability = classifier.predict_proba(tables.text_column(table, text, source))
    predicted = classifier.classes_[probability.argmax(1)]
    best = probability.max(1) if len(probability) else np.empty(0)
    truth = None if label is None else _known(classifier.classes_, tables.label_column(table, label, source))
    added = {"predicted": predicted.tolist(), "probability": best.tolist()}
    replaced = [name for name in added if name in table.column_names]
    if replaced:
        typer.echo(f"Replaced in the output: {', '.join(replaced)}, which {source} has already.", err=True)
    table = table.drop_columns(replaced)
    for name, column in added.items():
        table = table.append_column(name, pa.array(column))
    if out is None:
        tables.write_csv(table, sys.stdout.buffer)
    else:
        rows = None
        if tables.is_json_lines(source) and tables.is_json_lines(out):  # a table between them would lose a little
            rows = tables.read_json_lines(source, encoding, split)
            rows = [row | dict(zip(added, new)) for row, new in zip(rows, zip(*added.values()))]
        tables.write_table(table, out, rows)
        typer.echo(f"{out}: {len(table)} {'text' if len(table) == 1 else 'texts'}")
    if truth is not None:
        _judge(classifier.classes_, truth, predicted, "texts", stderr=out is None)


@app.command("explain")
def explain_command(
    model: Model,
    texts: Annotated[
        list[str], typer.Argument(help="Texts, in quotation marks; - reads one per line.", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(help="Page to write, with the words highlighted.")] = None,
    label: Annotated[str | None, typer.Option(help="Class to explain; the predicted one if not given.")] = None,
) -> None:
    """Which words of a text speak for its class, and which against."""
    check_file(html, "--html")
    classifier = _load(model)
    if texts == ["-"]:
        texts = [line.rstrip("\n") for line in sys.stdin]
    elif file := next((text for text in texts if re.search(r"\.[a-z]+$", text) and is_file(text)), None):
        raise AttsvmError(f"texts must be texts, but {file} is a file: to explain each of its lines, write - < {file}.")
    wanted = None
    if label is not None:
        names = [_name(one) for one in classifier.classes_.tolist()]
        wanted = classifier.classes_[names.index(_named(names, label, "--label"))].item()
    explanations = classifier.explain(texts, wanted)
    if html is not None:
        explanations.save(html)
    for one in explanations:
        typer.echo(str(one))
    if html is not None:
        typer.echo(f"{html}: {len(explanations)} {'text' if len(explanations) == 1 else 'texts'}")


@app.command("words")
def words_command(
    model: Model,
    top: Annotated[int, typer.Option(min=1, help="Words to show for each class.")] = 30,
    out: Annotated[Path | None, typer.Option(help="Table to write, with every word.")] = None,
) -> None:
    """The words that speak most for each class: importance, direction, how many texts have them."""
    check_file(out)
    words = _load(model).words_
    table = Table("class", "word", "importance", "direction", "texts")
    for column in table.columns[2:]:
        column.justify = "right"
    for label in words.classes.tolist():
        for row in words.top(label, top):
            numbers = (f"{row['importance']:+.2f}", f"{row['direction'][label]:+.2f}", str(row["texts"]))
            table.add_row(_shown(str(label)), _shown(row["word"]), *numbers)
        table.add_section()
    console().print(table)
    if out is not None:
        import pyarrow as pa

        from attsvm.tables import write_table

        columns: dict[str, Any] = {"word": words.word, "importance": words.importance, "texts": words.texts}
        columns |= {f"direction {label}": words.direction[:, k] for k, label in enumerate(words.classes.tolist())}
        write_table(pa.table(columns), out)
        console().print(f"{out}: {len(words)} words", markup=False)


def _load(folder: Path) -> AttentionTextClassifier:
    from attsvm.text import AttentionTextClassifier

    return AttentionTextClassifier.load(folder)


def _held_out(texts: list[str], labels: np.ndarray, test: float, seed: int) -> np.ndarray:
    """(texts,) bool: that part of the texts, and of each class as near as can be, but never all of a class. Equal texts
    of a class stay together, so that none is both fitted to and judged by."""
    first: dict[tuple[str, Any], int] = {}
    same = [first.setdefault(pair, i) for i, pair in enumerate(zip(texts, labels.tolist()))]
    places, number = np.unique(same, return_inverse=True)
    return _held_out_of(labels[places], test, seed)[number]


def _held_out_of(labels: np.ndarray, test: float, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed).permutation(len(labels))
    order = random[np.argsort(labels[random], kind="stable")]  # by class
    first = np.diff(np.unique(labels[order], return_inverse=True)[1], prepend=-1) != 0
    rest = order[~first]
    count = min(math.ceil(test * len(labels)), len(rest))
    if test * len(labels) < 1 or not count:
        raise AttsvmError(
            f"--test {test} of {len(labels)} different texts is none, one of each class aside: take more texts, or "
            "--test 0."
        )
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[rest[(2 * np.arange(count) + 1) * len(rest) // (2 * count)]] = True
    return held_out


def _shown(text: str) -> str:
    """For a table on a terminal: nothing in a label can hide, turn or colour what stands around it."""
    from attsvm.text import visible

    return escape(visible(text))


def _name(label: Any) -> str:
    """What a label is called; a whole number is a whole number, also if it is stored as a float."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _named(names: list[str], text: str, option: str) -> str:
    """The name that the user means."""
    found = next((one for one in (text, re.sub(r"\.0+$", "", text)) if one in names), None)
    if found is None:
        from attsvm.text import visible

        known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise AttsvmError(visible(f"{option} must be one of {known}, but got {text}."))
    return found


def _known(classes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """True labels; one that the model cannot predict is refused, before anything is written."""
    strange = sorted({_name(label) for label in truth.tolist()} - {_name(label) for label in classes.tolist()})
    if strange:
        from attsvm.text import visible

        listed = visible(", ".join(strange[:5]))
        raise AttsvmError(
            f"the model does not know the label{'s' * (len(strange) > 1)} {listed}: drop these rows, or leave --label "
            "out."
        )
    return truth


def _judge(classes: np.ndarray, truth: np.ndarray, predicted: np.ndarray, what: str, stderr: bool = False) -> None:
    """Accuracy, and who is taken for whom."""
    output = Console(stderr=True, width=110, highlight=False) if stderr else console()
    names = [_name(label) for label in classes.tolist()]
    true_names = [_name(label) for label in truth.tolist()]
    number = {name: k for k, name in enumerate(names)}
    pairs = np.array([[number[a], number[_name(b)]] for a, b in zip(true_names, predicted.tolist())], int)
    confusion = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(confusion, tuple(pairs.reshape(-1, 2).T), 1)
    right, total = int(confusion.trace()), int(confusion.sum())
    accuracy = f"{right / total:.4f}" if total else "–"
    output.print(f"accuracy {accuracy} ({right} of {total} {what})")
    if len(names) <= _WIDE:
        table = Table("true \\ predicted", *map(_shown, names), "recall")
        for name, row in zip(names, confusion):
            recall = f"{row[number[name]] / row.sum():.3f}" if row.sum() else "–"
            table.add_row(_shown(name), *map(str, row), recall)
    else:
        table = Table("true", "texts", "recall", "most often taken for")
        for k, (name, row) in enumerate(zip(names, confusion)):
            others = row.copy()
            others[k] = 0
            worst = f"{names[others.argmax()]} ({others.max()})" if others.max() else ""
            recall = f"{row[k] / row.sum():.3f}" if row.sum() else "–"
            table.add_row(_shown(name), str(row.sum()), recall, _shown(worst))
    for column in table.columns[1:]:
        column.justify = "right"
    output.print(table)
