"""Files: round trips, hand-written files, damaged files, whole or not at all."""

import builtins
import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run_script

from attsvm.data import MLPHead, QuadraticHead, TokenData, load, save, sphere
from attsvm.errors import AttsvmError
from attsvm.files import atomic_path

SUFFIXES = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])


def samples() -> list[TokenData]:
    data = sphere(2, 3, 4, trials=3, queries=2)
    shown = (data.X, data.Z, data.Y, data.mask)
    lam = torch.rand(3, 2, dtype=torch.float64)
    return [
        data,
        data.to(dtype=torch.float32),
        data[:0],
        sphere(2, 3, 4, causal=True, self_attention=True),
        TokenData(*shown),
        TokenData(*shown, head=MLPHead.sum_relu(3, 4)),
        TokenData(*shown, head=QuadraticHead(torch.rand(3, 2, 4, dtype=torch.float64), lam)),
        TokenData.cls(torch.rand(2, 3, 4, requires_grad=True), head=torch.rand(4)),
    ]


def assert_same_bits(first: TokenData, second: TokenData) -> None:
    for name in ("X", "Z", "Y", "mask"):
        a, b = getattr(first, name), getattr(second, name)
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert type(first.head) is type(second.head)
    if first.head is not None and second.head is not None:
        for name, tensor in first.head.tensors().items():
            assert tensor.dtype == second.head.tensors()[name].dtype
            assert torch.equal(tensor, second.head.tensors()[name])


@SUFFIXES
@pytest.mark.parametrize("number", range(8))
def test_round_trip(tmp_path: Path, suffix: str, number: int) -> None:
    data, path = samples()[number], tmp_path / f"data{suffix}"
    save(data, path)
    save(data, str(path))
    assert_same_bits(load(path), data)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_only_data_are_written(tmp_path: Path) -> None:
    from attsvm import train

    with pytest.raises(AttsvmError, match="but got Trajectory: call the save of the Trajectory itself"):
        save(train(sphere(2, 3, 4), steps=2), tmp_path / "run.npz")  # type: ignore[arg-type]
    with pytest.raises(AttsvmError, match=r"data must be TokenData, but got dict\."):
        save({}, tmp_path / "run.npz")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_hand_written_files(tmp_path: Path) -> None:
    data, path = sphere(2, 3, 4), tmp_path / "data.npz"
    X, Z, Y = data.X.numpy()[0], data.Z.numpy()[0, :, 0], data.Y.numpy()[0, :, 0]
    v, mask = data.head.tensors()["v"][0, 0].numpy(), data.mask.numpy()[0, :, 0]  # type: ignore[union-attr]
    np.savez(path, X=X, Z=Z, Y=Y.astype(int), v=v, mask=mask)
    assert_same_bits(load(path), data)
    np.savez_compressed(path, X=X)
    assert_same_bits(load(path), TokenData.self_attention(X))
    np.savez(path, X=X, v=v)
    assert_same_bits(load(path), TokenData.self_attention(X, head=v))


def test_hand_written_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    X = np.random.default_rng(0).standard_normal((2, 3, 4))
    save_file({"X": X}, tmp_path / "data.safetensors", metadata={"format": "pt"})
    assert_same_bits(load(tmp_path / "data.safetensors"), TokenData.self_attention(X))


