"""A fitted classifier as a folder: numbers in model.safetensors, words and settings in model.json."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attsvm._version import __version__
from attsvm.errors import AttsvmError
from attsvm.files import atomic_path, make_folder, read_arrays, write_arrays
from attsvm.text._attention import Attention, Step
from attsvm.text._features import Features
from attsvm.text._tokenizers import WordPieceTokenizer, WordTokenizer

if TYPE_CHECKING:
    from attsvm.text._classifier import AttentionTextClassifier

_FORMAT = "attsvm text classifier 1"
_SETTINGS = (
    *("ngrams", "min_texts", "penalty", "importance", "rarity", "characters", "p"),
    *("validation_fraction", "max_iter", "tol", "verbose"),
)
_PIECES = "tokenizer.json"


def save_model(model: AttentionTextClassifier, folder: Path) -> None:
    """See `AttentionTextClassifier.save`. The JSON is put in place last, and knows the files it goes with.

    All is written before the first file takes its place: what cannot be written leaves the model that was there.
    """
    make_folder(folder)
    attention, features = model.attention_, model.features_
    content = {
        "format": _FORMAT,
        "attsvm": __version__,
        "classes": {"values": model.classes_.tolist(), "dtype": model.classes_.dtype.str},
        "settings": {name: getattr(model, name) for name in _SETTINGS} | {"class_weight": _pairs(model.class_weight)},
        "tokenizer": _describe_tokenizer(model.tokenizer_),
        "text_column": model.text_column_,
        "cls": attention.cls,
        "penalty": model.penalty_,
        "path": [vars(step) for step in model.path_],
        "iterations": model.n_iter_,
        "chosen": model.chosen_,
        "levels": features.levels,
        "words": features.words,
        "parts": features.parts,
    }
    arrays = {
        "importance": attention.a,
        "direction": attention.b,
        "bias": attention.bias,
        "texts": model.texts_,
        "prefix": features.prefix,
        "last": features.last,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with ExitStack() as written:
        description = written.enter_context(atomic_path(folder / "model.json"))
        content["digest"] = _digest(arrays, model.tokenizer_)
        text = json.dumps(content, ensure_ascii=False, indent=1, default=_plain)
        description.write_text(text, encoding="utf-8")
        if isinstance(model.tokenizer_, WordPieceTokenizer):
            pieces = Path(model.tokenizer_.file).read_bytes()
            written.enter_context(atomic_path(folder / _PIECES)).write_bytes(pieces)
        write_arrays(folder / "model.safetensors", tensors, {"format": _FORMAT})


def load_model(cls: type[AttentionTextClassifier], folder: Path) -> AttentionTextClassifier:
    """See `AttentionTextClassifier.load`."""
    path = folder / "model.json"
    if not path.is_file():
        raise AttsvmError(f"{folder} must be a folder that attsvm text fit wrote, but it has no model.json.")
    arrays, _ = read_arrays(folder / "model.safetensors")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise AttsvmError(f"{path} has format {content['format']!r}, but this version reads {_FORMAT!r}.")
        settings = content["settings"]
        settings["class_weight"] = _unpaired(settings["class_weight"])
        tokenizer = _read_tokenizer(content["tokenizer"], folder)
        model = cls(**settings, tokenizer=tokenizer if tokenizer != WordTokenizer() else None)
        model.attention_ = Attention(arrays["importance"], arrays["direction"], arrays["bias"], content["cls"])
        levels = tuple(content["levels"])
        parts = content.get("parts", [])  # which older models have not
        model.features_ = Features(content["words"], arrays["prefix"], arrays["last"], levels, parts)
        model.chosen_ = content.get("chosen", {})
        model.texts_, model.tokenizer_ = arrays["texts"], tokenizer
        model.classes_ = np.array(content["classes"]["values"], dtype=content["classes"]["dtype"])
        model.penalty_, model.n_iter_ = content["penalty"], content["iterations"]
        model.path_ = [Step(**step) for step in content["path"]]
        model.text_column_ = content.get("text_column")
        digest = content.get("digest")  # which older models have not
    except AttsvmError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise AttsvmError(f"{path} is not a readable model: {type(error).__name__} {error}.") from error
    outputs = len(model.classes_) if len(model.classes_) > 2 else 1
    shape = len(model.features_), outputs
    if digest not in (None, _digest(arrays, tokenizer)) or arrays["direction"].shape != shape:
        raise AttsvmError(f"{folder}: its files do not belong together; fit the model again.")
    return model


def _describe_tokenizer(tokenizer: WordTokenizer) -> dict[str, Any]:
    if type(tokenizer) not in (WordTokenizer, WordPieceTokenizer):
        raise AttsvmError(f"a model with a {type(tokenizer).__name__} cannot be saved; pickle it instead.")
    return {"kind": type(tokenizer).__name__, "stop": sorted(tokenizer.stop), "stem": tokenizer.stem}


def _read_tokenizer(described: dict[str, Any], folder: Path) -> WordTokenizer:
    stop, stem = frozenset(described["stop"]), described["stem"]
    if described["kind"] == WordTokenizer.__name__:
        return WordTokenizer(stop, stem)
    return WordPieceTokenizer(stop, stem, file=folder / _PIECES)


def _digest(arrays: dict[str, np.ndarray], tokenizer: WordTokenizer) -> str:
    """Of what stands in the other files."""
    digest = hashlib.sha256(tokenizer.fingerprint().encode())
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _pairs(weight: Any) -> Any:
    """A dictionary as pairs, because JSON makes every key a string."""
    return [[_plain(label), value] for label, value in weight.items()] if isinstance(weight, dict) else weight


def _unpaired(weight: Any) -> Any:
    return dict(weight) if isinstance(weight, list) else weight


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
