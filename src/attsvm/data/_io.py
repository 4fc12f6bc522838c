"""TokenData in .npz and .safetensors files.

Layout: arrays X (B, n, T, d), Z (B, n, K, e), Y (B, n, K), mask (B, n, K, T) and `head.<parameter>`; two
strings, `format` and `head` (the kind of head, "" if none), are 0-d arrays in .npz, metadata in .safetensors.

A file written by hand needs no strings: `np.savez("data.npz", X=X, Z=Z, Y=Y, v=v)`. It holds X, and if wanted
Z (without it the first token is the query), Y, mask and v, in the shapes that `TokenData.cross` takes.
"""

import numpy as np
import torch

from attsvm.data._heads import HEADS
from attsvm.data._token_data import TokenData
from attsvm.errors import AttsvmError
from attsvm.files import PathLike, read_arrays, write_arrays

FORMAT = "attsvm-data/1"
ARRAYS = ("X", "Z", "Y", "mask")


def save(data: TokenData, path: PathLike) -> None:
    """Write data to a .npz or .safetensors file, whole or not at all."""
    write_arrays(path, data.tensors(), {"format": FORMAT, "head": data.head.name if data.head else ""})


def load(path: PathLike) -> TokenData:
    """Read what `save` wrote, or a minimal file written by hand."""
    arrays, strings = read_arrays(path)
    try:
        # Metadata of other programs, such as format = "pt", do not make a file ours.
        ours = strings.get("format", "").startswith("attsvm-data/")
        return _saved(arrays, strings) if ours else _by_hand(arrays)
    except AttsvmError as error:
        raise AttsvmError(f"{path}: {error}") from error


def _saved(arrays: dict[str, np.ndarray], strings: dict[str, str]) -> TokenData:
    if strings["format"] != FORMAT:
        raise AttsvmError(f"format must be {FORMAT}, but got {strings['format']}.")
    kind = strings.get("head", "")
    if kind and kind not in HEADS:
        raise AttsvmError(f"head must be one of {', '.join(HEADS)}, but got {kind}.")
    parameters = HEADS[kind].axes if kind else {}
    _check_names(arrays, required={*ARRAYS, *(f"head.{name}" for name in parameters)}, optional=set())
    tensors = {name: _as_tensor(name, array) for name, array in arrays.items()}
    head = HEADS[kind](**{name: tensors[f"head.{name}"] for name in parameters}) if kind else None
    return TokenData(*(tensors[name] for name in ARRAYS), head=head)


def _as_tensor(name: str, array: np.ndarray) -> torch.Tensor:
    if array.dtype not in (np.float32, np.float64, np.bool_):
        raise AttsvmError(f"{name} must be float32, float64 or bool, but got dtype {array.dtype}.")
    return torch.from_numpy(array)


def _by_hand(arrays: dict[str, np.ndarray]) -> TokenData:
    _check_names(arrays, required={"X"}, optional={"Z", "Y", "mask", "v"})
    X, Z, Y, mask, v = (arrays.get(name) for name in ("X", "Z", "Y", "mask", "v"))
    if Z is None:
        return TokenData.self_attention(X, Y, v, mask)
    return TokenData.cross(X, Z, Y, v, mask)


def _check_names(arrays: dict[str, np.ndarray], required: set[str], optional: set[str]) -> None:
    missing, unknown = required - set(arrays), set(arrays) - required - optional
    if missing:
        raise AttsvmError(f"the array {min(missing)} is missing, only {', '.join(arrays) or 'nothing'} is there.")
    if unknown:
        raise AttsvmError(f"arrays must be {', '.join(sorted(required | optional))}, but got also {min(unknown)}.")