X = np.ones((2, 3, 4))
FULL = {
    "X": X[None],
    "Z": X[None, :, :1],
    "Y": np.ones((1, 2, 1)),
    "mask": np.ones((1, 2, 1, 3), dtype=bool),
    "format": np.array("attsvm-data/1"),
    "head": np.array(""),
}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "the array X is missing"),
        ({"Z": X}, "the array X is missing"),
        ({"X": X, "y": X}, "but got also y."),
        ({"X": X, "Y": np.zeros(2)}, "Y must have entries ±1"),
        ({"X": np.full((1, 1, 1), np.nan)}, "X must be finite"),
        ({"X": np.array([None])}, "not a readable .npz file"),
        ({"X": np.array(["a"])}, "real numbers"),
        (
            FULL | {"format": np.array("attsvm-data/9")},
            "has format attsvm-data/9, but this version of attsvm reads attsvm-data/2.",
        ),
        (
            FULL | {"head": np.array("deep")},
            "or one of your own that is defined here, but got deep:",
        ),
        (FULL | {"head": np.array("linear")}, "linear head must have the parameters v, but the file has none."),
        (FULL | {"head.v": np.ones((1, 1, 4))}, "must have no parameters of one, but got head.v."),
        (FULL | {"X": X[None].astype(np.float16)}, "X must be float32 or float64, but got dtype float16."),
        (FULL | {"X": X}, "X must have shape (B, n, T, d)"),
        (FULL | {"X": np.array(["a"])}, "X must be float32 or float64, but got dtype <U1."),
        (FULL | {"X": X[None].astype(">f8")}, "X must be float32 or float64, but got dtype >f8."),
        ({name: FULL[name] for name in FULL if name != "mask"}, "the array mask is missing"),
    ],
)
def test_wrong_contents_are_refused_with_the_path(tmp_path: Path, arrays: dict, words: str) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(AttsvmError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    data = sphere(1, 1, 1)
    with pytest.raises(AttsvmError, match=r"gone\.npz is not a file"):
        load(tmp_path / "gone.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(AttsvmError, match="is not a file"):
        load(tmp_path / "folder.npz")
    with pytest.raises(AttsvmError, match=r"folder\.npz cannot be written"):
        save(data, tmp_path / "folder.npz")
    with pytest.raises(AttsvmError, match="cannot be written: No such file or directory"):
        save(data, tmp_path / "nowhere" / "data.npz")
    for call in (load, lambda path: save(data, path)):
        with pytest.raises(AttsvmError, match=r"must end in \.npz or \.safetensors"):
            call(tmp_path / "data.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.npz"]


@SUFFIXES
def test_damaged_files_are_refused(tmp_path: Path, suffix: str) -> None:
    good, bad = tmp_path / f"good{suffix}", tmp_path / f"bad{suffix}"
    data = sphere(2, 3, 4)
    save(data, good)
    content = good.read_bytes()
    rng = np.random.default_rng(0)
    flipped = [(content[:at], content[at] ^ 0xFF, content[at + 1 :]) for at in rng.integers(0, len(content), 300)]
    damaged = [
        *(content[:length] for length in rng.integers(0, len(content), 60)),
        *(head + bytes([byte]) + tail for head, byte, tail in flipped),
        *(b"", b"PK", rng.bytes(500), content + b"tail"),
    ]
    messages = []
    for case in damaged:
        bad.write_bytes(case)
        try:
            load(bad)
        except AttsvmError as error:
            messages.append(str(error))
    assert len(messages) > 60
    assert all(str(bad) in message and "\n" not in message for message in messages)


def test_every_truncation_of_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    save(sphere(1, 2, 1), path)
    content = path.read_bytes()
    for length in range(0, len(content), 23):
        path.write_bytes(content[:length])
        with pytest.raises(AttsvmError, match=r"not a readable \.npz file"):
            load(path)


def test_npz_never_loads_as_other_data(tmp_path: Path) -> None:
    path, data = tmp_path / "data.npz", sphere(1, 2, 2)
    save(data, path)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            loaded = load(path)
        except AttsvmError:
            continue
        assert_same_bits(loaded, data)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(AttsvmError, match="single array"):
        load(tmp_path / "data.npz")


def test_missing_safetensors_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.safetensors"
    save(sphere(1, 1, 1), path)
    original = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    for module in [name for name in sys.modules if name.startswith("safetensors")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    for call in (load, lambda path: save(sphere(1, 1, 1), path)):
        with pytest.raises(AttsvmError, match=r"pip install attsvm\[safetensors\]"):
            call(path)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_files_have_the_usual_permissions_and_a_full_disk_is_told(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"data.{ending}"
    save(sphere(1, 1, 1), path)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    before = path.read_bytes()
    code = f"""if True:
        import resource, attsvm
        data = attsvm.sphere(20, 20, 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        try:
            attsvm.save(data, {str(path)!r})
        except attsvm.AttsvmError as error:
            print(error)
    """
    told = run_script(code, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "cannot be written: File too large." in told.stdout
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "plain"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            assert temporary.parent == tmp_path
            assert temporary.suffix == ".txt"
            temporary.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_explained(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "data.npz"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(AttsvmError, match=r"data\.npz cannot be written: No space left on device\."):
        write()
    assert not list(tmp_path.iterdir())


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_path(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
