"""Texts as one stream of word pieces for each split, in a compressed .npz of uint16.

    python benchmarks/sparse/corpora.py DATA OUT

reads DATA/imdb.parquet, DATA/wikitext-2/*.txt.gz and DATA/bert-base-uncased/tokenizer.json and writes OUT/imdb.npz and
OUT/wikitext-2.npz. Splits: "train"; "validation", by which settings are chosen; "test", which is reported. IMDB's
validation and test are 1,500 texts each of its test split, drawn once, none of which is in its train split.
"""

import gzip
import random
import sys
from pathlib import Path

import numpy as np

DRAWN = 1500
SEPARATOR = "[SEP]"


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


def wikitext(folder: Path) -> dict[str, list[str]]:
    found = {}
    for name, file in (("train", "train"), ("validation", "valid"), ("test", "test")):
        with gzip.open(folder / f"{file}.txt.gz", "rt", encoding="utf-8") as lines:
            found[name] = [line.strip().replace("<unk>", "[UNK]") for line in lines if line.strip()]
    return found


def encode(texts: list[str], tokenizer: Path) -> np.ndarray:
    """All texts one behind another, each followed by the separator."""
    from tokenizers import Tokenizer

    pieces = Tokenizer.from_file(str(tokenizer))
    pieces.no_padding()
    pieces.no_truncation()
    separator = pieces.token_to_id(SEPARATOR)
    stream: list[int] = []
    for start in range(0, len(texts), 1000):
        for code in pieces.encode_batch(texts[start : start + 1000], add_special_tokens=False):
            stream += [*code.ids, separator]
    return np.array(stream, dtype=np.uint16)


def main(data: Path, out: Path) -> None:
    tokenizer = data / "bert-base-uncased" / "tokenizer.json"
    out.mkdir(parents=True, exist_ok=True)
    for name, splits in (("imdb", imdb_texts(data / "imdb.parquet")), ("wikitext-2", wikitext(data / "wikitext-2"))):
        streams = {split: encode(texts, tokenizer) for split, texts in splits.items()}
        np.savez_compressed(out / f"{name}.npz", **streams)  # pyright: ignore[reportArgumentType]
        print(name, {split: len(stream) for split, stream in streams.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
