"""Data from files: texts as a table, aclImdb folder, long text or tokens; images; Hugging Face names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attsvm.checks import as_count, as_real
from attsvm.errors import AttsvmError
from attsvm.files import is_file, one_line, read_arrays, write_arrays
from attsvm.schema import Array, Schema
from attsvm.tables import FORMATS, read_table, rows_of, text_column
from attsvm.tokenizers import encodings, open_tokenizer, vocabulary_digest
from attsvm.transformer._data import Data, Images, Sequences, Texts, image_data
from attsvm.transformer._images import MOST_CLASSES, cifar_folder, has_images, image_rows, whole_labels
from attsvm.transformer._synthetic import synthetic_sentiment, tiny_images

SPLITS = ("train", "test")
LONG = ".txt"
_T = TypeVar("_T")
_SCHEMA = Schema(
    "attsvm-splits/1",
    "token numbers or pixels",
    {"classes": Array("whole", "1", least=1, most=MOST_CLASSES), "vocabulary": Array("whole", "1", least=0)}
    | {f"{split}_labels": Array("whole", split, least=0, most=MOST_CLASSES) for split in SPLITS}
    | {f"{split}_tokens": Array("whole", f"{split}_tokens", least=0, most=2**31 - 1, optional=True) for split in SPLITS}
    | {f"{split}_lengths": Array("whole", split, least=0, optional=True) for split in SPLITS}
    | {f"{split}_pixels": Array("whole", f"{split} c h w", least=0, most=255, optional=True) for split in SPLITS},
    {"tokenizer?": str},
    former=("attsvm splits 1",),
)


def load_data(
    source: str | Path,
    *,
    tokenizer: str | Path | None = None,
    length: int = 512,
    size: int | None = None,
    images: bool = False,
    next_tokens: bool = False,
    test: float = 0.0,
) -> Data:
    """Data by what `source` is.

    ==============================  ================================================================================
    "synthetic", "tiny-images"      built in
    file.npz                        tokens or pixels as :func:`save_data` wrote them
    file.parquet (.csv, .jsonl)     columns text, label and split ("train", "test"); parquet may have image for text
    file.txt                        one long text for a language model, read in windows of `length` tokens
    folder with train/pos, …        aclImdb as it is unpacked
    folder with data_batch_1, …     CIFAR-10, the Python version as it is unpacked
    any other name                  a Hugging Face data set with splits train and test (package datasets)
    ==============================  ================================================================================

    Args:
        source: see above.
        tokenizer: a tokenizer.json or the folder that holds it; texts need it.
        length: longest sequence in tokens; the rest of a text is cut off.
        size: height and width to which images are scaled; 48 if not given, and 8 for the built-in ones.
        images: a table or a Hugging Face name holds images. (A table with a column image is recognised.)
        next_tokens: texts for a language model, which predicts every next token: a table needs no labels.
        test: share of the rows that are the test split, for files that name none. If it is 0.1, every tenth row of each
            class; of a .txt the last tenth.
    """
    length, test = as_count("length", length), as_real("test", test, 0.0)
    if test >= 1:
        raise AttsvmError(f"test must be a share below 1, but got {test:g}.")
    if test and Path(source).suffix.lower() not in (*FORMATS, LONG):
        read = f"{', '.join(FORMATS)} without a column split, and for {LONG}"
        raise AttsvmError(f"test is for {read}, but {source} is neither: leave it out.")
    found = _load(source, tokenizer, length, size, images, Sequences if next_tokens else Texts, test)
    return found.next_tokens() if next_tokens else found


def _load(
    source: str | Path,
    tokenizer: str | Path | None,
    length: int,
    size: int | None,
    images: bool,
    kind: type[Texts],
    test: float,
) -> Data:
    name, path = str(source), Path(source)
    if name == "synthetic":
        return _cut(synthetic_sentiment(), length)
    if name == "tiny-images":
        return tiny_images(size=8 if size is None else size)
    size = 48 if size is None else size
    if path.suffix == ".npz":
        return _cut(_saved(path, size, kind), length)
    if path.suffix.lower() == LONG:
        return _long_text(path, tokenizer, length, kind, test)
    if path.is_dir() and (path / "train" / "pos").is_dir():
        texts = [_acl_split(path, split) for split in SPLITS]
        return _tokenized(texts, tokenizer, length, kind)
    if path.is_dir():
        return cifar_folder(path, size)
    if images or has_images(path):
        found = [image_rows(table, source, part) for table, part in _parts(source, "image", test)]
        splits = [(np.stack(pixels), labels) for pixels, labels in _both(found, test)]
        return image_data(splits[0], splits[1], 1 + int(max(labels.max(initial=0) for _, labels in splits)), size)
    texts = []
    for table, part in _parts(source, "text", test):
        labels = np.zeros(len(table), np.int64) if kind is Sequences else whole_labels(table, source, part)
        texts.append((text_column(table, "text", f"{source}{part}"), labels))
    return _tokenized(_both(texts, test), tokenizer, length, kind)


def _parts(source: str | Path, column: str, test: float) -> list[tuple[Any, str]]:
    """The tables of both splits, and how errors name them; or one table, of which `test` is the test split."""
    if Path(source).suffix.lower() not in FORMATS:
        return [(read_table(source, text=column, split=split), f", split {split}") for split in SPLITS]
    table = read_table(source, text=column)
    if "split" not in table.column_names:
        _needed(test, f"{source} has no column 'split'", "rows")
        return [(table, "")]
    if test:
        raise AttsvmError(f"test is for tables without a column split, but {source} has one: leave it out.")
    return [(rows_of(table, split, source), f", split {split}") for split in SPLITS]


def _needed(test: float, why: str, what: str) -> None:
    if not test:
        raise AttsvmError(f"{why}: say which share of the {what} is the test split, such as test=0.1 (--test 0.1).")


def _both(found: list[tuple[list[_T], np.ndarray]], test: float) -> list[tuple[list[_T], np.ndarray]]:
    """Both splits; of a single table the rows that are held out are evenly spaced, once they are sorted by label: the
    order in which a table has its classes does not matter."""
    if len(found) == len(SPLITS):
        return found
    ((rows, labels),) = found
    held = np.empty(len(rows), bool)
    held[labels.argsort(kind="stable")] = _held_out(len(rows), test, "rows")
    return [([row for row, own in zip(rows, held == kept) if own], labels[held == kept]) for kept in (False, True)]


def _held_out(n: int, test: float, what: str, more: str = "more of them") -> np.ndarray:
    """Which of n rows or windows, evenly spaced, are the test split."""
    held = np.diff(np.floor(np.arange(n + 1) * test)) > 0
    if not held.any():
        raise AttsvmError(f"test = {test:g} of {n} {what} is none: take a larger share, or {more}.")
    return held


def encode(texts: Sequence[str], tokenizer: str | Path, length: int) -> list[list[int]]:
    """Token numbers with the tokenizer's special tokens, [CLS] first; at most `length` of them."""
    found = open_tokenizer(tokenizer)
    found.enable_truncation(length)
    # Cut again: a maximum below the number of special tokens is ignored by the package.
    return [code.ids[:length] for code in encodings(found, texts)]


