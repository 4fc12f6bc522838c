"""Text: tables to texts, texts to tokens, and a classifier that shows its words."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attsvm.errors import AttsvmError
from attsvm.tables import TextTable, read_texts
from attsvm.text._corpus import length_between
from attsvm.text._tokenizers import WordPieceTokenizer, WordTokenizer, clean, paper_tokenizer, stop_words, visible
from attsvm.text._tokens import Tokens

if TYPE_CHECKING:
    from attsvm.text._classifier import AttentionTextClassifier
    from attsvm.text._explain import Explanation, Explanations, Words

__all__ = [
    "AttentionTextClassifier",
    "Explanation",
    "Explanations",
    "TextTable",
    "Tokens",
    "WordPieceTokenizer",
    "WordTokenizer",
    "Words",
    "clean",
    "length_between",
    "paper_tokenizer",
    "read_texts",
    "stop_words",
    "visible",
]

_LAZY = {
    "AttentionTextClassifier": "_classifier",
    "Explanation": "_explain",
    "Explanations": "_explain",
    "Words": "_explain",
}


def __getattr__(name: str) -> Any:
    # The classifier alone needs scikit-learn; tokenizers and tables do without it.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"attsvm.text.{_LAZY[name]}"), name)
    except ImportError as error:
        raise AttsvmError(f"{name} needs {error.name}: pip install 'attsvm[text]'.") from error
