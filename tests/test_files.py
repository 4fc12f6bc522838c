"""Files that appear whole or not at all, locks, array files and their schemas, and the identity of runs."""

import hashlib
import io
import os
import platform
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run_script

from attsvm.errors import AttsvmError
from attsvm.files import (
    atomic_path,
    atomic_paths,
    clear_leftovers,
    locked_folder,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from attsvm.identity import check_same_run, run_folder
from attsvm.schema import NUMBER, Array, Schema, check_json

SCHEMA = Schema(
    "attsvm-thing/2",
    "a thing",
    {
        "X": Array("real", "n d"),
        "labels": Array("whole", "n", least=0, most=9),
        "offsets": Array("whole", "n+1"),
        "mask": Array("bool", "n 2", optional=True),
        "records.*": Array("real", "R ..."),
    },
    {"settings": {"lr": float, "name?": str}, "head": frozenset({"linear", ""})},
    former=("attsvm thing 2",),
)
GOOD = {
    "X": torch.ones(3, 2),
    "labels": torch.arange(3),
    "offsets": torch.arange(4),
    "records.loss": torch.zeros(5),
    "records.W": torch.zeros(5, 3),
}
FACTS = {"format": "attsvm-thing/2", "settings": {"lr": 0.1}, "head": "linear"}


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_arrays_and_facts_come_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"thing.{ending}"
    for name in (SCHEMA.format, *SCHEMA.former):
        write_arrays(path, GOOD, FACTS | {"format": name})
        arrays, facts = read_arrays(path, SCHEMA)
        assert facts == FACTS
        assert arrays.keys() == GOOD.keys()
        assert all((torch.from_numpy(arrays[key]) == GOOD[key]).all() for key in GOOD)


@pytest.mark.parametrize(
    ("arrays", "facts", "words"),
    [
        ({"X": None}, {}, "the array X is missing"),
        ({"other": torch.ones(2)}, {}, "but got also other"),
        ({"X": torch.ones(3, 2, dtype=torch.int64)}, {}, "X must be float32 or float64"),
        ({"X": torch.ones(3)}, {}, r"X must have shape \(n, d\), but got shape \(3,\)"),
        ({"X": torch.full((3, 2), torch.nan)}, {}, "X must be finite"),
        ({"labels": torch.arange(2)}, {}, r"labels must have shape \(3\)"),
        ({"labels": torch.ones(3)}, {}, "labels must be whole numbers"),
        ({"labels": torch.tensor([0, -1, 3])}, {}, "labels must be at least 0"),
        ({"labels": torch.tensor([0, 11, 3])}, {}, "labels must be at most 9"),
        ({"offsets": torch.arange(3)}, {}, r"offsets must have shape \(4\)"),
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, {}, r"mask must have shape \(3, 2\)"),
        ({"records.W": torch.zeros(4, 3)}, {}, r"records.loss must have shape \(4, …\)"),
        ({}, {"format": "attsvm-thing/9"}, "has format attsvm-thing/9, but this version of attsvm reads"),
        ({}, {"format": "pt"}, "must hold a thing"),
        ({}, {"settings": None}, "settings must be an object"),
        ({}, {"settings": "{"}, "settings must be JSON"),
        ({}, {"settings": "[" * 100_000}, "settings must be JSON"),
        ({}, {"settings": {"lr": "big"}}, "settings.lr must be a finite number"),
        ({}, {"settings": {"name": "a"}}, "settings must have lr"),
        ({}, {"settings": {"lr": 1, "b": 2}}, "but it has also b"),
        ({}, {"head": "deep"}, "head must be one of"),
    ],
)
def test_what_a_schema_refuses(tmp_path: Path, arrays: dict, facts: dict, words: str) -> None:
    path = tmp_path / "thing.npz"
    wanted = {name: tensor for name, tensor in (GOOD | arrays).items() if tensor is not None}
    write_arrays(path, wanted, FACTS | facts)
    with pytest.raises(AttsvmError, match=words) as caught:
        read_arrays(path, SCHEMA)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def _npy(shape: str, content: bytes = b"", descr: str = "<f8") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"X.npy": _npy("(1000000000000,)")}, "does not have the size that its shape"),
        ({"X.npy": _npy("(1,)", bytes(800))}, "does not have the size that its shape"),
        ({"X.npy": _npy("(-1,)", bytes(8))}, "does not have the size|negative"),
        ({"X.npy": _npy("(1,)", bytes(8), "|O")}, "Python objects or records"),
        ({"X.txt": b"a"}, "must hold .npy files"),
    ],
)
def test_archives_that_lie_about_their_size(tmp_path: Path, entries: dict[str, bytes], words: str) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(AttsvmError, match=words) as caught:
        read_arrays(path)
    assert "allow_pickle" not in str(caught.value)


