"""The errors that attsvm raises on purpose."""

from collections.abc import Iterable


class AttsvmError(ValueError):
    """Wrong input: one sentence that names the field, what was expected and what was given."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the known one that is closest, if one is close."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "."
