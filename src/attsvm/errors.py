"""The errors that attsvm raises on purpose."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


class AttsvmError(ValueError):
    """Wrong input: one sentence that names the field, what was expected and what was given."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the known one that is closest, if one is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "."


def describe(value: Any) -> str:
    """What was given, for the end of a sentence."""
    torch = sys.modules.get("torch")  # nothing is a tensor where it is not there
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return f"{type(value).__name__} of dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