def test_a_zip_bomb_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path, count = tmp_path / "bomb.npz", 40
    chunk = _npy("(50000000,)", bytes(8)) + bytes(2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", chunk)
    content = bytearray(path.read_bytes())
    # The directory says how much there is: 40 entries of 400 MB cannot be in a file of some kB.
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(content)
    assert count * path.stat().st_size < 2**30
    with pytest.raises(AttsvmError, match="would unpack to 4,294,967,294"):
        read_arrays(path)


def test_fortran_order_and_compressed_archives_are_read(tmp_path: Path) -> None:
    X = np.arange(6.0).reshape(2, 3)
    np.savez_compressed(tmp_path / "a.npz", X=np.asfortranarray(X), s=np.array("text"))
    arrays, strings = read_arrays(tmp_path / "a.npz")
    assert (arrays["X"] == X).all()
    assert strings == {"s": "text"}
    torch.from_numpy(arrays["X"])[0] = 0  # the memory is ours


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    loop = tmp_path / "loop.npz"
    loop.symlink_to(loop)
    for path in (tmp_path / ("a" * 300 + ".npz"), loop):
        with pytest.raises(AttsvmError, match="is not a file"):
            read_arrays(path)
        with pytest.raises(AttsvmError, match="cannot be written: "):
            write_arrays(path, {"X": torch.ones(1)}, {})
        with pytest.raises(AttsvmError, match="cannot be made a folder"):
            run_folder(path, "train").__enter__()
    long = tmp_path / ("ä" * 120 + ".npz")  # 244 bytes: allowed, and its temporary name is not longer
    write_arrays(long, {"X": torch.ones(1)}, {})
    assert read_arrays(long)[0]["X"] == 1


def test_leftovers_go_but_not_those_of_a_living_process(tmp_path: Path) -> None:
    path = tmp_path / "kept[1].txt"
    code = "import sys, os; from attsvm.files import atomic_path\nwith atomic_path(sys.argv[1]): os._exit(1)"
    run_script(code, str(path), cwd=tmp_path)
    (tmp_path / ".kept[1].0123456789ab.tmp.txt").touch()  # as version 0.0 named them
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        clear_leftovers(path)
        assert [file.name for file in tmp_path.iterdir()] == [temporary.name]
    assert path.read_text() == "new"


def test_files_that_belong_together_are_written_before_one_is_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for path in (first, second):
        path.write_text("old")

    def fail() -> None:
        with atomic_paths(first, second) as (a, b):
            a.write_text("new")
            b.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert first.read_text() == second.read_text() == "old"
    with atomic_paths(first, second) as (a, b):
        a.write_text("new")
        b.write_text("new")
        assert first.read_text() == second.read_text() == "old"
    assert first.read_text() == second.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_content_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("sync"), sync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("x")
    assert calls == ["sync", "replace", "sync"]


def test_a_second_process_is_refused_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    code = "import sys; from attsvm.files import locked_folder\nwith locked_folder(sys.argv[1]): pass"
    with locked_folder(folder):
        other = run_script(code, str(folder), cwd=tmp_path)
        assert f"{folder} is in use by process {os.getpid()} on" in other.stderr
        with pytest.raises(AttsvmError, match="is in use"):  # in this process, too
            locked_folder(folder).__enter__()
        (folder / "result").touch()
    (folder / ".attsvm.lock").write_text("process 1 on this")  # of a process that is gone: nobody holds it
    with locked_folder(folder):
        pass
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_a_folder_made_in_vain_goes(tmp_path: Path) -> None:
    def refused() -> None:
        with locked_folder(tmp_path / "a" / "b"):
            raise AttsvmError("no")

    with pytest.raises(AttsvmError, match="no"):
        refused()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_one_kind_of_run_is_refused_by_another(tmp_path: Path) -> None:
    with run_folder(tmp_path / "run", "train") as folder:
        (folder / "trajectory.safetensors").touch()
    with run_folder(tmp_path / "run", "train"):
        pass
    with pytest.raises(AttsvmError, match="holds a run of attsvm train, not of attsvm text fit"):
        run_folder(tmp_path / "run", "text fit").__enter__()


def test_the_setting_that_differs_is_named() -> None:
    stored = {"lr": 0.1, "optimizer": {"name": "adam", "betas": (0.9, 0.99)}, "data": "0123456789abcdef", "seed": None}
    check_same_run("run", stored, stored | {"optimizer": {"name": "adam", "betas": [0.9, 0.99]}})
    for change, words in (
        ({"lr": 0.2}, "with lr 0.1, not 0.2"),
        ({"optimizer": {"name": "sgd", "betas": (0.9, 0.99)}}, "with optimizer.name adam, not sgd"),
        ({"data": "fedcba9876543210"}, "another run, with other data:"),
        ({"seed": 3}, "with seed none, not 3"),
        ({"new": 1}, "with new none, not 1"),
    ):
        with pytest.raises(AttsvmError, match=words):
            check_same_run("run", stored, stored | change)


def test_json_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shape = {"quick": bool, "data?": {str: str}, "loss": [NUMBER], "p": (int, None)}
    good = {"quick": True, "data": {"imdb": "abc"}, "loss": [1, float("nan")], "p": None}
    write_json(path, good)
    assert read_json(path, shape)["data"] == {"imdb": "abc"}
    for content, words in (
        (b"", "cannot be read as a plan"),
        (b"\xff\xfe", "cannot be read as a plan"),
        (b"[" * 200_000, "cannot be read as a plan"),
        (b"9" * 10_000, "cannot be read as a plan"),
        (b"[]", "must be an object"),
        (b'{"quick": 1, "loss": [], "p": 1}', "quick must be true or false"),
        (b'{"quick": true, "loss": ["a"], "p": 1}', r"loss\[0\] must be a number"),
        (b'{"quick": true, "loss": [], "p": "a"}', "p must be a whole number or nothing"),
        (b'{"quick": true, "loss": [], "p": true}', "p must be a whole number or nothing"),
    ):
        path.write_bytes(content)
        with pytest.raises(AttsvmError, match=words):
            read_json(path, shape, "a plan")
    with pytest.raises(AttsvmError, match="lr must be a finite number"):
        check_json("lr", float("inf"), float)


def test_a_damaged_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for ending in ("npz", "safetensors"):
        path = tmp_path / f"thing.{ending}"
        write_arrays(path, GOOD, FACTS)
        content = path.read_bytes()
        for _ in range(150):
            at, byte = int(rng.integers(len(content))), int(rng.integers(256))
            path.write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            said, arrays = "", {}
            try:
                arrays, _ = read_arrays(path, SCHEMA)
            except AttsvmError as error:
                said = str(error)
            assert "\n" not in said
            assert said or all(arrays[name].shape == tuple(GOOD[name].shape) for name in GOOD)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "one.npz").write_bytes(buffer.getvalue())
    with pytest.raises(AttsvmError, match="single array"):
        read_arrays(tmp_path / "one.npz")


