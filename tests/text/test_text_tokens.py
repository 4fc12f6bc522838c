"""Texts to tokens: what a tokenizer promises, and the arithmetic of ragged arrays."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm import AttsvmError
from attsvm.text import (
    Tokens,
    WordPieceTokenizer,
    WordTokenizer,
    _tokenizers,
    clean,
    length_between,
    paper_tokenizer,
    stop_words,
)
from attsvm.text._tokenizers import clean_and_count

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(["", "a b a", "the <br />end"]))


def all_words(tokens: Tokens) -> list[list[str]]:
    return [tokens.words(i) for i in range(len(tokens))]


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with a few pieces, made like BERT's."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "run": 3, "##s": 4, "'": 5, "it": 6, "s": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The plot was thin, but the acting superb.", "the plot was thin but the acting superb"),
        ("Don't! It’s 7/10, or 3.5.", "don't it's 7/10 or 3.5"),
        ("one<br /><br />two<3", "one two 3"),
        ("R&amp;B caf&eacute;", "r b café"),
        ("_really_ well-made", "really well made"),
        ("ﬁlm Straße ÉTÉ", "film straße été"),
        ("हिन्दी फ़िल्म अच्छी।", "हिन्दी फ़िल्म अच्छी"),
        ("\x00\x85 ... ?!", ""),
        ("I <really hated> it, a <3 <em class='x'>good</em> <EM>film</EM>", "i really hated it a 3 good film"),
        ("a<!-- one -- > two -->b <!-- three", "a b three"),
        ("the end.The sequel/prequel: 8/10...'quoted' a.b.", "the end the sequel prequel 8/10 quoted a b"),
    ],
)
def test_words(text: str, words: str) -> None:
    import unicodedata

    assert all_words(WordTokenizer()([text])) == [unicodedata.normalize("NFKC", words).split()]


def test_stop_words_and_stems() -> None:
    tokenizer = paper_tokenizer()
    assert all_words(tokenizer(["The running dogs aren't running!", "The"])) == [["run", "dog", "run"], []]
    assert {"the", "and", "not", "don't", "i'm"} <= stop_words()
    assert not stop_words() & {"good", "bad", "great", "movie"}
    assert all(word == word.lower() for word in stop_words())


def test_word_pieces(word_pieces: Path) -> None:
    tokenizer = WordPieceTokenizer(file=word_pieces)
    assert all_words(tokenizer(["Playing runs; it's", ""])) == [["play", "##ing", "run", "##s", "it", "s"], []]
    stemmed = WordPieceTokenizer(frozenset({"it's"}), "english", file=word_pieces)
    assert all_words(stemmed(["Playing runs; it's"])) == [["play", "run"]]


def test_word_pieces_word_by_word_are_those_of_the_text(word_pieces: Path) -> None:
    from tokenizers import Tokenizer

    text = "play playing runs run it s playing"
    whole = Tokenizer.from_file(str(word_pieces)).encode(text, add_special_tokens=False).tokens
    assert WordPieceTokenizer(file=word_pieces)([text]).words(0) == whole


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_is_split_like_all_text(text: str) -> None:
    tokenizer = WordTokenizer()
    assert tokenizer([text]).words(0) == tokenizer([f"{text} é"]).words(0)[:-1]


@given(TEXTS)
def test_tokens_are_the_pieces_of_the_spans(texts: list[str]) -> None:
    tokenizer = WordTokenizer()
    tokens = tokenizer(texts)
    assert len(tokens) == len(texts)
    assert tokens.ids.dtype == np.int32
    assert len(set(tokens.vocabulary)) == len(tokens.vocabulary)
    for i, text in enumerate(texts):
        spans = tokenizer.spans(clean(text))
        assert tokens.words(i) == [piece for _, _, pieces in spans for piece in pieces]
        assert all(start < end for start, end, _ in spans)


@given(TEXTS, st.integers(1, 4))
def test_counts_and_purge(texts: list[str], least: int) -> None:
    tokens = WordTokenizer()(texts)
    words = all_words(tokens)
    count = Counter(word for text in words for word in text)
    assert dict(zip(tokens.vocabulary, tokens.counts())) == count
    document_count = Counter(word for text in words for word in set(text))
    assert dict(zip(tokens.vocabulary, tokens.document_counts())) == document_count
    purged = tokens.purge(least)
    assert all_words(purged) == [[word for word in text if count[word] >= least] for text in words]
    assert purged.vocabulary == [word for word in tokens.vocabulary if count[word] >= least]
    assert all_words(tokens.onto(purged.vocabulary)) == all_words(purged)


@given(TEXTS, st.data())
def test_some_of_the_texts(texts: list[str], data: st.DataObject) -> None:
    tokens = WordTokenizer()(texts)
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1)) if texts else st.just([]))
    words = all_words(tokens)
    assert all_words(tokens[np.array(chosen, dtype=int)]) == [words[i] for i in chosen]
    assert all_words(tokens[1:]) == words[1:]
    assert np.array_equal(tokens.text_of, np.repeat(np.arange(len(texts)), tokens.lengths))


def test_processes_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.text._corpus._CHUNK", 40)
    texts = ["", "one two", "two three " * 10, "", "three Four one", "x" * 100, ""]
    alone, shared = WordTokenizer()(texts), WordTokenizer()(texts, workers=1)
    assert all_words(alone) == all_words(shared)
    assert alone.vocabulary == shared.vocabulary
    assert np.array_equal(alone.ids, shared.ids)


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one two", "", "two \ud800 three"]
    tokens = WordTokenizer()(texts, cache=tmp_path)
    monkeypatch.setattr("attsvm.text._corpus.split_texts", lambda texts: pytest.fail("not cached"))
    again = WordTokenizer()(texts, cache=tmp_path)
    assert all_words(again) == all_words(tokens)
    assert again.vocabulary == tokens.vocabulary
    monkeypatch.undo()
    assert all_words(WordTokenizer(frozenset({"two"}))(texts, cache=tmp_path)) == [["one"], [], ["three"]]
    assert all_words(WordTokenizer()([*texts, ""], cache=tmp_path)) == [*all_words(tokens), []]
    assert len(list(tmp_path.iterdir())) == 3
    assert all_words(WordTokenizer()([""], cache=tmp_path)) == all_words(WordTokenizer()([""], cache=tmp_path)) == [[]]


def test_no_texts() -> None:
    tokens = WordTokenizer()([])
    assert len(tokens) == 0
    assert tokens.vocabulary == []
    assert list(tokens.document_counts()) == []


def test_length_between() -> None:
    assert list(length_between(["a" * 3, "a" * 4, "a" * 6, "a" * 7], 4, 6)) == [False, True, True, False]


MARKUP = st.lists(st.sampled_from([*"<>!-/ab \n", "--", "<b", "<br />", "<!--", "-->", "<i>", "</p x>", "<zz>"])).map(
    "".join
)


@given(MARKUP)
def test_tags_and_comments_go(text: str) -> None:
    found = re.compile(r"</?(?:a|b|br|i|p)(?:[\s/][^<>]*)?>|<!--.*?-->", re.DOTALL)
    assert clean_and_count(text) == found.subn(" ", text)


class Counting:
    """A pattern that counts what it reads: the text once, and for each comment what lies before its end."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.read = pattern, 0

    def sub(self, blank: Callable[[re.Match[str]], str], text: str) -> str:
        self.read += len(text)
        at = 0
        while (start := text.find("<!--", at)) >= 0:
            end = text.find("-->", start + 4)
            at = start + 4 if end < 0 else end + 3
            self.read += (len(text) if end < 0 else at) - start
        return self.pattern.sub(blank, text)