def _long_text(path: Path, tokenizer: str | Path | None, length: int, kind: type[Texts], test: float) -> Data:
    """Windows of a text, without special tokens; the last token of one is the first of the next."""
    if kind is not Sequences:
        raise AttsvmError(f"{path} has no labels: a .txt is for a language model (--model gpt).")
    if not is_file(path):
        raise AttsvmError(f"{path} is not a file.")
    _needed(test, f"{path} has no test split", "text")
    step, opened = as_count("length", length, least=2) - 1, open_tokenizer(_named(tokenizer))
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeError) as error:
        raise AttsvmError(f"{path} cannot be read as UTF-8: {one_line(error)}") from error
    codes = encodings(opened, lines, special_tokens=False)
    ids = np.fromiter((token for code in codes for token in code.ids), np.int32)
    windows = [ids[start : start + length] for start in range(0, len(ids) - 1, step)]
    held = _held_out(len(windows), test, f"windows of {length} tokens", "a longer text, or a smaller length")
    cut = len(windows) - int(held.sum())
    parts = (windows[:cut], windows[cut:])
    return _of_tokens([_ragged(part, np.zeros(len(part), np.int64), kind) for part in parts], 1, opened)


def save_data(data: Data, path: str | Path) -> None:
    """Both splits in one compact .npz that `load_data` reads without tokenizer or tables: token numbers or pixels."""
    if Path(path).suffix != ".npz":
        raise AttsvmError(f"data files must end in .npz, but got {path}.")
    narrow = np.uint16 if data.vocabulary <= 2**16 else np.int32
    arrays: dict[str, np.ndarray] = {"classes": np.array([data.classes]), "vocabulary": np.array([data.vocabulary])}
    for name, split in zip(SPLITS, (data.train, data.test)):
        arrays[f"{name}_labels"] = split.labels.cpu().numpy().astype(np.int32)
        if isinstance(split, Images):
            arrays[f"{name}_pixels"] = split.pixels.cpu().numpy()
            continue
        tokens, lengths = split.tokens.cpu().numpy(), split.lengths.cpu().numpy()
        arrays[f"{name}_tokens"] = tokens[np.arange(tokens.shape[1]) < lengths[:, None]].astype(narrow)
        arrays[f"{name}_lengths"] = lengths.astype(np.int32)
    facts = {"format": _SCHEMA.format, "tokenizer": data.tokenizer}
    write_arrays(path, arrays, facts)


