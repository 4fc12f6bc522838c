"""Files that appear whole or not at all, array files, and folders that one process works in at a time."""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import platform
import re
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.errors import AttsvmError, describe
from attsvm.schema import Schema, check_json

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows has no such locks, and folders stay open there
    fcntl = None

PathLike = str | os.PathLike[str]

LARGEST_TEXT = 2**28
"""Larger JSON files, in bytes, are refused."""
_FREE = 2**30
"""Compressed archives may unpack to this many bytes, or to _RATIO times their size."""
_RATIO = 100
_LOCK = ".attsvm.lock"
_TOKEN = re.compile(r"\.(\d+)-([0-9a-f]{6})-[0-9a-f]{8}\.tmp")
"""Process and machine of its writer in the name of a temporary file."""
_DIGEST = "sha256"


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path in the same folder: it becomes `path` if the block succeeds, and is removed otherwise.

    The content is on the disk before the name is, so that no crash leaves an empty file. The temporary name keeps the
    suffix of `path`, because writers such as matplotlib read the format from it.
    """
    with atomic_paths(path) as (temporary,):
        yield temporary


@contextmanager
def atomic_paths(*paths: PathLike) -> Iterator[list[Path]]:
    """Several files that belong together: all are written before the first takes its place, the last one last."""
    targets = [Path(os.path.realpath(path)) for path in paths]  # a symbolic link is written through, not replaced
    temporaries = [target.with_name(f"{_stem(target)}{_token()}.tmp{target.suffix[:20]}") for target in targets]
    try:
        for temporary, target in zip(temporaries, targets):
            if os.path.islink(target):  # a loop of links has no end
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(temporary))
            # Made in the ordinary way and not by tempfile, so that the file gets the user's usual permissions.
            temporary.open("xb").close()
        yield temporaries
        for temporary in temporaries:
            _sync(temporary)
        for temporary, target in zip(temporaries, targets):
            os.replace(temporary, target)
        for folder in {target.parent for target in targets}:
            _sync(folder)
    except OSError as error:
        named = {str(temporary): path for temporary, path in zip(temporaries, paths)}
        path = named.get(str(error.filename), paths[0])
        raise AttsvmError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        for temporary in temporaries:
            _remove(temporary)


def clear_leftovers(path: PathLike) -> None:
    """Remove what writers of `path` that were killed left beside it, or in it if it is a folder.

    Those of living processes stay.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        found = (file for file in target.glob(".*.tmp*") if _TOKEN.search(file.name))
    else:
        found = target.parent.glob(f"{glob.escape(_stem(target))}*.tmp{glob.escape(target.suffix[:20])}")
    for leftover in found:
        if not _writer_lives(leftover.name):
            _remove(leftover)


def make_folder(path: PathLike) -> Path:
    """The folder, made if it is not there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttsvmError(f"{path} cannot be made a folder: {error.strerror}.") from error
    return folder


@contextmanager
def locked_folder(path: PathLike) -> Iterator[Path]:
    """The folder, made if it is not there, and locked: a second process that asks for it is refused.

    The lock ends with its process, however that ends. Folders that were made for it and stay empty are removed.
    """
    missing = [folder for folder in (Path(path), *Path(path).parents) if not is_there(folder)]
    folder = make_folder(path)
    with ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        stack.enter_context(_locked(folder / _LOCK, folder))
        yield folder


@contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    try:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another process"
                os.close(descriptor)
                raise AttsvmError(f"{folder} is in use by {holder}: wait for it, or choose another folder.") from error
            except OSError:
                pass  # a file system without locks
            # Between opening and locking it, the file may have gone with its process: then this lock means nothing.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
    except OSError as error:
        raise AttsvmError(f"{folder} cannot be written into: {error.strerror}.") from error
    try:
        yield
    finally:
        _remove(path)
        os.close(descriptor)


def is_there(path: PathLike) -> bool:
    """Is there anything by this name? Names that no file can have are not there."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False


def is_file(path: PathLike) -> bool:
    """As `Path.is_file`, for names that are too long, too."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def checked_path(path: PathLike) -> Path:
    """The path, if it names one of the two formats."""
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise AttsvmError(f"path must end in .npz or .safetensors, but got {path}.")
    return path


def write_arrays(path: PathLike, arrays: Mapping[str, Tensor | np.ndarray], facts: Mapping[str, Any]) -> None:
    """Arrays or tensors by name, and facts: strings as they are, all else as JSON.

    Facts become 0-d arrays in .npz and metadata in .safetensors.
    """
    path = checked_path(path)
    with atomic_path(path) as temporary:
        write_arrays_now(temporary, arrays, facts)


def as_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Strings as they are, all else as JSON."""

    def refuse(value: Any) -> Any:
        raise AttsvmError(f"files hold plain numbers, texts and lists of them, but a parameter is {describe(value)}.")

    return {name: fact if isinstance(fact, str) else json.dumps(fact, default=refuse) for name, fact in facts.items()}


