"""Data from files: reviews as a table, aclImdb folder or tokens; CIFAR-10 as a table or folder; Hugging Face names."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.checks import as_count, as_index
from attsvm.errors import AttsvmError
from attsvm.files import one_line, read_arrays, write_arrays
from attsvm.schema import Array, Schema
from attsvm.tables import label_column, read_table, text_column
from attsvm.tokenizers import open_tokenizer, vocabulary_digest
from attsvm.transformer._data import Data, Images, Sequences, Texts, image_data
from attsvm.transformer._synthetic import synthetic_sentiment, tiny_images

SPLITS = ("train", "test")
MOST_CLASSES = 100_000
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
) -> Data:
    """Data by what `source` is.

    ==============================  ================================================================================
    "synthetic", "tiny-images"      built in
    file.npz                        tokens or pixels as :func:`save_data` wrote them
    file.parquet (.csv, .jsonl)     columns text, label and split ("train", "test"); parquet may have image for text
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
    """
    length = as_count("length", length)
    found = _load(source, tokenizer, length, size, images, Sequences if next_tokens else Texts)
    return found.next_tokens() if next_tokens else found


def _load(
    source: str | Path, tokenizer: str | Path | None, length: int, size: int | None, images: bool, kind: type[Texts]
) -> Data:
    name, path = str(source), Path(source)
    if name == "synthetic":
        return _cut(synthetic_sentiment(), length)
    if name == "tiny-images":
        return tiny_images(size=8 if size is None else size)
    size = 48 if size is None else size
    if path.suffix == ".npz":
        return _cut(_saved(path, size), length)
    if path.is_dir() and (path / "train" / "pos").is_dir():
        texts = [_acl_split(path, split) for split in SPLITS]
        return _tokenized(texts, tokenizer, length, kind)
    if path.is_dir():
        return _cifar_folder(path, size)
    if images or _has_images(path):
        found = [_image_split(source, split) for split in SPLITS]
        return image_data(found[0], found[1], 1 + int(max(labels.max(initial=0) for _, labels in found)), size)
    texts = []
    for split in SPLITS:
        table, part = read_table(source, text="text", split=split), f", split {split}"
        if kind is Sequences:
            labels = np.zeros(len(table), np.int64)
        else:
            labels = _whole(label_column(table, "label", source, part), "0 or 1", source)
        texts.append((text_column(table, "text", f"{source}{part}"), labels))
    return _tokenized(texts, tokenizer, length, kind)


def encode(texts: Sequence[str], tokenizer: str | Path, length: int) -> list[list[int]]:
    """Token numbers with the tokenizer's special tokens, [CLS] first; at most `length` of them."""
    found = open_tokenizer(tokenizer)
    found.enable_truncation(length)
    chunks = [texts[start : start + 1000] for start in range(0, len(texts), 1000)]
    # Cut again: a maximum below the number of special tokens is ignored by the package.
    return [code.ids[:length] for chunk in chunks for code in found.encode_batch(list(chunk))]


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


def _saved(path: Path, size: int) -> Data:
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
        splits.append(Texts.ragged(arrays[f"{name}_tokens"], offsets, labels[name]))
    return Data(splits[0], splits[1], classes, int(arrays["vocabulary"][0]), facts.get("tokenizer", ""))


def _cut(data: Data, length: int) -> Data:
    if not isinstance(data.train, Texts) or not isinstance(data.test, Texts):
        return data
    return replace(data, train=data.train.cut(length), test=data.test.cut(length))


def _tokenized(
    texts: list[tuple[list[str], np.ndarray]], tokenizer: str | Path | None, length: int, kind: type[Texts]
) -> Data:
    if tokenizer is None:
        raise AttsvmError("texts need a tokenizer: name a tokenizer.json, such as that of bert-base-uncased.")
    splits = []
    for part, labels in texts:
        ids = encode(part, tokenizer, length)
        flat = np.array([token for sequence in ids for token in sequence], np.int32)
        splits.append(kind.ragged(flat, np.cumsum([0, *map(len, ids)]), labels))
    opened = open_tokenizer(tokenizer)
    # Not the number of tokens: the numbers of some tokenizers have gaps.
    vocabulary = 1 + max(opened.get_vocab().values(), default=0)
    return Data(splits[0], splits[1], 2, vocabulary, vocabulary_digest(opened))