def _saved(path: Path, size: int, kind: type[Texts]) -> Data:
    arrays, facts = read_arrays(path, _SCHEMA)
    kinds = [{name.partition("_")[2] for name in arrays if name.startswith(split)} for split in SPLITS]
    if kinds[0] != kinds[1] or kinds[0] not in ({"labels", "pixels"}, {"labels", "tokens", "lengths"}):
        raise AttsvmError(
            f"{path} must have pixels, or tokens and lengths, of both splits, but it has {', '.join(arrays)}."
        )
    classes = int(arrays["classes"][0])
    labels = {name: arrays[f"{name}_labels"] for name in SPLITS}
    if "pixels" in kinds[0]:
        train, test = ((arrays[f"{name}_pixels"].astype(np.uint8), labels[name]) for name in SPLITS)
        return image_data(train, test, classes, size)
    splits = []
    for name in SPLITS:
        offsets = np.concatenate([[0], np.cumsum(arrays[f"{name}_lengths"], dtype=np.int64)])
        if offsets[-1] != len(arrays[f"{name}_tokens"]):
            raise AttsvmError(f"{path}: {name}_lengths must add up to the number of {name}_tokens, but do not.")
        splits.append(kind.ragged(arrays[f"{name}_tokens"], offsets, labels[name]))
    return Data(splits[0], splits[1], classes, int(arrays["vocabulary"][0]), facts.get("tokenizer", ""))


def _cut(data: Data, length: int) -> Data:
    if not isinstance(data.train, Texts) or not isinstance(data.test, Texts):
        return data
    return replace(data, train=data.train.cut(length), test=data.test.cut(length))


def _tokenized(
    texts: list[tuple[list[str], np.ndarray]], tokenizer: str | Path | None, length: int, kind: type[Texts]
) -> Data:
    place = _named(tokenizer)
    splits = [_ragged(encode(part, place, length), labels, kind) for part, labels in texts]
    classes = 1 if kind is Sequences else 1 + max(1, *(int(labels.max(initial=0)) for _, labels in texts))
    return _of_tokens(splits, classes, open_tokenizer(place))


def _named(tokenizer: str | Path | None) -> str | Path:
    if tokenizer is None:
        raise AttsvmError("texts need a tokenizer: name a tokenizer.json, such as that of bert-base-uncased.")
    return tokenizer


def _ragged(ids: Sequence[Sequence[int] | np.ndarray], labels: np.ndarray, kind: type[Texts]) -> Texts:
    flat = np.array([token for sequence in ids for token in sequence], np.int32)
    return kind.ragged(flat, np.cumsum([0, *map(len, ids)]), labels)


def _of_tokens(splits: Sequence[Texts], classes: int, tokenizer: Any) -> Data:
    # Not the number of tokens: the numbers of some tokenizers have gaps.
    vocabulary = 1 + max(tokenizer.get_vocab().values(), default=0)
    return Data(splits[0], splits[1], classes, vocabulary, vocabulary_digest(tokenizer))


def _acl_split(folder: Path, split: str) -> tuple[list[str], np.ndarray]:
    texts: list[str] = []
    labels: list[int] = []
    for label, name in ((0, "neg"), (1, "pos")):
        files = sorted((folder / split / name).glob("*.txt"))
        texts += [file.read_text(encoding="utf-8", errors="replace") for file in files]
        labels += [label] * len(files)
    if not texts:
        raise AttsvmError(f"the {split} split must have rows, but {folder / split} has no pos/*.txt or neg/*.txt.")
    return texts, np.array(labels)
