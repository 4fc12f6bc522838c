"""A fitted classifier as a folder: numbers in model.safetensors, words and settings in model.json."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._version import __version__
from attsvm.errors import AttsvmError
from attsvm.files import atomic_path, clear_leftovers, is_file, one_line, read_arrays, read_json, write_arrays
from attsvm.identity import run_folder
from attsvm.schema import Array, Schema, check_json
from attsvm.text._attention import Attention, Step
from attsvm.text._features import Features
from attsvm.text._tokenizers import WordPieceTokenizer, WordTokenizer

if TYPE_CHECKING:
    from attsvm.text._classifier import AttentionTextClassifier

_FORMAT = "attsvm-text-model/1"
_FORMER = "attsvm text classifier 1"
_SCHEMA = Schema(
    _FORMAT,
    "the numbers of a text classifier",
    {
        "importance": Array("real", "columns"),
        "direction": Array("real", "columns outputs"),
        "bias": Array("real", "outputs"),
        "texts": Array("real whole", "columns", least=0),
        "prefix": Array("whole", "grams", least=0),
        "last": Array("whole", "grams", least=0),
    },
    former=(_FORMER,),
)
_SHAPE = {
    "format": frozenset({_FORMAT, _FORMER}),
    "attsvm?": str,
    "classes": {"values": list, "dtype": str},
    "settings": dict,
    "tokenizer": {"kind": frozenset({"WordTokenizer", "WordPieceTokenizer"}), "stop": [str], "stem": (str, None)},
    "text_column?": (str, None),
    "cls": float,
    "penalty": float,
    "path": [{"penalty": float, "loss": float, "accuracy": float}],
    "iterations": int,
    "chosen?": dict,
    "parts?": object,
    "levels": [int],
    "words": [str],
    "digest?": str,
    "...": object,
}
_NUMBERS, _PIECES = "model.safetensors", "tokenizer.json"
_SETTINGS = (
    *("ngrams", "min_texts", "penalty", "importance", "rarity", "characters", "p"),
    *("validation_fraction", "max_iter", "tol", "verbose"),
)


def save_model(model: AttentionTextClassifier, folder: Path) -> None:
    """See `AttentionTextClassifier.save`.

    The JSON says by a digest which numbers and word pieces it goes with. They are written first, under names with that
    digest; from the moment that the JSON takes its place they count, and then they get their usual names. A kill at any
    moment leaves the old model or the new one.
    """
    attention, features = model.attention_, model.features_
    content = {
        "format": _FORMAT,
        "attsvm": __version__,
        "classes": {"values": model.classes_.tolist(), "dtype": model.classes_.dtype.str},
        "settings": {name: getattr(model, name) for name in _SETTINGS}
        | {"class_weight": _pairs(model.class_weight)}
        | ({"random_state": int(model.random_state)} if isinstance(model.random_state, int | np.integer) else {}),
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
    content = json.loads(json.dumps(content, default=_plain))
    digest = _digest(arrays, model.tokenizer_, content)
    text = json.dumps(content | {"digest": digest}, ensure_ascii=False, indent=1)
    tokenizer = model.tokenizer_
    pieces = Path(tokenizer.file).read_bytes() if isinstance(tokenizer, WordPieceTokenizer) else None
    with run_folder(folder, "text fit"):
        _clear(folder, digest)
        try:
            write_arrays(_fresh(folder, _NUMBERS, digest), arrays, {"format": _FORMAT})
            if pieces is not None:
                with atomic_path(_fresh(folder, _PIECES, digest)) as temporary:
                    temporary.write_bytes(pieces)
            with atomic_path(folder / "model.json") as temporary:
                temporary.write_text(text, encoding="utf-8")
        except BaseException:
            _clear(folder, "")
            raise
        for name in (_NUMBERS, _PIECES):
            if (fresh := _fresh(folder, name, digest)).is_file():
                os.replace(fresh, folder / name)


def load_model(cls: type[AttentionTextClassifier], folder: Path) -> AttentionTextClassifier:
    """See `AttentionTextClassifier.load`."""
    path = folder / "model.json"
    if not is_file(path):
        raise AttsvmError(f"{folder} must be a folder that attsvm text fit wrote, but it has no model.json.")
    content = read_json(path, what="a text model")
    try:
        check_json("it", content, _SHAPE)
        digest = content.get("digest")  # which older models have not
        arrays, _ = read_arrays(_place(folder, _NUMBERS, digest), _SCHEMA)
        settings = dict(content["settings"])
        settings["class_weight"] = _unpaired(settings["class_weight"])
        tokenizer = _read_tokenizer(content["tokenizer"], _place(folder, _PIECES, digest))
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
        if model.classes_.tolist() != content["classes"]["values"]:
            raise ValueError("the classes are not of the dtype that it names")
        _check_together(model)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, AttsvmError) and str(folder) in str(error):
            raise
        raise AttsvmError(f"{path} is not a readable model: {one_line(error)}") from error
    former = content["format"] == _FORMER  # which has a digest of less, or none
    if digest not in ((None, _digest(arrays, tokenizer)) if former else (_digest(arrays, tokenizer, content),)):
        raise AttsvmError(f"{folder}: its files do not belong together; fit the model again.")
    return model


def _check_together(model: AttentionTextClassifier) -> None:
    """Refuse numbers and words that are not of one model."""
    features, classes = model.features_, model.classes_
    if classes.ndim != 1 or len(classes) < 2 or len(set(classes.tolist())) < len(classes):
        raise ValueError("classes must be a list of two or more different labels")
    words, grams, levels = len(features.words), len(features.last), features.levels
    ordered = len(features.prefix) == grams and (features.prefix < words + np.arange(grams)).all()
    if not ordered or (features.last >= words).any() or (levels and levels[-1] != grams):
        raise ValueError("its files do not belong together: the n-grams are not made of its words")
    outputs = len(classes) if len(classes) > 2 else 1
    if model.attention_.b.shape != (len(features), outputs):
        raise ValueError("its files do not belong together; fit the model again")


def _fresh(folder: Path, name: str, digest: str) -> Path:
    """Where a file lies until the model is whole."""
    return (folder / name).with_stem(f"{Path(name).stem}-{digest[:12]}")


def _place(folder: Path, name: str, digest: str | None) -> Path:
    fresh = folder / name if digest is None else _fresh(folder, name, digest)
    return fresh if is_file(fresh) else folder / name


def _clear(folder: Path, digest: str) -> None:
    """Settle what a kill left: files that the JSON goes with get their names, others go."""
    try:
        kept = read_json(folder / "model.json", {"digest": str, "...": object})["digest"]
    except AttsvmError:
        kept = digest
    for name in (_NUMBERS, _PIECES):
        clear_leftovers(_fresh(folder, name, digest))
        for path in folder.glob(_fresh(Path(), name, "?" * 12).name):
            if path == _fresh(folder, name, kept):
                os.replace(path, folder / name)
            else:
                path.unlink()
    clear_leftovers(folder / "model.json")


def _describe_tokenizer(tokenizer: WordTokenizer) -> dict[str, Any]:
    if type(tokenizer) not in (WordTokenizer, WordPieceTokenizer):
        raise AttsvmError(f"a model with a {type(tokenizer).__name__} cannot be saved; pickle it instead.")
    return {"kind": type(tokenizer).__name__, "stop": sorted(tokenizer.stop), "stem": tokenizer.stem}


def _read_tokenizer(described: dict[str, Any], pieces: Path) -> WordTokenizer:
    stop, stem = frozenset(described["stop"]), described["stem"]
    if described["kind"] == WordTokenizer.__name__:
        return WordTokenizer(stop, stem)
    return WordPieceTokenizer(stop, stem, file=pieces)


def _digest(arrays: dict[str, np.ndarray], tokenizer: WordTokenizer, content: dict[str, Any] | None = None) -> str:
    """Of what stands in the other files, and of what the JSON says."""
    digest = hashlib.sha256(tokenizer.fingerprint().encode())
    if content is not None:
        said = {name: value for name, value in content.items() if name != "digest"}
        digest.update(json.dumps(said, sort_keys=True).encode())
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
