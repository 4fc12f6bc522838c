"""Files that appear whole or not at all, and arrays in .npz and .safetensors files."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from attsvm.errors import AttsvmError

PathLike = str | os.PathLike[str]


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path in the same folder: it becomes `path` if the block succeeds, else it goes.

    The temporary name keeps the suffix of `path`, because writers such as matplotlib read the format from it.
    """
    target = Path(os.path.realpath(path))  # a symbolic link is written through, not replaced
    temporary = target.with_name(f".{target.stem}.{uuid.uuid4().hex[:12]}.tmp{target.suffix}")
    try:
        # Made in the ordinary way and not by tempfile, so that the file gets the user's usual permissions.
        temporary.open("xb").close()
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise AttsvmError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def clear_leftovers(path: PathLike) -> None:
    """Remove what writers of `path` that were killed left beside it."""
    target = Path(os.path.realpath(path))
    for leftover in target.parent.glob(f".{target.stem}.*.tmp{target.suffix}"):
        leftover.unlink(missing_ok=True)


def make_folder(path: PathLike) -> Path:
    """The folder, made if it is not there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttsvmError(f"{path} cannot be made a folder: {error.strerror}.") from error
    return folder


def checked_path(path: PathLike) -> Path:
    """The path, if it names one of the two formats."""
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise AttsvmError(f"path must end in .npz or .safetensors, but got {path}.")
    return path


def write_arrays(path: PathLike, tensors: dict[str, Tensor], strings: dict[str, str]) -> None:
    """Tensors by name; the strings become 0-d arrays in .npz and metadata in .safetensors."""
    path = checked_path(path)
    assert not tensors.keys() & strings.keys()  # an .npz file has one name for both
    arrays = {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        if path.suffix == ".npz":
            # The strings come first: an archive that lost its last entries is then still seen for what it is.
            contents: dict[str, Any] = {name: np.array(text) for name, text in strings.items()} | arrays
            np.savez(temporary, **contents)
        else:
            # Not by save_file: its own temporary file would stay behind a kill, and none but the owner could read it.
            temporary.write_bytes(_safetensors().numpy.save(arrays, metadata=strings))


def read_arrays(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What `write_arrays` wrote: arrays and strings."""
    path = checked_path(path)
    if not path.is_file():
        raise AttsvmError(f"{path} is not a file.")
    try:
        return _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except AttsvmError:
        raise
    except Exception as error:  # a damaged file makes the zip and array readers raise almost anything
        raise AttsvmError(f"{path} is not a readable {path.suffix} file: {_one_line(error)}") from error


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array, not an archive of arrays")
        contents = {name: np.asarray(archive[name]) for name in archive.files}
    strings = {name: str(array) for name, array in contents.items() if array.ndim == 0 and array.dtype.kind == "U"}
    return {name: array for name, array in contents.items() if name not in strings}, strings


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with _safetensors().safe_open(path, framework="np") as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise AttsvmError(
            ".safetensors files need the safetensors package: pip install attsvm[safetensors]."
        ) from error
    return safetensors


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else text + "."
