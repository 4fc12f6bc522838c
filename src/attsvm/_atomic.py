"""Files that appear whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attsvm.errors import AttsvmError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
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


def clear_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what writers of `path` that were killed left beside it."""
    target = Path(os.path.realpath(path))
    for leftover in target.parent.glob(f".{target.stem}.*.tmp{target.suffix}"):
        leftover.unlink(missing_ok=True)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttsvmError(f"{path} cannot be made a folder: {error.strerror}.") from error
    return folder
