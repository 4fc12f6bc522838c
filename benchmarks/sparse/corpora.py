"""Texts as one stream of tokens for each split, labelled texts and images, in compressed .npz files.

    python benchmarks/sparse/corpora.py DATA OUT

writes, of what is there:

| reads | writes |
|---|---|
| DATA/wikitext-2/*.txt.gz | OUT/wikitext-characters.npz, OUT/wikitext-2.npz |
| DATA/imdb.parquet | OUT/imdb-characters.npz |
| DATA/imdb.parquet, DATA/bert-base-uncased/tokenizer.json | OUT/imdb.npz, OUT/imdb-labels.npz |
| DATA/cifar10.parquet | OUT/cifar10-16.npz |

Splits: "train"; "validation", by which settings are chosen; "test", which is reported. IMDB's validation and test are
1,500 texts each of its test split, drawn once, none of which is in its train split. IMDB is cut into BERT's word
pieces; WikiText-2 into 4,096 byte pairs learnt from its train split, so that the head is small. For the classifier
IMDB's texts are their first 256 word pieces; 2,500 train texts are for validation, and 10,000 of the test split are
tested. CIFAR-10's images are averaged to 16 × 16 pixels; 5,000 of its train images are for validation.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DRAWN = 1500
LENGTH, HELD_OUT, TESTED = 256, 2500, 10000
SEPARATOR, UNKNOWN = "[SEP]", "[UNK]"
BYTE_PAIRS = 4096
CHARACTERS = 2_000_000  # of a split


def imdb_texts(path: Path) -> dict[str, list[str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["text", "split"]).to_pydict()
    texts: dict[str, list[str]] = {"train": [], "test": []}
    for text, split in zip(table["text"], table["split"]):
        texts[split].append(text.replace("<br />", " "))
    seen = set(texts["train"])
    fresh = sorted({text for text in texts["test"] if text not in seen})
    random.Random(0).shuffle(fresh)
    random.Random(0).shuffle(texts["train"])  # the file is sorted by class
    return {"train": texts["train"], "validation": fresh[:DRAWN], "test": fresh[DRAWN : 2 * DRAWN]}


def imdb_labels(path: Path, pieces: Tokenizer) -> dict[str, np.ndarray]:
    """The first word pieces of every text, behind [CLS], and labels of every split."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["text", "label", "split"]).to_pydict()
    pieces.enable_truncation(LENGTH)
    pieces.enable_padding(length=LENGTH)
    codes = pieces.encode_batch([text.replace("<br />", " ") for text in table["text"]])
    tokens = np.array([code.ids for code in codes], dtype=np.uint16)
    labels, split = np.array(table["label"], dtype=np.int8), np.array(table["split"])
    seen = {text for text, name in zip(table["text"], split) if name == "train"}
    fresh = np.array([text not in seen for text in table["text"]])
    parts = (split == "train", (split == "test") & fresh)
    train, test = (np.random.default_rng(0).permutation(np.flatnonzero(part)) for part in parts)
    where = {"train": train[HELD_OUT:], "validation": train[:HELD_OUT], "test": test[:TESTED]}
    return _labelled(tokens, labels, where)


def _labelled(samples: np.ndarray, labels: np.ndarray, where: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    pairs = ({name: samples[i], f"{name}_labels": labels[i]} for name, i in where.items())
    return {name: array for pair in pairs for name, array in pair.items()}


def characters(texts: list[str], most: int) -> np.ndarray:
    """The first characters below 128 of all texts, one behind another, each text followed by a line feed."""
    joined = "".join(text + "\n" for text in texts)
    return np.frombuffer(joined.encode("ascii", "ignore")[:most], dtype=np.uint8).astype(np.uint16)


def wikitext(folder: Path) -> dict[str, list[str]]:
    found = {}
    for name, file in (("train", "train"), ("validation", "valid"), ("test", "test")):
        with gzip.open(folder / f"{file}.txt.gz", "rt", encoding="utf-8") as lines:
            found[name] = [line.strip().replace("<unk>", UNKNOWN) for line in lines if line.strip()]
    return found


def bert(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def byte_pairs(texts: list[str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_PAIRS,
        special_tokens=[SEPARATOR, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    return pieces


def encode(texts: list[str], pieces: Tokenizer) -> np.ndarray:
    """All texts one behind another, each followed by the separator."""
    pieces.no_padding()
    pieces.no_truncation()
    separator = pieces.token_to_id(SEPARATOR)
    stream: list[int] = []
    for start in range(0, len(texts), 1000):
        for code in pieces.encode_batch(texts[start : start + 1000], add_special_tokens=False):
            stream += [*code.ids, separator]
    return np.array(stream, dtype=np.uint16)


def cifar10(path: Path, side: int = 16, held_out: int = 5000) -> dict[str, np.ndarray]:
    """Images of bytes (count, side, side, 3) and labels of every split."""
    import io

    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(path, columns=["image", "label", "split"]).to_pydict()
    whole = np.stack([np.asarray(Image.open(io.BytesIO(code)).convert("RGB")) for code in table["image"]])
    part = whole.shape[1] // side
    images = whole.reshape(-1, side, part, side, part, 3).mean((2, 4)).round().astype(np.uint8)
    labels, split = np.array(table["label"], dtype=np.int8), np.array(table["split"])
    order = np.random.default_rng(0).permutation(np.flatnonzero(split == "train"))
    where = {"train": order[held_out:], "validation": order[:held_out], "test": np.flatnonzero(split == "test")}
    return _labelled(images, labels, where)


def made(data: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Every corpus whose source is there, by name."""
    imdb, pieces, wiki = data / "imdb.parquet", data / "bert-base-uncased" / "tokenizer.json", data / "wikitext-2"
    if wiki.is_dir():
        splits = wikitext(wiki)
        yield "wikitext-characters", {split: characters(texts, CHARACTERS) for split, texts in splits.items()}
        pairs = byte_pairs(splits["train"])
        yield "wikitext-2", {split: encode(texts, pairs) for split, texts in splits.items()}
    if imdb.is_file():
        splits = imdb_texts(imdb)
        yield "imdb-characters", {split: characters(texts, CHARACTERS) for split, texts in splits.items()}
        if pieces.is_file():
            yield "imdb", {split: encode(texts, bert(pieces)) for split, texts in splits.items()}
            yield "imdb-labels", imdb_labels(imdb, bert(pieces))
    if (images := data / "cifar10.parquet").is_file():
        yield "cifar10-16", cifar10(images)


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, arrays in made(data):
        np.savez_compressed(out / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        print(name, {split: len(array) for split, array in arrays.items()}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
