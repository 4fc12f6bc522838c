"""Tokenizers in files: the tokenizer.json of the package tokenizers, whatever reads texts with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attsvm.errors import AttsvmError
from attsvm.files import is_file, one_line

TOGETHER = 1000  # texts of one call of a tokenizer


def tokenizer_file(place: str | Path) -> Path:
    """A tokenizer.json, which may be named by the folder that holds it."""
    path = Path(place)
    return path / "tokenizer.json" if path.is_dir() else path


def open_tokenizer(place: str | Path) -> Any:
    """A tokenizers.Tokenizer of a tokenizer.json, or of the folder that holds one; it neither pads nor cuts."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise AttsvmError("tokenizer.json files need the tokenizers package: pip install 'attsvm[text]'.") from error
    path = tokenizer_file(place)
    if not is_file(path):
        raise AttsvmError(f"the tokenizer must be a tokenizer.json file, but {path} is not a file.")
    try:
        found = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise AttsvmError(f"{path} is not a readable tokenizer.json: {one_line(error)}") from error
    found.no_padding()
    found.no_truncation()
    return found


def encodings(tokenizer: Any, texts: Sequence[str], *, special_tokens: bool = True) -> Iterator[Any]:
    """The tokens of every text, by an open tokenizer."""
    for start in range(0, len(texts), TOGETHER):
        try:
            found = tokenizer.encode_batch(list(texts[start : start + TOGETHER]), add_special_tokens=special_tokens)
        except Exception as error:  # the package raises Exception itself
            raise AttsvmError(f"the tokenizer cannot read these texts: {one_line(error)}") from error
        yield from found


def vocabulary_digest(tokenizer: Any) -> str:
    """Names the vocabulary of an open tokenizer: the numbers of its tokens."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()[:16]