def write_arrays_now(path: Path, given: Mapping[str, Tensor | np.ndarray], facts: Mapping[str, Any]) -> None:
    """As `write_arrays`, into a file of `atomic_paths`."""
    assert not given.keys() & facts.keys()  # an .npz file has one name for both
    plain = {name: x if isinstance(x, np.ndarray) else x.detach().cpu().numpy() for name, x in given.items()}
    arrays = {name: np.ascontiguousarray(array) for name, array in plain.items()}
    strings = as_texts(facts)
    if path.suffix == ".npz":
        # The strings come first: an archive that lost its last entries is then still recognised.
        contents: dict[str, Any] = {name: np.array(text) for name, text in strings.items()} | arrays
        np.savez(path, **contents)
    else:
        # Not by save_file: its temporary file would survive a kill, and only the owner could read it.
        metadata = strings | {_DIGEST: _digest(arrays, strings)}  # .npz files have checksums of their own
        content = memoryview(_safetensors().numpy.save(arrays, metadata=metadata))
        # The library writes its metadata in a random order: the same content shall be the same bytes.
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(bytes(content[8:end]))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as file:
            file.writelines((len(text).to_bytes(8, "little"), text, content[end:]))


def read_arrays(path: PathLike, schema: Schema | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `write_arrays` wrote: arrays and facts, checked against a schema.

    Without a schema the facts are the strings of the file.
    """
    path = checked_path(path)
    if not is_file(path):
        raise AttsvmError(f"{path} is not a file.")
    try:
        arrays, strings = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except AttsvmError:
        raise
    except Exception as error:  # a damaged file makes the zip and array readers raise almost anything
        raise AttsvmError(f"{path} is not a readable {path.suffix} file: {one_line(error)}") from error
    return (arrays, strings) if schema is None else schema.check(path, arrays, strings)


def under(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Those whose name begins with the prefix, by the rest of their name."""
    return {name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)}


def read_json(path: PathLike, shape: Any = object, what: str = "JSON") -> Any:
    """The content of a JSON file, checked against a shape (see `attsvm.schema`)."""
    try:
        size = os.stat(path).st_size
        if size > LARGEST_TEXT:
            raise ValueError(f"it has {size:,} bytes, but at most {LARGEST_TEXT:,} are read")
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also bytes that are not UTF-8
        raise AttsvmError(f"{path} cannot be read as {what}: {one_line(error)}") from error
    check_json(str(path), content, shape)
    return content


def write_json(path: PathLike, content: Any, indent: int | None = 1) -> None:
    """A JSON file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def one_line(error: BaseException) -> str:
    """The words of an error as the end of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    if isinstance(error, MemoryError):
        return "there is not enough memory for it."
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else text + "."


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError("it is a single array, not an archive of arrays")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        names = [entry.filename.removesuffix(".npy") for entry in entries]
        if len(set(names)) < len(names) or not all(entry.filename.endswith(".npy") for entry in entries):
            raise ValueError("it must hold .npy files of different names")
        _check_size(sum(entry.file_size for entry in entries), os.path.getsize(path))
        contents = {name: _read_entry(archive, entry) for name, entry in zip(names, entries)}
    strings = {name: str(array) for name, array in contents.items() if array.ndim == 0 and array.dtype.kind == "U"}
    return {name: array for name, array in contents.items() if name not in strings}, strings


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array whose header fits its size; memory is taken only then. (numpy trusts the header.)"""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.kind not in "biufcUS":
            raise ValueError(f"{entry.filename} holds Python objects or records, and only plain numbers are read")
        if math.prod(shape) * dtype.itemsize != entry.file_size - file.tell():
            raise ValueError(f"{entry.filename} does not have the size that its shape {shape} needs")
        content = bytearray(file.read())  # to the end: there the checksum is compared
    flat = np.frombuffer(content, dtype=dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _check_size(unpacked: int, packed: int) -> None:
    if unpacked > max(_FREE, _RATIO * packed):
        raise ValueError(f"{packed:,} bytes would unpack to {unpacked:,}: write it without compression")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if unpacked > memory:
        raise ValueError(f"it needs {unpacked:,} bytes of memory, and this machine has {memory:,}")


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    _check_size(path.stat().st_size, path.stat().st_size)
    with _safetensors().safe_open(path, framework="np") as file:  # it compares its header with the size of the file
        names = file.keys()
        arrays, strings = {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    if _DIGEST in strings and strings.pop(_DIGEST) != _digest(arrays, strings):
        raise ValueError("its content is not what was written")
    return arrays, strings


def _digest(arrays: Mapping[str, np.ndarray], strings: Mapping[str, str]) -> str:
    found = sha256(json.dumps(dict(strings), sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise AttsvmError(
            ".safetensors files need the safetensors package: pip install attsvm[safetensors]."
        ) from error
    return safetensors


def _stem(target: Path) -> str:
    return f".{target.stem.encode()[:120].decode(errors='ignore')}."  # with what follows, a name has 255 bytes at most


def _token() -> str:
    return f"{os.getpid()}-{_host()}-{uuid.uuid4().hex[:8]}"


def _host() -> str:
    return sha256(platform.node().encode()).hexdigest()[:6]


def _writer_lives(name: str) -> bool:
    """Is the process that a temporary file names alive? That of another machine may be."""
    found = _TOKEN.search(name)
    if found is None:  # of a version that wrote no process into the name
        return False
    if found[2] != _host() or os.name == "nt":  # where os.kill would end it
        return True
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # someone else's
        return True
    return True


def _sync(path: Path) -> None:
    """Wait until it is on the disk."""
    folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if folder:  # Windows opens no folders
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError:
        if not folder:
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with suppress(OSError):  # the name itself may be impossible, which was said before
        path.unlink(missing_ok=True)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # the innermost first
        try:
            folder.rmdir()
        except OSError:
            return
