"""A tokenizer whose tokens are words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_tokenizer(folder: Path, words: Sequence[str]) -> Path:
    """tokenizer.json in the folder; the first four words are those of [PAD], [CLS], [SEP] and [UNK]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
