"""TokenData in .npz and .safetensors files.

Layout: arrays X (B, n, T, d), Z (B, n, K, e), Y (B, n, K), mask (B, n, K, T), trials (B,) and `head.<parameter>`. Two
strings, `format` and `head` (the kind of head, "" if none), are 0-d arrays in .npz and metadata in .safetensors.

A file written by hand needs no strings: `np.savez("data.npz", X=X, Z=Z, Y=Y, v=v)`. It must hold X. It may hold Z (if
not, the first token is the query), Y, mask and v, in the shapes that `TokenData.cross` takes.
"""

from pathlib import Path

import numpy as np
import torch

from attsvm.data._heads import Head, head_from
from attsvm.data._token_data import TokenData
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, read_arrays, under, write_arrays
from attsvm.schema import Array, Schema

ARRAYS = {
    "X": Array("real", "B n T d"),
    "Z": Array("real", "B n K e"),
    "Y": Array("real", "B n K"),
    "mask": Array("bool", "B n K T"),
    "trials": Array("whole", "B", optional=True, least=0),
    "head.*": Array("real", "B ..."),
}
"""The arrays of `TokenData.tensors`, in every file that holds data."""

SCHEMA = Schema(
    format="attsvm-data/2",
    former=("attsvm-data/1",),
    what="token data",
    arrays=ARRAYS,
    facts={"head": str},
)


def save(data: TokenData, path: PathLike) -> None:
    """Write data to a .npz or .safetensors file, whole or not at all."""
    if not isinstance(data, TokenData):
        kind = type(data).__name__
        hint = f": call the save of the {kind} itself" if hasattr(data, "save") else ""
        raise AttsvmError(f"data must be TokenData, but got {kind}{hint}.")
    write_arrays(path, data.tensors(), {"format": SCHEMA.format, "head": data.head.name if data.head else ""})


def load(path: PathLike, *, head: Head | None = None) -> TokenData:
    """Read what `save` wrote, or a minimal file written by hand.

    `head` replaces the file's. A head that the file cannot hold, such as a function, must be given this way.
    """
    arrays, strings = read_arrays(path)
    # Metadata of other programs, such as format = "pt", do not make a file ours.
    ours = strings.get("format", "").startswith("attsvm-")
    if ours:
        arrays, strings = SCHEMA.check(Path(path), arrays, strings)
    try:
        return from_arrays(arrays, strings["head"], head) if ours else _by_hand(arrays)
    except AttsvmError as error:
        raise AttsvmError(f"{path}: {error}") from error


def from_arrays(arrays: dict[str, np.ndarray], kind: str, head: Head | None = None) -> TokenData:
    """Data from the checked arrays of `TokenData.tensors` and the kind of head."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if head is None:
        head = head_from(kind, under("head.", tensors))
    X, Z, Y, mask = (tensors[name] for name in ("X", "Z", "Y", "mask"))
    return TokenData(X, Z, Y, mask, head, tensors.get("trials"))  # type: ignore[arg-type]


def _by_hand(arrays: dict[str, np.ndarray]) -> TokenData:
    if "X" not in arrays:
        raise AttsvmError(f"the array X is missing: the file has only {', '.join(arrays) or 'nothing'}.")
    known = ("X", "Z", "Y", "mask", "v")
    if unknown := arrays.keys() - known:
        raise AttsvmError(f"arrays must be {', '.join(sorted(known))}, but got also {min(unknown)}.")
    X, Z, Y, mask, v = (arrays.get(name) for name in known)
    if Z is None:
        return TokenData.self_attention(X, Y, v, mask)
    return TokenData.cross(X, Z, Y, v, mask)