def test_a_run_folder_is_cleared_of_what_killed_writers_left(tmp_path: Path) -> None:
    dead, host = 2**22 + 5, platform.node()  # no process has this number
    token = f"{dead}-{hashlib.sha256(host.encode()).hexdigest()[:6]}-0123abcd"
    living = f".weight.{os.getpid()}-{hashlib.sha256(host.encode()).hexdigest()[:6]}-0123abcd.tmp.svg"
    for name in (f".weight.{token}.tmp.svg", f".verdict.{token}.tmp.json", living, ".mine.tmp.txt", "notes.txt"):
        (tmp_path / name).write_text("half")
    with run_folder(tmp_path, "train"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left >= {living, ".mine.tmp.txt", "notes.txt"}
    assert not any(token in name for name in left)


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    """The library of safetensors shuffles what it is told about the arrays."""
    arrays = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.zeros(0), "ü": torch.ones(3, dtype=torch.int64)}
    facts = {name: f"{name}é" for name in "hgfedcba"}
    for number in range(6):
        write_arrays(tmp_path / f"{number}.safetensors", arrays, {f"fact {name}": fact for name, fact in facts.items()})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    found, strings = read_arrays(tmp_path / "0.safetensors")
    assert all(np.array_equal(found[name], array.numpy()) for name, array in arrays.items())
    assert strings == {f"fact {name}": fact for name, fact in facts.items()}
