"""Images and their labels: CIFAR-10 as it is unpacked, or a table."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.checks import as_index
from attsvm.errors import AttsvmError
from attsvm.files import one_line
from attsvm.tables import label_column
from attsvm.transformer._data import Data, image_data

MOST_CLASSES = 100_000


def cifar_folder(folder: Path, size: int) -> Data:
    files = {"train": sorted(folder.glob("data_batch_*")), "test": sorted(folder.glob("test_batch*"))}
    if not files["train"] or not files["test"]:
        raise AttsvmError(f"{folder} must be aclImdb (train/pos, …) or CIFAR-10 (data_batch_1, … test_batch).")
    splits = []
    for split in ("train", "test"):
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


def has_images(path: Path) -> bool:
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise AttsvmError("tables need pyarrow: pip install 'attsvm[transformer]'.") from error
    try:
        return "image" in parquet.read_schema(path).names
    except (OSError, ArrowException) as error:
        raise AttsvmError(f"{path} is not a readable parquet file: {' '.join(str(error).split())}.") from error


def image_rows(table: Any, source: str | Path, part: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Pixels (3, height, width) and labels of the rows; `part` says of which split they are."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise AttsvmError("images need the pillow package: pip install 'attsvm[transformer]'.") from error
    name = next((name for name in ("image", "img") if name in table.column_names), None)
    if name is None:
        raise AttsvmError(f"{source} has no column 'image'; it has {', '.join(map(repr, table.column_names))}.")
    pixels = []
    for row, value in enumerate(table[name].to_pylist(), 1):
        encoded: Any = value.get("bytes") if isinstance(value, dict) else value  # Hugging Face has bytes and path
        try:
            pixels.append(np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).transpose(2, 0, 1))
        except (TypeError, UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
            raise AttsvmError(f"{source}{part}: row {row} is not a readable image.") from error
    if len({image.shape for image in pixels}) > 1:
        raise AttsvmError(f"{source}{part}: images must all have one size, but they differ.")
    return pixels, whole_labels(table, source, part)


def whole_labels(table: Any, source: str | Path, part: str) -> np.ndarray:
    labels, allowed = label_column(table, "label", source, part), f"whole numbers from 0 to {MOST_CLASSES - 1}"
    if len(labels) and labels.dtype.kind not in "iub":
        raise AttsvmError(
            f"{source}: labels must be {allowed}, but the column holds texts, such as {str(labels[0])!r}."
        )
    if len(labels) and labels.max() >= MOST_CLASSES:
        raise AttsvmError(f"labels must be {allowed}, but got {labels.max()}.")
    return labels.astype(np.int64)
