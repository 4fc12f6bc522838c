"""Every script of benchmarks/ can still be read, and those that can be made tiny still run."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import train
from attsvm.embeddings import Reviews, Sequences
from attsvm.transformer import image_data, save_data

ROOT = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts find each other, as they do when started; what they load and set ends with the test."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    threads, known = torch.get_num_threads(), set(sys.modules)
    yield
    torch.set_num_threads(threads)
    for name in set(sys.modules) - known:
        if str(ROOT) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_read_and_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script(name)
    assert module.__doc__
    if hasattr(module, "argparse"):
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 0
        assert module.__doc__.split()[0] in capsys.readouterr().out


def run(name: str, *arguments: str | Path, monkeypatch: pytest.MonkeyPatch, **constants: Any) -> ModuleType:
    module = script(name)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    module.main()
    return module


def numbers(table: str) -> int:
    """Lines of a table that hold a number."""
    return sum(any(x.isdigit() for x in line) for line in table.splitlines())


TINY: dict[str, tuple[list[str], dict[str, Any]]] = {
    "bench_embeddings.py": ([], {"SIZE": 40, "BATCH": 3, "REPEATS": 1}),
    "bench_optim.py": (["--device", "cpu", "--cases", "tiny"], {"CPU_CASES": {"tiny": [(3, 4)]}}),
    "bench_solve.py": (["--batch", "2", "--sample", "1", "--repeats", "1", "--norms", "l2"], {}),
    "bench_solve_device.py": (["--device", "cpu", "--batches", "2"], {"NORMS": ("l2", "l3")}),
    "convergence.py": (["--trials", "1", "--steps", "3", "5"], {}),
    "sweep_theorems.py": (["--instances", "1"], {"STEPS": 4}),
}


@pytest.mark.parametrize("name", TINY)
def test_tiny_forms_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, constants = TINY[name]
    run(name, *arguments, monkeypatch=monkeypatch, **constants)
    assert numbers(capsys.readouterr().out) >= 2


def test_training_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def eager(*arguments: Any, compile: bool, **options: Any) -> Any:
        return train(*arguments, compile=False, **options)

    options = ("--trials", "2", "--steps", "2", "--json", tmp_path / "rows.json")
    run("bench_train.py", *options, monkeypatch=monkeypatch, CASES=[("joint", 1.75)], train=eager)
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert min(row["plain"], row["eager"], row["compiled"]) > 0


def test_certificates_are_fuzzed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("fuzz_certificates.py", "--instances", "10", "--norms", "l2", monkeypatch=monkeypatch)
    assert ended.value.code == 0
    assert "false certificates 0" in capsys.readouterr().out


def test_transformers_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("speed", "--tiny", "--device", "cpu", "--results", tmp_path)
    run("run_transformers.py", *options, monkeypatch=monkeypatch, timed=lambda call, *_: call() or 1.0)
    assert json.loads((tmp_path / "speed.json").read_text())["epoch, packed"] == 1.0


def test_images_are_packed_without_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    pixels, labels = stream.integers(0, 256, (5, 3, 4, 4), dtype=np.uint8), np.array([0, 1, 2, 1, 0])
    save_data(image_data((pixels, labels), (pixels[:2], labels[:2]), 3, 4), tmp_path / "images.npz")
    module = run("image_parts.py", "split", tmp_path / "images.npz", tmp_path / "parts", monkeypatch=monkeypatch)
    (packed,) = tmp_path.glob("parts/part-0/train-*.xz")
    for found, given in zip(module.unpack(packed.read_bytes()), (pixels, labels)):
        np.testing.assert_array_equal(found, given)


def test_kept_runs_become_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for path in sorted((ROOT / "results" / "transformers").glob("*-seed1.json"))[:2]:
        shutil.copy(path, tmp_path)
    run("transformer_tables.py", "--results", tmp_path, monkeypatch=monkeypatch)
    assert parquet.read_table(tmp_path / "runs.parquet").num_rows == 2


def test_words_of_reviews_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word 0 tells positive texts, word 1 negative ones: the posterior difference orders the coefficients."""
    stream = np.random.default_rng(0)
    Y = np.repeat([1, -1], 60)
    ids = np.stack([(Y < 0).astype(int), *stream.integers(2, 5, (2, 120))], 1)
    data = Sequences.of(ids.ravel(), 3 * np.arange(121), Y, 5)
    Reviews(data, list("abcde")).save(tmp_path / "reviews.npz")
    pytest.importorskip("sklearn")
    script("linear_words.py").main(str(tmp_path / "reviews.npz"))
    assert numbers(capsys.readouterr().out) == 8
    small = ("--d", "4", "--epochs", "5", "--out", tmp_path / "out.npz")
    run("run_two_layer.py", tmp_path / "reviews.npz", *small, monkeypatch=monkeypatch)
    assert np.isfinite(np.load(tmp_path / "out.npz")["loss"]).all()


@pytest.mark.parametrize("task", ["gpt", "text"])
def test_controls_of_audits_along_training(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turned at random, W_QK keeps its singular values; the start is the model itself as long as nothing is trained."""
    module = script("audit_training.py")
    size = module.Size(vocabulary=20, width=8, gpt_layers=1, gpt_heads=2, text_layers=2, length=12)
    first = module.Run(task, "adamw", 1, 1e-3)
    weights = {name: weight + 0.3 for name, weight in module.make_model(first, size).state_dict().items()}
    texts = {task: torch.randint(3, 20, (20, 12), generator=torch.Generator().manual_seed(0)).tolist()}
    saved = {"run": vars(first), "step": 8, "last": True, "facts": {"loss": 1.0}, "weights": weights, "first": weights}
    rows = module.audit_checkpoint(saved, texts, size)
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("own", "turned", "start")}
    for own, turned, start in zip(*by_kind.values(), strict=True):
        assert turned["norm"] == pytest.approx(own["norm"], rel=1e-3)
        assert turned["stable_rank"] == pytest.approx(own["stable_rank"], rel=1e-3)
        for name in ("queries", "selecting", "entropy", "tokens_l2_efficiency", "tokens_linf_efficiency"):
            assert start[name] == pytest.approx(own[name], rel=1e-3)
    file = tmp_path / "rows.jsonl"
    rows += [row | {"step": 0} for row in by_kind["own"]]
    file.write_text("".join(json.dumps(row | {"seed": seed}) + "\n" for row in rows for seed in (1, 2)))
    kept, figure = tmp_path / "rows.parquet", tmp_path / "figure.png"
    run("audit_tables.py", file, "--keep", kept, "--figure", figure, monkeypatch=monkeypatch, SAMPLES=5)
    assert figure.is_file()
    said = capsys.readouterr().out
    run("audit_tables.py", kept, monkeypatch=monkeypatch, SAMPLES=5)
    assert numbers(said) == numbers(capsys.readouterr().out) > 8
