"""Damage every kind of file in every way, and see what its reader says. Prints one table.

python tools/fuzz_files.py [--cases 200] [--seed 0]

A reader may refuse (one sentence, an AttsvmError) or read what was written (the damage hit a byte that means nothing).
Anything else is a failure: another exception, a sentence of several lines, or content that nobody wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attsvm
from attsvm.errors import AttsvmError
from attsvm.files import read_arrays, write_arrays, write_json

Reader = Callable[[Path], Any]

CANARY = Path(tempfile.gettempdir()) / f"attsvm-canary-{os.getpid()}"
"""What appears if anything of a file or an argument is run."""


class Evil:
    """A pickle that makes the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


def was_run() -> bool:
    """Has anything been run since the last time?"""
    found = CANARY.exists()
    CANARY.unlink(missing_ok=True)
    return found


@dataclass(frozen=True)
class Kind:
    """A kind of file: `make` writes a good one into a folder and returns it, `read` gives its content as plain data."""

    name: str
    make: Callable[[Path], Path]
    read: Reader
    free: str = "$."
    """a pattern of names of arrays and facts that may be missing, or hold anything of their kind"""
    checksum: bool = True
    """has the format one? Without it another digit is another number, and nobody can tell"""


def plain(value: Any) -> str:
    """Content as a string, to compare."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tolist()}"
    if isinstance(value, dict):
        return repr({str(name): plain(inner) for name, inner in sorted(value.items(), key=lambda item: str(item[0]))})
    if isinstance(value, list | tuple):
        return repr([plain(inner) for inner in value])
    return repr(value)


def kinds() -> list[Kind]:
    return [*_core(), *_transformers(), *_texts(), *_experiments()]


def _core() -> list[Kind]:
    def data(ending: str) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            attsvm.save(attsvm.sphere(2, 3, 2, trials=2), folder / f"data.{ending}")
            return folder / f"data.{ending}"

        return make

    def trajectory(folder: Path) -> Path:
        attsvm.train(attsvm.sphere(2, 3, 2, trials=2), "l2", steps=3).save(folder / "run.safetensors")
        return folder / "run.safetensors"

    def solution(folder: Path) -> Path:
        data = attsvm.sphere(2, 3, 4, trials=2)
        attsvm.solve(attsvm.att_svm(data, data.optimal_tokens())).save(folder / "solution.npz")
        return folder / "solution.npz"

    def of_run(path: Path) -> Any:
        run = attsvm.Trajectory.load(path)
        return [run.W, run.records, run.steps, run.tokens, run.data.tensors(), run.geometry.name]

    def of_solution(path: Path) -> Any:
        found = attsvm.MaxMargin.load(path)
        return [found.W, found.multipliers, found.lower, found.upper, found.status, found.geometry.name]

    read_data = lambda path: attsvm.load(path).tensors()  # noqa: E731
    return [
        Kind("token data .npz", data("npz"), read_data),
        Kind("token data .safetensors", data("safetensors"), read_data),
        # a run may diverge, and records what it is asked to
        Kind("trajectory", trajectory, of_run, free=r"records\..*|state\..*|data\.trials|W|v|K|Q"),
        Kind("solution", solution, of_solution, free="W|multipliers|lower|upper|violation|norm|margin"),
    ]


def _transformers() -> list[Kind]:
    from attsvm.experiments.transformers import read_result
    from attsvm.transformer import (
        Probes,
        Settings,
        fit,
        load_data,
        load_model,
        load_probes,
        pivotal_reviews,
        save_data,
        synthetic_sentiment,
        tiny_images,
    )

    texts = synthetic_sentiment(12, 6, length=8)
    small = Settings("adamw", lr=1e-3, sizes={"width": 4, "hidden": 4, "layers": 1, "length": 8}, batch=6, epochs=1)

    def splits(folder: Path) -> Path:
        save_data(texts, folder / "splits.npz")
        return folder / "splits.npz"

    def images(folder: Path) -> Path:
        save_data(tiny_images(6, 4), folder / "images.npz")
        return folder / "images.npz"

    def probes(folder: Path) -> Path:
        n = len(pivotal_reviews())
        tokens = torch.arange(5 * n).reshape(n, 5)
        spans = torch.zeros(n, 5, 2, dtype=torch.int64)
        Probes(tokens, torch.full((n,), 5), tokens > 3, spans).save(folder / "probes.npz")
        return folder / "probes.npz"

    def checkpoint(folder: Path) -> Path:
        fit(texts, small, out=folder)
        return folder / "checkpoint.safetensors"

    def resumed(path: Path) -> Any:
        load_model(path.parent)
        fitted = fit(texts, small, out=path.parent)
        history = [{name: row[name] for name in row if name not in ("seconds", "rate")} for row in fitted.history]
        return [fitted.model.state_dict(), fitted.stopped, history]

    def kept(folder: Path) -> Path:
        history = {"epoch": [1, 2], "test_accuracy": [0.5, 0.75]}
        result = {"name": "one", "settings": small.to_dict(), "stopped": "epochs", "history": history}
        write_json(folder / "one-seed0.json", result)
        return folder / "one-seed0.json"

    def cifar(folder: Path) -> Path:
        for name in ("data_batch_1", "test_batch"):
            pixels = np.arange(4 * 3072, dtype=np.uint8).reshape(4, 3072)
            (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 3]}))
        return folder / "data_batch_1"

    def both(data: Any) -> Any:
        return [list(vars(split).values()) for split in (data.train, data.test)] + [data.classes, data.vocabulary]

    return [
        Kind("splits of texts", splits, lambda path: both(load_data(path)), free="tokenizer"),
        Kind("splits of images", images, lambda path: both(load_data(path)), free="tokenizer"),
        Kind("probes", probes, lambda path: list(vars(load_probes(path)).values()), free="tokenizer"),
        Kind("checkpoint", checkpoint, resumed),
        Kind("kept result", kept, read_result, checksum=False),
        Kind("CIFAR-10 pickle", cifar, lambda path: both(load_data(path.parent)), checksum=False),
    ]


def _texts() -> list[Kind]:
    from attsvm.embeddings import Reviews, Sequences
    from attsvm.text import AttentionTextClassifier

    texts = [f"{'good fine' if i % 2 else 'bad poor'} word{i % 5}" for i in range(24)]
    fitted = AttentionTextClassifier(min_texts=1, penalty=1.0).fit(texts, [i % 2 for i in range(24)])

    def model(name: str) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            fitted.save(folder)
            return folder / name

        return make

    def of_model(path: Path) -> Any:
        found = AttentionTextClassifier.load(path.parent)
        return [found.predict_proba(texts), found.classes_, found.words_.word, found.get_params(), found.penalty_]

    def reviews(folder: Path) -> Path:
        sequences = Sequences.from_lists([[0, 1], [2], [1, 2]], [1, -1, 1], 3)
        Reviews(sequences, ["a", "bé", "c"]).save(folder / "reviews.npz")
        return folder / "reviews.npz"

    def of_reviews(path: Path) -> Any:
        found = Reviews.load(path)
        return [found.sequences.ids, found.sequences.offsets, found.sequences.Y, found.vocabulary]

    return [
        Kind("text model, JSON", model("model.json"), of_model),
        Kind("text model, numbers", model("model.safetensors"), of_model),
        Kind("reviews", reviews, of_reviews, free="vocabulary"),
    ]


def _experiments() -> list[Kind]:
    from attsvm.experiments import Backend, Check, Experiment, read_stored, run_experiments
    from attsvm.experiments.jobs import work

    experiment = Experiment(
        id="fuzzed",
        title="",
        statement="",
        grid={"a": [2.0]},
        run=lambda params, trials, device: {"x": params["a"] * np.array(trials), "name": np.array(list("abc"))},
        figure=lambda rows: None,  # type: ignore[arg-type,return-value]
        checks=lambda rows: [Check("", "", "", True)],
        trials=3,
        quick=3,
        batch=3,
    )

    def rows(folder: Path) -> Path:
        run_experiments([experiment], folder)
        return next(folder.rglob("*.parquet"))

    def plan(folder: Path) -> Path:
        run_experiments([experiment], folder)
        return folder / "fuzzed" / "plan.json"

    def of_rows(root: Path) -> Any:
        stored = read_stored(root, experiment)
        if stored is None or not stored.complete:
            raise AttsvmError("there are no rows.")
        return [(params, {n: c for n, c in columns.items() if n != "seconds"}) for params, columns in stored.rows()]

    def job(folder: Path) -> Path:
        run_experiments([experiment], folder / "rows", backend=Backend(jobs=folder / "jobs"))
        return next((folder / "jobs").glob("*.json"))

    def result(folder: Path) -> Path:
        path = job(folder)
        work(path.parent, {}, lambda line: None, {"fuzzed": experiment})
        return path.with_suffix(".npz")

    def of_job(path: Path) -> Any:
        path.with_suffix(".npz").unlink(missing_ok=True)
        work(path.parent, {}, lambda line: None, {"fuzzed": experiment})
        return of_result(path)

    def of_result(path: Path) -> Any:
        root = path.parents[1] / "rows"
        for old in root.rglob("*.parquet"):
            old.unlink()
        run_experiments([experiment], root, backend=Backend(jobs=path.parent))
        return of_rows(root)

    return [
        Kind("rows", rows, lambda path: of_rows(path.parents[2])),
        Kind("plan", plan, lambda path: of_rows(path.parents[1])),
        Kind("job", job, of_job),
        Kind("result of a job", result, of_result, free="column.*|texts|where|timing"),
    ]


def damages(path: Path, rng: np.random.Generator, free: str = "$.") -> Iterator[tuple[str, Callable[[], None]]]:
    """Endless ways to damage a good file: of its bytes, and where it is JSON or arrays, of what these mean."""
    content = path.read_bytes()

    def put(changed: bytes) -> Callable[[], None]:
        return lambda: (path.write_bytes(changed), None)[1]

    while True:
        at, cut = (int(x) for x in rng.integers(0, len(content), 2))
        yield "truncated", put(content[:cut])
        yield "byte flipped", put(content[:at] + bytes([content[at] ^ int(rng.integers(1, 256))]) + content[at + 1 :])
        yield "bytes lost", put(content[:at] + content[at + 1 + cut % 8 :])
        yield "bytes added", put(content[:at] + rng.bytes(1 + cut % 8) + content[at:])
        others = [b"", rng.bytes(200), b"PK\x03\x04", b"{}", b"[" * 100_000, pickle.dumps(Evil())]
        yield "another file", put(others[cut % 6])
        if path.suffix == ".json":
            yield "JSON", lambda: path.write_text(json.dumps(_damaged_json(json.loads(content), rng)))
        if path.suffix in (".npz", ".safetensors"):
            path.write_bytes(content)
            arrays, facts = read_arrays(path)
            what, arrays, facts = _damaged_arrays(arrays, facts, rng, free)
            if any(array.dtype.kind in "cUS" for array in arrays.values()) and path.suffix == ".safetensors":
                continue
            yield what, lambda arrays=arrays, facts=facts: _write(path, arrays, facts)


def _write(path: Path, arrays: dict[str, np.ndarray], facts: dict[str, str]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **facts, **arrays)  # type: ignore[arg-type]
    else:
        write_arrays(path, {name: torch.from_numpy(array) for name, array in arrays.items()}, facts)


def _damaged_json(content: Any, rng: np.random.Generator) -> Any:
    """One place, anywhere inside, lost or replaced by what cannot stand there."""
    odd = [None, True, -1, 1.5, 1e400, "x", "os:system", [], {}, [[[]]], {"a": {"b": 1}}, 10**30]
    if isinstance(content, dict) and content and rng.random() < 0.85:
        name = list(content)[int(rng.integers(len(content)))]
        if rng.random() < 0.25:
            return {key: value for key, value in content.items() if key != name}
        return content | {name: _damaged_json(content[name], rng)}
    if isinstance(content, list) and content and rng.random() < 0.6:
        at = int(rng.integers(len(content)))
        return [*content[:at], _damaged_json(content[at], rng), *content[at + 1 :]]
    choices = [value for value in odd if type(value) is not type(content)]
    return choices[int(rng.integers(len(choices)))]


def _damaged_arrays(
    arrays: dict[str, np.ndarray], facts: dict[str, str], rng: np.random.Generator, free: str
) -> tuple[str, dict[str, np.ndarray], dict[str, str]]:
    name = sorted(arrays)[int(rng.integers(len(arrays)))]
    array = arrays[name]
    rest = {key: value for key, value in arrays.items() if key != name}
    fact = next(one for one in rng.permutation(sorted(facts)) if not re.fullmatch(free, one))
    at = int(rng.integers(9))
    if re.fullmatch(free, name) and at in (0, 2, 4, 5):
        at = 3
    wrong = "kind" if array.dtype.kind in "iub" else "nan"
    flat = array.astype(np.float64) + 0.5
    if wrong == "nan" and array.size:
        flat.flat[int(rng.integers(array.size))] = np.nan
    return [
        ("array missing", rest, facts),
        ("array added", arrays | {"surplus": np.ones(2)}, facts),
        ("fractions or nan", rest | {name: flat}, facts),
        ("other dtype", rest | {name: array.astype(np.complex128 if rng.random() < 0.5 else np.float16)}, facts),
        ("other axes", rest | {name: array[..., None]}, facts),
        ("row too many", rest | {name: np.concatenate([array, array[-1:]]) if array.ndim else array}, facts),
        ("text for numbers", rest | {name: array.astype(str)}, facts),
        ("fact lost", arrays, {key: value for key, value in facts.items() if key != fact}),
        ("fact damaged", arrays, facts | {fact: ["", "{", "[]", "null", "[" * 100_000][int(rng.integers(5))]}),
    ][at]


def outcome(kind: Kind, path: Path, damage: Callable[[], None], good: str) -> tuple[str, str]:
    """refused, same, or what went wrong; and the words."""
    damage()
    try:
        found = plain(kind.read(path))
    except AttsvmError as error:
        said = str(error)
        return ("refused", said) if "\n" not in said and "allow_pickle" not in said else ("odd sentence", said)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return ("same" if found == good else "accepted" if kind.checksum else "no checksum", "")


def fuzz(cases: int, seed: int, wanted: list[Kind] | None = None) -> list[tuple[str, Counter[str], list[str]]]:
    """By kind of file: how often what came out, and the failures in words."""
    table = []
    for number, kind in enumerate(kinds() if wanted is None else wanted):
        rng = np.random.default_rng([seed, number])
        counts, failures = Counter[str](), list[str]()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = kind.make(folder)
            before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
            good = plain(kind.read(path))
            restore(folder, before)
            for (what, damage), _ in zip(damages(path, rng, kind.free), range(cases)):
                result, words = outcome(kind, path, damage, good)
                result = "execution" if was_run() else result
                counts[result] += 1
                if result not in ("refused", "same", "no checksum"):
                    failures.append(f"{kind.name}, {what}: {result} {words}")
                restore(folder, before)
        table.append((kind.name, counts, failures))
    return table


def restore(folder: Path, before: dict[Path, bytes]) -> None:
    for file in [file for file in folder.rglob("*") if file.is_file() and file not in before]:
        file.unlink()
    for file, content in before.items():
        if not file.is_file() or file.read_bytes() != content:
            file.write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = fuzz(options.cases, options.seed)
    columns = ("refused", "same", "no checksum", "accepted", "traceback", "odd sentence", "execution")
    print(f"{'file':26}" + "".join(f"{name:>14}" for name in columns))
    for name, counts, _ in table:
        print(f"{name:26}" + "".join(f"{counts[column]:14}" for column in columns))
    failures = [line for _, _, lines in table for line in lines]
    print("\n".join(line[:300] for line in failures[:60]))
    print(f"{sum(sum(counts.values()) for _, counts, _ in table)} damaged files, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
