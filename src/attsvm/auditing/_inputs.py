"""Texts as batches for a model, and the words of their tokens."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.checks import as_count
from attsvm.errors import AttsvmError, describe
from attsvm.files import one_line
from attsvm.models import Places, TextTransformer
from attsvm.tokenizers import encodings

LONGEST = 512
"""Tokens of a text that are read unless more are asked for."""
RARE = 0.1
"""The rarest tokens that make up this share of all tokens are called rare."""


@dataclass(frozen=True, eq=False)
class Document:
    """A text as its tokens, in few bytes: there may be many."""

    ids: np.ndarray
    """(T,) numbers of the tokens"""
    special: np.ndarray
    """(T,) which of them stand for nothing in the text"""
    names: Callable[[list[int]], list[str]]
    """words of token numbers"""
    text: str = ""
    spans: np.ndarray | None = None
    """(T, 2) first character of every token and the one behind its last, where they are known"""

    @property
    def words(self) -> list[str]:
        """The tokens as the text has them, with the space before them: the words of a text are the text.

        Where their places in the text are unknown, a space precedes each.
        """
        names = self.names(self.ids.tolist())
        if self.spans is None:
            return [f" {name}" for name in names]
        found, end = [], 0
        for name, special, (start, stop) in zip(names, self.special, self.spans.tolist()):
            found.append(name if special or start == stop else self.text[min(end, start) : stop])
            end = stop
        return found


@dataclass(frozen=True, eq=False)
class Batch:
    """What the model is called with. `documents` are their numbers; those of a given batch of tensors have none."""

    documents: list[int]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lengths: list[int] | None
    """tokens of every sequence, behind which there is padding"""
    of_texts: bool = True
    """made here of texts or token numbers, not given as tensors"""

    def run(self, model: nn.Module) -> None:
        try:
            model(*self.args, **self.kwargs)
        except IndexError as error:
            raise AttsvmError(
                f"the model cannot read these tokens ({error}): take the tokenizer that it was trained with."
            ) from error
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, AttsvmError | torch.OutOfMemoryError) or not self.of_texts:
                raise
            raise AttsvmError(
                f"the model cannot be called with tokens alone: give batches of what it takes to "
                f"attsvm.audit(model, None, batches). It says: {one_line(error)}"
            ) from error

    def own(self, logits: Tensor, row: int) -> Tensor:
        """The logits (H, K, T) of a sequence without padding."""
        K, T = self.sizes(row, *logits.shape[1:])
        return logits[:, :K, :T]

    def sizes(self, row: int, K: int, T: int) -> tuple[int, int]:
        """How many of the K queries and T keys of a sequence are not padding."""
        if self.lengths is None:
            return K, T
        padded, length = max(self.lengths), self.lengths[row]
        return length if padded == K else K, length if padded == T else T


class Inputs:
    """Documents, or batches of tensors as they are, for one model."""

    def __init__(self, model: nn.Module, tokenizer: Any, texts: Any, length: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise AttsvmError(f"model must be a torch module, but got {describe(model)}.")
        if isinstance(texts, str | bytes | Mapping | Tensor) or not isinstance(texts, Sequence) or not len(texts):
            raise AttsvmError("texts must be a list of at least one text, list of token numbers, or batch of tensors.")
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile has compiled
        for name, weight in self.model.named_parameters():
            if weight.is_floating_point() and not bool(weight.isfinite().all()):
                raise AttsvmError(f"the weights of the model must be finite, but {name} has nan or inf.")
        self.given = not isinstance(texts[0], str) and not _is_numbers(texts[0])
        self.batches_given = list(texts) if self.given else []
        self.documents: list[Document] = []
        if not self.given:
            most = _longest(model, tokenizer)
            self.length = min(LONGEST, most) if length is None else as_count("length", length, 2, most)
            self.documents = [self._document(tokenizer, text, number) for number, text in enumerate(texts)]

    def _document(self, tokenizer: Any, text: Any, number: int) -> Document:
        spans = None
        if not isinstance(text, str):
            ids, special, names, text = [int(number) for number in text][: self.length], None, _as_numbers, ""
        elif tokenizer is None:
            raise AttsvmError("texts need the tokenizer of the model; without one, give token numbers.")
        elif hasattr(tokenizer, "convert_ids_to_tokens"):  # of transformers
            with_places = bool(getattr(tokenizer, "is_fast", False))
            code = tokenizer(
                text,
                truncation=True,
                max_length=self.length,
                return_special_tokens_mask=True,
                return_offsets_mapping=with_places,
            )
            ids, special, names = code["input_ids"], code["special_tokens_mask"], tokenizer.convert_ids_to_tokens
            spans = code["offset_mapping"] if with_places else None
        else:  # of the package tokenizers
            (code,) = encodings(tokenizer, [text])
            ids, special, spans = (x[: self.length] for x in (code.ids, code.special_tokens_mask, code.offsets))
            names = partial(_by_id, tokenizer)
        if not len(ids):
            raise AttsvmError(f"texts must have at least one token each, but text {number} has none.")
        return Document(
            np.array(ids, np.int32),
            np.zeros(len(ids), bool) if special is None else np.array(special, bool),
            names,
            text,
            None if spans is None else np.array(spans, np.int32).reshape(-1, 2),
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Texts of similar length together, with padding behind them."""
        if self.given:
            for number, item in enumerate(self.batches_given):
                yield _given(number, item, self.device)
            return
        if isinstance(self.model, TextTransformer):  # whose tokens lie one behind another: padding would part them
            size = 1
        order = sorted(range(len(self.documents)), key=lambda i: len(self.documents[i].ids))
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])

    def batch(self, numbers: list[int], cut: int | None = None) -> Batch:
        ids = [self.documents[i].ids[:cut] for i in numbers]
        lengths = [len(row) for row in ids]
        tokens = torch.zeros(len(ids), max(lengths), dtype=torch.long)
        for row, own in zip(tokens, ids):
            row[: len(own)] = torch.from_numpy(own.astype(np.int64))
        tokens = tokens.to(self.device)
        seen = torch.arange(tokens.shape[1], device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
        if isinstance(self.model, TextTransformer):  # as it is called, but without a kernel that cannot be seen
            places = Places.of(torch.tensor(lengths, device=self.device), max(lengths), sum(lengths))
            packed = tokens[places.sequence, places.position]
            return Batch(numbers, (packed, places._replace(flash=False)), {}, lengths)
        known = inspect.signature(self.model.forward).parameters
        if "input_ids" not in known:
            return Batch(numbers, (tokens,), {}, lengths)
        asked: dict[str, Any] = {"input_ids": tokens, "attention_mask": seen.long()}
        asked |= {"decoder_input_ids": tokens, "decoder_attention_mask": seen.long(), "use_cache": False}
        return Batch(numbers, (), {name: value for name, value in asked.items() if name in known}, lengths)

    @property
    def device(self) -> torch.device:
        return next((weight.device for weight in self.model.parameters()), torch.device("cpu"))

    @cached_property
    def kinds(self) -> dict[str, np.ndarray]:
        """Which token numbers are punctuation, and which are rare in these texts; for bare numbers, only rare ones."""
        counts: Counter[int] = Counter()
        words: dict[int, str] = {}
        for document in self.documents:
            own = document.ids[~document.special].tolist()
            if not words.keys() >= set(own):
                words |= {number: word.strip() for number, word in zip(document.ids.tolist(), document.words)}
            counts.update(own)
        rare: set[int] = set()
        room = RARE * sum(counts.values())
        for number, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
            room -= count
            if room < 0:
                break
            rare.add(number)
        marks = {number for number in counts if words[number] and not any(char.isalnum() for char in words[number])}
        last = max(int(document.ids.max()) for document in self.documents)
        numbers = np.arange(last + 1)
        found = {"punctuation": marks, "rare": rare} if self.named else {"rare": rare}
        return {name: np.isin(numbers, sorted(own)) for name, own in found.items()}

    @property
    def named(self) -> bool:
        """Tokens have words: a tokenizer made them."""
        return self.documents[0].names is not _as_numbers


def _by_id(tokenizer: Any, ids: list[int]) -> list[str]:
    return [tokenizer.id_to_token(number) for number in ids]


def _as_numbers(ids: list[int]) -> list[str]:
    return [str(number) for number in ids]


def _is_numbers(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.ndim == 1 and not item.is_floating_point()
    if isinstance(item, np.ndarray):
        return item.ndim == 1 and item.dtype.kind in "iu"
    return isinstance(item, Sequence) and not isinstance(item, str) and all(isinstance(x, Integral) for x in item)


def _given(number: int, item: Any, device: torch.device) -> Batch:
    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return (value.clone() if value.is_inference() else value).to(device)  # a copy can be differentiated

    if isinstance(item, Mapping):
        kwargs = {name: moved(value) for name, value in item.items()}
        seen = kwargs.get("attention_mask")
        lengths = None
        if isinstance(seen, Tensor) and seen.ndim == 2:
            lengths = seen.sum(1).tolist()
            if bool((seen.diff(dim=1) > 0).any()):
                raise AttsvmError("attention_mask must have its padding behind the tokens: pad on the right.")
        return Batch([number], (), kwargs, lengths, of_texts=False)
    args = tuple(item) if isinstance(item, tuple | list) else (item,)
    if not any(isinstance(x, Tensor) for x in args):
        raise AttsvmError(f"texts must be texts, token numbers or batches of tensors, but got {describe(item)}.")
    return Batch([number], tuple(moved(x) for x in args), {}, None, of_texts=False)


def _longest(model: nn.Module, tokenizer: Any) -> int:
    """How many tokens the model and its tokenizer take."""
    config, found = getattr(model, "config", None), []
    for name in ("max_position_embeddings", "n_positions"):
        found += [size for part in (config, getattr(config, "text_config", None)) if (size := getattr(part, name, 0))]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.split(".")[-1] in ("position_embeddings", "positions"):
            # RoBERTa counts its positions from behind that of the padding.
            shift = 0 if module.padding_idx is None else module.padding_idx + 1
            found.append(module.num_embeddings - shift)
    said = getattr(tokenizer, "model_max_length", None)
    return min([*found, said or 10**9, 10**9])