def _whole(labels: np.ndarray, allowed: str, source: object) -> np.ndarray:
    if labels.dtype.kind not in "iub":
        raise AttsvmError(
            f"{source}: labels must be {allowed}, but the column holds texts, such as {str(labels[0])!r}."
        )
    return labels.astype(np.int64)


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


def _cifar_folder(folder: Path, size: int) -> Data:
    files = {"train": sorted(folder.glob("data_batch_*")), "test": sorted(folder.glob("test_batch*"))}
    if not files["train"] or not files["test"]:
        raise AttsvmError(f"{folder} must be aclImdb (train/pos, …) or CIFAR-10 (data_batch_1, … test_batch).")
    splits = []
    for split in SPLITS:
        parts = [_unpickled(file) for file in files[split]]
        try:
            pixels = [np.asarray(part[b"data"], np.uint8).reshape(-1, 3, 32, 32) for part in parts]
            labels = [as_index("labels", part[b"labels"]).numpy() for part in parts]
        except (KeyError, TypeError, ValueError) as error:
            raise AttsvmError(f"{folder} must hold CIFAR-10's files, but their data and labels differ.") from error
        for file, images, own in zip(files[split], pixels, labels):
            if own.shape != (len(images),):
                raise AttsvmError(f"{file} must have a label for every image, but it has {len(images)} and {own.size}.")
        splits.append((np.concatenate(pixels), np.concatenate(labels)))
    return image_data(splits[0], splits[1], classes=10, size=size)


def _unpickled(file: Path) -> Any:
    with file.open("rb") as opened:
        try:
            return _Arrays(opened, encoding="bytes").load()
        except AttsvmError:
            raise
        except Exception as error:  # damaged opcodes make the reader raise almost anything
            raise AttsvmError(f"{file} is not a readable file of CIFAR-10: {one_line(error)}") from error


class _Arrays(pickle.Unpickler):
    """CIFAR-10 comes pickled: lists, dicts and numpy arrays are read, anything else in the file is refused."""

    _ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype"})

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name.split(".")[0] == "numpy" and global_name in self._ALLOWED:
            return super().find_class(module_name.replace("numpy.core", "numpy._core"), global_name)
        raise AttsvmError(f"CIFAR-10's files hold only arrays, but this one asks for {module_name}.{global_name}.")


def _has_images(path: Path) -> bool:
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise AttsvmError("tables need pyarrow: pip install 'attsvm[transformer]'.") from error
    try:
        return "image" in parquet.read_schema(path).names
    except (OSError, ArrowException) as error:
        raise AttsvmError(f"{path} is not a readable parquet file: {' '.join(str(error).split())}.") from error


def _image_split(source: str | Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise AttsvmError("images need the pillow package: pip install 'attsvm[transformer]'.") from error
    table = read_table(source, text="image", split=split)
    name = next((name for name in ("image", "img") if name in table.column_names), None)
    if name is None:
        raise AttsvmError(f"{source} has no column 'image'; it has {', '.join(map(repr, table.column_names))}.")
    pixels = []
    for row, value in enumerate(table[name].to_pylist(), 1):
        encoded: Any = value.get("bytes") if isinstance(value, dict) else value  # Hugging Face has bytes and path
        try:
            pixels.append(np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).transpose(2, 0, 1))
        except (TypeError, UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
            raise AttsvmError(f"{source}: row {row} of split {split} is not a readable image.") from error
    if len({image.shape for image in pixels}) > 1:
        raise AttsvmError(f"{source}: images must all have one size, but those of split {split} differ.")
    labels = label_column(table, "label", source, f", split {split}")
    labels = _whole(labels, f"whole numbers from 0 to {MOST_CLASSES - 1}", source)
    if labels.max() >= MOST_CLASSES:
        raise AttsvmError(f"labels must be whole numbers from 0 to {MOST_CLASSES - 1}, but got {labels.max()}.")
    return np.stack(pixels), labels
