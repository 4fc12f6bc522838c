"""Conversion of what users pass, and the one-sentence refusals."""

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.errors import AttsvmError, describe

FLOATS = (torch.float32, torch.float64)


def as_array(name: str, value: Any) -> np.ndarray:
    """A nested list or array of numbers as a numpy array."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise AttsvmError(f"{name} must be a rectangular array of numbers, but got {describe(value)}.") from error
    if array.dtype.kind not in "biuf":
        raise AttsvmError(f"{name} must be an array of real numbers, but got {describe(value)}.")
    return array


def as_float(name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """A real tensor with dtype and device of `like`; without it torch float32 stays, all else is float64."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.layout != torch.strided:
            raise AttsvmError(f"{name} must be a dense tensor of real numbers, but got {describe(value)}.")
        tensor = value if value.dtype in FLOATS else value.to(torch.float64)
    else:
        # The copy keeps the data unchanged when the caller writes into the array later.
        tensor = torch.from_numpy(as_array(name, value).astype(np.float64, order="C", copy=True))
    return tensor if like is None else tensor.to(device=like.device, dtype=like.dtype)


def as_bool(name: str, value: Any, device: torch.device) -> Tensor:
    array = value if isinstance(value, Tensor) else as_array(name, value)
    if array.dtype not in (torch.bool, np.bool_):
        raise AttsvmError(f"{name} must be boolean, but got dtype {array.dtype}.")
    return (array if isinstance(array, Tensor) else torch.from_numpy(array.copy())).to(device)


def as_index(name: str, value: Any) -> Tensor:
    """Whole numbers as a long tensor."""
    array = as_array(name, value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.dtype.kind not in "iu":
        raise AttsvmError(f"{name} must be whole numbers, but got dtype {array.dtype}.")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise AttsvmError(f"{name} must be below 2^63, but got {array.max()}.")
    return torch.from_numpy(array.astype(np.int64))


def as_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number in least..most."""
    bound = f"at least {least}" if most is None else f"in {least}..{most}"
    try:
        count = operator.index(value)
    except TypeError as error:
        raise AttsvmError(f"{name} must be a whole number {bound}, but got {describe(value)}.") from error
    if isinstance(value, bool) or count < least or (most is not None and count > most):
        raise AttsvmError(f"{name} must be a whole number {bound}, but got {value}.")
    return count


def as_real(name: str, value: Any, least: float) -> float:
    """A finite number of at least `least`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = None
    if number is None or isinstance(value, str):  # which float() would read
        raise AttsvmError(f"{name} must be a number, at least {least:g}, but got {describe(value)}.")
    if not least <= number < math.inf:
        raise AttsvmError(f"{name} must be finite and at least {least:g}, but got {number:g}.")
    return number


def as_share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if (share := as_real(name, value, 0.0)) > 1:
        raise AttsvmError(f"{name} must be a number between 0 and 1, but got {describe(value)}.")
    return share


def as_trials(trials: Any, B: int, what: str = "trials") -> Tensor:
    """The numbers of those of B trials that a number, slice, list or boolean mask picks, as a long tensor."""
    which: Any = trials.detach().cpu().numpy() if isinstance(trials, Tensor) else trials
    try:
        chosen = np.atleast_1d(np.arange(B)[which])
    except (IndexError, TypeError, ValueError) as error:
        raise AttsvmError(f"{what} must be numbers below B = {B}, but got {describe(trials)}.") from error
    if chosen.ndim != 1:
        raise AttsvmError(f"{what} must be one-dimensional, but got {describe(trials)}.")
    return torch.from_numpy(chosen.copy())


def as_device(name: Any) -> torch.device:
    """A device that works here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # which a device without memory cannot
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise AttsvmError(f"device {str(name)!r} is not available here: use cpu.") from error
    return device


def check_real(name: str, tensor: Any) -> None:
    """Refuse what is not a float32 or float64 tensor, or has an infinite or undefined entry."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
        raise AttsvmError(f"{name} must be a float32 or float64 tensor, but got {describe(tensor)}.")
    # The extremes carry every nan and inf, and need no boolean copy of a large tensor.
    if tensor.numel() and not all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor.detach())):
        raise AttsvmError(f"{name} must be finite, but it contains nan or inf.")


def check_same_kind(name: str, tensor: Tensor, reference_name: str, reference: Tensor) -> None:
    """Refuse a dtype or device other than that of the reference."""
    if (tensor.dtype, tensor.device) != (reference.dtype, reference.device):
        raise AttsvmError(
            f"{name} must have the dtype and device of {reference_name}, {reference.dtype} on "
            f"{reference.device}, but got {tensor.dtype} on {tensor.device}."
        )


def bind_shape(name: str, tensor: Tensor, axes: str, sizes: dict[str, int], entries: str = "") -> None:
    """Match a shape against named axes ("B n T d"): sizes known so far must agree, new ones join `sizes`.

    Every axis but B must have at least one entry.
    """
    symbols = axes.split()
    shape = tuple(tensor.shape)
    fits = len(shape) == len(symbols) and all(
        size == sizes.get(symbol, size) and (size > 0 or symbol == "B") for symbol, size in zip(symbols, shape)
    )
    if not fits:
        raise AttsvmError(f"{name} must have shape {_expected(symbols, sizes)}{entries}, but got shape {shape}.")
    sizes.update(zip(symbols, shape))


def _expected(symbols: list[str], sizes: dict[str, int]) -> str:
    known = [str(sizes.get(symbol, symbol)) for symbol in symbols]
    free = [symbol for symbol in symbols if symbol not in sizes and symbol != "B"]
    text = f"({', '.join(symbols)})"
    if known != symbols:
        text += f" = ({', '.join(known)})"
    return text + (f" with {', '.join(free)} ≥ 1" if free else "")


def check_returned(what: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """What a function of the user's returned, if it is a tensor of that shape."""
    if isinstance(value, Tensor) and value.shape == shape:
        return value
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else describe(value)
    raise AttsvmError(f"{what} must return a tensor of shape {tuple(shape)}, but got {got}.")