@pytest.mark.parametrize("piece", ["<!--", "<!-->", "-->", "<!-- x -->", "<!-- <b> ", "<b", "&#"])
@pytest.mark.parametrize("other", ["", "-->", ">", "<!--"])
def test_the_work_is_in_proportion_to_the_text(piece: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(_tokenizers._TAG_OR_COMMENT)
    monkeypatch.setattr(_tokenizers, "_TAG_OR_COMMENT", counting)
    for text in (piece * 2000 + other, other + piece * 2000, piece * 1000 + other * 1000, other * 1000 + piece * 1000):
        counting.read = 0
        clean(text)
        assert counting.read <= 3 * len(text)


def test_a_long_text_is_no_trouble() -> None:
    assert WordTokenizer()(["good " * 200_000 + "<" * 100_000 + "&" * 100_000]).lengths[0] == 200_000
    # Each takes minutes where every "<!--" looks for its end through all of the text.
    assert clean("<!--" * 500_000) == "<!--" * 500_000
    assert clean("-->" + "<!--" * 500_000) == "-->" + "<!--" * 500_000
    assert clean("&#" + "9" * 100_000 + ";") == "\ufffd"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ("one text", "bare string"),
        (b"bytes", "bare string"),
        (["a", None], "text 1 is nothing"),
        (["a", float("nan")], "text 1 is nothing"),
        (["a", b"b"], "text 1 is bytes"),
        ([["a"]], "text 0 is list"),
        (3, "list of texts, but got int"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts: object, sentence: str) -> None:
    with pytest.raises(AttsvmError, match=sentence):
        WordTokenizer()(texts)  # type: ignore[arg-type]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttsvmError, match="stem must be one of"):
        WordTokenizer(stem="klingon")
    with pytest.raises(AttsvmError, match="set of words"):
        WordTokenizer("english")  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match="is not a file"):
        WordPieceTokenizer(file=tmp_path / "tokenizer.json")
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"model": 3}))
    with pytest.raises(AttsvmError, match=r"not a readable tokenizer\.json"):
        WordPieceTokenizer(file=broken)
