"""Text: tables to texts, texts to tokens."""

from attsvm.text._corpus import length_between
from attsvm.text._tables import Texts, read_texts
from attsvm.text._tokenizers import WordPieceTokenizer, WordTokenizer, clean, paper_tokenizer, stop_words
from attsvm.text._tokens import Tokens

__all__ = [
    "Texts",
    "Tokens",
    "WordPieceTokenizer",
    "WordTokenizer",
    "clean",
    "length_between",
    "paper_tokenizer",
    "read_texts",
    "stop_words",
]
